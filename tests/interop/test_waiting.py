"""Waiters of both sides: in the queue of a fair lock, readers and writers, and what messages wake on a cluster."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from functools import partial

import pytest

from pyredisson._client import servers
from tests.cluster.scenes import half_moved, names_on, other_than
from tests.support.backends import TIME_LIMIT, Backend, in_turn, waiters
from tests.support.children import CHILD_LIMIT, Child
from tests.support.inspecting import state_of

from .conftest import Connect, on_a_cluster
from .jvm import JavaClient, Jvm, Pending, now
from .targets import BEFORE_SLEEP, WOKEN, Target, acquired, python_lock, timed, wakes
from .test_locks import hand_over

NAME = "orders"
WAITS = """
import sys, pyredisson
pyredisson.connect(sys.argv[1]).get_fair_lock(sys.argv[2]).lock()
"""
"""A Python process that waits for the lock of that name."""
DEAD_HEAD = 2.0
"""Seconds after which waiters in Python remove a head of the queue that died or doesn't take the free lock."""


class Line:
    """Waiters of both sides, in the order of their arrival. Each of them releases the lock as soon as it has it."""

    def __init__(self, target: Target, backend: Backend, java: JavaClient) -> None:
        self.name, self.backend, self.python = f"orders in {backend.name}", backend, backend.connect()
        self.java, self.in_java, self._target = java, java.get("FairLock", self.name), target
        self._acquired: list[Callable[[], Awaitable[float]]] = []

    def queue(self) -> list[str]:
        return self._target.queue(self.name)

    async def join_java(self) -> None:
        thread, before = self.java.jvm.thread(), len(self.queue())
        locked, _ = (thread.begin(self.in_java, method) for method in ("lock", "unlock"))

        async def moment() -> float:
            await self.backend.until(locked.done, 15)
            return locked.answer().ended

        await self._arrived(before, moment)

    async def join_python(self) -> None:
        before = len(self.queue())
        work = acquired(self.python.get_fair_lock(self.name))
        await self._arrived(before, self.backend.spawn(work).result)

    async def _arrived(self, before: int, moment: Callable[[], Awaitable[float]]) -> None:
        await self.has(before + 1)
        self._acquired.append(moment)

    async def has(self, waiters: int, seconds: float = TIME_LIMIT) -> None:
        """Returns once there are so many waiters."""
        await self.backend.until(lambda: len(self.queue()) == waiters, seconds)

    async def moments(self) -> list[float]:
        """Waits for all; returns when each of them had the lock, which is in the order of their arrival."""
        moments = [await moment() for moment in self._acquired]
        assert moments == sorted(moments)
        return moments


@pytest.fixture
def lines(both: list[Backend], java: JavaClient, target: Target) -> list[Line]:
    """One for each backend."""
    return [Line(target, backend, java) for backend in both]


@pytest.mark.parametrize("side", ["java", "python"])
async def test_the_order_of_both(side: str, backend: Backend, java: JavaClient, target: Target) -> None:
    """That side holds the lock first."""
    line = Line(target, backend, java)
    ours = backend.connect().get_fair_lock(line.name)
    await timed(side, java.ann, line.in_java, ours, "lock")
    await in_turn((line.join_python, line.join_python, line.join_java, line.join_java, line.join_python))
    state = await state_of(backend.connect(), line.name)
    assert (state.kind, state.certain, state.waiter_count) == ("fair", True, 5)
    assert [waiter.owner.raw for waiter in state.waiters] == line.queue()
    assert [waiter.place for waiter in state.waiters if waiter.alive is None] == [3, 4]  # Java doesn't say it
    assert all(100 < (waiter.place_lasts or 0) < 1000 for waiter in state.waiters[2:4])
    began, ended = await timed(side, java.ann, line.in_java, ours, "unlock")
    first, *_, last = await line.moments()
    assert began < first
    assert last < ended + 5 * WOKEN
    await backend.until(lambda: not line.queue() and not target.holds(line.name))


async def test_waiters_that_give_up(lines: list[Line], java: JavaClient) -> None:
    """They leave from the head and from the middle of the queue."""

    async def scene(line: Line) -> AsyncIterator[None]:
        java.ann.call(line.in_java, "lock")
        # Long enough for the others to join meanwhile.
        gives_up_in_java = java.jvm.thread().begin(line.in_java, "tryLock", 3000, "MILLISECONDS")
        await line.has(1)
        await line.join_python()
        gives_up_in_python = line.backend.spawn(lambda: line.python.get_fair_lock(line.name).try_lock(wait_time=3))
        await line.has(3)
        await line.join_java()
        yield
        assert not await gives_up_in_python.result()
        await line.backend.until(gives_up_in_java.done)
        assert not gives_up_in_java.result()
        released = java.ann.begin(line.in_java, "unlock").answer()
        assert (await line.moments())[-1] < released.ended + 2 * WOKEN

    await play(map(scene, lines))


async def play(scenes: Iterable[AsyncIterator[None]], between: Callable[[], object] = bool) -> None:
    """Plays these scenes at the same time, act by act, to their ends. `between`: is called behind each act of all."""
    left = list(scenes)
    while left:
        left = [scene for scene in left if await anext(scene, True) is None]
        between()


async def test_a_killed_waiter_in_python(
    lines: list[Line], java: JavaClient, target: Target, child: Callable[..., Child]
) -> None:
    async def scene(line: Line) -> AsyncIterator[None]:
        java.ann.call(line.in_java, "lock")
        killed = child(WAITS, target.url, line.name)
        yield
        await line.has(1, CHILD_LIMIT)
        await line.join_java()
        await line.join_python()
        killed.close()
        released = java.ann.begin(line.in_java, "unlock").answer()
        yield
        assert (await line.moments())[-1] < released.ended + DEAD_HEAD + 2 * WOKEN

    await play(map(scene, lines))


async def test_a_killed_waiter_in_java(lines: list[Line], own_jvm: Jvm, target: Target) -> None:
    """Java's own rule decides: the score of its entry, here what is left of the lease and its time to wait."""
    lease, wait = 2, 4
    client = own_jvm.connect(target.yaml())

    async def scene(line: Line) -> AsyncIterator[None]:
        # The watchdog keeps the lease between two thirds of this time and all of it.
        holder = line.backend.connect(lock_watchdog_timeout=lease).get_fair_lock(line.name)
        await holder.lock()
        began = now()
        # In milliseconds: without a lease, Redisson takes any number here for that.
        own_jvm.thread().begin(client.get("FairLock", line.name), "tryLock", wait * 1000, "MILLISECONDS")
        await line.has(1)
        queued, [dead] = now(), line.queue()
        await line.join_python()
        await line.join_java()
        yield
        await holder.unlock()
        yield
        await line.backend.until(lambda: dead not in line.queue(), wait + lease + WOKEN)
        first, second = await line.moments()
        assert began + wait < first < queued + wait + lease + WOKEN
        assert second < first + WOKEN

    await play(map(scene, lines), own_jvm.kill)


# Readers and writers


reader, writer = (partial(python_lock, kind=kind, name=NAME) for kind in ("ReadLock", "WriteLock"))


@pytest.mark.parametrize("last", ["java", "python"])
async def test_readers_of_both(last: str, backend: Backend, java: JavaClient, target: Target) -> None:
    """A writer waits for the last of them, which wakes a writer of the other side."""
    client = backend.connect()
    java.bob.call(java.get("ReadLock", NAME), "lock")
    await reader(client).lock()
    assert len(target.holds(NAME)) == 2
    assert not java.ann.call(java.get("WriteLock", NAME), "tryLock")
    assert not await backend.as_another_owner(writer(client).try_lock)
    if last == "java":
        waiter = backend.spawn(acquired(writer(client), keep=True))
        done, first = waiter.done, "python"
    else:
        in_java = java.ann.begin(java.get("WriteLock", NAME), "lock")
        done, first = in_java.done, "java"
    await backend.until(target.waiting("WriteLock", NAME))
    await timed(first, java.bob, java.get("ReadLock", NAME), reader(client), "unlock")
    # Redisson counts only readers whose lease keys it finds: without them it would remove the whole lock.
    assert len(target.holds(NAME)) == 1
    await backend.sleep(0.1)
    assert not done()
    began, ended = await timed(last, java.bob, java.get("ReadLock", NAME), reader(client), "unlock")
    assert began < (await waiter.result() if last == "java" else in_java.answer().ended) < ended + WOKEN


@pytest.mark.parametrize("side", ["python", "java"])
async def test_a_writer_wakes_readers(side: str, backend: Backend, java: JavaClient, jvm: Jvm, target: Target) -> None:
    client, other = backend.connect(), backend.connect()
    await timed(side, java.ann, java.get("WriteLock", NAME), writer(client), "lock")
    threads = [jvm.thread() for _ in range(3)]
    in_java = [thread.begin(java.get("ReadLock", NAME), "lock") for thread in threads]
    in_python = [backend.spawn(acquired(reader(other), keep=True)) for _ in range(3)]
    # Behind a writer of Java, Python's client listens to Redisson's channel, too.
    await target.until_java_waits(backend, "ReadLock", NAME, 2 if side == "java" else 1, threads=threads)
    await backend.until(lambda: waiters(other, NAME, "read") == 3)
    began, ended = await timed(side, java.ann, java.get("WriteLock", NAME), writer(client), "unlock")
    for waiter in in_java:
        await backend.until(waiter.done)
        assert began < waiter.answer().ended < ended + WOKEN
    for other_owner in in_python:
        assert began < await other_owner.result() < ended + WOKEN
    assert len(target.holds(NAME)) == 6


async def test_downgrades(backend: Backend, java: JavaClient, target: Target) -> None:
    """A downgrade lets readers of the other side in. One in Python wakes them; Redisson's own publishes nothing."""
    client = backend.connect()
    await writer(client).lock()
    await reader(client).lock()
    waiter = java.ann.begin(java.get("ReadLock", NAME), "lock")
    await target.until_java_waits(backend, "ReadLock", NAME, threads=[java.ann])
    await wakes(waiter, writer(client).unlock)
    assert len(target.holds(NAME)) == 2
    await reader(client).unlock()
    java.ann.call(java.get("ReadLock", NAME), "unlock")
    java.ann.call(java.get("WriteLock", NAME), "lock")
    java.ann.call(java.get("ReadLock", NAME), "lock")
    assert not await reader(client).try_lock()
    java.ann.call(java.get("WriteLock", NAME), "unlock")
    assert await reader(client).try_lock()
    assert not await backend.as_another_owner(writer(client).try_lock)


async def test_a_short_lease_of_a_reader_beside_a_long_one(backend: Backend, java: JavaClient, target: Target) -> None:
    """It ends neither the other one nor the lock, on whichever side it is."""
    client, in_java = backend.connect(), java.get("ReadLock", NAME)
    assert await reader(client).try_lock(lease_time=20)
    java.ann.call(in_java, "lock", 300, "MILLISECONDS")
    await backend.sleep(0.4)
    java.bob.call(in_java, "lock")
    # This release removes readers whose leases have ended.
    java.bob.call(in_java, "unlock")
    assert await reader(client).is_held()
    assert 10_000 < target.redis.pttl(NAME) <= 20_000
    assert not java.bob.call(java.get("WriteLock", NAME), "tryLock")
    await reader(client).unlock()
    java.ann.call(in_java, "lock", 20, "SECONDS")
    assert await backend.as_another_owner(lambda: reader(client).try_lock(lease_time=1))
    await backend.sleep(1.1)
    assert await reader(client).try_lock()
    await reader(client).unlock()
    assert java.ann.call(in_java, "isHeldByCurrentThread")
    assert 10_000 < target.redis.pttl(NAME) <= 20_000
    assert not await writer(client).try_lock()
    java.ann.call(in_java, "unlock")
    assert await writer(client).try_lock()


async def test_writers_in_turn(backend: Backend, java: JavaClient, target: Target) -> None:
    """A writer that waits in Python doesn't keep Java out for ever, nor the other way round."""
    client = backend.connect()
    java.ann.call(java.get("WriteLock", NAME), "lock")

    async def write() -> None:
        await writer(client).lock()
        # Until the thread of Java that came second sleeps again: see `until_java_waits`.
        await backend.sleep(BEFORE_SLEEP)
        await backend.until(lambda: waiting[0].done() or java.bob.sleeps())
        await writer(client).unlock()

    waiting: list[Pending] = [java.bob.begin(java.get("WriteLock", NAME), method) for method in ("lock", "unlock")]
    in_python = backend.spawn(write)
    await target.until_java_waits(backend, "WriteLock", NAME, 2, threads=[java.bob])
    java.ann.call(java.get("WriteLock", NAME), "unlock")
    await in_python.result()
    for each in waiting:
        await backend.until(each.done)
        each.result()
    assert not target.holds(NAME)


# Messages on a cluster
CHANNEL = "redisson_lock__channel:{orders}"


@pytest.fixture
def cluster(target: Target, monkeypatch: pytest.MonkeyPatch) -> Target:
    """What both sides talk to. On a single server there is one flavour of messages, so nothing is tested there.

    Python leaves plain messages out from 0.3 s after a change on, if it looks at the cluster every 0.1 s.
    """
    monkeypatch.setattr(servers, "SHORTEST_SETTLING", 0.0)
    return target


def modes(version: str) -> list[dict[str, object]]:
    """The settings by which a client of that version hears one flavour. The old one has none, and chooses by chance."""
    return [{}] if version == "3.27.2" else [{"shardedSubscriptionMode": mode} for mode in ("OFF", "ON")]


@on_a_cluster
async def test_whatever_java_hears_and_wherever_the_slot_goes(
    both: list[Backend], version: str, connect_java: Connect, cluster: Target
) -> None:
    servers, javas = cluster.cluster, [connect_java(mode) for mode in modes(version)]
    slot = servers.slot_of_key("orders")
    clients = [backend.connect(topology_refresh_interval=0.1) for backend in both]

    async def to_and_fro() -> None:
        port = servers.node_of(slot).address[1]
        await both[0].until(lambda: all(java.port_of(slot) == port for java in javas))
        await both[0].sleep(0.5)
        for backend, client in zip(both, clients, strict=True):
            for java in javas:
                # A client of its own, whose subscription ends with it.
                waits = backend.connect(topology_refresh_interval=0.1)
                await hand_over(backend, java, cluster, "Lock", client=client, waits=waits)
                await waits.close()
                await backend.until(lambda: cluster.listeners(CHANNEL) == 0)

    await to_and_fro()
    servers.move_slot(slot, other_than(servers.node_of(slot), servers))
    await to_and_fro()
    servers.fail_over(servers.node_of(slot), takeover=True)
    await to_and_fro()


@on_a_cluster
async def test_java_waits_while_its_slot_moves(backend: Backend, connect_java: Connect, cluster: Target) -> None:
    """The release runs on the node that the slot is being moved to. Java is subscribed on the one that has it."""
    servers, java = cluster.cluster, connect_java()
    ours, theirs = backend.connect().get_lock("orders"), java.get("Lock", "orders")
    for master in servers.masters():
        # Java doesn't repeat a script behind ASK that the node doesn't know.
        for method in ("lock", "unlock"):
            java.ann.call(java.get("Lock", names_on(servers, master, 1)[0]), method)
    await ours.lock()
    waiter = java.ann.begin(theirs, "lock")
    await cluster.until_java_waits(backend, "Lock", "orders")
    with half_moved(servers, "orders", "orders"):
        await wakes(waiter, ours.unlock)
    java.ann.call(theirs, "unlock")


@on_a_cluster
async def test_java_is_subscribed_on_a_replica(
    backend: Backend, version: str, connect_java: Connect, cluster: Target
) -> None:
    """The master can't see a subscriber of plain messages there. With the setting "both" they are always published."""
    ours = backend.connect(sharded_pubsub="both", topology_refresh_interval=0.1).get_lock("orders")
    java = connect_java({"subscriptionMode": '"SLAVE"', **modes(version)[0]})
    theirs = java.get("Lock", "orders")
    await ours.lock()
    waiter = java.ann.begin(theirs, "lock")
    await cluster.until_java_waits(backend, "Lock", "orders")
    with cluster.cluster.node_of_key("orders").redis() as redis:
        assert [int(count) for _, count in redis.pubsub_numsub(CHANNEL)] == [0]
    await backend.sleep(0.5)
    await wakes(waiter, ours.unlock)
    java.ann.call(theirs, "unlock")
