"""The processes of the demo, as the demo sees them, and its output."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.text import Text

PATIENCE = 60.0
"""Seconds that an expected event may take, on a busy machine."""


class Missed(Exception):
    """An expected event was not observed."""


class Actor:
    """One process of the demo; a context manager that leaves no process behind."""

    def __init__(self, role: str, url: str) -> None:
        self.role = role
        self._events: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("actors.py")), role, url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def expect(self, *events: str) -> dict[str, Any]:
        """The next event, which must be one of these. Raises `Missed`."""
        wanted = " or ".join(events)
        try:
            said = self._events.get(timeout=PATIENCE)
        except queue.Empty:
            raise Missed(f"{self.role}: not {wanted} within {PATIENCE:g} s") from None
        if said is None:
            raise Missed(f"{self.role} ended before {wanted}: {self._complaint()}")
        if said["event"] not in events:
            raise Missed(f"{self.role}: {said['event']} in place of {wanted}")
        return said

    def go(self) -> None:
        """Lets the process continue from where it waits."""
        pipe = self._process.stdin
        assert pipe is not None
        try:
            pipe.write("\n")
            pipe.flush()
        except BrokenPipeError:
            raise Missed(f"{self.role} has ended: {self._complaint()}") from None

    def finish(self) -> None:
        """Waits until the process ends with status 0. Raises `Missed` otherwise."""
        try:
            status = self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise Missed(f"{self.role} doesn't end") from None
        if status:
            raise Missed(f"{self.role} failed: {self._complaint()}")

    def kill(self) -> int:
        """SIGKILL; returns its exit status once it is gone."""
        self._process.kill()
        return self._process.wait(PATIENCE)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (
            self._process.stdin,
            self._process.stdout,
            self._process.stderr,
        ):
            assert pipe is not None
            pipe.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._events.put(json.loads(line))
        self._events.put(None)

    def _complaint(self) -> str:
        self._process.kill()
        assert self._process.stderr is not None
        lines = self._process.stderr.read().strip().splitlines()
        return lines[-1] if lines else "it said nothing"


class Screen:
    """Colours on a terminal, plain text elsewhere; counts the statements that were observed and those that were not."""

    def __init__(self) -> None:
        self.console = Console(highlight=False)
        self.failed = 0

    def title(self, text: str, below: str) -> None:
        """Prints the title."""
        self.console.print(f"\n[bold]{text}[/]\n[dim]{below}[/]")

    def step(self, number: int, text: str) -> None:
        """Prints the heading of one step."""
        self.console.print(f"\n[bold cyan]{number}[/]  [bold]{text}[/]")

    def line(self, *parts: tuple[str, str]) -> None:
        """Prints a line of pairs (text, style)."""
        self.console.print(Text.assemble("   ", *parts), soft_wrap=True)

    def check(self, observed: bool, text: str) -> None:
        """Prints a statement, and whether it was observed."""
        self.failed += not observed
        mark = ("✓ ", "bold green") if observed else ("✗ ", "bold red")
        self.line(mark, (text, "" if observed else "red"))
