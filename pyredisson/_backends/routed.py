"""What both backends do where there are several servers: each command and each channel has the server of its key."""

import math
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable, Sequence
from typing import Any, Generic, Protocol

from redis.exceptions import ClusterDownError, RedisError

from pyredisson._backends.acquiring import LONGEST, MOST_PEERS, AcquireSender, C, PeerNode, ReplicaCheck
from pyredisson._backends.runtime import BackendRuntime
from pyredisson._core import slot, slot_of_command
from pyredisson._diagnostics import logger
from pyredisson._protocol.moving_slots import message_at_source
from pyredisson._protocol.node import Node
from pyredisson._protocol.replies import ASKING, REDIRECTS, Answer, NoReply, Redirected, Reply, code_of, copy_error
from pyredisson._protocol.routing import Changes, RoutingTable
from pyredisson._protocol.scripts import ScriptSet
from pyredisson._settings.address import Address
from pyredisson._settings.config import Config
from pyredisson.errors import ClosedError
from pyredisson.logic.ports import Granted, Sender, Wakeup
from pyredisson.logic.routed_channels import NodeChannels, RoutedChannels

SERVER_IS_RIGHT = frozenset({"BUSY", "NOREPLICAS", "TRYAGAIN"})
"""Codes of errors that don't mean that another server may serve the command."""

ONE_SLOT_ONLY = REDIRECTS | {"TRYAGAIN"}
"""Codes of errors that say nothing about the server: it serves its other slots. While slots are being moved, many calls
meet one of them, and warnings for each would flood the log."""


Wake = Callable[[], object]
"""Sets a wakeup. To be called on any thread."""


class Keeper(Protocol):
    """Keeps the routing table up to date. `_client.topology.keeper` says what the methods do."""

    table: RoutingTable

    def wait_until_known(self, wake: Wake) -> None: ...
    def forget(self, wake: Wake) -> None: ...
    def check_known(self) -> None: ...


class RoutedRuntime(BackendRuntime, Generic[C]):
    """The part of a runtime with several servers that doesn't depend on the backend."""

    sharded = True

    def __init__(self, config: Config, scripts: ScriptSet, keeper: Keeper) -> None:
        super().__init__(scripts)
        self._has_slots = config.topology == "cluster"
        self._keeper = keeper
        self._table = table = keeper.table
        self.node_for = table.node_for
        self.shard_of_command = table.node_for
        self.shard_of = table.node_of_key
        self.on_topology_change = table.listen
        self.slot_of: Callable[[bytes], int] = slot if self._has_slots else (lambda _: 0)
        self.as_sent = table.settling.command
        self._changes = table.settling.changes
        self._connections: dict[Node, C] = {}
        """Also the connections to `_peers`."""
        self._peers: dict[Address, Node] = {}
        """The servers that were asked whether they have replaced a master."""
        self._retries: dict[Wake, tuple[bytes, Hashable]] = {}
        """The calls that pause before they send a command again: that command, and the server that didn't serve it."""
        self._config = config
        table.listen(self._on_change)

    @abstractmethod
    def _connections_to(self, node: Node) -> C:
        """New connections to a server, none of them open yet."""

    @abstractmethod
    def _on_any_thread(self, wakeup: Wakeup) -> Wake: ...

    @abstractmethod
    async def _run_all(self, operations: Sequence[Coroutine[Any, Any, None]]) -> None:
        """Runs operations that don't raise, at the same time where the backend can."""

    def _all_connections(self) -> Sequence[C]:
        return list(self._connections.values())

    def acquiring(self, granted: Granted) -> Sender:
        if not self._config.check_lock_synced_replicas:
            return self
        return AcquireSender(self, ReplicaCheck(self, self._table, self._config), granted)

    def send(self, payload: bytes, *, new_connection: bool = False) -> Awaitable[Reply]:
        connections = self._connections.get(self.node_for(payload))  # type: ignore[arg-type]
        if new_connection or connections is None:
            return self._connect_and_send(payload, new_connection=new_connection)
        return connections.send(self.as_sent(payload) if self._changes else payload)

    async def _connect_and_send(self, payload: bytes, *, new_connection: bool) -> Reply:
        connections = self.connections_of(await self.known_node(payload))
        return await connections.send(self.as_sent(payload), new_connection=new_connection)

    async def send_identified(self, payload: bytes, *, new_connection: bool = False) -> Answer:
        return await self._send_again(await self.known_node(payload), payload, new_connection=new_connection)

    async def follow(self, redirect: Redirected, payload: bytes, *, new_connection: bool = False) -> Answer:
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

    def replaced_at(self, payload: bytes) -> float:
        node = self.node_for(payload)
        return -math.inf if node is None else node.availability.replaced_at

    async def _send_again(self, node: Node, payload: bytes, *, new_connection: bool, asking: bool = False) -> Answer:
        # An earlier copy may be in doubt at this node, although the latest copy went to another one.
        new_connection = new_connection or bool(node.suspects)
        connections = self.connections_of(node)
        payload = self.as_sent(payload, asking=asking)
        payloads = (ASKING, payload) if asking else (payload,)
        (*_, reply), server_id = await connections.exchange(payloads, new_connection=new_connection)
        return reply, server_id

    async def send_all(self, payloads: Sequence[bytes], *, new_connection: bool = False) -> list[Reply]:
        replies: list[Reply] = [None] * len(payloads)

        async def fill_in(places: Sequence[int], asked: Node | None) -> None:
            """Sends the commands at these places. If the server doesn't reply, its error is the reply to each one."""
            try:
                received = await self._send_some([payloads[i] for i in places], asked, new_connection)
            except (NoReply, RedisError) as failure:
                received = [copy_error(failure.error if isinstance(failure, NoReply) else failure) for _ in places]
            for i, reply in zip(places, received, strict=True):
                replies[i] = reply

        groups = _places_by_node(enumerate(map(self.node_for, payloads)))
        if len(groups) == 1:
            replies = await self._send_some(payloads, None, new_connection)
        else:
            await self._run_all([fill_in(places, None) for places in groups.values()])
        redirects = {i: reply for i, reply in enumerate(replies) if isinstance(reply, Redirected)}
        # MOVED changes the routing table, so the caller's next copy of the command goes to the other node.
        targets = {i: self.target(redirect) for i, redirect in redirects.items()}
        asked = {i: node for i, node in targets.items() if redirects[i].is_ask}
        if asked:
            await self._run_all([fill_in(places, node) for node, places in _places_by_node(asked.items()).items()])
            for i in asked:
                await self._publish_at_source(redirects[i], payloads[i], replies[i])
        return replies

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

    async def _send_some(self, payloads: Sequence[bytes], asked: Node | None, new_connection: bool) -> list[Reply]:
        """Sends commands that go to one node. `asked`: the one which ASK has named."""
        if asked is None:
            node = await self.known_node(payloads[-1])
            commands = [self.as_sent(payload) for payload in payloads]
            replies, _ = await self.connections_of(node).exchange(commands, new_connection=new_connection)
            return replies
        new_connection = new_connection or bool(asked.suspects)
        commands = [part for payload in payloads for part in (ASKING, self.as_sent(payload, asking=True))]
        replies, _ = await self.connections_of(asked).exchange(commands, new_connection=new_connection)
        return replies[1::2]

    def target(self, redirect: Redirected) -> Node:
        """The node that a redirect names. MOVED changes the routing table."""
        assert redirect.asked is not None, "each connection says from which node a redirect came"
        return self._table.redirect(redirect, redirect.asked)

    async def known_node(self, payload: bytes) -> Node:
        """The node that serves a command. Waits until the topology is known. `NoReply`: the slot has no node."""
        if (node := self.node_for(payload)) is None and not self._table.ready:
            await self._wait_for_topology()
            node = self.node_for(payload)
        if node is None and slot_of_command(payload) < 0:
            # A command without a key. Any server that replies will do.
            node = min(list(self._table.nodes.values()), key=self._table.health.is_failing, default=None)
        if node is None:
            self._table.request_refresh("a slot has no node")
            raise NoReply(ClusterDownError("CLUSTERDOWN no server is known that serves the slot"), may_have_run=False)
        return node

    async def _wait_for_topology(self) -> None:
        wakeup = self.wakeup()
        wake = self._on_any_thread(wakeup)
        try:
            self._keeper.wait_until_known(wake)
            await self._wait_unless_closed(wakeup, self._config.connect_timeout)
        finally:
            self._keeper.forget(wake)
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

    def connections_of_peer(self, address: Address, master: Node) -> C:
        """The connections to a server that may have replaced a master."""
        if (node := self._peers.get(address)) is None:
            made = PeerNode(self._config.at(address), master.client_id).with_timeout(LONGEST)
            node = self._peers.setdefault(address, made)
            # The servers that were asked first are forgotten, if there are many.
            for oldest in list(self._peers)[:-MOST_PEERS]:
                if (forgotten := self._peers.pop(oldest, None)) is not None:
                    self._retire(forgotten)
        return self.connections_of(node)

    def connections_of(self, node: Node) -> C:
        """The connections to a node, new ones if there are none."""
        if (connections := self._connections.get(node)) is not None:
            return connections
        connections = self._connections.setdefault(node, self._connections_to(node))
        # Read after the connections were stored: closing, or removing a node, is noted before they are looked for.
        if self._closed:
            connections.drop()
        elif not isinstance(node, PeerNode) and self._table.nodes.get(node.endpoint) is not node:
            self._connections.pop(node, None)
            connections.retire()
        return connections

    def _retire(self, node: Node) -> C | None:
        """Forgets the connections to a node, which close after their calls."""
        if (connections := self._connections.pop(node, None)) is not None:
            connections.retire()
        return connections

    def _on_change(self, changes: Changes) -> None:
        """Follows a change of the topology. Called on the keeper's thread."""
        for node in changes.removed_nodes:
            if (connections := self._retire(node)) is not None and node in changes.demoted_nodes:
                # It may hang. What is sent to it is refused or lost, so its calls need not wait for a timeout.
                connections.disconnect()
        for node in changes.demoted_nodes:
            # The address has a new server now, to which the old connections don't lead.
            if (connections := self._connections.get(node)) is not None:
                connections.disconnect()
        for wake, (payload, shard) in self._retries.copy().items():
            if self.node_for(payload) is not shard:
                wake()

    def is_open(self) -> bool:
        return True

    def on_command_failed(self, payload: bytes, error: RedisError) -> None:
        node = self.node_for(payload)
        code = code_of(error)
        if code in ONE_SLOT_ONLY:
            logger.debug("slot %d isn't served by one server at this moment: %s", slot_of_command(payload), error)
        elif node is not None:
            node.availability.on_command_failed(error)
        if code not in SERVER_IS_RIGHT:
            self._table.request_refresh(str(error))

    def on_command_served(self, payload: bytes) -> None:
        if (node := self.node_for(payload)) is not None:
            node.availability.on_command_served()

    def located(self, payload: bytes, error: RedisError) -> RedisError:
        node = self.node_for(payload)
        server = "no known server" if node is None else node.address
        place = f"slot {slot_of_command(payload)} on {server}" if self._has_slots else f"on {server}"
        located = type(error)(f"{error} ({place} of the {self._config.describe()})")
        located.__cause__ = error.__cause__
        return located.with_traceback(error.__traceback__)

    async def pause(self, seconds: float, payload: bytes, shard: Hashable) -> None:
        wakeup = self.wakeup()
        wake = self._on_any_thread(wakeup)
        try:
            self._retries[wake] = payload, shard
            # Read after the pause was registered: a change at the same time either is seen here, or ends the pause.
            if self.node_for(payload) is shard:
                await self._wait_unless_closed(wakeup, seconds)
        finally:
            self._retries.pop(wake, None)


def _places_by_node(nodes: Iterable[tuple[int, Node | None]]) -> dict[Node | None, list[int]]:
    """For each node the places of its commands."""
    groups: dict[Node | None, list[int]] = {}
    for i, node in nodes:
        groups.setdefault(node, []).append(i)
    return groups


class NodeListeners:
    """The listeners of one client: one for each node with channels."""

    _make: Callable[[Node, NodeChannels], Any]
    _listeners: dict[NodeChannels, Any]
    """The listeners that run, or may be started again."""

    def __init__(self, channels: RoutedChannels) -> None:
        self._channels = channels
        self._listeners = {}
        self._stopped = False

    def open(self, channels: NodeChannels, node: Node) -> Any:
        """With the registry's mutex held."""
        for earlier, listener in list(self._listeners.items()):
            # A node that is a master again later has a new listener. The others may be started again: then `drop` has
            # to find them.
            if not listener.running and not self._channels.uses(earlier):
                self._listeners.pop(earlier, None)
        listener = self._listeners[channels] = self._make(node, channels)
        if self._stopped:
            # Read after the listener was stored, as `drop` sets it before it looks for listeners.
            listener.drop()
        return listener

    def drop(self) -> None:
        """Ends all listeners. Can be called on any thread, acquires no mutex, doesn't wait."""
        self._stopped = True
        for listener in list(self._listeners.values()):
            listener.drop()
