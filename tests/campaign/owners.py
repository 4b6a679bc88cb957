"""One process of a load: owners that acquire and release locks, and record when they held them.

Each line of its journal is one `os.write`, so that a killed process leaves whole lines. All times are those of the
monotonic clock, which is the same for all processes of a machine, also for Java.

A hold is recorded as valid only if that is certain: the clock is read first, and `lost` after it. A hold that isn't
lost then was valid at the time that was read, however long the process was paused in between.
"""

import asyncio
import atexit
import contextlib
import inspect
import itertools
import json
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from random import Random
from time import monotonic
from typing import Any

import redis.exceptions

import pyredisson.asyncio
from pyredisson import LockNotHeldError, NotReplicatedError, PermitNotHeldError
from tests.support.backends import _finished
from tests.support.kinds import LOCKS

PROGRAM = "import sys\nfrom tests.campaign.owners import main\nmain(*sys.argv[1:])"
PERMITS = 2
LATCH = 1000
"""What a latch counts down from: for so long that a call which counts twice shows."""
EXPECTED = (TimeoutError, redis.exceptions.RedisError, LockNotHeldError, NotReplicatedError, PermitNotHeldError)
"""What a call may raise during a fault. The judge knows which of them."""
STEP = 0.005
"""Seconds between two looks at `lost` within a hold."""

Wanted = tuple[str, list[str]]
"""A kind of lock, and its name. A multi-lock has several names."""


class Journal:
    """What all owners of this process write."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._ids = itertools.count()

    def write(self, *words: object) -> None:
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())

    def begin(self, word: str, *words: object) -> str:
        """Writes the begin of a hold or a call; gives its id."""
        identity = f"{os.getpid()}.{next(self._ids)}"
        self.write(word, identity, *words)
        return identity

    def failed(self, kind: str, name: str, asked: float, error: Exception) -> None:
        shown = type(error).__name__
        # The built-in TimeoutError has a namesake.
        prefix = "redis." if isinstance(error, redis.exceptions.RedisError) else ""
        self.write("failed", kind, name, asked, monotonic(), prefix + shown)


class Owner:
    """One thread or task, which takes what it wants in turn until it is told to stop."""

    wait = 20.0
    """Seconds that it waits at most: longer than the faults of a load last."""
    permit_lease = 2.0
    """Seconds, and those that it waits."""
    stays: tuple[tuple[float, float, float], ...] = ((0.97, 0.0, 2 * STEP), (0.03, 0.2, 1.0))
    """How often it holds a lock for how many seconds, at least and at most."""

    def __init__(
        self, clients: list[Any], journal: Journal, wanted: list[Wanted], seed: str, stop: threading.Event
    ) -> None:
        """`clients`: of the servers, and of those that have one more member of a red lock each."""
        self._clients, self._client = clients, clients[0]
        self._journal, self._wanted, self._stop = journal, wanted, stop
        self._threads = isinstance(self._client, pyredisson.Client)
        self._random = Random(f"{seed}/{self._threads}")
        self._id = f"{os.getpid()}/{seed}/{self._threads:d}"

    async def run(self) -> None:
        takes = {"semaphore": self._semaphore, "permit": self._permit, "latch": self._latch}
        takes |= {"election": self._scope, "singleton": self._scope}
        turns: list[Wanted] = []
        while not self._stop.is_set():
            turns = turns or self._random.sample(self._wanted, len(self._wanted))
            kind, names = turns.pop()
            asked = monotonic()
            try:
                taken = await takes.get(kind, self._lock)(kind, names, asked)
            except EXPECTED as error:
                self._journal.failed(kind, names[0], asked, error)
                await self._sleep(0.01)
            except Exception:  # noqa: BLE001 - the judge reports it
                self._journal.write("error", kind, repr(traceback.format_exc()[-500:]))
                await self._sleep(0.1)
            else:
                # Without a pause the owner that has just released a lock would mostly be the first to ask again.
                await self._sleep(self._random.uniform(0, 2 * STEP))
                if not taken:
                    self._journal.write("refused", kind, names[0], asked, monotonic())

    async def _lock(self, kind: str, names: list[str], asked: float) -> bool:
        if kind == "multi":
            lock = self._client.get_multi_lock(*map(self._client.get_lock, names))
        elif kind == "red":
            lock = self._client.get_red_lock(*(client.get_lock(names[0]) for client in self._clients))
        else:
            lock = LOCKS[kind](self._client, names[0])
        if not await self._take(lock):
            return False
        lost = lock.lost
        if holds := self._begin(kind, names, asked, lost):
            if kind == "fenced":
                self._journal.write("token", holds[0], lock.token)
            await self._use(kind, names, lock, lost, holds)
        await self._release(lock, lost, holds)
        return True

    def _begin(self, kind: str, names: list[str], asked: float, lost: Any) -> list[str]:
        """Records holds that have just been granted. None, if they may have ended again."""
        begin, mode = monotonic(), "shared" if kind == "read" else "exclusive"
        if lost.is_set():
            return []
        return [self._journal.begin("hold", self._id, kind, name, mode, asked, begin) for name in names]

    async def _take(self, lock: Any) -> bool:
        return bool(await self._call(lock.try_lock(self.wait)))

    def _stay(self) -> float:
        ((_, least, most),) = self._random.choices(self.stays, [often for often, *_ in self.stays])
        return self._random.uniform(least, most)

    async def _use(self, _kind: str, _names: list[str], _lock: Any, lost: Any, holds: list[str]) -> None:
        """Relies on the hold for a while, mostly a few milliseconds."""
        end = monotonic() + self._stay()
        while self._still(lost, holds) and monotonic() < end and not self._stop.is_set():
            await self._call(lost.wait(STEP))

    def _still(self, lost: Any, holds: list[str]) -> bool:
        now = monotonic()
        if lost.is_set():
            return False
        for each in holds:
            self._journal.write("still", each, now)
        return True

    async def _release(self, lock: Any, lost: Any, holds: list[str]) -> None:
        self._still(lost, holds)
        asked, became = monotonic(), "released"
        try:
            await self._call(lock.unlock())
        except pyredisson.LockNotHeldError:
            became = "lost"
        else:
            if not holds:
                self._journal.write("error", "a lost hold was released")
        for each in holds:
            self._journal.write(became, each, asked)

    async def _scope(self, kind: str, names: list[str], asked: float) -> bool:
        elects = kind == "election"
        scope = self._client.elect(names[0]) if elects else self._client.singleton(names[0], self.wait)
        async with self._entered(scope) as held:
            if holds := self._begin(kind, names, asked, held.lost):
                if elects:
                    self._journal.write("token", holds[0], held.token)
                await self._use(kind, names, None, held.lost, holds)
                self._still(held.lost, holds)
        return True

    @contextlib.asynccontextmanager
    async def _entered(self, scope: Any) -> AsyncIterator[Any]:
        if self._threads:
            with scope as held:
                yield held
        else:
            async with scope as held:
                yield held

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
        if (now := monotonic()) < end:
            hold = self._journal.begin("hold", self._id, kind, name, PERMITS, asked, now)
            await self._sleep(self._random.uniform(0, 10 * STEP))
            self._journal.write("still", hold, min(monotonic(), end))

    async def _latch(self, _kind: str, names: list[str], asked: float) -> bool:
        latch = self._client.get_count_down_latch(names[0])
        calls: dict[str, Any] = {f"set{LATCH}": lambda: latch.try_set_count(LATCH), "down": latch.count_down}
        calls |= {"wait": lambda: latch.wait(0.2), "count": latch.get_count}
        word = self._random.choice([*calls, "down"])
        call = self._journal.begin("latch", names[0], word, asked)
        self._journal.write("result", call, await self._call(calls[word]()), monotonic())
        return True

    async def _call(self, result: Any) -> Any:
        return await result if inspect.isawaitable(result) else result

    async def _sleep(self, seconds: float) -> None:
        if self._threads:
            self._stop.wait(seconds)
        else:
            await asyncio.sleep(seconds)


class UnrulyOwner(Owner):
    """Has leases of any length, is cancelled, and nests holds of some locks. Some holds are longer than their lease."""

    wait = 0.3
    permit_lease = 0.3
    stays = ((0.9, 0.0, 0.04), (0.09, 0.2, 1.5), (0.01, 3.0, 8.0))

    async def _take(self, lock: Any) -> bool:
        wait, lease = self._random.uniform(0, 1), self._random.choice((None, None, 0.4, 0.8))
        if self._threads or self._random.random() < 0.8:
            return bool(await self._call(lock.try_lock(wait, lease)))
        # Cancelled at whichever await it has come to.
        async with asyncio.timeout(self._random.uniform(0, 0.2)):
            return bool(await lock.try_lock(wait, lease))

    async def _use(self, kind: str, names: list[str], lock: Any, lost: Any, holds: list[str]) -> None:
        if lock is None or kind in ("multi", "red", "non-reentrant") or self._random.random() > 0.2:
            await super()._use(kind, names, lock, lost, holds)
            return
        # Whatever happens, the nested hold is released, and the outer one must be released, too.
        asked = monotonic()
        try:
            nested = await self._call(lock.try_lock(0, self._random.choice((None, 0.3))))
            inner_lost = lock.lost
            inner = self._begin(kind, names, asked, inner_lost) if nested else []
            await super()._use(kind, names, lock, lost, holds)
            if nested:
                await self._release(lock, inner_lost, inner)
        except EXPECTED as error:
            self._journal.failed(kind, names[0], asked, error)


def main(url: str, backend: str, path: str, seed: str, owners: str, options: str, how: str = "{}") -> None:
    """A process that ends with the next line that it reads; after a line `fork` with the one behind it.

    `backend`: threads, asyncio, or both. `owners`: what each owner of a backend wants, and `options`: the settings of
    the client, both in JSON. `how`: in JSON, `unruly` if the owners are, `wrong`: a bug of `wrong_locks`, `beside`:
    the URLs of further servers, and `ports`: the ones that it has in place of those that servers announce."""
    logging.getLogger("pyredisson").addHandler(logging.NullHandler())
    journal, stop = Journal(path), threading.Event()
    wanted, settings, ways = json.loads(owners), json.loads(options), json.loads(how)
    kind = UnrulyOwner if ways.get("unruly") else Owner
    if ports := ways.get("ports"):
        settings["address_mapper"] = lambda announced: (announced.host, ports.get(str(announced.port), announced.port))
    if wrong := ways.get("wrong"):
        from .wrong_locks import plant

        plant(wrong)
    urls = [url, *ways.get("beside", [])]

    def runs(clients: list[Any]) -> list[Any]:
        return [kind(clients, journal, each, f"{seed}/{number}", stop).run() for number, each in enumerate(wanted)]

    async def in_tasks() -> None:
        async with contextlib.AsyncExitStack() as stack:
            clients = [pyredisson.asyncio.connect(each, **settings) for each in urls]
            await asyncio.gather(*runs([await stack.enter_async_context(client) for client in clients]))

    def in_threads() -> None:
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(pyredisson.connect(each, **settings)) for each in urls]
            list(stack.enter_context(ThreadPoolExecutor(len(wanted))).map(_finished, runs(clients)))

    def wait_for_end() -> None:
        print("ready", flush=True)
        while sys.stdin.readline() == "fork\n":
            if os.fork() == 0:
                end_as_a_program()
            if status := os.wait()[1]:
                journal.write("error", "a forked child ended with", status)
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


def end_as_a_program() -> None:
    """The end of a forked child: its parent's holds are not its own."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(30)
    os.close(1)
    atexit._run_exitfuncs()
    os._exit(0)
