"""One lock on three independent servers: it is held while a majority of servers has it, also while they restart."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import RedisError

from pyredisson import ClosedError, LockLostError, LockTimeoutError
from pyredisson.logic.groups import parallel, red_lock
from pyredisson.logic.holds import HELD, LOST
from pyredisson.testing import Proxy, Server
from tests.support.backends import TIME_LIMIT, Backend, fails, scripts_run, within
from tests.support.faults import ACQUIRE
from tests.support.kinds import acquired

from .kinds import assert_lost, use

PROMPT = 2.5
"""Seconds in which is done what doesn't wait for the lease, or for a reply that never comes."""
FREE: list[list[bytes]] = [[]] * 3
ALL_HELD: list[list[bytes]] = [[b"1"]] * 3


class Red:
    """The red lock `a` on three servers. Each of its locks is of a client of its own. `red` is the latest one."""

    kind = "lock"

    def __init__(self, backend: Backend, places: Sequence[Server | Proxy], redises: list[Redis]) -> None:
        self.backend, self.places, self.redises = backend, places, list[Any](redises)

    def make(self, **fields: Any) -> Any:
        """A red lock of new clients. `locks` are its members from now on."""
        clients = [self.backend.connect(each.url, **fields) for each in self.places]
        self.locks = [getattr(client, f"get_{self.kind}")("a") for client in clients]
        self.clients: list[Any] = clients
        self.red: Any = clients[0].get_red_lock(*self.locks)
        return self.red

    async def lock(self, lease: float | None = None) -> Any:
        return await acquired(self.make(), lease)

    def held(self) -> list[list[bytes]]:
        """On each server, how often it is held."""
        return [list(redis.hvals("a")) for redis in self.redises]

    def somebody_takes(self, number: int) -> None:
        self.redises[number].hset("a", "another:1", 7)

    async def gone(self) -> None:
        """Waits until nothing remains, also of what is released in the background."""
        await self.backend.until(lambda: not any(redis.keys() for redis in self.redises))

    def members(self) -> list[Any]:
        """Their logic, in the order of the group."""
        return list(getattr(self.red, "_target", self.red)._logic.members)

    def renew(self, *numbers: int) -> None:
        """Has the members on these servers renewed now, and not only after a third of the lease."""
        for number in numbers:
            # A group has an order of its own.
            [member] = [one for one in self.members() if f":{self.places[number].port}/" in one.session.server]
            member.session.watchdog.check(list(member.session.holds.table.values()))

    def forget(self, number: int) -> None:
        """This server has restarted empty, and the next renewal finds that out."""
        self.redises[number].flushall()
        self.renew(number)

    def missing(self) -> list[int]:
        """How many members each level of the only owner lacks, the innermost level last."""
        return [sum(hold is None or hold.state is LOST for hold in level.holds) for level in self.stack()]

    async def lacks(self, number: int) -> None:
        """Returns when each level lacks so many members."""
        await self.backend.until(lambda: self.missing() == [number] * len(self.stack()))

    def stack(self) -> list[Any]:
        [found] = self.members()[0].session.groups.holds.values()
        return list(found)

    def recovery(self) -> Any:
        """Of the outermost level."""
        return self.stack()[0].recovery

    def tables(self) -> list[Any]:
        """All holds that the clients know."""
        return [hold for member in self.members() for hold in member.session.holds.table.values()]


@pytest.fixture
def it(backend: Backend, servers: list[Server], redises: list[Redis], monkeypatch: pytest.MonkeyPatch) -> Red:
    """On servers that all reply.

    After a majority has replied, a red lock waits for the others only briefly, and for each reply for a tenth of the
    lease only: too briefly on a busy machine.
    """
    monkeypatch.setattr(parallel, "SHORTEST_GRACE", TIME_LIMIT)
    monkeypatch.setattr(red_lock, "SHORTEST_TIMEOUT", TIME_LIMIT)
    return Red(backend, servers, redises)


@pytest.fixture
def behind(it: Red, proxies: list[Proxy], monkeypatch: pytest.MonkeyPatch) -> Red:
    """Its first server is behind a proxy, which may hold requests."""
    monkeypatch.setattr(parallel, "SHORTEST_GRACE", 0.5)
    it.places = [proxies[0], *it.places[1:]]
    return it


@pytest.fixture
def far(backend: Backend, proxies: list[Proxy], redises: list[Redis]) -> Red:
    return Red(backend, proxies, redises)


class TestMajority:
    @pytest.mark.parametrize("foreign", [(), (0,), (1,), (2,), (0, 1), (0, 2), (1, 2)])
    async def test_some_are_held_by_another_owner(self, it: Red, foreign: Sequence[int]) -> None:
        for number in foreign:
            it.somebody_takes(number)
        before, red = it.held(), it.make()
        assert await red.try_lock() is (len(foreign) < 2)
        if len(foreign) == 2:
            assert it.held() == before
            said = r"red lock of 'a' on .* of owner .* not acquired in 0\.1 s"
            await fails(LockTimeoutError, red.hold(wait_time=0.1).__aenter__, match=said)
            assert (it.held(), await red.is_held()) == (before, False)
            assert all(number in foreign or not redis.keys() for number, redis in enumerate(it.redises))
            return
        held = [levels or [b"1"] for levels in before]
        assert (it.held(), await red.is_held(), red.lost.is_set()) == (held, True, False)
        assert (await it.backend.as_another_owner(red.try_lock), it.held()) == (False, held)
        await red.unlock()
        assert (it.held(), await red.is_held()) == (before, False)

    @pytest.mark.parametrize("crashed", [False, True], ids=["free", "one is stale"])
    async def test_a_release_wakes_a_waiter(self, it: Red, crashed: bool) -> None:
        """Also where the first member stays somebody's who crashed: it must not be what all wait for."""
        if crashed:
            it.somebody_takes(0)
        holder, red = it.make(), it.make()
        await holder.lock()
        other = it.backend.spawn(red.lock)
        await it.backend.sleep(0.3)
        assert not other.done()
        # Polling would be as good as this once in ten times.
        with within(TIME_LIMIT if crashed else PROMPT):
            await holder.unlock()
            await other.result()


class TestServersThatFail:
    async def test_one_is_down(self, far: Red, proxies: list[Proxy]) -> None:
        proxies[1].refuse(True)
        with within(2 * PROMPT):
            with within(PROMPT):
                red = await far.lock()
            assert (far.held(), await red.is_held()) == ([[b"1"], [], [b"1"]], True)
            async with red:
                assert far.held() == [[b"2"], [], [b"2"]]
            await red.unlock()
        assert far.held() == FREE

    async def test_two_are_down(self, far: Red, proxies: list[Proxy]) -> None:
        for proxy in proxies[::2]:
            proxy.refuse(True)
        red = far.make(retry_attempts=1)
        assert (await red.try_lock(), await red.try_lock(0.2), far.held()) == (False, False, FREE)
        waiting = far.backend.spawn(red.lock)
        await far.backend.sleep(0.5)
        assert not waiting.done()
        proxies[0].refuse(False)
        await waiting.result()
        assert far.held() == [[b"1"], [b"1"], []]

    @pytest.mark.parametrize("most", [False, True])
    async def test_silent_ones(self, far: Red, proxies: list[Proxy], monkeypatch: Any, most: bool) -> None:
        """One costs a moment, and most of them a tenth of the lease; not the three seconds that a reply may take.

        What a later reply grants is released.
        """
        red = far.make(lock_watchdog_timeout=3 if most else 30)
        await use(red)
        silent = proxies[:2] if most else proxies[2:]
        for proxy in silent:
            proxy.stall()
        with within(PROMPT, least=0.25 if most else 0):
            if most:
                assert not await red.try_lock()
            else:
                await red.lock()
                assert far.held()[:2] == [[b"1"], [b"1"]]
                await red.unlock()
        for proxy in silent:
            proxy.resume()
        await far.gone()
        await far.backend.until(lambda: not any(member.session.groups.pending_acquires for member in far.members()))
        # Now all servers reply.
        monkeypatch.setattr(parallel, "SHORTEST_GRACE", TIME_LIMIT)
        assert (await red.try_lock(), far.held()) == (True, ALL_HELD)
        await red.unlock()

    async def test_the_others_are_asked_rarely_while_most_are_silent(self, far: Red, proxies: list[Proxy]) -> None:
        red = far.make(lock_watchdog_timeout=3)
        await use(red)
        for proxy in proxies[:2]:
            proxy.stall()
        before = scripts_run(far.redises[2])
        assert not await red.try_lock(2)
        # Without pauses: more than a hundred.
        assert scripts_run(far.redises[2]) - before < 20
        for proxy in proxies[:2]:
            proxy.resume()

    @pytest.mark.parametrize("silent", [False, True])
    async def test_one_and_then_two_fail_while_it_is_held(self, far: Red, proxies: list[Proxy], silent: bool) -> None:
        fields: dict[str, Any] = {"lock_watchdog_timeout": 3, "timeout": 1, "connect_timeout": 1, "retry_attempts": 1}
        wanted, held = far.make(**fields), far.make(**fields)
        await held.lock()
        for number, proxy in enumerate(proxies[:2]):
            if silent:
                proxy.stall()
            else:
                proxy.refuse(True)
                proxy.cut()
            # For longer than the lease, which the other two renew at first.
            await far.backend.sleep(6)
            assert held.lost.is_set() is (number == 1)
            with suppress(RedisError):
                assert not await far.backend.as_another_owner(wanted.try_lock)
        await fails(LockLostError, held.unlock)
        for proxy in proxies[:2]:
            proxy.resume() if silent else proxy.refuse(False)
        with within(TIME_LIMIT):
            await wanted.lock()
        assert not await far.backend.as_another_owner(held.try_lock)
        await wanted.unlock()
        await far.gone()

    async def test_a_release_that_no_majority_confirms(self, far: Red, proxies: list[Proxy]) -> None:
        red = await acquired(far.make(retry_attempts=0))
        for proxy in proxies[:2]:
            proxy.refuse(True)
            proxy.cut()
        await fails(RedisError, red.unlock)
        assert not await red.is_held()
        for proxy in proxies[:2]:
            proxy.refuse(False)
        await far.gone()


class TestValidity:
    async def test_a_lease_that_drift_or_the_last_reply_uses_up(self, far: Red, proxies: list[Proxy]) -> None:
        red = far.make()
        await fails(ValueError, red.lock, 0.002, match="lease_time")
        await fails(ValueError, red.try_lock, 1, 0.001, match="lease_time")
        await use(red)
        for proxy in proxies[:2]:
            proxy.latency(0.02)
        assert (await red.try_lock(0, 0.04), await red.try_lock(0, 20)) == (False, True)
        await red.unlock()

    @pytest.mark.parametrize("number", [0, 1, 2])
    async def test_one_client_has_a_lease_of_its_own(self, it: Red, number: int) -> None:
        """A hundredth of that one would use up each of the others."""
        leases = [600.0 if one == number else 5.0 for one in range(3)]
        places = zip(it.places, leases, strict=True)
        clients = [it.backend.connect(each.url, lock_watchdog_timeout=lease) for each, lease in places]
        red: Any = clients[0].get_red_lock(*(client.get_lock("a") for client in clients))
        assert (await red.try_lock(), it.held()) == (True, ALL_HELD)
        await red.unlock()

    async def test_it_ends_before_the_leases_do(self, it: Red, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(red_lock, "DRIFT", 0.5)
        red = it.make()
        async with it.backend.connect().get_lock("another"):
            with within(3.8, least=1.9):
                await red.lock(4)
                assert await red.lost.wait(TIME_LIMIT)
            assert all(redis.pttl("a") > 0 for redis in it.redises)
            await assert_lost(red)
        await it.gone()


async def test_a_majority_is_lost(it: Red, servers: list[Server]) -> None:
    red = await acquired(it.make(lock_watchdog_timeout=0.9))
    for number in (0, 2):
        it.redises[number].delete("a")
    assert (await red.lost.wait(TIME_LIMIT), await red.is_held()) == (True, False)
    await assert_lost(red, "was taken away on the server")
    assert it.held() == FREE
    async with red:
        assert not red.lost.is_set()
    # The error names the members that were released separately, and not the one that is released with the group.
    await red.lock()
    await it.locks[0].unlock()
    assert await red.is_held()
    await it.locks[2].unlock()
    raised = await fails(LockLostError, red.unlock, match="is not held any more")
    reasons = str(raised).partition("any more: ")[2]
    assert reasons.count("it was released separately") == 2
    assert ([f":{server.port}/" in reasons for server in servers], it.held()) == ([True, False, True], FREE)


@pytest.mark.parametrize("kind", ["lock", "fair_lock"])
async def test_all_servers_restart_one_after_the_other(it: Red, kind: str) -> None:
    it.kind = kind
    red = await it.lock()
    async with red:
        for number in (0, 1, 2, 0, 1, 2):
            it.forget(number)
            await it.backend.until(lambda number=number: it.redises[number].hvals("a") == [b"2"])  # type: ignore[misc]
            await it.lacks(0)
    assert (it.held(), red.lost.is_set()) == (ALL_HELD, False)
    # The lost holds are forgotten.
    assert (len(it.stack()[0].release_calls), await red.is_held()) == (3, True)
    assert not await it.backend.as_another_owner(red.try_lock)
    # The new holds are renewed.
    it.renew(0, 1, 2)
    await red.unlock()
    assert (it.held(), it.tables()) == (FREE, [])
    assert await it.backend.as_another_owner(red.try_lock)


@pytest.mark.parametrize("number", [0, 1, 2])
async def test_one_client_is_closed(it: Red, number: int) -> None:
    """The majority stays held, and is released, whichever client it is: the group has an order of its own."""
    red = await it.lock()
    await it.clients[number].close()
    assert await red.is_held()
    await red.unlock()
    await it.gone()
    await fails(ClosedError, red.lock)


@pytest.mark.parametrize("lacking", [0, 1])
async def test_a_closed_client_has_no_timer_left(it: Red, lacking: int) -> None:
    """It would keep the client in memory."""
    if lacking:
        it.somebody_takes(1)
    await it.lock()
    assert it.missing() == [lacking]
    wheels = [member.session.watchdog.wheel for member in it.members()]
    await it.backend.close()
    assert sum(map(len, wheels)) == 0


@pytest.mark.parametrize("acquired", [True, False], ids=["lost", "never acquired"])
async def test_a_member_of_another_owner_is_left_alone_until_it_is_free(it: Red, acquired: bool) -> None:
    redis = it.redises[1]
    if not acquired:
        it.somebody_takes(1)
    red = await it.lock()
    if acquired:
        redis.delete("a")
        it.somebody_takes(1)
        it.renew(1)
        await it.lacks(1)

    refused = scripts_run(redis)
    # A look that has begun by itself may not have ended: then the first ring begins none.
    await it.backend.until(lambda: it.recovery().ring() or scripts_run(redis) > refused)
    assert redis.hgetall("a") == {b"another:1": b"7"}
    redis.delete("a")
    await it.backend.until(lambda: it.recovery().ring() or redis.hvals("a") == [b"1"])
    await red.unlock()
    await it.gone()


async def test_without_a_majority_on_the_servers_nothing_is_acquired_again(it: Red) -> None:
    """Two servers have restarted since the latest renewals, and only one of them is known to have."""
    red = await it.lock()
    it.redises[1].flushall()
    it.forget(0)
    assert await red.lost.wait(TIME_LIMIT)
    await assert_lost(red)
    assert it.held()[:2] == [[], []]
    await it.gone()


@pytest.mark.parametrize("why", ["released separately", "a fixed lease"])
async def test_a_member_that_is_not_acquired_again(it: Red, why: str) -> None:
    red = await it.lock(20 if why == "a fixed lease" else None)
    if why == "a fixed lease":
        it.forget(0)
        await it.lacks(1)
        assert it.stack()[0].recovery is None
    else:
        await it.locks[0].unlock()
        assert it.recovery()._missing() == []
    await red.unlock()
    assert it.held() == FREE


async def test_a_loss_that_the_owner_has_yet_to_be_told_stays_one(it: Red) -> None:
    """Of a level that is not part of the group: its own release raises the error, and no level of the group ends."""
    red = await it.lock()
    await it.locks[1].lock()
    it.forget(1)
    await it.lacks(1)
    recovery = it.recovery()
    [number] = recovery._missing()
    # Beside the look that has begun by itself.
    await recovery._look_for(number)
    await it.backend.until(lambda: not recovery._looks)
    await recovery._look_for(number)
    assert it.redises[1].keys() == []
    await assert_lost(it.locks[1])
    # Only its own level remains.
    await recovery._look_for(number)
    assert it.held() == ALL_HELD
    await red.unlock()
    assert it.held() == FREE


@pytest.mark.parametrize("reply", [True, False], ids=["reply", "request"])
@pytest.mark.parametrize("end", ["released", "lost", "expired", "closed"])
async def test_the_lock_ends_while_a_member_is_asked(behind: Red, proxies: list[Proxy], end: str, reply: bool) -> None:
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
        await assert_lost(red)
    await it.gone()
    await it.backend.until(lambda: not it.tables())


async def test_the_reply_is_lost(behind: Red, proxies: list[Proxy]) -> None:
    red = await behind.lock()
    cut = proxies[0].cut_reply(ACQUIRE)
    behind.redises[0].delete("a")
    behind.renew(0)
    await behind.backend.until(cut.happened.is_set)
    await behind.lacks(0)
    assert behind.held() == ALL_HELD
    await red.unlock()
    await behind.gone()
