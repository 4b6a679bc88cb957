"""lock() and unlock() of free locks on threads: one thread, and eight."""

from __future__ import annotations

import importlib
import importlib.util
import threading
from collections.abc import Callable
from contextlib import ExitStack
from time import perf_counter

import redis

import pyredisson
from benchmarks import Row, Target
from benchmarks.bare import Commands, bare_pair
from benchmarks.measure import Samples, interleave, one_core, timed
from pyredisson.testing import Server

THREADS = 8

Pair = Callable[[], None]
Maker = Callable[[str], Pair]


def rows(*, quick: bool) -> list[Row]:
    """One thread beside a bare loop, and eight threads beside eight bare loops."""
    return [_one_thread(10 if quick else 60), _eight_threads(6 if quick else 35)]


def _one_thread(rounds: int) -> Row:
    with one_core(), ExitStack() as stack:
        server = stack.enter_context(Server())
        contenders = {name: timed(make("one"), 200) for name, make in _makers(server, stack).items()}
        samples = interleave(contenders, rounds)
    return Row(
        name="sync, 1 thread *",
        what="lock() + unlock() of a free lock, beside the same two scripts over a socket with hiredis",
        unit="us/pair",
        ours=samples.median("pyredisson"),
        baselines=samples.medians("pyredisson"),
        ratio=samples.ratio("pyredisson", "bare loop"),
        target=Target("ratio", "<=", 1.15),
    )


def _eight_threads(rounds: int) -> Row:
    with ExitStack() as stack:
        server = stack.enter_context(Server())
        contenders = {
            name: _together([make(f"lock-{i}") for i in range(THREADS)], seconds=0.08)
            for name, make in _makers(server, stack).items()
        }
        samples: Samples = interleave(contenders, rounds)
    return Row(
        name="sync, 8 threads",
        what="pairs a second of 8 threads on 8 locks with both cores, beside 8 threads with a bare loop each",
        unit="pairs/s",
        ours=samples.median("pyredisson"),
        baselines=samples.medians("pyredisson"),
        ratio=samples.ratio("pyredisson", "bare loop"),
        target=Target("ratio", ">=", 0.6),
    )


def _makers(server: Server, stack: ExitStack) -> dict[str, Maker]:
    """For each contender a factory: it takes a name, and returns a function that locks and unlocks that lock."""
    client = stack.enter_context(pyredisson.connect(server.url))
    plain = stack.enter_context(redis.Redis(host=server.host, port=server.port))

    def bare(name: str) -> Pair:
        pair, connection = bare_pair(server, name)
        stack.callback(connection.close)
        return pair

    def ours(name: str) -> Pair:
        lock = client.get_lock(name)

        def pair() -> None:
            lock.lock()
            lock.unlock()

        return pair

    def evalsha(name: str) -> Pair:
        commands = Commands(server, name)
        _, *acquire = commands.acquire
        _, *release = commands.release

        def pair() -> None:
            taken = plain.evalsha(*acquire)
            freed = plain.evalsha(*release)
            if taken is not None or freed != 1:
                raise AssertionError("redis-py didn't lock and unlock")

        return pair

    def their_lock(name: str) -> Pair:
        lock = plain.lock(f"redis-py:{name}", timeout=30)

        def pair() -> None:
            if not lock.acquire():
                raise AssertionError("redis-py's lock wasn't free")
            lock.release()

        return pair

    makers: dict[str, Maker] = {
        "bare loop": bare,
        "pyredisson": ours,
        "redis-py EVALSHA": evalsha,
        "redis-py Lock": their_lock,
    }
    if importlib.util.find_spec("redis_lock") is not None:
        redis_lock = importlib.import_module("redis_lock")

        def python_redis_lock(name: str) -> Pair:
            lock = redis_lock.Lock(plain, name, expire=30)

            def pair() -> None:
                if not lock.acquire():
                    raise AssertionError("python-redis-lock's lock wasn't free")
                lock.release()

            return pair

        makers["python-redis-lock"] = python_redis_lock
    return makers


def _together(pairs: list[Pair], seconds: float) -> Callable[[], float]:
    """A contender that returns the pairs per second of all threads together; each thread runs one function."""

    def run() -> float:
        counts = [0] * len(pairs)
        start = threading.Barrier(len(pairs) + 1)

        def work(index: int) -> None:
            pair = pairs[index]
            count = 0
            start.wait()
            ends = perf_counter() + seconds
            while perf_counter() < ends:
                pair()
                count += 1
            counts[index] = count

        threads = [threading.Thread(target=work, args=(index,)) for index in range(len(pairs))]
        for thread in threads:
            thread.start()
        start.wait()
        began = perf_counter()
        for thread in threads:
            thread.join()
        return sum(counts) / (perf_counter() - began)

    return run
