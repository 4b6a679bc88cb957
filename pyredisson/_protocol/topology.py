"""Which servers are masters, as one of them or a Sentinel has reported it: the same form for every topology."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

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
    """Further servers that may take over from the master. They are not its replicas at present."""


@dataclass(frozen=True, slots=True)
class TopologyView:
    """All shards, as one server knows them. Views with the same content are equal, whoever reported them."""

    shards: tuple[Shard, ...]
    epoch: int = 0
    """The cluster's current epoch as the reporting node knows it: one that knows a smaller epoch may know less. 0 where
    there are no epochs."""
    healthy: bool = True
    """Whether the reporting node serves: one that can't reach most of the masters says that the cluster is down."""

    @property
    def covered(self) -> int:
        """How many slots have a master."""
        return sum(last - first + 1 for shard in self.shards for first, last in shard.slots)

    def with_absent(self, servers: Iterable[Address]) -> TopologyView:
        """The view of a master of all slots, which one of these servers may replace."""
        (shard,) = self.shards
        present = {shard.master.address, *(member.address for member in shard.replicas)}
        absent = tuple(sorted(address for address in set(servers) if address not in present))
        return replace(self, shards=(replace(shard, absent=absent),))

    def mapped(self, mapper: Callable[[Address], Address]) -> TopologyView:
        """The view with other addresses, for servers that announce addresses of their own network."""

        def map_member(member: Member) -> Member:
            return member._replace(address=mapper(member.address))

        shards = tuple(
            replace(
                shard,
                master=map_member(shard.master),
                replicas=tuple(map(map_member, shard.replicas)),
                absent=tuple(map(mapper, shard.absent)),
            )
            for shard in self.shards
        )
        return replace(self, shards=shards)
