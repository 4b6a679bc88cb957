"""What is said and heard on a subscription connection; the same for both worlds."""

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


class Channels(Protocol):
    """Who is told what the server says of channels."""

    def deliver(self, name: bytes, payload: bytes) -> None:
        """A message was published."""

    def on_subscribed(self, name: bytes) -> None:
        """The server confirmed a subscription: messages arrive from now on."""

    def on_refused(self, name: bytes, error: RedisError) -> None:
        """The server refused a subscription."""


class Subscription:
    """One connection's conversation: whatever is asked is answered in its order, by one reply each."""

    def __init__(self, channels: Channels) -> None:
        self._channels = channels
        self._asked: deque[bytes | None] = deque()
        """What has no reply yet: the channel of a SUBSCRIBE, None for any other command."""

    def ask(self, channels: Iterable[bytes]) -> bytes:
        """The commands that subscribe, to be sent at once and in this order; one each, as one may be refused."""
        commands = []
        for channel in channels:
            self._asked.append(channel)
            commands.append(command(b"SUBSCRIBE", channel))
        return b"".join(commands)

    def drop(self, channels: Iterable[bytes]) -> bytes:
        """The commands that unsubscribe, to be sent at once; one each, as each has a reply."""
        commands = []
        for channel in channels:
            self._asked.append(None)
            commands.append(command(b"UNSUBSCRIBE", channel))
        return b"".join(commands)

    def ping(self) -> bytes:
        """The command that asks whether the connection lives, to be sent at once. An error is an answer, too."""
        self._asked.append(None)
        return PING

    def hear(self, reply: Reply) -> None:
        """Passes on what the server said."""
        if isinstance(reply, list) and reply[0] == b"message":
            self._channels.deliver(reply[1], reply[2])
            return
        if not self._asked:
            raise InvalidResponse(f"a reply that nobody asked for: {reply!r}")
        channel = self._asked.popleft()
        if channel is None:
            # It keeps a channel that it may not leave: its messages are for nobody.
            return
        if isinstance(reply, RedisError):
            self._channels.on_refused(channel, reply)
        else:
            self._channels.on_subscribed(channel)


def pause(failures: int) -> float:
    """Seconds to wait before the next connection, after so many failures in a row: doubling, half of it random."""
    longest: float = min(FIRST_PAUSE * 2 ** min(failures, 10), LONGEST_PAUSE)
    return longest * (0.5 + random.random() / 2)
