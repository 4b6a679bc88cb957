"""One lock on three independent servers, on both backends: it is held while a majority of servers has it."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from redis.exceptions import RedisError

from pyredisson import LockLostError, LockNotHeldError, LockTimeoutError
from pyredisson.logic.groups import parallel, red_lock
from pyredisson.logic.holds import LOST
from pyredisson.testing import Proxy, Server
from tests.support.backends import TIME_LIMIT, Backend

pytestmark = pytest.mark.asyncio
PROMPT = 2.5
"""Seconds in which is done what doesn't wait for the lease, or for a reply that never comes."""


def make(backend: Backend, places: list[Any], name: str = "a", **fields: Any) -> Any:
    """The red lock of that name: a lock on each server, each by a client of its own."""
    return make_with_members(backend, places, name, **fields)[1]


def make_with_members(backend: Backend, places: list[Any], name: str = "a", **fields: Any) -> tuple[list[Any], Any]:
    """The locks that are its members, and the red lock."""
    clients = [backend.connect(each.url, **fields) for each in places]
    locks = [client.get_lock(name) for client in clients]
    return locks, clients[0].get_red_lock(*locks)


def members(red: Any) -> list[Any]:
    """Its members' logic."""
    logic = red._target._logic if hasattr(red, "_target") else red._logic
    return list(logic.members)


def held(redises: list[Any], name: str = "a") -> list[list[bytes]]:
    """On each server, how often it is held."""
    return [list(redis.hvals(name)) for redis in redises]


async def gone(backend: Backend, redises: list[Any]) -> None:
    """Waits until nothing remains, also of what is released in the background."""
    await backend.until(lambda: not any(redis.keys() for redis in redises))


@pytest.fixture(autouse=True)
def all_members_have_time(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a majority has replied, a red lock waits for the others only briefly: too briefly on a busy machine.

    And it waits for each reply for a tenth of the lease only.
    """
    if "proxies" not in request.fixturenames:
        # All servers reply.
        monkeypatch.setattr(parallel, "SHORTEST_GRACE", TIME_LIMIT)
        monkeypatch.setattr(red_lock, "SHORTEST_TIMEOUT", TIME_LIMIT)


class TestMajority:
    async def test_of_all(self, backend: Backend, servers: list[Server], redises: list[Any]) -> None:
        red = make(backend, servers)
        await red.lock()
        assert held(redises) == [[b"1"], [b"1"], [b"1"]]
        assert await red.is_held()
        assert not red.lost.is_set()
        assert not await backend.as_another_owner(red.try_lock)
        assert held(redises) == [[b"1"], [b"1"], [b"1"]]
        await red.unlock()
        assert not await red.is_held()
        assert held(redises) == [[], [], []]

    @pytest.mark.parametrize("foreign", [0, 1, 2])
    async def test_one_is_held_by_another_owner(
        self, backend: Backend, servers: list[Server], redises: list[Any], foreign: int
    ) -> None:
        redises[foreign].hset("a", "another:1", 7)
        red = make(backend, servers)
        assert await red.try_lock()
        assert held(redises) == [[b"7"] if i == foreign else [b"1"] for i in range(3)]
        assert await red.is_held()
        await red.unlock()
        assert held(redises) == [[b"7"] if i == foreign else [] for i in range(3)]

    @pytest.mark.parametrize("free", [0, 1, 2])
    async def test_two_are_held_by_another_owner(
        self, backend: Backend, servers: list[Server], redises: list[Any], free: int
    ) -> None:
        for i, redis in enumerate(redises):
            if i != free:
                redis.hset("a", "another:1", 7)
        red = make(backend, servers)
        assert not await red.try_lock()
        assert redises[free].keys() == []
        assert not await red.is_held()
        with pytest.raises(LockTimeoutError, match=r"red lock of 'a' on .* of owner .* not acquired in 0\.1 s"):
            async with red.hold(wait_time=0.1):
                pass
        assert redises[free].keys() == []

    async def test_nested(self, backend: Backend, servers: list[Server], redises: list[Any]) -> None:
        red = make(backend, servers)
        async with red, red:
            assert await red.try_lock()
            assert held(redises) == [[b"3"], [b"3"], [b"3"]]
            await red.unlock()
            assert held(redises) == [[b"2"], [b"2"], [b"2"]]
        assert held(redises) == [[], [], []]

    async def test_each_level_releases_its_own_hold(
        self, backend: Backend, servers: list[Server], redises: list[Any]
    ) -> None:
        """And not what the outer one has, where the inner one has another majority."""
        redises[1].hset("a", "another:1", 7)
        red = make(backend, servers)
        async with red:
            redises[1].delete("a")
            async with red:
                assert held(redises) == [[b"2"], [b"1"], [b"2"]]
            assert held(redises) == [[b"1"], [], [b"1"]]
            assert await red.is_held()
        assert held(redises) == [[], [], []]

    async def test_a_release_wakes_a_waiter(self, backend: Backend, servers: list[Server]) -> None:
        holder, red = make(backend, servers), make(backend, servers)
        await holder.lock()

        async def take() -> float:
            async with red:
                return time.monotonic()

        other = backend.spawn(take)
        await backend.sleep(0.3)
        assert not other.done()
        released = time.monotonic()
        await holder.unlock()
        # Polling would be as good as this once in ten times.
        assert await other.result() - released < PROMPT

    async def test_one_at_a_time(self, backend: Backend, servers: list[Server]) -> None:
        inside, most = 0, 0

        async def turns() -> None:
            nonlocal inside, most
            red = make(backend, servers)
            for _ in range(5):
                async with red:
                    inside += 1
                    most = max(most, inside)
                    await backend.sleep(0.002)
                    inside -= 1

        for other in [backend.spawn(turns) for _ in range(3)]:
            await other.result()
        assert most == 1

    async def test_a_stale_member_doesn_t_hold_it_up(
        self, backend: Backend, servers: list[Server], redises: list[Any]
    ) -> None:
        """The first one stays somebody's who crashed there: it must not be what all wait for."""
        redises[0].hset("a", "crashed:1", 1)
        holder, red = make(backend, servers), make(backend, servers)
        await holder.lock()
        other = backend.spawn(red.lock)
        await backend.sleep(0.05)
        await holder.unlock()
        await other.result()


class TestServersThatFail:
    async def test_one_is_down(self, backend: Backend, proxies: list[Proxy], redises: list[Any]) -> None:
        proxies[1].refuse(True)
        red = make(backend, proxies)
        begun = time.monotonic()
        async with red:
            assert time.monotonic() - begun < PROMPT
            assert held(redises) == [[b"1"], [], [b"1"]]
            assert await red.is_held()
            async with red:
                assert held(redises) == [[b"2"], [], [b"2"]]
        assert time.monotonic() - begun < 2 * PROMPT
        assert held(redises) == [[], [], []]

    async def test_two_are_down(self, backend: Backend, proxies: list[Proxy], redises: list[Any]) -> None:
        proxies[0].refuse(True)
        proxies[2].refuse(True)
        red = make(backend, proxies, retry_attempts=1)
        assert not await red.try_lock()
        assert not await red.try_lock(0.2)
        assert held(redises) == [[], [], []]

        async def wait() -> None:
            async with red:
                pass

        waiting = backend.spawn(wait)
        await backend.sleep(0.5)
        assert not waiting.done()
        proxies[0].refuse(False)
        await waiting.result()
        assert held(redises) == [[], [], []]
        assert await red.try_lock()
        await red.unlock()
        assert held(redises) == [[], [], []]

    async def test_a_silent_one_costs_a_moment(
        self, backend: Backend, proxies: list[Proxy], redises: list[Any]
    ) -> None:
        """It doesn't wait the three seconds that a reply may take. What a later reply grants is released."""
        red = make(backend, proxies)
        async with red:
            pass
        proxies[2].stall()
        begun = time.monotonic()
        await red.lock()
        assert held(redises)[:2] == [[b"1"], [b"1"]]
        await red.unlock()
        assert time.monotonic() - begun < PROMPT
        proxies[2].resume()
        await gone(backend, redises)

    async def test_most_are_silent(
        self, backend: Backend, proxies: list[Proxy], redises: list[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A tenth of the lease for all of them, and nothing is left of what they did late."""
        red = make(backend, proxies, lock_watchdog_timeout=3)
        async with red:
            pass
        proxies[0].stall()
        proxies[1].stall()
        begun = time.monotonic()
        assert not await red.try_lock()
        assert 0.25 < time.monotonic() - begun < PROMPT
        proxies[0].resume()
        proxies[1].resume()
        await gone(backend, redises)
        await backend.until(lambda: not any(member.session.groups.pending_acquires for member in members(red)))
        # Now all servers reply.
        monkeypatch.setattr(parallel, "SHORTEST_GRACE", TIME_LIMIT)
        assert await red.try_lock()
        assert held(redises) == [[b"1"], [b"1"], [b"1"]]
        await red.unlock()

    async def test_a_lost_reply(
        self, backend: Backend, proxies: list[Proxy], redises: list[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # All servers reply, to a command that is sent again.
        monkeypatch.setattr(parallel, "SHORTEST_GRACE", TIME_LIMIT)
        red = make(backend, proxies)
        for proxy in proxies:
            proxy.cut_reply(b"\r\na\r\n")
        await red.lock()
        assert held(redises) == [[b"1"], [b"1"], [b"1"]]
        for proxy in proxies:
            proxy.cut_reply(b"\r\na\r\n")
        await red.unlock()
        assert held(redises) == [[], [], []]

    async def test_a_release_that_no_majority_confirms(
        self, backend: Backend, proxies: list[Proxy], redises: list[Any]
    ) -> None:
        red = make(backend, proxies, retry_attempts=0)
        await red.lock()
        for proxy in proxies[:2]:
            proxy.refuse(True)
            proxy.cut()
        with pytest.raises(RedisError):
            await red.unlock()
        assert not await red.is_held()
        for proxy in proxies[:2]:
            proxy.refuse(False)
        await gone(backend, redises)


class TestValidity:
    async def test_a_lease_that_drift_uses_up(self, backend: Backend) -> None:
        client = backend.connect("redis://127.0.0.1:1")
        red = client.get_red_lock(client.get_lock("a"), client.get_lock("b"), client.get_lock("c"))
        with pytest.raises(ValueError, match="lease_time"):
            await red.lock(0.002)
        with pytest.raises(ValueError, match="lease_time"):
            await red.try_lock(1, 0.001)
        for lease in (0, -1, float("nan"), float("inf")):
            with pytest.raises(ValueError):
                await red.lock(lease)

    async def test_a_lease_that_is_over_when_the_last_answers(
        self, backend: Backend, proxies: list[Proxy], redises: list[Any]
    ) -> None:
        red = make(backend, proxies)
        async with red:
            pass
        for proxy in proxies[:2]:
            proxy.latency(0.02)
        assert not await red.try_lock(0, 0.04)
        assert await red.try_lock(0, 20)
        await red.unlock()

    async def test_it_ends_before_the_leases_do(
        self, backend: Backend, servers: list[Server], redises: list[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(red_lock, "DRIFT", 0.5)
        red = make(backend, servers)
        async with backend.connect().get_lock("another"):
            begun = time.monotonic()
            await red.lock(4)
            assert await red.lost.wait(TIME_LIMIT)
            assert 1.9 < time.monotonic() - begun < 3.8
            assert all(redis.pttl("a") > 0 for redis in redises)
            with pytest.raises(LockLostError):
                await red.unlock()
        await gone(backend, redises)

    async def test_drift_counts(self, backend: Backend, servers: list[Server]) -> None:
        red = make(backend, servers)
        await red.lock(100)
        logic = members(red)
        clock = logic[0].session.clock
        ends = [next(iter(member.session.holds.table.values())).valid_until for member in logic]
        assert all(99 < end - clock() <= 100 for end in ends)
        group = red._target._logic if hasattr(red, "_target") else red._logic
        hold = next(iter(logic[0].session.holds.table.values()))
        assert group.drift(hold) == pytest.approx(1.002)
        await red.unlock()


class TestLost:
    async def test_a_minority(self, backend: Backend, servers: list[Server], redises: list[Any]) -> None:
        red = make(backend, servers, lock_watchdog_timeout=1.5)
        await red.lock()
        redises[0].delete("a")
        # Until that one is known to be lost.
        holds = [hold for member in members(red) for hold in member.session.holds.table.values()]
        await backend.until(lambda: [hold.state for hold in holds].count(LOST) == 1)
        assert not red.lost.is_set()
        assert await red.is_held()
        await red.unlock()
        # What a recovery has just acquired is released in the background.
        await gone(backend, redises)

    async def test_a_majority(self, backend: Backend, servers: list[Server], redises: list[Any]) -> None:
        red = make(backend, servers, lock_watchdog_timeout=0.9)
        notified: list[Any] = []
        heard = threading.Event()

        @red.on_lost  # type: ignore[untyped-decorator]
        def tell(lost: Any) -> None:
            notified.append(lost)
            heard.set()

        await red.lock()
        redises[0].delete("a")
        redises[2].delete("a")
        assert await red.lost.wait(TIME_LIMIT)
        assert not await red.is_held()
        with pytest.raises(LockLostError, match="was taken away on the server"):
            await red.unlock()
        assert held(redises) == [[], [], []]
        assert heard.wait(TIME_LIMIT)
        async with red:
            assert not red.lost.is_set()
        assert len(notified) == 1

    async def test_members_that_were_released_separately(
        self, backend: Backend, servers: list[Server], redises: list[Any]
    ) -> None:
        """The error names these members, and not the one that is released with the group."""
        locks, red = make_with_members(backend, servers)
        await red.lock()
        await locks[0].unlock()
        assert await red.is_held()
        await locks[2].unlock()
        with pytest.raises(LockLostError, match="is not held any more") as raised:
            await red.unlock()
        reasons = str(raised.value).partition("any more: ")[2]
        assert reasons.count("it was released separately") == 2
        assert [f":{server.port}/" in reasons for server in servers] == [True, False, True]
        assert held(redises) == [[], [], []]

    async def test_the_body_is_cancelled(self, tasks: Backend, servers: list[Server], redises: list[Any]) -> None:
        red = make(tasks, servers, lock_watchdog_timeout=0.9)
        begun = time.monotonic()
        with pytest.raises(LockLostError):
            async with red:
                redises[0].delete("a")
                redises[1].delete("a")
                await tasks.sleep(TIME_LIMIT)
        assert time.monotonic() - begun < PROMPT
        await gone(tasks, redises)

    async def test_unlock_by_another_owner(self, backend: Backend, servers: list[Server], redises: list[Any]) -> None:
        red = make(backend, servers)
        async with red:
            with pytest.raises(LockNotHeldError, match="is held by") as raised:
                await backend.as_another_owner(red.unlock)
            # By way of whichever server was first to say so.
            assert any(next(iter(redis.hgetall("a"))).decode() in str(raised.value) for redis in redises)
            assert held(redises) == [[b"1"], [b"1"], [b"1"]]
        with pytest.raises(LockNotHeldError, match="'a' is free"):
            await red.unlock()
