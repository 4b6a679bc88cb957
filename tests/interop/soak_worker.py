"""A Python process of the soak: for each kind a thread that increments a counter inside an object of it.

Run as `python -m tests.interop.soak_worker URL SECONDS KIND...`. Prints how often each thread did so, as JSON.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from redis import Redis
from redis.cluster import RedisCluster

import pyredisson

from .kinds import python_lock

PAUSE = 0.002
"""Seconds for which a worker is outside at most, so that the others have their turns with any kind of lock."""


def counter_of(kind: str) -> str:
    """Readers look at the counter of the writers."""
    return f"counter of {object_of(kind)}"


def object_of(kind: str) -> str:
    """The name of the object of that kind."""
    return "ReadWriteLock" if kind in {"ReadLock", "WriteLock"} else kind


def main() -> None:
    url, seconds, kinds = sys.argv[1], float(sys.argv[2]), sys.argv[3:]
    counts: dict[str, int] = {}

    def work(client: Any, kind: str) -> None:
        counts[kind] = _increment(url, kind, _exclusive(client, kind), seconds)

    with pyredisson.connect(url) as client:
        threads = [threading.Thread(target=work, args=(client, kind)) for kind in kinds]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    print(json.dumps(counts))


def _exclusive(client: Any, kind: str) -> Callable[[], AbstractContextManager[object]]:
    """Makes a block inside of which nobody else is."""
    name = object_of(kind)
    if kind == "Semaphore":
        return lambda: client.get_semaphore(name)
    if kind == "PermitExpirableSemaphore":
        return lambda: client.get_permit_expirable_semaphore(name).permit()
    return lambda: python_lock(client, kind, name)


def _plain(url: str) -> Any:
    """A plain client of the same server or cluster."""
    if url.startswith("redis+cluster:"):
        # redis-py finds the other nodes by itself.
        return RedisCluster.from_url(url.replace("redis+cluster:", "redis:").partition(",")[0], decode_responses=True)
    return Redis.from_url(url, decode_responses=True)


def _increment(url: str, kind: str, inside: Callable[[], AbstractContextManager[object]], seconds: float) -> int:
    """Adds one to the counter again and again, in two commands that only the object keeps together."""
    times, counter = 0, counter_of(kind)
    end = time.monotonic() + seconds
    with _plain(url) as plain:
        while time.monotonic() < end:
            with inside():
                before = plain.get(counter)
                if kind == "ReadLock":
                    assert plain.get(counter) == before, "a writer got in beside a reader"
                else:
                    plain.set(counter, int(before) + 1)
                times += 1
            time.sleep(random.random() * PAUSE)
    return times


if __name__ == "__main__":
    main()
