"""Topologies made of numbers, for tests without servers."""

from redis.exceptions import RedisError

from pyredisson._protocol.node import Node
from pyredisson._protocol.replies import as_error
from pyredisson._protocol.routing import Changes, RoutingTable
from pyredisson._protocol.topology import Member, Shard, TopologyView
from pyredisson._settings.address import Address
from pyredisson._settings.config import Config

LAST = 16383


def address(number: int) -> Address:
    return Address("127.0.0.1", 7000 + number)


def member(number: int) -> Member:
    return Member(address(number), b"%d" % number)


def make_node(where: Address) -> Node:
    return Node(Config(host=where.host, port=where.port))


def shard(master: int, slots: tuple[tuple[int, int], ...], *replicas: int) -> Shard:
    return Shard(member(master), tuple(map(member, replicas)), slots)


def view(*shards: Shard, epoch: int = 1) -> TopologyView:
    return TopologyView(shards, epoch)


def moved(slot: int, number: int) -> RedisError:
    return as_error(f"MOVED {slot} {address(number)}")


def ask(slot: int, number: int) -> RedisError:
    return as_error(f"ASK {slot} {address(number)}")


class Recorder:
    """What a table reports and requests."""

    def __init__(self, table: RoutingTable) -> None:
        self.changes: list[Changes] = []
        self.requests = 0
        table.listen(self.on_changes)
        table.on_request = self.on_request

    def on_changes(self, changes: Changes) -> None:
        self.changes.append(changes)

    def on_request(self) -> None:
        self.requests += 1

    def latest(self) -> Changes:
        (changes,) = self.changes
        self.changes.clear()
        return changes
