"""Ctrl-C at each moment of a wait and of a hand-over: nobody else waits longer for it, and nothing is left behind."""

from __future__ import annotations

import gc
import inspect
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType, FunctionType

import pytest
from redis import Redis

import pyredisson
from pyredisson.logic.handed_waiter import WAITING
from pyredisson.testing import Server
from tests.support.waiting import eventually

LIMIT = 5.0
"""Seconds after which a waiter counts as forgotten. By its own timer it would make an attempt after 30 s."""
PACKAGE = Path(pyredisson.__file__).parent
INTERRUPTED = tuple(str(PACKAGE / part) for part in ("logic", "_backends", "_protocol"))
"""Where interrupts strike. In the public API its first instruction may be before the call."""


class Interrupt:
    """A KeyboardInterrupt at the n-th moment at which Python would run a signal's handler on this thread.

    It does so when a function begins, and after a call. Neither the end of a coroutine that is awaited is such a
    moment, nor the way from the body of a `try` or `with` to its end.
    """

    def __init__(self, step: int) -> None:
        self._left = step
        self.where = ""
        """Empty: there was no such moment."""

    @contextmanager
    def here(self) -> Iterator[None]:
        # An interrupt in a finalizer that the garbage collector runs is lost: Python only reports it.
        collects = gc.isenabled()
        gc.disable()
        sys.setprofile(self._profile)
        try:
            yield
        finally:
            sys.setprofile(None)
            if collects:
                gc.enable()

    def _profile(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if self.where or event == "c_call" or not code.co_filename.startswith(INTERRUPTED):
            return
        if event == "return" and (code.co_flags & inspect.CO_COROUTINE or code in PROPERTIES):
            return
        self._left -= 1
        if not self._left:
            self.where = f"{event} {code.co_qualname}:{frame.f_lineno}"
            raise KeyboardInterrupt


def properties() -> Iterator[CodeType]:
    """The code of all properties: reading one is no call."""
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("pyredisson.")]
    kinds = [kind for module in modules for kind in vars(module).values() if isinstance(kind, type)]
    for kind in kinds:
        for value in vars(kind).values():
            if isinstance(value, property) and isinstance(value.fget, FunctionType):
                yield value.fget.__code__


PROPERTIES = set(properties())


def sleeps(client: pyredisson.Client, owner: int) -> bool:
    """Whether the call of this owner waits, and hears of a release."""
    queue = client._session.lock_queues.get(b"a")
    channel = None if queue is None else queue.channel
    if queue is None or channel is None or not channel.confirmed:
        return False
    return any(waiter.call.owner.id == owner and waiter.state is WAITING for waiter in list(queue.waiters))


class Contender(threading.Thread):
    """Acquires the lock and releases it, with an interrupt in the middle of the acquire perhaps."""

    def __init__(self, client: pyredisson.Client, owner: int, interrupt: Interrupt | None = None) -> None:
        super().__init__(daemon=True)
        self.lock = client.get_lock("a", owner=owner)
        self.owner = owner
        self.interrupt = interrupt
        self.acquired = self.interrupted = False

    def run(self) -> None:
        try:
            if self.interrupt is None:
                self.lock.lock()
            else:
                with self.interrupt.here():
                    self.lock.lock()
        except KeyboardInterrupt:
            self.interrupted = True
        else:
            self.acquired = True
            self.lock.unlock()

    def end(self, where: str) -> None:
        self.join(LIMIT)
        assert not self.is_alive(), f"owner {self.owner} is forgotten: {where}"


def nothing_is_left(client: pyredisson.Client, admin: Redis, where: str) -> None:
    session = client._session
    end = time.monotonic() + LIMIT
    while admin.exists("a") or session.lock_queues or session.channels.waiting:
        assert time.monotonic() < end, (where, admin.hgetall("a"), session.lock_queues, session.channels.waiting)
        time.sleep(0.002)
    for owner in (1, 2, 3):
        logic = client.get_lock("a", owner=owner)._logic
        assert logic.hold_of(owner) is None, where


pytestmark = [
    pytest.mark.slow,
    # A connection, or a coroutine that has not begun, is collected if its only user is interrupted.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.mark.parametrize("way", ["handed on", "message"])
def test_a_waiter_is_interrupted(server: Server, admin: Redis, way: str) -> None:
    """It gets nothing; the waiter behind it gets the lock."""
    interrupts = 0
    with (
        pyredisson.connect(server.url, local_hand_over_time=60) as client,
        pyredisson.connect(server.url) as other,
    ):
        holder = (client if way == "handed on" else other).get_lock("a", owner=1)
        while True:
            interrupt = Interrupt(interrupts + 1)
            holder.lock()
            first, behind = Contender(client, 2, interrupt), Contender(client, 3)
            first.start()
            eventually(lambda: sleeps(client, 2) or not first.is_alive(), LIMIT)  # noqa: B023
            behind.start()
            eventually(lambda: sleeps(client, 3), LIMIT)
            holder.unlock()
            first.end(interrupt.where)
            behind.end(interrupt.where)
            assert first.interrupted is bool(interrupt.where)
            assert behind.acquired
            nothing_is_left(client, admin, interrupt.where)
            if not interrupt.where:
                break
            interrupts += 1
    assert interrupts > 50


@pytest.mark.parametrize("seconds", [60, 0])
def test_a_release_is_interrupted(server: Server, admin: Redis, seconds: float) -> None:
    """It happens all the same, with a hand-over and with a message. Both waiters get the lock."""
    interrupts = 0
    with pyredisson.connect(server.url, local_hand_over_time=seconds) as client:
        holder = client.get_lock("a", owner=1)
        while True:
            interrupt = Interrupt(interrupts + 1)
            holder.lock()
            others = [Contender(client, owner) for owner in (2, 3)]
            for other in others:
                other.start()
                eventually(lambda: sleeps(client, other.owner), LIMIT)  # noqa: B023
            interrupted = False
            try:
                with interrupt.here():
                    holder.unlock()
            except KeyboardInterrupt:
                interrupted = True
            assert interrupted is bool(interrupt.where)
            for other in others:
                other.end(interrupt.where)
                assert other.acquired
            nothing_is_left(client, admin, interrupt.where)
            if not interrupt.where:
                break
            interrupts += 1
    assert interrupts > 30
