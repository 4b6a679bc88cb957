"""Four threads of Java and four Python processes beside each other, on one object of each kind."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from .conftest import Jvms
from .jvm import Pending
from .soak_worker import counter_of, object_of
from .targets import Target

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
    command = [sys.executable, "-m", "tests.interop.soak_worker", target.url, str(seconds), *KINDS]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def _start_java(versions: Sequence[str], jvms: Jvms, target: Target, seconds: int) -> dict[str, list[Pending]]:
    """The running increments of each kind."""
    running: dict[str, list[Pending]] = {kind: [] for kind in KINDS}
    for version in versions:
        client = jvms.get(version).connect(target.yaml())
        for kind in KINDS:
            lock = client.get(kind, object_of(kind))
            for _ in range(WORKERS // len(versions)):
                thread = client.jvm.thread()
                reads = kind == "ReadLock"
                running[kind].append(thread.increment(lock, counter_of(kind), seconds, reads=reads))
    return running
