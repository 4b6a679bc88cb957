"""What is said and heard on a subscription connection; the same for both worlds."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable

from redis.exceptions import RedisError

from pyredisson._core import command
from pyredisson.logic.hub import Hub
from pyredisson.runtime import Reply

PING = command(b"PING")
FIRST_PAUSE = 0.05
LONGEST_PAUSE = 2.0


class Subscription:
    """One connection's conversation: SUBSCRIBEs are answered in their order, one by one."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._asked: deque[bytes] = deque()

    def ask(self, channels: Iterable[bytes]) -> bytes:
        """The commands that subscribe, to be sent at once and in this order; one each, as one may be refused."""
        commands = []
        for channel in channels:
            self._asked.append(channel)
            commands.append(command(b"SUBSCRIBE", channel))
        return b"".join(commands)

    def hear(self, reply: Reply) -> None:
        """Passes on what the server said."""
        if isinstance(reply, RedisError):
            # An error in reply to a PING is an answer, too.
            if self._asked:
                self._hub.refused(self._asked.popleft(), reply)
            return
        kind = reply[0]
        if kind == b"message":
            self._hub.message(reply[1], reply[2])
        elif kind == b"subscribe":
            self._asked.popleft()
            self._hub.subscribed(reply[1])


def pause(failures: int) -> float:
    """Seconds to wait before the next connection, after so many failures in a row: doubling, half of it random."""
    longest: float = min(FIRST_PAUSE * 2 ** min(failures, 10), LONGEST_PAUSE)
    return longest * (0.5 + random.random() / 2)
