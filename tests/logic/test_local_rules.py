"""Rules that need no server: hand-overs, losses, redirects, replicas, forms of scripts, replies to subscriptions."""

from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from redis.exceptions import InvalidResponse, NoPermissionError, ReadOnlyError, RedisError

from pyredisson._core import latch_channel
from pyredisson._protocol.pubsub import PubSub, Subscription
from pyredisson._protocol.replication import ReplicaState, Replication
from pyredisson._protocol.replies import Reply, as_error
from pyredisson._protocol.routing import RoutingTable
from pyredisson._protocol.scripts import ScriptSet
from pyredisson._protocol.topology import unconfirmed_master
from pyredisson.logic import losses
from pyredisson.logic.locks.queued_wait import delay_of
from pyredisson.logic.losses import UnreleasedLosses
from pyredisson.logic.permits.permit_queue import PermitQueue
from pyredisson.logic.waiting import WAITING
from tests.support.topologies import LAST, address, ask, make_node, moved, shard, view


def test_a_series_of_hand_overs_has_an_end() -> None:
    queue, waiter = PermitQueue(), Any
    assert not queue.may_hand_over(100.0, 5.0)
    queue.waiters[waiter] = None  # type: ignore[index]
    assert not queue.may_hand_over(100.0, 0.0)
    assert queue.may_hand_over(100.0, 5.0)
    queue.on_handed_over(100.0, 5.0)
    queue.on_handed_over(104.0, 5.0)
    assert queue.may_hand_over(104.9, 5.0)
    assert not queue.may_hand_over(105.0, 5.0)
    assert not queue.may_hand_over(200.0, 5.0)


@pytest.mark.parametrize("others_wait", [False, True])
def test_the_first_release_after_a_series_asks_whether_others_wait(*, others_wait: bool) -> None:
    """Only that one: otherwise each release would be a command of its own, though nobody else waits."""
    queue, waiter = PermitQueue(), Any
    queue.waiters[waiter] = None  # type: ignore[index]
    assert not queue.begins_to_ask(100.0)
    queue.on_handed_over(100.0, 5.0)
    assert queue.begins_to_ask(105.0)
    assert not queue.begins_to_ask(105.0)
    assert queue.may_hand_over(105.0, 5.0)
    queue.on_released(others_wait=others_wait, now=105.0)
    queue.asks_until = 0.0
    assert queue.may_hand_over(106.0, 5.0) is not others_wait
    assert not queue.begins_to_ask(106.0)
    # The others have left.
    queue.on_released(others_wait=False, now=107.0)
    assert queue.may_hand_over(107.0, 5.0)


def test_a_waiter_whose_event_loop_has_ended_wakes_nobody() -> None:
    """The next one makes the attempts."""
    queue = PermitQueue()
    woken: list[int] = []
    for number, alive in enumerate((False, True, True)):
        wakeup = SimpleNamespace(alive=alive, set=partial(woken.append, number))
        waiter = Mock(state=WAITING, wakeup=wakeup)
        queue.waiters[waiter] = None
    queue.wake_first()
    assert woken == [1]


def test_a_queue_is_kept_while_a_series_would_have_to_be_ended() -> None:
    queue = PermitQueue()
    assert queue.is_idle(100.0)
    queue.on_handed_over(100.0, 5.0)
    assert not queue.is_idle(104.9)
    assert queue.is_idle(105.0)


def test_the_first_clients_look_soon_and_the_others_within_two_thirds_of_the_lease() -> None:
    assert [delay_of(place, 30.0) for place in (0, 1)] == [0.0, 0.05]
    delays = [delay_of(place, 30.0) for place in range(2, 1000)]
    assert delays == sorted(delays)
    assert 10.0 < delays[0] < 11.0
    assert delays[-1] == 20.0


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
    served = [number for number in (99, 100, 199, 200, 201) if table.node_of_slot(number) is not None]
    assert served == [99, 200, 201]
    asked = table.nodes[address(1)]
    assert table.continues(moved(300, 0), asked)
    assert table.continues(ask(300, 5), asked)
    # A replica that has taken over may lack the latest writes.
    assert not table.continues(moved(300, 3), asked)
    assert table.redirect_target is None
    assert table.redirect_target is not table.redirect(moved(300, 0), asked) is table.redirect_target


def test_replicas_that_leave_and_come_back() -> None:
    state, replica = ReplicaState(), address(3)
    state.set(Replication(True, b"h", b"", (replica,)), (), 1.0)
    for now in (2.0, 3.0):
        state.set(Replication(True, b"h", b"", ()), (), now)
        assert (state.away, state.left) == ((replica,), {replica: 2.0})
    state.unreachable[replica] = 9.0
    state.set(Replication(True, b"h", b"", (replica,)), (), 4.0)
    assert (state.away, state.left, state.unreachable) == ((), {}, {})


def test_a_master_that_may_not_be_asked() -> None:
    refused = NoPermissionError("NOPERM")
    (found,) = unconfirmed_master((refused, refused, b"run_id:x\r\n"), address(0), 3).shards  # type: ignore[union-attr]
    assert (found.master.address, found.replicas) == (address(0), ())
    assert unconfirmed_master((refused, b"role:master", b""), address(0), 3) is None


@pytest.mark.parametrize(("shared", "expected"), [(False, [False, True]), (True, [False, False])])
def test_servers_that_know_scripts_in_different_forms(shared: bool, expected: list[bool]) -> None:
    scripts, forms = ScriptSet(shared=shared), []
    for with_shebang in (False, True):
        scripts.on_connected(with_shebang=with_shebang)
        forms.append(scripts.with_shebang)
    assert forms == expected


def test_an_error_inside_of_a_script() -> None:
    text = "@user_script:1: -READONLY You can't write against a read only replica."
    assert isinstance(as_error(f"ERR Error running script (call to f_1): {text}"), ReadOnlyError)
    assert str(as_error(f"ERR unexpected: {text}")) == f"ERR unexpected: {text}"


class Events(list[tuple[str, bytes]]):
    """Notes what a subscription reports."""

    def deliver(self, name: bytes, payload: bytes) -> None:
        self.append(("message", name + b" " + payload))

    def on_subscribed(self, name: bytes) -> None:
        self.append(("subscribed", name))

    def on_refused(self, name: bytes, error: RedisError) -> None:
        self.append(("refused", name + b" " + str(error).encode()))

    def on_dropped(self, name: bytes) -> None:
        self.append(("dropped", name))


MOVED = as_error("MOVED 1 127.0.0.1:7001")


def subscription(pubsub: PubSub) -> tuple[Subscription, Events]:
    events = Events()
    return Subscription(events, pubsub), events


def heard(made: Subscription, *replies: Reply) -> None:
    for reply in replies:
        made.on_reply(reply)


@pytest.mark.parametrize(
    ("pubsub", "commands"),
    [(PubSub.PLAIN, [b""]), (PubSub.AUTO, [b"", b"S"]), (PubSub.BOTH, [b"", b"S"]), (PubSub.SHARDED, [b"S"])],
)
def test_the_commands_for_each_form(pubsub: PubSub, commands: list[bytes]) -> None:
    made, events = subscription(pubsub)
    payload = made.subscribe_commands([b"a"]) + made.unsubscribe_commands([b"a"])
    wanted = [prefix + verb for verb in (b"SUBSCRIBE", b"UNSUBSCRIBE") for prefix in commands]
    assert payload.split(b"\r\n")[2::5] == wanted
    heard(made, *([command.lower(), b"a", 0] for command in wanted))
    assert events == [("subscribed", b"a")]


def test_a_channel_is_confirmed_when_both_flavours_are() -> None:
    made, events = subscription(PubSub.AUTO)
    made.subscribe_commands([b"a", b"b"])
    heard(made, [b"subscribe", b"a", 1], [b"message", b"a", b"0"])
    assert events == [("message", b"a 0")]
    heard(made, [b"ssubscribe", b"a", 1], [b"smessage", b"a", b"1"], [b"subscribe", b"b", 2])
    assert events[1:] == [("subscribed", b"a"), ("message", b"a 1")]


@pytest.mark.parametrize("pubsub", [PubSub.AUTO, PubSub.BOTH])
def test_a_message_in_both_flavours_counts_once(pubsub: PubSub) -> None:
    made, events = subscription(pubsub)
    plain, sharded, other = [b"message", b"a", b"0"], [b"smessage", b"a", b"0"], [b"smessage", b"a", b"1"]
    made.on_replies([plain, sharded, plain, sharded])
    assert events == [("message", b"a 0")] * 2
    made.on_replies([sharded, plain])
    made.on_replies([sharded])
    assert len(events) == 5, "a waiter may have reacted to the plain message before the other one was published"
    made.on_replies([plain, other, sharded])
    assert events[5:] == [("message", b"a 0"), ("message", b"a 1"), ("message", b"a 0")]


@pytest.mark.parametrize(("pubsub", "kind"), [(PubSub.PLAIN, b"message"), (PubSub.SHARDED, b"smessage")])
def test_nothing_of_one_flavour_is_a_repetition(pubsub: PubSub, kind: bytes) -> None:
    made, events = subscription(pubsub)
    made.on_replies([[kind, b"a", b"0"]] * 3)
    assert len(events) == 3


@pytest.mark.parametrize("pubsub", PubSub)
def test_a_latch_with_a_brace_in_its_name_is_heard_in_the_plain_flavour(pubsub: PubSub) -> None:
    made, events = subscription(pubsub)
    channel = latch_channel(b"{t}a")
    assert made.subscribe_commands([channel]).startswith(b"*2\r\n$9\r\nSUBSCRIBE\r\n")
    heard(made, [b"subscribe", channel, 1])
    assert events == [("subscribed", channel)]


def test_a_slot_that_leaves_the_node() -> None:
    made, events = subscription(PubSub.AUTO)
    made.subscribe_commands([b"a"])
    heard(made, [b"subscribe", b"a", 1], [b"ssubscribe", b"a", 1])
    made.ping_command()
    heard(made, [b"sunsubscribe", b"a", 0], [b"pong", b""])
    assert events == [("subscribed", b"a"), ("dropped", b"a")]
    # The reply to the client's own command says nothing of the slot.
    made, events = subscription(PubSub.SHARDED)
    made.unsubscribe_commands([b"a"])
    heard(made, [b"sunsubscribe", b"a", 0])
    assert events == []


def test_a_refusal_names_its_channel() -> None:
    made, events = subscription(PubSub.AUTO)
    made.subscribe_commands([b"a", b"b"])
    heard(made, [b"subscribe", b"a", 1], MOVED, [b"subscribe", b"b", 2], [b"ssubscribe", b"b", 1])
    assert events == [("refused", b"a MOVED 1 127.0.0.1:7001"), ("subscribed", b"b")]


def test_a_server_that_knows_no_sharded_messages() -> None:
    unknown = as_error("ERR unknown command `SSUBSCRIBE`, with args beginning with: `a`, ")
    made, events = subscription(PubSub.AUTO)
    made.subscribe_commands([b"a"])
    heard(made, [b"subscribe", b"a", 1], unknown)
    assert events == [("subscribed", b"a")]
    made, events = subscription(PubSub.SHARDED)
    made.subscribe_commands([b"a"])
    heard(made, unknown)
    assert [kind for kind, _ in events] == ["refused"]


def test_a_reply_to_another_command_ends_the_connection() -> None:
    """The slot of `a` left just before the server read the SUNSUBSCRIBE, whose reply is the error."""
    made, _ = subscription(PubSub.SHARDED)
    made.unsubscribe_commands([b"a"])
    made.subscribe_commands([b"b", b"c"])
    heard(made, [b"sunsubscribe", b"a", 0], MOVED)
    with pytest.raises(InvalidResponse, match="another command"):
        heard(made, [b"ssubscribe", b"b", 1])
    with pytest.raises(InvalidResponse, match="no command"):
        heard(subscription(PubSub.PLAIN)[0], [b"subscribe", b"a", 1])
