"""What the runtimes of both backends do where there are several servers: each command goes to the server of its key."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol

from redis.exceptions import ClusterDownError, RedisError

from pyredisson._backends.acquiring import AcquireSender, C, PeerConnections, ReplicaCheck
from pyredisson._backends.runtime import BackendRuntime
from pyredisson._core import slot, slot_of_command
from pyredisson._diagnostics import logger
from pyredisson._protocol.moving_slots import message_at_source
from pyredisson._protocol.node import Node
from pyredisson._protocol.replies import ASKING, REDIRECTS, NoReply, Redirected, Reply, code_of, copy_error
from pyredisson._protocol.routing import Changes, RoutingTable
from pyredisson._protocol.scripts import ScriptSet
from pyredisson._settings.address import Address
from pyredisson._settings.config import Config
from pyredisson.errors import ClosedError
from pyredisson.logic.ports import Granted, Sender, Wakeup

SERVER_IS_RIGHT = frozenset({"BUSY", "NOREPLICAS", "TRYAGAIN"})
"""Codes of errors that don't mean that another server may serve the command."""

ONE_SLOT_ONLY = REDIRECTS | {"TRYAGAIN"}
"""Codes of errors that say nothing about the server: it serves its other slots. While slots are being moved, each of
many calls may meet one of them, and a warning for each that fails and each that is served again would flood the log."""


class Settable(Protocol):
    """Something that any thread may set."""

    def set(self) -> object: ...


class Keeper(Protocol):
    """Keeps the routing table up to date (`_client.topology.keeper`)."""

    table: RoutingTable

    def wait_until_known(self, wakeup: Settable) -> None:
        """Has a wakeup set when the present attempt to find out the topology has ended; at once if it is known."""

    def forget(self, wakeup: Settable) -> None:
        """Undoes `wait_until_known`."""

    def check_known(self) -> None:
        """Raises if the topology isn't known: `NoReply` if another try may help, otherwise the error itself."""


@dataclass(slots=True, eq=False)
class _Pause:
    """The pause of a call before it sends its command again."""

    payload: bytes
    shard: Hashable
    """The server that has failed to serve the command."""
    wakeup: Settable


class RoutedRuntime(BackendRuntime, Generic[C]):
    """The part of a runtime with several servers that doesn't depend on the backend."""

    sharded = True

    def __init__(self, config: Config, scripts: ScriptSet, keeper: Keeper) -> None:
        super().__init__(scripts)
        self._client = config.describe()
        self._patience = config.connect_timeout
        self._has_slots = config.topology == "cluster"
        self._keeper = keeper
        self._table = table = keeper.table
        self.node_for = table.node_for
        self.shard_of_command = table.node_for
        self.shard_of = table.node_of_key
        self.on_topology_change = table.listen
        self.request_refresh = table.request_refresh
        self.slot_of: Callable[[bytes], int] = slot if self._has_slots else _no_slots
        self.as_sent = table.settling.command
        self._changes = table.settling.changes
        self._connections: dict[Node, C] = {}
        """Also the connections of `_peers`."""
        self._peers = PeerConnections(config, self._connections)
        self._retries: dict[_Pause, None] = {}
        self._config = config
        table.listen(self._on_change)

    @abstractmethod
    def _connections_to(self, node: Node) -> C:
        """New connections to a server, none of them open yet."""

    @abstractmethod
    def _end(self, connections: C) -> None:
        """Closes the connections of a runtime that is closed."""

    @abstractmethod
    def _on_any_thread(self, wakeup: Wakeup) -> Settable:
        """Sets the wakeup, whatever the thread is on which it is set."""

    @abstractmethod
    async def _run_all(self, operations: Sequence[Coroutine[Any, Any, None]]) -> None:
        """Runs operations that don't raise, at the same time where the backend can."""

    # --- Sending

    def acquiring(self, granted: Granted) -> Sender:
        config = self._config
        return AcquireSender(self, ReplicaCheck(self, config), granted) if config.check_lock_synced_replicas else self

    def send(self, payload: bytes, *, new_connection: bool = False) -> Awaitable[Reply]:
        connections = self._connections.get(self.node_for(payload))  # type: ignore[arg-type]
        if new_connection or connections is None:
            return self._connect_and_send(payload, new_connection=new_connection)
        return connections.send(self.as_sent(payload) if self._changes else payload)

    async def _connect_and_send(self, payload: bytes, *, new_connection: bool) -> Reply:
        connections = self.connections_of(await self.known_node(payload))
        return await connections.send(self.as_sent(payload), new_connection=new_connection)

    async def send_identified(self, payload: bytes, *, new_connection: bool = False) -> tuple[Reply, bytes | None]:
        return await self._send_again(await self.known_node(payload), payload, new_connection=new_connection)

    async def follow(
        self, redirect: Redirected, payload: bytes, *, new_connection: bool = False
    ) -> tuple[Reply, bytes | None]:
        node = self.target(redirect)
        asking = redirect.is_ask
        answer = await self._send_again(node, payload, new_connection=new_connection, asking=asking)
        if asking:
            await self._publish_at_source(redirect, payload, answer[0])
        return answer

    def continues(self, redirect: Redirected) -> bool:
        assert redirect.asked is not None, "each connection says from which node a redirect came"
        return self._table.continues(redirect, redirect.asked)

    def has_handed_over(self, server_id: bytes, payload: bytes) -> bool:
        node = self.node_for(payload)
        return node is not None and self._table.has_handed_over(server_id, node)

    async def _send_again(
        self, node: Node, payload: bytes, *, new_connection: bool, asking: bool = False
    ) -> tuple[Reply, bytes | None]:
        # An earlier copy may be in doubt at this node, although the latest copy went to another one.
        new_connection = new_connection or bool(node.suspects)
        connections = self.connections_of(node)
        payload = self.as_sent(payload, asking=asking)
        if asking:
            return await self._ask(connections, payload, new_connection=new_connection)
        (reply,), server_id = await connections.exchange((payload,), new_connection=new_connection)
        return reply, server_id

    async def _ask(self, connections: C, payload: bytes, *, new_connection: bool) -> tuple[Reply, bytes | None]:
        """Sends a command whose slot is being moved to the server."""
        (_, reply), server_id = await connections.exchange((ASKING, payload), new_connection=new_connection)
        return reply, server_id

    async def send_all(self, payloads: Sequence[bytes], *, new_connection: bool = False) -> list[Reply]:
        replies: list[Reply] = [None] * len(payloads)
        groups: dict[Node | None, list[int]] = {}
        for i, payload in enumerate(payloads):
            groups.setdefault(self.node_for(payload), []).append(i)
        batches = [Batch(payloads, replies, places, self.as_sent) for places in groups.values()]
        if len(batches) == 1:
            await self._send_batch(batches[0], new_connection)
        else:
            await self._run_all([self._try_batch(batch, new_connection) for batch in batches])
        # MOVED changes the routing table, so the caller's next copy of the command goes to the other node.
        targets = {i: self.target(reply) for i, reply in enumerate(replies) if isinstance(reply, Redirected)}
        asked = {i: node for i, node in targets.items() if replies[i].is_ask}
        if asked:
            await self._ask_all(asked, payloads, replies, new_connection)
        return replies

    async def _ask_all(
        self, asked: dict[int, Node], payloads: Sequence[bytes], replies: list[Reply], new_connection: bool
    ) -> None:
        """Of several commands, sends the ones that ASK has sent to other nodes, by their places."""
        redirects = {i: replies[i] for i in asked}
        groups: dict[Node, list[int]] = {}
        for i, node in asked.items():
            groups.setdefault(node, []).append(i)
        batches = [Batch(payloads, replies, places, self.as_sent, node) for node, places in groups.items()]
        await self._run_all([self._try_batch(batch, new_connection) for batch in batches])
        for i, redirect in redirects.items():
            await self._publish_at_source(redirect, payloads[i], replies[i])

    async def _publish_at_source(self, redirect: Redirected, payload: bytes, reply: Reply) -> None:
        """Repeats the message of a command that has followed ASK on the node where its waiters are subscribed."""
        message = message_at_source(payload, reply)
        # The node that has replied may be a copy of that in the table, with another timeout.
        source = None if redirect.asked is None else self._table.nodes.get(redirect.asked.endpoint)
        if message is None or source is None:
            return
        try:
            await self.connections_of(source).exchange((message,))
        except (NoReply, RedisError) as error:
            # The command has run. If the waiters' node is gone, they make an attempt by themselves.
            logger.debug("a message could not be repeated on %s: %s", source.address, error)

    async def _try_batch(self, batch: Batch, new_connection: bool) -> None:
        """As `_send_batch`. If the server doesn't reply, its error becomes the reply to each of the commands."""
        try:
            await self._send_batch(batch, new_connection)
        except NoReply as failure:
            batch.fail(failure.error)
        except RedisError as error:
            batch.fail(error)

    async def _send_batch(self, batch: Batch, new_connection: bool) -> None:
        node = batch.node or await self.known_node(batch.payload)
        new_connection = new_connection or (batch.node is not None and bool(node.suspects))
        replies, _ = await self.connections_of(node).exchange(batch.commands(), new_connection=new_connection)
        batch.put(replies)

    # --- Nodes

    def target(self, redirect: Redirected) -> Node:
        """The node that a redirect names. MOVED changes the routing table."""
        assert redirect.asked is not None, "each connection says from which node a redirect came"
        return self._table.redirect(redirect, redirect.asked)

    async def known_node(self, payload: bytes) -> Node:
        """The node that serves a command. Waits until the topology is known. `NoReply`: the slot has no node."""
        node = self.node_for(payload)
        if node is None and not self._table.ready:
            await self._wait_for_topology()
            node = self.node_for(payload)
        if node is None and slot_of_command(payload) < 0:
            # A command without a key. Any server will do.
            node = next(iter(list(self._table.nodes.values())), None)
        if node is None:
            self._table.request_refresh("a slot has no node")
            raise NoReply(ClusterDownError("CLUSTERDOWN no server is known that serves the slot"), may_have_run=False)
        return node

    async def _wait_for_topology(self) -> None:
        wakeup = self.wakeup()
        settable = self._on_any_thread(wakeup)
        try:
            self._keeper.wait_until_known(settable)
            await self._wait_unless_closed(wakeup, self._patience)
        finally:
            self._keeper.forget(settable)
        if self._closed:
            raise ClosedError("the client is closed")
        self._keeper.check_known()

    async def masters(self) -> list[Node]:
        if not self._table.ready:
            await self._wait_for_topology()
        return self._table.masters()

    async def ask(self, node: Node, payloads: Sequence[bytes]) -> list[Reply]:
        replies, _ = await self.connections_of(node).exchange(payloads)
        return replies

    def replicas_in_view(self, node: Node) -> int:
        """How many replicas a master has as far as the routing table knows."""
        return self._table.replicas.get(node.endpoint, 0)

    def successors_in_view(self, node: Node) -> tuple[Address, ...]:
        """The servers that may take over from a master as far as the routing table knows."""
        return self._table.successors.get(node.endpoint, ())

    def connections_of_peer(self, address: Address, master: Node) -> C:
        """The connections to a server that may have replaced a master."""
        connections = self._peers.connections_of(address, master, self._connections_to)
        # Read after the connections were stored, as in `connections_of`.
        if self._closed:
            self._end(connections)
        return connections

    def connections_of(self, node: Node) -> C:
        """The connections to a node, new ones if there are none."""
        connections = self._connections.get(node)
        if connections is not None:
            return connections
        connections = self._connections.setdefault(node, self._connections_to(node))
        # Both are read after the connections were stored: whoever closes this runtime, or removes the node, changes
        # them before looking for connections.
        if self._closed:
            self._end(connections)
        elif self._table.nodes.get(node.endpoint) is not node:
            self._connections.pop(node, None)
            connections.retire()
        return connections

    def _on_change(self, changes: Changes) -> None:
        """Follows a change of the topology. Called on the keeper's thread."""
        for node in changes.removed_nodes:
            connections = self._connections.pop(node, None)
            if connections is not None:
                connections.retire()
                if node in changes.demoted_nodes:
                    # It may hang. What is sent to it is refused or lost, so its calls need not wait for a timeout.
                    connections.disconnect()
        for node in changes.demoted_nodes:
            # The address has a new server now, to which the old connections don't lead.
            connections = self._connections.get(node)
            if connections is not None:
                connections.disconnect()
        for pause in list(self._retries):
            if self.node_for(pause.payload) is not pause.shard:
                pause.wakeup.set()

    @property
    def connected(self) -> bool:
        return any(connections.connected for connections in list(self._connections.values()))

    def is_open(self) -> bool:
        return True

    def _end_all(self) -> None:
        """Ends all pauses and connections, also any that begin later."""
        self._end_pauses()
        for connections in list(self._connections.values()):
            self._end(connections)

    # --- Failures

    def on_command_failed(self, payload: bytes, error: RedisError) -> None:
        node = self.node_for(payload)
        code = code_of(error)
        if code in ONE_SLOT_ONLY:
            logger.debug("slot %d isn't served by one server at this moment: %s", slot_of_command(payload), error)
        elif node is not None:
            node.availability.on_command_failed(node.address, error)
        if code not in SERVER_IS_RIGHT:
            self._table.request_refresh(str(error))

    def on_command_served(self, payload: bytes) -> None:
        node = self.node_for(payload)
        if node is not None:
            node.availability.on_command_served(node.address)

    def located(self, payload: bytes, error: RedisError) -> RedisError:
        node = self.node_for(payload)
        server = "no known server" if node is None else node.address
        place = f"slot {slot_of_command(payload)} on {server}" if self._has_slots else f"on {server}"
        located = type(error)(f"{error} ({place} of the {self._client})")
        located.__cause__ = error.__cause__
        return located.with_traceback(error.__traceback__)

    async def pause(self, seconds: float, payload: bytes, shard: Hashable) -> None:
        wakeup = self.wakeup()
        pause = _Pause(payload, shard, self._on_any_thread(wakeup))
        try:
            self._retries[pause] = None
            # Read after the pause was registered: a change at the same time either is seen here, or ends the pause.
            if self.node_for(payload) is shard:
                await self._wait_unless_closed(wakeup, seconds)
        finally:
            self._retries.pop(pause, None)


def _no_slots(key: bytes) -> int:
    return 0


# --- Commands for several servers at once


@dataclass(slots=True, eq=False)
class Batch:
    """Of several commands the ones that go to one server, and the list into which their replies belong."""

    payloads: Sequence[bytes]
    replies: list[Reply]
    places: Sequence[int]
    """Which of all commands these are."""
    as_sent: Callable[..., bytes]
    """`RoutedRuntime.as_sent`."""
    node: Node | None = None
    """The one which ASK has named."""

    @property
    def payload(self) -> bytes:
        """One of the commands, which tells where all of them go."""
        return self.payloads[self.places[-1]]

    def commands(self) -> list[bytes]:
        asking = self.node is not None
        commands = [self.as_sent(self.payloads[i], asking=asking) for i in self.places]
        return [part for payload in commands for part in (ASKING, payload)] if asking else commands

    def put(self, replies: Sequence[Reply]) -> None:
        for i, reply in zip(self.places, replies if self.node is None else replies[1::2], strict=True):
            self.replies[i] = reply

    def fail(self, error: RedisError) -> None:
        for i in self.places:
            self.replies[i] = copy_error(error)
