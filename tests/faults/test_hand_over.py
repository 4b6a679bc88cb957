"""Handing a lock on inside one client: what an interrupt, a late reply or a refused copy leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ResponseError

import pyredisson
from pyredisson._backends.threads.runtime import ThreadBackend
from pyredisson._backends.threads.wakeup import ThreadWakeup
from pyredisson._core import CallQueues, ReleaseCall, Run
from pyredisson.errors import LockLostError
from pyredisson.testing import Proxy
from tests.support.backends import _finished
from tests.support.raw_backends import BackgroundCall, RawBackend
from tests.support.waiting import TIME_LIMIT, eventually, waiters

from .kinds import lock_of, start, taken

LONG = 60.0
HAND_OVER = b":1\r\n$38\r\n"
"""The end of the holder's name, and the beginning of another name: only hand-overs have two of them."""


@pytest.fixture
def threads(proxy: Proxy) -> Iterator[RawBackend]:
    backend = RawBackend("threads")
    backend.connect(proxy.url, local_hand_over_time=LONG)
    yield backend
    for client in backend._clients:
        client.close()


@pytest.fixture
def client(threads: RawBackend) -> pyredisson.Client:
    connected: pyredisson.Client = threads._clients[0]
    return connected


def waits(threads: RawBackend, kind: str = "lock", *args: object) -> tuple[Any, BackgroundCall]:
    """The lock of owner 2, which acquires it on a thread, and keeps it."""
    client = threads._clients[0]
    lock = lock_of(client, kind, 2)
    call = start(threads, lock.lock, *args)
    eventually(lambda: waiters(client, "a") == 1)
    return lock, call


def ended(call: BackgroundCall) -> None:
    eventually(lambda: call.done)
    _finished(call.result())


class Striking(ThreadWakeup):
    """Ctrl-C in the thread that sets it, as soon as the thread that it has woken has acquired the lock."""

    __slots__ = ()

    struck: BackgroundCall | None = None

    def set(self) -> None:
        super().set()
        call, Striking.struck = Striking.struck, None
        if call is not None:
            ended(call)
            raise KeyboardInterrupt


def test_an_interrupt_after_the_waiter_was_told_to_make_an_attempt(
    threads: RawBackend, client: pyredisson.Client, admin: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the waiter has acquired by itself since then isn't undone: its caller relies on it."""
    holder = client.get_lock("a", owner=1)
    holder.lock()
    monkeypatch.setattr(ThreadBackend, "wakeup", lambda _: Striking())
    lock, Striking.struck = waits(threads)
    # The hand-over finds neither of both owners.
    admin.delete("a")
    with pytest.raises(KeyboardInterrupt):
        holder.unlock()
    eventually(lambda: not client._session.watchdog.repairs.pending())
    assert lock.is_held()
    lock.force_unlock()


def test_a_second_copy_that_is_refused(
    threads: RawBackend, client: pyredisson.Client, admin: Redis, proxy: Proxy
) -> None:
    """The first copy has released the lock: the second one says nothing about the hold that was released."""
    holder = client.get_fenced_lock("a", owner=1)
    holder.lock()
    _, waiting = waits(threads, "fenced")
    slow = proxy.hold_reply(HAND_OVER)
    lost: list[object] = []
    holder.on_lost(lost.append)
    releasing = start(threads, holder.unlock)
    assert slow.held.wait(TIME_LIMIT)
    admin.set("redisson_lock_token:{a}", "text")
    proxy.cut()
    for call in (releasing, waiting):
        with pytest.raises(ResponseError, match="not an integer"):
            ended(call)
    assert lost == []
    eventually(lambda: not admin.exists("a"))


def test_a_release_that_goes_on_in_the_background_while_it_hands_the_lock_on(
    threads: RawBackend, client: pyredisson.Client, admin: Redis, proxy: Proxy
) -> None:
    """As the release of one member of a red lock, for whose reply the release of the red lock doesn't wait."""
    holder = client.get_lock("a", owner=1)
    holder.lock()
    lock, waiting = waits(threads)
    slow = proxy.hold_reply(HAND_OVER)
    logic, owner, call = holder._logic, holder._owner(), ReleaseCall()
    hold = logic.hold_of(owner.id)
    assert hold is not None
    releasing = start(threads, lambda: Run(logic.release, owner, hold, call).result)
    assert slow.held.wait(TIME_LIMIT)
    logic.release_in_background(owner, hold, call)
    eventually(lambda: not client._session.watchdog.repairs.pending())
    slow.deliver()
    ended(releasing)
    ended(waiting)
    eventually(lambda: not client._session.watchdog.repairs.pending())
    assert lock.get_hold_count() == taken(admin, "lock") == 1
    lock.unlock()
    assert client._session.holds.table == {}
    assert not admin.exists("a")


class Overtaken:
    """The calls of an owner, of which another one acquires the lock just before the given one gets the turn."""

    def __init__(self, calls: CallQueues, act: Callable[[], object]) -> None:
        self._calls = calls
        self._act: Callable[[], object] | None = act

    def enter(self, key: object, call: Any) -> bool:
        act, self._act = self._act, None
        if act is not None:
            act()
        return self._calls.enter(key, call)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._calls, name)


def test_the_owner_of_the_waiter_acquires_the_lock_by_another_call(
    threads: RawBackend, client: pyredisson.Client, admin: Redis
) -> None:
    """Two acquires of one owner are two levels, whichever way each of them got the lock."""
    holder = client.get_lock("a", owner=1)
    holder.lock()
    lock, waiting = waits(threads)

    def acquire() -> None:
        admin.delete("a")
        calls.in_flight = in_flight
        assert lock.try_lock()

    calls = lock._owner().calls
    in_flight = calls.in_flight
    calls.in_flight = Overtaken(in_flight, acquire)
    with pytest.raises(LockLostError):
        holder.unlock()
    ended(waiting)
    for levels in (2, 1):
        assert lock.get_hold_count() == levels
        lock.unlock()
    assert not admin.exists("a")


def test_no_queue_remains_when_a_lease_ends(threads: RawBackend, client: pyredisson.Client) -> None:
    """Many programs never release a lock with a lease, and use other names later."""
    holder = client.get_lock("a", owner=1)
    holder.lock()
    _, waiting = waits(threads, "lock", 1.5)
    holder.unlock()
    ended(waiting)
    assert client._session.lock_queues
    eventually(lambda: not client._session.lock_queues)
