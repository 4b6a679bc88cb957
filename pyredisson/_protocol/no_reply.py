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

    def __init__(
        self, error: RedisError, *, may_have_run: bool, stale: bool = False, server_id: bytes | None = None
    ) -> None:
        super().__init__(error)
        self.error = error
        self.may_have_run = may_have_run
        """Whether the server may have executed it, or may do so later."""
        self.stale = stale
        """The server had closed the connection before: another connection may serve at once."""
        self.server_id = server_id
        """The identity of the server to which it was sent; None where it isn't known."""

    def copy(self) -> NoReply:
        """The same for another caller: each raises an `error` of its own."""
        twin = NoReply(
            copy_error(self.error), may_have_run=self.may_have_run, stale=self.stale, server_id=self.server_id
        )
        twin.__cause__ = self.__cause__
        return twin
