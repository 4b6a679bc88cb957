"""The future of asyncio's hot path, and when the tasks that await it go on. On asyncio's own loop and on the tasks of C
and of Python."""

from __future__ import annotations

import asyncio
import gc
import weakref
from asyncio import tasks
from collections import deque
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import pytest

from pyredisson._core import AppliedReply, PipelineFields, TaskFuture
from pyredisson._protocol.replies import reader

Seen = list[Any]
"""What tasks have got."""
MakeTask = Callable[..., "asyncio.Task[Any]"]


@pytest.fixture(params=["C", "Python"])
def make_task(request: pytest.FixtureRequest) -> MakeTask:
    """Some tools replace asyncio's tasks by those that are written in Python."""
    kind: type[asyncio.Task[Any]] = asyncio.Task if request.param == "C" else tasks._PyTask  # type: ignore[attr-defined]
    return kind


class Lane(PipelineFields):
    """A pipeline without a connection: `answer` is what its connection would read."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.on_reply = None
        self._replies = deque()
        self._buffer = bytearray(1024)
        parser = reader()
        self._feed, self._next_reply = parser.feed, parser.gets

    def expect(self, apply: Callable[[Any], object] | None = None) -> TaskFuture:
        future = TaskFuture(self.loop)
        self._replies.append(future if apply is None else AppliedReply(future, apply))
        return future

    def answer(self, payload: bytes) -> None:
        self._buffer[: len(payload)] = payload
        self.hand_out_replies(len(payload))

    def read_on(self) -> None:
        self.hand_out_replies(0)

    def _on_error_reply(self, error: Exception) -> None:
        pass


async def in_callback(function: Callable[[], object]) -> None:
    """Calls a function as the event loop calls it when there is something to read: outside of any task."""
    loop = asyncio.get_running_loop()
    called = loop.create_future()

    def call() -> None:
        try:
            called.set_result(function())
        except BaseException as error:  # noqa: BLE001 (it is raised where it is awaited)
            called.set_exception(error)

    loop.call_soon(call)
    await called


async def awaited(future: TaskFuture, seen: Seen) -> None:
    try:
        seen.append(await future)
    except BaseException as error:
        seen.append(error)
        # It would go through the event loop, and end the test.
        if not isinstance(error, KeyboardInterrupt):
            raise


@pytest.mark.asyncio
async def test_the_tasks_go_on_before_the_read_returns(make_task: MakeTask) -> None:
    lane, seen = Lane(), Seen()
    waiting = [make_task(awaited(lane.expect(), seen)) for _ in range(3)]
    await asyncio.sleep(0)

    def read() -> None:
        lane.answer(b":1\r\n:2\r\n")
        assert seen == [1, 2]

    await in_callback(read)
    await in_callback(lambda: lane.answer(b":3\r\n"))
    await asyncio.gather(*waiting)
    assert seen == [1, 2, 3]


@pytest.mark.asyncio
async def test_what_apply_wakes_goes_on_first(make_task: MakeTask) -> None:
    lane, seen = Lane(), Seen()
    woken = TaskFuture(lane.loop)
    waiting = [make_task(awaited(lane.expect(woken.set_result), seen)), make_task(awaited(woken, seen))]
    await asyncio.sleep(0)
    await in_callback(lambda: lane.answer(b"$1\r\na\r\n"))
    assert seen == [b"a", b"a"]
    assert waiting[1].done()
    await asyncio.gather(*waiting)


@pytest.mark.asyncio
async def test_an_error_reply(make_task: MakeTask) -> None:
    lane, seen = Lane(), Seen()
    task = make_task(awaited(lane.expect(), seen))
    await asyncio.sleep(0)
    await in_callback(lambda: lane.answer(b"-ERR no\r\n"))
    with pytest.raises(Exception, match="no"):
        await task


@pytest.mark.asyncio
async def test_inside_a_task_they_go_on_later(make_task: MakeTask) -> None:
    """Some tools run an event loop inside a task. There no other task can go on at once."""
    lane, seen = Lane(), Seen()
    task = make_task(awaited(lane.expect(), seen))
    await asyncio.sleep(0)
    lane.answer(b":1\r\n")
    assert seen == []
    await task
    assert seen == [1]


@pytest.mark.asyncio
async def test_outside_of_a_read_they_go_on_later(make_task: MakeTask) -> None:
    future, seen = TaskFuture(asyncio.get_running_loop()), Seen()
    task = make_task(awaited(future, seen))
    await asyncio.sleep(0)

    def done() -> None:
        future.set_result(1)
        assert seen == []

    await in_callback(done)
    await task
    assert seen == [1]


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_of_one_task(make_task: MakeTask, interrupt: type[BaseException]) -> None:
    """It ends the event loop, as always. The other tasks go on when the loop does."""
    loop = asyncio.new_event_loop()
    seen: Seen = []

    async def interrupted(lane: Lane) -> None:
        await lane.expect()
        raise interrupt

    async def main() -> asyncio.Task[Any]:
        lane = Lane()
        first = loop.create_task(interrupted(lane))
        await asyncio.sleep(0)
        second = loop.create_task(awaited(lane.expect(), seen))
        await asyncio.sleep(0)
        # The callback of the read itself raises nothing.
        await in_callback(lambda: lane.answer(b":1\r\n:2\r\n"))
        assert isinstance(first.exception(), interrupt)
        return second

    loop.set_task_factory(lambda _, coroutine, **kwargs: make_task(coroutine, loop=loop, **kwargs))
    try:
        running = loop.create_task(main())
        with pytest.raises(interrupt):
            loop.run_until_complete(running)
        assert seen == []
        loop.run_until_complete(loop.run_until_complete(running))
    finally:
        loop.close()
    assert seen == [2]


@pytest.mark.asyncio
async def test_an_interrupt_of_apply(make_task: MakeTask) -> None:
    lane, seen = Lane(), Seen()

    def apply(reply: Any) -> None:
        raise KeyboardInterrupt

    first = make_task(awaited(lane.expect(), seen))
    await asyncio.sleep(0)
    second = make_task(awaited(lane.expect(apply), seen))
    await asyncio.sleep(0)
    raised: list[BaseException] = []

    def read() -> None:
        try:
            lane.answer(b":1\r\n:2\r\n")
        except BaseException as error:  # noqa: BLE001 (it is looked at below)
            raised.append(error)

    await in_callback(read)
    assert [type(error) for error in raised] == [KeyboardInterrupt]
    await first
    assert seen[0] == 1
    await second
    assert isinstance(seen[1], KeyboardInterrupt)
    # The next read is as any other.
    third = make_task(awaited(lane.expect(), seen))
    await asyncio.sleep(0)
    await in_callback(lambda: lane.answer(b":3\r\n"))
    assert seen[2] == 3
    await third


@pytest.mark.asyncio
@pytest.mark.parametrize("reply", [b":1\r\n", b"-READONLY\r\n"])
async def test_the_replies_behind_an_interrupt(make_task: MakeTask, reply: bytes) -> None:
    """They don't wait for the next read, which may come much later. The interrupted caller has an outcome, too."""
    lane, seen = Lane(), Seen()

    def interrupt(_: Any) -> None:
        raise KeyboardInterrupt

    lane._on_error_reply = interrupt  # type: ignore[assignment, method-assign]
    tasks = []
    for apply in (interrupt, None, None):
        tasks.append(make_task(awaited(lane.expect(apply), seen)))
        await asyncio.sleep(0)

    def read() -> None:
        with pytest.raises(KeyboardInterrupt):
            lane.answer(reply + b":2\r\n:3\r\n")

    await in_callback(read)
    await asyncio.wait(tasks, timeout=10)
    assert isinstance(seen[0], KeyboardInterrupt)
    assert seen[1:] == [2, 3]


@pytest.mark.asyncio
@pytest.mark.parametrize("message", [None, "stop"])
async def test_a_task_is_cancelled(make_task: MakeTask, message: str | None) -> None:
    lane, seen = Lane(), Seen()
    future = lane.expect()
    task = make_task(awaited(future, seen))
    await asyncio.sleep(0)
    task.cancel(message)
    assert future.done()
    # The reply comes before the task goes on, and is dropped.
    await in_callback(lambda: lane.answer(b":1\r\n"))
    with pytest.raises(asyncio.CancelledError):
        await task
    assert isinstance(seen[0], asyncio.CancelledError)
    assert seen[0].args == (() if message is None else (message,))


@pytest.mark.asyncio
async def test_a_task_cancels_another_of_the_same_read(make_task: MakeTask) -> None:
    lane, seen = Lane(), Seen()

    async def cancels() -> None:
        await lane.expect()
        assert second.cancel()

    first = make_task(cancels())
    await asyncio.sleep(0)
    second = make_task(awaited(lane.expect(), seen))
    await asyncio.sleep(0)
    await in_callback(lambda: lane.answer(b":1\r\n:2\r\n"))
    await first
    with pytest.raises(asyncio.CancelledError):
        await second


@pytest.mark.asyncio
async def test_a_task_that_is_cancelled_before_it_awaits(make_task: MakeTask) -> None:
    future, seen = TaskFuture(asyncio.get_running_loop()), Seen()

    async def cancelled() -> None:
        task.cancel()
        await awaited(future, seen)

    task = make_task(cancelled())
    with pytest.raises(asyncio.CancelledError):
        await task
    assert isinstance(seen[0], asyncio.CancelledError)
    assert future.done()


@pytest.mark.asyncio
async def test_a_future_that_is_done_already(make_task: MakeTask) -> None:
    loop, seen = asyncio.get_running_loop(), Seen()
    future, failed = TaskFuture(loop), TaskFuture(loop)
    future.set_result((1, 2))
    failed.set_exception(ValueError("no"))
    await make_task(awaited(future, seen))
    with pytest.raises(ValueError, match="no"):
        await make_task(awaited(failed, seen))
    assert seen[0] == (1, 2)
    assert not future.cancel()


@pytest.mark.asyncio
async def test_each_task_goes_on_with_its_context(make_task: MakeTask) -> None:
    lane, seen = Lane(), Seen()
    variable: ContextVar[int] = ContextVar("variable")

    async def in_context(number: int) -> None:
        variable.set(number)
        await lane.expect()
        seen.append(variable.get())

    waiting = [make_task(in_context(number)) for number in range(3)]
    await asyncio.sleep(0)
    await in_callback(lambda: lane.answer(b":0\r\n:0\r\n:0\r\n"))
    assert seen == [0, 1, 2]
    await asyncio.gather(*waiting)


@pytest.mark.asyncio
async def test_only_one_task_may_await_it() -> None:
    future, seen = TaskFuture(asyncio.get_running_loop()), Seen()
    first = asyncio.create_task(awaited(future, seen))
    second = asyncio.create_task(awaited(future, seen))
    with pytest.raises(RuntimeError, match="another task"):
        await second
    future.set_result(1)
    await first


@pytest.mark.asyncio
async def test_a_caller_is_cancelled_while_apply_runs(make_task: MakeTask) -> None:
    """The first Ctrl-C under `asyncio.run` does so on any line. It must not hurt the other replies of that read."""
    lane, seen = Lane(), Seen()
    first = make_task(awaited(lane.expect(lambda _: first.cancel()), seen))
    await asyncio.sleep(0)
    second = make_task(awaited(lane.expect(), seen))
    await asyncio.sleep(0)
    await in_callback(lambda: lane.answer(b":1\r\n:2\r\n"))
    assert first.cancelled()
    await second
    assert seen[1:] == [2]


@pytest.mark.asyncio
async def test_a_task_runs_an_event_loop(make_task: MakeTask) -> None:
    """As nest_asyncio does it: the other tasks of the same read go on in there."""
    lane, seen = Lane(), Seen()
    loop: Any = lane.loop
    prefix = "" if make_task is asyncio.Task else "_py"  # each kind of tasks has functions of its own
    leave, enter = getattr(tasks, f"{prefix}_leave_task"), getattr(tasks, f"{prefix}_enter_task")

    async def runs_the_loop() -> None:
        await lane.expect()
        running = first
        leave(loop, running)
        try:
            while not seen:
                loop._run_once()
        finally:
            enter(loop, running)
        seen.append("end")

    first = make_task(runs_the_loop())
    await asyncio.sleep(0)
    second = make_task(awaited(lane.expect(), seen))
    await asyncio.sleep(0)
    with pytest.MonkeyPatch.context() as patch:
        # It replaces this method, among others: that of asyncio refuses to run.
        patch.setattr(type(loop), "run_forever", lambda _: None)
        await in_callback(lambda: lane.answer(b":1\r\n:2\r\n"))
        await asyncio.gather(first, second)
    assert seen == [2, "end"]


@pytest.mark.asyncio
async def test_a_read_inside_a_read(make_task: MakeTask) -> None:
    lane, inner, seen = Lane(), Lane(), Seen()
    waiting = [
        make_task(awaited(lane.expect(lambda _: inner.answer(b":1\r\n")), seen)),
        make_task(awaited(inner.expect(), seen)),
    ]
    await asyncio.sleep(0)
    await in_callback(lambda: lane.answer(b":2\r\n"))
    await asyncio.gather(*waiting)
    assert seen == [1, 2]


class Marker:
    """What a task refers to."""


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.asyncio
@pytest.mark.parametrize("end", ["result", "cancelled"])
async def test_what_a_task_has_is_freed_at_its_end(without_collector: None, end: str) -> None:
    """Without a garbage collection: a dropped client has connections."""
    lane = Lane()
    future = lane.expect()
    marker = Marker()
    gone = weakref.ref(marker)

    async def waits(marker: Marker) -> None:
        here = future
        await here

    # Of Python 3.12, the tasks that are written in Python are part of a cycle when they are cancelled.
    task = asyncio.create_task(waits(marker))
    del marker
    await asyncio.sleep(0)
    if end == "cancelled":
        task.cancel()
    else:
        await in_callback(lambda: lane.answer(b":1\r\n"))
    await asyncio.wait([task])
    assert task.cancelled() == (end == "cancelled")
    del task
    await asyncio.sleep(0)
    assert gone() is None
    # `Pipeline._checked` may refer to it for a while.
    assert future.done()


@pytest.mark.asyncio
async def test_a_task_and_its_future_are_collected() -> None:
    """A task that nobody refers to doesn't stay because of the future that it awaits."""

    async def waits(marker: Marker) -> None:
        await TaskFuture(asyncio.get_running_loop())

    marker = Marker()
    gone = weakref.ref(marker)
    task = asyncio.create_task(waits(marker))
    await asyncio.sleep(0)
    # Its destruction would be logged as an error otherwise.
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    del task, marker
    gc.collect()
    assert gone() is None
