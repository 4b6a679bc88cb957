"""How many replicas have to confirm an acquire, and whether so many have: otherwise it doesn't count."""

from __future__ import annotations

from typing import Protocol

from redis.exceptions import ConnectionError, RedisError

from pyredisson._backends.runtime import NodeConnections
from pyredisson._backends.succession import Peers, Succession
from pyredisson._diagnostics import logger
from pyredisson._protocol.no_reply import NoReply, Reply
from pyredisson._protocol.node import Node
from pyredisson._protocol.replication import (
    INFO,
    NotConfirmed,
    is_refusal,
    read_replication,
    wait_command,
)
from pyredisson._settings.address import Address
from pyredisson._settings.config import Config


class Masters(Peers, Protocol):
    """What is known about the masters, and the connections to them."""

    def connections_of(self, node: Node) -> NodeConnections: ...

    def replicas_in_view(self, node: Node) -> int:
        """How many replicas a master has as far as the routing table knows."""

    def successors_in_view(self, node: Node) -> tuple[Address, ...]:
        """The servers that may take over from a master as far as the routing table knows."""

    def request_refresh(self, reason: str) -> None:
        """Has the topology looked at now."""


class ReplicaCheck:
    """Checks acquires, and finds out from their masters what it needs to know for that."""

    def __init__(self, masters: Masters, config: Config) -> None:
        self._masters = masters
        self._succession = Succession(masters)
        self._most = config.min_synced_replicas
        self._seconds = config.replicas_sync_timeout
        self._map_address = config.map_address

    async def needed(self, node: Node) -> int:
        """How many replicas have to confirm an acquire on this master. The master is asked from time to time."""
        state = node.replicas
        now = self._masters.clock()
        if state.is_due(now):
            # If nothing is known, each of the other calls asks, too.
            state.begin_question(now)
            try:
                await self._ask(node)
            except BaseException as error:
                state.forget_question()
                if isinstance(error, NoReply):
                    # The acquire was not sent.
                    raise NoReply(error.error, may_have_run=False, stale=error.stale) from error
                raise
        return 0 if state.refused else min(self._most, state.online or 0)

    def wait_command(self, needed: int) -> bytes | None:
        """The WAIT for so many replicas; None: none is needed."""
        return wait_command(needed, self._seconds) if needed else None

    async def check(self, node: Node, needed: int, confirmed: Reply, server_id: bytes | None) -> None:
        """Checks an acquire that was granted. `confirmed`: the reply to its WAIT, if replicas were needed.

        `NotConfirmed`: too few replicas have it. `NoReply`: that can't be found out, or it was granted by a server that
        is not the master any more. The acquire has run then, and may be lost.
        """
        state = node.replicas
        if isinstance(confirmed, RedisError):
            if not is_refusal(confirmed):
                # For example: the server has become a replica.
                raise NoReply(confirmed, may_have_run=True, server_id=server_id)
            self._note_refusal(node, confirmed)
        if state.refused:
            return
        if needed and confirmed < needed:
            await self._check_with_present_number(node, confirmed, server_id)
        if state.online is None:
            # A replica that takes writes.
            raise self._in_doubt(node, "is not a master any more", server_id)
        if state.left or (state.away and (not needed or confirmed < self._most)):
            successor = await self._succession.successor(node)
            if successor is not None:
                raise self._in_doubt(node, f"was replaced as the master by {successor}", server_id)

    async def _check_with_present_number(self, node: Node, confirmed: int, server_id: bytes | None) -> None:
        """Checks it again: a replica that has left confirms nothing, and is not missed."""
        try:
            is_master = await self._ask(node)
        except (NoReply, RedisError) as problem:
            error = problem.error if isinstance(problem, NoReply) else problem
            raise NoReply(error, may_have_run=True, server_id=server_id) from problem
        if not is_master:
            return
        online = node.replicas.online or 0
        needed = min(self._most, online)
        if confirmed < needed:
            raise NotConfirmed(confirmed, needed, online, self._seconds)

    def _in_doubt(self, node: Node, what: str, server_id: bytes | None) -> NoReply:
        """For an acquire that counts for nothing. The logic sends it again, to the new master once that is known."""
        error = ConnectionError(f"{node.address} {what}")
        self._masters.request_refresh(str(error))
        return NoReply(error, may_have_run=True, server_id=server_id)

    async def _ask(self, node: Node) -> bool:
        """Asks a server about its replicas. Returns whether it is a master."""
        masters, state = self._masters, node.replicas
        now = masters.clock()
        (reply,), _ = await masters.connections_of(node).exchange((INFO,))
        if not isinstance(reply, RedisError):
            replication = read_replication(reply).mapped(self._map_address)
            state.set(replication, masters.successors_in_view(node), now)
            return replication.is_master
        if not is_refusal(reply):
            raise reply
        state.set_number(masters.replicas_in_view(node), now)
        return True

    def _note_refusal(self, node: Node, error: RedisError) -> None:
        if not node.replicas.refused:
            node.replicas.refuse()
            text = "replicas don't confirm what is acquired: %s doesn't run WAIT for this user: %s"
            logger.warning(text, node.address, error)
