"""Red locks whose servers restart empty, one after the other: while a majority is held, a member is acquired again."""

from __future__ import annotations

from typing import Any

import pytest
from redis import Redis

from pyredisson import LockLostError
from pyredisson.logic.groups import parallel, red_lock
from pyredisson.logic.groups.group import GroupHold
from pyredisson.logic.groups.recovery import MemberRecovery
from pyredisson.logic.holds import HELD, LOST
from pyredisson.testing import Proxy, Server
from tests.support.backends import TIME_LIMIT, Backend
from tests.support.faults import ACQUIRE

from .test_red_lock import gone, held, make, make_with_members, members

pytestmark = pytest.mark.asyncio


@pytest.fixture(autouse=True)
def all_members_have_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A red lock doesn't give up a member that is slow to reply, unless a proxy holds its request."""
    monkeypatch.setattr(parallel, "SHORTEST_GRACE", 0.5)
    monkeypatch.setattr(red_lock, "SHORTEST_TIMEOUT", TIME_LIMIT)


def members_at(red: Any, *places: Server | Proxy) -> list[Any]:
    """The members on these servers, as a group has an order of its own."""
    return [member for each in places for member in members(red) if f":{each.port}/" in member.session.server]


def renew(red: Any, *places: Server | Proxy) -> None:
    """Has these members renewed now, and not only after a third of the lease."""
    for member in members_at(red, *places):
        member.session.watchdog.check(list(member.session.holds.table.values()))


def forget(redis: Redis, red: Any, place: Server) -> None:
    """This server has restarted empty, and the next renewal finds that out."""
    redis.flushall()
    renew(red, place)


def levels(red: Any) -> list[GroupHold]:
    """The levels of the only owner, the innermost last."""
    [found] = members(red)[0].session.groups.holds.values()
    return list(found)


def look(red: Any) -> None:
    """Has the members that are missing looked for now."""
    for level in levels(red):
        assert isinstance(level.recovery, MemberRecovery)
        level.recovery.ring()


def missing(red: Any) -> int:
    """How many members the outermost level lacks."""
    return sum(hold is None or hold.state is LOST for hold in levels(red)[0].holds)


async def test_all_servers_restart_one_after_the_other(
    backend: Backend, servers: list[Server], redises: list[Any]
) -> None:
    red = make(backend, servers)
    await red.lock()
    for place, redis in [*zip(servers, redises, strict=True)] * 2:
        forget(redis, red, place)
        await backend.until(lambda redis=redis: redis.exists("a"))  # type: ignore[misc]
        await backend.until(lambda: missing(red) == 0)
    assert not red.lost.is_set()
    # The lost holds are forgotten.
    assert len(levels(red)[0].release_calls) == 3
    assert await red.is_held()
    assert not await backend.as_another_owner(red.try_lock)
    # The new holds are renewed.
    renew(red, *servers)
    await red.unlock()
    assert held(redises) == [[], [], []]
    assert not any(member.session.holds.table for member in members(red))
    assert await backend.as_another_owner(red.try_lock)


@pytest.mark.parametrize("lacking", [0, 1])
async def test_a_closed_client_has_no_timer_left(
    backend: Backend, servers: list[Server], redises: list[Any], lacking: int
) -> None:
    """It would keep the client in memory."""
    if lacking:
        redises[1].hset("a", "another:1", 7)
    red = make(backend, servers)
    await red.lock()
    assert missing(red) == lacking
    wheels = [member.session.watchdog.wheel for member in members(red)]
    await backend.close()
    assert sum(map(len, wheels)) == 0


async def test_all_levels(backend: Backend, servers: list[Server], redises: list[Any]) -> None:
    red = make(backend, servers)
    async with red:
        async with red:
            for place, redis in zip(servers, redises, strict=True):
                forget(redis, red, place)
                await backend.until(lambda redis=redis: redis.hvals("a") == [b"2"])  # type: ignore[misc]
                await backend.until(lambda: missing(red) == 0)
        assert held(redises) == [[b"1"], [b"1"], [b"1"]]
        assert await red.is_held()
    assert held(redises) == [[], [], []]
    assert not any(member.session.holds.table for member in members(red))


@pytest.mark.parametrize("acquired", [True, False], ids=["lost", "never acquired"])
async def test_a_member_of_another_owner_is_left_alone_until_it_is_free(
    backend: Backend, servers: list[Server], redises: list[Any], acquired: bool
) -> None:
    red = make(backend, servers)
    if not acquired:
        redises[1].hset("a", "another:1", 7)
    await red.lock()
    if acquired:
        redises[1].delete("a")
        redises[1].hset("a", "another:1", 7)
        renew(red, servers[1])
        await backend.until(lambda: missing(red) > 0)
    refused = redises[1].info("commandstats")["cmdstat_evalsha"]["calls"]
    look(red)
    await backend.until(lambda: redises[1].info("commandstats")["cmdstat_evalsha"]["calls"] > refused)
    assert redises[1].hgetall("a") == {b"another:1": b"7"}
    redises[1].delete("a")

    def looked() -> bool:
        look(red)
        return bool(redises[1].hvals("a") == [b"1"])

    await backend.until(looked)
    await red.unlock()
    await gone(backend, redises)


async def test_without_a_majority_on_the_servers_nothing_is_acquired_again(
    backend: Backend, servers: list[Server], redises: list[Any]
) -> None:
    """Two servers have restarted since the latest renewals, and only one of them is known to have."""
    red = make(backend, servers)
    await red.lock()
    redises[1].flushall()
    forget(redises[0], red, servers[0])
    assert await red.lost.wait(TIME_LIMIT)
    with pytest.raises(LockLostError):
        await red.unlock()
    assert held(redises)[:2] == [[], []]
    await gone(backend, redises)


async def test_a_fixed_lease_is_not_extended(backend: Backend, servers: list[Server], redises: list[Any]) -> None:
    red = make(backend, servers)
    await red.lock(20)
    forget(redises[0], red, servers[0])
    await backend.until(lambda: missing(red) > 0)
    assert levels(red)[0].recovery is None
    await red.unlock()
    assert held(redises) == [[], [], []]


async def test_a_member_that_was_released_separately_is_left_alone(
    backend: Backend, servers: list[Server], redises: list[Any]
) -> None:
    locks, red = make_with_members(backend, servers)
    await red.lock()
    await locks[0].unlock()
    [level] = levels(red)
    assert isinstance(level.recovery, MemberRecovery)
    assert level.recovery._missing() == []
    await red.unlock()
    assert held(redises) == [[], [], []]


async def test_a_loss_that_the_owner_has_yet_to_be_told_stays_one(
    backend: Backend, servers: list[Server], redises: list[Any]
) -> None:
    """Of a level that is not part of the group: its own release raises the error, and no level of the group ends."""
    locks, red = make_with_members(backend, servers)
    await red.lock()
    await locks[1].lock()
    forget(redises[1], red, servers[1])
    await backend.until(lambda: missing(red) > 0)
    [level] = levels(red)
    recovery = level.recovery
    assert isinstance(recovery, MemberRecovery)
    [number] = recovery._missing()
    # Beside the look that has begun by itself.
    await recovery._look_for(number)()
    await backend.until(lambda: not recovery._looks)
    await recovery._look_for(number)()
    assert redises[1].keys() == []
    with pytest.raises(LockLostError):
        await locks[1].unlock()
    # Only its own level remains.
    await recovery._look_for(number)()
    assert held(redises) == [[b"1"], [b"1"], [b"1"]]
    await red.unlock()
    assert held(redises) == [[], [], []]


@pytest.mark.parametrize("reply", [True, False], ids=["reply", "request"])
@pytest.mark.parametrize("end", ["released", "lost", "expired", "closed"])
async def test_the_lock_ends_while_a_member_is_asked(
    backend: Backend, servers: list[Server], proxies: list[Proxy], redises: list[Any], end: str, reply: bool
) -> None:
    """What is granted after that is released."""
    red = make(backend, [proxies[0], *servers[1:]])
    await red.lock()
    late = (proxies[0].hold_reply if reply else proxies[0].hold_request)(ACQUIRE)
    redises[0].delete("a")
    renew(red, proxies[0])
    await backend.until(late.held.is_set)
    if end == "released":
        await red.unlock()
    elif end == "lost":
        redises[1].flushall()
        redises[2].flushall()
        renew(red, *servers[1:])
        assert await red.lost.wait(TIME_LIMIT)
    elif end == "expired":
        # Nobody notices at once, as in a process that was stopped.
        next(hold for hold in levels(red)[0].holds if hold is not None and hold.state is HELD).valid_until = 0.0
    else:
        await backend.close()
    if end != "closed":
        # Else nobody is there any more.
        late.deliver()
    if end in ("lost", "expired"):
        await backend.until(lambda: not redises[0].keys())
        assert red.lost.is_set()
        with pytest.raises(LockLostError):
            await red.unlock()
    await gone(backend, redises)
    await backend.until(lambda: not any(member.session.holds.table for member in members(red)))


async def test_the_reply_is_lost(
    backend: Backend, servers: list[Server], proxies: list[Proxy], redises: list[Any]
) -> None:
    red = make(backend, [proxies[0], *servers[1:]])
    await red.lock()
    cut = proxies[0].cut_reply(ACQUIRE)
    redises[0].delete("a")
    renew(red, proxies[0])
    await backend.until(cut.happened.is_set)
    await backend.until(lambda: missing(red) == 0)
    assert held(redises) == [[b"1"], [b"1"], [b"1"]]
    await red.unlock()
    await gone(backend, redises)
