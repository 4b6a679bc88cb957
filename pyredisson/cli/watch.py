"""`pyredisson watch`: what is held, live."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import time
import tty
from datetime import datetime

import click
from redis.exceptions import NoPermissionError, RedisError
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from pyredisson._diagnostics import printable
from pyredisson.cli import USAGE
from pyredisson.cli.ls import COLUMNS, OPTIONAL, row
from pyredisson.cli.options import Seconds, Settings, common, fail
from pyredisson.cli.reading import Reader, reader
from pyredisson.cli.tables import table
from pyredisson.inspection.discovery import Discovery
from pyredisson.inspection.model import DISTANT, State

RATE = 20_000
"""Keys a second that are looked at, on all servers together."""
HEAD = 3
"""Lines above and below the table: how many, its heading, and what is not shown."""


@click.command(
    epilog="""\b
Examples:
  pyredisson watch
  pyredisson watch 'cron:*' --interval 0.5

Keys: q ends it; the arrows, or j and k, scroll. What is held for longest comes first, as far as that is known."""
)
@click.argument("pattern", default="*")
@click.option(
    "--interval", metavar="SECONDS", type=Seconds(0.1, 60), default=1.0, help="Between two looks.  [default: 1]"
)
@common
def watch(settings: Settings, pattern: str, interval: float) -> None:
    """Show what is held, live, like 'top'. The columns are as in 'ls'.

    PATTERN is a glob such as 'cron:*', in quotes.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        fail(USAGE, "watch needs a terminal; 'pyredisson ls' doesn't")
    to = Console(no_color=not settings.color, highlight=False, markup=False, emoji=False)
    with reader(settings.config) as reading, _Keys() as keys, Live(console=to, screen=True, auto_refresh=False) as live:
        seen = _Seen(reading, pattern)
        first = 0
        while True:
            end = time.monotonic() + interval
            seen.look(end)
            first = min(first, max(0, len(seen.states) - 1))
            live.update(_screen(seen, settings, first, to.width, to.height), refresh=True)
            pressed = keys.within(end - time.monotonic())
            if b"q" in pressed:
                return
            for key, step in ((b"\x1b[A", -1), (b"k", -1), (b"\x1b[B", 1), (b"j", 1)):
                first = max(0, first + step * pressed.count(key))


def _screen(seen: _Seen, settings: Settings, first: int, width: int, height: int) -> Group:
    clock = datetime.now().astimezone().strftime("%H:%M:%S")
    # The addresses of a cluster may be longer than a line: they come last.
    head = f"{clock}  {len(seen.states)} in use, {seen.scanned:,} keys looked at  {settings.config.describe()}"
    shown = seen.states[first : first + max(1, height - HEAD - 1)]
    heading, *lines = table(COLUMNS, [row(state) for state in shown], OPTIONAL, width)
    left = len(seen.states) - first - len(shown)
    styled = [(head, "reverse"), (seen.problem(), "bold red"), (heading, "bold"), *((line, "") for line in lines)]
    styled.append((f"{left} more" if left > 0 else "", ""))
    return Group(*(Text(text, style=style, no_wrap=True) for text, style in styled if text))


class _Seen:
    """What is in use, as far as it was seen. It stays while the server is away."""

    def __init__(self, reading: Reader, pattern: str) -> None:
        self.states: list[State] = []
        self.scanned = 0
        self._reading = reading
        self._discovery = Discovery(reading.session, pattern, RATE)
        self._away_since: float | None = None
        self._error: RedisError | None = None

    def look(self, until: float) -> None:
        """Goes on with the walk until then, and reads all states again."""
        discovery, reading = self._discovery, self._reading
        if discovery.done:
            discovery.restart()
        try:
            while reading.run(discovery.step) and time.monotonic() < until:
                pass
            states, failed = reading.found(discovery.found, [*discovery.clients])
        except NoPermissionError:
            raise
        except RedisError as error:
            problems = [error]
        else:
            problems = [*discovery.failed.values(), *failed.values()]
            self.scanned = discovery.scanned
            # What isn't known now is shown as it was.
            gone = [state for state in self.states if state.key in failed]
            used = [*(state for state in states if state.in_use), *gone]
            self.states = sorted(used, key=lambda state: (state.since or DISTANT, state.name))
        self._error = problems[0] if problems else None
        self._away_since = (self._away_since or time.monotonic()) if problems else None

    def problem(self) -> str:
        if self._away_since is None:
            return ""
        return f"server away for {time.monotonic() - self._away_since:.1f} s: {printable(str(self._error))}"


class _Keys:
    """Keys that are pressed, without waiting for the end of a line. Ctrl-C stays what it is."""

    def __enter__(self) -> _Keys:
        # By default it ends the process at once, which leaves the terminal without a cursor and an echo.
        signal.signal(signal.SIGTERM, _end)
        self._terminal = sys.stdin.fileno()
        self._before = termios.tcgetattr(self._terminal)
        tty.setcbreak(self._terminal)
        return self

    def __exit__(self, *_: object) -> None:
        termios.tcsetattr(self._terminal, termios.TCSADRAIN, self._before)

    def within(self, seconds: float) -> bytes:
        ready, _, _ = select.select([self._terminal], [], [], max(0.0, seconds))
        return os.read(self._terminal, 1024) if ready else b""


def _end(number: int, frame: object) -> None:
    raise SystemExit(128 + number)
