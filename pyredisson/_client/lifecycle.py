"""What both faces are built on: one client's connections, threads, owners' names, fork and exit."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import uuid
import warnings
import weakref
from collections.abc import Callable
from typing import Protocol

from pyredisson._backends.clock import clock
from pyredisson._backends.thread_start import start_thread
from pyredisson._backends.threads.operations import run, start
from pyredisson._backends.threads.runtime import ThreadRuntime
from pyredisson._client.callbacks import Callbacks
from pyredisson._client.final_release import FinalRelease
from pyredisson._client.gevent_check import check_not_patched
from pyredisson._diagnostics import logger
from pyredisson._protocol.node import Node
from pyredisson._settings.config import Config
from pyredisson._settings.durations import lease_ms
from pyredisson.logic import holds
from pyredisson.logic.channels import ChannelRegistry, Subscriber
from pyredisson.logic.lost_callbacks import Callback
from pyredisson.logic.ports import Runtime
from pyredisson.logic.session import Resources, Session
from pyredisson.logic.watchdog import ROUNDS_PER_LEASE, Loop

SHORTEST_PATIENCE = 0.05
"""Seconds that the watchdog waits for a reply at least, however short the lease."""
FAREWELL = 1.0
"""Seconds that giving back what is held may take when a client is closed or the interpreter ends."""
SHORTEST_FAREWELL = 0.02
"""Seconds for a client whose turn comes when the others have used up the time."""


class Connections(Runtime, Protocol):
    """A world's runtime."""

    @property
    def connected(self) -> bool:
        """Whether there is a connection that is not closed."""

    def drop(self) -> None:
        """Ends the connections of a client that nothing refers to any more; on any thread, with no lock and no wait."""


class Listening(Subscriber, Protocol):
    """A world's subscription."""

    def drop(self) -> None:
        """Ends listening; on any thread, with no lock and no wait."""


class Callers(Protocol):
    """Which owner the calling thread or task is."""

    def begin(self, session: Session) -> None:
        """Forgets all owners: the session is new, or the process was forked."""


class ClientLifecycle:
    """One client without its API: opens, closes and drops its session, and resets it after a fork."""

    def __init__(
        self,
        config: Config,
        callers: Callers,
        connect: Callable[[Node, ChannelRegistry, Callable[[bytes], None]], tuple[Connections, Listening]],
    ) -> None:
        """`connect` makes the backend's runtime and subscriber; the function that it is given is `Runtime.post`."""
        check_not_patched()
        self.config = config
        self._callers = callers
        self._connect = connect
        self.session = Session(config, self)
        callers.begin(self.session)
        _lifecycles.add(self)

    def reset_after_fork(self) -> None:
        """In the child: becomes a new client, with nothing of its parent's."""
        self.session.reset_after_fork()
        self._callers.begin(self.session)

    def open(self, post: Callable[[bytes], None]) -> Resources:
        """For the session, which is new or was forked."""
        self._callbacks = Callbacks()
        self._left: dict[bytes, None] = {}
        """Commands for the farewell."""
        self._collecting = False
        """Whether somebody is going to look at them again."""
        self._turn = threading.RLock()
        self._starting = threading.RLock()
        self.node = Node(self.config)
        self.node.client_id = str(uuid.uuid4())
        channels = ChannelRegistry(clock)
        self._runtime, self._subscriber = self._connect(self.node, channels, post)
        channels.attach(self._subscriber)
        # One lost reply, waited for with the usual timeout, would cost a lock with a short lease.
        timeout = max(SHORTEST_PATIENCE, lease_ms(self.config.lock_watchdog_timeout) / 1000 / ROUNDS_PER_LEASE / 2)
        self._watchdog_runtime = ThreadRuntime(self.node.with_timeout(timeout), _never, size=2)
        return Resources(self.node.client_id, self._runtime, self._watchdog_runtime, channels)

    def start_loop(self, loop: Loop) -> None:
        start(loop, f"pyredisson-{loop.__name__.replace('_', '-')}")

    def __del__(self) -> None:
        """Ends the threads and connections of a client that was dropped; a hold would have kept it alive.

        The garbage collector calls this on any thread, in the middle of anything: it takes no lock and waits for
        nothing.
        """
        session = getattr(self, "session", None)
        if session is None or sys.is_finalizing():
            return
        unclosed = not session.closed and (session.watchdog.started or self._runtime.connected)
        try:
            session.closed = True
            session.watchdog.close()
            self._left.update((payload, None) for payload in session.local_queues.leave_commands())
            self._left.update(dict.fromkeys(session.watchdog.repairs.pending()))
        finally:
            self._drop_connections()
            if self._left:
                _leave(self)
            if unclosed:
                text = f"client {session.id} was dropped without close()"
                warnings.warn(text, ResourceWarning, stacklevel=2, source=self)

    def _drop_connections(self) -> None:
        """Also of a client whose `close` was interrupted."""
        try:
            self._watchdog_runtime.drop()
        finally:
            try:
                self._subscriber.drop()
            finally:
                self._runtime.drop()

    def end(self) -> None:
        """Ends waiting and renewing; `send_final_releases` must follow, after the connections were closed."""
        session = self.session
        try:
            if not session.closed:
                self._collecting = True
                # Before they wake: then none of them has to say it for itself.
                self._left.update((payload, None) for payload in session.local_queues.leave_commands())
                self._left.update((hold.commands.abandon(hold), None) for hold in session.close())
        finally:
            run(self._watchdog_runtime.close)

    def send_final_releases(self, seconds: float = FAREWELL) -> None:
        """Sends what must still be sent, over a connection of its own, and lets `on_lost` callbacks end.

        Waits for calls that are under way on other threads: what they leave is part of it. In about so many seconds.
        What an interrupt left unsaid, the next call says.
        """
        deadline = clock() + seconds
        # One at a time. Re-entrant: a finalizer may close a client anywhere.
        if self._turn.acquire(timeout=seconds):
            try:
                self._collecting = True
                self._left.update(dict.fromkeys(self.session.watchdog.repairs.pending()))
                FinalRelease(self.config, self.node, self._left, deadline).say(self._calls, self._cut, self.session.id)
                self.session.watchdog.repairs.clear()
            finally:
                self._collecting = False
                self._turn.release()
        self._callbacks.close(max(SHORTEST_FAREWELL, deadline - clock()))
        if self._left:
            # Left after the last look.
            self._say_late()

    def send_last(self, payload: bytes) -> None:
        """For a call that was under way while the client was closed."""
        self._left[payload] = None
        if not self._collecting:
            self._say_late()

    def _say_late(self) -> None:
        with self._starting:
            if self._collecting:
                return
            # Whoever comes now is heard by the thread that is about to start.
            self._collecting = True
        try:
            # Not a daemon: the program may end now.
            start_thread(threading.Thread(target=self.send_final_releases, name="pyredisson-farewell"))
        except RuntimeError:
            # There can't be another thread, as at the end of the interpreter.
            self.send_final_releases()

    def _calls(self) -> int:
        runtime = self.session.runtime
        return runtime.calls_in_flight if isinstance(runtime, ThreadRuntime) else 0

    def _cut(self) -> None:
        runtime = self.session.runtime
        if isinstance(runtime, ThreadRuntime):
            runtime.abort_calls()

    def run_callback(self, callback: Callback) -> None:
        self._callbacks.call(callback)


_lifecycles: weakref.WeakSet[ClientLifecycle] = weakref.WeakSet()
_leaving: dict[ClientLifecycle, None] = {}
"""Dropped clients that still have something to send."""


def _leave(lifecycle: ClientLifecycle) -> None:
    """Says the farewell of a dropped client on another thread; at the interpreter's exit at the latest."""
    _leaving[lifecycle] = None

    def say() -> None:
        try:
            lifecycle.send_final_releases()
        finally:
            _leaving.pop(lifecycle, None)

    # A daemon: starting any other takes a lock of `threading`, which this thread may have right now.
    with contextlib.suppress(RuntimeError):
        start_thread(threading.Thread(target=say, name="pyredisson-farewell", daemon=True))


def _never(_: bytes) -> None:
    # The shared part of the client here would be kept alive by the watchdog's threads, which wait in their runtime.
    raise AssertionError("the watchdog posts nothing")


def lifecycles() -> list[ClientLifecycle]:
    """Of all clients in this process."""
    return list(_lifecycles)


def close_at_once(lifecycle: ClientLifecycle, deadline: float) -> None:
    """The farewell of an engine that was ended while a thread is interrupted and can't go on, whatever it is doing."""
    left = lifecycle._left
    left.update(dict.fromkeys(lifecycle.session.watchdog.repairs.pending()))
    # It doesn't take its turn: the interrupted thread may have that.
    final = FinalRelease(lifecycle.config, lifecycle.node, left, deadline)
    final.say(lifecycle._calls, lifecycle._cut, lifecycle.session.id, interrupted=True)


def _at_exit() -> None:
    # One deadline for all clients: behind hung servers each of them would use up its own.
    deadline = clock() + FAREWELL
    for lifecycle in [*_lifecycles, *list(_leaving)]:
        try:
            lifecycle.end()
            lifecycle.send_final_releases(max(SHORTEST_FAREWELL, deadline - clock()))
        except Exception:  # noqa: BLE001
            logger.exception("a client could not be closed; the others are")


def _after_fork() -> None:
    # The child owns nothing: what its parent holds it can neither renew nor give back.
    holds.after_fork()
    _leaving.clear()
    for lifecycle in list(_lifecycles):
        lifecycle.reset_after_fork()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_after_fork)
