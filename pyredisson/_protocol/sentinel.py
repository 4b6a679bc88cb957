"""What Sentinels, and the servers themselves, reply about who the master is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from redis.exceptions import InvalidResponse, NoPermissionError, RedisError

from pyredisson._core import command
from pyredisson._protocol.no_reply import Reply
from pyredisson._protocol.topology import Member, Shard, TopologyView
from pyredisson._settings.address import Address

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
        fields = {} if isinstance(details, RedisError) else _fields(details)
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
    """The view in which the server at `address` is the master of all slots. None: it is a replica.

    An error reply is raised if it leaves the role unknown.
    """
    role, replication, server = replies
    details = _info(replication)
    if isinstance(role, RedisError):
        if b"role" not in details:
            raise role
        role = [details[b"role"], 0, _replicas_of_info(details)]
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
    return Member(address, _info(server).get(b"run_id", b""))


def _addresses(servers: Reply) -> tuple[Address, ...]:
    """Of the servers in a list of a Sentinel. None if it refuses to tell."""
    fields = [] if isinstance(servers, RedisError) else map(_fields, servers)
    return tuple(Address(server[b"ip"].decode(), int(server[b"port"])) for server in fields)


def _fields(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _info(reply: Reply) -> dict[bytes, bytes]:
    return dict(re.findall(rb"(?m)^(\w+):([^\r\n]*)", reply)) if isinstance(reply, bytes) else {}


def _replicas_of_info(details: dict[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    found = [re.search(rb"ip=([^,]*),port=(\d+)", value) for name, value in details.items() if name[:5] == b"slave"]
    return [(match[1], match[2]) for match in found if match is not None]
