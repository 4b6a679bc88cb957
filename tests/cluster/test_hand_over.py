"""A slot moves while a lock is handed on, or between a command whose reply is lost and its repeat.

Each call has its usual result, exactly once; a fair lock keeps its order, and each owner has the lock alone.
"""

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from redis.exceptions import TryAgainError

from pyredisson.logic.groups import multi_lock
from pyredisson.logic.locks import fair_queue
from pyredisson.testing import ClusterNode, Hold, Proxy
from tests.api.fair_queue import KEYS, QUEUE
from tests.support.backends import Backend, OtherOwner
from tests.support.faults import load_script
from tests.support.kinds import KINDS
from tests.support.programs import ATOMIC_PROGRAMS, PROGRAMS
from tests.support.waiting import fair_waiters, permit_waiters, waiters

from .scenes import MovingCluster, half_moved, other_than

NAME = "orders"
TIMEOUT = 1.0
"""Seconds that a client waits for a lost reply. The slot moves within them."""
PATIENT = 60.0
"""The same for a client whose reply is held: it must not send its call again before the slot moves."""
LOCK, WRITE, READ = b":1\r\n$38\r\n", b":1:write\r\n$44\r\n", b":1:write\r\n$40\r\n"
"""The end of the holder's name, and what follows it in hand-overs only: the next owner's name, or the readers."""
PERMIT = b"$1\r\n1\r\n$1\r\n1\r\n$20\r\nredisson_sc:{%s}" % NAME.encode()
"""One permit to release, one to acquire, and the channel: only hand-overs have all. Numbers of calls are never 1."""
FAIR = b":1\r\n$6\r\n300000\r\n$38\r\n"
"""The end of the name of owner 1, the time of a place, the beginning of another name: only a hand-over has them."""
HEARTBEAT = b"\r\n$6\r\n300000\r\n$38\r\n"
"""The time of a place, and a waiter: in a heartbeat and in a hand-over."""
ACQUIRE = b"\r\n$6\r\n300000\r\n$1\r\n1\r\n"
"""The time of a place, and that the owner will wait."""
SCRIPTS = ("fair_hand_over", "lock_hand_over", "write_hand_over", "write_let_readers_in", "semaphore_hand_over")
USUAL = pytest.param((lambda: None, False), id="in-steps")
IN_STEPS = [pytest.param((each.values[0], False), id=each.id) for each in PROGRAMS]
ATOMIC = [pytest.param((each.values[0], True), id=f"{each.id}-atomic") for each in ATOMIC_PROGRAMS]
moving = pytest.mark.parametrize("proxied", [USUAL, *ATOMIC], indirect=True)
in_steps = pytest.mark.parametrize("proxied", IN_STEPS, indirect=True)
late = pytest.mark.parametrize("late", [False, True], ids=["", "reply-lost"])


@pytest.fixture(scope="module", params=[*IN_STEPS, *ATOMIC])
def proxied(request: pytest.FixtureRequest) -> Iterator[MovingCluster]:
    """A cluster with a proxy before each node, which moves slots in steps or atomically."""
    find, atomic = request.param
    with MovingCluster(masters=2, replicas=0, executable=find(), proxied=True) as running:
        running.atomic = atomic
        for node in running.nodes:
            for name in SCRIPTS:
                load_script(node, name)
        yield running


def connect(backend: Backend, interval: float = 600, timeout: float = TIMEOUT, **fields: Any) -> Any:
    return backend.connect(timeout=timeout, topology_refresh_interval=interval, **fields)


@contextmanager
def slot_moves_after_the_loss(cluster: MovingCluster, command: bytes = NAME.encode()) -> Iterator[None]:
    """Loses the reply to the next command that contains this, and moves the slot before the command can be repeated."""
    slot = cluster.slot_of_key(NAME)
    source = cluster.node_of(slot)
    target = other_than(source, cluster)
    fault = cluster.proxy_of(source).drop_reply(command)

    def move() -> None:
        if fault.happened.wait(5):
            cluster.move(slot, target)

    mover = threading.Thread(target=move)
    mover.start()
    yield
    mover.join()
    assert fault.happened.is_set()
    assert cluster.node_of(slot) is target


def field_counts(cluster: MovingCluster, name: str) -> list[int]:
    """How many levels each owner has, as the server counts them."""
    return [int(count) for count in cluster.node_of_key(name).ask("HVALS", name)]


@moving
# The node to which a repeat goes is found by a redirect, or by a refresh before it.
@pytest.mark.parametrize("interval", [600, 0.1], ids=["redirect", "refresh"])
async def test_each_call_changes_its_number_once(proxied: MovingCluster, backend: Backend, interval: float) -> None:
    client, other = connect(backend, interval), connect(backend)
    lock, semaphore = client.get_lock(f"lock{{{NAME}}}"), client.get_semaphore(f"permits{{{NAME}}}")
    latch, fenced = client.get_count_down_latch(f"{{{NAME}}}"), client.get_fenced_lock(f"fenced{{{NAME}}}")
    await semaphore.try_set_permits(5)
    await latch.try_set_count(3)
    earlier = await fenced.lock_and_get_token()
    await fenced.unlock()
    changes: list[tuple[Callable[[], Awaitable[object]], list[int], int, int]] = [
        (lock.lock, [1], 5, 3),
        (lock.lock, [2], 5, 3),
        (lambda: semaphore.acquire(2), [2], 3, 3),
        (lambda: semaphore.release(2), [2], 5, 3),
        (lambda: semaphore.add_permits(4), [2], 9, 3),
        (latch.count_down, [2], 9, 2),
        (fenced.lock, [2], 9, 2),
        (lock.unlock, [1], 9, 2),
        (lock.unlock, [], 9, 2),
    ]
    for change, levels, permits, count in changes:
        with slot_moves_after_the_loss(proxied):
            await change()
        assert field_counts(proxied, str(lock.name)) == levels
        assert (await semaphore.available_permits(), await latch.get_count()) == (permits, count)
        assert await other.get_lock(lock.name).is_locked() is bool(levels)
    assert field_counts(proxied, str(fenced.name)) == [1]
    assert fenced.token > earlier


@moving
async def test_an_acquire_whose_keys_are_in_two_places_afterwards(proxied: MovingCluster, backend: Backend) -> None:
    """It was not acquired in time, and what it has acquired is released."""
    lock = connect(backend, timeout=PATIENT, retry_attempts=0).get_fenced_lock(NAME)
    await lock.lock()
    await lock.unlock()
    source = proxied.node_of_key(NAME)
    # Not of a release that the background of an earlier test's client sends.
    hold = proxied.proxy_of(source).hold_reply(b"redisson_lock_token:{%s}" % NAME.encode())
    call = backend.spawn(lock.try_lock)
    await backend.until(hold.held.is_set)
    with half_moved(proxied, NAME):
        proxied.proxy_of(source).cut()
        assert not await call.result()
        assert source.ask("EXISTS", NAME)
    assert await connect(backend).get_lock(NAME).try_lock(wait_time=10)


@moving
async def test_a_group_whose_keys_are_in_two_places_before_it_extends_its_leases(
    proxied: MovingCluster, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multi_lock, "EXTEND_AFTER", 0.0)
    client = connect(backend, timeout=PATIENT, retry_attempts=0)
    last = f"z{{{NAME}}}"
    # Its lease is a key of its own.
    group = client.get_multi_lock(client.get_read_write_lock(NAME).read_lock(), client.get_lock(last))
    await group.lock()
    await group.unlock()
    hold = proxied.proxy_of(proxied.node_of_key(NAME)).hold_reply(last.encode())
    call = backend.spawn(lambda: group.try_lock(lease_time=60))
    await backend.until(hold.held.is_set)
    with half_moved(proxied, NAME, NAME):
        hold.deliver()
        assert not await call.result()
    assert await connect(backend).get_multi_lock(client.get_lock(NAME), client.get_lock(last)).try_lock(wait_time=10)


@moving
@pytest.mark.parametrize(("kind", "command"), [("lock", LOCK), ("write", WRITE), ("read", READ)])
async def test_a_hand_over(proxied: MovingCluster, backend: Backend, kind: str, command: bytes) -> None:
    client = connect(backend, local_hand_over_time=60)
    holder, waiter = KINDS["lock" if kind == "lock" else "write"](client, NAME, 1), KINDS[kind](client, NAME, 2)
    await holder.lock()
    other = backend.spawn(waiter.lock)
    await backend.until(lambda: waiters(client, NAME, None if kind == "lock" else kind) == 1)
    with slot_moves_after_the_loss(proxied, command):
        await holder.unlock()
    await other.result()
    [(name, levels)] = [field for field in proxied.node_of_key(NAME).ask("HGETALL", NAME).items() if field[0] != "mode"]
    assert name.endswith(":2:write" if kind == "write" else ":2")
    assert (levels, await waiter.get_hold_count()) == ("1", 1)
    await waiter.unlock()
    assert not await waiter.is_locked()


@moving
async def test_a_permit_is_handed_on_once(proxied: MovingCluster, backend: Backend) -> None:
    client = connect(backend, local_hand_over_time=60)
    semaphore = client.get_semaphore(NAME)
    await semaphore.try_set_permits(1)
    await semaphore.acquire()
    other = backend.spawn(semaphore.acquire)
    await backend.until(lambda: permit_waiters(client, NAME) == 1)
    with slot_moves_after_the_loss(proxied, PERMIT):
        await semaphore.release()
    await other.result()
    assert await semaphore.available_permits() == 0
    await semaphore.release()
    assert await semaphore.available_permits() == 1


class Line:
    """A fair lock that owner 1 holds. The owners 2, 3 and 4 wait for it, owner 3 in another client."""

    def __init__(self, cluster: MovingCluster, backend: Backend, **fields: Any) -> None:
        self.cluster, self.backend, self.slot = cluster, backend, cluster.slot_of_key(NAME)
        self.source = cluster.node_of(self.slot)
        self.target = other_than(self.source, cluster)
        for node in (self.source, self.target):
            cluster.proxy_of(node).forget()
        one, other = (backend.connect(timeout=5, topology_refresh_interval=600, **fields) for _ in range(2))
        self.clients = (one, one, other, one)
        self.locks: list[Any] = [
            client.get_fair_lock(NAME, owner=owner) for owner, client in enumerate(self.clients, 1)
        ]
        self.calls: list[OtherOwner[None]] = []
        self.parted = False

    async def form(self) -> None:
        """All of them wait, and the server has all keys that a queue may have."""
        await self.locks[0].lock()
        for number, (client, lock) in enumerate(zip(self.clients[1:], self.locks[1:], strict=True), start=1):
            self.calls.append(self.backend.spawn(lock.lock))
            await self.backend.until(lambda: self.source.ask("LLEN", QUEUE) == number)  # noqa: B023
            await self.backend.until(lambda: fair_waiters(client, NAME) > 0)  # noqa: B023
        await self.backend.until(lambda: self.source.ask("CLUSTER", "COUNTKEYSINSLOT", self.slot) == len(KEYS))

    async def hand_over(self, change: Callable[[], object], *, late: bool) -> OtherOwner[None]:
        """Owner 1 releases, and the cluster changes before its command arrives, or (`late`) before it gets the reply.

        The reply is lost then.
        """
        proxy = self.proxy
        hold: Hold = (proxy.hold_reply if late else proxy.hold_request)(FAIR)
        release = self.backend.spawn(self.locks[0].unlock)
        await self.backend.until(hold.held.is_set)
        if late:
            # It has run.
            assert await self.owner() == 2
        change()
        proxy.cut() if late else hold.deliver()
        return release

    async def follow(self) -> None:
        """Each of the others acquires the lock in its turn, alone, and releases it."""
        for owner, (call, lock) in enumerate(zip(self.calls, self.locks[1:], strict=True), start=2):
            await call.result()
            assert (await self.owner(), await lock.get_hold_count()) == (owner, 1)
            assert not any(later.done() for later in self.calls[owner - 1 :])
            await lock.unlock()
        with self.cluster.redis() as redis:
            await self.backend.until(lambda: not redis.exists(NAME))

    async def owner(self) -> int:
        """The only owner that the server has, on whichever node."""
        with self.cluster.redis() as redis:
            [name] = redis.hkeys(NAME)
        return int(name.rpartition(b":")[2])

    @property
    def proxy(self) -> Proxy:
        return self.cluster.proxy_of(self.source)

    def part_the_keys(self, *keys: str) -> None:
        """A part of the keys is on each node, or these are at the target."""
        self.cluster.begin_move(self.slot, self.target)
        self.cluster.move_keys(self.slot, *(keys or (NAME,)))
        self.parted = True
        self.proxy.forget()

    def join_the_keys(self) -> None:
        self.cluster.move_keys(self.slot)
        self.cluster.finish_move(self.slot)
        self.parted = False

    def copies(self, node: ClusterNode) -> int:
        """How many copies of the hand-over have arrived there."""
        return self.cluster.proxy_of(node).seen(FAIR)


@pytest.fixture
async def line(request: pytest.FixtureRequest, proxied: MovingCluster, backend: Backend) -> AsyncIterator[Line]:
    """A line that waits. The parameter: settings of the clients."""
    made = Line(proxied, backend, **getattr(request, "param", {}))
    await made.form()
    yield made
    if made.parted:
        # The test has failed. The others share the cluster.
        made.join_the_keys()


@late
async def test_a_fair_lock_whose_slot_moves(line: Line, *, late: bool) -> None:
    release = await line.hand_over(lambda: line.cluster.move(line.slot, line.target), late=late)
    await release.result()
    assert line.copies(line.target) or line.cluster.atomic
    await line.follow()


@in_steps
@late
async def test_a_fair_lock_whose_keys_have_moved(line: Line, *, late: bool) -> None:
    release = await line.hand_over(partial(line.part_the_keys, *KEYS), late=late)
    await release.result()
    await line.calls[0].result()
    assert line.copies(line.target)
    line.join_the_keys()
    await line.follow()


@in_steps
@late
async def test_a_fair_lock_whose_keys_are_in_two_places(line: Line, *, late: bool) -> None:
    release = await line.hand_over(line.part_the_keys, late=late)
    # The second one comes after the reply to the first one.
    await line.backend.until(lambda: line.copies(line.source) >= 2 - (not late))
    assert (release.done(), line.calls[0].done()) == (False, False)
    line.join_the_keys()
    await release.result()
    await line.follow()


@in_steps
async def test_heartbeats_go_on_while_keys_move(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    """An attempt would pause for longer than the places last without a heartbeat."""
    line.part_the_keys()
    with monkeypatch.context() as patch:
        # So a third heartbeat of a client can only be one of those that follow each other quickly.
        patch.setattr(fair_queue, "HEARTBEAT_INTERVAL", 60.0)
        await line.backend.until(lambda: line.proxy.seen(HEARTBEAT) >= 10)
    # The last one may succeed, as it may arrive after the keys are in one place. The next one must not be late then.
    for client in line.clients[1:3]:
        getattr(client, "_target", client)._session.fair_queues[NAME.encode()].heartbeat_before(0.0)
    assert not line.proxy.seen(ACQUIRE)
    line.join_the_keys()
    await line.locks[0].unlock()
    await line.follow()


@in_steps
@late
@pytest.mark.parametrize("line", [{"retry_attempts": 0}], indirect=True, ids=[""])
async def test_a_fair_hand_over_that_is_given_up(line: Line, *, late: bool) -> None:
    """The waiter keeps its place, and finds out by an attempt whether it was entered."""
    release = await line.hand_over(line.part_the_keys, late=late)
    with pytest.raises(TryAgainError):
        await release.result()
    line.join_the_keys()
    await line.follow()
