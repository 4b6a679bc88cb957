"""A user's program passes `mypy --strict`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pyredisson

PROGRAM = """
import asyncio
import sqlite3
from datetime import timedelta

import redis.asyncio

import pyredisson
import pyredisson.asyncio
from pyredisson import fencing


def threads() -> None:
    with pyredisson.connect("redis://localhost", lock_watchdog_timeout=timedelta(seconds=10)) as client:
        lock: pyredisson.Lock = client.get_lock("orders")
        flags: list[bool] = [lock.try_lock(wait_time=1, lease_time=0.5), lock.acquire(blocking=True, timeout=1.5)]
        left: float | None = lock.remain_time_to_live()
        with lock as entered, lock.hold(wait_time=timedelta(1)) as held:
            both: list[pyredisson.Lock] = [entered, held]
        print(flags, left, both, lock.lost.wait(1), client.get_lock(b"orders", owner=3).is_held_by(3))

        @lock.on_lost
        def callback(lock: pyredisson.Lock) -> None:
            print(lock.name, client.id, client.closed)

        reveal_type(callback)
        fenced: pyredisson.FencedLock = client.get_fenced_lock("orders")
        with fenced as guarded, redis.Redis() as database, sqlite3.connect("orders.db") as connection:
            tokens: list[int] = [guarded.token, fenced.lock_and_get_token(timedelta(1)), fenced.get_token()]
            perhaps: int | None = fenced.try_lock_and_get_token(1, lease_time=2)
            fencing.write(database, fenced.token, "HSET", "orders", "a", 1)
            fencing.claim(connection, "orders", fenced.token)
            print(tokens, perhaps)

        @client.singleton("nightly", at_least=timedelta(minutes=1))
        def nightly(day: str) -> int:
            return len(day)

        ran: int | None = nightly("monday")
        with client.singleton("nightly", wait_time=None) as alone:
            sole: pyredisson.Lock = alone
        print(ran, sole)

        class Orders:
            @client.locked("{self}:{order_id}", wait_time=timedelta(seconds=5), kind="fair")
            def change(self, order_id: int, *, place: str = "") -> list[str]:
                return [place] * order_id

        texts: list[str] = Orders().change(3, place="here")
        print(texts)
        spin: pyredisson.SpinLock = client.get_spin_lock("orders", pyredisson.ConstantBackoff(timedelta(seconds=0.1)))
        again: pyredisson.NonReentrantLock = client.get_non_reentrant_lock("orders", owner=3)
        with spin, again.hold(1) as only:
            only.unlock()


async def tasks() -> None:
    async with pyredisson.asyncio.connect() as client:
        lock: pyredisson.asyncio.Lock = client.get_lock("orders")
        one, two = await asyncio.gather(lock.is_held(), lock.get_hold_count())
        flags: list[bool] = [one, await lock.try_lock(wait_time=1, lease_time=timedelta(1))]
        count: int = two
        async with lock as entered, lock.hold(1, cancel_on_lost=False) as held:
            both: list[pyredisson.asyncio.Lock] = [entered, held]
        running: asyncio.Task[None] = asyncio.create_task(lock.lock())
        opened: asyncio.Task[bool] = asyncio.create_task(client.get_count_down_latch("done").wait())
        print(flags, count, both, running.cancel(), opened.cancel(), await lock.lost.wait(timedelta(1)))

        @lock.on_lost
        async def callback(lock: pyredisson.asyncio.Lock) -> None:
            await lock.force_unlock()

        @client.locked("order:{order_id}", wait_time=5)
        async def change(order_id: int, *, place: str = "") -> list[str]:
            return [place] * order_id

        @client.singleton("nightly", at_least=60)
        async def nightly(day: str) -> int:
            return len(day)

        ran: int | None = await nightly("monday")
        changed: asyncio.Task[list[str]] = asyncio.create_task(change(3, place="here"))
        print(ran, await changed)
        fenced: pyredisson.asyncio.FencedLock = client.get_fenced_lock("orders")
        async with fenced as guarded, redis.asyncio.Redis() as database:
            token: int = await guarded.lock_and_get_token()
            perhaps: int | None = await asyncio.wait_for(fenced.try_lock_and_get_token(1, lease_time=2), 1)
            await fencing.write(database, fenced.token, "SET", "orders", "text")
            print(token, perhaps, await fenced.get_token())
        spin: pyredisson.asyncio.SpinLock = client.get_spin_lock("orders", pyredisson.ExponentialBackoff(0.1, 1))
        async with spin, client.get_non_reentrant_lock("orders").hold(1) as sole:
            await sole.unlock()


try:
    threads()
    asyncio.run(tasks())
except pyredisson.LockLostError as error:
    print(error)
"""
WRONG = """
import pyredisson

lock = pyredisson.connect().get_lock(1)
count: str = lock.get_hold_count()
pyredisson.connect(lock_wachdog_timeout=10)
pyredisson.asyncio.connect("redis://localhost", lock_watchdog_timeout="10")
"""


def checked(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    file = folder / "program.py"
    file.write_text(program)
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent"]
    command += ["--cache-dir", str(folder / "cache"), str(file)]
    environment = dict(os.environ)
    home = Path(pyredisson.__file__).parents[1]
    if home.name not in ("site-packages", "dist-packages"):
        # An editable install is found by an import hook, which mypy doesn't run.
        environment["MYPYPATH"] = str(home)
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.slow
def test_users_programs(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("typed")
    done = checked(PROGRAM, folder)
    assert done.returncode == 0, done.stdout
    assert re.search(r'Revealed type is "def \(lock: pyredisson\.[a-z._]*Lock\)"', done.stdout)
    refused = checked(WRONG, folder)
    assert refused.stdout.count("error:") == 4, refused.stdout
