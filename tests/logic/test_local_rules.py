"""Rules that need no server: hand-overs, losses, redirects, replicas, forms of scripts, replies to subscriptions."""

from functools import partial
from unittest.mock import Mock

import pytest
from redis.exceptions import InvalidResponse, ReadOnlyError, RedisError

from pyredisson._core import latch_channel
from pyredisson._protocol.pubsub import PubSub, Subscription
from pyredisson._protocol.replies import as_error
from pyredisson._protocol.routing import RoutingTable
from pyredisson._protocol.scripts import ScriptSet
from pyredisson.logic import losses
from pyredisson.logic.locks.queued_wait import delay_of
from pyredisson.logic.losses import UnreleasedLosses
from pyredisson.logic.permits.permit_queue import PermitQueue
from pyredisson.logic.waiting import WAITING
from tests.support.topologies import LAST, address, ask, make_node, moved, shard, view


@pytest.mark.parametrize("others_wait", [False, True])
def test_a_series_of_hand_overs_has_an_end(*, others_wait: bool) -> None:
    """Only the first release after it asks whether others wait: otherwise each one would be a command of its own."""
    queue, waiter = PermitQueue(), Mock()
    assert queue.is_idle(100.0)
    assert not queue.may_hand_over(100.0, 5.0)
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


def test_a_waiter_whose_event_loop_has_ended_wakes_nobody() -> None:
    """The next one makes the attempts."""
    queue = PermitQueue()
    woken: list[int] = []
    for number, alive in enumerate((False, True, True)):
        queue.waiters[Mock(state=WAITING, wakeup=Mock(alive=alive, set=partial(woken.append, number)))] = None
    queue.wake_first()
    assert woken == [1]


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


MOVED = as_error("MOVED 1 127.0.0.1:7001")
UNKNOWN = as_error("ERR unknown command `SSUBSCRIBE`, with args beginning with: `a`, ")


class Heard(Subscription):
    """A subscription, and what it reports."""

    def __init__(self, pubsub: PubSub) -> None:
        self.events: list[str] = []
        names = {"deliver": "message", "on_subscribed": "subscribed", "on_refused": "refused", "on_dropped": "dropped"}
        super().__init__(Mock(**{name: partial(self.note, event) for name, event in names.items()}), pubsub)

    def note(self, event: str, *about: bytes | RedisError) -> None:
        words = [each.decode() if isinstance(each, bytes) else str(each) for each in about]
        self.events.append(" ".join([event, *words]))

    def step(self, step: str | RedisError) -> None:
        """A command, for channels behind `+` or `-`; else a reply."""
        if isinstance(step, RedisError):
            self.on_reply(step)
        elif step == "PING":
            self.ping_command()
        elif step[0] in "+-":
            make = self.subscribe_commands if step[0] == "+" else self.unsubscribe_commands
            make(step[1:].encode().split())
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
