"""One client without its API: how it is made, closed, dropped, and reset after a fork."""

import contextlib
import sys
import threading
import uuid
import warnings
import weakref
from collections.abc import Callable
from functools import partial
from typing import Protocol

from pyredisson._backends.runtime import clock, start_thread
from pyredisson._backends.threads.runtime import ThreadBackend, run
from pyredisson._client.callbacks import CallbackThreads, Delivery
from pyredisson._client.final_release import THREAD_NAME, FinalRelease
from pyredisson._client.servers import Servers, SeveralServers, SingleServer
from pyredisson._settings.config import Config
from pyredisson.errors import ConfigError
from pyredisson.logic.channels import ChannelRegistry
from pyredisson.logic.groups.group import GroupRegistry
from pyredisson.logic.locks.fair_queue import FairQueues
from pyredisson.logic.loops import Loop
from pyredisson.logic.losses import Callback
from pyredisson.logic.observing import Observing
from pyredisson.logic.permits.permit_queue import PermitRegistry
from pyredisson.logic.ports import Runtime
from pyredisson.logic.renewer import ROUNDS_PER_LEASE
from pyredisson.logic.session import Resources, Session

SHORTEST_REPLY_TIMEOUT = 0.05
"""Seconds: the shortest timeout of the watchdog's commands, which depends on the lease."""
CLOSE_TIMEOUT = 1.0
"""Seconds that the release of all holds may take when a client is closed or the interpreter exits."""
WITHDRAWAL_TIMEOUT = 0.2
"""The same for a client that has nothing to release, and is only to be forgotten by others."""
SHORTEST_CLOSE_TIMEOUT = 0.02
"""Seconds for a client that is closed after others have used up the time."""
DELIVERY_TIMEOUT = 0.2
"""Seconds that an observer has for the last events of a client that is closed."""


def registries() -> tuple[FairQueues, GroupRegistry, PermitRegistry]:
    return FairQueues(), GroupRegistry(), PermitRegistry()


class Connections(Runtime, Protocol):
    @property
    def connected(self) -> bool: ...
    def drop(self) -> None: ...


Made = tuple[Connections, Callable[[], None], ChannelRegistry]
"""The runtime of a backend, the `drop` of its subscriptions, and the channels."""


class ClientLifecycle:
    """Makes a session, and is its `Host`. Ends the session when the client is closed or dropped."""

    def __init__(
        self,
        config: Config,
        begin: Callable[[Session], None],
        connect: Callable[[Servers, Callable[[bytes], None]], Made],
    ) -> None:
        """`begin` forgets all owners: the session is new, or the process was forked. The last argument of `connect`
        sends an idempotent command over the connections of the watchdog, in the background."""
        check_not_patched(tls=config.ssl or config.sentinel_ssl)
        self.config = config
        self._begin = begin
        self._connect = connect
        self.session = Session(config, self)
        begin(self.session)
        _living[self] = None

    def reset_after_fork(self) -> None:
        """In the child: becomes a new client, without anything that belongs to the parent."""
        for runtime in (self._runtime, self._watchdog_runtime):
            if isinstance(runtime, ThreadBackend):
                # Otherwise Python warns of sockets that were not closed. The parent's connections stay open.
                runtime.close_idle()
        self.session.open()
        self._begin(self.session)

    # --- What the session needs (`Host`)

    def open(self, post: Callable[[bytes], None]) -> Resources:
        """For a new session, and again after a fork. The mutexes are new, too: threads of the parent may hold them."""
        self._callback_threads = CallbackThreads()
        self._unsent: dict[bytes, bool] = {}
        """The commands of the final release, in their order, and whether they release something."""
        self._release_coming = False
        """Whether a final release is running or starting, which also sends what is added to `_unsent` from now on."""
        # Both are re-entrant: a finalizer may close a client on any line.
        self._releasing = threading.RLock()
        self._starting = threading.RLock()
        client_id = str(uuid.uuid4())
        observer = self.config.observer
        self.delivery = None if observer is None else Delivery(observer, client_id)
        observing = None
        if (told := self.delivery) is not None:
            observing = Observing(told.handlers, told.queue, told.wake, client_id, clock)
        observe = None if observing is None else observing.availability_changed
        servers = SingleServer if self.config.topology == "single" else SeveralServers
        self.servers: Servers = servers(self.config, client_id, observe)
        self._runtime, self._drop_subscriptions, channels = self._connect(self.servers, post)
        self._watchdog_runtime = self.servers.watchdog_runtime()
        return Resources(client_id, self._runtime, self._watchdog_runtime, channels, *registries(), observing)

    def expect_lease(self, lease: int) -> None:
        # With the usual timeout, one lost reply would cost a lock with a short lease.
        with self._starting:
            self._watchdog_runtime.limit_timeout(max(SHORTEST_REPLY_TIMEOUT, lease / 1000 / ROUNDS_PER_LEASE / 2))

    def start_loop(self, loop: Loop) -> None:
        start_thread(partial(run, loop), f"pyredisson-{loop.__name__.replace('_', '-')}")

    def run_callback(self, callback: Callback) -> None:
        self._callback_threads.call(callback)

    def send_last(self, payload: bytes, *, releases: bool = True) -> None:
        """Sends a command of a call that was in flight when the client was closed. One that releases nothing is sent
        with others, or not at all: perhaps a finalizer calls this, and can't start a thread."""
        if releases or self._release_coming:
            self._unsent[payload] = releases
        if releases and not self._release_coming:
            self._start_final_release()

    # --- Closing

    def end(self) -> None:
        """Ends waiting and renewal, and what threads are about to send. In asyncio the connections must be closed next.
        Then `send_final_releases` must be called."""
        session = self.session
        try:
            # With holds in its table: an interrupt has ended the first call.
            if not session.closed or session.holds.table:
                # Before any waiter wakes: else each would start a final release of its own.
                self._release_coming = True
                self._leave_lists()
                self._unsent.update((hold.commands.abandon(hold), True) for hold in session.close())
                self._announce_end()
        finally:
            with contextlib.ExitStack() as steps:
                steps.callback(run, self._watchdog_runtime.close)
                steps.callback(self.servers.close)
                # A call that pauses before it is sent again ends now, and no call is sent any more. What was posted in
                # an event loop that is closed becomes a part of the final release.
                steps.callback(self._runtime.drop)

    def send_final_releases(self, seconds: float = CLOSE_TIMEOUT) -> None:
        """Sends all unsent commands over a new connection, and waits for `on_lost` callbacks that are running.

        Calls in flight on other threads add commands when they find the client closed: it waits for these calls, too.
        All this takes about so many seconds at most. If it is interrupted, the next call sends the rest.
        """
        seconds = max(SHORTEST_CLOSE_TIMEOUT, seconds)
        deadline = clock() + seconds
        # One final release at a time.
        if self._releasing.acquire(timeout=seconds):
            try:
                self._release_coming = True
                self._final_release(deadline).send()
                self.session.watchdog.clear_repairs()
            finally:
                self._release_coming = False
                self._releasing.release()
        self._callback_threads.close(max(SHORTEST_CLOSE_TIMEOUT, deadline - clock()))
        self._deliver_last_events(deadline)
        # Added after the final release looked for the last time. Another one is only made for what releases something.
        for payload in [payload for payload, releases in list(self._unsent.items()) if not releases]:
            self._unsent.pop(payload, None)
        if self._unsent:
            self._start_final_release()

    def send_final_releases_in_handler(self, deadline: float) -> None:
        """The same after `end`, in a signal handler. The main thread, interrupted on any line, may hold any mutex and
        can't go on: so no mutex is taken, and its call in flight is not waited for."""
        self._final_release(deadline).send(main_thread_stopped=True)
        self._deliver_last_events(deadline)

    def _deliver_last_events(self, deadline: float) -> None:
        if self.delivery is not None:
            left = deadline + DELIVERY_TIMEOUT - clock()
            self.delivery.close(min(DELIVERY_TIMEOUT, max(SHORTEST_CLOSE_TIMEOUT, left)))

    def _start_final_release(self) -> None:
        with self._starting:
            if self._release_coming:
                return
            # From here on other threads leave their commands to the thread that is about to start.
            self._release_coming = True
        try:
            # Not a daemon: the program may end now.
            start_thread(self.send_final_releases, THREAD_NAME, daemon=False)
        except RuntimeError:
            # No thread can be started. While the interpreter exits, this thread can't send either: modules are gone.
            # What a task has acquired that only the exit ends, stays until its lease ends, as after a kill.
            if not sys.is_finalizing():
                self.send_final_releases()

    def _final_release(self, deadline: float) -> FinalRelease:
        self._unsent.update(dict.fromkeys(self.session.watchdog.pending_repairs(), True))
        runtime = self.session.runtime
        # The calls of threads only: in asyncio, `close` waits for its calls itself before the final release.
        calls = runtime if isinstance(runtime, ThreadBackend) else None
        in_flight = calls is not None and calls.calls_in_flight
        if self._unsent and not in_flight and not any(list(self._unsent.values())):
            deadline = min(deadline, clock() + WITHDRAWAL_TIMEOUT)
        return FinalRelease(self.session.id, self.servers, self._unsent, deadline, calls)

    def _announce_end(self) -> None:
        """Has the final release tell others that this client ends."""
        announcement = self.session.announcement
        payload = None if announcement is None else announcement.last(self.session.runtime.scripts)
        if payload is not None:
            self._unsent[payload] = False

    def _leave_lists(self) -> None:
        """Has the final release take this client out of the lists of clients that wait: others come next."""
        self._unsent.update(dict.fromkeys(self.session.fair_queues.leave_commands(), True))
        for payload in self.session.leave_commands():
            self._unsent[payload] = False

    # --- Dropping

    def __del__(self) -> None:
        """Ends the threads and connections of a client that was dropped. It holds no lock: a hold keeps it alive. The
        garbage collector calls this on any thread, on any line: so it takes no mutex and never blocks."""
        session = getattr(self, "session", None)
        if session is None or sys.is_finalizing():
            return
        unclosed = not session.closed and (session.watchdog.started or self._runtime.connected)
        try:
            session.drop()
            self._leave_lists()
            self._unsent.update(dict.fromkeys(session.watchdog.pending_repairs(), True))
            self._announce_end()
        finally:
            # What was posted in an event loop that is closed starts no final release, but is a part of the one below.
            self._release_coming = True
            self._drop_connections()
            self._release_coming = False
            if self.delivery is not None:
                self.delivery.end()
            if self._unsent:
                _release_dropped(self)
            if unclosed:
                text = f"client {session.id} was dropped without close()"
                warnings.warn(text, ResourceWarning, stacklevel=2, source=self)

    def _drop_connections(self) -> None:
        # Also if the client is closed already: its `close` may have been interrupted.
        with contextlib.ExitStack() as steps:
            # The last one first; each is called even if one before it raises.
            for drop in (self._runtime.drop, self._drop_subscriptions, self._watchdog_runtime.drop, self.servers.close):
                steps.callback(drop)


_living: weakref.WeakKeyDictionary[ClientLifecycle, None] = weakref.WeakKeyDictionary()
dropped_clients: dict[ClientLifecycle, None] = {}
"""Dropped clients that still have something to send."""


def live_clients() -> list[ClientLifecycle]:
    """All clients of this process that were not dropped, closed ones among them."""
    return [client for reference in _living.keyrefs() if (client := reference()) is not None]


def _release_dropped(lifecycle: ClientLifecycle) -> None:
    """Sends the commands of a dropped client on another thread, or when the interpreter exits."""
    dropped_clients[lifecycle] = None

    def send() -> None:
        try:
            lifecycle.send_final_releases()
        finally:
            dropped_clients.pop(lifecycle, None)

    # A daemon: the start of any other thread takes a mutex of `threading`, which this thread may hold right now.
    with contextlib.suppress(RuntimeError):
        start_thread(send, THREAD_NAME)


NEEDED = ("socket", "_thread", "threading")
"""Modules that must be Python's own: calls use the descriptor of a blocking socket, renewals need a real thread."""


def check_not_patched(*, tls: bool) -> None:
    """Raises `ConfigError` if gevent or eventlet has replaced one of them, or `ssl` for `tls`: calls would fail."""
    gevent, eventlet = sys.modules.get("gevent.monkey"), sys.modules.get("eventlet.patcher")
    if gevent is not None:
        replaced = [name for name in (*NEEDED, *["ssl"] * tls) if gevent.is_module_patched(name)]
        _refuse(replaced, "gevent", "monkey.patch_all(socket=False, thread=False" + ", ssl=False" * tls + ")")
    if eventlet is not None:
        # By the names that it uses. It replaces `ssl` together with `socket`.
        replaced = [name for name in ("socket", "thread") if eventlet.is_monkey_patched(name)]
        _refuse(replaced, "eventlet", "eventlet.monkey_patch(socket=False, thread=False)")


def _refuse(replaced: list[str], library: str, instead: str) -> None:
    if replaced:
        raise ConfigError(
            f"{library} has replaced these modules: {', '.join(replaced)}. pyredisson needs Python's own."
            f" Call {instead}, or use the locks in a process without {library}"
        )
