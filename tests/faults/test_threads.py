"""Threads that can't start or come in between, and finalizers on any line, which may wait for no mutex of its frame."""

import socket
import threading
from collections.abc import Callable, Generator
from errno import EMFILE
from functools import partial
from typing import Any
from unittest.mock import DEFAULT, Mock

import pytest
from redis import Redis

import pyredisson
from pyredisson._backends.threads.connection import Connection
from pyredisson._backends.threads.listener import ReaderRole, SubscriptionConnection, self_pipe
from pyredisson._backends.threads.pool import Pool
from pyredisson._backends.threads.wakeup import ThreadWakeup
from pyredisson._client.callbacks import CallbackThreads
from pyredisson._protocol.node import ConnectionId, Node, ServerInfo
from pyredisson.errors import LockTimeoutError
from pyredisson.logic.channels import Channel, ChannelRegistry
from pyredisson.logic.holds import HELD, Hold, HoldTable
from pyredisson.logic.locks.side_wait import READER, WRITER, ReadWriteChannel
from pyredisson.logic.permits.count_down_latch import LatchChannel
from pyredisson.logic.permits.permit_queue import PermitChannel
from pyredisson.logic.renewer import Renewer
from pyredisson.logic.watchdog import Watchdog
from pyredisson.testing import Server
from tests.support.backends import RawBackend, eventually, listeners
from tests.support.faults import Credentials, pool_of
from tests.support.garbage import DuringCall, collect_at_each_line, registry_with

from .kinds import NoThread, Patch, given_back, taken_by_another

LEASE = 1.2
pytestmark = pytest.mark.usefixtures("only_new_garbage")


def disconnect(channels: ChannelRegistry) -> None:
    with channels.mutex:
        channels.on_disconnected()
        channels.names()


@pytest.mark.parametrize(
    "act",
    [
        lambda channels, _: channels.join(b"a", ThreadWakeup()),
        lambda channels, signal: channels.leave(b"a", signal),
        lambda channels, _: channels.deliver(b"a", b"0"),
        lambda channels, _: channels.on_subscribed(b"a"),
        lambda channels, _: disconnect(channels),
        lambda channels, _: channels.sweep(),
        lambda channels, _: channels.wake_all(),
    ],
)
def test_a_waiter_is_collected_in_the_registry(act: Callable[[ChannelRegistry, ThreadWakeup], object]) -> None:
    def scenario() -> DuringCall:
        channels, (one, other, _) = registry_with(Channel, 1, 1, 1)
        return lambda: act(channels, other), lambda: channels.leave(b"a", one)

    names = ("join", "leave", "deliver", "on_subscribed", "on_disconnected", "sweep", "wake_all", "names")
    functions = [getattr(ChannelRegistry, name) for name in names]
    collect_at_each_line([*functions, Channel.wake, Channel.wake_all], scenario)


@pytest.mark.parametrize(
    ("kind", "need", "payload"),
    [
        *[(Channel, 1, b"0"), (Channel, 1, b"1"), (PermitChannel, 2, b"me:1:2 2"), (LatchChannel, 1, b"0")],
        *[(ReadWriteChannel, READER, b"0"), (ReadWriteChannel, WRITER, b"1")],
    ],
)
def test_a_waiter_collected_during_a_wakeup_loses_no_wakeup(kind: type[Channel], need: int, payload: bytes) -> None:
    woken: list[ThreadWakeup] = []

    def scenario() -> DuringCall:
        channels, (one, other) = registry_with(kind, need, need)
        woken.append(other)

        def act() -> None:
            channels.deliver(b"a", payload)
            # At the end of its last line the finalizer may not have run yet: then the wake-up is passed on now.
            channels.leave(b"a", one)

        return act, lambda: channels.leave(b"a", one)

    of_one_kind = [ReadWriteChannel._wake, PermitChannel.wake_for, PermitChannel.on_free]
    collect_at_each_line([kind.on_message, kind.wake, kind.wake_all, Channel.wake, *of_one_kind], scenario)
    assert all(signal.is_set() for signal in woken)


def test_a_listener_is_collected_while_another_comes_or_goes(client: pyredisson.Client) -> None:
    lock = client.get_lock("a", owner=1)
    heard: list[str] = []

    def scenario() -> DuringCall:
        heard.clear()
        lock.lock(60)
        hold: Any = lock._logic.hold_of(1)
        late, stays, goes = (lambda _, name=name: heard.append(name) for name in ("late", "stays", "goes"))
        hold.listen(goes)

        def finalize() -> None:
            hold.unlisten(goes)
            hold.listen(late)

        def act() -> None:
            hold.listen(stays)
            hold.listen(goes)
            hold.unlisten(goes)
            assert hold.state is HELD
            lock.unlock()
            if hold.listeners:
                hold.unlisten(late)
            else:
                assert "stays" in heard

        return act, finalize

    assert collect_at_each_line([Hold.listen, Hold.unlisten, Hold._notify_listeners], scenario) > 10


def test_a_listener_is_collected_while_a_hold_is_lost(client: pyredisson.Client) -> None:
    lock = client.get_lock("a", owner=1)
    holds = client._session.holds

    def scenario() -> DuringCall:
        lock.lock(60)
        hold: Any = lock._logic.hold_of(1)
        heard: list[object] = []
        hold.listen(heard.append)

        def act() -> None:
            holds.declare_lost(hold, "for a test")
            with pytest.raises(pyredisson.LockLostError):
                lock.unlock()

        return act, lambda: hold.unlisten(heard.append)

    collect_at_each_line([HoldTable.declare_lost, HoldTable._report_loss, Hold._notify_listeners], scenario)


@pytest.mark.parametrize("size", [64, 1])
def test_a_collection_exits_a_block_while_a_connection_is_made(server: Server, admin: Redis, size: int) -> None:
    """When only one connection remains, the frame that was interrupted gives way."""
    with pyredisson.connect(server.url, connection_pool_size=size, timeout=0.5, retry_attempts=0) as client:
        pool = pool_of(client)

        def block() -> Generator[None, None, None]:
            with client.get_lock("a", owner=1):
                yield

        def scenario() -> DuringCall:
            inside = block()
            next(inside)
            pool.close_idle()
            return client.get_lock("b").is_locked, inside.close

        collect_at_each_line([Pool._connect_or_wait, Pool._reserve], scenario)
        assert len(pool._all) <= size
        assert not admin.exists("a")


def test_a_collection_adds_a_repair_while_the_watchdog_is_started(server: Server) -> None:
    def scenario() -> DuringCall:
        client = pyredisson.connect(server.url)
        payload = client.get_lock("b")._logic.commands.undo_acquire(b"nobody")

        def act() -> None:
            client.get_lock("a").lock()
            client.close()

        def repair() -> None:
            if not client.closed:
                client._session.repair(payload)

        return act, repair

    collect_at_each_line([Watchdog._start_or_wake, Watchdog.dispatch_unsent, Renewer.start], scenario)


def test_a_loss_is_found_by_a_collection_while_a_callback_is_called() -> None:
    called: list[str] = []

    def scenario() -> DuringCall:
        callbacks = CallbackThreads()
        called.clear()
        one, other = (partial(called.append, name) for name in ("one", "other"))

        def act() -> None:
            callbacks.call(one)
            callbacks.call(one)
            callbacks.close(5.0)
            assert called.count("one") == 2

        return act, lambda: callbacks.call(other)

    collect_at_each_line([CallbackThreads.call, CallbackThreads._start_thread], scenario)


def test_a_subscription_is_changed_by_a_collection_while_it_is_sent_or_read(client: pyredisson.Client) -> None:
    def scenario() -> DuringCall:
        servers: Any = client._lifecycle.servers
        connection = SubscriptionConnection(servers.node)
        connection.open()

        def act() -> None:
            with self_pipe() as (never, _):
                connection.send(b"PING\r\n")
                assert connection.receive(5.0, never)
            assert not connection._outbox
            connection.close()

        return act, lambda: connection.send(b"PING\r\n") if connection._socket else None

    collect_at_each_line([SubscriptionConnection.send, SubscriptionConnection.receive], scenario)


@pytest.mark.parametrize("name", ["pyredisson-keep-time", "pyredisson-renew"])
async def test_a_watchdog_that_could_not_start_is_started_with_the_next_lock(
    backend: RawBackend, server: Server, admin: Redis, no_thread: NoThread, name: str
) -> None:
    client = backend.connect(server.url, lock_watchdog_timeout=LEASE)
    happened = no_thread(name)
    await backend.fails(RuntimeError, client.get_lock("a").lock, match="can't start new thread")
    assert happened.is_set()
    lock = client.get_lock("b")
    await backend.do(lock.lock())
    await backend.until(lambda: not admin.exists("a"), 3)
    await backend.sleep(1.5 * LEASE)
    assert (lock.lost.is_set(), await backend.do(lock.is_held())) == (False, True)
    # It keeps time, too.
    admin.delete("b")
    assert await backend.do(lock.lost.wait(3))


async def test_a_listener_cannot_start(threads: RawBackend, server: Server, admin: Redis, no_thread: NoThread) -> None:
    taken_by_another(admin)
    lock = threads.connect(server.url).get_lock("a")
    happened = no_thread("pyredisson-listener")
    await threads.fails(RuntimeError, lock.try_lock, 5, match="can't start new thread")
    assert happened.is_set()
    waiter = await threads.started(lambda: listeners(admin, "a") == 1, lock.lock)
    given_back(admin)
    await waiter.result()


async def test_a_listener_without_a_descriptor_tries_again(
    threads: RawBackend, server: Server, admin: Redis, monkeypatch: Patch
) -> None:
    results = [OSError(EMFILE, "Too many open files"), *[DEFAULT] * 9]
    monkeypatch.setattr(socket, "socketpair", Mock(wraps=socket.socketpair, side_effect=results))
    taken_by_another(admin)
    waiter = await threads.started(lambda: listeners(admin, "a") == 1, threads.connect(server.url).get_lock("a").lock)
    given_back(admin)
    await waiter.result()


async def test_a_question_for_the_holder_cannot_start(
    threads: RawBackend, server: Server, admin: Redis, no_thread: NoThread
) -> None:
    taken_by_another(admin)
    client = threads.connect(server.url)
    group = client.get_multi_lock(client.get_lock("a"), client.get_lock("b"))
    happened = no_thread("pyredisson-background")
    await threads.fails(LockTimeoutError, group.hold(wait_time=0).__enter__, match="can't be told: can't start new")
    assert happened.is_set()


async def test_a_callback_cannot_start(backend: RawBackend, server: Server, admin: Redis, no_thread: NoThread) -> None:
    client = backend.connect(server.url, lock_watchdog_timeout=LEASE)
    notified: list[Any] = []
    locks = [client.get_lock(name) for name in "abc"]
    for lock in locks:
        lock.on_lost(lambda lost: notified.append(lost.name))
        await backend.do(lock.lock())
    happened = no_thread("pyredisson-on-lost")
    admin.delete("a")
    await backend.until(happened.is_set, 3)
    assert notified == []
    admin.delete("b")
    await backend.until(lambda: sorted(notified) == ["a", "b"], 3)
    await backend.sleep(LEASE)
    assert not locks[2].lost.is_set()
    # At an exit an exception here would keep other clients from giving back.
    await backend.do(client.close())


async def test_a_listener_continues_after_a_failing_credential_provider(backend: RawBackend) -> None:
    with Server(password="secret") as server, server.redis() as root:
        taken_by_another(root)
        provider = Credentials("secret", failing="pyredisson-listener")
        client = backend.connect(f"redis://{server.host}:{server.port}/0", credential_provider=provider)
        waiter = await backend.started(provider.failed.is_set, client.get_lock("a").try_lock, 20)
        await backend.until(lambda: listeners(root, "a") == 1)
        given_back(root)
        assert await waiter.result() is True


def test_a_loss_that_two_threads_notice_is_reported_once(client: pyredisson.Client) -> None:
    """The timekeeper, and the owner's own question: the other one comes in at each line of the one."""
    notified, losses = list[object](), list[object]()
    lock, holds = client.get_lock("a", owner=1), client._session.holds
    lock.on_lost(notified.append)

    def scenario() -> DuringCall:
        lock.lock()
        hold: Any = lock._logic.hold_of(1)
        losses.append(hold)
        other = threading.Thread(target=holds.declare_lost, args=(hold, "the other saw it"))

        def come_in() -> None:
            other.start()
            # It may have to wait for this one.
            other.join(0.1)

        return lambda: holds.declare_lost(hold, "the one saw it"), come_in

    assert collect_at_each_line([HoldTable.declare_lost, HoldTable._report_loss], scenario) >= 5
    eventually(lambda: len(notified) >= len(losses))
    assert notified == [lock] * len(losses)


def test_a_wakeup_is_set_while_its_waiter_wakes() -> None:
    """Two messages may come in quick succession. Whoever looks in between finds that the first one has set it."""
    wakeup, seen = ThreadWakeup(), list[bool]()
    lock = wakeup.lock

    def come_in() -> None:
        seen.append(wakeup.is_set())
        wakeup.set()

    def acquire(*, timeout: float) -> bool:
        come_in()
        acquired = lock.acquire(timeout=timeout)
        come_in()
        return acquired

    wakeup.lock = Mock(wraps=lock, acquire=acquire)
    assert wakeup.wait(1)
    assert seen == [False, True]
    assert wakeup.is_set()
    assert wakeup.wait(1)


def test_a_failure_breaks_the_present_connection_only() -> None:
    """A waiter that read an earlier one reports late."""
    role = ReaderRole()
    earlier, present = Mock(), Mock()
    unread = [role.unread]
    role.connected(earlier)
    unread.append(role.unread)
    role.fail(earlier, OSError("broken"))
    unread.append(role.unread)
    role.disconnected()
    role.connected(present)
    role.fail(earlier, OSError("late"))
    assert [*unread, role.unread] == [False, True, False, True]
    assert earlier.connection.shut_down.call_count == 1
    assert (present.connection.shut_down.call_count, role.failure) == (0, None)


class Overtaken(list[ConnectionId]):
    """Suspects that another thread takes off the list between two looks of this one."""

    def __contains__(self, connection_id: object) -> bool:
        there = super().__contains__(connection_id)
        self.clear()
        return there


def test_two_handshakes_that_cleared_the_same_suspect() -> None:
    node = Node(pyredisson.Config())
    suspect, other = ConnectionId(b"1", b"a:1"), ConnectionId(b"2", b"a:2")
    node.suspects = Overtaken([suspect, other])
    node.on_connected(ServerInfo(True, None, None), [suspect, ConnectionId(b"3", b"a:3"), suspect, other], 0.0)
    assert not list(node.suspects)


class Closing(Connection):
    """Closed by another thread as soon as this one has looked at its socket."""

    __slots__ = ("_left",)

    @property
    def _socket(self) -> socket.socket | None:
        return self._left.pop() if self._left else None

    @_socket.setter
    def _socket(self, value: socket.socket | None) -> None:
        self._left = [value]


def test_a_connection_that_is_closed_while_it_is_shut(server: Server) -> None:
    connection = Closing(Node(pyredisson.Config.of(server.url)))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        connection._socket = ours
        connection.shut_down()
        assert theirs.recv(1) == b""
