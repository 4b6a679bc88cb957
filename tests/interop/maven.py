"""Builds the Java side of these tests with Maven, once for each version of Redisson, outside the source tree.

`python -m tests.interop.maven` does so before the tests, because the first build may download for minutes.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

JAVA = Path(__file__).parent / "java"
BUILD = Path(__file__).parents[2] / "build" / "interop"
VERSIONS = ("4.7.0", "3.27.2")
"""The newest release, and an older one from before many changes: of renewal, of retries and of the fair lock."""


class NoJavaError(Exception):
    """The Java side can't be built on this machine; the message says why."""


def class_path(version: str) -> str:
    """The class path of the driver with that version of Redisson; built first if it isn't there yet.

    Raises:
        NoJavaError: no JDK, no Maven, or what has to be downloaded can't be.
    """
    found = _class_path(version)
    if isinstance(found, NoJavaError):
        raise found
    return found


def main() -> None:
    """Builds all versions. That one can't be built is said here, and judged by the tests."""
    for version in VERSIONS:
        try:
            class_path(version)
        except NoJavaError as error:
            print(f"no tests beside Redisson {version}: {error}", file=sys.stderr)


@cache
def _class_path(version: str) -> str | NoJavaError:
    """Maven takes long to find out that it can't build, so it is asked once in a process."""
    try:
        return _built(version)
    except NoJavaError as error:
        return error


def _built(version: str) -> str:
    directory = BUILD / version
    directory.mkdir(parents=True, exist_ok=True)
    stamp, wanted = directory / "stamp", _digest(version)
    # Several processes of one test run build at the same time.
    with open(directory / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text() != wanted:
            stamp.unlink(missing_ok=True)
            for name in ("classes", "lib"):
                shutil.rmtree(directory / name, ignore_errors=True)
            build(JAVA, f"-Dredisson.version={version}", f"-Dinterop.directory={directory}")
            stamp.write_text(wanted)
    return f"{directory / 'classes'}{os.pathsep}{directory / 'lib'}/*"


def _digest(version: str) -> str:
    """Changes whenever the result of a build would change."""
    digest = hashlib.sha256(version.encode())
    for path in sorted(path for path in JAVA.rglob("*") if path.is_file()):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def build(project: Path, *settings: str) -> None:
    """Compiles a project, first without the network, which takes less time and works where there is none."""
    for program in ("mvn", "javac", "java"):
        if shutil.which(program) is None:
            raise NoJavaError(f"no {program} on this machine")
    output = ""
    for network in (["--offline"], []):
        goals = ["compiler:compile", "dependency:copy-dependencies"]
        command = ["mvn", "--quiet", "--batch-mode", *network, *goals, *settings]
        done = subprocess.run(
            command, cwd=project, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=300
        )
        if done.returncode == 0:
            return
        output = done.stdout + done.stderr
    if "COMPILATION ERROR" in output:
        raise RuntimeError(f"{project} doesn't compile:\n{output}")
    raise NoJavaError(f"Maven can't build {project}: {output.strip()[:500]}")


@contextmanager
def needed() -> Iterator[None]:
    """Skips the test if the Java side can't be built; fails it where it must be."""
    try:
        yield
    except NoJavaError as error:
        if os.environ.get("PYREDISSON_REQUIRE_JAVA"):
            raise
        import pytest  # not in the processes that tests start, which would start later

        pytest.skip(str(error))


if __name__ == "__main__":
    main()
