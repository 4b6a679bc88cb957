"""The future of asyncio's hot path, and when the tasks that await it go on. On asyncio's own loop and on the tasks of C
and of Python."""

import asyncio
import gc
import sys
import weakref
from asyncio import tasks
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from types import FrameType
from typing import Any

import pytest

from pyredisson._core import AppliedReply, PipelineFields, TaskFuture
from pyredisson._protocol.replies import reader
from tests.support.faults import AtSteps, traced

MakeTask = Callable[..., "asyncio.Task[Any]"]


@pytest.fixture(params=["C", "Python"])
def make_task(request: pytest.FixtureRequest) -> MakeTask:
    """Some tools replace asyncio's tasks by those that are written in Python."""
    kind: type[asyncio.Task[Any]] = asyncio.Task if request.param == "C" else tasks._PyTask  # type: ignore[attr-defined]
    return kind


class Lane(PipelineFields):
    """A pipeline without a connection: `answer` is what its connection would read."""

    def __init__(self, make_task: MakeTask = asyncio.Task) -> None:
        self.make_task = make_task
        self.seen: list[Any] = []
        """What tasks have got."""
        self.loop = asyncio.get_running_loop()
        self.on_reply = None
        self._replies = deque()
        self._buffer = bytearray(1024)
        self._reader = reader()

    def expect(self, apply: Callable[[Any], object] | None = None) -> TaskFuture:
        future = TaskFuture(self.loop)
        self._replies.append(future if apply is None else AppliedReply(future, apply))
        return future

    def task(self, apply: Callable[[Any], object] | None = None) -> asyncio.Task[Any]:
        """A task that awaits the next reply."""
        return self.make_task(awaited(self.expect(apply), self.seen))

    def answer(self, payload: bytes) -> None:
        self._buffer[: len(payload)] = payload
        self.hand_out_replies(len(payload))

    async def read(self, payload: bytes) -> None:
        await in_callback(lambda: self.answer(payload))

    def read_on(self) -> None:
        self.hand_out_replies(0)

    def _on_error_reply(self, error: Exception) -> None:
        pass


@pytest.fixture
async def lane(make_task: MakeTask) -> Lane:
    return Lane(make_task)


async def in_callback(function: Callable[[], object]) -> None:
    """Calls a function as the event loop does when there is something to read: in no task, and all tasks have begun."""
    loop = asyncio.get_running_loop()
    called = loop.create_future()

    def call() -> None:
        try:
            called.set_result(function())
        except BaseException as error:  # noqa: BLE001 (it is raised where it is awaited)
            called.set_exception(error)

    loop.call_soon(call)
    await called


async def awaited(future: TaskFuture, seen: list[Any]) -> None:
    try:
        seen.append(await future)
    except BaseException as error:
        seen.append(error)
        # It would go through the event loop, and end the test.
        if not isinstance(error, KeyboardInterrupt):
            raise


class TestReads:
    async def test_the_tasks_go_on_before_the_read_returns(self, lane: Lane) -> None:
        waiting = [lane.task() for _ in range(4)]

        def read() -> None:
            lane.answer(b":1\r\n:2\r\n")
            assert lane.seen == [1, 2]

        await in_callback(read)
        await lane.read(b":3\r\n-ERR no\r\n")
        with pytest.raises(Exception, match="no"):
            await asyncio.gather(*waiting)
        assert lane.seen[:3] == [1, 2, 3]

    async def test_what_apply_wakes_goes_on_first(self, lane: Lane) -> None:
        woken = TaskFuture(lane.loop)
        waiting = [lane.task(woken.set_result), lane.make_task(awaited(woken, lane.seen))]
        await lane.read(b"$1\r\na\r\n")
        assert (lane.seen, waiting[1].done()) == ([b"a", b"a"], True)
        await asyncio.gather(*waiting)

    @pytest.mark.parametrize("inside_a_task", [True, False])
    async def test_they_go_on_later(self, lane: Lane, inside_a_task: bool) -> None:
        """Outside of a read, and inside a task: some tools run an event loop there, where no other task can go on."""
        future = lane.expect()
        task = lane.make_task(awaited(future, lane.seen))
        await asyncio.sleep(0)

        def done() -> None:
            lane.answer(b":1\r\n") if inside_a_task else future.set_result(1)
            assert lane.seen == []

        if inside_a_task:
            done()
        else:
            await in_callback(done)
        await task
        assert lane.seen == [1]


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_of_one_task(make_task: MakeTask, interrupt: type[BaseException]) -> None:
    """It ends the event loop, as always. The other tasks go on when the loop does."""
    loop = asyncio.new_event_loop()
    seen: list[Any] = []

    async def interrupted(lane: Lane) -> None:
        await lane.expect()
        raise interrupt

    async def main() -> asyncio.Task[Any]:
        lane = Lane()
        first = loop.create_task(interrupted(lane))
        await asyncio.sleep(0)
        second = loop.create_task(awaited(lane.expect(), seen))
        # The callback of the read itself raises nothing.
        await lane.read(b":1\r\n:2\r\n")
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


class TestOutcomes:
    @pytest.mark.parametrize("reply", [b":1\r\n", b"-READONLY\r\n"])
    async def test_the_replies_around_an_interrupt(self, lane: Lane, reply: bytes) -> None:
        """They don't wait for the next read, which may come much later. The interrupted caller has an outcome, too."""

        def interrupt(_: Any) -> None:
            raise KeyboardInterrupt

        lane._on_error_reply = interrupt  # type: ignore[assignment, method-assign]
        tasks = [lane.task(apply) for apply in (None, interrupt, None, None)]

        def read() -> None:
            with pytest.raises(KeyboardInterrupt):
                lane.answer(b":0\r\n" + reply + b":2\r\n:3\r\n")

        await in_callback(read)
        await asyncio.wait(tasks, timeout=10)
        assert isinstance(lane.seen.pop(1), KeyboardInterrupt)
        assert lane.seen == [0, 2, 3]
        # The next read is as any other.
        last = lane.task()
        await lane.read(b":4\r\n")
        assert lane.seen[-1] == 4
        await last

    @pytest.mark.parametrize("message", [None, "stop"])
    async def test_a_task_is_cancelled(self, lane: Lane, message: str | None) -> None:
        future = lane.expect()
        task = lane.make_task(awaited(future, lane.seen))
        await asyncio.sleep(0)
        task.cancel(message)
        assert future.done()
        # The reply comes before the task goes on, and is dropped.
        await lane.read(b":1\r\n")
        with pytest.raises(asyncio.CancelledError):
            await task
        assert isinstance(lane.seen[0], asyncio.CancelledError)
        assert lane.seen[0].args == (() if message is None else (message,))

    async def test_a_task_cancels_another_of_the_same_read(self, lane: Lane) -> None:
        async def cancels() -> None:
            await lane.expect()
            assert second.cancel()

        first = lane.make_task(cancels())
        await asyncio.sleep(0)
        second = lane.task()
        await lane.read(b":1\r\n:2\r\n")
        await first
        with pytest.raises(asyncio.CancelledError):
            await second

    async def test_a_task_that_is_cancelled_before_it_awaits(self, lane: Lane) -> None:
        future = lane.expect()

        async def cancelled() -> None:
            task.cancel()
            await awaited(future, lane.seen)

        task = lane.make_task(cancelled())
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (type(lane.seen[0]), future.done()) == (asyncio.CancelledError, True)

    async def test_a_future_that_is_done_already(self, lane: Lane) -> None:
        future, failed = lane.expect(), lane.expect()
        future.set_result((1, 2))
        failed.set_exception(ValueError("no"))
        await lane.make_task(awaited(future, lane.seen))
        with pytest.raises(ValueError, match="no"):
            await lane.make_task(awaited(failed, lane.seen))
        assert lane.seen[0] == (1, 2)
        assert not future.cancel()

    async def test_each_task_goes_on_with_its_context(self, lane: Lane) -> None:
        variable: ContextVar[int] = ContextVar("variable")

        async def in_context(number: int) -> None:
            variable.set(number)
            await lane.expect()
            lane.seen.append(variable.get())

        waiting = [lane.make_task(in_context(number)) for number in range(3)]
        await lane.read(b":0\r\n:0\r\n:0\r\n")
        assert lane.seen == [0, 1, 2]
        await asyncio.gather(*waiting)

    async def test_a_task_that_could_not_be_woken_can_be_woken_once_more(self) -> None:
        """As by a call that is deep in the stack."""

        def fail() -> None:
            raise RecursionError

        future, woken = TaskFuture(asyncio.get_running_loop()), asyncio.Event()
        future.add_done_callback(lambda _: woken.set(), context=copy_context())
        with AtSteps((asyncio.BaseEventLoop.call_soon, fail)), pytest.raises(RecursionError):
            future.set_result(1)
        future.set_result(2)
        await asyncio.wait_for(woken.wait(), 10)

    @pytest.mark.parametrize("event", ["call", "return"])
    async def test_an_interrupt_where_a_task_is_woken_wakes_it_once(self, event: str) -> None:
        def interrupt(frame: FrameType, happened: str, _: object) -> None:
            if frame.f_code is asyncio.BaseEventLoop.call_soon.__code__ and happened == event:
                sys.setprofile(None)
                raise KeyboardInterrupt

        future, woken = TaskFuture(asyncio.get_running_loop()), list[object]()
        future.add_done_callback(woken.append, context=copy_context())
        with traced(interrupt, sys.setprofile), pytest.raises(KeyboardInterrupt):
            future.set_result(1)
        await asyncio.sleep(0.01)
        assert woken == [future]

    async def test_only_one_task_may_await_it(self, lane: Lane) -> None:
        future = lane.expect()
        first, second = (lane.make_task(awaited(future, lane.seen)) for _ in range(2))
        with pytest.raises(RuntimeError, match="another task"):
            await second
        future.set_result(1)
        await first

    async def test_a_caller_is_cancelled_while_apply_runs(self, lane: Lane) -> None:
        """The first Ctrl-C under `asyncio.run` does so on any line. It must not hurt the other replies of that read."""
        first = lane.task(lambda _: first.cancel())
        second = lane.task()
        await lane.read(b":1\r\n:2\r\n")
        assert first.cancelled()
        await second
        assert lane.seen[1:] == [2]

    async def test_a_task_runs_an_event_loop(self, lane: Lane) -> None:
        """As nest_asyncio does it: the other tasks of the same read go on in there."""
        loop: Any = lane.loop
        prefix = "" if lane.make_task is asyncio.Task else "_py"  # each kind of tasks has functions of its own
        leave, enter = getattr(tasks, f"{prefix}_leave_task"), getattr(tasks, f"{prefix}_enter_task")

        async def runs_the_loop() -> None:
            await lane.expect()
            running = first
            leave(loop, running)
            try:
                while not lane.seen:
                    loop._run_once()
            finally:
                enter(loop, running)
            lane.seen.append("end")

        first = lane.make_task(runs_the_loop())
        await asyncio.sleep(0)
        second = lane.task()
        with pytest.MonkeyPatch.context() as patch:
            # It replaces this method, among others: that of asyncio refuses to run.
            patch.setattr(type(loop), "run_forever", lambda _: None)
            await lane.read(b":1\r\n:2\r\n")
            await asyncio.gather(first, second)
        assert lane.seen == [2, "end"]

    async def test_a_read_inside_a_read(self, lane: Lane) -> None:
        inner = Lane(lane.make_task)
        inner.seen = lane.seen
        waiting = [lane.task(lambda _: inner.answer(b":1\r\n")), inner.task()]
        await lane.read(b":2\r\n")
        await asyncio.gather(*waiting)
        assert lane.seen == [1, 2]


class Marker:
    """What a task refers to."""


class TestMemory:
    @pytest.mark.parametrize("end", ["result", "cancelled"])
    async def test_what_a_task_has_is_freed_at_its_end(self, request: pytest.FixtureRequest, end: str) -> None:
        """Without a garbage collection: a dropped client has connections."""
        gc.collect()
        gc.disable()
        request.addfinalizer(gc.enable)
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
            await lane.read(b":1\r\n")
        await asyncio.wait([task])
        assert task.cancelled() == (end == "cancelled")
        del task
        await asyncio.sleep(0)
        assert gone() is None
        # `Pipeline._checked` may refer to it for a while.
        assert future.done()

    async def test_a_task_and_its_future_are_collected(self) -> None:
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
