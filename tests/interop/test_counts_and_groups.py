"""Semaphores and latches of both sides; on a single server permits with ids, tokens, groups, inspection; load."""

import math
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import pytest

import pyredisson
from pyredisson.testing import Server
from tests.support.backends import Backend, fails
from tests.support.inspecting import listed, state_of

from .conftest import Jvms, on_one_server
from .jvm import JavaClient, JavaError, Jvm, now
from .targets import REENTRANT, WOKEN, Target, python_lock, single_server, timed

KIND = "PermitExpirableSemaphore"


async def test_one_number_of_permits_and_a_count(backend: Backend, java: JavaClient, jvm: Jvm, target: Target) -> None:
    ours, theirs = backend.connect().get_semaphore("seats"), java.get("Semaphore", "seats")
    assert java.ann.call(theirs, "trySetPermits", 5)
    assert not await ours.try_set_permits(7)
    assert await ours.try_acquire(2)
    assert java.ann.call(theirs, "availablePermits") == 3
    assert java.ann.call(theirs, "tryAcquire", 3)
    assert await ours.available_permits() == 0
    assert not await ours.try_acquire()
    assert not java.ann.call(theirs, "tryAcquire", 1)
    # Permits have no owners: what one side has acquired, the other may release.
    await ours.release(3)
    java.ann.call(theirs, "release", 2)
    assert await ours.available_permits() == java.ann.call(theirs, "availablePermits") == 5
    await ours.add_permits(2)
    java.ann.call(theirs, "addPermits", 3)
    assert await ours.available_permits() == 10
    await ours.reduce_permits(4)
    assert java.ann.call(theirs, "drainPermits") == 6
    assert await ours.drain_permits() == 0
    # One message frees several threads: Java wakes as many as it says there are permits.
    waiters = [jvm.thread().begin(theirs, "tryAcquire", 1, 20, "SECONDS") for _ in range(4)]
    await target.until_java_waits(backend, "Semaphore", "seats")
    began = now()
    await ours.release(4)
    for answer in [waiter.answer() for waiter in waiters]:
        assert answer.result is True
        assert began < answer.ended < began + WOKEN
    assert await ours.available_permits() == 0
    latch, theirs = backend.connect().get_count_down_latch("done"), java.get("CountDownLatch", "done")
    assert await latch.try_set_count(4)
    assert not java.ann.call(theirs, "trySetCount", 2)
    for left in (2, 0):
        await latch.count_down()
        java.ann.call(theirs, "countDown")
        assert await latch.get_count() == java.ann.call(theirs, "getCount") == left
    assert java.ann.call(theirs, "trySetCount", 1)
    assert not await latch.try_set_count(1)
    assert await latch.delete()
    assert java.ann.call(theirs, "getCount") == 0


@pytest.mark.parametrize("last", ["java", "python"])
async def test_waiters_of_both_for_a_latch(last: str, backend: Backend, java: JavaClient, target: Target) -> None:
    latch, theirs = backend.connect().get_count_down_latch("done"), java.get("CountDownLatch", "done")
    assert await latch.try_set_count(2)

    async def wait() -> float:
        assert await latch.wait(20)
        return now()

    in_python, in_java = backend.spawn(wait), java.bob.begin(theirs, "await", 20, "SECONDS")
    await target.until_java_waits(backend, "CountDownLatch", "done", 2)
    for side in ("python", "java") if last == "java" else ("java", "python"):
        assert not in_java.done()
        assert not in_python.done()
        began, ended = await timed(side, java.ann, theirs, latch, "count_down")
    answer = in_java.answer()
    assert answer.result is True
    assert began < answer.ended < ended + WOKEN
    assert began < await in_python.result() < ended + WOKEN
    assert not target.redis.exists("done")


@on_one_server
async def test_permits_are_released_by_id_on_the_other_side(backend: Backend, java: JavaClient, target: Target) -> None:
    ours, theirs = backend.connect().get_permit_expirable_semaphore("seats"), java.get(KIND, "seats")
    assert await ours.try_set_permits(6)
    assert not java.ann.call(theirs, "trySetPermits", 2)
    from_java = [java.ann.call(theirs, "acquire") for _ in range(3)]
    from_python = [await ours.acquire() for _ in range(3)]
    assert java.ann.call(theirs, "tryAcquire") is None
    assert await ours.try_acquire() is None
    await ours.release(from_java[0])
    assert await ours.try_release(from_java[1:]) == 2
    java.ann.call(theirs, "release", from_python[0])
    java.ann.call(theirs, "release", from_python[1:])
    assert await ours.available_permits() == java.ann.call(theirs, "availablePermits") == 6
    assert target.redis.zcard("{seats}:timeout") == 0
    for permit in (*from_java, *from_python):
        assert not java.ann.call(theirs, "tryRelease", permit)
        await fails(pyredisson.PermitNotHeldError, ours.release, permit)
    with pytest.raises(JavaError):
        java.ann.call(theirs, "release", from_python[0])
    assert await ours.available_permits() == 6
    four = java.ann.call(theirs, "acquire", 4)
    assert await ours.try_acquire_many(3) == []
    two = await ours.try_acquire_many(2)
    assert len({*four, *two}) == 6
    assert java.ann.call(theirs, "tryRelease", [*two, *four]) == 6
    assert await ours.acquired_permits() == java.ann.call(theirs, "acquiredPermits") == 0
    assert await ours.get_permits() == java.ann.call(theirs, "getPermits") == 6
    await ours.set_permits(2)
    assert java.ann.call(theirs, "getPermits") == 2


@on_one_server
async def test_leases(backend: Backend, java: JavaClient, version: str) -> None:
    """A lease that either side has set ends, and frees the permit for a waiter of the other one."""
    client = backend.connect()
    ours, theirs = client.get_permit_expirable_semaphore("seats"), java.get(KIND, "seats")
    await ours.try_set_permits(2)
    endless, limited = java.ann.call(theirs, "acquire"), await ours.acquire(lease_time=20)
    assert await ours.get_lease_time(endless) == math.inf
    if version != "3.27.2":  # the method is new in 3.41
        assert java.ann.call(theirs, "getLeaseTime", endless) == -1
        assert 15_000 < java.ann.call(theirs, "getLeaseTime", limited) <= 20_000
    assert java.ann.call(theirs, "updateLeaseTime", limited, 60, "SECONDS")
    assert 50 < await ours.get_lease_time(limited) <= 60
    state = (await listed(client))["seats"]
    assert (state.kind, state.certain, state.free, state.permits) == ("permits", True, 0, 2)
    first, last = state.owners
    assert (first.raw, last.raw, last.holder.time_to_live) == (limited, endless, math.inf)
    assert 50 < (first.holder.time_to_live or 0) <= 60
    began = now()
    assert await ours.update_lease_time(endless, 0.3)
    in_java = java.ann.begin(theirs, "tryAcquire", 10_000, 500, "MILLISECONDS").answer()
    assert in_java.result
    assert began + 0.299 < in_java.ended < began + 0.3 + WOKEN
    with pytest.raises(JavaError):
        java.ann.call(theirs, "release", endless)
    await ours.acquire()
    assert began + 0.799 < now() < in_java.ended + 0.5 + WOKEN


@on_one_server
async def test_tokens_rise(backend: Backend, java: JavaClient, target: Target) -> None:
    """Whoever acquires the lock, nested or after a wait. After Java's delete() Python continues with the time."""
    ours, theirs = backend.connect().get_fenced_lock("orders"), java.get("FencedLock", "orders")
    tokens = []
    for _ in range(3):
        tokens.append(java.ann.call(theirs, "lockAndGetToken"))
        assert await ours.get_token() == tokens[-1]
        assert java.ann.call(theirs, "tryLockAndGetToken", 0, "SECONDS") > tokens[-1]  # nested
        tokens.append(java.ann.call(theirs, "getToken"))
        assert await ours.try_lock_and_get_token() is None
        waiter = await backend.begin(ours.lock_and_get_token, target.waiting("FencedLock", "orders"))
        java.ann.call(theirs, "unlock")
        java.ann.call(theirs, "unlock")
        tokens.append(await waiter.result())
        await ours.force_unlock()
        tokens.append(await ours.lock_and_get_token())
        assert java.ann.call(theirs, "getToken") == tokens[-1]
        tokens.append(await ours.lock_and_get_token())  # nested
        assert not java.ann.call(theirs, "tryLock")
        await ours.unlock()
        await ours.unlock()
    assert java.ann.call(theirs, "delete")
    # Java's own next token would be 1.
    tokens.append(await ours.lock_and_get_token())
    await ours.unlock()
    tokens.append(java.ann.call(theirs, "lockAndGetToken"))
    assert tokens == sorted(set(tokens))


@on_one_server
async def test_a_multi_lock(backend: Backend, java: JavaClient, target: Target) -> None:
    client, members = backend.connect(), ("a", "b", "c")
    ours = client.get_multi_lock(*map(client.get_lock, members))
    theirs = java.group("MultiLock", *(java.get("Lock", name) for name in members))
    java.ann.call(theirs, "lock")
    assert target.all_keys() == set(members)
    for name in members:
        assert not await client.get_lock(name).try_lock()
    assert not await client.get_multi_lock(*map(client.get_lock, ("c", "d"))).try_lock()
    assert "d" not in target.all_keys()
    java.ann.call(theirs, "unlock")
    assert await ours.try_lock()
    assert target.all_keys() == set(members)
    for name in members:
        assert not java.ann.call(java.get("Lock", name), "tryLock")
    assert not java.ann.call(theirs, "tryLock")
    await ours.unlock()
    assert not target.all_keys()


@on_one_server
async def test_a_red_lock(servers: list[Server], backend: Backend, jvm: Jvm) -> None:
    """On three servers that know nothing of each other."""
    targets = [single_server(server) for server in servers]
    javas = [jvm.connect(each.yaml()) for each in targets]
    ann = javas[0].ann
    theirs = javas[0].group("RedLock", *(client.get("Lock", "orders") for client in javas))
    clients = [backend.connect(each.url) for each in targets]
    ours = clients[0].get_red_lock(*(client.get_lock("orders") for client in clients))
    ann.call(theirs, "lock")
    assert all(each.all_keys() == {"orders"} for each in targets)
    assert not await ours.try_lock()
    ann.call(theirs, "unlock")
    assert not any(each.all_keys() for each in targets)
    assert await ours.try_lock()
    assert not ann.call(theirs, "tryLock")
    await ours.unlock()
    for client in javas:
        client.shutdown()
    for each in targets:
        each.close()


@on_one_server
async def test_a_latch_and_a_semaphore_that_java_waits_for(backend: Backend, java: JavaClient, target: Target) -> None:
    """Nothing but their subscriptions says what these numbers are."""
    client = backend.connect()
    latch, semaphore = java.get("CountDownLatch", "done"), java.get("Semaphore", "stock")
    java.ann.call(latch, "trySetCount", 1)
    java.ann.call(semaphore, "trySetPermits", 0)
    assert (await state_of(client, "done")).kind == (await state_of(client, "stock")).kind == "unknown"
    waiters = [java.ann.begin(latch, "await"), java.bob.begin(semaphore, "acquire")]
    await target.until_java_waits(backend, "CountDownLatch", "done")
    await target.until_java_waits(backend, "Semaphore", "stock")
    state = await state_of(client, "done")
    assert (state.kind, state.certain, state.count, state.waiting_clients) == ("latch", False, 1, 1)
    state = await state_of(client, "stock")
    assert (state.kind, state.certain, state.free, state.waiting_clients) == ("semaphore", False, 0, 1)
    await client.get_count_down_latch("done").count_down()
    await client.get_semaphore("stock").release()
    for waiter in waiters:
        waiter.result()


# Under load
SECONDS = {"single": 20, "cluster": 10}
SEMAPHORES = ("Semaphore", "PermitExpirableSemaphore")
KINDS = (*REENTRANT, *SEMAPHORES)
WORKERS = 4
"""Threads of Java for each kind, as many with each version of Redisson, and threads in Python."""
PAUSE = 0.002
"""Seconds for which a worker is outside at most, so that the others have their turns with any kind of lock."""


@pytest.mark.slow
def test_no_update_is_lost(versions: Sequence[str], jvms: Jvms, target: Target) -> None:
    """Four threads of Java, and four of two clients in Python, beside each other on one object of each kind.

    The increments of all workers add up, each worker has had its turns, and nothing is left at the end. Each client
    in Python hands its locks and permits on inside itself, too, while Java waits for them.
    """
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
    assert not target.all_keys() & {object_of(kind) for kind in REENTRANT}
    queue = ("redisson_lock_queue:{FairLock}", "redisson_lock_timeout:{FairLock}")
    assert not target.redis.exists(*queue, "{PermitExpirableSemaphore}:timeout")


def counter_of(kind: str) -> str:
    """Readers look at the counter of the writers."""
    return f"counter of {object_of(kind)}"


def object_of(kind: str) -> str:
    return "ReadWriteLock" if kind in {"ReadLock", "WriteLock"} else kind


def exclusive(client: Any, kind: str) -> Callable[[], AbstractContextManager[object]]:
    """Makes a block inside of which nobody else is."""
    name = object_of(kind)
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
