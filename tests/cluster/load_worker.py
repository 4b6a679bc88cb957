"""One process of a load: owners that acquire and release locks, and record in a journal when they held them.

The lines of the journal are those of the soak (`tests/faults/soak_worker.py`), and two more: `failed KIND NAME ASKED
TIME ERROR` (an acquire raised an error), and `refused KIND NAME ASKED TIME` (an acquire got nothing within its waiting
time). A hold is recorded as valid only if that is certain: the clock is read first, and `lost` after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import logging
import sys
import threading
import traceback
from random import Random
from typing import Any

import redis.exceptions

import pyredisson
import pyredisson.asyncio
from tests.faults.soak_worker import STEP, Journal, clock, drive
from tests.support.kinds import LOCKS

PERMITS = 2
PERMIT_LEASE = 2.0
WAIT = 20.0
"""Seconds that an owner waits for a lock: longer than the faults of the scenarios last."""
EXPECTED = (
    pyredisson.LockNotHeldError,  # LockLostError too
    pyredisson.NotReplicatedError,
    pyredisson.PermitNotHeldError,
    redis.exceptions.RedisError,
    TimeoutError,
)
"""What an owner may meet during a fault. The judge counts what acquires raised."""

Wanted = tuple[str, list[str]]
"""A kind of lock, and its name. A multi-lock and a red lock have several names."""


class Owner:
    """One thread or task, which takes what it wants in turn until it is told to stop."""

    def __init__(self, client: Any, journal: Journal, wanted: list[Wanted], seed: str, stop: threading.Event) -> None:
        self._client = client
        self._journal = journal
        self._wanted = wanted
        self._random = Random(seed)
        self._stop = stop
        self._threads = isinstance(client, pyredisson.Client)

    async def run(self) -> None:
        takes = {"semaphore": self._semaphore, "permit": self._permit}
        while not self._stop.is_set():
            kind, names = self._random.choice(self._wanted)
            asked = clock()
            try:
                taken = await takes.get(kind, self._lock)(kind, names, asked)
            except EXPECTED as error:
                self._journal.write("failed", kind, names[0], asked, clock(), type(error).__name__)
                await self._sleep(0.01)
            except Exception:  # noqa: BLE001 - the judge reports it
                self._journal.write("error", kind, repr(traceback.format_exc()))
                await self._sleep(0.1)
            else:
                # Without a pause the owner that has just released a lock would mostly be the first to ask again.
                await self._sleep(self._random.uniform(0, 2 * STEP))
                if not taken:
                    self._journal.write("refused", kind, names[0], asked, clock())

    async def _lock(self, kind: str, names: list[str], asked: float) -> bool:
        if kind == "multi":
            lock = self._client.get_multi_lock(*map(self._client.get_lock, names))
        else:
            lock = LOCKS[kind](self._client, names[0])
        if not await self._call(lock.try_lock(WAIT)):
            return False
        begin = clock()
        lost = lock.lost
        mode = "shared" if kind == "read" else "exclusive"
        if lost.is_set():
            begin = asked  # nobody has relied on it
        holds = [self._journal.begin(kind, name, mode, asked, begin) for name in names]
        if kind == "fenced":
            self._journal.write("token", holds[0], lock.token)
        await self._stay(lost, holds)
        with contextlib.suppress(pyredisson.LockLostError):
            await self._release(lock, holds)
        return True

    async def _stay(self, lost: Any, holds: list[str]) -> None:
        """Relies on the hold for a while, mostly a few milliseconds."""
        long = self._random.random() < 0.03
        end = clock() + (self._random.uniform(0.2, 1.0) if long else self._random.uniform(0, 2 * STEP))
        while self._still(lost, holds) and clock() < end:
            await self._call(lost.wait(STEP))

    def _still(self, lost: Any, holds: list[str]) -> bool:
        now = clock()
        if lost.is_set():
            return False
        for each in holds:
            self._journal.write("still", each, now)
        return True

    async def _release(self, lock: Any, holds: list[str]) -> None:
        self._still(lock.lost, holds)
        asked = clock()
        try:
            await self._call(lock.unlock())
        except pyredisson.LockLostError:
            for each in holds:
                self._journal.write("lost", each, asked)
            raise
        for each in holds:
            self._journal.write("released", each, asked)

    async def _semaphore(self, kind: str, names: list[str], asked: float) -> bool:
        semaphore = self._client.get_semaphore(names[0])
        if not await self._call(semaphore.try_acquire(1, WAIT)):
            return False
        await self._stay_with_permit(kind, names[0], asked)
        await self._call(semaphore.release())
        return True

    async def _permit(self, kind: str, names: list[str], asked: float) -> bool:
        """A permit has no `lost`. Its lease may begin at any time since it was asked for."""
        semaphore = self._client.get_permit_expirable_semaphore(names[0])
        if (permit := await self._call(semaphore.try_acquire(WAIT, WAIT + PERMIT_LEASE))) is None:
            return False
        await self._stay_with_permit(kind, names[0], asked)
        await self._call(semaphore.release(permit))
        return True

    async def _stay_with_permit(self, kind: str, name: str, asked: float) -> None:
        hold = self._journal.begin(kind, name, str(PERMITS), asked, clock())
        await self._sleep(self._random.uniform(0, 2 * STEP))
        self._journal.write("still", hold, clock())

    async def _call(self, result: Any) -> Any:
        return await result if inspect.isawaitable(result) else result

    async def _sleep(self, seconds: float) -> None:
        if self._threads:
            self._stop.wait(seconds)
        else:
            await asyncio.sleep(seconds)


def main(url: str, backend: str, path: str, owners: str, options: str) -> None:
    """`owners` is what each owner wants (JSON), `options` the settings of the client. The next line ends the load."""
    logging.getLogger("pyredisson").addHandler(logging.NullHandler())
    journal = Journal(path)
    stop = threading.Event()
    settings = json.loads(options)

    def runs(client: Any) -> list[Any]:
        return [
            Owner(client, journal, wanted, f"{backend}/{number}", stop).run()
            for number, wanted in enumerate(json.loads(owners))
        ]

    async def tasks() -> None:
        async with pyredisson.asyncio.connect(url, **settings) as client:
            await asyncio.gather(*runs(client))

    def in_threads() -> None:
        with pyredisson.connect(url, **settings) as client:
            threads = [threading.Thread(target=drive, args=(run,)) for run in runs(client)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    def wait_for_end() -> None:
        sys.stdin.readline()
        stop.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    if backend == "threads":
        in_threads()
    else:
        asyncio.run(tasks())
    print("done", flush=True)
