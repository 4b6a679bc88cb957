"""Records the commands of an operation of pyredisson, so that a bare loop can send the same commands."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable, Iterator
from typing import Any

import hiredis

from benchmarks.bare import BUFFER, BareSocket, Command
from pyredisson.testing import Server


class Recorded:
    """The commands of one step. An argument that grew from one recorded step to the next keeps growing."""

    def __init__(self, runtime: Any, step: Callable[[], object]) -> None:
        """Runs the step four times; the first run must load the scripts."""
        step()
        steps = [_heard(runtime, step) for _ in range(3)]
        (first, _), (second, _), (third, self.replies) = steps
        if not len(first) == len(second) == len(third):
            raise AssertionError("the step doesn't send the same commands every time")
        # One counter for all commands: the scripts may require that the number only grows.
        count = itertools.count(max(map(_largest, third)) + 1)
        self._commands = [_next(*two, count) for two in zip(second, third, strict=True)]

    def next(self, index: int) -> Command:
        """The arguments of one command of the step, as the next step would send them."""
        return self._commands[index]()

    def __len__(self) -> int:
        return len(self._commands)

    def loop(self, server: Server) -> tuple[Callable[[], None], socket.socket]:
        """A function that runs the step over its own socket, and does nothing else."""
        connection = BareSocket(server.port)
        send, receive = connection.socket.sendall, connection.socket.recv
        feed, gets = connection.reader.feed, connection.reader.gets
        pack = hiredis.pack_command
        steps = [(command, type(reply)) for command, reply in zip(self._commands, self.replies, strict=True)]

        def step() -> None:
            for command, kind in steps:
                send(pack(command()))
                feed(receive(BUFFER))
                if type(gets()) is not kind:
                    raise AssertionError("the bare loop got another kind of reply")

        return step, connection.socket


def _next(earlier: list[bytes], later: list[bytes], count: Iterator[int]) -> Callable[[], Command]:
    """Packs the command again, with the next number in place of the number that changes, if one does.

    A name that changes stays as it was: a call that doesn't wait leaves none in the list of waiting clients.
    """
    changed = (i for i, (one, two) in enumerate(zip(earlier, later, strict=True)) if one != two)
    changes = [i for i in changed if later[i].isdigit()]
    if len(changes) > 1:
        raise AssertionError(f"more than one number changes: {changes}")
    constant = tuple(later)
    if not changes:
        return lambda: constant
    head, tail = constant[: changes[0]], constant[changes[0] + 1 :]
    return lambda: (*head, b"%d" % next(count), *tail)


def _largest(command: list[bytes]) -> int:
    return max((int(part) for part in command if part.isdigit() and len(part) < 16), default=0)


def _heard(runtime: Any, step: Callable[[], object]) -> tuple[list[list[bytes]], list[Any]]:
    """Runs a step; returns the commands that were sent and their replies."""
    send = runtime.send
    sent, replies = [], []

    async def tapped(payload: bytes, *, new_connection: bool = False) -> Any:
        reply = await send(payload, new_connection=new_connection)
        reader = hiredis.Reader()
        reader.feed(payload)
        sent.append(reader.gets())
        replies.append(reply)
        return reply

    runtime.send = tapped
    try:
        step()
    finally:
        runtime.send = send
    return sent, replies
