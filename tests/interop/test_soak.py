"""Four threads of Java and four Python processes beside each other, on one object of each kind.

`python -m tests.interop.test_soak URL SECONDS KIND...` is a Python process: for each kind a thread that increments a
counter inside an object of it. It prints how often each thread did so, as JSON.
"""

import json
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.cluster import RedisCluster

import pyredisson

from .conftest import Jvms
from .jvm import Pending
from .targets import Target, python_lock

pytestmark = pytest.mark.slow

SECONDS = {"single": 20, "cluster": 10}
LOCKS = ("Lock", "FairLock", "FencedLock", "SpinLock", "WriteLock", "ReadLock")
SEMAPHORES = ("Semaphore", "PermitExpirableSemaphore")
KINDS = (*LOCKS, *SEMAPHORES)
WORKERS = 4
"""Threads of Java, as many with each version of Redisson, and as many Python processes."""
ROOT = Path(__file__).parents[2]


def test_no_update_is_lost(versions: Sequence[str], jvms: Jvms, target: Target) -> None:
    """The increments of all workers add up, each worker has had its turns, and nothing is left at the end."""
    for kind in KINDS:
        target.redis.set(counter_of(kind), 0)
    for kind in SEMAPHORES:
        target.redis.set(kind, 1)
    seconds = SECONDS[target.name]
    in_python = [_start_python(target, seconds) for _ in range(WORKERS)]
    in_java = _start_java(versions, jvms, target, seconds)
    done: dict[str, list[int]] = {kind: [each.result(seconds + 30) for each in in_java[kind]] for kind in KINDS}
    for process in in_python:
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        for kind, times in json.loads(output).items():
            done[kind].append(times)

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


def _start_python(target: Target, seconds: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.interop.test_soak", target.url, str(seconds), *KINDS]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def _start_java(versions: Sequence[str], jvms: Jvms, target: Target, seconds: int) -> dict[str, list[Pending]]:
    running: dict[str, list[Pending]] = {kind: [] for kind in KINDS}
    for version in versions:
        client = jvms(version).connect(target.yaml())
        for kind in KINDS:
            lock = client.get(kind, object_of(kind))
            for _ in range(WORKERS // len(versions)):
                thread = client.jvm.thread()
                reads = kind == "ReadLock"
                running[kind].append(thread.increment(lock, counter_of(kind), seconds, reads=reads))
    return running


# A Python process

PAUSE = 0.002
"""Seconds for which a worker is outside at most, so that the others have their turns with any kind of lock."""


def counter_of(kind: str) -> str:
    """Readers look at the counter of the writers."""
    return f"counter of {object_of(kind)}"


def object_of(kind: str) -> str:
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
