"""What both faces are built on: one client's connections, threads, owners' names, fork and exit."""

from __future__ import annotations

import atexit
import dataclasses
import os
import queue
import threading
import weakref
from collections.abc import Callable

from redis.exceptions import NoScriptError, RedisError

from pyredisson.config import Config
from pyredisson.logic import holds
from pyredisson.logic.holds import logger
from pyredisson.logic.hub import Hub, Subscriber
from pyredisson.logic.shared import Callback, Shared
from pyredisson.logic.watchdog import ROUNDS_A_LEASE, Watchdog
from pyredisson.runtime import Cut, Runtime
from pyredisson.scripts import as_eval
from pyredisson.threads import ThreadRuntime, clock, run, start
from pyredisson.wire.blocking import Connection
from pyredisson.wire.node import Node

SHORTEST_PATIENCE = 0.05
"""Seconds that the watchdog waits for a reply at least, however short the lease."""
FAREWELL = 1.0
"""Seconds that giving back what is held may take when a client is closed or the interpreter ends."""
SHORTEST_FAREWELL = 0.02
"""Seconds for a client whose turn comes when the others have used up the time."""
FAREWELL_BATCH = 1000


class Engine:
    """A client without a face. `connect` makes the face's world: its runtime and its subscriber."""

    def __init__(
        self,
        config: Config,
        connect: Callable[[Engine, Hub], tuple[Runtime, Subscriber]],
    ) -> None:
        self.config = config
        self.shared = Shared(config, _start_watchdog, self._notify)
        self._connect = connect
        self.begin()
        _engines.add(self)

    def begin(self) -> None:
        """As a client that owns nothing and has talked to nobody."""
        self._errands: queue.SimpleQueue[Callback | None] = queue.SimpleQueue()
        self._messenger: threading.Thread | None = None
        self.node = Node(self.config)
        hub = Hub(clock)
        runtime, subscriber = self._connect(self, hub)
        hub.attach(subscriber)
        # One lost reply, waited for with the usual patience, would cost a lock with a short lease.
        patience = max(SHORTEST_PATIENCE, self.shared.lease / 1000 / ROUNDS_A_LEASE / 2)
        self._watchdog_runtime = ThreadRuntime(self.node.hurried(patience), self.shared.repair, size=2)
        self.shared.begin(runtime, self._watchdog_runtime, hub)
        self.node.client_id = self.shared.id

    def end(self) -> list[bytes]:
        """Ends waiting and renewing; returns the commands that give back what is held, for `say_farewell`."""
        shared = self.shared
        if shared.closed:
            return []
        left = shared.watchdog.unrepaired()
        for hold in shared.close():
            left.append(hold.lock.release_command(hold))
        self._errands.put(None)
        run(self._watchdog_runtime.close)
        return left

    def say_farewell(self, payloads: list[bytes], seconds: float = FAREWELL) -> None:
        """Sends what must still be sent, once, over a connection of its own, and lets `on_lost` callbacks end.

        In about so many seconds.
        """
        deadline = clock() + seconds
        if payloads:
            self._send_last(payloads, seconds)
        if self._messenger is not None and self._messenger is not threading.current_thread():
            self._messenger.join(max(SHORTEST_FAREWELL, deadline - clock()))

    def _send_last(self, payloads: list[bytes], seconds: float) -> None:
        config = dataclasses.replace(self.config, timeout=seconds / 2, connect_timeout=seconds / 2)
        node = Node(config)
        connection = Connection(node)
        try:
            connection.open()
            for first in range(0, len(payloads), FAREWELL_BATCH):
                batch = payloads[first : first + FAREWELL_BATCH]
                replies = connection.call_all(batch)
                unknown = [
                    as_eval(payload, flags=node.scripts.flags)
                    for payload, reply in zip(batch, replies, strict=True)
                    if isinstance(reply, NoScriptError)
                ]
                if unknown:
                    connection.call_all(unknown)
        except (Cut, RedisError) as error:
            logger.warning(
                "%d locks were not given back and end with their leases: %s",
                len(payloads),
                error,
            )
        finally:
            connection.close()

    def _notify(self, callback: Callback) -> None:
        """Calls a user's function on a thread that nobody waits for."""
        if self._messenger is None:
            self._messenger = threading.Thread(target=self._deliver, name="pyredisson-on-lost", daemon=True)
            self._messenger.start()
        self._errands.put(callback)

    def _deliver(self) -> None:
        while (callback := self._errands.get()) is not None:
            try:
                callback()
            except Exception:  # noqa: BLE001
                # A user's function: whatever it raises.
                logger.exception("an on_lost callback failed")


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


def _start_watchdog(watchdog: Watchdog) -> None:
    start(watchdog.keep_time, "pyredisson-timekeeper")
    start(watchdog.renew, "pyredisson-watchdog")


def _at_exit() -> None:
    # One deadline for all clients: behind hung servers each of them would use up its own.
    deadline = clock() + FAREWELL
    for engine in list(_engines):
        engine.say_farewell(engine.end(), max(SHORTEST_FAREWELL, deadline - clock()))


def _after_fork() -> None:
    # The child owns nothing: what its parent holds it can neither renew nor give back.
    holds.after_fork()
    for engine in list(_engines):
        engine.begin()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_after_fork)
