"""`pyredisson watch` on a real terminal: it shows what is held, follows changes, and survives its server."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from pyredisson.testing import Server
from tests.support.commands import TIMEOUT, clean_environment, pyredisson

from .conftest import JAVA


class Screen:
    """What the command has written to its terminal."""

    def __init__(self, terminal: int, process: subprocess.Popen[bytes]) -> None:
        self._terminal = terminal
        self._seen = b""
        self.process = process

    def until(self, text: str, without: str = "\0") -> None:
        """Waits until a frame that is written from now on contains one text, and not the other."""
        self._seen = b""
        end = time.monotonic() + TIMEOUT
        while True:
            frames = self._seen.split(b"in use, ")
            # The last one may not be complete.
            if any(text.encode() in frame and without.encode() not in frame for frame in frames[1:-1]):
                return
            assert time.monotonic() < end, (text, self._seen[-2000:])
            if select.select([self._terminal], [], [], 0.1)[0]:
                self._seen += os.read(self._terminal, 65536)

    def press(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def rest(self) -> bytes:
        """Everything until the process ends. It would block if nobody read what it writes."""
        data = b""
        while True:
            try:
                data += os.read(self._terminal, 65536)
            except OSError:  # the other end is closed
                return data


@contextmanager
def watching(url: str, *arguments: str) -> Iterator[Screen]:
    ours, its = pty.openpty()
    program = [sys.executable, "-m", "pyredisson", "watch", "--interval", "0.1", *arguments]
    environment = {**clean_environment(), "PYREDISSON_URL": url, "TERM": "xterm", "LINES": "20", "COLUMNS": "120"}
    process = subprocess.Popen(program, stdin=its, stdout=its, stderr=its, env=environment)
    os.close(its)
    try:
        yield Screen(ours, process)
    finally:
        process.kill()
        process.wait(TIMEOUT)
        os.close(ours)


def test_it_follows_what_is_held_and_a_server_that_goes(own_server: Server) -> None:
    with watching(own_server.url, "o*", "--timeout", "1") as screen:
        with own_server.redis() as redis:
            redis.hset("orders", f"{JAVA}:31", 1)
            redis.hset("hidden", f"{JAVA}:31", 1)
            screen.until("orders", without="hidden")
            redis.hset("others", f"{JAVA}:31", 1)
            screen.until("others")
            redis.delete("orders")
            screen.until("others", without="orders")
        own_server.kill()
        # What was seen stays.
        screen.until("server away for ")
        own_server.start()
        with own_server.redis() as redis:
            redis.hset("owned", f"{JAVA}:31", 1)
        screen.until("owned", without="server away")
        screen.process.send_signal(signal.SIGINT)
        assert b"Traceback" not in screen.rest()
        assert screen.process.wait(TIMEOUT) == 130


def test_more_than_the_terminal_has_lines(server: Server) -> None:
    with server.redis() as redis:
        for number in range(40):
            redis.hset(f"lock-{number:02}", f"{JAVA}:31", 1)
    with watching(server.url) as screen:
        screen.until("lock-00", without="lock-39")
        screen.press("j" * 30)
        screen.until("lock-39", without="lock-00")
        screen.press("q")
        # The terminal is as before.
        assert b"\x1b[?1049l" in screen.rest()
        assert screen.process.wait(TIMEOUT) == 0


def test_without_a_terminal(server: Server) -> None:
    ended = pyredisson("watch", "--url", server.url)
    assert ended == (2, "", "pyredisson: watch needs a terminal; 'pyredisson ls' doesn't\n")
