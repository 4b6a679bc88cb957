"""The channels of a client of several servers: each is subscribed to on the node that serves its slot."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from redis.exceptions import RedisError

from pyredisson._diagnostics import logger
from pyredisson._protocol.node import Node
from pyredisson._protocol.pubsub import is_on_other_slot
from pyredisson._protocol.replies import Redirected, is_transient_reply
from pyredisson._protocol.routing import Changes, RoutingTable
from pyredisson.logic.channels import Channel, ChannelRegistry, Subscriber
from pyredisson.logic.ports import Wakeup

MOST_REDIRECTS = 5
"""How often in a row a refused subscription is sent to another node at once. After that a waiter retries it, which
happens every second: two nodes may each name the other one for a moment."""


class NodeSubscriber(Subscriber, Protocol):
    def unsubscribe(self, channels: Iterable[bytes], *, moved: bool = False) -> None:
        """`moved`: the slots of these channels have left the node."""

    def reconnect(self) -> None:
        """Replaces the connection: the node was replaced as a master. Takes no mutex, and doesn't block."""


class Listeners(Protocol):
    """The subscription connections of a backend."""

    def open(self, channels: NodeChannels, node: Node) -> NodeSubscriber:
        """A connection for these channels, which is made as soon as there is one."""

    def call(self, function: Callable[[], None]) -> None:
        """Calls a function, now or soon, on a thread on which wakeups may be set. Doesn't block."""


class NodeChannels:
    """The channels that are subscribed to on one node, as its listener sees them."""

    def __init__(self, registry: RoutedChannels, node: Node, listeners: Listeners) -> None:
        self.node = node
        self.mutex = registry.mutex
        self.waiting: set[Wakeup] = set()
        """The waiters of these channels."""
        self.client_waiting = registry.waiting
        self.channels: dict[bytes, Channel] = {}
        self._registry = registry
        self.deliver = registry.deliver
        self.sweep = registry.sweep
        self.on_refused = partial(registry.on_refused_by, self)
        self.on_dropped = partial(registry.on_dropped_by, self)
        self.subscriber = listeners.open(self, node)

    def names(self) -> list[bytes]:
        return sorted(self.channels, reverse=True)

    def is_unused(self) -> bool:
        """Whether the connection can be closed until there is a channel again."""
        return not self.channels

    def on_subscribed(self, name: bytes) -> None:
        # An earlier node may confirm a channel that has moved on.
        if name in self.channels:
            self._registry.on_subscribed(name)

    def on_disconnected(self) -> None:
        for name in list(self.channels):
            self._registry.unconfirm(self.channels.get(name))


ListenedChannels = ChannelRegistry | NodeChannels
"""The channels of one subscription connection, as what reads that connection sees them."""


class RoutedChannels(ChannelRegistry):
    """All channels of one client of several servers.

    A channel is `placed` on a node as long as it is subscribed to there, or about to be. The waiters themselves place
    what isn't placed, or is placed on the wrong node, each time they begin to wait (`refresh`). They are woken when the
    map changes. So nobody else has to run, and the keeper's thread, which applies the map, never waits for the mutex:
    a signal's handler may hold that for long.

    An interrupt may strike between any two lines. A channel is in `_unplaced` before it loses its place, and until it
    has another one: whatever was interrupted is done again by the next `refresh`.
    """

    notes_places = True

    def __init__(self, clock: Callable[[], float], table: RoutingTable) -> None:
        super().__init__(clock)
        self._table = table
        self._version = -1
        """The version of the map by which all channels were placed."""
        self._nodes: dict[Node, NodeChannels] = {}
        self._places: dict[bytes, NodeChannels] = {}
        self._unplaced: dict[bytes, None] = {}
        """Channels that are subscribed to nowhere."""
        self.place_of: dict[Wakeup, NodeChannels] = {}
        """Where a waiter's message will arrive, if its channel is placed."""
        self._redirects: dict[bytes, int] = {}
        """How often a subscription was redirected since it was confirmed, or retried by a waiter."""
        self.subscriber = self

    def open(self, listeners: Listeners) -> None:
        """Sets the subscription connections, which themselves refer to this registry."""
        self._listeners = listeners
        self._table.listen(self._on_changes)

    # --- For waiters

    def on_joined(self, name: bytes, channel: Channel, wakeup: Wakeup) -> None:
        place = self._places.get(name)
        if place is not None:
            self._put(wakeup, place)
            # Nobody may read this connection any more.
            place.subscriber.subscribe(())
        elif channel.error is None:
            # An interrupt may have ended the call that registered the channel, before it was placed.
            self._unplaced[name] = None

    def leave(self, name: bytes, wakeup: Wakeup) -> None:
        with self.mutex:
            super().leave(name, wakeup)
            # In this order: the repetition of an interrupted call finds what is left.
            place = self.place_of.get(wakeup)
            if place is not None:
                place.waiting.discard(wakeup)
                self.place_of.pop(wakeup, None)

    def uses(self, place: NodeChannels) -> bool:
        """Whether channels of that node will be subscribed to there, if there are any again."""
        return self._nodes.get(place.node) is place

    @property
    def stale(self) -> bool:
        """Whether `refresh` has something to do."""
        return bool(self._unplaced) or self._version != self._table.version

    def refresh(self) -> None:
        """Subscribes to each channel on the node that serves its slot now. On a thread on which wakeups may be set."""
        with self.mutex:
            version = self._table.version
            if version != self._version:
                for name in list(self._places):
                    place = self._places.get(name)
                    if place is not None and self._node_of(name, place.node) is not place.node:
                        self._displace(name, place)
                self._forget_nodes()
            self._redirects.clear()
            for name in list(self._unplaced):
                self._try_to_place(name)
            self._version = version

    # --- Subscribing: with the mutex held (`Subscriber`)

    def subscribe(self, channels: Iterable[bytes]) -> None:
        for name in channels:
            self._unplaced[name] = None
            self._place(name)

    def unsubscribe(self, channels: Iterable[bytes]) -> None:
        for name in channels:
            self._unplaced.pop(name, None)
            place = self._places.get(name)
            if place is not None:
                place.channels.pop(name, None)
                self._places.pop(name, None)
                place.subscriber.unsubscribe((name,))

    def _place(self, name: bytes) -> None:
        """Subscribes to a channel where its slot is served. If that isn't known, it stays unplaced."""
        channel = self.by_name.get(name)
        node = self._node_of(name, None)
        if channel is None or node is None:
            return
        place = self._nodes.get(node)
        if place is None:
            place = self._nodes[node] = NodeChannels(self, node, self._listeners)
        # Messages don't arrive yet. An interrupt may have prevented this when the channel lost its earlier place.
        self.unconfirm(channel)
        place.channels[name] = channel
        self._places[name] = place
        for wakeup in list(channel.waiters):
            self._put(wakeup, place)
        place.subscriber.subscribe((name,))
        self._unplaced.pop(name, None)

    def _try_to_place(self, name: bytes) -> None:
        """Places a channel that has lost its place; forgets it if nobody waits for it."""
        channel = self.by_name.get(name)
        if channel is None or channel.error is not None:
            self._unplaced.pop(name, None)
        elif not channel.waiters:
            self.forget(name)
            self.unsubscribe((name,))
        else:
            try:
                self._place(name)
            except RuntimeError as error:
                # No thread can be started. This waiter only happens to be the one that places the channels of all.
                logger.debug("channel %r can't be subscribed to: %s", name, error)
                self._unplaced[name] = None

    def _displace(self, name: bytes, place: NodeChannels) -> None:
        """Gives up the subscription on a node that doesn't serve the slot. The waiters retry every second."""
        self._unplaced[name] = None
        channel = place.channels.pop(name, None)
        self._places.pop(name, None)
        if channel is not None:
            for wakeup in list(channel.waiters):
                place.waiting.discard(wakeup)
                self.place_of.pop(wakeup, None)
            self.unconfirm(channel)
            place.subscriber.unsubscribe((name,), moved=True)

    def _put(self, wakeup: Wakeup, place: NodeChannels) -> None:
        before = self.place_of.get(wakeup)
        if before is not None and before is not place:
            before.waiting.discard(wakeup)
        # In this order: an interrupted call leaves nothing behind that `leave` doesn't find.
        self.place_of[wakeup] = place
        place.waiting.add(wakeup)
        if wakeup not in self.waiting:
            # The garbage collector has ended the waiter in here, or since the caller listed the waiters.
            place.waiting.discard(wakeup)
            self.place_of.pop(wakeup, None)

    def _node_of(self, name: bytes, present: Node | None) -> Node | None:
        """The node on which to subscribe to a channel; the present one, if its slot isn't served by any."""
        node = self._table.node_of_key(name) or present
        if node is None and is_on_other_slot(name):
            # It is always published as a plain message, which reaches the subscribers of all nodes.
            node = next(iter(list(self._table.nodes.values())), None)
        return node

    def _forget_nodes(self) -> None:
        """Forgets the nodes that are no masters any more. Their listeners end by themselves, having no channels."""
        present = set(self._table.nodes.copy().values())
        for node in list(self._nodes):
            place = self._nodes.get(node)
            if place is not None and place.is_unused() and node not in present:
                del self._nodes[node]

    # --- Events

    def on_subscribed(self, name: bytes) -> None:
        self._redirects.pop(name, None)
        super().on_subscribed(name)

    def on_refused_by(self, place: NodeChannels, name: bytes, error: RedisError) -> None:
        """A node refused a subscription: for good, for now, or because another node serves the slot."""
        if isinstance(error, Redirected):
            self._table.redirect(error, place.node)
        elif is_transient_reply(error):
            self._table.request_refresh(str(error))
        with self.mutex:
            if self._places.get(name) is not place:
                # The answer to an earlier subscription.
                return
            self._displace(name, place)
            if isinstance(error, Redirected):
                self._follow(name)
            elif not is_transient_reply(error):
                self._unplaced.pop(name, None)
                self.on_refused(name, error)

    def on_dropped_by(self, place: NodeChannels, name: bytes) -> None:
        """A node ended a sharded subscription: its slot has left the node, where to is found out by subscribing."""
        with self.mutex:
            if self._places.get(name) is place:
                self._displace(name, place)
                self._follow(name)

    def _follow(self, name: bytes) -> None:
        """Subscribes anew at once, unless that has failed several times in a row."""
        redirects = self._redirects[name] = self._redirects.get(name, 0) + 1
        if redirects <= MOST_REDIRECTS:
            self._try_to_place(name)

    def _on_changes(self, changes: Changes) -> None:
        """The map has changed. Called on the keeper's thread: takes no mutex."""
        for node in changes.demoted_nodes:
            place = self._nodes.get(node)
            if place is not None:
                self._listeners.call(place.subscriber.reconnect)
        self._listeners.call(self._wake_displaced)

    def _wake_displaced(self) -> None:
        """Wakes the waiters of all channels that aren't subscribed to where they should be. Takes no mutex."""
        for name in list(self.by_name):
            channel, place = self.by_name.get(name), self._places.get(name)
            if channel is not None and (place is None or self._node_of(name, place.node) is not place.node):
                channel.wake_all()
