"""Which servers are masters, in one form for every topology, and the replies of servers and Sentinels about it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

from redis.exceptions import InvalidResponse, NoPermissionError, RedisError

from pyredisson._core import command
from pyredisson._protocol.replies import Reply, info_fields, pairs
from pyredisson._settings.address import Address

SLOTS = 16384
ALL_SLOTS = ((0, SLOTS - 1),)


class Member(NamedTuple):
    """One server."""

    address: Address
    id: bytes = b""
    """Its identity: in a cluster the id of the node, otherwise the `run_id` of the process. Empty: unknown."""


@dataclass(frozen=True, slots=True)
class Shard:
    """A master, its replicas, and the ranges of slots that it serves, with the first and the last slot of each."""

    master: Member
    replicas: tuple[Member, ...] = ()
    slots: tuple[tuple[int, int], ...] = ALL_SLOTS
    absent: tuple[Address, ...] = ()
    """Further servers that may take over from the master, with addresses for this client. They are not its replicas at
    present, and no server reports them: see `with_absent`."""

    @property
    def successors(self) -> tuple[Address, ...]:
        """All servers that may take over from the master."""
        return (*(member.address for member in self.replicas), *self.absent)


@dataclass(frozen=True, slots=True)
class TopologyView:
    """All shards, as one server knows them. Views with the same content are equal, whoever reported them."""

    shards: tuple[Shard, ...]
    epoch: int = 0
    """The current epoch as the reporting node knows it: one that knows a smaller epoch may know less. 0: no cluster."""
    healthy: bool = True
    """Whether the reporting node serves: one that can't reach most of the masters says that the cluster is down."""

    @property
    def covered(self) -> int:
        return sum(last - first + 1 for shard in self.shards for first, last in shard.slots)

    def with_absent(self, servers: Iterable[Address]) -> TopologyView:
        """The view of a master of all slots, which one of these servers may replace."""
        (shard,) = self.shards
        present = {shard.master.address, *(member.address for member in shard.replicas)}
        absent = tuple(sorted(address for address in set(servers) if address not in present))
        return replace(self, shards=(replace(shard, absent=absent),))

    def mapped(self, mapper: Callable[[Address], Address]) -> TopologyView:
        """The view of a server with other addresses, as it announces addresses of its own network."""

        def map_member(member: Member) -> Member:
            return member._replace(address=mapper(member.address))

        shards = (
            replace(shard, master=map_member(shard.master), replicas=tuple(map(map_member, shard.replicas)))
            for shard in self.shards
        )
        return replace(self, shards=tuple(shards))


CLUSTER_QUERY = (command(b"CLUSTER", b"SLOTS"), command(b"CLUSTER", b"INFO"))
"""The commands whose replies `read_cluster` takes."""
UNKNOWN_HOST = "?"
"""What a node announces that is to be addressed by its host name, and has none."""


class Redirect(NamedTuple):
    """An error reply that names the node to which the command has to be sent instead. The command has not run."""

    ask: bool
    """ASK: the slot is moving. Only this command goes there, behind ASKING. Otherwise MOVED: the slot has moved."""
    slot: int
    address: Address | None
    """None: the node has no address that can be used."""


def read_redirect(error: RedisError, asked: Address) -> Redirect:
    """The redirect in an error reply of the server at `asked`. InvalidResponse: it is none."""
    # An IPv6 address has no brackets here.
    if (found := re.fullmatch(r"(MOVED|ASK) (\d+) (\S*):(\d+)", str(error))) is None:
        raise InvalidResponse(f"{asked} has replied with a redirect that can't be read: {error}")
    host, port = found[3], int(found[4])
    # An empty host: the node doesn't know its own address, and is reached where the one that was asked is.
    address = None if host == UNKNOWN_HOST or not port else Address(host or asked.host, port)
    return Redirect(found[1] == "ASK", int(found[2]), address)


def read_cluster(replies: Sequence[Reply], asked: Address) -> TopologyView:
    """The view in the replies to `CLUSTER_QUERY`. An error reply to CLUSTER SLOTS is raised."""
    slots, info = replies
    if isinstance(slots, RedisError):
        raise slots
    state = info_fields(info)
    epoch = int(state.get(b"cluster_current_epoch", 0))
    return TopologyView(read_slots(slots, asked).shards, epoch, state.get(b"cluster_state") != b"fail")


def read_slots(reply: Reply, asked: Address) -> TopologyView:
    """The view in a reply to CLUSTER SLOTS of the node at `asked`. A slot that is assigned to nobody, or to a node
    without an address, is in no shard."""
    masters: dict[Member, tuple[Member, ...]] = {}
    slots: dict[Member, list[tuple[int, int]]] = {}
    try:
        for first, last, *nodes in reply:
            master, *replicas = (_member(node, asked) for node in nodes)
            if master is not None:
                # Nodes report in different orders, but equal views must be recognized as equal.
                masters[master] = tuple(sorted({replica for replica in replicas if replica is not None}))
                slots.setdefault(master, []).append((int(first), int(last)))
    except (TypeError, ValueError, AttributeError, IndexError) as error:
        raise InvalidResponse(f"{asked} has replied to CLUSTER SLOTS with {reply!r}") from error
    shards = (Shard(master, replicas, _joined(slots[master])) for master, replicas in masters.items())
    return TopologyView(tuple(sorted(shards, key=lambda shard: shard.slots)))


def _member(node: Sequence[Any], asked: Address) -> Member | None:
    """One node of a reply to CLUSTER SLOTS. None: it has no address."""
    host, port = node[0], int(node[1])
    id_ = bytes(node[2]) if len(node) > 2 else b""
    name = "" if host is None else host.decode()
    if name == UNKNOWN_HOST:
        name = pairs(node[3] if len(node) > 3 else ()).get(b"ip", b"").decode()
        if not name:
            return None
    return Member(Address(name or asked.host, port), id_) if port else None


def _joined(ranges: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The ranges in order, where adjacent ones are one: nodes divide the same slots differently."""
    ranges.sort()
    starts = [ranges[0][0]] + [second[0] for first, second in pairwise(ranges) if first[1] + 1 < second[0]]
    ends = [first[1] for first, second in pairwise(ranges) if first[1] + 1 < second[0]] + [ranges[-1][1]]
    return tuple(zip(starts, ends, strict=True))


SWITCH_CHANNEL = b"+switch-master"
"""Where a Sentinel publishes that a master was replaced: its name, the old address and the new one."""
ROLE_QUERY = (command(b"ROLE"), command(b"INFO", b"replication"), command(b"INFO", b"server"))
"""The commands whose replies `read_role` takes. A user may have no right to some of them."""


class SentinelAnswer(NamedTuple):
    """What a Sentinel says about a master."""

    master: Address
    epoch: int
    """The epoch of the failover that made it the master. A Sentinel that knows a smaller one knows less. 0: unknown."""
    sentinels: tuple[Address, ...]
    """The other Sentinels."""
    replicas: tuple[Address, ...] = ()
    """The replicas of the master, also replicas that are not connected to it. One of them is promoted in a failover."""


def sentinel_query(master_name: str) -> tuple[bytes, ...]:
    """The commands whose replies `read_sentinel` takes."""
    # The first one names the new master as soon as it was promoted, the second one after the whole failover.
    verbs = (b"GET-MASTER-ADDR-BY-NAME", b"MASTER", b"SENTINELS", b"REPLICAS")
    return tuple(command(b"SENTINEL", verb, master_name) for verb in verbs)


def read_sentinel(replies: Sequence[Reply], asked: Address) -> SentinelAnswer | None:
    """What the Sentinel at `asked` says. None: it doesn't know the master's name. An error reply is raised."""
    master, details, sentinels, replicas = replies
    if isinstance(master, RedisError):
        raise master
    if master is None:
        return None
    try:
        host, port = master
        fields = {} if isinstance(details, RedisError) else pairs(details)
        return SentinelAnswer(
            Address(host.decode(), int(port)),
            int(fields.get(b"config-epoch", 0)),
            _addresses(sentinels),
            _addresses(replicas),
        )
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise InvalidResponse(f"the Sentinel at {asked} has replied with {replies!r}") from error


def names_master(message: bytes, master_name: str) -> bool:
    """Whether a message on `SWITCH_CHANNEL` is about that master."""
    return message.split(b" ")[0] == master_name.encode()


def read_role(replies: Sequence[Reply], address: Address, epoch: int = 0) -> TopologyView | None:
    """The view in which the server at `address` is the master of all slots. None: it is a replica. An error reply is
    raised if it leaves the role unknown."""
    role, replication, server = replies
    details = info_fields(replication)
    if isinstance(role, RedisError):
        if b"role" not in details:
            raise role
        listed = (re.search(rb"ip=([^,]*),port=(\d+)", text) for name, text in details.items() if name[:5] == b"slave")
        role = [details[b"role"], 0, [found.groups() for found in listed if found is not None]]
    try:
        if role[0] != b"master":
            return None
        replicas = sorted(Member(Address(host.decode(), int(port))) for host, port, *_ in role[2])
    except (TypeError, ValueError, AttributeError, IndexError) as error:
        raise InvalidResponse(f"{address} has replied to ROLE with {role!r}") from error
    return TopologyView((Shard(_master(address, server), tuple(replicas)),), epoch)


def unconfirmed_master(replies: Sequence[Reply], address: Address, epoch: int) -> TopologyView | None:
    """The view in which a server is the master, if the user may not ask it for its role. None: the user may."""
    role, replication, server = replies
    if isinstance(role, NoPermissionError) and isinstance(replication, NoPermissionError):
        return TopologyView((Shard(_master(address, server)),), epoch)
    return None


def _master(address: Address, server: Reply) -> Member:
    return Member(address, info_fields(server).get(b"run_id", b""))


def _addresses(servers: Reply) -> tuple[Address, ...]:
    """Of the servers in a list of a Sentinel. None if it refuses to tell."""
    fields = [] if isinstance(servers, RedisError) else map(pairs, servers)
    return tuple(Address(server[b"ip"].decode(), int(server[b"port"])) for server in fields)
