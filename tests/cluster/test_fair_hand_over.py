"""A fair lock is handed on while its slot moves: the order is kept, and each owner has the lock alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

import pytest
import pytest_asyncio
from redis.exceptions import TryAgainError

from pyredisson.logic.locks import fair_queue
from pyredisson.testing import ClusterNode, Hold, Proxy
from tests.api.fair_queue import KEYS, QUEUE
from tests.support.backends import Backend, OtherOwner
from tests.support.faults import load_script
from tests.support.programs import ATOMIC_PROGRAMS, PROGRAMS
from tests.support.waiting import fair_waiters

from .scenes import MovingCluster, other_than

pytestmark = pytest.mark.asyncio

NAME = "orders"
HAND_OVER = b":1\r\n$6\r\n300000\r\n$38\r\n"
"""The end of the name of owner 1, the time of a place, the beginning of another name: only a hand-over has them."""

HEARTBEAT = b"\r\n$6\r\n300000\r\n$38\r\n"
"""The time of a place, and a waiter: in a heartbeat and in a hand-over."""
ACQUIRE = b"\r\n$6\r\n300000\r\n$1\r\n1\r\n"
"""The time of a place, and that the owner will wait."""


IN_STEPS = [pytest.param((each.values[0], False), id=each.id) for each in PROGRAMS]
ATOMIC = [pytest.param((each.values[0], True), id=f"{each.id}-atomic") for each in ATOMIC_PROGRAMS]


@pytest.fixture(scope="module", params=[*IN_STEPS, *ATOMIC])
def proxied(request: pytest.FixtureRequest) -> Iterator[MovingCluster]:
    find, atomic = request.param
    with MovingCluster(masters=2, replicas=0, executable=find(), proxied=True) as running:
        running.atomic = atomic
        for node in running.nodes:
            load_script(node, "fair_hand_over")
        yield running


class Line:
    """A fair lock that owner 1 holds. The owners 2, 3 and 4 wait for it, owner 3 in another client."""

    def __init__(self, cluster: MovingCluster, backend: Backend, **fields: Any) -> None:
        self.cluster = cluster
        self.backend = backend
        self.slot = cluster.slot_of_key(NAME)
        self.source = cluster.node_of(self.slot)
        self.target = other_than(self.source, cluster)
        for node in (self.source, self.target):
            cluster.proxy_of(node).forget()
        one, other = (backend.connect(timeout=5, topology_refresh_interval=600, **fields) for _ in range(2))
        self.clients = (one, one, other, one)
        self.locks: list[Any] = [
            client.get_fair_lock(NAME, owner=owner) for owner, client in enumerate(self.clients, start=1)
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
        hold: Hold = (proxy.hold_reply if late else proxy.hold_request)(HAND_OVER)
        release = self.backend.spawn(self.locks[0].unlock)
        await self.backend.until(hold.held.is_set)
        if late:
            # It has run.
            assert await self.owner() == 2
        change()
        if late:
            proxy.cut()
        else:
            hold.deliver()
        return release

    async def follow(self) -> None:
        """Each of the others acquires the lock in its turn, alone, and releases it."""
        for owner, (call, lock) in enumerate(zip(self.calls, self.locks[1:], strict=True), start=2):
            await call.result()
            assert await self.owner() == owner
            assert not any(later.done() for later in self.calls[owner - 1 :])
            assert await lock.get_hold_count() == 1
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
        return self.cluster.proxy_of(node).seen(HAND_OVER)


@pytest_asyncio.fixture
async def line(request: pytest.FixtureRequest, proxied: MovingCluster, backend: Backend) -> AsyncIterator[Line]:
    """A line that waits. The parameter: settings of the clients."""
    proxied.flush()
    made = Line(proxied, backend, **getattr(request, "param", {}))
    await made.form()
    yield made
    if made.parted:
        # The test has failed. The others share the cluster.
        made.join_the_keys()


late = pytest.mark.parametrize("late", [False, True], ids=["", "reply-lost"])
in_steps = pytest.mark.parametrize("proxied", IN_STEPS, indirect=True)


@late
async def test_moved(line: Line, *, late: bool) -> None:
    release = await line.hand_over(lambda: line.cluster.move(line.slot, line.target), late=late)
    await release.result()
    assert line.copies(line.target) or line.cluster.atomic
    await line.follow()


@in_steps
@late
async def test_ask(line: Line, *, late: bool) -> None:
    release = await line.hand_over(partial(line.part_the_keys, *KEYS), late=late)
    await release.result()
    await line.calls[0].result()
    assert line.copies(line.target)
    line.join_the_keys()
    await line.follow()


@in_steps
@late
async def test_try_again(line: Line, *, late: bool) -> None:
    release = await line.hand_over(line.part_the_keys, late=late)
    # The second one comes after the reply to the first one.
    await line.backend.until(lambda: line.copies(line.source) >= 2 - (not late))
    assert not release.done()
    assert not line.calls[0].done()
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
    assert not line.proxy.seen(ACQUIRE)
    line.join_the_keys()
    await line.locks[0].unlock()
    await line.follow()


@in_steps
@late
@pytest.mark.parametrize("line", [{"retry_attempts": 0}], indirect=True, ids=[""])
async def test_it_is_given_up(line: Line, *, late: bool) -> None:
    """The waiter keeps its place, and finds out by an attempt whether it was entered."""
    release = await line.hand_over(line.part_the_keys, late=late)
    with pytest.raises(TryAgainError):
        await release.result()
    line.join_the_keys()
    await line.follow()
