"""Baselines, as fast as a client can be: the lock's two scripts over a socket with hiredis, blocking and on asyncio."""

from __future__ import annotations

import asyncio
import socket
import uuid
from collections import deque
from collections.abc import Callable
from typing import Any

import hiredis

import pyredisson
from pyredisson._protocol.pubsub import PubSub
from pyredisson._protocol.scripts import Script
from pyredisson.logic.locks.commands import LOCK_FREE, OTHERS_LISTEN
from pyredisson.testing import Server

LEASE = b"30000"
MEMBER = b"%b:1" % str(uuid.uuid4()).encode()
"""A client that isn't in the list of those that wait."""
PATIENCE = b"5000"
BUFFER = 65536
RELEASED = (LOCK_FREE, OTHERS_LISTEN)
"""The replies to the release of a lock. A server of a cluster can't say whether nobody has heard of it."""

Command = tuple[Any, ...]
"""A tuple of any number of bytes objects; the type stub of hiredis declares tuples of one element only."""


def list_of(key: bytes) -> tuple[bytes, bytes]:
    """The keys of a lock's list of waiting clients."""
    return b"pyredisson_waiting:{%b}" % key, b"pyredisson_woken:{%b}" % key


def wake_channels(key: bytes) -> bytes:
    """The beginning of the names of the channels on which these clients are woken."""
    return b"pyredisson_wake:{%b}:" % key


class Commands:
    """The two commands of a lock + unlock pair, as tuples for hiredis to pack."""

    def __init__(self, server: Server, name: str, pubsub: PubSub = PubSub.PLAIN) -> None:
        """Loads the scripts, in the form that pyredisson uses on this server with these flavours of messages."""
        # Servers before 7.0 don't compile the line with the flags.
        acquire, release = (
            Script(script, with_shebang=server.version >= (7, 0, 0), pubsub=pubsub)
            for script in ("lock_acquire", "lock_release")
        )
        with server.redis() as admin:
            for script in (acquire, release):
                admin.script_load(script.text)
        # As long as an owner's name of pyredisson: a shorter name would be less work for the server.
        owner = f"{uuid.uuid4()}:{2**32}"
        key = name.encode()
        self.channel = b"redisson_lock__channel:{%s}" % key
        keys, words = (key, *list_of(key)), (self.channel, owner.encode(), b"0")
        # It doesn't wait in the list: a message on the lock's channel tells it of a release.
        self.acquire: Command = (b"EVALSHA", acquire.sha, b"3", *keys, owner.encode(), b"1", LEASE, MEMBER, b"0")
        self.release: Command = (b"EVALSHA", release.sha, b"3", *keys, *words, wake_channels(key), PATIENCE, b"0")


class FairCommands:
    """The commands of the fair lock, for an owner that waits for its turn."""

    def __init__(self, server: Server, name: str) -> None:
        owner = f"{uuid.uuid4()}:{2**32}".encode()
        with pyredisson.connect(server.url) as client:
            lock = client.get_fair_lock(name)
            # Loads the scripts; the connection learns which form of them the server accepts.
            lock.lock()
            lock.unlock()
            logic = lock._logic
            self.acquire = parsed(logic.commands.acquire(owner, 1, int(LEASE), waits=True))
            self.release = parsed(logic.commands.release(owner, 0))
        self.channel = b"redisson_lock__channel:{%s}:%s" % (name.encode(), owner)


class HandOvers:
    """The command that acquires a lock for one owner, and those that hand it over to another owner and back."""

    def __init__(self, server: Server, name: str) -> None:
        script = Script("lock_hand_over", with_shebang=server.version >= (7, 0, 0))
        with server.redis() as admin:
            admin.script_load(script.text)
        self.acquire = Commands(server, name).acquire
        key = name.encode()
        one, other = self.acquire[6], f"{uuid.uuid4()}:{2**32}".encode()
        self.both: list[Command] = [
            (b"EVALSHA", script.sha, b"2", key, list_of(key)[0], *pair, LEASE, MEMBER)
            for pair in ((one, other), (other, one))
        ]

    @staticmethod
    def check(reply: object) -> None:
        """Raises unless the lock was handed over."""
        if reply != [0]:
            raise AssertionError(f"the lock wasn't handed over: {reply!r}")


def parsed(payload: bytes) -> Command:
    """The words of a packed command, as a tuple."""
    reader = hiredis.Reader()
    reader.feed(payload)
    return tuple(reader.gets())


class BareSocket:
    """One blocking connection, one command at a time."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection((Server.host, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.reader = hiredis.Reader()

    def call(self, command: Command) -> Any:
        """Sends a command and returns its reply."""
        self.socket.sendall(hiredis.pack_command(command))
        return self.receive()

    def receive(self) -> Any:
        """The next reply or message."""
        reader = self.reader
        while (reply := reader.gets()) is False:
            reader.feed(self.socket.recv(BUFFER))
        return reply

    def close(self) -> None:
        self.socket.close()


class BareLock:
    """Two sockets in one thread: one receives messages about releases, the other sends the lock's commands."""

    def __init__(self, port: int, commands: Commands | FairCommands) -> None:
        self._commands = commands
        self._line = BareSocket(port)
        self._messages = BareSocket(port)
        self._subscribed = False

    def lock(self) -> None:
        while self._line.call(self._commands.acquire) is not None:
            if self._subscribed:
                self._messages.receive()
            else:
                self._messages.call((b"SUBSCRIBE", self._commands.channel))
                self._subscribed = True

    def unlock(self) -> None:
        # Not 1 if others may have received the message.
        if not self._line.call(self._commands.release):
            raise AssertionError("the bare sockets' lock wasn't held")

    def close(self) -> None:
        self._line.close()
        self._messages.close()


def bare_pair(server: Server, name: str, pubsub: PubSub = PubSub.PLAIN) -> tuple[Callable[[], None], BareSocket]:
    """A function that locks and unlocks over its own socket, and does nothing else."""
    connection = BareSocket(server.port)
    commands = Commands(server, name, pubsub)
    acquire, release = commands.acquire, commands.release
    send, receive = connection.socket.sendall, connection.socket.recv
    feed, gets = connection.reader.feed, connection.reader.gets
    pack = hiredis.pack_command

    def pair() -> None:
        send(pack(acquire))
        feed(receive(BUFFER))
        taken = gets()
        send(pack(release))
        feed(receive(BUFFER))
        released = gets()
        if taken is not None or released not in RELEASED:
            raise AssertionError(f"the bare loop didn't lock and unlock: {taken!r}, {released!r}")

    return pair, connection


class BareProtocol(asyncio.Protocol):
    """One asyncio connection, with one future and one write for each command."""

    def __init__(self) -> None:
        self._reader = hiredis.Reader()
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not False:
            self._waiting.popleft().set_result(reply)

    def call(self, command: Command) -> asyncio.Future[Any]:
        """Sends a command; the future is its reply."""
        future = self._loop.create_future()
        self._waiting.append(future)
        self.transport.write(hiredis.pack_command(command))
        return future


class PipeliningProtocol(BareProtocol):
    """The same, but all commands of one iteration of the event loop are sent in one write."""

    def __init__(self) -> None:
        super().__init__()
        self._unsent: list[bytes] = []

    def call(self, command: Command) -> asyncio.Future[Any]:
        """Sends a command at the end of this iteration of the event loop; the future is its reply."""
        future = self._loop.create_future()
        self._waiting.append(future)
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent.append(hiredis.pack_command(command))
        return future

    def _flush(self) -> None:
        self.transport.write(b"".join(self._unsent))
        self._unsent.clear()
