"""The connections of the threads of one client to one node."""

import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence

from redis.exceptions import TimeoutError

from pyredisson._backends.connecting import check_in_use
from pyredisson._backends.threads.connection import Connection
from pyredisson._backends.threads.wakeup import ThreadWakeup
from pyredisson._protocol.node import Node
from pyredisson._protocol.replies import Answers, NoReply, Reply
from pyredisson.logic.ports import Granted


class Pool:
    """The connections of one client to one node; each call uses one of them alone.

    The number of connections is the number of objects that exist: an interrupt would leave a counter wrong.
    """

    def __init__(self, node: Node, size: int) -> None:
        self.node = node
        self._size = size
        self._idle: list[Connection] = []
        self._all: weakref.WeakKeyDictionary[Connection, None] = weakref.WeakKeyDictionary()
        # Re-entrant: while it is held, a `with` block that the garbage collector ends may send its release.
        self._mutex = threading.RLock()
        self._waiting: deque[ThreadWakeup] = deque()
        """Calls that wait for a connection, because the pool is full."""
        self._check_returns = False
        """Whether `_on_return` has work to do when a connection is returned: a call waits, or none is to be kept."""
        self._closed = False
        self._retired = False

    async def send(self, payload: bytes, *, new_connection: bool = False) -> Reply:
        """Sends one command over an idle connection, or a new one. Blocks, and never suspends.

        With `new_connection` the idle ones are closed, as they are likely to fail as well.
        """
        try:
            connection = self._take(new_connection=True) if new_connection else self._idle.pop()
        except IndexError:
            connection = self._connect_or_wait()
        try:
            return connection.call(payload)
        except NoReply as failure:
            if new_connection or not failure.stale:
                raise
        finally:
            # As `_return`, and around it as `exchange`, but without their calls, which would slow down every command.
            if connection.idle:
                self._idle.append(connection)
            else:
                self._discard(connection)
            if self._check_returns:
                self._on_return()
        return await self.send(payload, new_connection=True)

    async def exchange(
        self, payloads: Sequence[bytes], extra_seconds: float = 0.0, *, new_connection: bool = False
    ) -> Answers:
        """The replies may take so many seconds longer."""
        connection = self._take(new_connection=new_connection)
        try:
            return connection.call_all(payloads, extra_seconds), connection.server_id
        except NoReply as failure:
            if new_connection or not failure.stale:
                raise
        finally:
            self._return(connection)
        return await self.exchange(payloads, extra_seconds, new_connection=True)

    async def acquire(
        self, commands: Sequence[bytes], wait: bytes | None, granted: Granted, *, new_connection: bool
    ) -> tuple[Reply, Reply, bytes | None]:
        if wait is None:
            replies, server_id = await self.exchange(commands, new_connection=new_connection)
            return replies[-1], None, server_id
        seconds = self.node.config.replicas_sync_timeout
        replies, server_id = await self.exchange((*commands, wait), seconds, new_connection=new_connection)
        return replies[-2], replies[-1], server_id

    def limit_timeout(self, seconds: float) -> None:
        """From now on a reply may take so many seconds at most, except on a connection that is in use."""
        with self._mutex:
            if seconds < self.node.timeout:
                self.node = self.node.with_timeout(seconds)
                self.close_idle()

    def close_idle(self) -> None:
        while (connection := self._pop_idle()) is not None:
            self._discard(connection)

    def retire(self) -> None:
        """Closes the connections that no call uses, and from now on each connection after its call. Makes none."""
        self._retired = True
        self._keep_none()

    def disconnect(self) -> None:
        """Closes all connections. Each call that waits for a reply finds its connection closed."""
        self.close_idle()
        self.abort_calls()

    @property
    def connected(self) -> bool:
        return bool(self._all)

    def is_open(self) -> bool:
        """Whether a connection is open that no call uses. Closes any that the server has closed. Sends nothing."""
        while (connection := self._pop_idle()) is not None:
            if not connection.closed_by_server():
                self._return(connection)
                return True
            self._discard(connection)
        return False

    @property
    def calls_in_flight(self) -> int:
        """The number of calls that use a connection, or wait for one."""
        # The garbage collector has emptied the references, but not the dict, of a client that was dropped.
        living = sum(reference() is not None for reference in self._all.keyrefs())
        return max(0, living - len(self._idle)) + len(self._waiting)

    def abort_calls(self) -> None:
        """Ends the calls that wait for a reply: each finds its connection closed."""
        for reference in self._all.keyrefs():
            if (connection := reference()) is not None:
                connection.shut_down()

    def close(self) -> None:
        """Closes every connection; a connection in use is closed when it is returned."""
        self._closed = True
        self._keep_none()

    drop = close

    def _keep_none(self) -> None:
        self._check_returns = True
        self.close_idle()
        while self._waiting:
            self._on_return()

    def _take(self, *, new_connection: bool) -> Connection:
        if new_connection:
            self.close_idle()
            return self._connect_or_wait(new_connection=True)
        return self._pop_idle() or self._connect_or_wait()

    def _return(self, connection: Connection) -> None:
        if connection.idle:
            self._idle.append(connection)
        else:
            self._discard(connection)
        if self._check_returns:
            self._on_return()

    def _discard(self, connection: Connection) -> None:
        self._all.pop(connection, None)
        connection.close()

    def _connect_or_wait(self, *, new_connection: bool = False) -> Connection:
        """Makes a connection. If the pool is full, waits until there is room for one, or for an idle connection."""
        deadline = time.monotonic() + self.node.timeout
        while True:
            check_in_use(self.node, closed=self._closed, retired=self._retired)
            if (connection := self._reserve()) is not None:
                try:
                    connection.open()
                except BaseException:
                    # There is room for a call that waits.
                    self._return(connection)
                    raise
                return connection
            self._wait_for_return(deadline)
            if new_connection:
                self.close_idle()
            elif (connection := self._pop_idle()) is not None:
                return connection

    def _pop_idle(self) -> Connection | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _reserve(self) -> Connection | None:
        """A connection that isn't open yet; None if the pool is full."""
        with self._mutex:
            if len(self._all) >= self._size:
                return None
            connection = Connection(self.node)
            self._all[connection] = None
            if len(self._all) > self._size:
                # The garbage collector ran here and ended a `with` block, whose release took the last place.
                self._all.pop(connection, None)
                return None
            return connection

    def _wait_for_return(self, deadline: float) -> None:
        wakeup = ThreadWakeup()
        self._check_returns = True
        self._waiting.append(wakeup)
        try:
            full = not self._idle and len(self._all) >= self._size
            if full and not wakeup.wait(max(0.0, deadline - time.monotonic())):
                raise NoReply(TimeoutError("no connection became free in time"), may_have_run=False)
        finally:
            try:
                self._waiting.remove(wakeup)
            except ValueError:
                # `_on_return` has woken this call, which may not need the connection any more: the next one is woken.
                self._on_return()

    def _on_return(self) -> None:
        if self._closed or self._retired:
            self.close_idle()
        try:
            self._waiting.popleft().set()
        except IndexError:
            return
