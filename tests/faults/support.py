"""What the fault tests share: one story told in both worlds, child processes, and looks behind the curtain."""

from __future__ import annotations

import asyncio
import inspect
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from types import FrameType
from typing import Any

import pytest
from redis import Redis
from redis.credentials import CredentialProvider

import pyredisson
import pyredisson.asyncio
from pyredisson._protocol.scripts import script
from pyredisson.testing import Fault, Proxy, Server

FLAGS = Server().version >= (7, 0, 0)
SCRIPTS = {name: script(f"lock_{name}", flags=FLAGS) for name in ("acquire", "release", "force_release", "renew")}
ACQUIRE, RELEASE, FORCE_RELEASE, RENEW = (each.sha for each in SCRIPTS.values())
"""What to look for in a request."""

PATIENCE = 10.0
"""Seconds after which something that must happen is taken not to happen; on a good day none of it is used."""

Lose = Callable[[Proxy, bytes], Fault]
LOSSES = pytest.mark.parametrize("lose", [Proxy.drop_reply, Proxy.cut_reply, Proxy.cut_request])


class World:
    """Threads or asyncio: a test awaits what the client gives, and in the thread world that has blocked already."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.threads = name == "threads"
        self._clients: list[Any] = []
        self._stories: list[Story] = []

    def connect(self, address: object, **fields: Any) -> Any:
        """A client of this world, closed at the end of the test."""
        connect: Callable[..., Any] = pyredisson.connect if self.threads else pyredisson.asyncio.connect
        client = connect(address, **fields)
        self._clients.append(client)
        return client

    async def do(self, result: Any) -> Any:
        """The outcome of a call, whether it has to be awaited or not."""
        return await result if inspect.isawaitable(result) else result

    async def elsewhere(self, function: Callable[..., Any], *args: Any) -> Any:
        """Runs what blocks and isn't the client's: on the event loop it would hold up the client too."""
        return function(*args) if self.threads else await asyncio.to_thread(function, *args)

    async def until(self, condition: Callable[[], object], seconds: float = PATIENCE) -> None:
        """Waits for something that sends no event."""
        await self.elsewhere(eventually, condition, seconds)

    async def sleep(self, seconds: float) -> None:
        if self.threads:
            time.sleep(seconds)
        else:
            await asyncio.sleep(seconds)

    def start(self, story: Callable[[], Coroutine[Any, Any, Any]]) -> Story:
        """Runs a story beside the test's own, as another owner: a thread or a task."""
        begun = Story(self, story)
        self._stories.append(begun)
        return begun

    async def close(self) -> None:
        for client in self._clients:
            await self.do(client.close())
        for story in self._stories:
            await story.ended()


class Story:
    """What runs beside the test."""

    def __init__(self, world: World, story: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self._task: asyncio.Task[Any] | None = None
        self._future: Future[Any] = Future()
        if world.threads:
            threading.Thread(target=self._run, args=(story(),), daemon=True).start()
        else:
            self._task = asyncio.get_running_loop().create_task(story())

    @property
    def done(self) -> bool:
        return self._future.done() if self._task is None else self._task.done()

    async def result(self, seconds: float = PATIENCE) -> Any:
        """Its outcome; TimeoutError when it takes longer."""
        if self._task is None:
            return self._future.result(seconds)
        return await asyncio.wait_for(asyncio.shield(self._task), seconds)

    async def ended(self) -> None:
        """Waits for its end, whichever it was."""
        if self._task is None:
            self._future.exception(PATIENCE)
        else:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=PATIENCE)

    def _run(self, story: Coroutine[Any, Any, Any]) -> None:
        try:
            story.send(None)
        except StopIteration as end:
            self._future.set_result(end.value)
        except BaseException as error:  # noqa: BLE001 - who asks for the result gets it
            self._future.set_exception(error)
        else:
            self._future.set_exception(AssertionError("a story suspended in the thread world"))


HEEDS_CTRL_C = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
"""What runs in a shell's background ignores it, and so does all that it starts."""


class Child:
    """A Python process that runs `program`; it says lines, and hears lines."""

    def __init__(self, program: str, *args: object) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-u", "-c", HEEDS_CTRL_C + program, *map(str, args)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def hear(self, seconds: float = 2 * PATIENCE) -> str:
        """The next line that it says; empty at its end."""
        return self._lines.get(timeout=seconds)

    def say(self, line: str = "") -> None:
        stdin = self._process.stdin
        assert stdin is not None
        stdin.write(line + "\n")
        stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self, seconds: float = 2 * PATIENCE) -> int:
        """Its exit status."""
        return self._process.wait(seconds)

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _read(self) -> None:
        stdout = self._process.stdout
        assert stdout is not None
        for line in stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put("")


class Credentials(CredentialProvider):
    """A provider that fails, with whatever it likes, when the thread or task of that name asks."""

    def __init__(self, password: str, failing: str, times: int = 1) -> None:
        self._password = password
        self._failing = failing
        self._left = times
        self.failed = threading.Event()

    def get_credentials(self) -> tuple[str, str]:
        return self._give(threading.current_thread().name)

    async def get_credentials_async(self) -> tuple[str, str]:
        task = asyncio.current_task()
        return self._give("" if task is None else task.get_name())

    def _give(self, to: str) -> tuple[str, str]:
        if to == self._failing and self._left:
            self._left -= 1
            self.failed.set()
            raise LookupError("the token service is out for lunch")
        return "default", self._password


class InterruptAt:
    """Ctrl-C at the first step of a function, once: the moment that a signal hits only once in a million times."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._code = function.__code__
        self.happened = False

    def __enter__(self) -> InterruptAt:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _: object) -> None:
        if frame.f_code is self._code and not self.happened:
            self.happened = True
            raise KeyboardInterrupt


def eventually(condition: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Returns once the condition holds; fails the test after `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds:g} s: {inspect.getsource(condition).strip()}"
        time.sleep(0.005)


async def cancel_after(turns: int, task: asyncio.Task[object]) -> bool:
    """Cancels the task when the loop has turned so often; True if that ended it."""
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    [outcome] = await asyncio.gather(task, return_exceptions=True)
    return isinstance(outcome, asyncio.CancelledError)


def scripts_run(admin: Redis) -> int:
    """How many script calls the server has counted."""
    stats: dict[str, Any] = admin.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("eval", "evalsha"))


def listeners(admin: Redis, name: str) -> int:
    """How many connections listen for that lock's release."""
    counts: list[tuple[Any, int]] = admin.pubsub_numsub(f"redisson_lock__channel:{{{name}}}")
    return counts[0][1]
