"""Whether a master was replaced by one of its replicas, and doesn't know it yet: its former replicas are asked.

During a failover on request the replica is promoted first, and the former master is demoted later. In between both
grant locks. The former master doesn't know of the other one, but its replica has left it.
"""

from __future__ import annotations

from typing import Protocol

from redis.exceptions import RedisError, TimeoutError

from pyredisson._backends.peers import LONGEST
from pyredisson._backends.runtime import NodeConnections
from pyredisson._diagnostics import logger
from pyredisson._protocol.no_reply import NoReply, Reply
from pyredisson._protocol.node import Node
from pyredisson._protocol.replication import INFO, ReplicaState, read_replication
from pyredisson._settings.address import Address
from pyredisson.errors import ClosedError

REFUSED = 1.0
"""Seconds for which a former replica that can't be reached counts as no master: it has to be started first."""
SILENT = 10.0
"""The same for one that doesn't reply, as the next question to it costs a call `LONGEST` again."""


class Peers(Protocol):
    """The connections to servers that serve no slot."""

    def clock(self) -> float: ...

    def connections_of_peer(self, address: Address, master: Node) -> NodeConnections:
        """The connections to a server that may have replaced a master. Their timeouts are short."""


class Succession:
    """Asks the servers that were replicas of a master, or are to be, whether one of them is master in its place."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def successor(self, master: Node) -> Address | None:
        """The server that has replaced a master; None: no server that answers has."""
        state = master.replicas
        for address in state.away:
            asked_at = self._peers.clock()
            if state.is_unreachable(address, asked_at):
                continue
            if address in state.unreachable:
                # It is asked again. Other calls meanwhile rely on what is known, as it may take long again.
                state.on_unreachable(address, asked_at + LONGEST)
            try:
                reply = await self._ask(address, master)
            except ClosedError:
                raise
            except Exception as error:  # noqa: BLE001
                # Any exception: one of a provider of credentials, or of TLS. No lock must depend on a server that is
                # away: it may be gone for good.
                self._on_no_answer(state, address, error)
            else:
                if isinstance(reply, bytes) and read_replication(reply).replaces(state.history):
                    return address
                state.unreachable.pop(address, None)
            state.on_answer(address, asked_at)
        return None

    async def _ask(self, address: Address, master: Node) -> Reply:
        connections = self._peers.connections_of_peer(address, master)
        try:
            (reply,), _ = await connections.exchange((INFO,))
        except NoReply as failure:
            if isinstance(failure.error, TimeoutError) or not (failure.stale or failure.may_have_run):
                raise
            # A server closes its connections when it is promoted.
            (reply,), _ = await connections.exchange((INFO,), new_connection=True)
        return reply

    def _on_no_answer(self, state: ReplicaState, address: Address, error: Exception) -> None:
        cause = error.error if isinstance(error, NoReply) else error
        logger.debug("the former replica %s does not say whether it is a master: %s", address, cause)
        silent = isinstance(cause, TimeoutError) or not isinstance(cause, RedisError)
        state.on_unreachable(address, self._peers.clock() + (SILENT if silent else REFUSED))
