"""Builds the Java side of these tests with Maven, once for each version of Redisson, outside the source tree.

`python -m tests.interop.maven` does so before the tests, because the first build may download for minutes.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

JAVA = Path(__file__).parent / "java"
BUILD = Path(__file__).parents[2] / "build" / "interop"
REQUIRED = "PYREDISSON_REQUIRE_JAVA"
"""The environment variable that makes it an error if these tests can't run."""
VERSIONS = ("4.7.0", "3.27.2")
"""The newest release, and an older one from before many changes: of renewal, of retries and of the fair lock."""


class NoJavaError(Exception):
    """The Java side can't be built on this machine; the message says why."""


def class_path(version: str) -> str:
    """The class path of the driver with that version of Redisson; built first if it isn't there yet.

    Raises:
        NoJavaError: no JDK, no Maven, or what has to be downloaded can't be.
    """
    if version in _FAILED:
        raise NoJavaError(_FAILED[version])
    try:
        return _class_path(version)
    except NoJavaError as error:
        _FAILED[version] = str(error)
        raise


_FAILED: dict[str, str] = {}
"""Why a version can't be built. Maven takes long to find out, so it is asked once in a process."""


def main() -> None:
    """Builds all versions. That one can't be built is said here, and judged by the tests."""
    for version in VERSIONS:
        try:
            class_path(version)
        except NoJavaError as error:
            print(f"no tests beside Redisson {version}: {error}", file=sys.stderr)


def _class_path(version: str) -> str:
    for program in ("mvn", "javac", "java"):
        if shutil.which(program) is None:
            raise NoJavaError(f"no {program} on this machine")
    directory = BUILD / version
    directory.mkdir(parents=True, exist_ok=True)
    stamp, wanted = directory / "stamp", _digest(version)
    # Several processes of one test run build at the same time.
    with open(directory / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text() != wanted:
            stamp.unlink(missing_ok=True)
            _build(version, directory)
            stamp.write_text(wanted)
    return f"{directory / 'classes'}{os.pathsep}{directory / 'lib'}/*"


def _digest(version: str) -> str:
    """Changes whenever the result of a build would change."""
    digest = hashlib.sha256(version.encode())
    for path in sorted(path for path in JAVA.rglob("*") if path.is_file()):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _build(version: str, directory: Path) -> None:
    """First without the network, which takes less time and works where there is none."""
    for name in ("classes", "lib"):
        shutil.rmtree(directory / name, ignore_errors=True)
    goals = ["compiler:compile", "dependency:copy-dependencies"]
    settings = [f"-Dredisson.version={version}", f"-Dinterop.directory={directory}"]
    output = ""
    for network in (["--offline"], []):
        command = ["mvn", "--quiet", "--batch-mode", *network, *goals, *settings]
        done = subprocess.run(
            command, cwd=JAVA, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=300
        )
        if done.returncode == 0:
            return
        output = done.stdout + done.stderr
    if "COMPILATION ERROR" in output:
        raise RuntimeError(f"the Java side doesn't compile with Redisson {version}:\n{output}")
    raise NoJavaError(f"Maven can't build with Redisson {version}: {output.strip()[:500]}")


if __name__ == "__main__":
    main()
