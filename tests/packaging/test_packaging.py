"""What a user installs: the wheel and the sdist hold everything and work away from the checkout."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.support.children import completed

# By one worker: each would compile the core for a wheel of its own.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("packaging")]

ROOT = Path(__file__).parents[2]
SCRIPTS = {path.name for path in (ROOT / "lua").glob("*.lua")}
SOURCES = {path.name for path in (ROOT / "_core").glob("*.pyx")}


def attempt(*command: str | Path, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    # No PYTHONPATH: what is found must have been installed.
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return completed(*command, cwd=cwd, env={**env, **variables})


def run(*command: str | Path, cwd: Path) -> str:
    done = attempt(*command, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy: the checkout itself stays as it is."""
    left_out = shutil.ignore_patterns(".venv*", ".git", ".*_cache", ".hypothesis", "build", "dist", "*.egg-info")
    return shutil.copytree(ROOT, tmp_path_factory.mktemp("copy") / "checkout", ignore=left_out)


@pytest.fixture(scope="module")
def dist(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An sdist of the checkout, and the wheel that is built from that sdist."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, checkout, cwd=out)
    return out


def the(dist: Path, pattern: str) -> Path:
    (found,) = dist.glob(pattern)
    return found


def tops(names: Iterable[str]) -> set[str]:
    """The names at the top of an archive."""
    return {name.partition("/")[0] for name in names}


def test_the_sdist_holds_the_sources_and_the_wheel_the_package(dist: Path) -> None:
    with tarfile.open(the(dist, "*.tar.gz")) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"_core/{name}" for name in SOURCES} <= names
    assert {f"lua/{name}" for name in SCRIPTS | {"__init__.py"}} <= names
    assert {"setup.py", "pyproject.toml", "README.md", "LICENSE", "Makefile", "mkdocs.yml", "SECURITY.md"} <= names
    assert {"pyredisson/_core.pyi", "pyredisson/py.typed", "tests/core/test_wheel.py"} <= names
    assert [name for name in names if name.endswith((".so", ".pyc", ".c"))] == ["tests/campaign/clock.c"]
    # The wheel holds nothing else.
    info = the(dist, "*.whl").name[:16] + ".dist-info"
    with zipfile.ZipFile(the(dist, "*.whl")) as archive:
        names = set(archive.namelist())
        metadata = archive.read(f"{info}/METADATA").decode()
    core = "pyredisson/_core" + sysconfig.get_config_var("EXT_SUFFIX")
    assert {core, "pyredisson/_core.pyi", "pyredisson/py.typed", "pyredisson/lua/__init__.py"} <= names
    assert {f"pyredisson/lua/{name}" for name in SCRIPTS} <= names
    package = [*(ROOT / "pyredisson").rglob("*.py"), *(ROOT / "pyredisson" / "dashboard" / "page").iterdir()]
    assert {path.relative_to(ROOT).as_posix() for path in package} <= names
    assert tops(names) == {"pyredisson", "pyredisson_pytest.py", info}
    urls = dict(re.findall(r"^Project-URL: (\w+), (\S+)$", metadata, re.MULTILINE))
    assert set(urls) == {"Homepage", "Documentation", "Source", "Changelog", "Issues"}
    assert (ROOT / urls["Changelog"].rpartition("/")[2]).is_file()
    assert f"site_url: {urls['Documentation']}\n" in (ROOT / "mkdocs.yml").read_text("utf-8")


def test_the_wheel_works_elsewhere(dist: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    there = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip())
    options = ("--quiet", "--no-deps", "--no-index", "--target", there)
    run(sys.executable, "-m", "pip", "install", *options, the(dist, "*.whl"), cwd=tmp_path)
    # Its dependencies come from here, by links: a path to the whole folder would bring this checkout along.
    for name in ("redis", "async_timeout"):  # the last is redis-py's own need before 3.11.3
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
    *places, slot, scripts = run(python, "-c", program, cwd=tmp_path).splitlines()
    assert [Path(place).is_relative_to(there) for place in places] == [True, True]
    assert (slot, set(scripts.split())) == ("12182", SCRIPTS)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems need no repair")
def test_make_wheel_gives_the_wheel_a_tag_that_an_index_accepts(dist: Path, tmp_path: Path) -> None:
    """Or leaves it as it is."""
    repair = ROOT / "tools" / "repair_wheel.py"
    broken = tmp_path / "broken" / "pyredisson-0.1.0-cp311-cp311-linux_x86_64.whl"
    broken.parent.mkdir()
    broken.write_bytes(b"not a zip file")
    assert "stays as it is" in run(sys.executable, repair, broken.parent, cwd=tmp_path).splitlines()[0]
    assert broken.exists()
    built = the(dist, "*.whl")
    shutil.copy(built, tmp_path)
    run(sys.executable, repair, tmp_path, cwd=tmp_path)
    repaired = the(tmp_path, "*.whl")
    assert re.search(r"[-.](many|musl)linux_\d+_\d+_\w+\.whl$", repaired.name), repaired.name
    with zipfile.ZipFile(built) as before, zipfile.ZipFile(repaired) as after:
        assert {name for name in before.namelist() if ".dist-info" not in name} <= set(after.namelist())
        # Nothing of this system's libraries has come along.
        assert tops(after.namelist()) == tops(before.namelist())


def test_each_folder_is_a_package_that_setuptools_knows(checkout: Path, tmp_path: Path) -> None:
    done = attempt(sys.executable, "setup.py", "--quiet", "build_py", "--build-lib", tmp_path, cwd=checkout)
    assert (done.returncode, "absent from the `packages` configuration" in done.stderr) == (0, False)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (None, "There is no C compiler: '/nonexistent/cc'"),
        # A real compiler that isn't told where the headers of Python are, or those of the C library.
        ('*[each for each in sys.argv[1:] if not each.startswith("-I")]', "Python's headers (Python.h) are missing"),
        ('"-nostdinc", *sys.argv[1:]', ".h, which Python.h includes, is missing"),
    ],
)
def test_a_build_says_what_is_missing(arguments: str | None, text: str, checkout: Path, tmp_path: Path) -> None:
    compiler = tmp_path / "cc"
    command = shlex.split(sysconfig.get_config_var("CC") or "cc")
    compiler.write_text(f"#!{sys.executable}\nimport os, sys\nos.execvp({command[0]!r}, [*{command!r}, {arguments}])\n")
    compiler.chmod(0o755)
    options = ("--no-build-isolation", "--no-deps", "--no-index", "--wheel-dir", tmp_path)
    cc = str(compiler) if arguments else "/nonexistent/cc"
    done = attempt(sys.executable, "-m", "pip", "wheel", *options, ".", cwd=checkout, CC=cc)
    assert (done.returncode, [*tmp_path.glob("*.whl")]) == (1, [])
    printed = done.stdout + done.stderr
    assert not [word for word in ("Traceback", "fatal error", "copying") if word in printed]
    for each in (text, "apt-get install gcc libc6-dev python3-dev", "xcode-select --install", "make wheel"):
        assert each in printed
