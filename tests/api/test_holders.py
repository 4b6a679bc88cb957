"""Who holds a lock and who waits for it, in error messages, answers, announcements and debuggers; deadlocks."""

import asyncio
import dataclasses
import logging
import math
import os
import pickle
import re
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from redis import Redis

import pyredisson
import pyredisson.asyncio
from pyredisson import Holder, LockLostError, LockNotHeldError, LockTimeoutError, PermitNotHeldError
from pyredisson.identity import identity
from pyredisson.inspection.deadlocks import DeadlockSearch
from pyredisson.logic import waits
from pyredisson.logic.groups import multi_lock, red_lock
from pyredisson.logic.waiting import Waiter
from pyredisson.testing import Proxy
from tests.support.backends import NOWHERE, Backend, OtherOwner, fails, finished, in_turn
from tests.support.faults import sha
from tests.support.inspecting import Scene, confirmed, inspector, key_of, session_of, state_of, waiting_field
from tests.support.kinds import KINDS, acquired

from .kinds import GROUPS, PERMITS, assert_lost, held, lock_of, rival_of, take, turn_of

ID = "b983c153-7421-469a-addb-44fb92259a1b"
kinds = pytest.mark.parametrize("kind", [*KINDS, *GROUPS])


async def refused(lock: Any, match: str | None = None, wait: float = 0) -> LockTimeoutError:
    """The error of a block that doesn't get the lock."""
    return await fails(LockTimeoutError, lock.hold(wait_time=wait).__aenter__, match=match)


@kinds
async def test_errors_name_the_holder(backend: Backend, client: Any, kind: str) -> None:
    await lock_of(client, rival_of(kind)).lock()
    error: Any = await refused(lock_of(backend.connect(), kind), wait=0.02)
    found = error.holder
    about: Any = pytest.approx(30, abs=2)
    assert found == Holder(client.id, owner_id=found.owner_id, time_to_live=about, foreign=False)
    assert "orders" in error.name
    assert re.search(r"free in (2\d|30)\.\d s at the latest", str(error)), str(error)
    for text in (f"{client.id}:{found.owner_id}", error.owner):
        assert text in str(error)
    twin = pickle.loads(pickle.dumps(error))
    assert (str(twin), twin.name, twin.owner, twin.holder) == (str(error), error.name, error.owner, found)
    caught: Any = await fails(LockNotHeldError, lock_of(backend.connect(), kind).unlock)
    assert (caught.name is None, caught.owner is None, caught.holder.client_id) == (False, False, client.id)


async def test_holders_without_an_announcement(lock: Any, redis: Any) -> None:
    for field, said, found in [
        (f"{ID}:31", rf"a client of Redisson \({ID}, thread 31\)", Holder(ID, owner_id=31, foreign=True)),
        (f"{ID}:{2**32}:1", f"{ID}:{2**32}:1", Holder(ID, owner_id=2**32, foreign=False)),
        ("me:1", "me:1", Holder("me", owner_id=1)),
        ("somebody", "somebody", Holder()),
    ]:
        redis.delete("orders")
        redis.hset("orders", field, 1)
        error = await refused(lock, f"'orders' is held by {said}, which never expires; owner")
        assert error.holder == await lock.holder() == dataclasses.replace(found, time_to_live=math.inf)


ANNOUNCED = {"name": "billing@web-3:812", "host": "web-3", "pid": "812", "program": "billing", "version": "0.2.0"}
OWNER = f"{2**32}:1"


def announce(redis: Any, **other: str) -> None:
    """A client holds the locks `orders` and `a b`, and has announced it."""
    for name, began in (("orders", "1795167377228 fair"), ("a b", "1795167377000 lock")):
        redis.hset(name, f"{ID}:{OWNER}", 1)
        redis.pexpire(name, 28_000)
        redis.hset(f"pyredisson_client:{{{ID}}}", f"h:{OWNER} {name}", began)
    redis.hset(f"pyredisson_client:{{{ID}}}", mapping=ANNOUNCED | other)


async def test_a_holder_that_is_announced(client: Any, redis: Any) -> None:
    announce(redis)
    since = datetime.fromtimestamp(1795167377.228, UTC)
    who: dict[str, Any] = {"host": "web-3", "pid": 812, "program": "billing", "version": "0.2.0"}
    who |= {"client_name": "billing@web-3:812", "time_to_live": pytest.approx(25, abs=5), "foreign": False}
    assert await client.get_lock("orders").holder() == Holder(ID, owner_id=2**32, since=since, **who)
    assert (await client.get_lock("a b").holder()).since == datetime.fromtimestamp(1795167377, UTC)
    error = await refused(client.get_lock("orders"), wait=0.01)
    said = (
        r"lock 'orders' is held by web-3 \(pid 812\), free in 2\d\.\d s at the latest, unless that is extended; "
        rf"owner {client.id}:\d+ waited 0.01 s for it"
    )
    assert re.fullmatch(said, str(error))
    announce(redis, name="invoices")
    lock = client.get_lock("orders")
    await fails(LockNotHeldError, lock.unlock, match=r"'orders' is held by invoices on web-3 \(pid 812\), free in")
    # It is kept after its release.
    redis.rename("orders", "before")
    redis.hset("orders", f"{ID}:{2**32}:kept", 1)
    redis.pexpire("orders", 41_000)
    await refused(lock, r"kept for another [34]\d\.\d s after a run on invoices on web-3 \(pid 812\)")
    assert (await lock.holder()).kept


async def test_an_announcement_that_makes_no_sense(lock: Any, redis: Any) -> None:
    """The user's own programs may write there, too."""
    for field, value in (("pid", "x"), (f"h:{OWNER} orders", "soon lock"), (f"h:{OWNER} orders", "9" * 30)):
        announce(redis, **{field: value})
        found = await lock.holder()
        assert (found.host, None in (found.pid, found.since)) == ("web-3", True)
    redis.delete(f"pyredisson_client:{{{ID}}}")
    redis.set(f"pyredisson_client:{{{ID}}}", "text")
    found = await lock.holder()
    assert (found.client_id, found.host) == (ID, None)


async def test_an_unread_announcement_hides_nobody(backend: Backend, redis: Any, proxy: Proxy) -> None:
    announce(redis)
    lock: Any = backend.connect(proxy.url).get_lock("orders")
    proxy.cut_reply(b"HMGET")
    found = await lock.holder()
    assert (found.client_id, found.owner_id, found.host, found.foreign) == (ID, 2**32, None, False)
    redis.delete("orders")
    redis.hset("orders", f"{ID}:31", 1)
    proxy.cut_reply(b"HMGET")
    # It may be Java's, or not.
    assert (await lock.holder()).foreign is None
    # Nor does a server that can't be asked hide a timeout.
    proxy.cut_reply(sha("lock_holder"))
    assert (await refused(lock, "can't be told")).holder is None


@pytest.mark.parametrize("kind", KINDS)
async def test_a_client_knows_its_own_holds(backend: Backend, kind: str) -> None:
    client = backend.connect(client_name="billing")
    lock = lock_of(client, kind)
    assert await lock.holder() is None
    before = datetime.now(UTC)
    async with lock:
        found = await lock.holder()
        assert before - timedelta(seconds=0.1) < found.since < datetime.now(UTC) + timedelta(seconds=0.1)
        process = identity()
        assert (found.client_id, found.client_name, found.foreign) == (client.id, "billing", False)
        expected = (process.host, process.pid, process.program, pyredisson.__version__)
        assert (found.host, found.pid, found.program, found.version) == expected
    assert await lock.holder() is None


async def test_a_read_write_lock(backend: Backend, client: Any, other: Any) -> None:
    """Both sides answer alike. Of several readers, the first one by name is named."""
    others = other.get_read_write_lock("orders", owner=1)
    mine = client.get_read_write_lock("orders")
    await in_turn((others.write_lock().lock, others.read_lock().lock))
    for side in (mine.read_lock(), mine.write_lock(), others.read_lock(), others.write_lock()):
        assert (await side.holder()).owner_id == 1
    assert (await others.read_lock().holder()).since is not None
    await refused(mine.read_lock(), r"thread 1\)")
    await others.write_lock().unlock()
    await lock_of(other, "read", owner=0).lock()
    assert (await mine.write_lock().holder()).owner_id == 0
    await in_turn(lock_of(backend.connect(), "read").lock for _ in range(3))
    await refused(mine.write_lock(), "write lock 'orders' is held by 5 readers, one of them .*, free in .* waited 0 s")


@kinds
async def test_what_is_shown_names_the_lock(lock: Any, kind: str) -> None:
    assert re.search("Lost of <pyredisson.*: no hold>$", repr(lock.lost))
    async with lock:
        lost = lock.lost
        assert re.search("'orders'.*: held>$", repr(lost))
    assert repr(lost).endswith(": released>")
    if kind not in GROUPS:
        await lock.lock()
        lost = lock.lost
        await lock.force_unlock()
        assert repr(lost).endswith(": lost>")
    assert re.search(r"'orders'.*: waits 1\.5 s, lease 10 s>$", repr(lock.hold(wait_time=1.5, lease_time=10)))
    assert repr(lock.hold()).endswith(": waits without end, renewed>")


async def test_all_kinds(client: Any) -> None:
    assert client.holds() == []
    before = datetime.now(UTC)
    lock = await acquired(client.get_lock("a", owner=7))
    await lock.lock(10)
    await client.get_fair_lock("b").lock(20)
    token = await client.get_fenced_lock("c").lock_and_get_token()
    sides = client.get_read_write_lock("d")
    await in_turn((sides.write_lock().lock, sides.read_lock().lock, client.get_spin_lock("e").lock))
    semaphore = client.get_permit_expirable_semaphore("f")
    await semaphore.set_permits(1)
    permit = await semaphore.acquire(renew=True)
    found = client.holds()
    assert [(hold.name, hold.kind, hold.levels, hold.renewed, hold.token) for hold in found] == [
        *(("a", "lock", 2, True, None), ("b", "fair", 1, False, None), ("c", "fenced", 1, True, token)),
        *(("d", "write", 1, True, None), ("d", "read", 1, True, None), ("e", "spin", 1, True, None)),
        ("f", "permit", 1, True, None),
    ]
    assert (found[0].owner_id, found[-1].owner_id) == (7, None)
    for hold in found:
        assert (type(hold), hold.lost) == (pyredisson.Hold, False)
        assert before - timedelta(seconds=0.1) < hold.since < datetime.now(UTC) + timedelta(seconds=0.1)
        assert 0 < hold.valid_for <= 30
    await lock.unlock()
    assert client.holds()[0].levels == 1
    await semaphore.release(permit)
    await client.close()
    assert client.holds() == []


async def test_what_a_debugger_shows(backend: Backend, client: Any) -> None:
    lock, other = client.get_lock("orders"), client.get_lock("orders", owner=7)
    package, caller = ("", "thread") if backend.name == "threads" else (".asyncio", "task")
    prefix = f"<pyredisson{package}.Lock 'orders'"
    assert repr(lock) == repr(other) == f"{prefix}>"
    await lock.lock()
    assert re.fullmatch(rf"{prefix}: held by this {caller} for \d+\.\d s>", repr(lock))
    assert repr(other) == f"{prefix}>"
    [hold] = session_of(client).holds.table.values()
    assert repr(hold) == f"<Hold of lock 'orders' by {hold.owner.decode()}: held, 1 level>"
    await lock.force_unlock()
    [found] = client.holds()
    assert (repr(lock), found.lost, found.valid_for) == (f"{prefix}: lost>", True, 0)
    await lock.lock()
    assert sorted(hold.lost for hold in client.holds()) == [False, True]
    await lock.unlock()
    await assert_lost(lock)
    assert client.holds() == []
    # Errors without a holder name the lock and the owner.
    free = await fails(LockNotHeldError, other.unlock, match=r"'orders' is free; owner .* has no hold of it")
    await other.lock()
    assert repr(other).startswith(f"{prefix}: held by owner 7 for ")
    await other.force_unlock()
    for error in (free, await fails(LockLostError, other.unlock)):
        assert (error.name, error.owner, error.holder) == ("orders", f"{client.id}:7", None)


async def test_outside_of_any_task() -> None:
    """A repr asks nobody, makes no owner, and raises nothing."""
    client = pyredisson.asyncio.connect(NOWHERE)
    assert await asyncio.to_thread(repr, client.get_lock("a")) == "<pyredisson.asyncio.Lock 'a'>"
    assert not client._callers.owners
    assert repr(client.get_read_write_lock("a")) == "<pyredisson.asyncio.ReadWriteLock 'a'>"
    await client.close()


def test_an_owner_ends_with_its_thread() -> None:
    """The watchdog tells that of the locks it holds."""
    with pyredisson.connect(NOWHERE) as client:
        with ThreadPoolExecutor() as threads:
            owner = threads.submit(client._callers.current).result()
            assert not owner.calls.ended
        assert owner.calls.ended


async def test_a_permit_block(client: Any) -> None:
    semaphore = client.get_permit_expirable_semaphore("licenses")
    await semaphore.set_permits(2)
    block = semaphore.permit(lease_time=60)
    for _ in range(2):
        async with block as permit:
            assert re.fullmatch("[0-9a-f]{32}", permit)
            assert 50 < await semaphore.get_lease_time(permit) <= 60
            assert permit in repr(block)
            await fails(RuntimeError, block.__aenter__, match="one block at a time")
            async with semaphore.permit(renew=True) as other:
                assert await semaphore.get_lease_time(other) <= 30
                assert (other == permit, await semaphore.available_permits()) == (False, 0)
    assert (await semaphore.available_permits(), repr(block).endswith("not acquired>")) == (2, True)
    # One that has ended.
    with pytest.raises(PermitNotHeldError):
        async with semaphore.permit() as permit:
            await semaphore.release(permit)
    with pytest.raises(KeyError) as caught:
        async with semaphore.permit() as permit:
            await semaphore.release(permit)
            raise KeyError("mine")
    assert any("PermitNotHeldError" in note for note in caught.value.__notes__)
    assert await semaphore.available_permits() == 2


async def test_its_time(backend: Backend, client: Any, proxy: Proxy) -> None:
    """That for which a block waits for a permit."""
    semaphore = client.get_permit_expirable_semaphore("licenses")
    await semaphore.set_permits(1)
    block = semaphore.permit(wait_time=0.02)
    async with semaphore.permit():
        assert (await fails(LockTimeoutError, block.__aenter__, match="'licenses'")).name == "licenses"
    async with block:
        assert await semaphore.available_permits() == 0
    # Without time to wait it is sent again.
    other = backend.connect(proxy.url, timeout=0.5).get_permit_expirable_semaphore("licenses")
    fault = proxy.drop_reply(b"licenses", 2)
    async with other.permit(wait_time=0):
        assert (fault.happened.is_set(), await semaphore.available_permits()) == (True, 0)


# --- Who waits, and owners that wait for each other


announcing = pytest.mark.usefixtures("announced", "listed_soon")


async def begin_to_wait(backend: Backend, admin: Redis, client: Any, kind: str = "lock") -> OtherOwner[Any]:
    """Another owner, of which its client says that it waits."""
    count = len(waiting_field(admin, client)) + 1
    return await backend.begin(partial(take, turn_of(client, kind)), lambda: len(waiting_field(admin, client)) == count)


@announcing
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
        admin.delete(key_of(client))
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
        await backend.until(lambda: bool(admin.exists(key_of(client))))
        lines = "\n1 lock 5\nx lock 5 1 orders\n9999999999999999999 lock x 1 orders"
        admin.hset(key_of(client), "waiting", lines)
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


@announcing
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
