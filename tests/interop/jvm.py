"""A Java process with Redisson, driven line by line over its standard input and output.

Maven builds the Java side, once for each version of Redisson, outside the source tree. `python -m tests.interop.jvm`
does so before the tests, because the first build may download for minutes.
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from tests.support.children import Program, completed

JAVA = Path(__file__).parent / "java"
BUILD = Path(__file__).parents[2] / "build" / "interop"
VERSIONS = ("4.7.0", "3.27.2")
"""The newest release, and an older one from before many changes: of renewal, of retries and of the fair lock."""
TIME_LIMIT = 40.0
"""Seconds after which a test fails that waits for an answer from Java. Usually it comes at once."""
OPTIONS = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
"""A process that starts quickly and leaves the machine to the tests."""


class JavaError(Exception):
    """An exception that a call in Java raised: the simple name of its class, and what it says."""


@dataclass(frozen=True)
class Answer:
    """What a command of the driver returned, and when, on the clock of `time.monotonic_ns()`."""

    result: Any
    began: float
    ended: float


class Pending:
    """A command that the driver may still be carrying out."""

    def __init__(self, command: dict[str, Any]) -> None:
        self._command = command
        self._answer: Future[dict[str, Any] | None] = Future()
        self.done = self._answer.done
        self.set = self._answer.set_result
        """The answer has come; None: the process has ended."""

    def result(self, seconds: float = TIME_LIMIT) -> Any:
        """Waits for the answer; returns its result or raises its error."""
        return self.answer(seconds).result

    def answer(self, seconds: float = TIME_LIMIT) -> Answer:
        """Waits for the answer; returns it with its times or raises its error."""
        try:
            answer = self._answer.result(seconds)
        except TimeoutError:
            raise AssertionError(f"no answer from Java within {seconds:g} s: {self._command}") from None
        if answer is None:
            raise EOFError(f"the Java process ended before it answered: {self._command}")
        if "error" in answer:
            raise JavaError("{type}: {message}".format(**answer["error"]))
        return Answer(answer["result"], answer["began"] / 1e9, answer["ended"] / 1e9)


class Jvm:
    """A Java process. `do` starts a command; commands of several threads run at the same time."""

    def __init__(self, version: str, options: Sequence[str] = OPTIONS) -> None:
        self.version = version
        self.warmed_up: set[str] = set()
        """The names of the targets on which the classes for the tests have been loaded."""
        log = BUILD / version / "log.txt"
        logging = (f"-Dorg.slf4j.simpleLogger.logFile={log}", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
        self._numbers = itertools.count()
        self._pending: dict[int, Pending] = {}
        self._mutex = threading.Lock()
        self._ended = False
        command = ["java", *options, *logging, "-cp", class_path(version), "interop.Driver"]
        self._program = Program(command, self._on_answer, self._on_end)
        self.close = self._program.close

    @property
    def pid(self) -> int:
        return self._program.process.pid

    def do(self, what: str, thread: str, **details: Any) -> Pending:
        command = {"id": next(self._numbers), "do": what, "thread": thread, **details}
        pending = Pending(command)
        with self._mutex:
            if self._ended:
                raise EOFError("the Java process has ended")
            self._pending[command["id"]] = pending
        self._program.send(json.dumps(command))
        return pending

    def connect(self, yaml: str, prefix: str = "") -> JavaClient:
        """A Redisson client of that configuration, whose name mapper puts the prefix before each name."""
        return JavaClient(self, self.do("connect", "main", yaml=yaml, prefix=prefix).result())

    def thread(self) -> JavaThread:
        """A thread of its own: an owner of locks."""
        return JavaThread(self, f"thread {next(self._numbers)}")

    def kill(self) -> None:
        """Ends the process without a chance to release anything."""
        self._program.process.kill()
        self._program.process.wait()

    def _on_answer(self, line: str) -> None:
        answer = json.loads(line)
        with self._mutex:
            pending = self._pending.pop(answer["id"])
        pending.set(answer)

    def _on_end(self) -> None:
        with self._mutex:
            self._ended = True
            left = list(self._pending.values())
        for pending in left:
            pending.set(None)


JavaObject = dict[str, Any]
"""A lock, a semaphore or a latch of one Redisson client, as the driver finds it."""


@dataclass(frozen=True)
class JavaClient:
    """A Redisson client in a Java process. `id` is the first half of its owners' names."""

    jvm: Jvm
    id: str

    @cached_property
    def ann(self) -> JavaThread:
        """A thread that uses this client."""
        return self.jvm.thread()

    @cached_property
    def bob(self) -> JavaThread:
        """Another thread."""
        return self.jvm.thread()

    def get(self, kind: str, name: str) -> JavaObject:
        """`kind` as in `getFairLock`; "ReadLock" and "WriteLock" are the sides of `getReadWriteLock`."""
        return {"client": self.id, "kind": kind, "name": name}

    def group(self, kind: str, *members: JavaObject) -> JavaObject:
        """A "MultiLock" or a "RedLock"."""
        return {**self.get(kind, ""), "members": members}

    def port_of(self, slot: int) -> int:
        """The port of the node that serves a slot, as this client knows the cluster."""
        return int(self.jvm.do("port", "main", client=self.id, slot=slot).result())

    def shutdown(self) -> None:
        self.jvm.do("shutdown", "main", client=self.id).result()


@dataclass(frozen=True)
class JavaThread:
    """A thread in a Java process."""

    jvm: Jvm
    name: str

    @cached_property
    def id(self) -> int:
        return int(self.jvm.do("thread id", self.name).result())

    def begin(self, target: JavaObject, method: str, *args: object) -> Pending:
        """Starts a call on this thread."""
        return self.jvm.do("call", self.name, object=target, method=method, args=args)

    def call(self, target: JavaObject, method: str, *args: object) -> Any:
        """A call on this thread, to its end."""
        return self.begin(target, method, *args).result()

    def sleeps(self) -> bool:
        """Whether it waits for a lock, has made its attempts, and sleeps until a message comes. Not for spin locks."""
        return bool(self.jvm.do("sleeps", self.name).result())


def now() -> float:
    """The time on the clock of `Answer`."""
    return time.monotonic_ns() / 1e9


# The build


class NoJavaError(Exception):
    """The Java side can't be built on this machine; the message says why."""


def class_path(version: str) -> str:
    """The class path of the driver with that version of Redisson; built first if it isn't there yet.

    Raises:
        NoJavaError: no JDK, no Maven, or what has to be downloaded can't be.
    """
    found = _built(version)
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
def _built(version: str) -> str | NoJavaError:
    """Maven takes long to find out that it can't build, so it is asked once in a process."""
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
            try:
                build(JAVA, f"-Dredisson.version={version}", f"-Dinterop.directory={directory}")
            except NoJavaError as error:
                return error
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
        goals = ("compiler:compile", "dependency:copy-dependencies")
        command = ("mvn", "--quiet", "--batch-mode", *network, *goals, *settings)
        done = completed(*command, cwd=project, stdin=subprocess.DEVNULL, timeout=300)
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
