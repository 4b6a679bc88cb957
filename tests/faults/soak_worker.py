"""One process of the soak: owners that acquire and release locks of all kinds, and record when they held them.

A program that is started with the arguments of `main`. Each line of its journal is one `os.write`, so that a killed
process leaves whole lines. All times are those of CLOCK_BOOTTIME, which is the same for all processes of a machine.

A hold is recorded as valid only if that is certain: the clock is read first, and `lost` after it. A hold that isn't
lost then was valid at the time that was read, however long the process was paused in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import inspect
import itertools
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any

import redis.exceptions

import pyredisson
import pyredisson.asyncio

LEASE = 1.0
"""Seconds: the watchdog's lease."""
PERMITS = 2
STEP = 0.005
"""Seconds between two looks at `lost` within a hold."""

EXPECTED = (
    pyredisson.LockNotHeldError,  # LockLostError too
    pyredisson.PermitNotHeldError,
    redis.exceptions.ConnectionError,
    redis.exceptions.TimeoutError,
    TimeoutError,
)
"""What an owner may meet while the network fails."""

LOCKS: dict[str, tuple[tuple[str, ...], str, Callable[[Any], Any]]] = {
    "lock": (("lock",), "exclusive", lambda client: client.get_lock("lock")),
    "fair": (("fair",), "exclusive", lambda client: client.get_fair_lock("fair")),
    "fenced": (("fenced",), "exclusive", lambda client: client.get_fenced_lock("fenced")),
    "spin": (("lock",), "exclusive", lambda client: client.get_spin_lock("lock")),
    "non-reentrant": (("single",), "exclusive", lambda client: client.get_non_reentrant_lock("single")),
    "multi": (
        ("lock", "other"),
        "exclusive",
        lambda client: client.get_multi_lock(client.get_lock("lock"), client.get_lock("other")),
    ),
    "write": (("rw",), "exclusive", lambda client: client.get_read_write_lock("rw").write_lock()),
    "read": (("rw",), "shared", lambda client: client.get_read_write_lock("rw").read_lock()),
}
"""By kind: the names that it locks, how, and what makes it."""
KINDS = [*LOCKS, "read", "read", "permit", "semaphore"]
REENTRANT = {"lock", "fair", "fenced", "spin", "write", "read"}


def clock() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Journal:
    """What all owners of this process write."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._ids = itertools.count()

    def write(self, *words: object) -> None:
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())

    def begin(self, kind: str, name: str, mode: str, asked: float, begin: float) -> str:
        """Writes that a hold has begun at `begin`, of what was asked for at `asked`; gives its id."""
        identity = f"{os.getpid()}.{next(self._ids)}"
        self.write("hold", identity, kind, name, mode, asked, begin)
        return identity


class Account:
    """A counter in a file, guarded by fencing tokens: no update may be lost, whatever happens to the lock."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def enter(self, token: int) -> int | None:
        """Its value; None when a later token has been seen."""
        return self._do(token, None)

    def write(self, token: int, value: int) -> bool:
        return self._do(token, value) is not None

    def _do(self, token: int, value: int | None) -> int | None:
        file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            seen, _, present = os.pread(file, 100, 0).decode().partition(" ")
            if int(seen or 0) > token:
                return None
            found = int(present or 0) if value is None else value
            os.pwrite(file, f"{token} {found}".ljust(60).encode(), 0)
            return found
        finally:
            os.close(file)


class Owner:
    """One thread or task, which does one thing after another."""

    def __init__(self, client: Any, journal: Journal, account: Account, random: Random, *, threads: bool) -> None:
        self._client = client
        self._journal = journal
        self._account = account
        self._random = random
        self._threads = threads

    async def run(self, until: float) -> None:
        while clock() < until:
            kind = self._random.choice(KINDS)
            try:
                if kind == "permit":
                    await self._permit()
                elif kind == "semaphore":
                    await self._semaphore()
                else:
                    await self._lock(kind)
            except EXPECTED:
                await self._sleep(0.01)
            except Exception:  # noqa: BLE001 - the judge reports it
                self._journal.write("error", kind, repr(traceback.format_exc()))
                await self._sleep(0.1)

    async def _lock(self, kind: str) -> None:
        names, mode, make = LOCKS[kind]
        lock = make(self._client)
        asked = clock()
        if not await self._take(lock):
            return
        begin = clock()
        lost = lock.lost
        if lost.is_set():
            await self._call(lock.unlock())  # raises LockLostError
            self._journal.write("error", kind, "a lost hold was released")
            return
        holds = [self._journal.begin(kind, name, mode, asked, begin) for name in names]
        token = lock.token if kind == "fenced" else 0
        if token:
            self._journal.write("token", holds[0], token)
        value = self._account.enter(token) if token else None
        nested = kind in REENTRANT and self._random.random() < 0.2 and await self._nested(lock)
        await self._stay(lost, holds)
        if value is not None and self._account.write(token, value + 1):
            self._journal.write("counted")
        if nested:
            # Whatever happens, the nested hold is released, and the outer one must be released, too.
            with contextlib.suppress(*EXPECTED):
                await self._call(lock.unlock())
        await self._give_back(lock, lost, holds)

    async def _take(self, lock: Any) -> bool:
        wait, lease = self._random.uniform(0, 1), self._random.choice((None, None, 0.4, 0.8))
        if self._threads or self._random.random() < 0.8:
            return bool(await self._call(lock.try_lock(wait, lease)))
        # Cancelled at whichever await it has come to.
        async with asyncio.timeout(self._random.uniform(0, 0.2)):
            return bool(await lock.try_lock(wait, lease))

    async def _nested(self, lock: Any) -> bool:
        try:
            return bool(await self._call(lock.try_lock(0, self._random.choice((None, 0.3)))))
        except EXPECTED:
            return False

    async def _stay(self, lost: Any, holds: list[str]) -> None:
        long = self._random.random() < 0.1
        end = clock() + (self._random.uniform(0.2, 1.5) if long else self._random.uniform(0, 0.04))
        while clock() < end:
            await self._sleep(STEP)
            if not self._still(lost, holds):
                return

    def _still(self, lost: Any, holds: list[str]) -> bool:
        now = clock()
        if lost.is_set():
            return False
        for each in holds:
            self._journal.write("still", each, now)
        return True

    async def _give_back(self, lock: Any, lost: Any, holds: list[str]) -> None:
        self._still(lost, holds)
        asked = clock()
        try:
            await self._call(lock.unlock())
        except pyredisson.LockNotHeldError:
            for each in holds:
                self._journal.write("lost", each, asked)
        else:
            for each in holds:
                self._journal.write("released", each, asked)

    async def _permit(self) -> None:
        """A permit has no `lost`: its holder may rely on the lease, counted from the call."""
        semaphore = self._client.get_permit_expirable_semaphore("permits")
        asked, lease = clock(), 0.6
        permit = await self._call(semaphore.try_acquire(self._random.uniform(0, 0.3), lease))
        if permit is None:
            return
        if (now := clock()) < asked + lease:
            hold = self._journal.begin("permit", "permits", str(PERMITS), asked, now)
            await self._sleep(self._random.uniform(0, 0.1))
            self._journal.write("still", hold, min(clock(), asked + lease))
        await self._call(semaphore.release(permit))

    async def _semaphore(self) -> None:
        semaphore = self._client.get_semaphore("semaphore")
        asked = clock()
        if await self._call(semaphore.try_acquire(1, self._random.uniform(0, 0.3))):
            hold = self._journal.begin("semaphore", "semaphore", str(PERMITS), asked, clock())
            await self._sleep(self._random.uniform(0, 0.05))
            self._journal.write("still", hold, clock())
            await self._call(semaphore.release())

    async def _call(self, result: Any) -> Any:
        return await result if inspect.isawaitable(result) else result

    async def _sleep(self, seconds: float) -> None:
        if self._threads:
            time.sleep(seconds)
        else:
            await asyncio.sleep(seconds)


def drive(work: Coroutine[Any, Any, None]) -> None:
    """Runs what never suspends, as nothing does in the thread backend."""
    try:
        work.send(None)
    except StopIteration:
        return
    raise AssertionError("it suspended in the thread backend")


def main(url: str, backend: str, directory: str, number: str, seed: str, owners: str) -> None:
    """`backend`: threads, asyncio, or both; `owners`: how many in each. A line says until when holds begin."""
    logging.getLogger("pyredisson").addHandler(logging.NullHandler())
    journal = Journal(f"{directory}/{number}.journal")
    account = Account(Path(directory) / "account")
    options: dict[str, Any] = {
        "lock_watchdog_timeout": LEASE,
        "timeout": 0.3,
        "connect_timeout": 0.5,
        "retry_attempts": 3,
    }

    def owner(client: Any, index: int) -> Owner:
        threads = isinstance(client, pyredisson.Client)
        random = Random(f"{seed}/{number}/{threads}/{index}")
        return Owner(client, journal, account, random, threads=threads)

    async def tasks() -> None:
        async with pyredisson.asyncio.connect(url, **options) as client:
            await asyncio.gather(*(owner(client, index).run(until) for index in range(int(owners))))

    def in_threads() -> None:
        with pyredisson.connect(url, **options) as client:
            runs = [owner(client, index).run(until) for index in range(int(owners))]
            threads = [threading.Thread(target=drive, args=(run,)) for run in runs]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    print("ready", flush=True)
    until = float(sys.stdin.readline())
    beside = threading.Thread(target=in_threads)
    if backend != "asyncio":
        beside.start()
    if backend in {"asyncio", "both"}:
        asyncio.run(tasks())
    if backend != "asyncio":
        beside.join()
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
