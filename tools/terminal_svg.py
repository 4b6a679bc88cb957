"""Runs a command in a terminal of its own, and draws what it shows over time as an animated SVG.

    python tools/terminal_svg.py OUT.svg --title "make demo" -- python demo/demo.py

The picture moves by CSS alone, so it moves where scripts don't run, as in an `<img>`. Where it doesn't move (a reader
who asked for no motion, a renderer without CSS) it shows the last screen.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from xml.sax.saxutils import escape

import pyte

# The emulator has no attribute for faint text, and the programs here print no italics.
pyte.graphics.TEXT[2] = "+italics"

COLUMNS, ROWS = 120, 60
WIDTH, HEIGHT, SIZE = 7.8, 18, 13
"""Of one character, in pixels."""
STEP = 0.2
"""Seconds between two looks at the screen. A spinner moves more often than anybody needs to see."""
REST = 4.0
"""Seconds for which the last screen stays before it all begins again."""
COLOURS: Mapping[str, str] = {
    "default": "#d7dae0",
    "black": "#5c6370",
    "red": "#f07178",
    "green": "#98c379",
    "brown": "#e5c07b",
    "blue": "#61afef",
    "magenta": "#d693e8",
    "cyan": "#56c7d6",
    "white": "#ffffff",
}
FAINT = "#8a919e"
BACKGROUND, BAR = "#1e2228", "#2b3038"


@dataclass(frozen=True)
class Run:
    """Characters side by side that look the same."""

    column: int
    text: str
    colour: str
    bold: bool


Line = tuple[Run, ...]


@dataclass(frozen=True)
class Shown:
    """A line of the screen, and when it is there. `end` is None: until the end."""

    row: int
    line: Line
    begin: float
    end: float | None


def record(command: list[str]) -> tuple[list[Shown], float]:
    """Runs the command; returns what its terminal showed, and for how many seconds it ran."""
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    shown: list[Shown] = []
    now: dict[int, tuple[Line, float]] = {}
    begin = time.monotonic()
    look_at = begin
    for output in _outputs(command):
        stream.feed(output)
        if time.monotonic() >= look_at:
            _look(screen, now, shown, time.monotonic() - begin)
            look_at = time.monotonic() + STEP
    length = time.monotonic() - begin
    _look(screen, now, shown, length)
    shown += [Shown(row, line, since, None) for row, (line, since) in now.items() if line]
    return shown, length


def _outputs(command: list[str]) -> Iterator[bytes]:
    """What the command writes, and b"" after each pause. Raises `CalledProcessError` if it fails."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in {"COLORTERM", "NO_COLOR"}}
    process = subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, env={**environment, "TERM": "xterm-256color"}
    )
    os.close(slave)
    try:
        while True:
            ready, _, _ = select.select([master], [], [], STEP)
            try:
                output = os.read(master, 65536) if ready else b""
            except OSError:  # EIO: nobody has the other end any more
                break
            yield output
    finally:
        os.close(master)
        if process.poll() is None and sys.exc_info()[0] is not None:
            process.kill()
        status = process.wait()
    if status:
        raise subprocess.CalledProcessError(status, command)


def _look(screen: pyte.Screen, now: dict[int, tuple[Line, float]], shown: list[Shown], at: float) -> None:
    """Notes which lines have changed since the last look."""
    for row in range(ROWS):
        line = _line(screen.buffer[row])
        before, since = now.get(row, ((), 0.0))
        if line != before:
            if before:
                shown.append(Shown(row, before, since, at))
            now[row] = (line, at)


def _line(cells: Mapping[int, pyte.screens.Char]) -> Line:
    columns = sorted(column for column, cell in cells.items() if cell.data.strip())
    # Spaces between words of one look belong to their run; other spaces are left out.
    runs: list[Run] = []
    for column in columns:
        cell = cells[column]
        colour = FAINT if cell.italics else COLOURS.get(cell.fg, f"#{cell.fg}")
        last = runs[-1] if runs else None
        if last is not None and (last.colour, last.bold) == (colour, cell.bold):
            gap = column - last.column - len(last.text)
            runs[-1] = Run(last.column, last.text + " " * gap + cell.data, colour, cell.bold)
        else:
            runs.append(Run(column, cell.data, colour, cell.bold))
    return tuple(runs)


def draw(shown: list[Shown], length: float, title: str, text: str) -> str:
    """The picture. `text` is what it says to a reader who doesn't see it."""
    period = length + REST
    rows = max(each.row for each in shown if each.end is None) + 2
    width, height = COLUMNS * WIDTH + 32, rows * HEIGHT + 44
    times = {each: number for number, each in enumerate(sorted({(s.begin, s.end or period) for s in shown}))}
    rules, groups = [], []
    of_time: defaultdict[tuple[float, float], list[Shown]] = defaultdict(list)
    for each in shown:
        of_time[each.begin, each.end or period].append(each)
    for (begin, end), number in times.items():
        frames = f"0%{{opacity:0}}{100 * begin / period:.2f}%{{opacity:1}}"
        if end < period:
            frames += f"{100 * end / period:.2f}%{{opacity:0}}"
        rules.append(f"@keyframes k{number}{{{frames}}}.k{number}{{animation-name:k{number}}}")
        last = "" if end < period else " last"
        lines = "".join(map(_text, of_time[begin, end]))
        groups.append(f'<g class="t k{number}{last}">{lines}</g>')
    style = (
        f"text{{font:{SIZE}px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre}}"
        f".b{{font-weight:bold}}.t{{opacity:0;animation:{period:.2f}s step-end infinite}}.last{{opacity:1}}"
        "@media(prefers-reduced-motion:reduce){.t{animation:none}}"
    )
    dots = "".join(
        f'<circle cx="{20 + 18 * place}" cy="16" r="5.5" fill="{colour}"/>'
        for place, colour in enumerate(("#f07178", "#e5c07b", "#98c379"))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" '
        f'width="{width:.0f}" height="{height}" role="img" aria-labelledby="title desc">\n'
        f'<title id="title">{escape(title)}</title>\n<desc id="desc">{escape(text)}</desc>\n'
        f"<style>{style}{''.join(rules)}</style>\n"
        f'<rect width="100%" height="100%" rx="9" fill="{BACKGROUND}"/>\n'
        f'<path d="M0 32V9a9 9 0 0 1 9-9H{width - 9:.0f}a9 9 0 0 1 9 9V32z" fill="{BAR}"/>{dots}\n'
        f'<text x="50%" y="21" text-anchor="middle" fill="{FAINT}">{escape(title)}</text>\n'
        + "\n".join(groups)
        + "\n</svg>\n"
    )


def _text(shown: Shown) -> str:
    y = 44 + shown.row * HEIGHT + SIZE
    spans = []
    for run in shown.line:
        bold = ' class="b"' if run.bold else ""
        x, length = 16 + run.column * WIDTH, len(run.text) * WIDTH
        # A font with other widths is stretched: columns stay columns.
        spans.append(
            f'<tspan x="{x:.1f}" textLength="{length:.1f}" lengthAdjust="spacingAndGlyphs" fill="{run.colour}"{bold}>'
            f"{escape(run.text)}</tspan>"
        )
    return f'<text y="{y}">{"".join(spans)}</text>'


def last_screen(shown: list[Shown]) -> str:
    """The text of the last screen."""
    lines = sorted((each.row, each.line) for each in shown if each.end is None)
    return "\n".join(
        " ".join(run.text for run in line) for _, group in groupby(lines, key=lambda each: each[0]) for _, line in group
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("out", type=Path)
    parser.add_argument("--title", required=True)
    parser.add_argument("command", nargs="+")
    given = parser.parse_args()
    shown, length = record(given.command)
    given.out.write_text(draw(shown, length, given.title, last_screen(shown)), "utf-8")
    print(f"{given.out}: {length:.1f} s, {given.out.stat().st_size / 1024:.0f} KB")


if __name__ == "__main__":
    main()
