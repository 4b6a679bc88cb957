"""Child processes that exchange lines of text with a test."""

from __future__ import annotations

import queue
import signal
import subprocess
import sys
import threading

from .waiting import TIME_LIMIT

HEEDS_CTRL_C = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
"""Makes a child handle Ctrl-C. A process in the background of a shell ignores SIGINT, and so do its children."""


class Child:
    """A Python process that runs `program`. It sends lines to the test, and receives lines from it."""

    def __init__(self, program: str, *args: object) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-u", "-c", HEEDS_CTRL_C + program, *map(str, args)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def receive(self, seconds: float = 2 * TIME_LIMIT) -> str:
        """The next line from the process; empty at its end."""
        return self._lines.get(timeout=seconds)

    def send(self, line: str = "") -> None:
        stdin = self._process.stdin
        assert stdin is not None
        stdin.write(line + "\n")
        stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self, seconds: float = 2 * TIME_LIMIT) -> int:
        """Its exit status."""
        return self._process.wait(seconds)

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _read(self) -> None:
        stdout = self._process.stdout
        assert stdout is not None
        for line in stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put("")
