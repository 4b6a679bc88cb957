"""The connections of the threads of one client to one node."""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence

from redis.exceptions import TimeoutError

from pyredisson._backends.threads.connection import Connection
from pyredisson._backends.threads.wakeup import ThreadWakeup
from pyredisson._protocol.no_reply import NoReply, Reply
from pyredisson._protocol.node import Node
from pyredisson.errors import ClosedError


class Pool:
    """The connections of one client to one node; a thread has one for the time of a call.

    A signal may strike between any two lines here, so nothing is counted that an interrupt could leave
    wrong: a connection counts for as long as it exists.
    """

    def __init__(self, node: Node, size: int) -> None:
        self.node = node
        self._size = size
        self._idle: list[Connection] = []
        self._all: weakref.WeakSet[Connection] = weakref.WeakSet()
        # Re-entrant: a garbage collection may end a `with` block of the same thread in here, which sends its release.
        self._making = threading.RLock()
        self._waiting: deque[ThreadWakeup] = deque()
        self._attention = False
        """Whether more than going back to the others may be due when a connection returns."""
        self._closed = False

    async def send(self, payload: bytes, *, new_connection: bool = False) -> Reply:
        """One command over an idle connection, or a new one. Blocks, and never suspends.

        With `new_connection` over a new one: where one failed the idle ones are likely to, and are closed.
        """
        try:
            connection = self._one(new_connection=True) if new_connection else self._idle.pop()
        except IndexError:
            connection = self._another()
        try:
            return connection.call(payload)
        except NoReply as cut:
            if new_connection or not cut.stale:
                raise
        finally:
            if connection.closed:
                self._end(connection)
            else:
                self._idle.append(connection)
            if self._attention:
                self._returned()
        # The server has closed it while it lay idle.
        return await self.send(payload, new_connection=True)

    async def send_identified(self, payload: bytes, *, new_connection: bool = False) -> tuple[Reply, bytes | None]:
        """As `send`, with the identity of the server that answered."""
        connection = self._one(new_connection=new_connection)
        try:
            return connection.call(payload), connection.server_id
        except NoReply as cut:
            if new_connection or not cut.stale:
                raise
        finally:
            self._back(connection)
        return await self.send_identified(payload, new_connection=True)

    async def send_all(self, payloads: Sequence[bytes], *, new_connection: bool = False) -> list[Reply]:
        """Several commands in one write; error replies stand in the list."""
        connection = self._one(new_connection=new_connection)
        try:
            return connection.call_all(payloads)
        except NoReply as cut:
            if new_connection or not cut.stale:
                raise
        finally:
            self._back(connection)
        return await self.send_all(payloads, new_connection=True)

    def clear(self) -> None:
        """Closes what is idle."""
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:
                return
            self._end(connection)

    @property
    def in_use(self) -> int:
        """How many calls have a connection, or wait for one."""
        return max(0, len(self._all) - len(self._idle)) + len(self._waiting)

    def abort_calls(self) -> None:
        """Ends calls that still wait for a reply: each finds its connection closed."""
        while True:
            try:
                connections = list(self._all)
            except RuntimeError:
                # A call ended in another thread, and its connection went out of the set.
                continue
            for connection in connections:
                connection.shut()
            return

    async def close(self) -> None:
        """Closes every connection, those in use when they come back."""
        self._closed = self._attention = True
        self.clear()
        for signal in list(self._waiting):
            signal.set()

    def _one(self, *, new_connection: bool) -> Connection:
        if new_connection:
            self.clear()
            return self._another(new_connection=True)
        try:
            return self._idle.pop()
        except IndexError:
            return self._another()

    def _back(self, connection: Connection) -> None:
        if connection.closed:
            self._end(connection)
        else:
            self._idle.append(connection)
        if self._attention:
            self._returned()

    def _end(self, connection: Connection) -> None:
        self._all.discard(connection)
        connection.close()

    def _another(self, *, new_connection: bool = False) -> Connection:
        deadline = time.monotonic() + self.node.timeout
        while True:
            if self._closed:
                raise ClosedError(f"client {self.node.client_id} is closed")
            with self._making:
                connection = None
                if len(self._all) < self._size:
                    connection = Connection(self.node)
                    self._all.add(connection)
                    if len(self._all) > self._size:
                        # Such a release took the last place.
                        self._all.discard(connection)
                        connection = None
            if connection is not None:
                try:
                    connection.open()
                except BaseException:
                    self._all.discard(connection)
                    raise
                return connection
            self._wait(deadline)
            if new_connection:
                self.clear()
                continue
            try:
                return self._idle.pop()
            except IndexError:
                continue

    def _wait(self, deadline: float) -> None:
        signal = ThreadWakeup()
        self._attention = True
        self._waiting.append(signal)
        try:
            if not self._idle and not signal.wait(max(0.0, deadline - time.monotonic())):
                raise NoReply(TimeoutError("no connection became free in time"), may_have_run=False)
        finally:
            try:
                self._waiting.remove(signal)
            except ValueError:
                # It was this one's turn; whether it still needs it or not, another look does no harm.
                self._returned()

    def _returned(self) -> None:
        if self._closed:
            self.clear()
        try:
            self._waiting.popleft().set()
        except IndexError:
            return
