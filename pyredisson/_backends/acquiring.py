"""How acquires are sent where there are several servers: replicas of the master have to confirm them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from redis.exceptions import ConnectionError, RedisError, TimeoutError

from pyredisson._backends.runtime import BackendRuntime, NodeConnections
from pyredisson._diagnostics import logger
from pyredisson._protocol.node import Node
from pyredisson._protocol.replication import INFO, NotConfirmed, is_refusal, read_replication, wait_command
from pyredisson._protocol.replies import ASKING, Answer, NoReply, Redirected, Reply
from pyredisson._protocol.routing import RoutingTable
from pyredisson._protocol.scripts import ScriptSet
from pyredisson._settings.address import Address
from pyredisson._settings.config import Config
from pyredisson.errors import ClosedError
from pyredisson.logic.ports import Granted

if TYPE_CHECKING:
    from pyredisson._backends.routed import RoutedRuntime


class RoutedConnections(NodeConnections, Protocol):
    """The connections to one of several servers."""

    async def acquire(
        self, commands: Sequence[bytes], wait: bytes | None, granted: Granted, *, new_connection: bool
    ) -> tuple[Reply, Reply, bytes | None]:
        """Sends the command of an acquire, the last of `commands`, and `wait` (None: nothing) behind it in one write.

        Returns both replies, also errors, and the identity of the server. The second one counts only after a grant.
        """

    def disconnect(self) -> None:
        """Closes all connections: calls get no reply. Calls that come later connect anew. Called on any thread."""

    def retire(self) -> None:
        """Closes the connections that no call uses now, and each of the others after its call. Called on any thread."""

    def drop(self) -> None:
        """Closes all connections, as the client is closed: no call gets another one. Called on any thread."""


C = TypeVar("C", bound=RoutedConnections)


class AcquireSender:
    """Sends acquires as its runtime sends other commands, with WAIT behind them, so that replicas confirm them.

    Both travel in one write on one connection: WAIT counts only what its own connection has written.
    """

    send_then = BackendRuntime.send_then

    def __init__(self, router: RoutedRuntime[Any], check: ReplicaCheck, granted: Granted) -> None:
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

    async def send_identified(self, payload: bytes, *, new_connection: bool = False) -> Answer:
        node = await self._router.known_node(payload)
        return await self._acquire(node, payload, new_connection=new_connection, asking=False)

    async def follow(self, redirect: Redirected, payload: bytes, *, new_connection: bool = False) -> Answer:
        node = self._router.target(redirect)
        return await self._acquire(node, payload, new_connection=new_connection, asking=redirect.is_ask)

    async def _acquire(self, node: Node, payload: bytes, *, new_connection: bool, asking: bool) -> Answer:
        check = self._check
        needed = await check.needed(node)
        payload = self._router.as_sent(payload, asking=asking)
        connections: RoutedConnections = self._router.connections_of(node)
        reply, confirmed, server_id = await connections.acquire(
            (ASKING, payload) if asking else (payload,),
            wait_command(needed, check.seconds) if needed else None,
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


REFUSED = 1.0
"""Seconds for which a former replica that can't be reached counts as no master: it has to be started first."""
SILENT = 10.0
"""The same for one that doesn't reply, as the next question to it costs a call `LONGEST` again."""


class ReplicaCheck:
    """Checks acquires, and finds out from their masters what it needs to know for that."""

    def __init__(self, masters: RoutedRuntime[Any], table: RoutingTable, config: Config) -> None:
        self._masters = masters
        self._table = table
        self._most = config.min_synced_replicas
        self.seconds = config.replicas_sync_timeout
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
        return 0 if state.refused else self._present(node)

    async def check(self, node: Node, needed: int, confirmed: Reply, server_id: bytes | None) -> None:
        """Checks an acquire that was granted. `confirmed`: the reply to its WAIT, if replicas were needed.

        `NotConfirmed`: too few replicas have it. `NoReply`: that can't be found out, or the server that has granted it
        is not the master any more; the acquire has run, and may be lost.
        """
        state = node.replicas
        if isinstance(confirmed, RedisError):
            if not is_refusal(confirmed):
                # For example: the server has become a replica.
                raise NoReply(confirmed, may_have_run=True, server_id=server_id)
            if not state.refused:
                state.refuse()
                text = "replicas don't confirm what is acquired: %s doesn't run WAIT for this user: %s"
                logger.warning(text, node.address, confirmed)
        if state.refused:
            return
        count = confirmed if needed else 0
        if count < needed or (count < self._most and state.is_due(self._masters.clock())):
            # A replica that has left confirms nothing, and is not missed. One that has come back since the master was
            # asked may be promoted without what was acquired.
            try:
                await self._ask(node)
            except (NoReply, RedisError) as problem:
                error = problem.error if isinstance(problem, NoReply) else problem
                raise NoReply(error, may_have_run=True, server_id=server_id) from problem
        present = self._present(node)
        if count < min(needed, present):
            raise NotConfirmed(count, present, state.online or 0, self.seconds)
        if count < present:
            error = ConnectionError(f"{node.address} has {present} replicas that can confirm an acquire, not {count}")
            raise NoReply(error, may_have_run=True, server_id=server_id)
        if state.online is None:
            # A replica that takes writes.
            raise self._in_doubt(node, "is not a master any more", server_id)
        if state.left or (state.away and count < self._most):
            successor = await self._successor(node)
            if successor is not None:
                raise self._in_doubt(node, f"was replaced as the master by {successor}", server_id)

    def _present(self, node: Node) -> int:
        """How many replicas have to confirm an acquire, as far as is known."""
        return min(self._most, node.replicas.online or 0)

    def _in_doubt(self, node: Node, what: str, server_id: bytes | None) -> NoReply:
        """For an acquire that counts for nothing. The logic sends it again, to the new master once that is known."""
        error = ConnectionError(f"{node.address} {what}")
        self._table.request_refresh(str(error))
        return NoReply(error, may_have_run=True, server_id=server_id)

    async def _ask(self, node: Node) -> None:
        masters, state = self._masters, node.replicas
        now = masters.clock()
        state.begin_question(now)
        connections: RoutedConnections = masters.connections_of(node)
        (reply,), _ = await connections.exchange((INFO,))
        shard = self._table.shards.get(node.endpoint)
        if not isinstance(reply, RedisError):
            known = () if shard is None else shard.successors
            state.set(read_replication(reply).mapped(self._map_address), known, now)
        elif is_refusal(reply):
            state.set_number(0 if shard is None else len(shard.replicas), now)
        else:
            raise reply

    async def _successor(self, master: Node) -> Address | None:
        """The server that has replaced a master; None: no server that answers has.

        Asks the servers that were its replicas, or are to be. In a failover on request the replica is promoted before
        the former master is demoted, which knows nothing of the other one, except that its replica has left it.
        """
        state = master.replicas
        for address in state.away:
            asked_at = self._masters.clock()
            if state.unreachable.get(address, asked_at) > asked_at:
                continue
            if address in state.unreachable:
                # It is asked again. Other calls meanwhile rely on what is known, as it may take long again.
                state.unreachable[address] = asked_at + LONGEST
            try:
                reply = await self._ask_peer(address, master)
            except ClosedError:
                raise
            except Exception as error:  # noqa: BLE001
                # Any exception, also of a credential provider: no lock must depend on a server that may be gone.
                cause = error.error if isinstance(error, NoReply) else error
                logger.debug("the former replica %s does not say whether it is a master: %s", address, cause)
                silent = isinstance(cause, TimeoutError) or not isinstance(cause, RedisError)
                state.unreachable[address] = self._masters.clock() + (SILENT if silent else REFUSED)
            else:
                if read_replication(reply).replaces(state.history):
                    return address
                state.unreachable.pop(address, None)
            state.on_answer(address, asked_at)
        return None

    async def _ask_peer(self, address: Address, master: Node) -> Reply:
        connections: RoutedConnections = self._masters.connections_of_peer(address, master)
        try:
            (reply,), _ = await connections.exchange((INFO,))
        except NoReply as failure:
            if not (failure.stale or failure.may_have_run):
                raise
            # A server closes its connections when it is promoted. And one that is idle may be dead without notice.
            (reply,), _ = await connections.exchange((INFO,), new_connection=True)
        return reply


LONGEST = 0.5
"""Seconds that such a server may take to connect, and to reply: a call waits for it, and it may be gone for good."""
MOST_PEERS = 100
"""Servers whose connections are kept. Servers in containers get new addresses again and again."""


class PeerNode(Node):
    """A server that serves no slot for this client. That it doesn't answer is no outage."""

    def on_unreachable(self, error: BaseException, began: float) -> None:
        """A connection could not be made."""
