"""A connection that a proxy passes on byte by byte, untouched by faults."""

from __future__ import annotations

import selectors
import socket

__all__ = ["Tunnel"]


class Tunnel:
    """Two sockets; what arrives on one is sent to the other. The end of either closes both."""

    def __init__(self, one: socket.socket, other: socket.socket, selector: selectors.BaseSelector) -> None:
        self.open = True
        self._selector = selector
        self._out = {one: bytearray(), other: bytearray()}
        self._peer = {one: other, other: one}
        for sock in self._peer:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            selector.register(sock, selectors.EVENT_READ, self.pump)

    def pump(self) -> None:
        """Pass on what has arrived, in both directions."""
        for sock, peer in self._peer.items():
            if self.open:
                self._receive(sock, peer)
        for sock in self._peer:
            if self.open:
                self._send(sock)

    def close(self) -> None:
        if not self.open:
            return
        self.open = False
        for sock in self._peer:
            self._selector.unregister(sock)
            sock.close()

    def _receive(self, sock: socket.socket, peer: socket.socket) -> None:
        try:
            data = sock.recv(1 << 16)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        self._out[peer] += data
        if not data:
            self.close()

    def _send(self, sock: socket.socket) -> None:
        out = self._out[sock]
        try:
            while out:
                del out[: sock.send(out)]
        except BlockingIOError:
            pass
        except ConnectionError:
            self.close()
            return
        self._selector.modify(sock, selectors.EVENT_READ | (selectors.EVENT_WRITE if out else 0), self.pump)
