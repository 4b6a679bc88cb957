"""The error replies by which a node of a cluster names the node that serves a command in its place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redis.exceptions import ResponseError

from pyredisson._core import command

if TYPE_CHECKING:
    from pyredisson._protocol.node import Node

ASKING = command(b"ASKING")
"""Has the server execute the next command of the connection, although the command's slot is still being moved to it."""


class Redirected(ResponseError):
    """MOVED: another node serves the slot. ASK: another node has this command's keys, as their slot is being moved.

    The command has not run. Who replied is set by the connection that received the reply.
    """

    asked: Node | None = None
    """The node that replied: a redirect without a host means the same host."""
    server_id: bytes | None = None
    """The identity of that server's process. None: unknown."""

    @property
    def is_ask(self) -> bool:
        """Whether the redirect is for this command only, and the node still serves the slot."""
        return str(self).startswith("ASK ")

    def replied_by(self, node: Node, server_id: bytes | None) -> None:
        """Records which node replied, and the identity of its process."""
        self.asked, self.server_id = node, server_id
