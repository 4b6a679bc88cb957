"""Which node serves which slot: the state that all connections of one client to several servers share."""

import itertools
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from operator import is_
from time import monotonic
from typing import NamedTuple, cast

from redis.exceptions import RedisError

from pyredisson._core import SlotMap
from pyredisson._diagnostics import logger
from pyredisson._protocol.moving_slots import Settling
from pyredisson._protocol.node import Node
from pyredisson._protocol.topology import ALL_SLOTS, SLOTS, Member, Shard, TopologyView, read_redirect
from pyredisson._settings.address import Address

MAX_KNOWN = 1000
"""Nodes that are remembered with their suspects, in case they become masters again."""
REDIRECT_TARGET_KEPT = 60.0
"""Seconds for which a node that ASK has named counts as present. Until it serves a slot, no view contains it."""


class Changes(NamedTuple):
    """What a new view has changed."""

    moved_slots: frozenset[int] = frozenset()
    """Slots that had no master before, or whose former master still lives: the keys have moved with the slot."""
    failed_over_slots: frozenset[int] = frozenset()
    """Slots whose former master was replaced or restarted: its latest writes, or all of its data, may be lost."""
    new_masters: tuple[Node, ...] = ()
    """Alone if a view has left out a master, and the next one has it again: its slots had no node in between."""
    removed_nodes: tuple[Node, ...] = ()
    """Nodes that serve no slot any more."""
    demoted_nodes: tuple[Node, ...] = ()
    """Nodes that were replaced as masters: what is sent to them is lost or refused, and they may hang. Such a node is
    still present if another server has its address."""


@dataclass(slots=True, eq=False)
class _Served:
    """Who serves a slot according to a view."""

    node: Node
    shard: Shard


class RoutingTable:
    """The map from slots to nodes.

    Any thread may call any method. Each step that others can observe is one operation on a dict or on the map, because
    an interrupt may strike between any two lines, and a caller must never wait for the thread that applies views.
    """

    def __init__(
        self,
        make_node: Callable[[Address], Node],
        map_address: Callable[[Address], Address] | None,
        settling: float = 0.0,
    ) -> None:
        """`map_address` translates an address that a server has announced. `settling`: as for `Settling`."""
        self._make_node = make_node
        self._map_address = map_address or (lambda address: address)
        self._slots = SlotMap()
        self.node_for = cast(Callable[[bytes], Node | None], self._slots.node_for)
        """The node for a packed command. None: it has no key, or its slot has no known node."""
        self.node_of_slot = cast(Callable[[int], Node | None], self._slots.node_of_slot)
        self.node_of_key = cast(Callable[[bytes], Node | None], self._slots.node)
        self.nodes: dict[Address, Node] = {}
        """The masters. It also contains nodes that redirects have named and that no view contains yet."""
        self.shards: dict[Address, Shard] = {}
        """The shard of each master, as the latest view says."""
        self.version = 0
        """Another number after each change of the map."""
        self.ready = False
        """Whether a view was applied."""
        self.settling = Settling(settling)
        self.epoch = 0
        """The largest epoch of an applied view."""
        self.on_request: Callable[[], None] = lambda: None
        """Has the topology looked at in the background. It must not block."""
        self._served: list[_Served | None] = [None] * SLOTS
        """For each slot its latest known master. Unlike the map it only changes when a view is applied."""
        self._known: dict[Address, Node] = {}
        self._numbers = itertools.count(1)
        self._moved: dict[int, tuple[int, Node]] = {}
        """For each slot the number of its latest MOVED, and the node that it named, until a later view is applied."""
        self._asked: dict[Address, float] = {}
        """When ASK has named a node last."""
        self.health = ServerHealth()
        self._listeners: list[weakref.WeakMethod[Callable[[Changes], None]]] = []

    # --- What callers need

    def redirect(self, error: RedisError, asked: Node) -> Node:
        """The node that a MOVED or ASK from the node `asked` names. MOVED changes the map at once."""
        redirect = read_redirect(error, asked.endpoint)
        if redirect.address is None:
            # It isn't known where the node is. The next view may contain its address.
            self.request_refresh(f"a redirect without an address: {error}")
            # Connections may have a copy of the node, with other timeouts.
            return self._node_at(asked.endpoint)
        node = self._node_at(self._map_address(redirect.address))
        if redirect.ask:
            self._asked[node.endpoint] = monotonic()
            self.nodes.setdefault(node.endpoint, node)
            return node
        # First of all: a view that is applied at this moment must not undo it.
        self._moved[redirect.slot] = (next(self._numbers), node)
        self.settling.on_change()
        self._slots.assign(redirect.slot, redirect.slot, node)
        self.nodes.setdefault(node.endpoint, node)
        self.version = next(self._numbers)
        logger.debug("slot %d has moved from %s to %s", redirect.slot, asked.address, node.address)
        self.on_request()
        return node

    def continues(self, error: RedisError, asked: Node) -> bool:
        """Whether the node that a redirect names has the data of the node that has sent it: the keys move from one
        master to another one. A replica that took over may lack the latest writes. To be called before `redirect`."""
        redirect = read_redirect(error, asked.endpoint)
        if redirect.ask or redirect.address is None:
            return redirect.ask
        return {asked.endpoint, self._map_address(redirect.address)} <= self.shards.keys()

    def has_handed_over(self, server_id: bytes, node: Node) -> bool:
        """Whether a node has the data of another one, the process with that identity: both are masters."""
        masters = self.shards
        if node.endpoint not in masters:
            return False
        known = self.health.identified_as(server_id)
        return any(one is not node and one.endpoint in masters for one in known)

    def masters(self) -> list[Node]:
        """The nodes that serve slots, as the latest view says, by address."""
        with_slots = sorted(address for address, shard in self.shards.items() if shard.slots)
        nodes = self.nodes.copy()
        return [nodes[address] for address in with_slots if address in nodes]

    def request_refresh(self, reason: str) -> None:
        """Has the topology looked at now, and often for a short time, because a server didn't serve. Never blocks."""
        logger.debug("the topology is looked at: %s", reason)
        self.health.on_not_served()
        self.on_request()

    def listen(self, callback: Callable[[Changes], None]) -> None:
        """Has a bound method called after each change, on the thread that applied the view. Refers to it weakly."""
        self._listeners.append(weakref.WeakMethod(callback))

    # --- What the keeper needs

    def begin_view(self) -> int:
        """To be called before a view is asked for. The number tells which redirects are newer than the view."""
        return next(self._numbers)

    @property
    def redirect_target(self) -> Node | None:
        """The node that the latest MOVED has named. No view has confirmed that yet."""
        latest = max(self._moved.copy().values(), key=lambda moved: moved[0], default=None)
        return None if latest is None else latest[1]

    def is_failing(self, address: Address) -> bool:
        """Whether the server has failed lately, and has not recovered."""
        node = self._known.get(address)
        return node is not None and self.health.is_failing(node)

    @property
    def troubled(self) -> bool:
        """Whether the topology is likely to change now, because a master fails or doesn't serve."""
        return self.health.urgent or any(map(self.is_failing, list(self.nodes)))

    def contradicts(self, view: TopologyView, begun: int) -> bool:
        """Whether a redirect that came after `begun` names another master than the view."""
        newer = {slot: node for slot, (number, node) in self._moved.copy().items() if number > begun}
        return any(
            first <= slot <= last and node.endpoint != shard.master.address
            for shard in view.shards
            for first, last in shard.slots
            for slot, node in newer.items()
        )

    def apply(self, view: TopologyView, begun: int) -> None:
        """Replaces the map by a view, with addresses for this client, on one thread at a time. `begun`: the number of
        `begin_view`; redirects that came later stay in force."""
        self.epoch = view.epoch
        if self.ready and view.shards == tuple(self.shards.values()) and not self._moved and not self.health.restarted:
            self._remove_unused()
            return
        changes = self._replace(view, begun)
        self.version = next(self._numbers)
        self.ready = True
        if any(changes):
            self._report(changes)

    def _replace(self, view: TopologyView, begun: int) -> Changes:
        shards = {shard.master.address: shard for shard in view.shards}
        masters = {address: self._node_at(address) for address in shards}
        former = self.shards
        for address, node in masters.items():
            self._asked.pop(address, None)
            self.nodes[address] = node
        moved, failed_over, demoted = self._compare(view, masters)
        if restarted := self.health.take_restarted():
            failed_over |= {
                i for i, served in enumerate(self._served) if served is not None and served.node in restarted
            }
        if moved or failed_over or self._moved:
            # Not if only the replicas have changed, which happens more often, and of which nodes list them differently.
            self.settling.on_change()
        self._assign(view, masters, begun)
        self.shards = shards
        removed = self._remove_unused()
        new = tuple(node for address, node in masters.items() if address not in former)
        return Changes(frozenset(moved - failed_over), frozenset(failed_over), new, removed, tuple(demoted))

    def _assign(self, view: TopologyView, masters: dict[Address, Node], begun: int) -> None:
        """Writes a view into the map. A slot whose master stays the same keeps it at every moment."""
        end = 0
        ranges = sorted((first, last, shard.master.address) for shard in view.shards for first, last in shard.slots)
        for first, last, address in ranges:
            if end < first:
                self._slots.assign(end, first - 1, None)
            self._slots.assign(first, last, masters[address])
            end = last + 1
        if end < SLOTS:
            self._slots.assign(end, SLOTS - 1, None)
        for slot, (number, node) in self._moved.copy().items():
            if number > begun:
                self._slots.assign(slot, slot, node)
            elif (latest := self._moved.pop(slot, None)) is not None and latest[0] != number:
                self._moved.setdefault(slot, latest)

    def _compare(self, view: TopologyView, masters: dict[Address, Node]) -> tuple[set[int], set[int], dict[Node, None]]:
        """The slots that moved, the slots that failed over, and the nodes that were replaced. Notes who serves now."""
        moved: set[int] = set()
        failed_over: set[int] = set()
        demoted: dict[Node, None] = {}
        present = {shard.master for shard in view.shards}
        for shard in view.shards:
            new = _Served(masters[shard.master.address], shard)
            for first, last in shard.slots:
                before = self._served[first : last + 1]
                self._served[first : last + 1] = [new] * len(before)
                for old in set(before):
                    if old is not None and old.shard.master == shard.master:
                        continue
                    lives = old is None or old.shard.master in present
                    replaced = old is not None and self._was_replaced(old, shard, lives)
                    if old is not None and replaced:
                        demoted[old.node] = None
                    # If the old master is gone for another reason, the new one may have none of its keys.
                    slots = moved if lives and not replaced else failed_over
                    slots.update(itertools.compress(itertools.count(first), map(partial(is_, old), before)))
        return moved, failed_over, demoted

    def _was_replaced(self, old: _Served, shard: Shard, lives: bool) -> bool:
        """Whether another server took over as the master, instead of only this slot."""
        before = old.shard
        if _contains(before.replicas, shard.master) or _contains(shard.replicas, before.master):
            return True
        # The same address with another identity: a restarted server, or another one behind the same name.
        same_address = shard.master.address == before.master.address
        only_master = before.slots == shard.slots == ALL_SLOTS
        return same_address or only_master or (not lives and self.is_failing(before.master.address))

    def _remove_unused(self) -> tuple[Node, ...]:
        """Removes the nodes that are in no view, and that no redirect has named lately."""
        redirected = {node for _, node in self._moved.copy().values()}
        oldest = monotonic() - REDIRECT_TARGET_KEPT
        removed = []
        for address, node in self.nodes.copy().items():
            if address in self.shards or node in redirected or self._asked.get(address, oldest) > oldest:
                continue
            self.nodes.pop(address, None)
            self._asked.pop(address, None)
            self.health.recovered(node)
            removed.append(node)
        return tuple(removed)

    def _report(self, changes: Changes) -> None:
        for reference in list(self._listeners):
            if (listener := reference()) is None:
                self._listeners.remove(reference)
                continue
            try:
                listener(changes)
            except Exception:  # noqa: BLE001
                # Any exception: the other listeners have to follow the change.
                logger.exception("a change of the topology could not be followed")

    def _node_at(self, address: Address) -> Node:
        """The node of an address: the same object for as long as it is remembered, so its suspects aren't forgotten."""
        if (node := self._known.get(address)) is not None:
            return node
        node = self._make_node(address)
        node.on_failure = partial(self._on_failure, node)
        node.on_handshake = partial(self._on_handshake, node)
        node = self._known.setdefault(address, node)
        if len(self._known) > MAX_KNOWN:
            oldest = next((one for one in list(self._known) if one not in self.nodes and one != address), None)
            if oldest is not None and (forgotten := self._known.pop(oldest, None)) is not None:
                self.health.forget(forgotten)
        return node

    def _on_failure(self, node: Node) -> None:
        if self.nodes.get(node.endpoint) is node:
            self.health.on_failure(node)
            self.on_request()

    def _on_handshake(self, node: Node, server_id: bytes | None) -> None:
        if self.health.on_handshake(node, server_id):
            self.on_request()


def _contains(members: Iterable[Member], member: Member) -> bool:
    """Whether the server is one of these, of which perhaps only the address is known."""
    return any(one.address == member.address or (one.id and one.id == member.id) for one in members)


TROUBLE_REMEMBERED = 15.0
"""Seconds for which a node counts as failing: longer than the usual time between two attempts to connect to it."""
URGENT = 2.5
"""Seconds for which the topology is asked for often after a request for no particular node: longer than the pauses of
a call that is repeated (`logic.retry`), so the requests of one outage follow each other without a gap."""


class ServerHealth:
    """Which servers fail, and which were found to be another process, as the connections of one client find out.

    Any thread may call any method. As in `RoutingTable`, each step is one operation on a dict.
    """

    def __init__(self) -> None:
        self.restarted: dict[Node, None] = {}
        """Nodes whose server was found to be another process, until `take_restarted`."""
        self._failed_at: dict[Node, float] = {}
        """When a node failed last, until it recovers."""
        self._server_ids: dict[Node, bytes] = {}
        """The identity of the server's process in the latest handshake."""
        self._urgent_until = 0.0
        self._trouble_began = 0.0
        """When a node began to fail last, or a server not to serve."""

    def is_failing(self, node: Node) -> bool:
        failed = self._failed_at.get(node)
        return failed is not None and monotonic() - failed < TROUBLE_REMEMBERED

    @property
    def urgent(self) -> bool:
        return monotonic() < self._urgent_until

    @property
    def trouble_lasts(self) -> float:
        """For how many seconds the latest trouble has lasted, if there is any."""
        return monotonic() - self._trouble_began

    def on_not_served(self) -> None:
        """A server, no particular one, didn't serve."""
        now = monotonic()
        if now >= self._urgent_until:
            self._trouble_began = now
        self._urgent_until = now + URGENT

    def on_failure(self, node: Node) -> None:
        """The server could not be reached, or didn't reply in time."""
        if not self.is_failing(node):
            self._trouble_began = monotonic()
        self._failed_at[node] = monotonic()

    def on_handshake(self, node: Node, server_id: bytes | None) -> bool:
        """The server has replied to a handshake. Returns whether it has recovered, or is another process."""
        recovered = self.recovered(node)
        if server_id is None or self._server_ids.setdefault(node, server_id) == server_id:
            return recovered
        self._server_ids[node] = server_id
        self.restarted[node] = None
        return True

    def recovered(self, node: Node) -> bool:
        """The node's failures don't count any more. Returns whether there were any."""
        return self._failed_at.pop(node, None) is not None

    def take_restarted(self) -> set[Node]:
        """The nodes whose server was found to be another process since the latest call."""
        restarted = set(self.restarted.copy())
        for node in restarted:
            self.restarted.pop(node, None)
        return restarted

    def identified_as(self, server_id: bytes) -> list[Node]:
        return [node for node, id_ in list(self._server_ids.items()) if id_ == server_id]

    def forget(self, node: Node) -> None:
        self._failed_at.pop(node, None)
        self._server_ids.pop(node, None)
