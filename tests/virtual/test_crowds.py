"""What many holds, calls, repairs and waiters cost, in virtual time."""

import asyncio
import gc
import weakref
from collections import Counter
from typing import Any

import pytest

from pyredisson._backends.aio.connection import connect
from pyredisson._backends.aio.runtime import PipelineHolder
from pyredisson._core import command
from pyredisson._protocol.node import MAX_SUSPECTS, ConnectionId, Node
from pyredisson._protocol.replies import Reply
from pyredisson._settings.config import Config
from pyredisson.logic.groups import red_lock
from tests.support.backends import cancel_after, hold_all

from .conftest import World, as_tasks
from .server import Session

PING = command(b"PING")


async def test_a_connection_in_doubt_counts_once(world: World) -> None:
    """However many releases find it: only so many connections in doubt are remembered."""
    node = Node(Config(host=world.server.host, port=world.server.port))
    earlier = ConnectionId(b"1", b"192.0.2.3:1")
    holder, pipeline, elsewhere = PipelineHolder(node), await connect(node), list[bytes]()
    node.suspect(earlier)
    holder.pipeline = pipeline
    world.server.pause()
    reply = pipeline.submit(PING)
    pipeline.drain()
    for _ in range(MAX_SUSPECTS):
        holder.post(PING, elsewhere.append)
    pipeline.close()
    assert reply.exception() is not None
    assert (node.suspects, len(elsewhere)) == ([earlier, pipeline.connection_id], MAX_SUSPECTS)


async def test_what_waiters_cost(world: World) -> None:
    """One that gives up costs the others no attempt. A latch is read every few seconds. A subscription doesn't stay."""

    def subscribed() -> bool:
        return any(session.channels[b"message"] for session in world.server.sessions.values())

    async with world.client() as client:
        semaphore, latch = client.get_semaphore("a"), client.get_count_down_latch("b")
        await semaphore.try_set_permits(1)
        await semaphore.acquire()
        [waiting] = await as_tasks(semaphore.acquire())
        before = world.server.calls["evalsha"]
        assert not await semaphore.try_acquire(1, 1)
        await asyncio.sleep(1)
        assert world.server.calls["evalsha"] == before
        waiting.cancel()
        await latch.try_set_count(1)
        before = world.server.calls.total()
        assert not await latch.wait(60)
        assert 10 < world.server.calls.total() - before < 40
        assert subscribed()
        await asyncio.sleep(30)
        assert not subscribed()


@pytest.mark.parametrize("in_background", [False, True])
@pytest.mark.parametrize("flushed_again", [False, True])
async def test_of_many_tasks_few_send_the_text_of_a_script(
    world: World, flushed_again: bool, in_background: bool
) -> None:
    calls, run = world.server.calls, world.server.keys.run

    def run_and_flush(name: bytes, args: list[bytes]) -> Reply:
        reply = run(name, args)
        if name == b"EVAL":
            world.server.keys.flush_scripts()
        return reply

    async with world.client(retry_attempts=0) as client:
        locks = await hold_all(client, *map(str, range(100)))
        world.server.keys.flush_scripts()
        if flushed_again:
            world.server.keys.run = run_and_flush  # type: ignore[method-assign]
        if in_background:
            for hold in client._session.holds.release_all():
                client._session.repair(hold.commands.abandon(hold))
            await asyncio.sleep(1)
        else:
            await asyncio.gather(*(lock.unlock() for lock in locks))
        assert calls["eval"] == (100 if flushed_again else 1)
        assert not await locks[-1].is_locked()


async def test_what_has_ended_or_is_unknown_costs_no_hold(world: World) -> None:
    """A server that has forgotten its scripts is sent their text, and a task that has ended is forgotten."""
    async with world.client() as client:
        (other,) = await hold_all(client, "b")
        for _ in range(3):
            world.server.keys.flush_scripts()
            await asyncio.sleep(30)
        await other.unlock()
        lock, election = client.get_lock("a", owner="order"), client.elect("c")

        async def lead() -> Any:
            async with election:
                await lock.__aenter__()
            return weakref.ref(asyncio.current_task())

        forgotten = await asyncio.create_task(lead())
        await asyncio.sleep(1)
        assert (gc.collect() >= 0, forgotten()) == (True, None)
        await lock.unlock()


async def test_many_renewals_are_sent_in_parts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part has a timeout of its own, so a server that is slow renews them all."""
    writes: list[int] = []
    receive = Session.receive

    def counting(session: Session, data: bytes) -> None:
        writes.append(data.count(b"EVALSHA"))
        receive(session, data)

    async with world.client() as client:
        locks = [client.get_lock(str(number)) for number in range(3000)]
        await asyncio.gather(*[lock.lock() for lock in locks])
        monkeypatch.setattr(Session, "receive", counting)
        await asyncio.sleep(25)
        assert (max(writes), sum(writes)) == (20, 60)


async def test_many_repairs_need_no_pause(world: World) -> None:
    async with world.client() as client:
        [lock] = await hold_all(client, "a")
        session = client._session
        for number in range(2500):
            session.repair(lock._logic.commands.release(b"nobody:%d" % number, 0))
        await asyncio.sleep(0.2)
        assert not session.watchdog.pending_repairs()


async def test_of_many_callers_of_a_red_lock_few_ask(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, acquire_members = Counter[str](), red_lock._Attempt.acquire_members

    def counted(attempt: Any) -> Any:
        asked["times"] += 1
        return acquire_members(attempt)

    monkeypatch.setattr(red_lock._Attempt, "acquire_members", counted)
    async with world.client() as client:
        lock = client.get_red_lock(*map(client.get_lock, "abc"))
        await lock.lock()
        callers = (client.get_red_lock(*(client.get_lock(name, owner=owner) for name in "abc")) for owner in range(300))
        for task in await as_tasks(*(caller.lock() for caller in callers), seconds=20):
            await cancel_after(0, task)
    # Each of them once a second: more than 6,000 times.
    assert asked["times"] < 3500
