"""Multi-locks and red locks of both sides with members in common."""

from __future__ import annotations

import pytest
from redis import Redis

from pyredisson.testing import Server
from tests.support.backends import Backend

from .jvm import JavaClient, JavaObject, JavaThread, Jvm, now
from .kinds import WOKEN
from .targets import SingleServer, Target

pytestmark = pytest.mark.asyncio

MEMBERS = ("a", "b", "c")


class TestMultiLock:
    @pytest.fixture
    def theirs(self, java: JavaClient) -> JavaObject:
        return java.group("MultiLock", *(java.get("Lock", name) for name in MEMBERS))

    async def test_held_in_java(
        self, theirs: JavaObject, backend: Backend, java: JavaClient, ann: JavaThread, target: Target
    ) -> None:
        client = backend.connect()
        ann.call(theirs, "lock")
        assert target.all_keys() == set(MEMBERS)
        for name in MEMBERS:
            assert not await client.get_lock(name).try_lock()
        assert not await client.get_multi_lock(*map(client.get_lock, ("c", "d"))).try_lock()
        assert "d" not in target.all_keys()
        ann.call(theirs, "unlock")
        assert await client.get_multi_lock(*map(client.get_lock, MEMBERS)).try_lock()

    async def test_held_in_python(
        self, theirs: JavaObject, backend: Backend, java: JavaClient, ann: JavaThread, target: Target
    ) -> None:
        client = backend.connect()
        ours = client.get_multi_lock(*map(client.get_lock, MEMBERS))
        await ours.lock()
        assert target.all_keys() == set(MEMBERS)
        for name in MEMBERS:
            assert not ann.call(java.get("Lock", name), "tryLock")
        assert not ann.call(theirs, "tryLock")
        await ours.unlock()
        assert ann.call(theirs, "tryLock")

    async def test_python_waits_for_a_member(
        self, backend: Backend, java: JavaClient, ann: JavaThread, target: Target
    ) -> None:
        client = backend.connect()
        ann.call(java.get("Lock", "b"), "lock")

        async def acquire() -> float:
            await client.get_multi_lock(*map(client.get_lock, MEMBERS)).lock()
            return now()

        waiter = backend.spawn(acquire)
        await backend.until(target.waiting("Lock", "b"))
        released = ann.begin(java.get("Lock", "b"), "unlock").answer()
        # If the release meets the multi-lock between two rounds, it has the lock within the next round.
        assert released.began < await waiter.result() < released.ended + WOKEN

    async def test_java_waits_for_a_member(
        self, theirs: JavaObject, backend: Backend, ann: JavaThread, target: Target
    ) -> None:
        client = backend.connect()
        lock = client.get_lock("b")
        await lock.lock()
        waiter = ann.begin(theirs, "lock")
        await backend.until(target.waiting("Lock", "b"))
        began = now()
        await lock.unlock()
        assert began < waiter.answer().ended < now() + WOKEN
        assert target.all_keys() == set(MEMBERS)
        ann.call(theirs, "unlock")
        assert not target.all_keys()


class TestRedLock:
    """On three servers that know nothing of each other."""

    @pytest.fixture
    def targets(self, servers: list[Server], redises: list[Redis]) -> list[SingleServer]:
        for redis in redises:
            redis.flushall()
        return [SingleServer(server) for server in servers]

    async def test_a_majority(
        self, targets: list[SingleServer], backend: Backend, jvm: Jvm, ann: JavaThread, bob: JavaThread
    ) -> None:
        javas = [jvm.connect(each.yaml()) for each in targets]
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

        # One member of three that somebody else holds stops neither side.
        bob.call(javas[1].get("Lock", "orders"), "lock")
        assert await ours.try_lock()
        await ours.unlock()
        assert ann.call(theirs, "tryLock")
        ann.call(theirs, "unlock")
        # Two do.
        await clients[2].get_lock("orders").lock()
        assert not ann.call(theirs, "tryLock")
        assert not await backend.as_another_owner(ours.try_lock)
        for client in javas:
            client.shutdown()
        for each in targets:
            each.close()
