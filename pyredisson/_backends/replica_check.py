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
    ReplicaState,
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
        if state.is_due(self._masters.clock()):
            try:
                await self._ask(node)
            except NoReply as failure:
                # The acquire was not sent.
                raise NoReply(failure.error, may_have_run=False, stale=failure.stale) from failure
        return 0 if state.refused else self._present(state)

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
        count = confirmed if needed else 0
        if count < needed or (count < self._most and state.is_due(self._masters.clock())):
            # A replica that has left confirms nothing, and is not missed. One that has come back since the master was
            # asked may be promoted without what was acquired.
            await self._ask_after(node, server_id)
        present = self._present(state)
        if count < min(needed, present):
            raise NotConfirmed(count, present, state.online or 0, self._seconds)
        if count < present:
            error = ConnectionError(f"{node.address} has {present} replicas that can confirm an acquire, not {count}")
            raise NoReply(error, may_have_run=True, server_id=server_id)
        if state.online is None:
            # A replica that takes writes.
            raise self._in_doubt(node, "is not a master any more", server_id)
        if state.left or (state.away and count < self._most):
            successor = await self._succession.successor(node)
            if successor is not None:
                raise self._in_doubt(node, f"was replaced as the master by {successor}", server_id)

    def _present(self, state: ReplicaState) -> int:
        """How many replicas have to confirm an acquire, as far as is known."""
        return min(self._most, state.online or 0)

    async def _ask_after(self, node: Node, server_id: bytes | None) -> None:
        """Asks a server about its replicas after it has granted an acquire."""
        try:
            await self._ask(node)
        except (NoReply, RedisError) as problem:
            error = problem.error if isinstance(problem, NoReply) else problem
            raise NoReply(error, may_have_run=True, server_id=server_id) from problem

    def _in_doubt(self, node: Node, what: str, server_id: bytes | None) -> NoReply:
        """For an acquire that counts for nothing. The logic sends it again, to the new master once that is known."""
        error = ConnectionError(f"{node.address} {what}")
        self._masters.request_refresh(str(error))
        return NoReply(error, may_have_run=True, server_id=server_id)

    async def _ask(self, node: Node) -> None:
        """Asks a server about its replicas."""
        masters, state = self._masters, node.replicas
        now = masters.clock()
        state.begin_question(now)
        (reply,), _ = await masters.connections_of(node).exchange((INFO,))
        if not isinstance(reply, RedisError):
            state.set(read_replication(reply).mapped(self._map_address), masters.successors_in_view(node), now)
        elif is_refusal(reply):
            state.set_number(masters.replicas_in_view(node), now)
        else:
            raise reply

    def _note_refusal(self, node: Node, error: RedisError) -> None:
        if not node.replicas.refused:
            node.replicas.refuse()
            text = "replicas don't confirm what is acquired: %s doesn't run WAIT for this user: %s"
            logger.warning(text, node.address, error)
