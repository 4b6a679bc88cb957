"""Ctrl-C at each moment of a call: nothing is left behind, nobody else waits longer, and what was told has its end."""

from __future__ import annotations

import contextlib
import gc
import inspect
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType, FunctionType

import pytest
from redis import Redis

import pyredisson
from pyredisson.logic.handed_waiter import WAITING
from pyredisson.testing import Server
from tests.support.observers import Recorder, check_pairs, everything_told, told, whats
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
    """Acquires the lock and releases it."""

    def __init__(self, client: pyredisson.Client, owner: int, interrupt: Interrupt | None = None) -> None:
        super().__init__(daemon=True)
        self.lock = client.get_lock("a", owner=owner)
        self.owner = owner
        self.interrupt = interrupt
        self.acquired = self.interrupted = False

    def run(self) -> None:
        self.interrupted = strikes(self.interrupt, self.lock.lock)
        if not self.interrupted:
            self.acquired = True
            self.lock.unlock()

    def end(self, where: str) -> None:
        self.join(LIMIT)
        assert not self.is_alive(), f"owner {self.owner} is forgotten: {where}"


def strikes(interrupt: Interrupt | None, call: Callable[[], object]) -> bool:
    """Makes the call, and tells whether it was interrupted."""
    try:
        with contextlib.nullcontext() if interrupt is None else interrupt.here():
            call()
    except KeyboardInterrupt:
        return True
    return False


def until_asleep(client: pyredisson.Client, contender: Contender) -> None:
    contender.start()
    eventually(lambda: sleeps(client, contender.owner) or not contender.is_alive(), LIMIT)


def at_each_moment(client: pyredisson.Client, admin: Redis, scenario: Callable[[Interrupt], None], least: int) -> None:
    """Runs the scenario with an interrupt at another moment each time, until there is no such moment."""
    session, where, step = client._session, "begin", 0
    while where:
        step += 1
        interrupt = Interrupt(step)
        scenario(interrupt)
        where = interrupt.where
        end = time.monotonic() + LIMIT
        while admin.exists("a") or session.lock_queues or session.channels.waiting:
            assert time.monotonic() < end, (where, admin.hgetall("a"), session.lock_queues, session.channels.waiting)
            time.sleep(0.002)
        assert not any(client.get_lock("a", owner=owner)._logic.hold_of(owner) for owner in (1, 2, 3)), where
        check_pairs(told(client), where)
        everything_told(client).clear()
    assert step > least


pytestmark = [
    pytest.mark.slow,
    # A connection, or a coroutine that has not begun, is collected if its only user is interrupted.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.mark.parametrize("call", ["acquire", "release"])
def test_an_uncontended_call(server: Server, admin: Redis, call: str) -> None:
    """A release happens all the same."""
    with pyredisson.connect(server.url, observer=Recorder()) as client:
        lock = client.get_lock("a", owner=1)

        def scenario(interrupt: Interrupt) -> None:
            if call == "acquire":
                interrupted = strikes(interrupt, lock.lock)
                assert interrupted is bool(interrupt.where)
                if not interrupted:
                    lock.unlock()
            else:
                lock.lock()
                strikes(interrupt, lock.unlock)
            if call == "release" or not interrupt.where:
                eventually(lambda: whats(told(client)) == ["acquired", "released"], LIMIT)

        at_each_moment(client, admin, scenario, 20 if call == "acquire" else 15)


@pytest.mark.parametrize("way", ["handed on", "message"])
def test_a_waiter_is_interrupted(server: Server, admin: Redis, way: str) -> None:
    """It gets nothing; the waiter behind it gets the lock."""
    with (
        pyredisson.connect(server.url, local_hand_over_time=60, observer=Recorder()) as client,
        pyredisson.connect(server.url) as other,
    ):
        holder = (client if way == "handed on" else other).get_lock("a", owner=1)

        def scenario(interrupt: Interrupt) -> None:
            holder.lock()
            first, behind = Contender(client, 2, interrupt), Contender(client, 3)
            until_asleep(client, first)
            until_asleep(client, behind)
            holder.unlock()
            first.end(interrupt.where)
            behind.end(interrupt.where)
            assert first.interrupted is bool(interrupt.where)
            assert behind.acquired

        at_each_moment(client, admin, scenario, 50)


@pytest.mark.parametrize("seconds", [60, 0])
def test_a_release_is_interrupted(server: Server, admin: Redis, seconds: float) -> None:
    """It happens all the same, with a hand-over and with a message. Both waiters get the lock."""
    with pyredisson.connect(server.url, local_hand_over_time=seconds, observer=Recorder()) as client:
        holder = client.get_lock("a", owner=1)

        def scenario(interrupt: Interrupt) -> None:
            holder.lock()
            others = [Contender(client, owner) for owner in (2, 3)]
            for other in others:
                until_asleep(client, other)
            assert strikes(interrupt, holder.unlock) is bool(interrupt.where)
            for other in others:
                other.end(interrupt.where)
                assert other.acquired

        at_each_moment(client, admin, scenario, 30)
