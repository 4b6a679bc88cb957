"""A contended lock: the time from unlock() in one process until lock() has returned in another."""

from __future__ import annotations

import multiprocessing
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing.connection import Connection
from statistics import median
from typing import Protocol

import redis

import pyredisson
from benchmarks import Row, Target
from benchmarks.bare import BareLock, Commands, FairCommands
from benchmarks.measure import Samples, interleave, one_core
from pyredisson.testing import Server

HOLD = 0.005
"""Seconds after which the other side certainly waits."""
POLL = 0.1
"""Seconds between two polls of redis-py's lock."""
BARE, OURS, THEIRS, FAIR = "bare sockets", "pyredisson", "redis-py Lock", "fair "
AT_ONCE = 10
"""Hand-offs of one contender in a round."""


def rows(*, quick: bool) -> list[Row]:
    """Unpinned, which the targets are about, and pinned to one core."""
    rounds = 8 if quick else 50
    spread = _measure(rounds, polling=True)
    with one_core():
        pinned = _measure(rounds, polling=False)
    return [
        _row("hand-off", spread, "", Target("ratio", "<=", 1.3), THEIRS),
        _row("hand-off *", pinned, ""),
        _row("fair hand-off", spread, FAIR, Target("ratio", "<=", 1.3)),
        _row("fair hand-off *", pinned, FAIR),
    ]


def _row(name: str, samples: Samples, kind: str, target: Target | None = None, *others: str) -> Row:
    return Row(
        name=name,
        what=f"from before unlock() to after lock() in another process that waits for the {kind}lock, "
        "beside two bare sockets" + ("" if target else ", all on one core"),
        unit="ms",
        ours=samples.median(kind + OURS),
        baselines={other.removeprefix(kind): samples.median(other) for other in (kind + BARE, *others)},
        ratio=samples.ratio(kind + OURS, kind + BARE),
        target=target,
    )


AllCommands = tuple[Commands, FairCommands]


class Side(Protocol):
    """One process's end of a contended lock."""

    def lock(self) -> object: ...
    def unlock(self) -> object: ...


class RedisPyLock:
    """redis-py's lock, which polls."""

    def __init__(self, client: redis.Redis) -> None:
        self._lock = client.lock("redis-py:lock", timeout=30, sleep=POLL)

    def lock(self) -> None:
        self._lock.acquire()

    def unlock(self) -> None:
        self._lock.release()


def _measure(rounds: int, *, polling: bool) -> Samples:
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    with Server() as server:
        process = spawn.Process(target=_other_process, args=(server.url, server.port, _commands(server), there))
        process.start()
        try:
            with _sides(server.url, server.port, _commands(server)) as sides:
                contenders: dict[str, Callable[[], float]] = {
                    name: partial(_hand_offs, sides, name, here) for name in sides if name != THEIRS
                }
                if polling:
                    contenders[THEIRS] = partial(_hand_off, sides, THEIRS, here, POLL)
                return interleave(contenders, rounds)
        finally:
            here.send(None)
            process.join()


def _commands(server: Server) -> AllCommands:
    """The commands that the bare sockets of one process send."""
    return Commands(server, "bare"), FairCommands(server, "bare fair")


@contextmanager
def _sides(url: str, port: int, commands: AllCommands) -> Iterator[dict[str, Side]]:
    with ExitStack() as stack:
        client = stack.enter_context(pyredisson.connect(url))
        plain = stack.enter_context(redis.Redis(host=Server.host, port=port))
        bare, fair = (BareLock(port, each) for each in commands)
        stack.callback(bare.close)
        stack.callback(fair.close)
        yield {
            BARE: bare,
            OURS: client.get_lock("ours"),
            FAIR + BARE: fair,
            FAIR + OURS: client.get_fair_lock("ours fair"),
            THEIRS: RedisPyLock(plain),
        }


def _hand_offs(sides: dict[str, Side], name: str, orders: Connection) -> float:
    return median(_hand_off(sides, name, orders) for _ in range(AT_ONCE))


def _hand_off(sides: dict[str, Side], name: str, orders: Connection, poll: float = 0) -> float:
    """Milliseconds of one hand-off. For a lock that polls, the release comes at a random moment between two polls."""
    side = sides[name]
    side.lock()
    orders.send(name)
    time.sleep(HOLD + random.random() * poll)
    before = time.monotonic_ns()
    side.unlock()
    after: int = orders.recv()
    return (after - before) / 1e6


def _other_process(url: str, port: int, commands: AllCommands, orders: Connection) -> None:
    """Acquires the lock that the parent names, and sends back when it had it."""
    with _sides(url, port, commands) as sides:
        while (name := orders.recv()) is not None:
            side = sides[name]
            side.lock()
            after = time.monotonic_ns()
            side.unlock()
            orders.send(after)
