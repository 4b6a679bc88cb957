"""Threads that can't start, that meet an exception of other code, or that come at the same moment as another one."""

from __future__ import annotations

import _thread
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

import pyredisson
from pyredisson._backends.threads.connection import Connection
from pyredisson._backends.threads.listener import ListenerState, ReaderRole
from pyredisson._backends.threads.wakeup import ThreadWakeup
from pyredisson._protocol.node import ConnectionId, Node, ServerInfo
from pyredisson._settings.config import Config
from pyredisson.logic.holds import HoldTable
from pyredisson.logic.permits.permit_queue import PermitChannel
from pyredisson.testing import Server
from tests.support.faults import Credentials
from tests.support.garbage import DuringCall, collect_at_each_line, only_collections_asked_for, registry_with
from tests.support.raw_backends import RawBackend
from tests.support.server_state import listeners
from tests.support.waiting import eventually

from .kinds import NoThread, given_back, taken_by_another

LEASE = 1.2


@pytest.mark.asyncio
@pytest.mark.parametrize("name", ["pyredisson-keep-time", "pyredisson-renew"])
async def test_a_watchdog_that_could_not_start_is_started_with_the_next_lock(
    backend: RawBackend, server: Server, admin: Redis, no_thread: NoThread, name: str
) -> None:
    client = backend.connect(server.url, lock_watchdog_timeout=LEASE)
    happened = no_thread(name)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        await backend.do(client.get_lock("a").lock())
    assert happened.is_set()
    lock = client.get_lock("b")
    await backend.do(lock.lock())
    await backend.until(lambda: not admin.exists("a"), 3)
    await backend.sleep(1.5 * LEASE)
    assert not lock.lost.is_set()
    assert await backend.do(lock.is_held())
    # It keeps time, too.
    admin.delete("b")
    assert await backend.do(lock.lost.wait(3))


def test_a_listener_that_could_not_start_is_started_with_the_next_waiter(
    server: Server, admin: Redis, no_thread: NoThread
) -> None:
    taken_by_another(admin)
    with pyredisson.connect(server.url) as client:
        lock = client.get_lock("a")
        happened = no_thread("pyredisson-listener")
        with pytest.raises(RuntimeError, match="can't start new thread"):
            lock.try_lock(5)
        assert happened.is_set()
        waiter = RawBackend("threads").start(lock.lock)
        eventually(lambda: listeners(admin, "a") == 1)
        given_back(admin)
        eventually(lambda: waiter.done())


@pytest.mark.asyncio
async def test_a_callback_whose_thread_could_not_start_is_called_with_the_next(
    backend: RawBackend, server: Server, admin: Redis, no_thread: NoThread
) -> None:
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


@pytest.mark.asyncio
async def test_a_listener_continues_after_a_failing_credential_provider(backend: RawBackend) -> None:
    with Server(password="secret") as server, server.redis() as root:
        taken_by_another(root)
        provider = Credentials("secret", failing="pyredisson-listener")
        client = backend.connect(f"redis://{server.host}:{server.port}/0", credential_provider=provider)

        waiter = backend.start(client.get_lock("a").try_lock, 20)
        await backend.until(provider.failed.is_set)
        await backend.until(lambda: listeners(root, "a") == 1)
        given_back(root)
        assert await waiter.result() is True


def test_a_loss_that_two_threads_notice_is_reported_once(server: Server) -> None:
    """The timekeeper, and the owner's own question: the other one comes in at each line of the one."""
    notified: list[object] = []
    losses: list[object] = []
    with pyredisson.connect(server.url) as client, only_collections_asked_for():
        lock, holds = client.get_lock("a", owner=1), client._session.holds
        lock.on_lost(notified.append)

        def scenario() -> DuringCall:
            lock.lock()
            hold = lock._logic.hold_of(1)
            assert hold is not None
            losses.append(hold)
            other = threading.Thread(target=holds.declare_lost, args=(hold, "the other saw it"))

            def come_in() -> None:
                other.start()
                # It may have to wait for this one.
                other.join(0.1)

            def act() -> None:
                holds.declare_lost(hold, "the one saw it")

            return act, come_in

        assert collect_at_each_line([HoldTable.declare_lost, HoldTable._report_loss], scenario) >= 5
        eventually(lambda: len(notified) >= len(losses))
    assert notified == [lock] * len(losses)


class Interrupted:
    """A lock after whose next acquisition the thread is interrupted by another one."""

    def __init__(self, lock: _thread.LockType, other_thread: Callable[[], None]) -> None:
        self._lock = lock
        self._other_thread = other_thread

    def acquire(self, *, timeout: float) -> bool:
        acquired = self._lock.acquire(timeout=timeout)
        self._other_thread()
        return acquired

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lock, name)


def test_a_wakeup_is_set_while_its_waiter_wakes() -> None:
    """Two messages may come in quick succession."""
    wakeup = ThreadWakeup()
    wakeup.set()
    wakeup.lock = Interrupted(wakeup.lock, wakeup.set)  # type: ignore[assignment]
    assert wakeup.wait(1)
    assert wakeup.is_set()
    assert wakeup.wait(1)


def test_the_next_waiter_for_several_permits_may_become_the_leader() -> None:
    """It would notice only at its next attempt, up to five seconds later, that it may claim permits."""
    registry, (leader, single, second) = registry_with(PermitChannel, 3, 1, 2)
    assert registry.become_leader(b"a", leader)
    registry.leave(b"a", leader)
    assert second.is_set()
    assert not single.is_set()
    assert registry.become_leader(b"a", second)


class Messages:
    """A reader of messages whose connection only counts how often it is shut down."""

    def __init__(self) -> None:
        self.connection: Any = self
        self.shutdowns = 0

    def shut_down(self) -> None:
        self.shutdowns += 1


def test_a_failure_breaks_the_present_connection_only() -> None:
    """A waiter that read an earlier one reports late."""
    role = ReaderRole(ThreadWakeup())
    earlier: Any = Messages()
    present: Any = Messages()
    states = [role.state]
    role.connected(earlier)
    states.append(role.state)
    role.fail(earlier, OSError("broken"))
    states.append(role.state)
    role.disconnected()
    role.connected(present)
    role.fail(earlier, OSError("late"))
    states.append(role.state)
    expected = [ListenerState.DISCONNECTED, ListenerState.UNREAD, ListenerState.BROKEN, ListenerState.UNREAD]
    assert states == expected
    assert (earlier.shutdowns, present.shutdowns, role.failure) == (1, 0, None)


class Overtaken(list[ConnectionId]):
    """Suspects that another thread takes off the list between two looks of this one."""

    def __contains__(self, connection_id: object) -> bool:
        there = super().__contains__(connection_id)
        self.clear()
        return there


def test_two_handshakes_that_cleared_the_same_suspect() -> None:
    node = Node(Config())
    suspect, other = ConnectionId(b"1", b"a:1"), ConnectionId(b"2", b"a:2")
    node.suspects = Overtaken([suspect, other])
    node.on_connected(ServerInfo(True, None, None), [suspect, ConnectionId(b"3", b"a:3"), suspect, other])
    assert not list(node.suspects)


class Closing(Connection):
    """Closed by another thread as soon as this one has looked at its socket."""

    __slots__ = ("_real", "looks")

    @property
    def _socket(self) -> socket.socket | None:
        self.looks += 1
        return self._real if self.looks == 1 else None

    @_socket.setter
    def _socket(self, value: socket.socket | None) -> None:
        self._real = value
        self.looks = 1


def test_a_connection_that_is_closed_while_it_is_shut(server: Server) -> None:
    connection = Closing(Node(Config.of(server.url)))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        connection._real, connection.looks = ours, 0
        connection.shut_down()
        assert theirs.recv(1) == b""
