"""The commands and replies of a subscription connection."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable
from typing import Protocol

from redis.exceptions import InvalidResponse, RedisError

from pyredisson._core import command
from pyredisson._protocol.no_reply import Reply

PING = command(b"PING")
FIRST_PAUSE = 0.05
LONGEST_PAUSE = 2.0
"""Seconds of the first and of the longest pause before a failed connection is replaced."""


class Channels(Protocol):
    """Receives the events of a subscription."""

    def deliver(self, name: bytes, payload: bytes) -> None:
        """A message was published."""

    def on_subscribed(self, name: bytes) -> None:
        """The server confirmed a subscription: messages arrive from now on."""

    def on_refused(self, name: bytes, error: RedisError) -> None:
        """The server refused a subscription."""


class Subscription:
    """The commands in flight on one subscription connection: the server answers each by one reply, in their order."""

    def __init__(self, channels: Channels) -> None:
        self._channels = channels
        self._in_flight: deque[bytes | None] = deque()
        """The commands without a reply: the channel of a SUBSCRIBE, None for any other command."""

    def subscribe_commands(self, channels: Iterable[bytes]) -> bytes:
        """The commands that subscribe, to be sent at once. One for each channel, as the server may refuse one."""
        commands = []
        for channel in channels:
            self._in_flight.append(channel)
            commands.append(command(b"SUBSCRIBE", channel))
        return b"".join(commands)

    def unsubscribe_commands(self, channels: Iterable[bytes]) -> bytes:
        """The commands that unsubscribe, to be sent at once. One for each channel, as each has a reply of its own."""
        commands = []
        for channel in channels:
            self._in_flight.append(None)
            commands.append(command(b"UNSUBSCRIBE", channel))
        return b"".join(commands)

    def ping_command(self) -> bytes:
        """A PING, to be sent at once. Any reply to it, also an error, shows that the connection works."""
        self._in_flight.append(None)
        return PING

    def on_reply(self, reply: Reply) -> None:
        """Handles a message or the reply to a command."""
        if isinstance(reply, list) and reply[0] == b"message":
            self._channels.deliver(reply[1], reply[2])
            return
        if not self._in_flight:
            raise InvalidResponse(f"a reply that belongs to no command: {reply!r}")
        channel = self._in_flight.popleft()
        if channel is None:
            # The reply to an UNSUBSCRIBE or a PING. If the server refused to unsubscribe, its messages find no waiter.
            return
        if isinstance(reply, RedisError):
            self._channels.on_refused(channel, reply)
        else:
            self._channels.on_subscribed(channel)


def pause(failures: int) -> float:
    """Seconds to pause before the next connection, after so many failures in a row: it doubles, half of it random."""
    longest: float = min(FIRST_PAUSE * 2 ** min(failures, 10), LONGEST_PAUSE)
    return longest * (0.5 + random.random() / 2)
