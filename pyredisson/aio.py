"""The asyncio world: the logic's coroutines are awaited on the event loop."""

from __future__ import annotations

import asyncio
import random
import threading
import weakref
from asyncio import current_task
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, ParamSpec

from redis.exceptions import ConnectionError, RedisError

from pyredisson.logic.holds import Owner
from pyredisson.logic.shared import Shared
from pyredisson.runtime import Cut, Reply, Signal
from pyredisson.signals import AioSignal
from pyredisson.thread_start import begin
from pyredisson.threads import clock
from pyredisson.wire.node import Node
from pyredisson.wire.pipelined import Line, Pipeline

P = ParamSpec("P")


class Callers:
    """Which owner the calling task is; an owner's id is never given twice, unlike a task's address."""

    owners: dict[asyncio.Task[Any] | None, Owner]
    blocks: dict[asyncio.Task[Any] | None, list[Any]]

    def begin(self, shared: Shared) -> None:
        """Nobody is an owner yet."""
        self._shared = shared
        self._reference = weakref.ref(self)
        self.owners = {}
        self.blocks = {}

    def current(self) -> Owner:
        """The calling task's owner. `RuntimeError` where no task runs."""
        task = current_task()
        return self.owners.get(task) or self._adopt(task)

    def current_blocks(self) -> list[Any]:
        """The `async with` blocks that the calling task is in, innermost last. `RuntimeError` as `current`."""
        task = current_task()
        if task not in self.owners:
            self._adopt(task)
        return self.blocks.setdefault(task, [])

    def _adopt(self, task: asyncio.Task[Any] | None) -> Owner:
        if task is None:
            raise RuntimeError("a lock's owner is a task, and no task is running here")
        owner = self.owners[task] = self._shared.new_owner()
        # Weakly: a task that goes on must not keep a client alive that it has dropped.
        reference = self._reference
        task.add_done_callback(lambda task: None if (callers := reference()) is None else callers._ended(task))
        return owner

    def _ended(self, task: asyncio.Task[Any]) -> None:
        owner = self.owners.pop(task, None)
        if owner is not None:
            owner.overlap.ended = True
        for block in self.blocks.pop(task, ()):
            block.orphaned()


async def done(operation: Callable[P, Coroutine[Any, Any, object]], *args: P.args, **kwargs: P.kwargs) -> None:
    """Awaits an operation whose result means nothing to the caller."""
    # Called here: a task that is cancelled before it begins would leave a coroutine that nobody awaits.
    await operation(*args, **kwargs)


def on_thread(work: Callable[[], object], name: str) -> asyncio.Future[None]:
    """Begins work that blocks, on a thread of its own. The future is done with it, with what it raised.

    Not in the loop's executor: the program's own work may keep that busy for as long as it likes.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def tell(error: Exception | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def run() -> None:
        failure: Exception | None = None
        try:
            work()
        except Exception as error:  # noqa: BLE001 - whoever waits for it gets it
            failure = error
        try:
            loop.call_soon_threadsafe(tell, failure)
        except RuntimeError:
            # The loop was closed meanwhile: nobody waits there any more.
            return

    try:
        begin(threading.Thread(target=run, name=name, daemon=True))
    except RuntimeError:
        # There can't be another thread: holding up the loop is better than leaving it undone.
        run()
    return done


class AioRuntime:
    """A `Runtime` over one pipelined connection."""

    clock = staticmethod(clock)
    blocking = False

    def __init__(self, node: Node, repair: Callable[[bytes], None]) -> None:
        self.scripts = node.scripts
        self.refused, self.served = node.refused, node.served
        self._asleep: dict[AioSignal, None] = {}
        self._closed = False
        self._line = Line(node)
        self._repair = repair
        self._beside: set[asyncio.Task[None]] = set()

    def send(self, payload: bytes, *, fresh: bool = False) -> Awaitable[Reply]:
        # `fresh` needs nothing here: a pipeline that was cut, or met a server that isn't the master, is not
        # used again, and the next one has the server drop it first.
        pipeline = self._line.pipeline
        if pipeline is None or not pipeline.usable or pipeline.loop is not asyncio.get_running_loop():
            return self._send_anew(payload)
        return pipeline.submit(payload)

    async def _send_anew(self, payload: bytes) -> Reply:
        pipeline = await self._connected()
        return await pipeline.submit(payload)

    async def ask(self, payload: bytes, *, fresh: bool = False) -> tuple[Reply, bytes | None]:
        pipeline = await self._connected()
        return await pipeline.submit(payload), pipeline.server

    async def send_all(self, payloads: Sequence[bytes], *, fresh: bool = False) -> list[Reply]:
        pipeline = await self._connected()
        replies = await asyncio.gather(*map(pipeline.submit, payloads), return_exceptions=True)
        for reply in replies:
            if isinstance(reply, Cut):
                raise reply
        return replies

    async def _connected(self) -> Pipeline:
        pipeline = await self._line.connected()
        if not pipeline.usable:
            # Lost again while this task waited for its turn.
            raise Cut(ConnectionError("the connection was closed at once"), sent=False)
        return pipeline

    def post(self, payload: bytes) -> None:
        # On the same connection it runs after what was sent before, even if this loop stops right now.
        pipeline = self._line.pipeline
        if pipeline is None or not pipeline.usable or pipeline.loop.is_closed():
            if pipeline is not None and pipeline.waiting:
                # What is still on its way there must not run after this.
                pipeline.node.suspect(pipeline.peer)
            self._repair(payload)
            return

        def ended(future: asyncio.Future[Reply]) -> None:
            if future.cancelled() or isinstance(future.exception(), (Cut, RedisError)):
                self._repair(payload)

        pipeline.submit(payload).add_done_callback(ended)
        pipeline.flush()

    async def wait(self, signal: Signal, seconds: float) -> None:
        assert isinstance(signal, AioSignal)
        await signal.wait(seconds)

    def spawn(self, operation: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = asyncio.get_running_loop().create_task(operation())
        # The loop itself would let the garbage collector have it.
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)

    async def sleep(self, seconds: float) -> None:
        alarm = AioSignal()
        try:
            self._asleep[alarm] = None
            if not self._closed:
                await alarm.wait(seconds)
        finally:
            self._asleep.pop(alarm, None)

    def signal(self) -> AioSignal:
        return AioSignal()

    def jitter(self) -> float:
        return random.random()

    @property
    def connected(self) -> bool:
        """Whether there is a connection that is not closed."""
        pipeline = self._line.pipeline
        return pipeline is not None and pipeline.usable and not pipeline.loop.is_closed()

    def drop(self) -> None:
        """Has the connection closed by its own event loop; on any thread, with no lock and no wait."""
        self._closed = True
        self._line.drop()

    def stop(self) -> list[asyncio.Future[Any]]:
        """Ends the connection and all pauses. Gives what is done when the connection is gone."""
        self._closed = True
        for alarm in list(self._asleep):
            alarm.set()
        return self._line.stop()

    async def close(self) -> None:
        if ending := self.stop():
            await asyncio.wait(ending)
