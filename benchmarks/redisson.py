"""Redisson in Java beside pyredisson: the same calls on the same server, in one run. Needs a JDK and Maven."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from statistics import median
from typing import Any, Literal

import psutil

import pyredisson
import pyredisson.asyncio
from benchmarks import Row, Target
from benchmarks.fair import QUEUE, drained
from benchmarks.measure import Samples, in_fresh_process, interleave
from pyredisson.testing import Server
from tests.interop.jvm import VERSIONS, JavaClient, JavaThread, Jvm, NoJavaError, class_path

VERSION = VERSIONS[0]
OPTIONS = ("-Xmx512m", "-Xshare:auto")
"""With all optimizations of the JVM."""
WARM_UP = 10.0
"""Seconds until the JVM has compiled what is measured."""
THREADS = 8
IN_FLIGHT = 64
WAITERS = 1_000
LOCKS = 10_000
LEASE = 3.0
"""Seconds of the watchdog's timeout, so that all locks are renewed once in a second."""
HOLD = 0.005
"""Seconds after which the other side certainly waits."""
AT_ONCE = 10
"""Hand-offs of one contender in a round."""
OURS, THEIRS, ASYNC = "pyredisson", "Redisson", "Redisson, async"


def rows(*, quick: bool) -> list[Row]:
    """Nothing where there is no JDK or no Maven."""
    with ExitStack() as stack:
        server = stack.enter_context(Server())
        java = java_clients(server, stack)
        if not java:
            return []
        for each in java:
            _in_java(each, "pairs", THREADS, WARM_UP)
        return [
            *_throughput(server, java[0], 0.2 if quick else 0.5, 3 if quick else 10),
            *_hand_offs(server, java, 3 if quick else 30),
            _fair_queue(server, java, 1 if quick else 3),
            _renewal(server, java[0], 3 if quick else 15),
        ]


def java_clients(server: Server, stack: ExitStack) -> list[JavaClient]:
    """Two clients, each in a process of its own. None where there is no JDK or no Maven."""
    try:
        class_path(VERSION)
    except NoJavaError as error:
        print(f"(without Redisson: {error})", end=" ", flush=True)
        return []
    return [_java(server, stack) for _ in range(2)]


def _java(server: Server, stack: ExitStack) -> JavaClient:
    jvm = Jvm(VERSION, OPTIONS)
    stack.callback(jvm.close)
    return jvm.connect(_yaml(server))


def _yaml(server: Server, **settings: object) -> str:
    # With the default settings, 250 waiters for fair locks use up the subscriptions of a client.
    lines = [
        "singleServerConfig:",
        f'  address: "redis://{server.host}:{server.port}"',
        "  subscriptionConnectionPoolSize: 200",
        *(f"{name}: {value}" for name, value in settings.items()),
    ]
    return "\n".join(lines)


def _row(name: str, what: str, unit: str, samples: Samples, sign: Literal["<=", ">="], against: str = THEIRS) -> Row:
    """A row in which pyredisson is to be at least as good."""
    return Row(
        name=name,
        what=what,
        unit=unit,
        ours=samples.median(OURS),
        baselines={against: samples.median(against), **samples.medians(OURS, against)},
        ratio=samples.ratio(OURS, against),
        target=Target("ratio", sign, 1),
    )


def _throughput(server: Server, java: JavaClient, seconds: float, rounds: int) -> list[Row]:
    """Pairs of lock() and unlock() a second, of free locks."""
    with pyredisson.connect(server.url) as client, asyncio.Runner() as runner:
        tasks = runner.run(_connected(server))

        def threads(count: int) -> dict[str, Callable[[], float]]:
            return {
                OURS: partial(_in_threads, client, count, seconds),
                THEIRS: partial(_in_java, java, "pairs", count, seconds),
            }

        one = interleave(threads(1), rounds)
        eight = interleave(threads(THREADS), rounds)
        flying = interleave(
            {
                OURS: lambda: runner.run(_in_tasks(tasks, seconds)),
                ASYNC: partial(_in_java, java, "async pairs", IN_FLIGHT, seconds),
                THEIRS: partial(_in_java, java, "pairs", IN_FLIGHT, seconds),
            },
            rounds,
        )
        runner.run(tasks.close())
    what = "pairs of lock() and unlock() a second,"
    return [
        _row("beside Java, 1 thread", f"{what} one thread of each", "pairs/s", one, ">="),
        _row("beside Java, 8 threads", f"{what} 8 threads on 8 locks", "pairs/s", eight, ">="),
        _row(
            "beside Java, 64 in flight",
            f"{what} 64 tasks on 64 locks, beside lockAsync() and beside 64 threads",
            "pairs/s",
            flying,
            ">=",
            ASYNC,
        ),
    ]


async def _connected(server: Server) -> pyredisson.asyncio.Client:
    return pyredisson.asyncio.connect(server.url)


def _in_threads(client: pyredisson.Client, count: int, seconds: float) -> float:
    pairs = [0] * count
    end = time.monotonic() + seconds

    def work(index: int) -> None:
        lock = client.get_lock(f"python-{index}")
        while time.monotonic() < end:
            lock.lock()
            lock.unlock()
            pairs[index] += 1

    threads = [threading.Thread(target=work, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(pairs) / seconds


async def _in_tasks(client: pyredisson.asyncio.Client, seconds: float) -> float:
    end = time.monotonic() + seconds

    async def work(index: int) -> int:
        lock, pairs = client.get_lock(f"task-{index}"), 0
        while time.monotonic() < end:
            await lock.lock()
            await lock.unlock()
            pairs += 1
        return pairs

    return sum(await asyncio.gather(*map(work, range(IN_FLIGHT)))) / seconds


def _in_java(java: JavaClient, what: str, count: int, seconds: float) -> float:
    locks = [java.get("Lock", f"java-{index}") for index in range(count)]
    return float(java.jvm.do(what, "main", objects=locks, seconds=seconds).result()) / seconds


def _hand_offs(server: Server, java: list[JavaClient], rounds: int) -> list[Row]:
    """From one process to another."""
    with pyredisson.connect(server.url) as client, _other_process(server) as orders:
        holder, waiter = java[0].jvm.thread(), java[1].jvm.thread()
        samples = {
            kind: interleave(
                {
                    OURS: partial(_python_hands_off, client, kind, orders),
                    THEIRS: partial(_java_hands_off, java, holder, waiter, kind),
                },
                rounds,
            )
            for kind in ("Lock", "FairLock")
        }
    what = "from before unlock() to after lock() in another process that waits for the"
    return [
        _row("beside Java, hand-off", f"{what} lock", "ms", samples["Lock"], "<="),
        _row("beside Java, fair hand-off", f"{what} fair lock", "ms", samples["FairLock"], "<="),
    ]


def _python_hands_off(client: pyredisson.Client, kind: str, orders: Connection) -> float:
    def hand_off() -> float:
        lock = _lock(client, kind)
        lock.lock()
        orders.send(kind)
        time.sleep(HOLD)
        before = time.monotonic_ns()
        lock.unlock()
        return float(orders.recv() - before) / 1e6

    return median(hand_off() for _ in range(AT_ONCE))


def _java_hands_off(java: list[JavaClient], holder: JavaThread, waiter: JavaThread, kind: str) -> float:
    def hand_off() -> float:
        holder.call(java[0].get(kind, f"java {kind}"), "lock")
        waits = waiter.begin(java[1].get(kind, f"java {kind}"), "lock")
        time.sleep(HOLD)
        released = holder.begin(java[0].get(kind, f"java {kind}"), "unlock").answer()
        acquired = waits.answer()
        waiter.call(java[1].get(kind, f"java {kind}"), "unlock")
        return (acquired.ended - released.began) * 1e3

    return median(hand_off() for _ in range(AT_ONCE))


def _lock(client: pyredisson.Client, kind: str) -> Any:
    return client.get_lock("python") if kind == "Lock" else client.get_fair_lock("python fair")


@contextmanager
def _other_process(server: Server) -> Iterator[Connection]:
    """A Python process that acquires the lock of the kind that it receives, and sends back when it had it."""
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=_serve, args=(server.url, there))
    process.start()
    try:
        yield here
    finally:
        here.send(None)
        process.join()


def _serve(url: str, orders: Connection) -> None:
    with pyredisson.connect(url) as client:
        while (kind := orders.recv()) is not None:
            lock = _lock(client, kind)
            lock.lock()
            acquired = time.monotonic_ns()
            lock.unlock()
            orders.send(acquired)


def _fair_queue(server: Server, java: list[JavaClient], rounds: int) -> Row:
    with asyncio.Runner() as runner:
        samples = interleave(
            {
                OURS: lambda: runner.run(drained(server, WAITERS)),
                THEIRS: partial(_java_drains, server, java),
            },
            rounds,
        )
    what = "hand-offs a second: 1,000 waiters of two clients in one queue, tasks beside threads of two processes"
    return _row("beside Java, fair lock, 1,000 in the queue", what, "hand-offs/s", samples, ">=")


def _java_drains(server: Server, java: list[JavaClient]) -> float:
    holder = java[0].jvm.thread()
    holder.call(java[0].get("FairLock", "fair"), "lock")
    waiting = [
        each.jvm.do("drain", "drain", object=each.get("FairLock", "fair"), threads=WAITERS // len(java))
        for each in java
    ]
    with server.redis() as admin:
        calls, before = 0, -1
        # Until all are in the queue, and have asked again after their subscriptions.
        while admin.llen(QUEUE) < WAITERS or calls > before:
            time.sleep(0.4)
            calls, before = admin.info("commandstats")["cmdstat_evalsha"]["calls"], calls
    released = holder.begin(java[0].get("FairLock", "fair"), "unlock").answer()
    last = max(each.result(300) for each in waiting) / 1e9
    return float(WAITERS / (last - released.began))


def _renewal(server: Server, java: JavaClient, seconds: float) -> Row:
    ours = in_fresh_process(_hold, server.url, seconds)
    holder = java.jvm.connect(_yaml(server, lockWatchdogTimeout=int(LEASE * 1000)))
    java.jvm.do("hold", "main", client=holder.id, locks=LOCKS).result(120)
    theirs = _share(psutil.Process(java.jvm.pid), seconds)
    with server.redis() as admin:
        held = sum(1 for _ in admin.scan_iter(match="lock-*", count=1000))
    if held != LOCKS:
        raise AssertionError(f"only {held} locks were held")
    holder.shutdown()
    return Row(
        name="beside Java, renewal of 10,000 locks",
        what="processor time while one client's watchdog renews 10,000 locks once in a second",
        unit="% of a core",
        ours=ours,
        baselines={THEIRS: theirs},
        ratio=ours / theirs,
        target=Target("ratio", "<=", 1),
    )


def _hold(url: str, seconds: float) -> float:
    with pyredisson.connect(url, lock_watchdog_timeout=LEASE) as client:
        locks = [client.get_lock(f"ours-{index}") for index in range(LOCKS)]
        for lock in locks:
            lock.lock()
        share = _share(psutil.Process(), seconds)
        if any(lock.lost.is_set() for lock in locks):
            raise AssertionError("locks were lost while they were to be renewed")
    return share


def _share(process: psutil.Process, seconds: float) -> float:
    """The share of one core that a process uses during the next seconds, in percent."""
    began, before = time.monotonic(), process.cpu_times()
    time.sleep(seconds)
    after, elapsed = process.cpu_times(), time.monotonic() - began
    return float((after.user + after.system - before.user - before.system) / elapsed * 100)
