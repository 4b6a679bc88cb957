"""Handing a lock on inside one client: what an interrupt, a late reply or a refused copy leaves behind."""

from __future__ import annotations

import threading
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
from pyredisson.testing import Proxy, Server
from tests.support.backends import TIME_LIMIT
from tests.support.waiting import eventually, waiters

LONG = 60.0
HAND_OVER = b":1\r\n$38\r\n"
"""The end of the holder's name, and the beginning of another name: only hand-overs have two of them."""


class Waiting:
    """A thread that acquires the lock as owner 2, and keeps it."""

    def __init__(self, client: pyredisson.Client, kind: str = "get_lock") -> None:
        self.lock: Any = getattr(client, kind)("orders", owner=2)
        self.error: BaseException | None = None
        self.acquired = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        eventually(lambda: waiters(client, "orders") == 1)

    def _run(self) -> None:
        try:
            self.lock.lock()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.error = error
        else:
            self.acquired.set()

    def join(self) -> None:
        self._thread.join(TIME_LIMIT)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error


@pytest.fixture
def client(server: Server) -> Iterator[pyredisson.Client]:
    with pyredisson.connect(server.url, local_hand_over_time=LONG) as connected:
        yield connected


class Striking(ThreadWakeup):
    """Ctrl-C in the thread that sets it, as soon as the thread that it has woken has acquired the lock."""

    __slots__ = ()

    waiting: Waiting | None = None

    def set(self) -> None:
        super().set()
        waiting = Striking.waiting
        if waiting is not None:
            Striking.waiting = None
            assert waiting.acquired.wait(TIME_LIMIT)
            raise KeyboardInterrupt


def test_an_interrupt_after_the_waiter_was_told_to_make_an_attempt(
    client: pyredisson.Client, admin: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the waiter has acquired by itself since then isn't undone: its caller relies on it."""
    holder = client.get_lock("orders", owner=1)
    holder.lock()
    monkeypatch.setattr(ThreadBackend, "wakeup", lambda _: Striking())
    waiting = Waiting(client)
    # The hand-over finds neither of both owners.
    admin.delete("orders")
    Striking.waiting = waiting
    with pytest.raises(KeyboardInterrupt):
        holder.unlock()
    waiting.join()
    eventually(lambda: not client._session.watchdog.repairs.pending())
    assert waiting.lock.is_held()
    waiting.lock.unlock()
    eventually(lambda: not admin.exists("orders"))


def test_a_second_copy_that_is_refused(server: Server, admin: Redis, proxy: Proxy) -> None:
    """The first copy has released the lock: the second one says nothing about the hold that was released."""
    client = pyredisson.connect(proxy.url, local_hand_over_time=LONG)
    holder = client.get_fenced_lock("orders", owner=1)
    holder.lock()
    waiting = Waiting(client, "get_fenced_lock")
    slow = proxy.hold_reply(HAND_OVER)
    lost: list[object] = []
    holder.on_lost(lost.append)
    errors: list[BaseException] = []

    def release() -> None:
        try:
            holder.unlock()
        except ResponseError as error:
            errors.append(error)

    releasing = threading.Thread(target=release, daemon=True)
    releasing.start()
    assert slow.held.wait(TIME_LIMIT)
    admin.set("redisson_lock_token:{orders}", "text")
    proxy.cut()
    releasing.join(TIME_LIMIT)
    assert ["not an integer" in str(error) for error in errors] == [True]
    assert lost == []
    with pytest.raises(ResponseError, match="not an integer"):
        waiting.join()
    eventually(lambda: not admin.exists("orders"))
    client.close()


def test_a_release_that_goes_on_in_the_background_while_it_hands_the_lock_on(
    server: Server, admin: Redis, proxy: Proxy
) -> None:
    """As the release of one member of a red lock, for whose reply the release of the red lock doesn't wait."""
    client = pyredisson.connect(proxy.url, local_hand_over_time=LONG)
    holder = client.get_lock("orders", owner=1)
    holder.lock()
    waiting = Waiting(client)
    slow = proxy.hold_reply(HAND_OVER)
    logic, owner, call = holder._logic, holder._owner(), ReleaseCall()
    hold = logic.hold_of(owner.id)
    assert hold is not None
    releasing = threading.Thread(target=lambda: Run(logic.release, owner, hold, call).result, daemon=True)
    releasing.start()
    assert slow.held.wait(TIME_LIMIT)
    logic.release_in_background(owner, hold, call)
    eventually(lambda: not client._session.watchdog.repairs.pending())
    slow.deliver()
    releasing.join(TIME_LIMIT)
    waiting.join()
    eventually(lambda: not client._session.watchdog.repairs.pending())
    assert waiting.lock.get_hold_count() == 1
    assert list(admin.hgetall("orders").values()) == [b"1"]
    waiting.lock.unlock()
    assert client._session.holds.table == {}
    assert not admin.exists("orders")
    client.close()


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


def test_the_owner_of_the_waiter_acquires_the_lock_by_another_call(client: pyredisson.Client, admin: Redis) -> None:
    """Two acquires of one owner are two levels, whichever way each of them got the lock."""
    holder = client.get_lock("orders", owner=1)
    holder.lock()
    waiting = Waiting(client)
    same_owner = client.get_lock("orders", owner=2)

    def acquire() -> None:
        admin.delete("orders")
        calls.in_flight = in_flight
        assert same_owner.try_lock()

    calls = same_owner._owner().calls
    in_flight = calls.in_flight
    calls.in_flight = Overtaken(in_flight, acquire)  # type: ignore[assignment]
    with pytest.raises(LockLostError):
        holder.unlock()
    waiting.join()
    assert same_owner.get_hold_count() == 2
    same_owner.unlock()
    assert same_owner.is_held()
    same_owner.unlock()
    assert not admin.exists("orders")


def test_no_queue_remains_when_a_lease_ends(client: pyredisson.Client) -> None:
    """Many programs never release a lock with a lease, and use other names later."""
    holder = client.get_lock("orders", owner=1)
    holder.lock()
    waiter = client.get_lock("orders", owner=2)
    acquired = threading.Event()

    def acquire() -> None:
        waiter.lock(lease_time=1.5)
        acquired.set()

    threading.Thread(target=acquire, daemon=True).start()
    eventually(lambda: waiters(client, "orders") == 1)
    holder.unlock()
    assert acquired.wait(TIME_LIMIT)
    assert client._session.lock_queues
    eventually(lambda: not client._session.lock_queues)
