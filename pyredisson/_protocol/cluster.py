"""What a node of a cluster replies about the cluster: its slots, its state, and redirects."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from redis.exceptions import InvalidResponse, RedisError

from pyredisson._core import command
from pyredisson._protocol.error_codes import code_of
from pyredisson._protocol.no_reply import Reply
from pyredisson._protocol.topology import Member, Shard, TopologyView
from pyredisson._settings.address import Address

QUERY = (command(b"CLUSTER", b"SLOTS"), command(b"CLUSTER", b"INFO"))
"""The commands whose replies `read_view` takes."""
UNKNOWN_HOST = "?"
"""What a node announces that is to be addressed by its host name, and has none."""


class Redirect(NamedTuple):
    """An error reply that names the node to which the command has to be sent instead. The command has not run."""

    ask: bool
    """ASK: the slot is moving. Only this command goes there, behind ASKING. Otherwise MOVED: the slot has moved."""
    slot: int
    address: Address | None
    """None: the node has no address that can be used."""


def is_redirect(error: BaseException) -> bool:
    """Whether an error reply is a redirect."""
    return isinstance(error, RedisError) and code_of(error) in ("MOVED", "ASK")


def read_redirect(error: RedisError, asked: Address) -> Redirect:
    """The redirect in an error reply of the server at `asked`. InvalidResponse: it is none."""
    # An IPv6 address has no brackets here.
    found = re.fullmatch(r"(MOVED|ASK) (\d+) (\S*):(\d+)", str(error))
    if found is None:
        raise InvalidResponse(f"{asked} has replied with a redirect that can't be read: {error}")
    host, port = found[3], int(found[4])
    # An empty host: the node doesn't know its own address, and is reached where the one that was asked is.
    address = None if host == UNKNOWN_HOST or not port else Address(host or asked.host, port)
    return Redirect(found[1] == "ASK", int(found[2]), address)


def read_view(replies: Sequence[Reply], asked: Address) -> TopologyView:
    """The view in the replies to `QUERY`. An error reply to CLUSTER SLOTS is raised."""
    slots, info = replies
    if isinstance(slots, RedisError):
        raise slots
    view = read_slots(slots, asked)
    if isinstance(info, RedisError):
        # A user may have no right to CLUSTER INFO.
        return view
    state = dict(re.findall(rb"(?m)^(\w+):([^\r\n]*)", info))
    epoch = int(state.get(b"cluster_current_epoch", 0))
    return TopologyView(view.shards, epoch, state.get(b"cluster_state") != b"fail")


def read_slots(reply: Reply, asked: Address) -> TopologyView:
    """The view in a reply to CLUSTER SLOTS of the node at `asked`.

    A slot that is assigned to nobody, or to a node without an address, is in no shard.
    """
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
        others = node[3] if len(node) > 3 else ()
        name = dict(zip(others[::2], others[1::2], strict=True)).get(b"ip", b"").decode()
        if not name:
            return None
    return Member(Address(name or asked.host, port), id_) if port else None


def _joined(ranges: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The ranges in order, where adjacent ones are one: nodes divide the same slots differently."""
    ranges.sort()
    starts = [ranges[0][0]] + [second[0] for first, second in pairwise(ranges) if first[1] + 1 < second[0]]
    ends = [first[1] for first, second in pairwise(ranges) if first[1] + 1 < second[0]] + [ranges[-1][1]]
    return tuple(zip(starts, ends, strict=True))
