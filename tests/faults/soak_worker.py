"""One process of a soak or a load: owners that acquire and release locks, and record when they held them.

Each line of its journal is one `os.write`, so that a killed process leaves whole lines. All times are those of
CLOCK_BOOTTIME, which is the same for all processes of a machine.

A hold is recorded as valid only if that is certain: the clock is read first, and `lost` after it. A hold that isn't
lost then was valid at the time that was read, however long the process was paused in between.
"""

import asyncio
import contextlib
import inspect
import itertools
import json
import logging
import os
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import redis.exceptions

import pyredisson.asyncio
from tests.support.backends import _finished
from tests.support.kinds import LOCKS

PROGRAM = "import sys\nfrom tests.faults.soak_worker import main\nmain(*sys.argv[1:])"
PERMITS = 2
EXPECTED = (pyredisson.LockNotHeldError, pyredisson.PermitNotHeldError, TimeoutError)  # LockLostError too
STEP = 0.005
"""Seconds between two looks at `lost` within a hold."""

Wanted = tuple[str, list[str]]
"""A kind of lock, and its name. A multi-lock has several names."""


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


class Owner:
    """One thread or task, which takes what it wants in turn until it is told to stop."""

    expected: tuple[type[Exception], ...] = (*EXPECTED, pyredisson.NotReplicatedError, redis.exceptions.RedisError)
    """What it may meet during a fault."""
    wait = 20.0
    """Seconds that it waits at most: longer than the faults of a load last."""
    permit_lease = 2.0
    """Seconds, and those that it waits."""
    usual_stay, long_stay, long_stays = 2 * STEP, 1.0, 0.03
    """Seconds for which it holds a lock, and how many of its holds are long ones."""

    def __init__(self, client: Any, journal: Journal, wanted: list[Wanted], seed: str, stop: threading.Event) -> None:
        self._client, self._journal, self._wanted, self._stop = client, journal, wanted, stop
        self._threads = isinstance(client, pyredisson.Client)
        self._random = Random(f"{seed}/{self._threads}")

    async def run(self) -> None:
        takes = {"semaphore": self._semaphore, "permit": self._permit}
        while not self._stop.is_set():
            kind, names = self._random.choice(self._wanted)
            asked = clock()
            try:
                taken = await takes.get(kind, self._lock)(kind, names, asked)
            except self.expected as error:
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
        if not await self._take(lock):
            return False
        begin = clock()
        lost = lock.lost
        if lost.is_set():
            await self._call(lock.unlock())  # raises LockLostError
            self._journal.write("error", kind, "a lost hold was released")
            return True
        mode = "shared" if kind == "read" else "exclusive"
        holds = [self._journal.begin(kind, name, mode, asked, begin) for name in names]
        if kind == "fenced":
            self._journal.write("token", holds[0], lock.token)
        await self._use(kind, lock, lost, holds)
        await self._release(lock, lost, holds)
        return True

    async def _take(self, lock: Any) -> bool:
        return bool(await self._call(lock.try_lock(self.wait)))

    async def _use(self, _kind: str, _lock: Any, lost: Any, holds: list[str]) -> None:
        """Relies on the hold for a while, mostly a few milliseconds."""
        long = self._random.random() < self.long_stays
        seconds = self._random.uniform(0.2, self.long_stay) if long else self._random.uniform(0, self.usual_stay)
        end = clock() + seconds
        while self._still(lost, holds) and clock() < end:
            await self._call(lost.wait(STEP))

    def _still(self, lost: Any, holds: list[str]) -> bool:
        now = clock()
        if lost.is_set():
            return False
        for each in holds:
            self._journal.write("still", each, now)
        return True

    async def _release(self, lock: Any, lost: Any, holds: list[str]) -> None:
        self._still(lost, holds)
        asked, became = clock(), "released"
        try:
            await self._call(lock.unlock())
        except pyredisson.LockNotHeldError:
            became = "lost"
        for each in holds:
            self._journal.write(became, each, asked)

    async def _semaphore(self, kind: str, names: list[str], asked: float) -> bool:
        semaphore = self._client.get_semaphore(names[0])
        if not await self._call(semaphore.try_acquire(1, self.wait)):
            return False
        await self._stay_with_permit(kind, names[0], asked, float("inf"))
        await self._call(semaphore.release())
        return True

    async def _permit(self, kind: str, names: list[str], asked: float) -> bool:
        """A permit has no `lost`. Its lease may begin at any time since it was asked for."""
        semaphore = self._client.get_permit_expirable_semaphore(names[0])
        lease = self.wait + self.permit_lease
        if (permit := await self._call(semaphore.try_acquire(self.wait, lease))) is None:
            return False
        await self._stay_with_permit(kind, names[0], asked, asked + lease)
        await self._call(semaphore.release(permit))
        return True

    async def _stay_with_permit(self, kind: str, name: str, asked: float, end: float) -> None:
        if (now := clock()) < end:
            hold = self._journal.begin(kind, name, str(PERMITS), asked, now)
            await self._sleep(self._random.uniform(0, 2 * self.usual_stay))
            self._journal.write("still", hold, min(clock(), end))

    async def _call(self, result: Any) -> Any:
        return await result if inspect.isawaitable(result) else result

    async def _sleep(self, seconds: float) -> None:
        if self._threads:
            self._stop.wait(seconds)
        else:
            await asyncio.sleep(seconds)


class UnrulyOwner(Owner):
    """Has leases of any length, is cancelled, and nests holds of some locks."""

    expected = (*EXPECTED, redis.exceptions.ConnectionError, redis.exceptions.TimeoutError)
    wait = 0.3
    permit_lease = 0.3
    usual_stay, long_stay, long_stays = 0.04, 1.5, 0.1

    async def _take(self, lock: Any) -> bool:
        wait, lease = self._random.uniform(0, 1), self._random.choice((None, None, 0.4, 0.8))
        if self._threads or self._random.random() < 0.8:
            return bool(await self._call(lock.try_lock(wait, lease)))
        # Cancelled at whichever await it has come to.
        async with asyncio.timeout(self._random.uniform(0, 0.2)):
            return bool(await lock.try_lock(wait, lease))

    async def _use(self, kind: str, lock: Any, lost: Any, holds: list[str]) -> None:
        reentrant = kind not in ("multi", "non-reentrant")
        nested = reentrant and self._random.random() < 0.2 and await self._nested(lock)
        await super()._use(kind, lock, lost, holds)
        if nested:
            # Whatever happens, the nested hold is released, and the outer one must be released, too.
            with contextlib.suppress(*self.expected):
                await self._call(lock.unlock())

    async def _nested(self, lock: Any) -> bool:
        try:
            return bool(await self._call(lock.try_lock(0, self._random.choice((None, 0.3)))))
        except self.expected:
            return False


def main(url: str, backend: str, path: str, seed: str, owners: str, options: str, unruly: str = "") -> None:
    """A process that ends with the next line that it reads.

    `backend`: threads, asyncio, or both. `owners`: what each owner of a backend wants, and `options`: the settings of
    the client, both in JSON. `unruly`: any text if the owners are.
    """
    logging.getLogger("pyredisson").addHandler(logging.NullHandler())
    journal, stop = Journal(path), threading.Event()
    wanted, settings = json.loads(owners), json.loads(options)
    kind = UnrulyOwner if unruly else Owner

    def runs(client: Any) -> list[Any]:
        return [kind(client, journal, each, f"{seed}/{number}", stop).run() for number, each in enumerate(wanted)]

    async def in_tasks() -> None:
        async with pyredisson.asyncio.connect(url, **settings) as client:
            await asyncio.gather(*runs(client))

    def in_threads() -> None:
        with pyredisson.connect(url, **settings) as client, ThreadPoolExecutor(len(wanted)) as pool:
            list(pool.map(_finished, runs(client)))

    def wait_for_end() -> None:
        print("ready", flush=True)
        sys.stdin.readline()
        stop.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    with ThreadPoolExecutor(1) as beside:
        if backend != "asyncio":
            threads = beside.submit(in_threads)
        if backend != "threads":
            asyncio.run(in_tasks())
        if backend != "asyncio":
            threads.result()
    print("done", flush=True)
