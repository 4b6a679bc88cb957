"""A user's program with every kind of call, on both backends. `make lint` checks its types; it is not run."""

import asyncio
import sqlite3
from datetime import timedelta
from typing import assert_type

import redis.asyncio

import pyredisson
import pyredisson.asyncio as aio
from pyredisson import fencing


def threads() -> None:
    with pyredisson.connect("redis://localhost", lock_watchdog_timeout=timedelta(seconds=10)) as client:
        lock = client.get_lock(b"orders", owner=3)
        assert_type(lock, pyredisson.Lock)
        assert_type([lock.try_lock(wait_time=1, lease_time=0.5), lock.acquire(blocking=True, timeout=1.5)], list[bool])
        assert_type([lock.lost.wait(1), lock.is_held_by(3)], list[bool])
        assert_type(lock.remain_time_to_live(), float | None)
        assert_type(client.adopt(lock.hand_off(), owner=3), pyredisson.Lock)
        with lock as entered, lock.hold(wait_time=timedelta(1)) as held:
            assert_type([entered, held], list[pyredisson.Lock])

        @lock.on_lost
        def callback(lock: pyredisson.Lock) -> None:
            print(lock.name, client.id, client.closed)

        assert_type(callback(lock), None)
        fenced = client.get_fenced_lock("orders")
        assert_type(fenced.try_lock_and_get_token(1, lease_time=2), int | None)
        with fenced as guarded, redis.Redis() as database, sqlite3.connect("orders.db") as connection:
            assert_type([guarded.token, fenced.lock_and_get_token(timedelta(1)), fenced.get_token()], list[int])
            fencing.write(database, fenced.token, "HSET", "orders", "a", 1)
            fencing.claim(connection, "orders", fenced.token)

        @client.singleton("nightly", at_least=timedelta(minutes=1))
        def nightly(day: str) -> int:
            return len(day)

        assert_type(nightly("monday"), int | None)
        with client.singleton("nightly", wait_time=None) as alone:
            assert_type(alone, pyredisson.Lock)

        class Orders:
            @client.locked("{self}:{order_id}", wait_time=timedelta(seconds=5), kind="fair")
            def change(self, order_id: int, *, place: str = "") -> list[str]:
                return [place] * order_id

        assert_type(Orders().change(3, place="here"), list[str])
        spin = client.get_spin_lock("orders", pyredisson.ConstantBackoff(timedelta(seconds=0.1)))
        with spin, client.get_non_reentrant_lock("orders", owner=3).hold(1) as only:
            assert_type(only, pyredisson.NonReentrantLock)


async def tasks() -> None:
    async with aio.connect() as client:
        lock = client.get_lock("orders")
        assert_type(lock, aio.Lock)
        await asyncio.gather(lock.is_held(), lock.get_hold_count())
        assert_type(await lock.try_lock(wait_time=1, lease_time=timedelta(1)), bool)
        assert_type(await lock.lost.wait(timedelta(1)), bool)
        async with lock as entered, lock.hold(1, cancel_on_lost=False) as held:
            assert_type([entered, held], list[aio.Lock])
        assert_type(await asyncio.create_task(lock.lock()), None)
        assert_type(await asyncio.create_task(client.get_count_down_latch("done").wait()), bool)

        @lock.on_lost
        async def callback(lock: aio.Lock) -> None:
            await lock.force_unlock()

        assert_type(await callback(lock), None)

        @client.locked("order:{order_id}", wait_time=5)
        async def change(order_id: int, *, place: str = "") -> list[str]:
            return [place] * order_id

        @client.singleton("nightly", at_least=60)
        async def nightly(day: str) -> int:
            return len(day)

        assert_type(await asyncio.create_task(change(3, place="here")), list[str])
        assert_type(await nightly("monday"), int | None)
        fenced = client.get_fenced_lock("orders")
        async with fenced as guarded, redis.asyncio.Redis() as database:
            assert_type([await guarded.lock_and_get_token(), await fenced.get_token(), fenced.token], list[int])
            assert_type(await asyncio.wait_for(fenced.try_lock_and_get_token(1, lease_time=2), 1), int | None)
            await fencing.write(database, fenced.token, "SET", "orders", "text")
        spin = client.get_spin_lock("orders", pyredisson.ExponentialBackoff(0.1, 1))
        async with spin, client.get_non_reentrant_lock("orders").hold(1) as only:
            assert_type(only, aio.NonReentrantLock)


def wrong() -> None:
    """What is no error would be an unused `type: ignore`, which is one."""
    lock = pyredisson.connect().get_lock(1)  # type: ignore[arg-type]
    count: str = lock.get_hold_count()  # type: ignore[assignment]
    pyredisson.connect(lock_wachdog_timeout=len(count))  # type: ignore[call-arg]
    pyredisson.MultiLock([aio.connect(lock_watchdog_timeout="10").get_lock("a")])  # type: ignore[arg-type,list-item]
