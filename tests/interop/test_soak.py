"""Four threads of Java, and four of two clients in Python, beside each other on one object of each kind.

So each client in Python hands its locks and permits on inside itself, too, while Java waits for them.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import pytest

import pyredisson

from .conftest import Jvms
from .targets import Target, python_lock

pytestmark = pytest.mark.slow

SECONDS = {"single": 20, "cluster": 10}
LOCKS = ("Lock", "FairLock", "FencedLock", "SpinLock", "WriteLock", "ReadLock")
SEMAPHORES = ("Semaphore", "PermitExpirableSemaphore")
KINDS = (*LOCKS, *SEMAPHORES)
WORKERS = 4
"""Threads of Java for each kind, as many with each version of Redisson, and threads in Python."""
PAUSE = 0.002
"""Seconds for which a worker is outside at most, so that the others have their turns with any kind of lock."""


def test_no_update_is_lost(versions: Sequence[str], jvms: Jvms, target: Target) -> None:
    """The increments of all workers add up, each worker has had its turns, and nothing is left at the end."""
    for kind in KINDS:
        target.redis.set(counter_of(kind), 0)
    for kind in SEMAPHORES:
        target.redis.set(kind, 1)
    seconds = SECONDS[target.name]
    java = [jvms(version).connect(target.yaml()) for version in versions] * (WORKERS // len(versions))
    with ExitStack() as stack:
        clients = [stack.enter_context(pyredisson.connect(target.url)) for _ in range(2)] * (WORKERS // 2)
        threads = stack.enter_context(ThreadPoolExecutor(WORKERS * len(KINDS)))
        running: dict[str, list[Any]] = {kind: [] for kind in KINDS}
        for kind in KINDS:
            for theirs, ours in zip(java, clients, strict=True):
                details = {"counter": counter_of(kind), "seconds": seconds, "reads": kind == "ReadLock"}
                lock = theirs.get(kind, object_of(kind))
                running[kind] += [
                    theirs.jvm.do("increment", theirs.jvm.thread().name, object=lock, **details),
                    threads.submit(increment, target.redis, kind, exclusive(ours, kind), seconds),
                ]
        done: dict[str, list[int]] = {kind: [each.result(seconds + 30) for each in running[kind]] for kind in KINDS}

    sums = Counter({counter_of(kind): sum(done[kind]) for kind in KINDS if kind != "ReadLock"})
    assert {counter: int(target.redis.get(counter)) for counter in sums} == dict(sums)
    for kind in KINDS:
        assert len(done[kind]) == 2 * WORKERS
        # With equal chances each worker has an eighth. A writer has its turn only if no reader holds the lock, which is
        # rare beside eight readers on a busy machine.
        least = 0 if kind == "WriteLock" else sum(done[kind]) / 200
        assert min(done[kind]) > least, f"{kind}: a worker starved: {done[kind]}"
    assert [int(target.redis.get(kind)) for kind in SEMAPHORES] == [1, 1]
    assert not target.all_keys() & {object_of(kind) for kind in LOCKS}
    for name in (
        "redisson_lock_queue:{FairLock}",
        "redisson_lock_timeout:{FairLock}",
        "{PermitExpirableSemaphore}:timeout",
    ):
        assert not target.redis.exists(name)


def counter_of(kind: str) -> str:
    """Readers look at the counter of the writers."""
    return f"counter of {object_of(kind)}"


def object_of(kind: str) -> str:
    return "ReadWriteLock" if kind in {"ReadLock", "WriteLock"} else kind


def exclusive(client: Any, kind: str) -> Callable[[], AbstractContextManager[object]]:
    """Makes a block inside of which nobody else is."""
    name = object_of(kind)
    if kind == "Semaphore":
        return lambda: client.get_semaphore(name)
    if kind == "PermitExpirableSemaphore":
        return lambda: client.get_permit_expirable_semaphore(name).permit()
    return lambda: python_lock(client, kind, name)


def increment(plain: Any, kind: str, inside: Callable[[], AbstractContextManager[object]], seconds: float) -> int:
    """Adds one to the counter again and again, in two commands that only the object keeps together."""
    times, counter = 0, counter_of(kind)
    end = time.monotonic() + seconds
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
