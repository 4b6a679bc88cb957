"""The exception for a command that got no reply."""

from __future__ import annotations

from typing import Any

from redis.exceptions import RedisError

from pyredisson._protocol.error_copies import copy_error

Reply = Any


class NoReply(Exception):
    """A command got no reply: the connection failed, or the reply didn't come before the timeout.

    Users never see it. The logic (`logic.retry`) sends the command again, or raises `error`.
    """

    def __init__(
        self, error: RedisError, *, may_have_run: bool, stale: bool = False, server_id: bytes | None = None
    ) -> None:
        super().__init__(error)
        self.error = error
        self.may_have_run = may_have_run
        """Whether the server may have executed the command, or may still execute it."""
        self.stale = stale
        """The server had closed the connection before the command was sent, so another connection may serve at
        once."""
        self.server_id = server_id
        """The identity of the server to which the command was sent. None: unknown."""

    def copy(self) -> NoReply:
        """The same failure for another caller: each caller raises an `error` object of its own."""
        other = NoReply(
            copy_error(self.error), may_have_run=self.may_have_run, stale=self.stale, server_id=self.server_id
        )
        other.__cause__ = self.__cause__
        return other
