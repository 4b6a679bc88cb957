"""The channels of several nodes: each is heard where its slot is served; when plain messages may be left out."""

import random
from collections.abc import Callable, Iterable
from typing import Any

import hiredis
import pytest
from redis.exceptions import NoPermissionError

from pyredisson._backends.runtime import clock
from pyredisson._backends.threads.wakeup import ThreadWakeup
from pyredisson._core import command, latch_channel, pack, slot
from pyredisson._protocol.moving_slots import Settling, message_at_source, without_list
from pyredisson._protocol.node import Node
from pyredisson._protocol.pubsub import PubSub
from pyredisson._protocol.replies import as_error
from pyredisson._protocol.routing import RoutingTable
from pyredisson._protocol.scripts import ScriptSet, as_publishing_both, script_name
from pyredisson._protocol.topology import Shard
from pyredisson.logic.routed_channels import MOST_REDIRECTS, NodeChannels, RoutedChannels
from tests.support.garbage import collect_at_each_line, only_collections_asked_for
from tests.support.topologies import LAST, address, make_node, moved, shard, view

from .scenes import at_each_line

HALVES = (shard(0, ((0, 8191),), 3), shard(1, ((8192, LAST),), 4))
ONE_SERVES = (shard(0, ((0, LAST),), 3), shard(1, (), 4))
LOW, HIGH = next(n for n in (b"%d" % i for i in range(99)) if slot(n) < 8192), b"foo"


class Listener:
    """The subscription connection to one node, which only notes what it is subscribed to."""

    def __init__(self, channels: NodeChannels, node: Node) -> None:
        self.channels, self.node = channels, node
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

    def follow(self) -> None:
        self.apply(*ONE_SERVES)
        self.registry.refresh()

    def join(self, name: bytes) -> ThreadWakeup:
        wakeup = ThreadWakeup()
        self.registry.join(name, wakeup)
        return wakeup

    def listener(self, name: bytes) -> Listener:
        """That of the node which serves the channel's slot."""
        node = self.table.node_of_key(name)
        assert node is not None
        return self.listeners[node]

    @property
    def high(self) -> NodeChannels:
        return self.listener(HIGH).channels

    def confirm(self, name: bytes) -> None:
        self.listener(name).channels.on_subscribed(name)

    def check(self) -> None:
        """Every channel with waiters is subscribed to on the node of its slot, and on no other one for long."""
        registry = self.registry
        for name, channel in registry.by_name.items():
            if channel.waiters:
                listener = self.listener(name)
                assert name in listener.heard
                assert [one for one in self.listeners.values() if name in one.channels.names()] == [listener]
                assert {registry.place_of.get(wakeup) for wakeup in channel.waiters} == {listener.channels}
                assert channel.waiters.keys() <= listener.channels.waiting
                heard_by = [one for one in self.listeners.values() if channel.waiters.keys() & one.channels.waiting]
                assert heard_by == [listener]
        assert not registry._unplaced


def test_a_change_of_the_map_wakes_the_waiters_which_then_follow() -> None:
    clients = Clients()
    wakeup, stays = clients.join(HIGH), clients.join(LOW)
    assert [listener.heard for listener in clients.listeners.values()] == [{HIGH}, {LOW}]
    clients.confirm(HIGH)
    assert (wakeup.is_set(), stays.is_set()) == (True, False)
    clients.confirm(LOW)
    wakeup.clear()
    stays.clear()
    # Nobody waits for it any more, so it doesn't follow.
    clients.registry.leave(b"{foo}:2", clients.join(b"{foo}:2"))
    before = clients.listener(HIGH)
    clients.apply(*ONE_SERVES)
    assert (wakeup.is_set(), stays.is_set()) == (True, False)
    clients.registry.refresh()
    clients.check()
    confirmed = clients.registry.confirmed_channel
    assert (set(clients.registry.by_name), before.heard, confirmed(HIGH)) == ({HIGH, LOW}, set(), None)
    # The earlier node confirms late.
    before.channels.on_subscribed(HIGH)
    assert confirmed(HIGH) is None
    wakeup.clear()
    clients.confirm(HIGH)
    assert wakeup.is_set()
    clients.registry.leave(HIGH, wakeup)
    assert clients.registry.place_of.get(wakeup) is None
    # Its replica takes over.
    old = clients.listener(LOW)
    clients.apply(shard(3, ((0, LAST),), 0))
    assert old.reconnects == 1
    clients.registry.refresh()
    clients.check()
    assert clients.registry._nodes.keys() == {clients.listener(LOW).node}


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
    assert (listener.subscribed, clients.registry.stale, clients.table.troubled) == (1, True, True)
    clients.registry.refresh()
    assert listener.subscribed == 2
    clients.check()


def test_a_lasting_refusal_is_an_error_and_a_slot_may_leave_its_node() -> None:
    clients = Clients()
    wakeup = clients.join(HIGH)
    error = as_error("NOPERM this user has no permissions to access one of the channels used as arguments")
    assert isinstance(error, NoPermissionError)
    clients.high.on_refused(HIGH, error)
    assert (wakeup.is_set(), clients.registry.by_name[HIGH].error) == (True, error)
    clients.registry.leave(HIGH, wakeup)
    wakeup = clients.join(HIGH)
    clients.check()
    # The slot leaves its node.
    clients.confirm(HIGH)
    wakeup.clear()
    listener = clients.listener(HIGH)
    before = listener.subscribed
    listener.channels.on_dropped(HIGH)
    assert wakeup.is_set()
    assert listener.subscribed == before + 1, "where the slot is now, the answer tells"
    listener.channels.on_refused(HIGH, moved(slot(HIGH), 0))
    clients.check()
    assert clients.listener(HIGH) is not listener


def test_a_slot_without_a_node() -> None:
    """Only a latch with a brace in its name is heard all the same, on any node: its messages are plain ones."""
    clients = Clients()
    clients.apply(HALVES[0])
    latch = latch_channel(b"{foo}")
    wakeup, on_any = clients.join(HIGH), clients.join(latch)
    assert clients.table.node_of_key(latch) is clients.table.node_of_key(HIGH) is None
    assert [clients.registry.place_of.get(each) is None for each in (wakeup, on_any)] == [True, False]
    assert clients.registry.stale
    clients.apply(*HALVES)
    assert wakeup.is_set()
    clients.registry.refresh()
    clients.check()


REGISTRY = ("routed_channels.py", "logic/channels.py")
ROUTED = [each for kind in (RoutedChannels, NodeChannels) for each in vars(kind).values() if hasattr(each, "__code__")]


CHANGES: dict[str, Callable[[Clients], object]] = {
    "follow": Clients.follow,
    "moved": lambda clients: clients.high.on_refused(HIGH, moved(slot(HIGH), 0)),
    "dropped": lambda clients: clients.high.on_dropped(HIGH),
    "down": lambda clients: clients.high.on_refused(HIGH, as_error("CLUSTERDOWN")),
    "refresh": lambda clients: clients.registry.refresh(),
    "join": lambda clients: clients.join(HIGH),
    "disconnected": lambda clients: clients.high.on_disconnected(),
    "subscribed": lambda clients: clients.confirm(HIGH),
}


@pytest.mark.parametrize("change", ["follow", "moved", "dropped", "down"])
def test_an_interrupt_at_any_line_is_made_good_by_the_next_waiter(change: str) -> None:
    waiters: list[ThreadWakeup] = []

    def begin() -> Clients:
        clients = Clients()
        waiters[:] = [clients.join(name) for name in (HIGH, HIGH, LOW, b"{foo}:2")]
        clients.confirm(HIGH)
        return clients

    for clients, _ in at_each_line(REGISTRY, begin, CHANGES[change]):
        # The listener, whose reading was interrupted, connects again and subscribes to what the registry tells.
        for listener in clients.listeners.values():
            listener.channels.on_disconnected()
            listener.subscribe(listener.channels.names())
        clients.registry.refresh()
        clients.check()
        assert all(clients.registry.place_of.get(wakeup) is not None for wakeup in waiters)
        assert not any(channel.confirmed for channel in clients.registry.by_name.values())


@pytest.mark.parametrize("change", CHANGES)
def test_a_waiter_that_is_collected_on_any_line_leaves_its_channel(change: str) -> None:
    """On the thread that changes the channels."""
    made: list[Clients] = []

    def story() -> tuple[Callable[[], object], Callable[[], object]]:
        clients = Clients()
        made.append(clients)
        leaving = clients.join(HIGH)
        for name in (HIGH, LOW):
            clients.join(name)
        clients.confirm(LOW)
        return lambda: CHANGES[change](clients), lambda: clients.registry.leave(HIGH, leaving)

    with only_collections_asked_for():
        assert collect_at_each_line(ROUTED, story) > 3
    for clients in made:
        clients.registry.refresh()
        clients.check()
        waiters = {wakeup for channel in clients.registry.by_name.values() for wakeup in channel.waiters}
        on_nodes = {wakeup for one in clients.listeners.values() for wakeup in one.channels.waiting}
        assert clients.registry.waiting == waiters == set(clients.registry.place_of) == on_nodes


def test_an_interrupted_join_does_not_keep_others_from_joining() -> None:
    leaving = ThreadWakeup()
    for clients, _ in at_each_line(REGISTRY, Clients, lambda clients: clients.registry.join(HIGH, leaving)):
        clients.registry.leave(HIGH, leaving)
        clients.join(HIGH)
        clients.registry.refresh()
        clients.check()


AUTO, BOTH, SHARDED = (ScriptSet(pubsub) for pubsub in (PubSub.AUTO, PubSub.BOTH, PubSub.SHARDED))
CHANNEL = b"redisson_lock__channel:{orders}"
SECONDS = 15.0
KEYS = (b"orders", b"pyredisson_waiting:{orders}", b"pyredisson_woken:{orders}")
ACQUIRE = pack(AUTO.lock_acquire, *KEYS, b"me:1", b"1", b"30000", b"me:1", b"0")


def release(scripts: ScriptSet, channel: bytes = CHANNEL) -> bytes:
    """A command that publishes."""
    return pack(scripts.lock_release, *KEYS, channel, b"me:1", b"0", b"pyredisson_wake:{orders}:", b"5000", b"0")


def permit_release(scripts: ScriptSet, *further: bytes) -> bytes:
    """One that publishes, whose number of keys varies."""
    keys = (b"orders", b"{orders}:timeout", *further)
    return command(b"EVALSHA", scripts.permit_release, len(keys), *keys, b"redisson_sc:{orders}", b"0", b"id")


def words(payload: bytes) -> list[bytes]:
    reader = hiredis.Reader()
    reader.feed(payload)
    found: list[bytes] = reader.gets()
    assert reader.gets() is False
    return found


@pytest.mark.parametrize("call", [release, permit_release])
@pytest.mark.parametrize("flags", [True, False], ids=["", "first-line-unknown"])
def test_the_form_of_a_call_that_publishes_both_flavours(call: Callable[[ScriptSet], bytes], flags: bool) -> None:
    auto, both = ScriptSet(PubSub.AUTO), ScriptSet(PubSub.BOTH)
    for scripts in (auto, both):
        scripts.use(with_shebang=flags)
    assert as_publishing_both(call(auto)) == call(both)
    assert as_publishing_both(auto.as_eval(call(auto))) == both.as_eval(call(both))
    for scripts in (both, ScriptSet(PubSub.SHARDED), ScriptSet(PubSub.PLAIN)):
        for payload in (call(scripts), scripts.as_eval(call(scripts))):
            assert as_publishing_both(payload) == payload


def test_other_commands_have_no_other_form() -> None:
    for payload in (
        ACQUIRE,
        AUTO.as_eval(ACQUIRE),
        command(b"PING"),
        command(b"SET", release(AUTO), AUTO.as_eval(release(AUTO))),
        command(b"EVALSHA", b"0" * 40, b"0"),
        command(b"EVAL", b"return 1", b"0"),
    ):
        assert as_publishing_both(payload) == payload
        assert script_name(words(payload)) in ("", "lock_acquire")


def test_for_some_time_after_a_change_every_command_publishes_both() -> None:
    """Whatever the order of the steps, no change is forgotten before its time is over."""
    rng = random.Random(1)
    now, latest = 100.0, -SECONDS
    settling = Settling(SECONDS, lambda: now)
    for _ in range(500):
        now += rng.choice([0.0, 1.0, SECONDS])
        if rng.random() < 0.3:
            settling.on_change()
            latest = now
        both = settling.command(release(AUTO)) == release(BOTH)
        assert (both, len(settling.changes)) == (now <= latest + SECONDS, both)
    # What follows ASK always does, unless the user wants sharded messages only.
    settling = Settling(SECONDS)
    for scripts, published in ((AUTO, BOTH), (SHARDED, SHARDED)):
        assert settling.command(release(scripts), asking=True) == release(published)
    # Where it doesn't matter nothing is noted.
    settling = Settling()
    settling.on_change()
    assert not settling.changes


def test_what_changes_the_map() -> None:
    table = RoutingTable(make_node, None, SECONDS)

    def settles(*shards: Shard, redirect: str = "") -> bool:
        table.settling.changes.clear()
        if redirect:
            table.redirect(as_error(f"{redirect} 1 {address(1)}"), table.nodes[address(0)])
        else:
            table.apply(view(*shards), table.begin_view())
        return bool(table.settling.changes)

    empty = shard(1, ())
    assert [settles(shard(0, ((0, LAST),)), empty) for _ in range(2)] == [True, False]
    assert not settles(shard(0, ((0, LAST),), 3, 4), empty), "only the replicas are others"
    assert not settles(redirect="ASK")
    assert settles(redirect="MOVED")
    assert settles(shard(0, ((0, 0), (2, LAST))), shard(1, ((1, 1),))), "it confirms the redirect"
    assert settles(shard(0, ((0, 8191),)), shard(1, ((8192, LAST),)))


@pytest.mark.parametrize("scripts", [AUTO, BOTH, SHARDED])
def test_a_release_that_has_followed_ask_publishes_where_the_waiters_are(scripts: ScriptSet) -> None:
    """Once more: they are subscribed on the node that still has the slot."""
    for payload in (release(scripts), scripts.as_eval(release(scripts))):
        assert script_name(words(payload)) == "lock_release"
        for reply in (1, None):
            name, text, *rest = words(message_at_source(payload, reply) or b"")
            assert (name, script_name([name, text])) == (b"EVAL", "lock_wake_waiters")
            assert (b"'PUBLISH'" in text, b"'SPUBLISH'" in text) == (True, True)
            assert rest == [b"0", CHANNEL, b"0", b"pyredisson_wake:{orders}:", b"0"]
    _, _, zero, channel, message, prefix, count = words(message_at_source(permit_release(scripts), []) or b"")
    assert (zero, channel, prefix, count) == (b"0", b"redisson_sc:{orders}", b"pyredisson_wake:{orders}:", b"0")
    assert int(message) > 1_000_000
    # What released nothing publishes nothing.
    for refused in (0, as_error("TRYAGAIN"), as_error("NOSCRIPT")):
        assert message_at_source(release(AUTO), refused) is None
    assert message_at_source(ACQUIRE, None) is None
    assert message_at_source(command(b"GET", b"latch"), b"1") is None


def test_a_release_of_permits_does_without_the_list_only() -> None:
    """Not without the key that keeps late copies of their acquire from running."""
    listed = [b"waiting", b"woken", b"claim"]
    assert without_list(permit_release(AUTO, *listed)) == permit_release(AUTO)
    assert without_list(permit_release(AUTO, *listed, b"withdrawn")) is None
