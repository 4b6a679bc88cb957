"""Which of Redis's two flavours of publish and subscribe are used: plain and sharded messages don't meet."""

from __future__ import annotations

from enum import Enum

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
        """The flavours for a client with these settings."""
        return _BY_SETTING[config.sharded_pubsub] if config.topology == "cluster" else cls.PLAIN

    @property
    def hears_both(self) -> bool:
        """Whether a message may come in either flavour."""
        return self is PubSub.AUTO or self is PubSub.BOTH

    def flavours(self, channel: bytes) -> tuple[Flavour, ...]:
        """The flavours in which a channel is heard."""
        if self is PubSub.PLAIN or is_on_other_slot(channel):
            return (Flavour.PLAIN,)
        return (Flavour.SHARDED,) if self is PubSub.SHARDED else (Flavour.PLAIN, Flavour.SHARDED)


_BY_SETTING = {"auto": PubSub.AUTO, "both": PubSub.BOTH, "on": PubSub.SHARDED, "off": PubSub.PLAIN}
"""The flavours by `Config.sharded_pubsub`."""


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
    """Whether a channel isn't on the slot of its object, where a script can't publish a sharded message.

    So is the channel of a latch whose name contains a brace, as Redisson adds braces to that name all the same.
    """
    return channel.startswith(LATCH_CHANNEL) and b"{" in channel[len(LATCH_CHANNEL) :]
