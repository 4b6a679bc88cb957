"""A real Redis or Valkey cluster on loopback ports, whose slots move and whose nodes fail when a test wants it."""

import time
from collections.abc import Callable, Sequence
from typing import Any, Unpack

from redis.cluster import ClusterNode as StartupNode
from redis.cluster import RedisCluster
from redis.crc import key_slot

from pyredisson._settings.address import Address
from pyredisson.testing.cluster_node import SLOTS, AtomicMove, ClusterNode, NodeView, Slots, write_membership
from pyredisson.testing.deployment import Deployment
from pyredisson.testing.proxy import Proxy
from pyredisson.testing.server import ServerError, ServerOptions, credentials

_REPLICATION_HOST = "127.0.0.2"
"""Where connections between nodes come from if there are proxies, which tell by it that they come from no client."""
_FAILOVER_SECONDS = 20.0
_MANUAL_FAILOVER_SECONDS = 6.0  # a node gives up a manual failover after 5 s
_SHORTEST_ELECTION_SECONDS = 2.0
_MIGRATE_MS = 5000
_KEYS_AT_ONCE = 100
Views = dict[str, NodeView]


class Cluster(Deployment[ClusterNode, ClusterNode]):
    """A cluster on 127.0.0.1 with all slots in equal parts, which persists nothing and ends with this process.

    Use it as a context manager, or call `start` and `stop`. Except `kill` and `pause`, every method returns when all
    living nodes have noticed what it did, and raises `ServerError` if they don't within 20 seconds.

    A majority of the masters promotes a replica. So with fewer than three masters no replica is promoted by itself
    when a master fails, only by `fail_over` with ``takeover=True``. The other arguments are as for `Server`, of every
    node: the cluster itself needs all rights of the default user, and uses TLS if there is TLS.

    Args:
        masters: how many masters.
        replicas: how many replicas each master has.
        node_timeout: the seconds after which a silent node counts as failed (``cluster-node-timeout``).
        proxied: put a `Proxy` before each node, whose address the node tells clients. The nodes reach each other, and
            replicas their masters, whatever a proxy is told to break. Needs a server of version 7.0, and no TLS.
        announce: is called with each node before it starts, and returns the host and the port that the node tells
            clients and replicas. They must lead to the node.
    """

    def __init__(
        self,
        masters: int = 3,
        replicas: int = 1,
        *,
        node_timeout: float = 1.5,
        proxied: bool = False,
        announce: Callable[[ClusterNode], tuple[str, int]] | None = None,
        **options: Unpack[ServerOptions],
    ) -> None:
        tls = options.get("tls", False)
        if masters < 1 or replicas < 0:
            raise ValueError("a cluster has at least one master, and no negative number of replicas")
        if proxied and (tls or announce is not None):
            raise ValueError("proxied=True goes neither with tls=True nor with announce")
        settings = {
            "cluster-enabled": "yes",
            "cluster-node-timeout": str(round(node_timeout * 1000)),
            # Else the replicas of other masters would move to a master that has lost its own.
            "cluster-allow-replica-migration": "no",
        }
        if tls:
            settings["tls-cluster"] = "yes"
        if proxied:
            settings["bind-source-addr"] = _REPLICATION_HOST
        super().__init__(ClusterNode, masters * (1 + replicas), options, settings)
        if proxied and self.version < (7,):
            raise ValueError("proxied=True needs a server of version 7.0 or later")
        self._servers = self.nodes
        self._master_count = masters
        self._proxied = proxied
        self._announce = announce
        self._moves: dict[int, tuple[ClusterNode, ClusterNode]] = {}
        self._node_timeout = node_timeout
        self._elected: dict[str, float] = {}
        """When a node was promoted last."""
        self._candidates: dict[str, tuple[Sequence[ClusterNode], Slots]] = {}

    @property
    def url(self) -> str:
        """All nodes, for clients without TLS."""
        hosts = ",".join(str(Address(*node.address)) for node in self.nodes)
        return f"redis+cluster://{credentials(self.password)}{hosts}"

    @property
    def tls_url(self) -> str:
        """All nodes, for clients with TLS, which need `ca_file` beside this address."""
        hosts = ",".join(f"{node.host}:{node.tls_port}" for node in self.nodes)
        return f"rediss+cluster://{credentials(self.password)}{hosts}"

    def redis(self, **options: Any) -> RedisCluster:
        """Return a new redis-py client for this cluster; `options` override the arguments of `RedisCluster`."""
        nodes = [StartupNode(*node.address) for node in self.living]  # type: ignore[no-untyped-call]
        return RedisCluster(**({"startup_nodes": nodes, "password": self.password} | options))

    def masters(self) -> tuple[ClusterNode, ...]:
        """The present masters that are not known to have failed, as a living node sees them."""
        view = self._view()
        return tuple(node for node in self.nodes if view[node.id].is_master and not view[node.id].failed)

    def replicas_of(self, master: ClusterNode) -> tuple[ClusterNode, ...]:
        """The replicas of a master, also replicas that have failed."""
        view = self._view()
        return tuple(node for node in self.nodes if view[node.id].master == self._known(master).id)

    def node_of(self, slot: int) -> ClusterNode:
        """The node to which the slot is assigned. `ServerError`: it is assigned to no node."""
        view = self._view()
        for node in self.nodes:
            if view[node.id].has(slot):
                return node
        raise ServerError(f"slot {slot} is assigned to no node")

    def node_of_key(self, name: str | bytes) -> ClusterNode:
        """The node that has the key of this name, or would have it."""
        return self.node_of(self.slot_of_key(name))

    @staticmethod
    def slot_of_key(name: str | bytes) -> int:
        return int(key_slot(name.encode() if isinstance(name, str) else name))

    def proxy_of(self, node: ClusterNode) -> Proxy:
        """The proxy before a node (`proxied=True` only)."""
        proxy = self._known(node).proxy
        if proxy is None:
            raise RuntimeError("the cluster was not made with proxied=True, or does not run")
        return proxy

    def move_slot(self, slot: int, to: ClusterNode) -> None:
        """Move a slot with its keys to another master."""
        self.begin_move(slot, to)
        self.move_keys(slot)
        self.finish_move(slot)

    def begin_move(self, slot: int, to: ClusterNode) -> None:
        """Begin to move a slot. Its present node answers ASK from now on for keys that it doesn't have."""
        source = self.node_of(slot)
        if source is self._known(to):
            raise ValueError(f"slot {slot} is there already")
        # In this order: a client that the source sends to the target by ASK must be served there.
        to.set_slot(slot, "IMPORTING", source.id)
        source.set_slot(slot, "MIGRATING", to.id)
        self._moves[slot] = source, to

    def move_keys(self, slot: int, *names: str | bytes) -> None:
        """Move keys of a slot that is being moved: the keys that are named, or without names all of them."""
        source, to = self._move(slot)
        credentials = [] if self.password is None else ["AUTH", self.password]
        words: list[str | int] = ["MIGRATE", to.host, to.internal_port, "", 0, _MIGRATE_MS, *credentials, "KEYS"]
        if names:
            source.ask(*words, *names)
            return
        # Until none is left: clients may add keys to the ones that the source still has.
        while found := source.ask("CLUSTER", "GETKEYSINSLOT", slot, _KEYS_AT_ONCE):
            source.ask(*words, *found)

    def finish_move(self, slot: int) -> None:
        """Assign a slot that is being moved to its new node. The old one must have no keys of it any more."""
        self._finish_move(slot)
        self.wait_until_consistent()

    def reshard(self, count: int, source: ClusterNode, to: ClusterNode) -> None:
        """Move the first `count` slots of a master, with their keys, to another one."""
        view = self._view()[self._known(source).id]
        slots = [slot for slot in range(SLOTS) if view.has(slot)][:count]
        if len(slots) < count:
            raise ValueError(f"{source.host}:{source.port} has {len(slots)} slots only")
        for slot in slots:
            self.begin_move(slot, to)
            self.move_keys(slot)
            self._finish_move(slot)
        self.wait_until_consistent()

    def begin_atomic_move(self, first: int, last: int, to: ClusterNode) -> AtomicMove:
        """Let the servers themselves move a range of slots of one master. Returns at once. `ServerError`: these servers
        can't; Valkey can from 9.0 on, Redis from 8.4 on."""
        return AtomicMove(first, last, self.node_of(first), self._known(to))

    def finish_atomic_move(self, move: AtomicMove) -> None:
        """Wait until the slots have moved. `ServerError`: the move failed or was cancelled, or took over 20 seconds."""
        self._wait("the slots move", move.missing)
        self.wait_until_consistent()

    def move_atomically(self, first: int, last: int, to: ClusterNode) -> None:
        """Let the servers themselves move a range of slots of one master, all keys at once."""
        self.finish_atomic_move(self.begin_atomic_move(first, last, to))

    def unassign(self, slot: int) -> None:
        """Take a slot away from its node, which loses its keys. No node has it then, and by default none serves any."""

        def missing() -> str | None:
            knowing = [node for node in self.living if any(view.has(slot) for view in node.view().values())]
            for node in knowing:
                node.ask("CLUSTER", "DELSLOTS", slot)
            return f"still assigned: {[node.port for node in knowing]}" if knowing else None

        # The owner first: what it says about its slots is what the others learn again.
        self.node_of(slot).ask("CLUSTER", "DELSLOTS", slot)
        self._wait(f"slot {slot} is unassigned", missing)

    def assign(self, slot: int, to: ClusterNode) -> None:
        """Assign an unassigned slot to a master."""
        self._known(to).ask("CLUSTER", "ADDSLOTS", slot)
        self.wait_until_consistent()

    def fail_over(
        self, master: ClusterNode, to: ClusterNode | None = None, *, force: bool = False, takeover: bool = False
    ) -> ClusterNode:
        """Promote a replica of a master: `to`, or the first living one. Returns the new master.

        A node can be elected once in four node timeouts; this method waits until then. A takeover is no election.

        Args:
            force: don't ask the present master, which may be dead or paused (``CLUSTER FAILOVER FORCE``).
            takeover: don't ask the other masters either (``CLUSTER FAILOVER TAKEOVER``).
        """
        replica = to or next((node for node in self.replicas_of(master) if node.alive), None)
        if replica is None:
            raise ServerError(f"{master.host}:{master.port} has no living replica")
        slots = self._view()[master.id].slots
        if not takeover:
            self._wait_until_electable(replica)
        mode = ["TAKEOVER"] if takeover else ["FORCE"] if force else []
        end = time.monotonic() + _FAILOVER_SECONDS
        while True:
            replica.ask("CLUSTER", "FAILOVER", *mode)
            left = end - time.monotonic()
            try:
                self._wait_until_master((replica,), slots, min(_MANUAL_FAILOVER_SECONDS, left))
                break
            except ServerError:
                # The other masters may have refused, or the node has given it up: it has to be told again.
                if left < _MANUAL_FAILOVER_SECONDS:
                    raise
        self.wait_until_consistent()
        return replica

    def wait_for_promotion(self, failed: ClusterNode, timeout: float = _FAILOVER_SECONDS) -> ClusterNode:
        """Return the replica that replaces a master that was killed or paused. `ServerError`: not within `timeout`."""
        candidates, slots = self._candidates.get(self._known(failed).id, ((), ()))
        if not candidates:
            raise ValueError(f"{failed.host}:{failed.port} was no master with replicas when it was killed or paused")
        promoted = self._wait_until_master(candidates, slots, timeout)
        self.wait_until_consistent()
        return promoted

    def wait_for_failure(self, node: ClusterNode, timeout: float = _FAILOVER_SECONDS) -> None:
        """Return when all living nodes know that a killed or paused node has failed. `ServerError`: after `timeout`."""

        def missing() -> str | None:
            unaware = [each.port for each in self.living if not each.view()[node.id].failed]
            return f"unknown to {unaware}" if unaware else None

        self._wait(f"{node.host}:{node.port} counts as failed", missing, timeout)

    def set_node_timeout(self, seconds: float) -> None:
        """Set after how many seconds a silent node counts as failed, on all living nodes."""
        self._node_timeout = seconds
        for node in self.living:
            node.ask("CONFIG", "SET", "cluster-node-timeout", round(seconds * 1000))

    def flush(self) -> None:
        """Remove all keys."""
        for node in self.masters():
            node.ask("FLUSHALL")

    def _configure(self) -> None:
        for node in self.nodes:
            if self._proxied:
                node.proxy = Proxy(node.host, node.port, direct=_REPLICATION_HOST).start()
                node.announce((node.proxy.host, node.proxy.port))
            else:
                node.announce(None if self._announce is None else self._announce(node))
        write_membership(self.nodes, self._master_count)

    def _end(self) -> None:
        super()._end()
        self._moves.clear()
        for node in self.nodes:
            if node.proxy is not None:
                node.proxy.close()
                node.proxy = None

    def _view(self) -> dict[str, NodeView]:
        if not self.living:
            raise ServerError(f"no node of {self!r} is alive")
        return self.living[0].view()

    def _move(self, slot: int) -> tuple[ClusterNode, ClusterNode]:
        """The node that a slot leaves, and the one that gets it."""
        if slot not in self._moves:
            raise ValueError(f"slot {slot} is not being moved: begin_move() comes first")
        return self._moves[slot]

    def _finish_move(self, slot: int) -> None:
        source, to = self._move(slot)
        # The new node first: if the old one were told first and both stopped here, no node would have the slot.
        others = [node for node in self.masters() if node.alive and node not in (to, source)]
        for node in (to, source, *others):
            node.set_slot(slot, "NODE", to.id)
        del self._moves[slot]

    def _before_outage(self, node: ClusterNode) -> None:
        # Once one of them is promoted, the cluster doesn't tell any more whose replica it was.
        if self.living:
            self._candidates[node.id] = self.replicas_of(node), self._view()[node.id].slots

    def _wait_until_master(self, candidates: Sequence[ClusterNode], slots: Slots, timeout: float) -> ClusterNode:
        """Wait until all living nodes know one of the candidates as the master of the slots."""
        promoted: list[ClusterNode] = []

        def missing() -> str | None:
            for node in candidates:
                # One that has just become master gets the greatest epoch, unless it has that, so that all accept it.
                if node.alive and node.view()[node.id].is_master:
                    node.ask("CLUSTER", "BUMPEPOCH")
            known = [node.view() for node in self.living]
            promoted[:] = [
                node
                for node in candidates
                if all(view[node.id].is_master and set(slots) <= set(view[node.id].slots) for view in known)
            ]
            return None if promoted else "the living nodes don't know it as the master of its slots"

        ports = ", ".join(str(node.port) for node in candidates)
        self._wait(f"a replica becomes master (ports: {ports})", missing, timeout)
        self._elected[promoted[0].id] = time.monotonic()
        return promoted[0]

    def _wait_until_electable(self, node: ClusterNode) -> None:
        """A node takes part in an election for twice the node timeout, and begins the next one after as long again.

        Promoted before that, it counts the votes of its last election again (Redis 7.0), and takes over with an old
        epoch. The others refuse that: the old master undoes the promotion, or without it the nodes never agree. No
        server tells when it is ready for the next election.
        """
        if node.id in self._elected:
            next_election = self._elected[node.id] + 2 * max(2 * self._node_timeout, _SHORTEST_ELECTION_SECONDS)
            time.sleep(max(0.0, next_election - time.monotonic()))

    def _inconsistency(self) -> str | None:
        living = self.living
        views = [(node, node.view()) for node in living]
        for node, view in views:
            for other in living:
                if other.id not in view:
                    return f"{node.port} doesn't know {other.port}"
                if not view[other.id].reachable:
                    return f"{node.port} doesn't reach {other.port}"
            if (known := roles(view)) != (first := roles(views[0][1])):
                return f"{node.port} and {living[0].port} know different masters or slots: {known}, {first}"
        found = (unserved(node, view) or unlinked(node, view, living) for node, view in views)
        return next(filter(None, found), None)


def roles(view: Views) -> dict[str, tuple[str | None, Slots, int]]:
    """The master of each node, its slots, and the epoch of each node that serves slots.

    If a slot moved before all knew the epoch of its node, the next node could get the same one. Then nodes that had
    seen the slot at the former would never believe that it is at the latter. The epochs of other nodes decide nothing,
    and the epoch of a frozen replica isn't passed on.
    """
    return {name: (each.master, each.slots, each.epoch if each.slots else 0) for name, each in view.items()}


def unserved(node: ClusterNode, view: Views) -> str | None:
    """A node that has been started serves nothing for about two seconds, to learn first about a promotion meanwhile."""
    covered = sum(last - first + 1 for each in view.values() if not each.failed for first, last in each.slots)
    if covered == SLOTS and "cluster_state:ok" not in node.ask("CLUSTER", "INFO"):
        return f"{node.port} says that the cluster is down, although all slots are assigned"
    return None


def unlinked(node: ClusterNode, view: Views, living: Sequence[ClusterNode]) -> str | None:
    """Replicas must be connected to their masters, and clients that ask this node must be told about them."""
    alive = {each.id: each for each in living}
    # The replicas in the reply follow the master of their slots: host, port, id.
    shown = {replica[2] for entry in node.ask("CLUSTER", "SLOTS") for replica in entry[3:]}
    for each in view.values():
        if each.id not in alive or each.master not in alive:
            continue
        if each.id == node.id and ((role := node.ask("ROLE"))[0] != "slave" or role[3] != "connected"):
            return f"the replica {node.port} is not connected to its master: {role}"
        if view[each.master].slots and each.id not in shown:
            return f"{node.port} doesn't tell clients about the replica {alive[each.id].port}"
    return None
