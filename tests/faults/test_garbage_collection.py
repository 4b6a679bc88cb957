"""A garbage collection runs finalizers on any line: none may wait for a mutex of the interrupted frame."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from functools import partial

import pytest
from redis import Redis

import pyredisson
from pyredisson._backends.threads.message_reader import SelfPipe, SubscriptionConnection
from pyredisson._backends.threads.pool import Pool
from pyredisson._backends.threads.wakeup import ThreadWakeup
from pyredisson._client.callbacks import CallbackThreads
from pyredisson._client.servers import SingleServer
from pyredisson.logic.channels import Channel, ChannelRegistry
from pyredisson.logic.holds import HELD, Hold, HoldTable
from pyredisson.logic.locks.side_wait import READER, WRITER, ReadWriteChannel
from pyredisson.logic.permits.count_down_latch import LatchChannel
from pyredisson.logic.permits.permit_queue import PermitChannel
from pyredisson.logic.renewer import Renewer
from pyredisson.logic.watchdog import Watchdog
from pyredisson.testing import Server
from tests.support.faults import pool_of
from tests.support.garbage import (
    TIME_LIMIT,
    DuringCall,
    collect_at_each_line,
    only_collections_asked_for,
    registry_with,
)


@pytest.fixture(autouse=True)
def undisturbed() -> Iterator[None]:
    with only_collections_asked_for():
        yield


REGISTRY = [
    getattr(ChannelRegistry, name)
    for name in ("join", "leave", "deliver", "on_subscribed", "on_disconnected", "sweep", "wake_all", "names")
]


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
    ids=["join", "leave", "deliver", "subscribed", "disconnected", "sweep", "wake_all"],
)
def test_a_waiter_is_collected_in_the_registry(act: Callable[[ChannelRegistry, ThreadWakeup], object]) -> None:
    def scenario() -> DuringCall:
        channels, (one, other, _) = registry_with(Channel, 1, 1, 1)
        return lambda: act(channels, other), lambda: channels.leave(b"a", one)

    collect_at_each_line([*REGISTRY, Channel.wake, Channel.wake_all], scenario)


@pytest.mark.parametrize(
    ("kind", "need", "payload"),
    [
        (Channel, 1, b"0"),
        (Channel, 1, b"1"),
        (PermitChannel, 2, b"me:1:2 2"),
        (LatchChannel, 1, b"0"),
        (ReadWriteChannel, READER, b"0"),
        (ReadWriteChannel, WRITER, b"1"),
    ],
)
def test_a_waiter_that_is_collected_during_a_wakeup_loses_no_wakeup(
    kind: type[Channel], need: int, payload: bytes
) -> None:
    woken: list[ThreadWakeup] = []

    def scenario() -> DuringCall:
        channels, (one, other) = registry_with(kind, need, need)
        woken.append(other)

        def act() -> None:
            channels.deliver(b"a", payload)
            # At the end of its last line the finalizer may not have run yet: then the wake-up is passed on now.
            channels.leave(b"a", one)

        return act, lambda: channels.leave(b"a", one)

    functions = [kind.on_message, kind.wake, kind.wake_all, Channel.wake]
    if kind is ReadWriteChannel:
        functions += [ReadWriteChannel._wake]
    elif kind is PermitChannel:
        functions += [PermitChannel.wake_for, PermitChannel.on_free]
    collect_at_each_line(functions, scenario)
    assert all(signal.is_set() for signal in woken)


def test_a_listener_is_collected_while_another_comes_or_goes(server: Server) -> None:
    with pyredisson.connect(server.url) as client:
        lock = client.get_lock("a", owner=1)
        heard: list[str] = []

        def scenario() -> DuringCall:
            heard.clear()
            lock.lock(60)
            hold = lock._logic.hold_of(1)
            assert hold is not None

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


def test_a_listener_is_collected_while_a_hold_is_lost(server: Server) -> None:
    with pyredisson.connect(server.url) as client:
        lock = client.get_lock("a", owner=1)
        holds = client._session.holds

        def scenario() -> DuringCall:
            lock.lock(60)
            hold = lock._logic.hold_of(1)
            assert hold is not None
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


def test_a_subscription_is_changed_by_a_collection_while_it_is_sent_or_read(server: Server) -> None:
    with pyredisson.connect(server.url) as client:

        def scenario() -> DuringCall:
            servers = client._lifecycle.servers
            assert isinstance(servers, SingleServer)
            connection = SubscriptionConnection(servers.node)
            connection.open()

            def act() -> None:
                with SelfPipe() as never:
                    connection.send(b"PING\r\n")
                    assert connection.receive(TIME_LIMIT, never.reader)
                assert not connection._outbox
                connection.close()

            return act, lambda: connection.send(b"PING\r\n") if connection._socket else None

        collect_at_each_line([SubscriptionConnection.send, SubscriptionConnection.receive], scenario)
