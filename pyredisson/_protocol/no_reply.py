"""What a connection says of a command that got no reply."""

from __future__ import annotations

from typing import Any

from redis.exceptions import RedisError

from pyredisson._protocol.error_copies import copy_error

Reply = Any


class NoReply(Exception):
    """A command got no reply: the connection failed, or the reply didn't come in time.

    Only between the wire and `logic.calls`, which turns it into another try or into `error`.
    """

    def __init__(self, error: RedisError, *, sent: bool, idle: bool = False, server: bytes | None = None) -> None:
        super().__init__(error)
        self.error = error
        self.sent = sent
        """Whether the server may have executed it, or may do so later."""
        self.idle = idle
        """The server had closed the connection before: another connection may serve at once."""
        self.server = server
        """The identity of the server to which it was sent; None where it isn't known."""

    def again(self) -> NoReply:
        """The same for another caller: each raises an `error` of its own."""
        twin = NoReply(copy_error(self.error), sent=self.sent, idle=self.idle, server=self.server)
        twin.__cause__ = self.__cause__
        return twin
