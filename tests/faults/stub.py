"""A server that replies as a test wants: with other versions, or with replies that never end."""

import contextlib
import socketserver
import threading
import time
from collections.abc import Callable
from typing import Self

import hiredis

Answer = Callable[[list[bytes]], bytes]


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
        return bulk(f"# Server\r\nredis_version:{version}\r\nredis_mode:standalone\r\nrun_id:{'0' * 40}\r\n")
    return b"+OK\r\n" if words[1:2] != [b"INFO"] else bulk("id=1 addr=127.0.0.1:1 name=")


class Stub(socketserver.ThreadingTCPServer):
    """Listens on 127.0.0.1, and answers each command with `answer`'s bytes: one by one if `drip` is above 0."""

    daemon_threads, block_on_close = True, False

    def __init__(self, answer: Answer, drip: float = 0.0) -> None:
        super().__init__(("127.0.0.1", 0), StubHandler)
        self.answer, self.drip = answer, drip
        self.connections = 0
        """How many there have been."""
        self.port: int = self.socket.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class StubHandler(socketserver.BaseRequestHandler):
    server: Stub

    def handle(self) -> None:
        self.server.connections += 1
        reader = hiredis.Reader()
        # Otherwise the client has gone.
        with contextlib.suppress(OSError):
            while heard := self.request.recv(65536):
                reader.feed(heard)
                while (words := reader.gets()) is not False:
                    self.say(self.server.answer(words))

    def say(self, reply: bytes) -> None:
        for part in [reply[place : place + 1] for place in range(len(reply))] if self.server.drip else [reply]:
            self.request.sendall(part)
            time.sleep(self.server.drip)
