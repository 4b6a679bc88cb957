"""The libraries are imported when an observer that needs them is, and a missing one is named."""

from __future__ import annotations

import subprocess
import sys

import pytest

import pyredisson.observe
from pyredisson._diagnostics import installation_of

LIBRARIES = {"PrometheusObserver": "prometheus_client", "OpenTelemetryObserver": "opentelemetry"}


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_they_are_not_needed_without_an_observer() -> None:
    blocked = "".join(f"sys.modules[{library!r}] = None; " for library in LIBRARIES.values())
    run(f"import sys; {blocked}import pyredisson, pyredisson.asyncio, pyredisson.observe")


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_missing_library(name: str) -> None:
    library = LIBRARIES[name]
    program = f"""
import sys
sys.modules[{library!r}] = None
try:
    from pyredisson.observe import {name}
except ImportError as error:
    print(error)
"""
    extra = name.removesuffix("Observer").lower()
    text = run(program)
    assert text.startswith(f"{name} needs {library}")
    assert text.endswith(f": {installation_of(extra)}\n")


@pytest.mark.parametrize("framework", ["celery", "django", "fastapi"])
def test_a_missing_framework(framework: str) -> None:
    program = f"""
import sys
sys.modules[{framework!r}] = None
try:
    import pyredisson.{framework}
except ImportError as error:
    print(error)
"""
    text = run(program)
    assert text.startswith(f"pyredisson.{framework} needs {framework}")
    assert text.endswith(f": {installation_of(framework)}\n")


def test_another_name() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'StatsdObserver'"):
        pyredisson.observe.StatsdObserver  # noqa: B018
