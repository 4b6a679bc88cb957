"""The libraries of observers and frameworks are imported when they are needed, and a missing one is named."""

from __future__ import annotations

import subprocess
import sys

import pytest

import pyredisson.observe
from pyredisson._diagnostics import installation_of

PROGRAM = """
import sys
for name in {missing!r}:
    sys.modules[name] = None
try:
    {statement}
except ImportError as error:
    print(error)
"""
OBSERVERS = "from pyredisson.observe import {}"
FRAMEWORK = "import pyredisson.{}"


def printed(statement: str, *missing: str) -> str:
    """What a program says that runs this where these modules are missing."""
    program = PROGRAM.format(missing=missing, statement=statement)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_they_are_not_needed_without_an_observer() -> None:
    assert not printed("import pyredisson.asyncio, pyredisson.observe", "prometheus_client", "opentelemetry")


@pytest.mark.parametrize(
    ("statement", "name", "library", "extra"),
    [
        (OBSERVERS, "PrometheusObserver", "prometheus_client", "prometheus"),
        (OBSERVERS, "OpenTelemetryObserver", "opentelemetry", "opentelemetry"),
        *((FRAMEWORK, framework, framework, framework) for framework in ("celery", "django", "fastapi")),
    ],
)
def test_one_that_is_missing(statement: str, name: str, library: str, extra: str) -> None:
    text = printed(statement.format(name), library)
    assert text.startswith(f"{'pyredisson.' if statement == FRAMEWORK else ''}{name} needs {library}")
    assert text.endswith(f": {installation_of(extra)}\n")


def test_another_name() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'StatsdObserver'"):
        pyredisson.observe.StatsdObserver  # noqa: B018
