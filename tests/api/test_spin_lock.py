"""The spin lock: a lock without a channel whose waiters poll, and the pauses between two polls."""

import itertools
import math
from datetime import timedelta
from typing import Any

import pytest

from pyredisson import ClosedError, ConstantBackoff, ExponentialBackoff
from tests.support.backends import TIME_LIMIT, WOKEN, Backend, fails, lasting
from tests.support.server_state import ServerState

IMPOSSIBLE = [0, -1, 0.00001, math.nan, math.inf]


async def test_nothing_is_published_and_no_client_subscribes(backend: Backend, state: ServerState) -> None:
    client = backend.connect()
    holder, waiter = client.get_spin_lock("orders", owner=1), client.get_spin_lock("orders", owner=2)
    with state.redis.pubsub() as ear:
        ear.psubscribe("*")
        assert ear.get_message(timeout=TIME_LIMIT)["type"] == "psubscribe"
        await holder.lock()
        before = state.scripts()
        other = await backend.begin(waiter.lock, lambda: state.scripts() >= before + 4)
        assert state.redis.pubsub_channels() == []
        await holder.unlock()
        await other.result()
        assert await holder.force_unlock()
        assert state.redis.keys() == []
        state.redis.publish("end", "end")
        assert ear.get_message(timeout=TIME_LIMIT)["data"] == b"end"


class TestWaiting:
    @pytest.mark.parametrize(
        ("backoff", "least", "most"),
        [
            # At 0, 0.5, 1 and 1.5 s, and at the very end.
            (ConstantBackoff(timedelta(milliseconds=500)), 3, 5),
            # At 1 ms it would be more than a thousand. Seven until the pause is 128 ms, and then about fifteen.
            (None, 6, 40),
        ],
        ids=["the pace that was given", "usual pauses grow"],
    )
    async def test_how_often_it_asks(
        self, backend: Backend, state: ServerState, backoff: Any, least: int, most: int
    ) -> None:
        state.redis.hset("orders", "somebody", 1)
        lock = backend.connect().get_spin_lock("orders", **({} if backoff is None else {"backoff": backoff}))
        await lock.try_lock()
        before = state.scripts()
        assert not await lock.try_lock(wait_time=1.75)
        assert least <= state.scripts() - before <= most

    async def test_it_asks_once_more_at_the_end_of_the_wait(self, backend: Backend, state: ServerState) -> None:
        state.redis.hset("orders", "somebody", 1)
        client: Any = backend.connect()
        lock = client.get_spin_lock("orders", ConstantBackoff(30))
        before = state.scripts()
        other = await backend.begin(lambda: lock.try_lock(wait_time=1), lambda: state.scripts() == before + 1)
        state.redis.delete("orders")
        assert await other.result() is True
        # A closed client ends the wait.
        other = backend.spawn(lambda: client.get_spin_lock("orders", ConstantBackoff(30)).try_lock(60))
        await backend.until(lambda: state.scripts() == before + 3)
        await client.close()
        await fails(ClosedError, other.result)
        for wrong in (None, 1, "fast", ConstantBackoff):
            with pytest.raises(TypeError, match="backoff"):
                client.get_spin_lock("orders", wrong)

    async def test_it_asks_at_the_end_of_the_holders_lease(self, backend: Backend, state: ServerState) -> None:
        state.redis.hset("orders", "dead", 1)
        before = state.scripts()
        with lasting(0.15, WOKEN):
            state.redis.pexpire("orders", 200)
            await backend.connect().get_spin_lock("orders", ConstantBackoff(30)).lock()
        assert state.scripts() <= before + 3


HALF = timedelta(seconds=0.5)
DOUBLED = [0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.128]


class TestBackoff:
    @pytest.mark.parametrize(
        ("backoff", "random", "pauses"),
        [
            # The largest that chance allows.
            (ExponentialBackoff(), 1.0, DOUBLED),
            (ExponentialBackoff(1, 20, 3), 1.0, [1, 3, 9, 20, 20]),
            (ExponentialBackoff(1, 1), 1.0, [1, 1, 1]),
            *((ExponentialBackoff(1, 4), 0.0, [0.5, 1, 2]), (ExponentialBackoff(1, 4), 0.5, [0.75, 1.5, 3])),
            (ExponentialBackoff(1, 4, jitter="full"), 0.0, [0, 0, 0]),
            (ExponentialBackoff(1, 4, jitter="full"), 0.5, [0.5, 1, 2]),
            *((ConstantBackoff(), 0.3, [0.064] * 3), (ConstantBackoff(2), 0.3, [2, 2])),
            (ConstantBackoff(HALF), 0.3, [0.5, 0.5]),
            (ExponentialBackoff(HALF, HALF), 1.0, [0.5, 0.5]),
        ],
    )
    def test_pauses(self, backoff: ExponentialBackoff | ConstantBackoff, random: float, pauses: list[float]) -> None:
        assert list(itertools.islice(backoff.delays(lambda: random), len(pauses))) == pytest.approx(pauses)

    def test_they_never_overflow(self) -> None:
        *_, last = itertools.islice(ExponentialBackoff(1, 4, 1e308).delays(lambda: 1.0), 2000)
        assert last == 4

    @pytest.mark.parametrize(
        ("kind", "fields", "error"),
        [
            *((ConstantBackoff, {"delay": wrong}, ValueError) for wrong in IMPOSSIBLE),
            *((ExponentialBackoff, {"initial_delay": wrong}, ValueError) for wrong in IMPOSSIBLE),
            *((ExponentialBackoff, {"max_delay": wrong}, ValueError) for wrong in IMPOSSIBLE),
            (ExponentialBackoff, {"max_delay": 0.5, "initial_delay": 1}, ValueError),
            *((ExponentialBackoff, {"multiplier": wrong}, ValueError) for wrong in (0.5, 0, -2, math.nan)),
            *((ExponentialBackoff, {"multiplier": wrong}, TypeError) for wrong in ("2", True, None)),
            (ExponentialBackoff, {"jitter": "some"}, ValueError),
            (ConstantBackoff, {"delay": "1"}, TypeError),
        ],
    )
    def test_what_cannot_be(self, kind: type[Any], fields: dict[str, Any], error: type[Exception]) -> None:
        with pytest.raises(error, match=next(iter(fields))):
            kind(**fields)
