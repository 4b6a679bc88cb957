"""Who waits, as clients announce it; and owners that wait for each other."""

import logging
import os
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from redis import Redis

import pyredisson
from pyredisson.inspection.deadlocks import DeadlockSearch
from pyredisson.logic import waits
from pyredisson.logic.groups import multi_lock, red_lock
from pyredisson.logic.waiting import Waiter
from tests.support.backends import Backend, OtherOwner, fails, finished, in_turn
from tests.support.inspecting import Scene, confirmed, inspector, session_of, state_of, waiting_field

from .kinds import PERMITS, held, lock_of, rival_of, take, turn_of

pytestmark = pytest.mark.usefixtures("announced", "listed_soon")


async def begin_to_wait(backend: Backend, admin: Redis, client: Any, kind: str = "lock") -> OtherOwner[Any]:
    """Another owner, of which its client says that it waits."""
    count = len(waiting_field(admin, client)) + 1
    return await backend.begin(partial(take, turn_of(client, kind)), lambda: len(waiting_field(admin, client)) == count)


class TestWaiters:
    @pytest.mark.parametrize("kind", ["lock", "fenced", "non-reentrant", "fair", "write", "read"])
    async def test_of_each_kind(self, backend: Backend, lock: Any, admin: Redis, kind: str) -> None:
        holder = await held(backend.connect(), rival_of(kind))
        client = backend.connect(client_name="billing")
        other = await begin_to_wait(backend, admin, client, kind)
        [waiter] = await lock.waiters()
        assert (type(waiter), waiter.client_id, waiter.client_name) == (pyredisson.Waiter, client.id, "billing")
        assert (waiter.host, waiter.pid, waiter.foreign) == (socket.gethostname(), os.getpid(), False)
        side, place = kind if kind in ("read", "write") else None, 1 if kind == "fair" else None
        assert (waiter.side, waiter.place, waiter.owner_id is None) == (side, place, False)
        seconds, microseconds = admin.time()
        assert 0 < seconds + microseconds / 1e6 - waiter.since.timestamp() < 60
        await holder.aclose()
        await other.result()
        assert not await lock.waiters()
        await backend.until(lambda: not waiting_field(admin, client))

    @pytest.mark.parametrize("kind", [*PERMITS, "spin", "latch"])
    async def test_clients_that_the_user_names(self, backend: Backend, client: Any, admin: Redis, kind: str) -> None:
        """The server doesn't know who waits for a spin lock."""
        latch, known = client.get_count_down_latch("orders"), dict[str, Any]()
        if kind == "latch":
            await latch.try_set_count(1)
            other = await backend.begin(latch.wait, lambda: bool(waiting_field(admin, client)))
            end, known = latch.count_down, {"kind": "latch"}
        else:
            end = (await held(backend.connect(), kind)).aclose
            other = await begin_to_wait(backend, admin, client, kind)
        states, _ = await inspector(client).states([b"orders"], clients=[client.id], **known)
        [holder] = [waiter.owner.holder for waiter in states[0].waiters]
        assert (holder.client_id, holder.owner_id is None) == (client.id, kind != "spin")
        await end()
        await other.result()

    async def test_the_oldest_first_also_of_the_holders_client(self, backend: Backend, admin: Redis) -> None:
        clients = [backend.connect() for _ in range(2)]
        holder = await held(clients[0])
        others = [await begin_to_wait(backend, admin, clients[number]) for number in (1, 0, 1)]
        waiters = await lock_of(clients[0], "lock").waiters()
        assert [waiter.client_id for waiter in waiters] == [clients[n].id for n in (1, 0, 1)]
        assert len({waiter.owner_id for waiter in waiters if waiter.client_id == clients[1].id}) == 2
        await holder.aclose()
        await finished(others)

    async def test_a_name_with_any_bytes_and_a_hundred_waits(self, backend: Backend, client: Any, admin: Redis) -> None:
        name = "a b\n%é"
        await client.get_lock(name).lock()
        others = [backend.spawn(client.get_lock(name, owner=owner).lock) for owner in range(waits.MOST_LISTED + 5)]
        await backend.until(lambda: len(waiting_field(admin, client)) == waits.MOST_LISTED)
        assert len((await state_of(client, name)).waiters) == waits.MOST_LISTED
        await backend.close()
        await in_turn(other.end for other in others)

    async def test_what_is_gone_is_said_again_and_what_has_ended_is_not(self, backend: Backend, admin: Redis) -> None:
        holder = await held(backend.connect())
        client = backend.connect()
        attempt = partial(client.get_lock("orders").try_lock, 1.5)
        other = await backend.begin(attempt, lambda: waiting_field(admin, client))
        admin.delete(f"pyredisson_client:{{{client.id}}}")
        third = await backend.begin(attempt, lambda: len(waiting_field(admin, client)) == 2)
        assert await finished([other, third]) == [False, False]
        # Nothing else changes.
        await backend.until(lambda: not waiting_field(admin, client))
        await holder.aclose()

    async def test_a_wait_whose_end_is_interrupted(self, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
        """Otherwise the client would say for ever that it waits."""
        holder = await held(backend.connect())
        client = backend.connect()
        stop, interrupts = Waiter.stop, [RuntimeError("an interrupt")]

        def interrupted(waiter: Waiter) -> None:
            if interrupts:
                raise interrupts.pop()
            stop(waiter)

        monkeypatch.setattr(Waiter, "stop", interrupted)
        await fails(RuntimeError, client.get_lock("orders").try_lock, 0.1, match="an interrupt")
        announcement: Any = session_of(client).announcement
        assert not announcement._waiting.began
        await holder.aclose()

    async def test_what_somebody_else_writes(self, backend: Backend, client: Any, admin: Redis) -> None:
        await client.get_lock("orders").lock()
        await backend.until(lambda: bool(admin.exists(f"pyredisson_client:{{{client.id}}}")))
        lines = "\n1 lock 5\nx lock 5 1 orders\n9999999999999999999 lock x 1 orders"
        admin.hset(f"pyredisson_client:{{{client.id}}}", "waiting", lines)
        [waiter] = await client.get_lock("orders").waiters()
        assert (waiter.owner_id, waiter.since) == (None, None)


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    with caplog.at_level(logging.WARNING, "pyredisson"):
        yield lambda: [record.message for record in caplog.records if record.message.startswith("deadlock")]


async def suspected(backend: Backend, admin: Redis, clients: list[Any], *keys: bytes) -> bool:
    """Whether a first look finds a cycle while all of these clients say that they wait. It confirms none."""
    await backend.until(lambda: all(waiting_field(admin, client) for client in clients))
    search = DeadlockSearch(inspector(clients[0]))
    assert not await search.look(keys)
    return bool(search.suspected)


class TestDeadlocks:
    @pytest.mark.parametrize(("first", "second"), [("lock", "lock"), ("fair", "fenced"), ("write", "lock")])
    async def test_of_two_clients(self, admin: Redis, scene: Scene, warned: Any, first: str, second: str) -> None:
        one, two = scene.backend.connect(), scene.backend.connect()
        a, b = ((lock_of(each, first, "orders"), lock_of(each, second, "stock")) for each in (one, two))
        await scene.wait_for_each_other(([a[0]], a[1]), ([b[1]], b[0]))
        for key in (b"orders", b"stock"):
            [deadlock] = await confirmed(scene.backend, one, key)
            assert {wait.key for wait in deadlock.waits} == {b"orders", b"stock"}
            here = f"{socket.gethostname()} (pid {os.getpid()}), owner "
            assert (deadlock.text.count(here), deadlock.text.count("holds orders and waits for stock")) == (2, 1)
            assert deadlock.text.count("holds stock and waits for orders") == 1
        assert not warned()
        assert not await DeadlockSearch(inspector(one)).look([b"another"])
        # A later look finds that it is none any more.
        search = DeadlockSearch(inspector(one))
        assert (await search.look([b"orders"]), bool(search.suspected)) == ([], True)
        assert await lock_of(two, second, "stock").force_unlock()
        # Also the other one: while it still says that it waits, and has the lock by then, it waits for itself.
        await scene.backend.until(lambda: not waiting_field(admin, one) and not waiting_field(admin, two))
        assert (await search.look([b"orders", b"stock"]), bool(search.suspected)) == ([], False)

    async def test_a_writer_that_waits_for_one_of_several_readers(self, backend: Backend, scene: Scene) -> None:
        clients = [backend.connect() for _ in range(3)]
        _ = await held(clients[2], "read")
        reader, writer = (lock_of(client, kind) for client, kind in zip(clients, ("read", "write"), strict=False))
        stock = [lock_of(client, "lock", "stock") for client in clients]
        await scene.wait_for_each_other(([reader], stock[0]), ([stock[1]], writer))
        [deadlock] = await confirmed(backend, clients[2], b"stock")
        assert {wait.holder.client_id for wait in deadlock.waits} == {clients[0].id, clients[1].id}

    @pytest.mark.parametrize(("held_as", "wanted_as"), [("lock", "lock"), ("read", "write"), ("write", "read")])
    async def test_of_one_client(self, client: Any, scene: Scene, warned: Any, held_as: str, wanted_as: str) -> None:
        """It is logged once."""
        holds, wanted = ([lock_of(client, kind, name) for name in "abc"] for kind in (held_as, wanted_as))
        await scene.wait_for_each_other(*(([holds[n]], wanted[(n + 1) % 3]) for n in range(3)))
        await scene.backend.until(lambda: bool(warned()))
        # Many looks later.
        await confirmed(scene.backend, client, b"a")
        [warning] = warned()
        assert "of this client holds a and waits for b" in warning

    async def test_none_while_somebody_can_go_on(self, backend: Backend, admin: Redis, scene: Scene) -> None:
        """A chain, whose last owner works; and an explicit owner, of which another thread may go on."""
        clients = [backend.connect() for _ in range(3)]
        working = await held(clients[0])
        for client, name, wanted in zip(clients, "abc", ["b", "c", "orders"], strict=True):
            scene.start([client.get_lock(name)], client.get_lock(wanted), lambda: scene.held >= 3)
        await backend.until(lambda: scene.held == 3)
        one, two = backend.connect(), backend.connect()
        await scene.wait_for_each_other(
            ([one.get_lock("x", owner=7)], one.get_lock("y", owner=7)), ([two.get_lock("y")], two.get_lock("x"))
        )
        assert not await suspected(backend, admin, [*clients, one, two], b"a", b"b", b"c", b"x", b"y")
        await working.aclose()

    @pytest.mark.parametrize("group", ["needs it", "has a majority soon", "begins again"])
    async def test_of_a_group_that_waits(self, admin: Redis, scene: Scene, monkeypatch: Any, group: str) -> None:
        """A multi-lock needs it. A red lock may get a majority as soon as the third client releases its member."""
        for module in (multi_lock, red_lock):
            monkeypatch.setattr(module, "MEMBER_WAIT", 10.0)
        one, two = scene.backend.connect(), scene.backend.connect()
        _ = await held(scene.backend.connect(), "lock")
        members = [one.get_lock(name) for name in ("a", "orders", "c")]
        if group == "begins again":
            scene.start([two.get_lock("b")], two.get_lock("a"), lambda: bool(waiting_field(admin, one)))
            await scene.backend.until(lambda: scene.held == 1)
            # It holds a member while it waits for the others, but not for long.
            scene.start([], one.get_multi_lock(members[0], one.get_lock("b")), lambda: True)
        else:
            wanted = one.get_multi_lock(members[0]) if group == "needs it" else one.get_red_lock(*members)
            await scene.wait_for_each_other(([one.get_lock("x")], wanted), ([two.get_lock("a")], two.get_lock("x")))
        assert await suspected(scene.backend, admin, [one, two], b"a", b"b", b"x") == (group == "needs it")
