"""The replies of a subscription connection: each belongs to one command, and some to none."""

from __future__ import annotations

import pytest
from redis.exceptions import InvalidResponse, RedisError

from pyredisson._core import latch_channel
from pyredisson._protocol.pubsub import PubSub, Subscription
from pyredisson._protocol.replies import Reply, as_error


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


def test_a_message_in_both_flavours_counts_once() -> None:
    made, events = subscription(PubSub.AUTO)
    plain, sharded, other = [b"message", b"a", b"0"], [b"smessage", b"a", b"0"], [b"smessage", b"a", b"1"]
    made.on_replies([plain, sharded, plain, sharded])
    assert events == [("message", b"a 0")] * 2
    made.on_replies([sharded, plain])
    made.on_replies([sharded])
    assert len(events) == 5, "a waiter may have reacted to the plain message before the other one was published"
    made.on_replies([plain, other, sharded])
    assert events[5:] == [("message", b"a 0"), ("message", b"a 1"), ("message", b"a 0")]
    # Of one flavour nothing is taken for a repetition.
    for pubsub, kind in ((PubSub.PLAIN, b"message"), (PubSub.SHARDED, b"smessage")):
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
