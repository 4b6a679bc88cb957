"""What a user installs: the wheel and the sdist hold everything and work away from the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SCRIPTS = {path.name for path in (ROOT / "lua").glob("*.lua")}
SOURCES = {path.name for path in (ROOT / "_core").glob("*.pyx")}


def run(*command: str | Path, cwd: Path) -> str:
    # No PYTHONPATH: what is found must have been installed.
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An sdist of the checkout, and the wheel that is built from that sdist."""
    # From a copy: another worker may build at the same time, and the checkout stays as it is.
    out, copy = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("copy") / "checkout"
    left_out = shutil.ignore_patterns(".venv*", ".git", ".*_cache", ".hypothesis", "build", "dist", "*.egg-info")
    shutil.copytree(ROOT, copy, ignore=left_out)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, copy, cwd=out)
    return out


def the(dist: Path, pattern: str) -> Path:
    (found,) = dist.glob(pattern)
    return found


def test_the_sdist_holds_the_sources(dist: Path) -> None:
    with tarfile.open(the(dist, "*.tar.gz")) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"_core/{name}" for name in SOURCES} <= names
    assert {f"lua/{name}" for name in SCRIPTS | {"__init__.py"}} <= names
    assert {"setup.py", "pyproject.toml", "README.md", "LICENSE", "Makefile"} <= names
    assert {"pyredisson/_core.pyi", "pyredisson/py.typed", "tests/core/test_wheel.py"} <= names
    assert not [name for name in names if name.endswith((".so", ".pyc", ".c"))]


def test_the_wheel_holds_the_package_and_nothing_else(dist: Path) -> None:
    with zipfile.ZipFile(the(dist, "*.whl")) as archive:
        names = set(archive.namelist())
    core = "pyredisson/_core" + sysconfig.get_config_var("EXT_SUFFIX")
    assert {core, "pyredisson/_core.pyi", "pyredisson/py.typed", "pyredisson/lua/__init__.py"} <= names
    assert {f"pyredisson/lua/{name}" for name in SCRIPTS} <= names
    packages = {path.relative_to(ROOT).as_posix() for path in (ROOT / "pyredisson").rglob("*.py") if path.is_file()}
    assert packages <= names
    assert {name.partition("/")[0] for name in names} == {
        "pyredisson",
        the(dist, "*.whl").name[:16] + ".dist-info",
    }


def test_the_wheel_works_elsewhere(dist: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    there = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip())
    run(
        sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index",
        "--target", there, the(dist, "*.whl"),
        cwd=tmp_path,
    )  # fmt: skip
    # Its dependencies come from here, by links: a path to the whole folder would bring this checkout along.
    for name in ("redis", "hiredis", "async_timeout"):  # the last is redis-py's own need before 3.11.3
        if (installed := Path(sysconfig.get_path("purelib")) / name).exists():
            (there / name).symlink_to(installed)
    program = """
import importlib.resources
import pyredisson
from pyredisson import _core
from pyredisson.logic.locks import rlock
print(pyredisson.__file__)
print(_core.__file__)
print(_core.slot("foo"))
names = [path.name for path in importlib.resources.files("pyredisson.lua").iterdir()]
print(*[name for name in names if name.endswith(".lua")])
client = pyredisson.connect()
client.get_lock("foo")
client.close()
"""
    printed = run(python, "-c", program, cwd=tmp_path).splitlines()
    assert Path(printed[0]).is_relative_to(there)
    assert Path(printed[1]).is_relative_to(there)
    assert printed[2] == "12182"
    assert set(printed[3].split()) == SCRIPTS
