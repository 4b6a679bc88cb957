"""A server that replies as a test wants: with other versions, or with replies that never end."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

import hiredis

Answer = Callable[[list[bytes]], bytes]
RUN_ID = "0" * 40


def bulk(text: str) -> bytes:
    """A reply of one string."""
    return b"$%d\r\n%b\r\n" % (len(text), text.encode())


def shake(words: list[bytes], version: str = "7.0.15", mode: str = "standalone") -> bytes:
    """The reply to a command of the handshake."""
    name = words[0].upper()
    if name == b"HELLO":
        facts = ["server", "redis", "version", version, "mode", mode]
        return b"*6\r\n" + b"".join(map(bulk, facts))
    if name == b"INFO":
        return bulk(f"# Server\r\nredis_version:{version}\r\nredis_mode:standalone\r\nrun_id:{RUN_ID}\r\n")
    return b"+OK\r\n" if words[1:2] != [b"INFO"] else bulk("id=1 addr=127.0.0.1:1 name=")


class Stub:
    """Listens on 127.0.0.1, and answers each command with `answer`'s bytes: one by one if `drip` is above 0."""

    def __init__(self, answer: Answer, drip: float = 0.0) -> None:
        self._answer = answer
        self._drip = drip
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._open: list[socket.socket] = []
        self.connections = 0
        """How many there have been."""
        self.port: int = self._listener.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        for connection in self._open:
            with contextlib.suppress(OSError):  # its other side was first
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listener.close()
        for connection in self._open:
            connection.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # the end of the test
            self.connections += 1
            self._open.append(connection)
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        reader = hiredis.Reader()
        try:
            while heard := connection.recv(65536):
                reader.feed(heard)
                while (words := reader.gets()) is not False:
                    self._say(connection, self._answer(words))
        except OSError:
            return  # the client has gone

    def _say(self, connection: socket.socket, reply: bytes) -> None:
        if not self._drip:
            connection.sendall(reply)
            return
        for byte in reply:
            connection.sendall(bytes([byte]))
            time.sleep(self._drip)
