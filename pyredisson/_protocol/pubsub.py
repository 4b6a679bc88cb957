"""Publish and subscribe in Redis's two flavours, plain and sharded messages, which don't meet."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple, Protocol

from redis.exceptions import InvalidResponse, RedisError

from pyredisson._core import command
from pyredisson._protocol.replies import Reply
from pyredisson._settings.config import Config

LATCH_CHANNEL = b"redisson_countdownlatch__channel__{"


class PubSub(Enum):
    """The flavours that a client publishes and hears. The value is the end of a file's name in `lua/`."""

    PLAIN = "plain"
    """PUBLISH and SUBSCRIBE. On a cluster a message goes to all nodes, and reaches their subscribers."""
    AUTO = "auto"
    """Both are heard. A sharded message is always published, a plain one where somebody may hear it."""
    BOTH = "both"
    """Both are heard, and every message is published twice. A client of Redisson on a cluster uses one flavour only."""
    SHARDED = "sharded"
    """SPUBLISH and SSUBSCRIBE, which servers know from 7.0 on. A message stays on the node of the channel's slot."""

    @classmethod
    def of(cls, config: Config) -> PubSub:
        return _BY_SETTING[config.sharded_pubsub] if config.topology == "cluster" else cls.PLAIN

    def flavours(self, channel: bytes) -> tuple[Flavour, ...]:
        """The flavours in which a channel is heard."""
        if self is PubSub.PLAIN or is_on_other_slot(channel):
            return (Flavour.PLAIN,)
        return (Flavour.SHARDED,) if self is PubSub.SHARDED else (Flavour.PLAIN, Flavour.SHARDED)


_BY_SETTING = {"auto": PubSub.AUTO, "both": PubSub.BOTH, "on": PubSub.SHARDED, "off": PubSub.PLAIN}


class Flavour(Enum):
    """One flavour of subscriptions."""

    PLAIN = b""
    SHARDED = b"S"

    def __init__(self, prefix: bytes) -> None:
        self.subscribe = prefix + b"SUBSCRIBE"
        self.unsubscribe = prefix + b"UNSUBSCRIBE"
        self.subscribed = self.subscribe.lower()
        """The first word of the reply."""
        self.unsubscribed = self.unsubscribe.lower()


def is_on_other_slot(channel: bytes) -> bool:
    """Whether a channel isn't on the slot of its object, where a script can't publish a sharded message: the channel of
    a latch whose name contains a brace, as Redisson adds braces to that name all the same."""
    return channel.startswith(LATCH_CHANNEL) and b"{" in channel[len(LATCH_CHANNEL) :]


PING = command(b"PING")
FIRST_PAUSE = 0.05
LONGEST_PAUSE = 2.0
"""Seconds of the first and of the longest pause before a failed connection is replaced."""


class Channels(Protocol):
    """Receives the events of a subscription."""

    def deliver(self, name: bytes, payload: bytes) -> None:
        """A message was published."""

    def on_subscribed(self, name: bytes) -> None:
        """The server confirmed a subscription, in all its flavours: messages arrive from now on."""

    def on_refused(self, name: bytes, error: RedisError) -> None:
        """The server refused a subscription."""

    def on_dropped(self, name: bytes) -> None:
        """The server ended a sharded subscription, because the slot of the channel has left it."""


class _Sent(NamedTuple):
    """A command without a reply."""

    name: bytes = b""
    """In lower case, as the reply repeats it. Empty: a PING."""
    channel: bytes = b""
    unconfirmed: set[bytes] | None = None
    """Of a command that subscribes: the names of all commands that subscribe to the channel and aren't confirmed."""


class Subscription:
    """The commands in flight on one subscription connection: the server answers each by one reply, in their order.

    Beside the replies and the messages, a node of a cluster sends a `sunsubscribe` for each channel whose slot leaves
    it. If the reply to an own SUNSUBSCRIBE of that channel is due at that moment, the one is taken for the other, and
    the real reply, an error, for that to the next command. The connection is given up as soon as that shows.
    """

    def __init__(self, channels: Channels, pubsub: PubSub = PubSub.PLAIN) -> None:
        self._channels = channels
        self._pubsub = pubsub
        self._hears_both = pubsub in (PubSub.AUTO, PubSub.BOTH)
        """Whether a message may come in either flavour."""
        self._in_flight: deque[_Sent] = deque()
        self._plain: list[Reply] | None = None
        """A plain message that the next reply may repeat in the other flavour."""

    def subscribe_commands(self, channels: Iterable[bytes]) -> bytes:
        """The commands that subscribe, to be sent at once. One for each channel, as the server may refuse one."""
        commands = []
        for channel in channels:
            flavours = self._pubsub.flavours(channel)
            unconfirmed = {flavour.subscribed for flavour in flavours}
            for flavour in flavours:
                self._in_flight.append(_Sent(flavour.subscribed, channel, unconfirmed))
                commands.append(command(flavour.subscribe, channel))
        return b"".join(commands)

    def unsubscribe_commands(self, channels: Iterable[bytes], *, moved: bool = False) -> bytes:
        """As `subscribe_commands`. `moved`: the slots have left the node, which has ended sharded subscriptions."""
        commands = []
        for channel in channels:
            for flavour in self._pubsub.flavours(channel):
                if moved and flavour is Flavour.SHARDED:
                    continue
                self._in_flight.append(_Sent(flavour.unsubscribed, channel))
                commands.append(command(flavour.unsubscribe, channel))
        return b"".join(commands)

    def ping_command(self) -> bytes:
        """A PING, to be sent at once. Any reply to it, also an error, shows that the connection works."""
        self._in_flight.append(_Sent())
        return PING

    def on_replies(self, replies: Iterable[Reply]) -> None:
        for reply in replies:
            if reply.__class__ is list and reply[0] == b"message" and not self._hears_both:
                # As `on_reply`: a waiter's next attempt comes after this, so each call of a function delays it.
                self._channels.deliver(reply[1], reply[2])
            else:
                self.on_reply(reply)
        self._plain = None

    def end_batch(self) -> None:
        """What is received from now on may have been sent after a waiter has reacted to what was received before.

        Then it must wake another waiter, unlike the second flavour of the same message.
        """
        self._plain = None

    @property
    def batch_begun(self) -> bool:
        """Whether `end_batch` is to be called before more is received."""
        return self._plain is not None

    def on_reply(self, reply: Reply) -> None:
        if isinstance(reply, list) and (reply[0] == b"message" or reply[0] == b"smessage"):
            self._on_message(reply)
        elif isinstance(reply, list) and reply[0] == b"sunsubscribe" and not self._is_awaited(reply):
            self._channels.on_dropped(reply[1])
        elif not self._in_flight:
            raise InvalidResponse(f"a reply that belongs to no command: {reply!r}")
        else:
            self._on_answer(self._in_flight.popleft(), reply)

    def _on_message(self, message: list[Reply]) -> None:
        plain, self._plain = self._plain, None
        if message[0] == b"message":
            if self._hears_both:
                self._plain = message
        elif plain is not None and plain[1:] == message[1:]:
            return
        self._channels.deliver(message[1], message[2])

    def _is_awaited(self, reply: list[Reply]) -> bool:
        return bool(self._in_flight) and self._in_flight[0][:2] == tuple(reply[:2])

    def _on_answer(self, sent: _Sent, reply: Reply) -> None:
        if isinstance(reply, list) and sent.name and (sent.name, sent.channel) != tuple(reply[:2]):
            raise InvalidResponse(f"a reply that belongs to another command: {reply!r}")
        if sent.unconfirmed is None:
            # The reply to an UNSUBSCRIBE or a PING. If the server refused to unsubscribe, its messages find no waiter.
            return
        if isinstance(reply, RedisError) and not self._is_unknown(sent, reply):
            self._channels.on_refused(sent.channel, reply)
            return
        sent.unconfirmed.discard(sent.name)
        if not sent.unconfirmed:
            self._channels.on_subscribed(sent.channel)

    def _is_unknown(self, sent: _Sent, error: RedisError) -> bool:
        """Whether the server doesn't know sharded messages, and plain ones are heard anyway."""
        sharded = self._hears_both and sent.name == Flavour.SHARDED.subscribed
        return sharded and str(error).startswith("ERR unknown command")


def pause(failures: int) -> float:
    """Seconds to pause before the next connection, after so many failures in a row: it doubles, half of it random."""
    longest: float = min(FIRST_PAUSE * 2 ** min(failures, 10), LONGEST_PAUSE)
    return longest * (0.5 + random.random() / 2)
