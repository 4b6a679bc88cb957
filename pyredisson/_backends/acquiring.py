"""How acquires are sent where there are several servers: replicas of the master have to confirm them.

The script and WAIT travel in one write on one connection, as WAIT counts only what its own connection has written.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, Protocol

from redis.exceptions import ConnectionError, RedisError

from pyredisson._backends.runtime import NodeConnections
from pyredisson._diagnostics import logger
from pyredisson._protocol.no_reply import NoReply, Reply
from pyredisson._protocol.node import Node
from pyredisson._protocol.redirects import ASKING, Redirected
from pyredisson._protocol.replication import (
    INFO,
    NEVER,
    NotConfirmed,
    is_refusal,
    online_replicas,
    wait_command,
)
from pyredisson._protocol.scripts import ScriptSet
from pyredisson._settings.config import Config
from pyredisson.logic.ports import Granted, Sender


class AcquiringConnections(NodeConnections, Protocol):
    """The connections to one server, with those over which acquires are sent."""

    async def acquire(
        self, commands: Sequence[bytes], wait: bytes | None, granted: Granted, *, new_connection: bool
    ) -> tuple[Reply, Reply, bytes | None]:
        """Sends the command of an acquire, the last of `commands`, and `wait` behind it on the same connection.

        Returns the reply to the acquire; the reply to WAIT (without meaning if nothing was granted); and the identity
        of the server. Error replies are returned. `wait` is None if nothing has to be waited for.
        """


class Router(Sender, Protocol):
    """The runtime whose acquires these are. It knows the servers and has the connections."""

    @property
    def node_for(self) -> Any:
        """The node that serves a command; None: it isn't known."""

    async def known_node(self, payload: bytes) -> Node:
        """The node that serves a command. Waits until the topology is known. `NoReply`: the slot has no node."""

    def target(self, redirect: Redirected) -> Node:
        """The node that a redirect names."""

    def as_sent(self, payload: bytes, *, asking: bool = False) -> bytes:
        """A command in the form in which it has to be sent now. `asking`: it follows an ASK."""

    def replicas_in_view(self, node: Node) -> int:
        """How many replicas the master has as far as the routing table knows."""

    def connections_of(self, node: Node) -> AcquiringConnections: ...


class ReplicaCheck:
    """Finds out how many replicas have to confirm an acquire, and whether so many have."""

    def __init__(self, router: Router, config: Config) -> None:
        self._router = router
        self._most = config.min_synced_replicas
        self._seconds = config.replicas_sync_timeout

    async def needed(self, node: Node) -> int:
        """How many replicas have to confirm an acquire on this master. The master is asked from time to time."""
        count = node.replica_count
        now = self._router.clock()
        if count.is_due(now):
            # Other calls use the number known so far. If there is none, each of them asks.
            count.asked_at = now
            try:
                await self._ask(node)
            except BaseException as error:
                count.asked_at = NEVER
                if isinstance(error, NoReply):
                    # The acquire was not sent.
                    raise NoReply(error.error, may_have_run=False, stale=error.stale) from error
                raise
        return 0 if count.refused else min(self._most, count.online or 0)

    async def check(self, node: Node, needed: int, confirmed: Reply, server_id: bytes | None) -> None:
        """Raises `NotConfirmed` if too few replicas have confirmed an acquire, by the reply to its WAIT.

        `NoReply`: that can't be found out any more. The acquire has run, and may be lost.
        """
        if isinstance(confirmed, RedisError):
            if is_refusal(confirmed):
                self._note_refusal(node, confirmed)
                return
            # For example: the server has become a replica.
            raise NoReply(confirmed, may_have_run=True, server_id=server_id)
        if confirmed >= needed:
            return
        # The number may be an old one: a replica that has left confirms nothing.
        try:
            is_master = await self._ask(node)
        except RedisError as error:
            raise NoReply(error, may_have_run=True, server_id=server_id) from error
        if not is_master:
            demoted = ConnectionError(f"{node.address} is not a master any more")
            raise NoReply(demoted, may_have_run=True, server_id=server_id)
        online = node.replica_count.online or 0
        needed = min(self._most, online)
        if confirmed < needed:
            raise NotConfirmed(confirmed, needed, online, self._seconds)

    def wait_command(self, needed: int) -> bytes | None:
        """The WAIT for so many replicas; None: none is needed."""
        return wait_command(needed, self._seconds) if needed else None

    async def _ask(self, node: Node) -> bool:
        """Asks a server how many replicas it has. Returns whether it is a master."""
        router, count = self._router, node.replica_count
        now = router.clock()
        (reply,), _ = await router.connections_of(node).exchange((INFO,))
        if not isinstance(reply, RedisError):
            online = online_replicas(reply)
            count.set(online, now)
            return online is not None
        if not is_refusal(reply):
            raise reply
        count.set(router.replicas_in_view(node), now)
        return True

    def _note_refusal(self, node: Node, error: RedisError) -> None:
        if not node.replica_count.refused:
            node.replica_count.refuse()
            text = "replicas don't confirm what is acquired: %s doesn't run WAIT for this user: %s"
            logger.warning(text, node.address, error)


class AcquireSender:
    """Sends acquires as its runtime sends other commands, and has replicas confirm them."""

    def __init__(self, router: Router, check: ReplicaCheck, granted: Granted) -> None:
        self._router = router
        self._check = check
        self._granted = granted
        self._node_for = router.node_for
        self._send_unconfirmed = router.send
        self.scripts: ScriptSet = router.scripts
        self.clock = router.clock
        self.shard_of_command = router.shard_of_command
        self.on_command_failed = router.on_command_failed
        self.on_command_served = router.on_command_served
        self.continues = router.continues
        self.located = router.located
        self.pause = router.pause
        self.jitter = router.jitter

    def send(self, payload: bytes, *, new_connection: bool = False) -> Awaitable[Reply]:
        """Sends an acquire and returns its reply. Raises an error reply, `NoReply` or `NotConfirmed`."""
        node = self._node_for(payload)
        if node is not None and node.replica_count.none_until > self.clock():
            return self._send_unconfirmed(payload, new_connection=new_connection)
        return self._send(payload, new_connection=new_connection)

    async def _send(self, payload: bytes, *, new_connection: bool) -> Reply:
        reply, _ = await self.send_identified(payload, new_connection=new_connection)
        if isinstance(reply, RedisError):
            raise reply
        return reply

    async def send_identified(self, payload: bytes, *, new_connection: bool = False) -> tuple[Reply, bytes | None]:
        """As `send`, but returns error replies; also the identity of the server."""
        node = await self._router.known_node(payload)
        return await self._acquire(node, payload, new_connection=new_connection, asking=False)

    async def follow(
        self, redirect: Redirected, payload: bytes, *, new_connection: bool = False
    ) -> tuple[Reply, bytes | None]:
        """As `send_identified`, to the server that a redirect names."""
        node = self._router.target(redirect)
        return await self._acquire(node, payload, new_connection=new_connection, asking=redirect.is_ask)

    async def _acquire(
        self, node: Node, payload: bytes, *, new_connection: bool, asking: bool
    ) -> tuple[Reply, bytes | None]:
        check = self._check
        needed = await check.needed(node)
        payload = self._router.as_sent(payload, asking=asking)
        reply, confirmed, server_id = await self._router.connections_of(node).acquire(
            (ASKING, payload) if asking else (payload,),
            check.wait_command(needed),
            self._granted,
            # A copy in doubt may have been sent over another connection to this node.
            new_connection=new_connection or bool(node.suspects),
        )
        if needed and not isinstance(reply, RedisError) and self._granted(reply):
            await check.check(node, needed, confirmed, server_id)
        return reply, server_id
