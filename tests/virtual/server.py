"""A server in memory that speaks RESP: the keys and scripts of the simulator, sessions with channels, plain clients."""

from __future__ import annotations

import socket
from collections import Counter
from functools import partial, partialmethod
from itertools import count
from typing import Any, Self

import hiredis
from redis import ConnectionPool, Redis
from redis.connection import AbstractConnection
from redis.exceptions import RedisError, ResponseError

from pyredisson._protocol.replies import Reply
from tests.logic.simulator.keys import OK, Status, matches
from tests.logic.simulator.server import Server

from .network import LATENCY, SERVERS, Close, Send
from .time import VirtualClock

VERSION = (7, 0, 15)
EPOCH = 1_800_000_000
"""The server's time of day at the first reading of the clock: seconds since 1970."""


class MemoryServer:
    """Has the attributes of `pyredisson.testing.Server` that tests of a client use."""

    version = VERSION

    def __init__(self, clock: VirtualClock, host: str = "192.0.2.2", port: int = 6379) -> None:
        self.host, self.port = host, port
        self.url = f"redis://{host}:{port}"
        self.clock = clock
        self.paused = False
        self.sessions: dict[int, Session] = {}
        self.numbers, self._starts = count(1), count(1)

    @property
    def running(self) -> bool:
        """Whether it listens."""
        return SERVERS.get((self.host, self.port)) is self

    def start(self) -> Self:
        """Listens, without any data."""
        self.keys = Server(lambda: EPOCH + self.clock(), self._publish)
        self.keys.keyspace.commands |= {b"SPUBLISH": partial(self._send_message, b"smessage"), b"PUBSUB": self._pubsub}
        self.calls: Counter[str] = Counter()
        """How often each command was called, by a client or by a script."""
        call = self.keys.keyspace.call

        def counted(name: bytes, *arguments: object) -> Reply:
            self.calls[name.decode().lower()] += 1
            return call(name, *arguments)

        self.keys.keyspace.call = counted  # type: ignore[method-assign]
        self.run_id = b"%020x%020x" % (self.port, next(self._starts))
        SERVERS[self.host, self.port] = self
        return self

    def kill(self) -> None:
        """Ends all connections, and listens no more."""
        self.paused = False
        if self.running:
            del SERVERS[self.host, self.port]
        for session in list(self.sessions.values()):
            session.end()

    stop = kill

    def restart(self) -> None:
        self.kill()
        self.start()

    def pause(self) -> None:
        """From now on clients can connect and send, and nothing is executed."""
        self.paused = True

    def resume(self) -> None:
        """Executes what has arrived meanwhile."""
        self.paused = False
        for session in list(self.sessions.values()):
            session.receive(b"")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def open_session(self, send: Send, close: Close) -> Session:
        return Session(self, send, close)

    def redis(self, **options: Any) -> Redis:
        options |= {"connection_class": MemoryConnection, "server": self, "protocol": 2}
        return Redis(connection_pool=ConnectionPool(**options))

    def _publish(self, channel: bytes, text: bytes) -> int:
        return self._send_message(b"message", channel, text)

    def _pubsub(self, what: bytes, *rest: bytes) -> Reply:
        kind = b"smessage" if what.upper().startswith(b"SHARD") else b"message"
        heard = [channel for each in self.sessions.values() for channel in each.channels[kind]]
        if what.upper().endswith(b"CHANNELS"):
            return [channel for channel in dict.fromkeys(heard) if not rest or matches(channel, rest[0])]
        return [part for channel in dict.fromkeys(rest) for part in (channel, heard.count(channel))]

    def _send_message(self, kind: bytes, channel: bytes, text: bytes) -> int:
        sent = 0
        for session in list(self.sessions.values()):
            if channel in session.channels[kind]:
                session.queue(encoded([kind, channel, text]))
                sent += 1
            for pattern in session.channels[b"pmessage"]:
                if kind == b"message" and matches(channel, pattern):
                    session.queue(encoded([b"pmessage", pattern, channel, text]))
                    sent += 1
        return sent


class Session:
    """One connection, as the server sees it."""

    def __init__(self, server: MemoryServer, send: Send, close: Close) -> None:
        self.server, self.number, self._send, self._close = server, next(server.numbers), send, close
        server.sessions[self.number] = self
        self.name = b""
        self.channels: dict[bytes, dict[bytes, None]] = {b"message": {}, b"smessage": {}, b"pmessage": {}}
        self._reader = hiredis.Reader()
        self._open, self._left = True, False
        self._queued: list[list[bytes]] | None = None
        """The commands since MULTI; None: there is no transaction."""
        self._output: list[bytes] = []
        self.queue = self._output.append
        """Takes what this session is sent when the commands that were received have run."""

    def receive(self, data: bytes) -> None:
        """Executes the commands that are complete. Then each session is sent all that is for it, in one piece."""
        self._reader.feed(data)
        if self.server.paused:
            return
        while self._open and (arguments := self._reader.gets()) is not False:
            if self._queued is not None and arguments[0] not in (b"EXEC", b"DISCARD"):
                self._queued.append(arguments)
                self.queue(encoded(Status(b"QUEUED")))
            else:
                self.queue(self._execute(*arguments))
        for session in list(self.server.sessions.values()):
            session.flush()
        if self._left:
            self.left()

    def flush(self) -> None:
        if self._output:
            data = b"".join(self._output)
            self._output.clear()
            self._send(data)

    def _execute(self, name: bytes, *arguments: bytes) -> bytes:
        own = getattr(self, "do_" + name.decode().lower(), None)
        if own is not None or name.startswith(b"EVAL"):
            self.server.calls[name.decode().lower()] += 1
        if own is None:
            return encoded(self.server.keys.run(name, list(arguments)))
        try:
            reply: bytes = own(*arguments)
        except RedisError as error:
            return encoded(error)
        return reply

    def end(self) -> None:
        """The server drops the connection, with all that it hasn't executed."""
        if self._open:
            self.flush()
            self._forget()
            self._close(False)

    def left(self) -> None:
        """The client has closed the connection. What it has sent before is executed."""
        self._left = True
        if not self.server.paused:
            self._forget()

    def _forget(self) -> None:
        self._open = False
        self.server.sessions.pop(self.number, None)

    def do_multi(self) -> bytes:
        self._queued = []
        return encoded(OK)

    def do_exec(self) -> bytes:
        queued, self._queued = self._queued, None
        if queued is None:
            raise ResponseError("ERR EXEC without MULTI")
        return b"*%d\r\n" % len(queued) + b"".join(self._execute(*call) for call in queued)

    def do_hello(self, *_: bytes) -> bytes:
        fields = [b"server", b"redis", b"version", ".".join(map(str, VERSION)).encode(), b"proto", 2, b"id"]
        return encoded([*fields, self.number, b"mode", b"standalone", b"role", b"master", b"modules", []])

    def do_ping(self, *text: bytes) -> bytes:
        if any(self.channels.values()):
            return encoded([b"pong", *(text or (b"",))])
        return encoded(text[0] if text else Status(b"PONG"))

    def do_info(self, *parts: bytes) -> bytes:
        if parts == (b"commandstats",):
            lines = [f"cmdstat_{name}:calls={calls}\r\n" for name, calls in self.server.calls.items()]
            return encoded("".join(["# Commandstats\r\n", *lines]).encode())
        fields = (b".".join(b"%d" % number for number in VERSION), self.server.run_id)
        return encoded(b"# Server\r\nredis_version:%b\r\nredis_mode:standalone\r\nrun_id:%b\r\n" % fields)

    def do_client(self, what: bytes, *rest: bytes) -> bytes:
        match what.upper():
            case b"INFO":
                return encoded(self.line())
            case b"SETNAME" | b"SETINFO":
                self.name = rest[0] if what.upper() == b"SETNAME" else self.name
                return encoded(OK)
            case b"LIST":
                return encoded(b"".join(session.line() for session in self.server.sessions.values()))
            case b"KILL":
                chosen = self._chosen(rest[0].upper(), rest[1])
                for session in chosen:
                    session.end()
                return encoded(len(chosen))
        raise ResponseError(f"ERR unknown subcommand {what!r}")

    def _chosen(self, kind: bytes, value: bytes) -> list[Session]:
        """The connections that CLIENT KILL names, by their ID or TYPE."""
        others = [session for session in self.server.sessions.values() if session is not self]
        if kind == b"ID":
            return [session for session in others if session.number == int(value)]
        assert kind == b"TYPE"
        subscribed = value.upper() == b"PUBSUB"
        return [session for session in others if any(session.channels.values()) is subscribed]

    def line(self) -> bytes:
        """As in CLIENT LIST."""
        fields = (self.number, self.number, self.name, len(self.channels[b"message"]))
        return b"id=%d addr=memory:%d name=%b sub=%d\n" % fields

    def do_script(self, what: bytes, *rest: bytes) -> bytes:
        match what.upper():
            case b"LOAD":
                return encoded(self.server.keys.load(rest[0]))
            case b"EXISTS":
                return encoded([int(self.server.keys.knows(sha)) for sha in rest])
            case b"FLUSH":
                self.server.keys.flush_scripts()
                return encoded(OK)
        raise ResponseError(f"ERR unknown subcommand {what!r}")

    def do_flushdb(self) -> bytes:
        return self._execute(b"FLUSHALL")

    def do_config(self, what: bytes, *_: bytes) -> bytes:
        if what.upper() == b"RESETSTAT":
            self.server.calls.clear()
            return encoded(OK)
        raise ResponseError(f"ERR unknown subcommand {what!r}")

    def _listen(self, verb: bytes, kind: bytes, *channels: bytes) -> bytes:
        """Or no longer: without channels, to none of that kind. Returns the confirmations."""
        ours: dict[Any, None] = self.channels[kind]
        confirmed = []
        for channel in channels or tuple(ours) or (None,):
            if b"un" in verb:
                ours.pop(channel, None)
            else:
                ours[channel] = None
            confirmed.append(encoded([verb, channel, len(ours)]))
        return b"".join(confirmed)

    do_subscribe = partialmethod(_listen, b"subscribe", b"message")
    do_ssubscribe = partialmethod(_listen, b"ssubscribe", b"smessage")
    do_psubscribe = partialmethod(_listen, b"psubscribe", b"pmessage")
    do_unsubscribe = partialmethod(_listen, b"unsubscribe", b"message")
    do_sunsubscribe = partialmethod(_listen, b"sunsubscribe", b"smessage")


def encoded(reply: Reply) -> bytes:
    """A reply in RESP 2."""
    if reply is None:
        return b"$-1\r\n"
    if isinstance(reply, RedisError):
        return b"-%b\r\n" % str(reply).encode()
    if isinstance(reply, Status):
        return b"+%b\r\n" % reply
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    if isinstance(reply, bytes):
        return b"$%d\r\n%b\r\n" % (len(reply), reply)
    return b"*%d\r\n" % len(reply) + b"".join(map(encoded, reply))


class MemoryConnection(AbstractConnection):
    """A connection of redis-py to a server in memory."""

    def __init__(self, server: MemoryServer, **options: Any) -> None:
        super().__init__(**options)
        self.memory = server

    def repr_pieces(self) -> list[tuple[str, object]]:
        return [("server", self.memory.url)]

    def _connect(self) -> PlainSocket:
        if not self.memory.running:
            raise ConnectionRefusedError(111, "Connection refused")
        return PlainSocket(self.memory)

    def _host_error(self) -> str:
        return self.memory.url


class PlainSocket:
    """What redis-py needs of a socket. A command has its reply when `sendall` returns."""

    def __init__(self, server: MemoryServer) -> None:
        self._received = bytearray()
        self._ready_at_the_end, self._other_end = socket.socketpair()
        self._clock = server.clock
        self._session = server.open_session(self._received.extend, lambda _: self._other_end.close())

    def fileno(self) -> int:
        return self._ready_at_the_end.fileno()

    def pending(self) -> int:
        return len(self._received)

    def sendall(self, data: bytes) -> None:
        # What others have sent before arrives before it, as on one machine.
        self._clock.sleep(2 * LATENCY)
        self._session.receive(data)

    def recv(self, size: int) -> bytes:
        buffer = bytearray(size)
        return bytes(buffer[: self.recv_into(buffer)])

    def recv_into(self, buffer: bytearray) -> int:
        if not self._received and self._other_end.fileno() >= 0:
            raise TimeoutError("nothing was sent")
        part = self._received[: len(buffer)]
        del self._received[: len(part)]
        buffer[: len(part)] = part
        return len(part)

    def settimeout(self, _: float | None) -> None: ...
    def shutdown(self, _: int) -> None: ...

    def close(self) -> None:
        self._session.left()
        self._ready_at_the_end.close()
        self._other_end.close()

    __del__ = close
