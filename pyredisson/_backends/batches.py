"""Commands for several servers at once: the part that goes to one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from redis.exceptions import RedisError

from pyredisson._protocol.error_copies import copy_error
from pyredisson._protocol.no_reply import Reply
from pyredisson._protocol.node import Node
from pyredisson._protocol.redirects import ASKING


class Batch:
    """Of several commands the ones that go to one server, and the list into which their replies belong."""

    __slots__ = ("_as_sent", "_payloads", "_places", "_replies", "node")

    def __init__(
        self,
        payloads: Sequence[bytes],
        replies: list[Reply],
        places: Sequence[int],
        as_sent: Callable[..., bytes],
        node: Node | None = None,
    ) -> None:
        """`places`: which of all commands these are. `as_sent`: `RoutedRuntime.as_sent`. `node`: the one which ASK has
        named."""
        self._payloads = payloads
        self._replies = replies
        self._places = places
        self._as_sent = as_sent
        self.node = node

    @property
    def payload(self) -> bytes:
        """One of the commands, which tells where all of them go."""
        return self._payloads[self._places[-1]]

    def commands(self) -> list[bytes]:
        """What is sent."""
        asking = self.node is not None
        commands = [self._as_sent(self._payloads[i], asking=asking) for i in self._places]
        return [part for payload in commands for part in (ASKING, payload)] if asking else commands

    def put(self, replies: Sequence[Reply]) -> None:
        """The replies to what was sent."""
        for i, reply in zip(self._places, replies if self.node is None else replies[1::2], strict=True):
            self._replies[i] = reply

    def fail(self, error: RedisError) -> None:
        """There are no replies."""
        for i in self._places:
            self._replies[i] = copy_error(error)
