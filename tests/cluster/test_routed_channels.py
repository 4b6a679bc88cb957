"""The channels of several nodes: each is subscribed to where its slot is served, whatever interrupts that."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from redis.exceptions import NoPermissionError, RedisError

from pyredisson._backends.clock import clock
from pyredisson._backends.threads.wakeup import ThreadWakeup
from pyredisson._core import latch_channel, slot
from pyredisson._protocol.node import Node
from pyredisson._protocol.replies import as_error
from pyredisson._protocol.routing import RoutingTable
from pyredisson.logic.routed_channels import MOST_REDIRECTS, NodeChannels, RoutedChannels
from tests.support.topologies import LAST, address, make_node, shard, view

from .scenes import interrupted_at

HALVES = (shard(0, ((0, 8191),), 3), shard(1, ((8192, LAST),), 4))
LOW, HIGH = next(n for n in (b"%d" % i for i in range(99)) if slot(n) < 8192), b"foo"


def moved(slot: int, number: int) -> RedisError:
    return as_error(f"MOVED {slot} {address(number)}")


class Listener:
    """The subscription connection to one node, which only notes what it is subscribed to."""

    def __init__(self, channels: NodeChannels, node: Node) -> None:
        self.channels = channels
        self.node = node
        self.heard: set[bytes] = set()
        self.subscribed = 0
        self.reconnects = 0

    def subscribe(self, channels: Iterable[bytes]) -> None:
        for name in channels:
            self.heard.add(name)
            self.subscribed += 1

    def unsubscribe(self, channels: Iterable[bytes], *, moved: bool = False) -> None:
        self.heard.difference_update(channels)

    def reconnect(self) -> None:
        self.reconnects += 1


class Clients:
    """A registry, its table, and its listeners."""

    def __init__(self) -> None:
        self.table = RoutingTable(make_node, None)
        self.registry = RoutedChannels(clock, self.table)
        self.listeners: dict[Node, Listener] = {}
        self.registry.open(self)
        self.apply(*HALVES)
        self.registry.refresh()

    def open(self, channels: NodeChannels, node: Node) -> Listener:
        self.listeners[node] = Listener(channels, node)
        return self.listeners[node]

    def call(self, function: Callable[[], None]) -> None:
        function()

    def apply(self, *shards: Any) -> None:
        self.table.apply(view(*shards), self.table.begin_view())

    def join(self, name: bytes) -> ThreadWakeup:
        wakeup = ThreadWakeup()
        self.registry.join(name, wakeup)
        return wakeup

    def listener(self, name: bytes) -> Listener:
        """That of the node which serves the channel's slot."""
        node = self.table.node_of_key(name)
        assert node is not None
        return self.listeners[node]

    def confirm(self, name: bytes) -> None:
        self.listener(name).channels.on_subscribed(name)

    def check(self) -> None:
        """Every channel with waiters is subscribed to on the node of its slot, and on no other one for long."""
        registry = self.registry
        for name, channel in registry.by_name.items():
            if channel.waiters:
                listener = self.listener(name)
                assert name in listener.heard
                assert name in listener.channels.names()
                assert not [
                    one for one in self.listeners.values() if one is not listener and name in one.channels.names()
                ]
                for wakeup in channel.waiters:
                    assert registry.place_of(wakeup) is listener.channels
                    assert wakeup in listener.channels.waiting
        assert not registry._unplaced


def test_a_channel_is_heard_on_the_node_of_its_slot() -> None:
    clients = Clients()
    low, high = clients.join(LOW), clients.join(HIGH)
    clients.check()
    assert [listener.heard for listener in clients.listeners.values()] == [{LOW}, {HIGH}]
    clients.confirm(HIGH)
    assert (low.is_set(), high.is_set()) == (False, True)
    clients.registry.leave(HIGH, high)
    assert clients.registry.place_of(high) is None


def test_a_change_of_the_map_wakes_the_waiters_which_then_follow() -> None:
    clients = Clients()
    wakeup = clients.join(HIGH)
    stays = clients.join(LOW)
    for name in (HIGH, LOW):
        clients.confirm(name)
    for one in (wakeup, stays):
        one.clear()
    before = clients.listener(HIGH)
    clients.apply(shard(0, ((0, LAST),), 3), shard(1, (), 4))
    assert wakeup.is_set()
    assert not stays.is_set()
    clients.registry.refresh()
    clients.check()
    assert before.heard == set()
    assert clients.registry.confirmed_channel(HIGH) is None
    # The earlier node confirms late.
    before.channels.on_subscribed(HIGH)
    assert clients.registry.confirmed_channel(HIGH) is None
    wakeup.clear()
    clients.confirm(HIGH)
    assert wakeup.is_set()


def test_a_refusal_that_names_another_node_is_followed_at_once() -> None:
    clients = Clients()
    clients.join(HIGH)
    clients.listener(HIGH).channels.on_refused(HIGH, moved(slot(HIGH), 0))
    clients.check()
    assert clients.listener(HIGH).node.endpoint == address(0)
    assert clients.listener(HIGH).heard == {HIGH}


def test_two_nodes_that_name_each_other_are_not_asked_without_end() -> None:
    clients = Clients()
    clients.join(HIGH)
    for number in range(3 * MOST_REDIRECTS):
        for listener in list(clients.listeners.values()):
            if HIGH in listener.channels.names():
                listener.channels.on_refused(HIGH, moved(slot(HIGH), number % 2))
    assert sum(listener.subscribed for listener in clients.listeners.values()) <= 2 + MOST_REDIRECTS
    assert clients.registry.stale
    clients.registry.refresh()
    clients.check()


@pytest.mark.parametrize("text", ["CLUSTERDOWN Hash slot not served", "LOADING Redis is loading the dataset in memory"])
def test_a_transient_refusal_is_retried_by_the_next_waiter(text: str) -> None:
    clients = Clients()
    wakeup = clients.join(HIGH)
    listener = clients.listener(HIGH)
    listener.channels.on_refused(HIGH, as_error(text))
    assert not wakeup.is_set(), "a wakeup would make it retry without a pause"
    assert listener.subscribed == 1
    assert clients.registry.stale
    clients.registry.refresh()
    assert listener.subscribed == 2
    clients.check()


def test_a_lasting_refusal_is_an_error() -> None:
    clients = Clients()
    wakeup = clients.join(HIGH)
    error = as_error("NOPERM this user has no permissions to access one of the channels used as arguments")
    assert isinstance(error, NoPermissionError)
    clients.listener(HIGH).channels.on_refused(HIGH, error)
    assert wakeup.is_set()
    assert clients.registry.by_name[HIGH].error is error
    clients.registry.leave(HIGH, wakeup)
    clients.join(HIGH)
    clients.check()


def test_a_slot_that_leaves_its_node() -> None:
    clients = Clients()
    wakeup = clients.join(HIGH)
    clients.confirm(HIGH)
    wakeup.clear()
    listener = clients.listener(HIGH)
    listener.channels.on_dropped(HIGH)
    assert wakeup.is_set()
    assert listener.subscribed == 2, "where the slot is now, the answer tells"
    listener.channels.on_refused(HIGH, moved(slot(HIGH), 0))
    clients.check()
    assert clients.listener(HIGH) is not listener


def test_a_slot_without_a_node() -> None:
    clients = Clients()
    clients.apply(HALVES[0])
    wakeup = clients.join(HIGH)
    assert clients.registry.place_of(wakeup) is None
    assert clients.registry.stale
    clients.apply(*HALVES)
    assert wakeup.is_set()
    clients.registry.refresh()
    clients.check()


def test_a_latch_with_a_brace_in_its_name_is_heard_on_any_node() -> None:
    """Its messages are plain ones, in every form of the scripts. Those of other channels come from their own node."""
    clients = Clients()
    clients.apply(shard(0, ((0, 1),), 3))
    for name, placed in ((latch_channel(b"{foo}"), True), (HIGH, False)):
        assert clients.table.node_of_key(name) is None
        assert (clients.registry.place_of(clients.join(name)) is not None) is placed


def test_a_channel_that_nobody_waits_for_does_not_follow() -> None:
    clients = Clients()
    clients.registry.leave(HIGH, clients.join(HIGH))
    clients.apply(shard(0, ((0, LAST),), 3), shard(1, (), 4))
    clients.registry.refresh()
    assert not clients.registry.by_name
    assert all(listener.channels.is_unused() for listener in clients.listeners.values())


def test_a_master_that_was_replaced() -> None:
    clients = Clients()
    clients.join(HIGH)
    old = clients.listener(HIGH)
    clients.apply(HALVES[0], shard(4, ((8192, LAST),), 1))
    assert old.reconnects == 1
    clients.registry.refresh()
    clients.check()
    assert clients.registry._nodes.keys() == {clients.listener(HIGH).node}


REGISTRY = ("routed_channels.py", "logic/channels.py")


def follow(clients: Clients) -> None:
    clients.apply(shard(0, ((0, LAST),), 3), shard(1, (), 4))
    clients.registry.refresh()


@pytest.mark.parametrize(
    "act",
    [
        follow,
        lambda clients: clients.listener(HIGH).channels.on_refused(HIGH, moved(slot(HIGH), 0)),
        lambda clients: clients.listener(HIGH).channels.on_dropped(HIGH),
        lambda clients: clients.listener(HIGH).channels.on_refused(HIGH, as_error("CLUSTERDOWN")),
    ],
    ids=["follow", "moved", "dropped", "down"],
)
def test_an_interrupt_at_any_line_is_made_good_by_the_next_waiter(act: Callable[[Clients], object]) -> None:
    for line in range(1, 500):
        clients = Clients()
        waiters = [clients.join(name) for name in (HIGH, HIGH, LOW, b"{foo}:2")]
        clients.confirm(HIGH)
        interrupted = interrupted_at(line, REGISTRY, lambda clients=clients: act(clients))  # type: ignore[misc]
        # The listener, whose reading was interrupted, connects again and subscribes to what the registry tells.
        for listener in clients.listeners.values():
            listener.channels.on_disconnected()
            listener.subscribe(listener.channels.names())
        clients.registry.refresh()
        clients.check()
        assert all(clients.registry.place_of(wakeup) is not None for wakeup in waiters)
        assert not any(channel.confirmed for channel in clients.registry.by_name.values())
        if not interrupted:
            assert line > 10
            return
    pytest.fail("it never came to its end")


def test_an_interrupted_join_does_not_keep_others_from_joining() -> None:
    for line in range(1, 200):
        clients = Clients()
        leaving, staying = ThreadWakeup(), ThreadWakeup()
        interrupted = interrupted_at(line, REGISTRY, lambda c=clients, w=leaving: c.registry.join(HIGH, w))  # type: ignore[misc]
        clients.registry.leave(HIGH, leaving)
        clients.registry.join(HIGH, staying)
        clients.registry.refresh()
        clients.check()
        if not interrupted:
            assert line > 10
            return
    pytest.fail("it never came to its end")


@pytest.mark.parametrize("seed", range(40))
def test_any_order_of_events(seed: int) -> None:
    rng = random.Random(seed)
    clients = Clients()
    names = [b"%d" % number for number in range(12)]
    waiters: list[tuple[bytes, ThreadWakeup]] = []
    for _ in range(300):
        name = rng.choice(names)
        event = rng.randrange(7)
        holding = [one for one in clients.listeners.values() if name in one.channels.names()]
        if event == 0:
            waiters.append((name, clients.join(name)))
        elif event == 1 and waiters:
            clients.registry.leave(*waiters.pop(rng.randrange(len(waiters))))
        elif event == 2:
            cut = rng.randrange(1, LAST)
            clients.apply(shard(0, ((0, cut),), 3), shard(1, ((cut + 1, LAST),), 4))
        elif event == 3:
            clients.table.redirect(moved(slot(name), rng.randrange(2)), rng.choice(list(clients.table.nodes.values())))
        elif event == 4 and holding:
            rng.choice([holding[0].channels.on_subscribed, holding[0].channels.on_dropped])(name)
        elif event == 5 and holding:
            text = rng.choice(["CLUSTERDOWN", "TRYAGAIN", ""])
            holding[0].channels.on_refused(name, as_error(text) if text else moved(slot(name), rng.randrange(2)))
        elif event == 6:
            clients.registry.refresh()
            clients.check()
    clients.registry.refresh()
    clients.check()
    for waiter in waiters:
        clients.registry.leave(*waiter)
    assert not clients.registry.waiting
    assert not any(one.channels.waiting for one in clients.listeners.values())
