"""One lock that all want: threads and tasks of one client, and those of two processes. Rates, calls, shares, waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from time import perf_counter

import redis.asyncio

import pyredisson
from benchmarks import Row, Target
from benchmarks.bare import BareProtocol, BareSocket, HandOvers
from benchmarks.contenders import (
    BARE,
    REDIS_PY,
    TASKS,
    THREADS,
    Contention,
    Counted,
    Processes,
    RedisPyTaskLock,
    connected,
    in_tasks,
    in_threads,
    processes,
    together,
)
from benchmarks.handoff import RedisPyLock
from benchmarks.measure import Samples, interleave, one_core
from benchmarks.redisson import java_clients
from pyredisson.testing import Server
from tests.interop.jvm import JavaClient

MANY, SOME = 64, 8
WARM_UP = 8.0
"""Seconds until the JVMs have compiled what is measured."""
REDISSON = "Redisson"
HAND_OVERS = "bare hand-overs"
CALLS = "script calls for one acquisition"


def rows(*, quick: bool) -> list[Row]:
    """One client, pinned; then two processes and the fair lock, unpinned, with Redisson where there is a JDK."""
    rounds = 3 if quick else 8
    with one_core():
        found = [*_tasks(rounds), *_threads(rounds), _patience(2 if quick else 10)]
    with ExitStack() as stack:
        server = stack.enter_context(Server())
        java = java_clients(server, stack)
        _warm_up(java, WARM_UP / 4 if quick else WARM_UP)
        both = stack.enter_context(processes(server, SOME))
        return [
            *found,
            *_two_processes(server, both, java, 2 if quick else 5),
            *_shares(both, java, 2 if quick else 10),
            _fair(server, java, 2 if quick else 8),
        ]


# One client. Everything is pinned to one core: with two, the time of a wakeup varies by a factor of three.


def _tasks(rounds: int, seconds: float = 0.4) -> list[Row]:
    with ExitStack() as stack, asyncio.Runner() as runner:
        server = stack.enter_context(Server())
        counted = Counted(stack.enter_context(server.redis()))
        closing = AsyncExitStack()
        client = runner.run(connected(server.url))
        closing.push_async_callback(client.close)
        plain = redis.asyncio.Redis(host=server.host, port=server.port, max_connections=2 * MANY)
        closing.push_async_callback(plain.aclose)
        lock, theirs = client.get_lock("tasks"), [RedisPyTaskLock(plain, "redis-py:tasks") for _ in range(MANY)]
        transport, line = runner.run(_line(server))
        closing.callback(transport.close)
        hand_overs = HandOvers(server, "bare tasks")
        # Opens a connection for each task.
        runner.run(in_tasks(theirs, 1.0))

        async def bare() -> float:
            await line.call(hand_overs.acquire)
            count, began = 0, perf_counter()
            while perf_counter() < began + seconds:
                for command in hand_overs.both:
                    hand_overs.check(await line.call(command))
                    count += 1
            return count / (perf_counter() - began)

        samples = interleave(
            {
                "1 task": lambda: runner.run(in_tasks([lock], seconds)).rate,
                "64 tasks": counted.measured("ours", lambda: runner.run(in_tasks([lock] * MANY, seconds))),
                HAND_OVERS: lambda: runner.run(bare()),
                REDIS_PY: counted.measured(REDIS_PY, lambda: runner.run(in_tasks(theirs, seconds)), "set"),
            },
            rounds,
        )
        runner.run(closing.aclose())
    return [
        _calls("64 tasks of one client, calls *", "64 tasks of one client", counted, "ours", 1.1, REDIS_PY),
        _beside_one("64 tasks on one lock *", "64 tasks", "1 task", samples, 1.5),
    ]


async def _line(server: Server) -> tuple[asyncio.Transport, BareProtocol]:
    return await asyncio.get_running_loop().create_connection(BareProtocol, server.host, server.port)


def _threads(rounds: int, seconds: float = 0.4) -> list[Row]:
    with ExitStack() as stack:
        server = stack.enter_context(Server())
        counted = Counted(stack.enter_context(server.redis()))
        lock = stack.enter_context(pyredisson.connect(server.url)).get_lock("threads")
        plain = stack.enter_context(redis.Redis(host=server.host, port=server.port))
        theirs = [RedisPyLock(plain) for _ in range(MANY)]
        line = BareSocket(server.port)
        stack.callback(line.close)
        hand_overs = HandOvers(server, "bare threads")

        def bare() -> float:
            line.call(hand_overs.acquire)
            count, began = 0, perf_counter()
            while perf_counter() < began + seconds:
                for command in hand_overs.both:
                    hand_overs.check(line.call(command))
                    count += 1
            return count / (perf_counter() - began)

        samples = interleave(
            {
                "1 thread": lambda: in_threads([lock], seconds).rate,
                "8 threads": lambda: in_threads([lock] * SOME, seconds).rate,
                "64 threads": counted.measured("ours", lambda: in_threads([lock] * MANY, seconds)),
                HAND_OVERS: bare,
                REDIS_PY: counted.measured(REDIS_PY, lambda: in_threads(theirs, seconds), "set"),
            },
            rounds,
        )
    return [
        _calls("64 threads of one client, calls *", "64 threads of one client", counted, "ours", 1.1, REDIS_PY),
        _beside_one("8 threads on one lock *", "8 threads", "1 thread", samples, 0.9),
        _beside_one("64 threads on one lock *", "64 threads", "1 thread", samples, 0.9),
    ]


def _calls(name: str, who: str, counted: Counted, ours: str, bound: float, *others: str) -> Row:
    """A figure that doesn't depend on the machine."""
    return Row(
        name=name,
        what=f"{CALLS} of one lock by {who}; for redis-py SET is counted, too, with which it polls",
        unit="calls",
        ours=counted.calls(ours),
        baselines={other: counted.calls(other) for other in others},
        ratio=counted.calls(ours) / counted.calls(others[0]),
        target=Target("ours", "<=", bound),
    )


def _beside_one(name: str, many: str, one: str, samples: Samples, bound: float) -> Row:
    return Row(
        name=name,
        what=f"pairs of lock() and unlock() a second of one lock by {many} of one client, beside {one}; and beside the "
        "script that hands a lock over, called again and again over one bare connection",
        unit="pairs/s",
        ours=samples.median(many),
        baselines={
            one: samples.median(one),
            **{other: samples.median(other) for other in (HAND_OVERS, REDIS_PY)},
        },
        ratio=samples.ratio(many, one),
        target=Target("ratio", ">=", bound),
    )


def _patience(seconds: float) -> Row:
    with ExitStack() as stack:
        server = stack.enter_context(Server())
        lock = stack.enter_context(pyredisson.connect(server.url)).get_lock("threads")
        plain = stack.enter_context(redis.Redis(host=server.host, port=server.port))
        in_threads([lock] * MANY, 0.5)
        ours = in_threads([lock] * MANY, seconds)
        theirs = in_threads([RedisPyLock(plain) for _ in range(MANY)], seconds)
    return _longest("64 threads of one client, longest wait *", "64 threads of one client", ours, 20, theirs)


def _longest(name: str, who: str, ours: Contention, bound: float, theirs: Contention) -> Row:
    return Row(
        name=name,
        what=f"the longest of all waits of {who} for one lock in 10 s, beside the median of the waits",
        unit="medians",
        ours=ours.longest_wait,
        baselines={REDIS_PY: theirs.longest_wait},
        ratio=ours.longest_wait / theirs.longest_wait,
        target=Target("ours", "<=", bound),
    )


# Two processes.


def _two_processes(server: Server, both: Processes, java: Sequence[JavaClient], rounds: int) -> list[Row]:
    with server.redis() as admin:
        counted = Counted(admin)
        contenders: dict[str, Callable[[], float]] = {
            name: counted.measured(name, partial(_contend, both, name), *(("set",) if name == REDIS_PY else ()))
            for name in (THREADS, TASKS, REDIS_PY, BARE)
        }
        if java:
            contenders[REDISSON] = counted.measured(REDISSON, lambda: together(_in_java(java, "Lock", SOME, 1.0)))
        samples = interleave(contenders, rounds)
    others = [name for name in contenders if name not in (THREADS, TASKS)]
    found = [
        _calls("2 processes of 8 threads, calls", "two processes of 8 threads", counted, THREADS, 2.5, *others),
        _calls("2 processes of 8 tasks, calls", "two processes of 8 tasks", counted, TASKS, 2.5, *others),
        _rate("2 processes of 8 threads", samples, THREADS, Target("ratio", ">=", 2), *others),
        _rate("2 processes of 8 tasks", samples, TASKS, None, *others),
    ]
    if java:
        name = "2 processes of 8 threads, beside Java"
        found.append(_rate(name, samples, THREADS, Target("ratio", ">=", 3), REDISSON))
    return found


def _contend(both: Processes, name: str) -> Contention:
    return together(both.contend(name, 1.0))


def _rate(name: str, samples: Samples, ours: str, target: Target | None, *others: str) -> Row:
    return Row(
        name=name,
        what="pairs of lock() and unlock() a second of one lock, of all contenders together",
        unit="pairs/s",
        ours=samples.median(ours),
        baselines={other: samples.median(other) for other in others},
        ratio=samples.ratio(ours, others[0]),
        target=target,
    )


def _shares(both: Processes, java: Sequence[JavaClient], seconds: float) -> list[Row]:
    theirs = both.contend(REDIS_PY, seconds)
    shares = {REDIS_PY: _smaller_share(theirs)}
    if java:
        shares[REDISSON] = _smaller_share(_in_java(java, "Lock", SOME, seconds))
    found = []
    for name, who in ((THREADS, "8 threads"), (TASKS, "8 tasks")):
        ours = both.contend(name, seconds)
        share = _smaller_share(ours)
        found += [
            Row(
                name=f"2 processes of {who}, smaller share",
                what=f"of all acquisitions of two processes of {who} in 10 s, the share of the process with fewer",
                unit="%",
                ours=share,
                baselines=shares,
                ratio=share / shares[REDIS_PY],
                target=Target("ours", ">=", 35),
            ),
            _longest(
                f"2 processes of {who}, longest wait", f"two processes of {who}", together(ours), 50, together(theirs)
            ),
        ]
    return found


def _smaller_share(parts: Sequence[Contention]) -> float:
    """In percent."""
    return min(part.count for part in parts) / together(parts).count * 100


def _in_java(java: Sequence[JavaClient], kind: str, threads: int, seconds: float) -> list[Contention]:
    """So many threads of each client, on one lock. How long they wait isn't known."""
    running = [
        each.jvm.do("pairs", "main", objects=[each.get(kind, f"java {kind}")] * threads, seconds=seconds)
        for each in java
    ]
    counts = [int(each.result(seconds + 60)) for each in running]
    return [Contention(seconds, count, count, ()) for count in counts]


def _warm_up(java: Sequence[JavaClient], seconds: float) -> None:
    _in_java(java, "Lock", SOME, seconds * 0.75)
    _in_java(java, "FairLock", SOME, seconds * 0.25)


# The fair lock.


def _fair(server: Server, java: Sequence[JavaClient], rounds: int, seconds: float = 0.4) -> Row:
    with asyncio.Runner() as runner:
        clients = [runner.run(connected(server.url)), runner.run(connected(server.url, local_hand_over_time=0))]
        ours, without = ([client.get_fair_lock(f"fair {index}")] * MANY for index, client in enumerate(clients))
        contenders: dict[str, Callable[[], float]] = {
            "ours": lambda: runner.run(in_tasks(ours, seconds, in_order=True)).rate,
            "without hand-overs": lambda: runner.run(in_tasks(without, seconds, in_order=True)).rate,
        }
        if java:
            contenders[REDISSON] = lambda: together(_in_java(java[:1], "FairLock", MANY, seconds)).rate
        samples = interleave(contenders, rounds)
        for client in clients:
            runner.run(client.close())
    return Row(
        name="fair lock, 64 tasks of one client",
        what="pairs of lock() and unlock() a second of one fair lock by 64 tasks of one client, beside the same with "
        "local_hand_over_time=0, and beside 64 threads of Redisson; the order of arrival is checked",
        unit="pairs/s",
        ours=samples.median("ours"),
        baselines=samples.medians("ours"),
        ratio=samples.ratio("ours", "without hand-overs"),
        target=Target("ratio", ">=", 2),
    )
