"""A task that is cancelled, once or again and again as by a scope of anyio: what must have ended first has ended."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, cast

import anyio
import pytest
from redis import Redis

import pyredisson.asyncio
from pyredisson import ElectionState, Lock
from pyredisson.asyncio import Client, Term
from pyredisson.dashboard.app import make_app
from pyredisson.dashboard.collector import Collector
from pyredisson.fastapi import _held
from pyredisson.testing import Server
from tests.support.backends import TIME_LIMIT, eventually, fails
from tests.support.faults import InterruptAt

Cancel = Callable[[], object]
Start = Callable[[Callable[[], Awaitable[object]]], tuple["asyncio.Task[None]", Cancel]]
BLOCKS: dict[str, Callable[[Client], AbstractAsyncContextManager[object]]] = {
    "lock": lambda client: client.get_lock("held"),
    "fair lock": lambda client: client.get_fair_lock("held"),
    "read lock": lambda client: client.get_read_write_lock("held").read_lock(),
    "hold": lambda client: client.get_lock("held").hold(),
    "multi-lock": lambda client: client.get_multi_lock(client.get_lock("held"), client.get_lock("other")),
    "red lock": lambda client: client.get_red_lock(client.get_lock("held"), client.get_lock("other")),
    "singleton": lambda client: client.singleton("held"),
    "permit": lambda client: client.get_permit_expirable_semaphore("permits").permit(),
    "semaphore": lambda client: client.get_semaphore("permits"),
    "fastapi": lambda client: _held(lock := client.get_lock("held"), lock.hold(), 423, 1),
}


def plainly(work: Callable[[], Awaitable[object]]) -> tuple[asyncio.Task[None], Cancel]:
    """Each call of the function cancels the task once more."""

    async def run() -> None:
        await work()

    task = asyncio.create_task(run())
    return task, task.cancel


def once(work: Callable[[], Awaitable[object]]) -> tuple[asyncio.Task[None], Cancel]:
    """Only the first call of the function cancels the task."""
    task, cancel = plainly(work)
    calls = iter([cancel])
    return task, lambda: next(calls, lambda: None)()


def by_anyio(work: Callable[[], Awaitable[object]]) -> tuple[asyncio.Task[None], Cancel]:
    """The scope's own time is over: then anyio repeats the cancellation by itself."""
    scope = anyio.move_on_after(TIME_LIMIT)

    async def run() -> None:
        with scope:
            await work()
        assert scope.cancelled_caught
        raise asyncio.CancelledError

    def expire() -> None:
        scope.deadline = anyio.current_time()

    return asyncio.create_task(run()), expire


@pytest.fixture(params=[once, plainly, by_anyio])
def start(request: pytest.FixtureRequest) -> Start:
    """Starts work in a task. Returns the task, and a function that cancels it, as its caller repeats it."""
    return cast(Start, request.param)


async def repeated(cancel: Cancel) -> None:
    """The cancellation has been delivered many times when this returns."""
    for _ in range(20):
        cancel()
        await asyncio.sleep(0)


async def struck(start: Start, work: Callable[[], Awaitable[object]], begun: asyncio.Event) -> asyncio.Task[None]:
    """A task that does this work, and has been cancelled in it."""
    task, cancel = start(work)
    await asyncio.wait_for(begun.wait(), TIME_LIMIT)
    await repeated(cancel)
    return task


class Cleanup:
    """Work whose end takes as long as the test says, and may fail."""

    def __init__(self, error: Exception | None = None) -> None:
        self.begun, self.ending, self.may_end = (asyncio.Event() for _ in range(3))
        self.ended, self.error = False, error

    async def work(self, term: Term | None = None) -> None:
        self.begun.set()
        try:
            await asyncio.sleep(TIME_LIMIT)
        finally:
            await self.end(term)

    async def end(self, term: Term | None = None) -> None:
        self.ending.set()
        await self.may_end.wait()
        self.ended = True
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("error", [None, KeyError("billing")])
async def test_an_election_is_led_until_its_work_has_ended(
    aclient: Client, admin: Redis, start: Start, error: Exception | None
) -> None:
    """An error of the work is raised in place of the cancellation."""
    cleanup, told = Cleanup(error), []
    election = aclient.elect("billing", on_deposed=lambda _: told.append(cleanup.ended))
    task = await struck(start, lambda: election.run(cleanup.work), cleanup.begun)
    # On the same connection, so behind a release that was sent.
    assert (await aclient.get_lock("billing").is_locked(), election.state) == (True, ElectionState.LEADING)
    await fails(RuntimeError, election.run, cleanup.work, match="already")
    cleanup.may_end.set()
    await fails(asyncio.CancelledError if error is None else KeyError, lambda: task)
    assert told == [True]
    eventually(lambda: not admin.exists("billing"))
    assert election.state is ElectionState.IDLE


@pytest.mark.parametrize("where", ["block", "run", "background", "on_elected"])
async def test_an_election_is_led_until_on_deposed_has_ended(
    aclient: Client, admin: Redis, start: Start, where: str
) -> None:
    """It may stop the work that `on_elected` has started."""
    cleanup, begun = Cleanup(), asyncio.Event()

    async def elected(_: Term) -> None:
        begun.set()
        if where == "on_elected":
            await asyncio.sleep(TIME_LIMIT)

    async def work(_: Term) -> None:
        assert where != "on_elected"
        await asyncio.sleep(TIME_LIMIT)

    async def deposed(term: Term) -> None:
        # It doesn't wait for itself.
        await election.close()
        await cleanup.end(term)

    election: Any = aclient.elect("billing", on_elected=elected, on_deposed=deposed)

    async def take_part() -> None:
        if where == "block":
            async with election as term:
                await work(term)
        elif where == "background":
            election.start()
            await election._task
        else:
            await election.run(work)

    task, cancel = start(take_part)
    await begun.wait()
    await repeated(cancel)
    await asyncio.wait_for(cleanup.ending.wait(), TIME_LIMIT)
    await repeated(cancel)
    assert await aclient.get_lock("billing").is_locked()
    cleanup.may_end.set()
    await fails(asyncio.CancelledError, lambda: task)
    assert cleanup.ended
    eventually(lambda: not admin.exists("billing"))


@pytest.mark.parametrize("interrupts", [1, 2, 3])
async def test_an_interrupted_thread_resigns_at_last(client: pyredisson.Client, admin: Redis, interrupts: int) -> None:
    """There the work runs in the call itself, so an interrupt ends it, the next one `on_deposed`, and so on."""
    held = []

    def interrupted(_: object) -> None:
        held.append(admin.exists("billing"))
        if len(held) <= interrupts:
            raise KeyboardInterrupt

    election = client.elect("billing", on_deposed=interrupted)
    with InterruptAt(Lock.unlock) if interrupts == 3 else nullcontext(), pytest.raises(KeyboardInterrupt):
        election.run(interrupted)
    assert held == [True, True]
    eventually(lambda: not admin.exists("billing"))
    assert election.state is ElectionState.IDLE


@pytest.mark.parametrize("kind", ["locked", "singleton function", *BLOCKS])
async def test_blocks_release_once_after_their_body(aclient: Client, admin: Redis, start: Start, kind: str) -> None:
    permits: Any = aclient.get_permit_expirable_semaphore if kind == "permit" else aclient.get_semaphore
    await permits("permits").try_set_permits(1)
    began, held = asyncio.Event(), []

    async def body() -> None:
        began.set()
        try:
            await asyncio.sleep(TIME_LIMIT)
        finally:
            # No `await`: each is cut short.
            held.append(admin.exists("held"))

    async def in_block() -> None:
        async with BLOCKS[kind](aclient):
            await body()

    decorators: dict[str, Any] = {"locked": aclient.locked("held"), "singleton function": aclient.singleton("held")}
    task = await struck(start, decorators[kind](body) if kind in decorators else in_block, began)
    await fails(asyncio.CancelledError, lambda: task)
    assert held == [kind not in ("permit", "semaphore")]
    eventually(lambda: not admin.exists("held", "other") and admin.get("permits") == b"1")
    assert not aclient._session.holds.table


async def test_a_close_releases_everything(server: Server, admin: Redis, start: Start) -> None:
    client = pyredisson.asyncio.connect(server.url, client_name="to-be-closed")
    await client.get_lock("held").lock()
    begun = asyncio.Event()

    async def body() -> None:
        async with client:
            begun.set()
            await asyncio.sleep(TIME_LIMIT)

    task = await struck(start, body, begun)
    await fails(asyncio.CancelledError, lambda: task)
    await asyncio.to_thread(eventually, lambda: not admin.exists("held"))
    await asyncio.to_thread(eventually, lambda: not any(each["name"] == "to-be-closed" for each in admin.client_list()))


async def test_the_dashboard_ends_its_tasks(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while a server hangs, for which a collector waits for long."""
    cleanup, before = Cleanup(), asyncio.all_tasks()
    monkeypatch.setattr(Collector, "run", lambda _: cleanup.work())

    async def body() -> None:
        app = make_app(Collector(pyredisson.Config(), 60.0), None, (), allow_unlock=False, on_failure=lambda: None)
        async with app.router.lifespan_context(app):
            await asyncio.sleep(TIME_LIMIT)

    task = await struck(start, body, cleanup.begun)
    await asyncio.wait_for(cleanup.ending.wait(), TIME_LIMIT)
    assert not task.done()
    cleanup.may_end.set()
    await fails(asyncio.CancelledError, lambda: task)
    assert asyncio.all_tasks() == before
