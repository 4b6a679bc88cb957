"""One lock on three independent servers, on both backends: it is held while a majority of servers has it."""

from __future__ import annotations

import time

import pytest
from redis import Redis
from redis.exceptions import RedisError

from pyredisson import LockLostError, LockTimeoutError
from pyredisson.logic.groups import parallel, red_lock
from pyredisson.testing import Proxy, Server
from tests.support.backends import NOWHERE, TIME_LIMIT, Backend

from .red import Red, members

pytestmark = pytest.mark.asyncio
PROMPT = 2.5
"""Seconds in which is done what doesn't wait for the lease, or for a reply that never comes."""


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """For servers that all reply.

    After a majority has replied, a red lock waits for the others only briefly, and for each reply for a tenth of the
    lease only: too briefly on a busy machine.
    """
    monkeypatch.setattr(parallel, "SHORTEST_GRACE", TIME_LIMIT)
    monkeypatch.setattr(red_lock, "SHORTEST_TIMEOUT", TIME_LIMIT)


@pytest.fixture
def near(backend: Backend, servers: list[Server], redises: list[Redis], patience: None) -> Red:
    return Red(backend, servers, redises)


@pytest.fixture
def far(backend: Backend, proxies: list[Proxy], redises: list[Redis]) -> Red:
    """Behind proxies."""
    return Red(backend, proxies, redises)


class TestMajority:
    @pytest.mark.parametrize("foreign", [None, 0, 1, 2])
    async def test_at_most_one_is_held_by_another_owner(self, near: Red, foreign: int | None) -> None:
        if foreign is not None:
            near.somebody_takes(foreign)
        red = near.make()
        assert await red.try_lock()
        held = [[b"7"] if number == foreign else [b"1"] for number in range(3)]
        assert near.held() == held
        assert await red.is_held()
        assert not red.lost.is_set()
        assert not await near.backend.as_another_owner(red.try_lock)
        assert near.held() == held
        await red.unlock()
        assert not await red.is_held()
        assert near.held() == [[b"7"] if number == foreign else [] for number in range(3)]

    @pytest.mark.parametrize("free", [0, 1, 2])
    async def test_two_are_held_by_another_owner(self, near: Red, free: int) -> None:
        for foreign in {0, 1, 2} - {free}:
            near.somebody_takes(foreign)
        red = near.make()
        assert not await red.try_lock()
        assert near.redises[free].keys() == []
        with pytest.raises(LockTimeoutError, match=r"red lock of 'a' on .* of owner .* not acquired in 0\.1 s"):
            await red.hold(wait_time=0.1).__aenter__()
        assert near.redises[free].keys() == []
        assert not await red.is_held()

    @pytest.mark.parametrize("crashed", [False, True], ids=["free", "one is stale"])
    async def test_a_release_wakes_a_waiter(self, near: Red, crashed: bool) -> None:
        """Also where the first member stays somebody's who crashed: it must not be what all wait for."""
        if crashed:
            near.somebody_takes(0)
        holder, red = near.make(), near.make()
        await holder.lock()
        other = near.backend.spawn(red.lock)
        await near.backend.sleep(0.3)
        assert not other.done()
        released = time.monotonic()
        await holder.unlock()
        await other.result()
        # Polling would be as good as this once in ten times.
        assert crashed or time.monotonic() - released < PROMPT


class TestServersThatFail:
    async def test_one_is_down(self, far: Red, proxies: list[Proxy]) -> None:
        proxies[1].refuse(True)
        red = far.make()
        begun = time.monotonic()
        async with red:
            assert time.monotonic() - begun < PROMPT
            assert far.held() == [[b"1"], [], [b"1"]]
            assert await red.is_held()
            async with red:
                assert far.held() == [[b"2"], [], [b"2"]]
        assert time.monotonic() - begun < 2 * PROMPT
        assert far.free()

    async def test_two_are_down(self, far: Red, proxies: list[Proxy]) -> None:
        proxies[0].refuse(True)
        proxies[2].refuse(True)
        red = far.make(retry_attempts=1)
        assert not await red.try_lock()
        assert not await red.try_lock(0.2)
        assert far.free()
        waiting = far.backend.spawn(red.lock)
        await far.backend.sleep(0.5)
        assert not waiting.done()
        proxies[0].refuse(False)
        await waiting.result()
        assert far.held() == [[b"1"], [b"1"], []]

    async def test_a_silent_one_costs_a_moment(self, far: Red, proxies: list[Proxy]) -> None:
        """It doesn't wait the three seconds that a reply may take. What a later reply grants is released."""
        red = far.make()
        async with red:
            pass
        proxies[2].stall()
        begun = time.monotonic()
        await red.lock()
        assert far.held()[:2] == [[b"1"], [b"1"]]
        await red.unlock()
        assert time.monotonic() - begun < PROMPT
        proxies[2].resume()
        await far.gone()

    async def test_most_are_silent(self, far: Red, proxies: list[Proxy], monkeypatch: pytest.MonkeyPatch) -> None:
        """A tenth of the lease for all of them, and nothing is left of what they did late."""
        red = far.make(lock_watchdog_timeout=3)
        async with red:
            pass
        for proxy in proxies[:2]:
            proxy.stall()
        begun = time.monotonic()
        assert not await red.try_lock()
        assert 0.25 < time.monotonic() - begun < PROMPT
        for proxy in proxies[:2]:
            proxy.resume()
        await far.gone()
        await far.backend.until(lambda: not any(member.session.groups.pending_acquires for member in members(red)))
        # Now all servers reply.
        monkeypatch.setattr(parallel, "SHORTEST_GRACE", TIME_LIMIT)
        assert await red.try_lock()
        assert far.held() == far.levels()
        await red.unlock()

    async def test_a_release_that_no_majority_confirms(self, far: Red, proxies: list[Proxy]) -> None:
        red = far.make(retry_attempts=0)
        await red.lock()
        for proxy in proxies[:2]:
            proxy.refuse(True)
            proxy.cut()
        with pytest.raises(RedisError):
            await red.unlock()
        assert not await red.is_held()
        for proxy in proxies[:2]:
            proxy.refuse(False)
        await far.gone()


class TestValidity:
    async def test_a_lease_that_drift_uses_up(self, backend: Backend) -> None:
        client = backend.connect(NOWHERE)
        red = client.get_red_lock(*[client.get_lock(name) for name in "abc"])
        with pytest.raises(ValueError, match="lease_time"):
            await red.lock(0.002)
        with pytest.raises(ValueError, match="lease_time"):
            await red.try_lock(1, 0.001)

    async def test_a_lease_that_is_over_when_the_last_answers(self, far: Red, proxies: list[Proxy]) -> None:
        red = far.make()
        async with red:
            pass
        for proxy in proxies[:2]:
            proxy.latency(0.02)
        assert not await red.try_lock(0, 0.04)
        assert await red.try_lock(0, 20)
        await red.unlock()

    async def test_it_ends_before_the_leases_do(self, near: Red, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(red_lock, "DRIFT", 0.5)
        red = near.make()
        async with near.backend.connect().get_lock("another"):
            begun = time.monotonic()
            await red.lock(4)
            assert await red.lost.wait(TIME_LIMIT)
            assert 1.9 < time.monotonic() - begun < 3.8
            assert all(redis.pttl("a") > 0 for redis in near.redises)
            with pytest.raises(LockLostError):
                await red.unlock()
        await near.gone()


class TestLost:
    async def test_a_majority(self, near: Red) -> None:
        red = near.make(lock_watchdog_timeout=0.9)
        await red.lock()
        for number in (0, 2):
            near.redises[number].delete("a")
        assert await red.lost.wait(TIME_LIMIT)
        assert not await red.is_held()
        with pytest.raises(LockLostError, match="was taken away on the server"):
            await red.unlock()
        assert near.free()
        async with red:
            assert not red.lost.is_set()

    async def test_members_that_were_released_separately(self, near: Red, servers: list[Server]) -> None:
        """The error names these members, and not the one that is released with the group."""
        red = near.make()
        await red.lock()
        await near.locks[0].unlock()
        assert await red.is_held()
        await near.locks[2].unlock()
        with pytest.raises(LockLostError, match="is not held any more") as raised:
            await red.unlock()
        reasons = str(raised.value).partition("any more: ")[2]
        assert reasons.count("it was released separately") == 2
        assert [f":{server.port}/" in reasons for server in servers] == [True, False, True]
        assert near.free()
