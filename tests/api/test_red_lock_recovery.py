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

from .red import Red, members

pytestmark = pytest.mark.asyncio


@pytest.fixture(autouse=True)
def all_members_have_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A red lock doesn't give up a member that is slow to reply, unless a proxy holds its request."""
    monkeypatch.setattr(parallel, "SHORTEST_GRACE", 0.5)
    monkeypatch.setattr(red_lock, "SHORTEST_TIMEOUT", TIME_LIMIT)


class Recovering(Red):
    """Its only red lock, `red`, held by one owner."""

    red: Any

    async def lock(self, lease: float | None = None) -> Any:
        self.red = self.make()
        await self.red.lock(lease)
        return self.red

    def renew(self, *numbers: int) -> None:
        """Has the members on these servers renewed now, and not only after a third of the lease."""
        for number in numbers:
            # A group has an order of its own.
            [member] = [one for one in members(self.red) if f":{self.places[number].port}/" in one.session.server]
            member.session.watchdog.check(list(member.session.holds.table.values()))

    def forget(self, number: int) -> None:
        """This server has restarted empty, and the next renewal finds that out."""
        self.redises[number].flushall()
        self.renew(number)

    async def lacks(self, number: int) -> None:
        """Returns when the outermost level lacks so many members."""
        await self.backend.until(lambda: self.missing() == number)

    def missing(self) -> int:
        return sum(hold is None or hold.state is LOST for hold in self.stack()[0].holds)

    def stack(self) -> list[GroupHold]:
        """The levels of the only owner, the innermost last."""
        [found] = members(self.red)[0].session.groups.holds.values()
        return list(found)

    def recovery(self) -> MemberRecovery:
        """Of the outermost level."""
        recovery = self.stack()[0].recovery
        assert isinstance(recovery, MemberRecovery)
        return recovery

    def tables(self) -> list[Any]:
        """All holds that the clients know."""
        return [hold for member in members(self.red) for hold in member.session.holds.table.values()]


@pytest.fixture
def it(backend: Backend, servers: list[Server], redises: list[Redis]) -> Recovering:
    return Recovering(backend, servers, redises)


@pytest.fixture
def behind(backend: Backend, servers: list[Server], proxies: list[Proxy], redises: list[Redis]) -> Recovering:
    """Its first server is behind a proxy."""
    return Recovering(backend, [proxies[0], *servers[1:]], redises)


async def test_all_servers_restart_one_after_the_other(it: Recovering) -> None:
    red = await it.lock()
    async with red:
        for number in (0, 1, 2, 0, 1, 2):
            it.forget(number)
            await it.backend.until(lambda number=number: it.redises[number].hvals("a") == [b"2"])  # type: ignore[misc]
            await it.lacks(0)
    assert it.held() == it.levels()
    assert not red.lost.is_set()
    # The lost holds are forgotten.
    assert len(it.stack()[0].release_calls) == 3
    assert await red.is_held()
    assert not await it.backend.as_another_owner(red.try_lock)
    # The new holds are renewed.
    it.renew(0, 1, 2)
    await red.unlock()
    assert it.free()
    assert not it.tables()
    assert await it.backend.as_another_owner(red.try_lock)


@pytest.mark.parametrize("lacking", [0, 1])
async def test_a_closed_client_has_no_timer_left(it: Recovering, lacking: int) -> None:
    """It would keep the client in memory."""
    if lacking:
        it.somebody_takes(1)
    await it.lock()
    assert it.missing() == lacking
    wheels = [member.session.watchdog.wheel for member in members(it.red)]
    await it.backend.close()
    assert sum(map(len, wheels)) == 0


@pytest.mark.parametrize("acquired", [True, False], ids=["lost", "never acquired"])
async def test_a_member_of_another_owner_is_left_alone_until_it_is_free(it: Recovering, acquired: bool) -> None:
    if not acquired:
        it.somebody_takes(1)
    red = await it.lock()
    redis = it.redises[1]
    if acquired:
        redis.delete("a")
        it.somebody_takes(1)
        it.renew(1)
        await it.lacks(1)

    def scripts() -> int:
        return int(redis.info("commandstats")["cmdstat_evalsha"]["calls"])

    refused = scripts()
    it.recovery().ring()
    await it.backend.until(lambda: scripts() > refused)
    assert redis.hgetall("a") == {b"another:1": b"7"}
    redis.delete("a")

    def looked() -> bool:
        it.recovery().ring()
        return bool(redis.hvals("a") == [b"1"])

    await it.backend.until(looked)
    await red.unlock()
    await it.gone()


async def test_without_a_majority_on_the_servers_nothing_is_acquired_again(it: Recovering) -> None:
    """Two servers have restarted since the latest renewals, and only one of them is known to have."""
    red = await it.lock()
    it.redises[1].flushall()
    it.forget(0)
    assert await red.lost.wait(TIME_LIMIT)
    with pytest.raises(LockLostError):
        await red.unlock()
    assert it.held()[:2] == [[], []]
    await it.gone()


@pytest.mark.parametrize("why", ["released separately", "a fixed lease"])
async def test_a_member_that_is_not_acquired_again(it: Recovering, why: str) -> None:
    red = await it.lock(20 if why == "a fixed lease" else None)
    if why == "a fixed lease":
        it.forget(0)
        await it.lacks(1)
        assert it.stack()[0].recovery is None
    else:
        await it.locks[0].unlock()
        assert it.recovery()._missing() == []
    await red.unlock()
    assert it.free()


async def test_a_loss_that_the_owner_has_yet_to_be_told_stays_one(it: Recovering) -> None:
    """Of a level that is not part of the group: its own release raises the error, and no level of the group ends."""
    red = await it.lock()
    await it.locks[1].lock()
    it.forget(1)
    await it.lacks(1)
    recovery = it.recovery()
    [number] = recovery._missing()
    # Beside the look that has begun by itself.
    await recovery._look_for(number)()
    await it.backend.until(lambda: not recovery._looks)
    await recovery._look_for(number)()
    assert it.redises[1].keys() == []
    with pytest.raises(LockLostError):
        await it.locks[1].unlock()
    # Only its own level remains.
    await recovery._look_for(number)()
    assert it.held() == it.levels()
    await red.unlock()
    assert it.free()


@pytest.mark.parametrize("reply", [True, False], ids=["reply", "request"])
@pytest.mark.parametrize("end", ["released", "lost", "expired", "closed"])
async def test_the_lock_ends_while_a_member_is_asked(
    behind: Recovering, proxies: list[Proxy], end: str, reply: bool
) -> None:
    """What is granted after that is released."""
    it, red = behind, await behind.lock()
    late = (proxies[0].hold_reply if reply else proxies[0].hold_request)(ACQUIRE)
    it.redises[0].delete("a")
    it.renew(0)
    await it.backend.until(late.held.is_set)
    if end == "released":
        await red.unlock()
    elif end == "lost":
        for redis in it.redises[1:]:
            redis.flushall()
        it.renew(1, 2)
        assert await red.lost.wait(TIME_LIMIT)
    elif end == "expired":
        # Nobody notices at once, as in a process that was stopped.
        next(hold for hold in it.stack()[0].holds if hold is not None and hold.state is HELD).valid_until = 0.0
    else:
        await it.backend.close()
    if end != "closed":
        # Else nobody is there any more.
        late.deliver()
    if end in ("lost", "expired"):
        await it.backend.until(lambda: not it.redises[0].keys())
        assert red.lost.is_set()
        with pytest.raises(LockLostError):
            await red.unlock()
    await it.gone()
    await it.backend.until(lambda: not it.tables())


async def test_the_reply_is_lost(behind: Recovering, proxies: list[Proxy]) -> None:
    red = await behind.lock()
    cut = proxies[0].cut_reply(ACQUIRE)
    behind.redises[0].delete("a")
    behind.renew(0)
    await behind.backend.until(cut.happened.is_set)
    await behind.lacks(0)
    assert behind.held() == behind.levels()
    await red.unlock()
    await behind.gone()
