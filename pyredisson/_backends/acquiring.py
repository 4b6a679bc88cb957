"""How acquires are sent where there are several servers: replicas of the master have to confirm them.

The script and WAIT travel in one write on one connection, as WAIT counts only what its own connection has written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from redis.exceptions import RedisError

from pyredisson._backends.replica_check import ReplicaCheck
from pyredisson._backends.runtime import NodeConnections, ReplyApplier
from pyredisson._protocol.no_reply import Reply
from pyredisson._protocol.node import Node
from pyredisson._protocol.redirects import ASKING, Redirected
from pyredisson._protocol.replication import NotConfirmed
from pyredisson._protocol.scripts import ScriptSet
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

    def connections_of(self, node: Node) -> AcquiringConnections: ...


class AcquireSender(ReplyApplier):
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
        self.has_handed_over = router.has_handed_over
        self.located = router.located
        self.pause = router.pause
        self.jitter = router.jitter

    async def send(self, payload: bytes, *, new_connection: bool = False) -> Reply:
        """Sends an acquire and returns its reply. Raises an error reply, `NoReply` or `NotConfirmed`."""
        node, now = self._node_for(payload), self.clock()
        if node is None or node.replicas.none_until <= now or node.replicas.ask_again_at <= now:
            reply, _ = await self.send_identified(payload, new_connection=new_connection)
            if isinstance(reply, RedisError):
                raise reply
            return reply
        reply = await self._send_unconfirmed(payload, new_connection=new_connection)
        # The process may have been stopped, or the master replaced, before the acquire was sent.
        node = self._node_for(payload) or node
        if node.replicas.none_until <= self.clock() and self._granted(reply):
            await self._check.check(node, 0, None, None)
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
        if not isinstance(reply, RedisError) and self._granted(reply):
            try:
                await check.check(node, needed, confirmed, server_id)
            except NotConfirmed as problem:
                problem.reply = reply
                raise
        return reply, server_id
