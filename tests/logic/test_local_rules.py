"""Rules that need no server: hand-overs, losses, redirects, forms of scripts, replies to subscriptions.

And which holds others are told of, and how often the loop that keeps the time wakes for it. The clock is a number.
"""

import logging
import math
import threading
from functools import partial
from itertools import count, repeat
from typing import Any
from unittest.mock import AsyncMock, MagicMock, Mock, PropertyMock

import pytest
from redis.exceptions import InvalidResponse, ReadOnlyError, RedisError

from pyredisson._backends.threads.wakeup import ThreadWakeup
from pyredisson._core import AcquireCall, ReleaseCall, Run, latch_channel
from pyredisson._diagnostics import logger, tracing
from pyredisson._protocol.node import Availability
from pyredisson._protocol.pubsub import PubSub, Subscription
from pyredisson._protocol.replies import as_error
from pyredisson._protocol.routing import Changes, RoutingTable
from pyredisson._protocol.scripts import ScriptSet
from pyredisson.logic import losses
from pyredisson.logic.channels import LINGER, ChannelRegistry, RelayedChannel
from pyredisson.logic.holds import AT_MOST, GONE, HANDED_OFF, HELD, LEASE_ENDED, LOST, Hold, HoldTable
from pyredisson.logic.locks import hand_over
from pyredisson.logic.locks.queued_wait import delay_of
from pyredisson.logic.locks.side_wait import READER, WRITER, ReadWriteChannel, WriterQueue
from pyredisson.logic.losses import UnreleasedLosses
from pyredisson.logic.owners import Owner
from pyredisson.logic.permits.permit_queue import PermitChannel, PermitQueue, PermitRegistry
from pyredisson.logic.permits.permit_wait import FirstAttempt, PermitWait, Refusal
from pyredisson.logic.renewer import IDLE_LEASES, Renewer
from pyredisson.logic.retry import _Retry
from pyredisson.logic.session import Session
from pyredisson.logic.waiting import GIVEN, LOOKING, OFFERED, UNKNOWN_WAIT, WAITING
from pyredisson.logic.waits import Waits
from pyredisson.logic.watchdog import LISTED_AFTER, SCAN_INTERVAL, Watchdog
from pyredisson.owners import FIRST_AUTOMATIC_ID
from tests.support.topologies import LAST, address, ask, make_node, moved, shard, view


def test_after_a_claimant_the_next_waiter_for_several_permits_may_claim() -> None:
    """It would notice only at its next attempt, up to five seconds later, that it may claim permits."""
    queue, call, states = PermitQueue(repeat(b"me:1")), MagicMock(permits=3), ((1, WAITING), (2, OFFERED), (2, WAITING))
    others = [Mock(permits=permits, state=state) for permits, state in states]
    call.pool.session.clock.return_value, call.pool.commands.waiting_channel = 0.0, b"waiting"
    claimant = queue.claimant = PermitWait(call)
    # A release that had begun to hand over before it claimed.
    claimant.queue, claimant.state = queue, GIVEN
    queue.waiters.update(dict.fromkeys((claimant, *others)))
    others[-1].wake.side_effect = (KeyboardInterrupt, None)
    with pytest.raises(KeyboardInterrupt):
        claimant.end()
    claimant.end()
    assert [each.wake.call_count for each in others] == [0, 0, 2]


def test_a_waiter_that_is_told_when_to_look_makes_an_attempt_at_once_if_permits_are_free() -> None:
    registry, wakeup = ChannelRegistry(float), ThreadWakeup()
    registry.subscriber = Mock()
    channel: Any = registry.join(b"own", wakeup, PermitChannel)
    channel.on_message(b"look:250")
    assert channel.on_free(1)
    assert channel.take_look(wakeup) is None


def test_a_call_that_has_its_lock_and_has_not_gone_on_is_no_deadlock(caplog: pytest.LogCaptureFixture) -> None:
    wait = Mock(**{"call.owner.id": FIRST_AUTOMATIC_ID, "call.owner.calls.in_group": False})
    wait.subject = Mock(blocked_by=["orders"], **{"commands.key": b"orders"})
    waits = Waits(Mock(table={("orders", FIRST_AUTOMATIC_ID): Mock(state=HELD)}), lambda: 10.0)
    waits.began[wait] = 0.0
    waits.report_deadlocks()
    assert not caplog.messages


def test_one_attempt_removes_a_former_name_or_the_next_one_if_it_fails() -> None:
    queue, waiter = PermitQueue(iter((b"me:2", b"me:3"))), Mock(permits=1)
    queue.names[b"me:1:1"] = None
    first, second = [queue.listing(waiter, b"", waits=True) for _ in range(2)]
    queue.on_failed(first)
    third = queue.listing(waiter, b"", waits=True)
    assert [each.names for each in (first, second, third)] == [b"me:1:1", b"", b"me:2:1 me:1:1"]


def test_who_has_acquired_only_permits_that_have_ended_lets_the_next_one_ask() -> None:
    """The attempt has taken the client out of the list."""
    session = Mock(clock=float, closed=False, channels=ChannelRegistry(float), members=repeat(b"me:1"))
    session.runtime.wakeup, session.channels.subscriber = ThreadWakeup, Mock()
    session.permits.queue_of.return_value = PermitQueue(session.members)
    pool = Mock(session=session, must_exist=False)
    pool.commands.waiting_channel = b"own"
    call = Mock(pool=pool, permits=2, deadline=5.0, attempt=AsyncMock(return_value=Refusal(0, 0.0)))
    wait, other = [PermitWait(call) for _ in range(2)]
    for each in (wait, other):
        each.join(FirstAttempt(Refusal(0, 1.0), b"me:0:2", (None, None)))
    session.channels.on_subscribed(b"own")
    wait.wakeup.clear()
    assert not Run(wait.ask).result
    wait.end()
    assert other.wakeup.is_set()


def test_an_attempt_that_may_have_removed_the_entry_of_a_later_one_is_repeated() -> None:
    """Nobody woke the client for a single permit, as it was listed with a need of two."""
    queue, entries = PermitQueue(repeat(b"me:1")), list[bytes]()
    for permits in (2, 1):
        waiter = Mock(permits=permits, state=LOOKING)
        queue.add(waiter)
        entries.append(queue.listing(waiter, b"", waits=True).entry)
    assert [queue.is_outdated(entry) for entry in entries] == [True, False]


def test_queues_that_nobody_needs_are_not_looked_for_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of semaphores may be contended at the same time."""
    registry, is_idle = PermitRegistry(), Mock(return_value=False)
    monkeypatch.setattr(PermitQueue, "is_idle", is_idle)
    names = [b"%d" % number for number in range(1025)]
    for name in names:
        registry.queue_of(name, repeat(b"me:1"), 0.0)
    assert (len(registry.queues), is_idle.call_count < 3 * len(names)) == (len(names), True)
    is_idle.return_value = True
    for name in names:
        registry.queue_of(name + b"b", repeat(b"me:1"), 0.0)
    assert len(registry.queues) < len(names)


@pytest.mark.parametrize("others_wait", [False, True])
def test_a_series_of_hand_overs_has_an_end(*, others_wait: bool) -> None:
    """Only the first release after it asks whether others wait: otherwise each one would be a command of its own."""
    queue, waiter = PermitQueue(repeat(b"me:1")), Mock()
    assert [queue.is_idle(100.0), queue.may_hand_over(100.0, 5.0)] == [True, False]
    queue.waiters[waiter] = None
    assert not queue.begins_to_ask(100.0)
    assert [queue.may_hand_over(100.0, limit) for limit in (0.0, 5.0)] == [False, True]
    queue.on_handed_over(100.0, 5.0)
    queue.on_handed_over(104.0, 5.0)
    assert [queue.may_hand_over(now, 5.0) for now in (104.9, 105.0, 200.0)] == [True, False, False]
    del queue.waiters[waiter]
    # It is kept while a series would have to be ended.
    assert [queue.is_idle(now) for now in (104.9, 105.0)] == [False, True]
    queue.waiters[waiter] = None
    assert [queue.begins_to_ask(105.0) for _ in range(2)] == [True, False]
    assert queue.may_hand_over(105.0, 5.0)
    queue.on_released(others_wait=others_wait, now=105.0)
    queue.asks_until = 0.0
    assert queue.may_hand_over(106.0, 5.0) is not others_wait
    assert not queue.begins_to_ask(106.0)
    # The others have left.
    queue.on_released(others_wait=False, now=107.0)
    assert queue.may_hand_over(107.0, 5.0)


def test_the_first_clients_look_soon_and_the_others_within_two_thirds_of_the_lease() -> None:
    assert [delay_of(place, 30.0) for place in (0, 1)] == [0.0, 0.05]
    delays = [delay_of(place, 30.0) for place in range(2, 1000)]
    assert delays == sorted(delays)
    assert 10.0 < delays[0] < 11.0 < delays[-1] == 20.0
    assert [round(Refusal.of(0, 1000, place).wait, 3) for place in range(3)] == [1.001, 1.051, 5.1]


def test_another_process_of_a_server_replaces_it() -> None:
    """One that may not be known is taken for the same."""
    server, replaced = Availability("localhost:6379"), []
    for now, process in enumerate((b"first", b"first", None, b"first", b"second", b"second")):
        server.on_connected(process, float(now))
        replaced.append(server.replaced_at)
    assert replaced == [-math.inf] * 4 + [4.0] * 2


def test_the_latest_losses_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "MOST_LOST", 10)
    forgotten: list[int] = []
    unreleased = UnreleasedLosses[int](lambda _: True, forgotten.append)
    for key in (*range(10), 0, 10):
        unreleased.add(key)
    assert forgotten == [1, 2]


def test_what_a_redirect_says_about_two_nodes() -> None:
    table = RoutingTable(make_node, None)
    table.apply(view(shard(0, ((0, 99),), 3), shard(1, ((200, LAST),))), table.begin_view())
    assert [slot for slot in (99, 100, 199, 200, 201) if table.node_of_slot(slot) is not None] == [99, 200, 201]
    asked = table.nodes[address(1)]
    assert table.continues(moved(300, 0), asked)
    assert table.continues(ask(300, 5), asked)
    # A replica that has taken over may lack the latest writes.
    assert not table.continues(moved(300, 3), asked)
    assert table.redirect_target is None
    assert table.redirect_target is not table.redirect(moved(300, 0), asked) is table.redirect_target


@pytest.mark.parametrize("shared", [False, True])
def test_servers_that_know_scripts_in_different_forms(*, shared: bool) -> None:
    scripts = ScriptSet(shared=shared)
    for with_shebang in (False, True):
        scripts.on_connected(with_shebang=with_shebang)
        assert scripts.with_shebang is (with_shebang and not shared)


def test_an_error_inside_of_a_script() -> None:
    text = "@user_script:1: -READONLY You can't write against a read only replica."
    assert isinstance(as_error(f"ERR Error running script (call to f_1): {text}"), ReadOnlyError)
    assert str(as_error(f"ERR unexpected: {text}")) == f"ERR unexpected: {text}"


MOVED = as_error("MOVED 1 127.0.0.1:7001")
UNKNOWN = as_error("ERR unknown command `SSUBSCRIBE`, with args beginning with: `a`, ")


class Heard(Subscription):
    """A subscription, and what it reports."""

    def __init__(self, pubsub: PubSub) -> None:
        self.events: list[str] = []
        names = {"deliver": "message", "on_subscribed": "subscribed", "on_refused": "refused", "on_dropped": "dropped"}
        super().__init__(Mock(**{name: partial(self.note, event) for name, event in names.items()}), pubsub)

    def note(self, event: str, *about: bytes | RedisError) -> None:
        self.events.append(" ".join([event, *(one.decode() if isinstance(one, bytes) else str(one) for one in about)]))

    def step(self, step: str | RedisError) -> None:
        """A command, for channels behind `+` or `-`; else a reply."""
        if isinstance(step, RedisError):
            self.on_reply(step)
        elif step == "PING":
            self.ping_command()
        elif step[0] in "+-":
            (self.subscribe_commands if step[0] == "+" else self.unsubscribe_commands)(step[1:].encode().split())
        else:
            *words, last = step.encode().split(b" ")
            self.on_reply([*words, int(last) if words[0].endswith(b"subscribe") else last])


@pytest.mark.parametrize(
    ("pubsub", "commands"),
    [(PubSub.PLAIN, [b""]), (PubSub.AUTO, [b"", b"S"]), (PubSub.BOTH, [b"", b"S"]), (PubSub.SHARDED, [b"S"])],
)
def test_the_commands_for_each_form(pubsub: PubSub, commands: list[bytes]) -> None:
    made = Heard(pubsub)
    payload = made.subscribe_commands([b"a"]) + made.unsubscribe_commands([b"a"])
    wanted = [prefix + verb for verb in (b"SUBSCRIBE", b"UNSUBSCRIBE") for prefix in commands]
    assert payload.split(b"\r\n")[2::5] == wanted
    for command in wanted:
        made.step(f"{command.decode().lower()} a 0")
    assert made.events == ["subscribed a"]
    # A latch with a brace in its name is heard in the plain flavour.
    channel = latch_channel(b"{t}a")
    assert made.subscribe_commands([channel]).startswith(b"*2\r\n$9\r\nSUBSCRIBE\r\n")
    made.step(f"subscribe {channel.decode()} 1")
    assert made.events[1:] == [f"subscribed {channel.decode()}"]


SUBSCRIPTIONS: dict[str, tuple[PubSub, list[str | RedisError], list[str]]] = {
    "a channel is confirmed when both flavours are": (
        PubSub.AUTO,
        ["+a b", "subscribe a 1", "message a 0", "ssubscribe a 1", "smessage a 1", "subscribe b 2"],
        ["message a 0", "subscribed a", "message a 1"],
    ),
    "a slot leaves the node": (
        PubSub.AUTO,
        ["+a", "subscribe a 1", "ssubscribe a 1", "PING", "sunsubscribe a 0", "pong "],
        ["subscribed a", "dropped a"],
    ),
    "the reply to the client's own command says nothing of the slot": (PubSub.SHARDED, ["-a", "sunsubscribe a 0"], []),
    "a refusal names its channel": (
        PubSub.AUTO,
        ["+a b", "subscribe a 1", MOVED, "subscribe b 2", "ssubscribe b 1"],
        ["refused a MOVED 1 127.0.0.1:7001", "subscribed b"],
    ),
    "a server knows no sharded messages": (PubSub.AUTO, ["+a", "subscribe a 1", UNKNOWN], ["subscribed a"]),
    "no messages but those": (PubSub.SHARDED, ["+a", UNKNOWN], [f"refused a {UNKNOWN}"]),
}


@pytest.mark.parametrize(("pubsub", "steps", "events"), SUBSCRIPTIONS.values(), ids=SUBSCRIPTIONS)
def test_a_subscription(pubsub: PubSub, steps: list[str | RedisError], events: list[str]) -> None:
    made = Heard(pubsub)
    for step in steps:
        made.step(step)
    assert made.events == events


@pytest.mark.parametrize("pubsub", PubSub)
def test_a_message_in_both_flavours_counts_once(pubsub: PubSub) -> None:
    made = Heard(pubsub)
    plain, sharded, other = [b"message", b"a", b"0"], [b"smessage", b"a", b"0"], [b"smessage", b"a", b"1"]
    if pubsub in (PubSub.PLAIN, PubSub.SHARDED):
        # Nothing of one flavour is a repetition.
        made.on_replies([plain if pubsub is PubSub.PLAIN else sharded] * 3)
        assert made.events == ["message a 0"] * 3
        return
    made.on_replies([plain, sharded, plain, sharded])
    assert made.events == ["message a 0"] * 2
    made.on_replies([sharded, plain])
    made.on_replies([sharded])
    assert len(made.events) == 5, "a waiter may have reacted to the plain message before the other one was published"
    made.on_replies([plain, other, sharded])
    assert made.events[5:] == ["message a 0", "message a 1", "message a 0"]


def test_a_reply_to_another_command_ends_the_connection() -> None:
    """The slot of `a` left just before the server read the SUNSUBSCRIBE, whose reply is the error."""
    made = Heard(PubSub.SHARDED)
    for step in ("-a", "+b c", "sunsubscribe a 0", MOVED):
        made.step(step)
    with pytest.raises(InvalidResponse, match="another command"):
        made.step("ssubscribe b 1")
    with pytest.raises(InvalidResponse, match="no command"):
        Heard(PubSub.PLAIN).step("subscribe a 1")


@pytest.mark.parametrize("order", [(b"own", b"shared"), (b"shared", b"own")])
def test_a_waiter_of_two_channels_looks_again_when_both_are_heard(order: tuple[bytes, bytes]) -> None:
    registry, wakeup, woken = ChannelRegistry(float), ThreadWakeup(), []
    registry.subscriber = Mock()
    own = registry.join(b"own", wakeup, RelayedChannel)
    assert isinstance(own, RelayedChannel)
    registry.relay(b"shared", own, anew=True)
    for step in (registry.on_subscribed, registry.on_dropped):
        for name in order:
            step(name)
            woken.append(wakeup.is_set())
            wakeup.clear()
    assert woken == [False, True, True, True]
    registry.leave(b"own", wakeup)
    assert not registry.waiting


def test_a_channel_that_counts_listeners_is_the_last_to_be_heard_and_the_first_to_be_left() -> None:
    """Otherwise it would count one too many, and a client of Redisson would not be woken."""
    wakeup, channel, counted, left = ThreadWakeup(), b"redisson_sc:{a}", b"pyredisson_sc:{a}", list[Any]()
    registry = ChannelRegistry(map(float, count()).__next__)
    registry.subscriber = Mock(unsubscribe=left.append)
    own = registry.join(b"own", wakeup, RelayedChannel)
    assert isinstance(own, RelayedChannel)
    registry.relay(channel, own, anew=True, counted=counted)
    assert registry.names() == [channel, counted, b"own"]
    registry.leave(b"own", wakeup)
    for _ in range(round(LINGER)):
        registry.sweep()
    assert left == [[counted, channel], [b"own"]]


def test_an_attempt_of_a_closed_event_loop_keeps_no_reader_out() -> None:
    """Each reader would wait for a second for its outcome, for as long as nobody collects the task."""
    queue, wakeup = WriterQueue(), Mock(alive=True)
    queue.asking = Mock(wakeup=wakeup)
    assert queue.keep_out_until(0.0) == UNKNOWN_WAIT
    wakeup.alive = False
    assert queue.keep_out_until(0.0) is None


@pytest.mark.parametrize(
    ("kinds", "woken"),
    [
        # Of a writer to the next one, or else to a reader.
        ((WRITER, WRITER, READER, READER), [[True, False, False], [True, True, False]]),
        # Of a reader to one: if each that gives up had all others make attempts, a thousand would make half a million.
        ((READER, WRITER, READER, READER), [[False, True, False]]),
    ],
)
def test_to_whom_an_unused_wakeup_goes(kinds: Any, woken: list[list[bool]]) -> None:
    registry, wakeups = ChannelRegistry(float), [ThreadWakeup() for _ in kinds]
    registry.subscriber = Mock()
    for wakeup, kind in zip(wakeups, kinds, strict=True):
        registry.join(b"orders", wakeup, ReadWriteChannel, kind)
    wakeups[0].set()
    for wakeup, expected in zip(wakeups, woken, strict=False):
        registry.leave(b"orders", wakeup)
        assert [each.is_set() for each in wakeups[1:]] == expected


LEASE, ROUND = 30_000, 10_000
OVERSHOOT = 5e-5
"""Seconds by which each look is late, as those of a real clock are."""
COMMANDS = Mock(key=b"orders", kind="lock", renews_fixed_leases=False)


class Scene:
    """A watchdog, its clock, and the holds that the announcer is told of."""

    def __init__(self, lease: int = LEASE) -> None:
        self.now, self.next_look, self.owner = 1000.0, 0.0, Owner("client", 1)
        self.listed: list[tuple[Hold, float]] = []
        self.looks, self.woken = -1, False
        wakeup = Mock(set=lambda: setattr(self, "woken", True))
        runtime = Mock(sharded=False, clock=lambda: self.now, wakeup=lambda: wakeup, slot_of=lambda _: 0)
        self.holds = HoldTable(runtime.clock, Mock())
        self.watchdog = Watchdog(self.holds, runtime, lease, Mock())
        self.watchdog.announcer = Mock(add=self.add)
        self.watchdog.started = True
        self.pass_time(0.0)

    def add(self, hold: Hold) -> None:
        hold.listed = True
        self.listed.append((hold, self.now))

    def hold(self, lease: int | None = None, number: int = 0) -> Hold:
        call = AcquireCall(self.owner, lease, None)
        key = (b"orders", number)
        assert self.holds.begin_attempt(call, key, LEASE) is None
        call.name = self.owner.name
        assert self.holds.begin_hold(call, key, COMMANDS, self.now + call.lease_ms / 1000, self.watchdog)
        held: Hold = call.hold
        self.pass_time(0.0)
        return held

    def pass_time(self, seconds: float) -> None:
        """The loop looks whenever it wants to, or is woken."""
        end = self.now + seconds
        while self.woken or self.next_look <= end:
            if not self.woken:
                self.now = max(self.now, self.next_look) + OVERSHOOT
            self.woken = False
            self.looks += 1
            self.next_look = self.now + Run(self.watchdog._keep_time_once).result
        self.now = max(self.now, end)


@pytest.mark.parametrize("lease", [None, 20_000, 800])
def test_a_hold_is_listed_after_a_second(lease: int | None) -> None:
    scene = Scene()
    scene.pass_time(3.05)
    begun, hold = scene.now, scene.hold(lease)
    scene.pass_time(0.7)
    assert not scene.listed
    scene.pass_time(0.4)
    if lease == 800:
        assert (scene.listed, hold.state) == ([], LOST)
        return
    [(listed, at)] = scene.listed
    assert listed is hold
    assert begun + 0.85 < at < begun + 1.01
    # It is renewed, or ends, as if nothing had happened.
    step = scene.watchdog._grid.step
    assert hold.due == int(begun * 1000) // step * step + ROUND if lease is None else int(hold.valid_until * 1000) + 1
    scene.pass_time(30)
    assert len(scene.listed) == 1


def test_with_a_short_lease_a_hold_is_listed_when_its_first_renewal_is_due() -> None:
    scene = Scene(lease=1500)
    hold = scene.hold()
    scene.pass_time(0.51)
    assert [listed for listed, _ in scene.listed] == [hold]
    [renewer] = scene.watchdog._renewers.values()
    assert hold in renewer.due


def test_short_holds_cost_nothing() -> None:
    """None is listed, and the loop is woken once a second at most: not by each of them, which is due much earlier."""
    scene = Scene()
    looks, seconds = scene.looks, 20
    for _ in range(seconds * 100):
        hold = scene.hold()
        scene.pass_time(0.005)
        scene.holds.discard(hold)
        scene.pass_time(0.005)
    assert not scene.listed
    assert scene.looks - looks <= seconds + 3
    # Nor does the loop go on looking when nobody locks any more.
    looks = scene.looks
    scene.pass_time(50)
    assert scene.looks - looks <= 50 / (ROUND / 2000) + 2


def test_many_holds_are_listed_together() -> None:
    """Those that began in one step of the grid, with one look. Without an announcer, the renewals alone need looks."""
    scene = Scene()
    looks = scene.looks
    for number in range(1000):
        scene.hold(number=number)
    scene.pass_time(LISTED_AFTER / 1000 + 0.01)
    assert len(scene.listed) == 1000
    assert scene.looks - looks <= 3
    assert all(hold.state is HELD for hold, _ in scene.listed)
    scene = Scene()
    scene.watchdog.announcer = None
    looks = scene.looks
    scene.hold()
    scene.pass_time(4.9)
    assert scene.looks == looks


def test_slots_that_move_soon_after_others_are_checked_together(monkeypatch: pytest.MonkeyPatch) -> None:
    scene, checked = Scene(), Mock()
    monkeypatch.setattr(scene.watchdog, "check", checked)
    scene.hold()
    for _ in range(10):
        scene.watchdog.on_topology_change(Changes(moved_slots=frozenset({0})))
        scene.pass_time(SCAN_INTERVAL / 10 - 0.001)
    assert checked.call_count == 1
    scene.pass_time(SCAN_INTERVAL)
    assert checked.call_count == 2


@pytest.mark.parametrize("sharded", [True, False])
def test_what_renews_for_one_of_several_servers_ends_without_work(*, sharded: bool) -> None:
    now, watchdog, found = [0.0], Mock(closed=False), []
    renewer = Renewer("shard", watchdog, HoldTable(float, Mock()), Mock(sharded=sharded, clock=lambda: now[0]), LEASE)
    for now[0] in (0.0, IDLE_LEASES * LEASE / 1000, IDLE_LEASES * LEASE / 1000 + 1):
        found.append((Run(renewer._renew_once).result == 0, renewer.closed, watchdog.remove.called))
    assert found == [(False,) * 3] * 2 + [(sharded,) * 3]


def test_thousands_of_holds_of_ended_owners_delay_no_renewal() -> None:
    """Ended ones are forgotten, but not looked for each time."""
    watchdog, state = Scene().watchdog, PropertyMock(return_value=HELD)
    owner = Mock(calls=Mock(have_ended=True))
    holds = [Mock(commands=COMMANDS, owner=b"me:1", acquired_by=owner) for _ in range(129)]
    for hold in holds:
        type(hold).state = state
        assert not watchdog.release_if_ended(hold)
    assert state.call_count < 3 * len(holds)
    state.return_value = LOST
    for _ in holds:
        watchdog.release_if_ended(Mock(commands=COMMANDS, owner=b"me:1", acquired_by=owner, state=HELD))
    assert len(watchdog._reported) <= len(holds)


def test_a_loss_is_published_if_nothing_else_publishes_it() -> None:
    published = []
    for reason in (GONE, AT_MOST, LEASE_ENDED, HANDED_OFF):
        for renewed, queues in ((False, {}), (False, {b"orders": "of a contended lock"}), (True, {})):
            session = Mock(closed=False, announcement=None, lock_queues=queues)
            Session._on_hold_lost(session, Mock(key=(b"orders", 1), reason=reason, renewed=renewed))
            published.append(session.watchdog.notify.called)
    assert published == [*[True] * 6, False, True, True, False, False, False]


def test_a_look_at_the_log_waits_for_no_lock_of_it() -> None:
    """An interrupt in another thread may have left the lock of `logging` locked."""
    logger.setLevel(logger.level)
    look = threading.Thread(target=tracing.look, daemon=True)
    with logging._lock:  # type: ignore[attr-defined]
        look.start()
        look.join(10)
        assert not look.is_alive()


def test_only_the_server_of_an_earlier_copy_may_have_done_it() -> None:
    a, b = b"a", b"b"
    yes = [({a}, False, a), ({a}, True, b), ({a, None}, False, b), ({a}, False, None)]
    no: list[Any] = [({a}, False, b), ({a, b}, False, b), (set(), False, a)]
    for in_doubt, continues, answers in [*yes, *no]:
        state = Mock(servers_in_doubt=in_doubt, continues=continues, reply_if_done=lambda _: "done")
        assert (_Retry._corrected(state, None, answers) == "done") is ((in_doubt, continues, answers) in yes)


def test_a_hand_over_that_is_given_up_undoes_only_what_is_its_own() -> None:
    undone = []
    for offered, holds in ((True, False), (True, True), (False, False)):
        releaser, waiter = ReleaseCall(), Mock()
        releaser.successor, waiter.call.hold = waiter, Mock() if holds else None
        waiter.releaser = releaser if offered else None
        hand_over.abandon(releaser)
        undone.append(waiter.lock.undo_entry.called)
        assert releaser.successor is None
    assert undone == [True, False, False]
