"""Races of two threads in the bookkeeping of one connection."""

from __future__ import annotations

import socket

from pyredisson._backends.threads.connection import Connection
from pyredisson._protocol.handshake import ConnectionId, ServerInfo
from pyredisson._protocol.node import Node
from pyredisson._settings.config import Config
from pyredisson.testing import Server


class Overtaken(list[ConnectionId]):
    """Suspects that another thread takes off the list between two looks of this one."""

    def __contains__(self, connection_id: object) -> bool:
        there = super().__contains__(connection_id)
        self.clear()
        return there


def test_two_handshakes_that_cleared_the_same_suspect() -> None:
    node = Node(Config())
    suspect, other = ConnectionId(b"1", b"a:1"), ConnectionId(b"2", b"a:2")
    node.suspects = Overtaken([suspect, other])
    node.on_connected(ServerInfo(True, None, None), [suspect, ConnectionId(b"3", b"a:3"), suspect, other])
    assert not list(node.suspects)


class Closing(Connection):
    """Closed by another thread as soon as this one has looked at its socket."""

    __slots__ = ("_real", "looks")

    @property
    def _socket(self) -> socket.socket | None:
        self.looks += 1
        return self._real if self.looks == 1 else None

    @_socket.setter
    def _socket(self, value: socket.socket | None) -> None:
        self._real = value
        self.looks = 1


def test_a_connection_that_is_closed_while_it_is_shut(server: Server) -> None:
    connection = Closing(Node(Config.of(server.url)))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        connection._real, connection.looks = ours, 0
        connection.shut_down()
        assert theirs.recv(1) == b""
