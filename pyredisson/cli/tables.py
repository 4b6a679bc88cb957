"""Tables: in columns, and cut to fit if they go to a terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

GAP = 2
SHORTEST_NAME = 12
ENDLESS = 100_000
"""The width of what is no terminal: nothing is cut."""


def console(*, color: bool) -> Console:
    """Standard output. Without a terminal nothing is coloured or cut."""
    terminal = sys.stdout.isatty()
    return Console(
        no_color=not color,
        highlight=False,
        markup=False,
        emoji=False,
        width=None if terminal else ENDLESS,
        soft_wrap=False,
    )


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, color: bool) -> None:
    """A table whose first column is cut in the middle where the terminal is too narrow."""
    to = console(color=color)
    with to.capture() as captured:
        to.print(table(columns, rows, to.width))
    # Without the spaces that fill the last column.
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Table:
    """As `print_table`, for a given width."""
    widths = [max(cell_len(row[at]) for row in (columns, *rows)) for at in range(len(columns))]
    first = max(SHORTEST_NAME, width - sum(widths[1:]) - GAP * (len(columns) - 1))
    made = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold", show_edge=False)
    for column in columns:
        made.add_column(column, no_wrap=True, overflow="ellipsis")
    for row in rows:
        made.add_row(Text(cut(row[0], first)), *(Text(cell) for cell in row[1:]))
    return made


def cut(name: str, width: int) -> str:
    """A name in so many columns of a terminal. What is left out is in the middle: both ends tell names apart."""
    if cell_len(name) <= width:
        return name
    left = width // 2
    right = width - left - 1
    end = name[-right:]
    while cell_len(end) > right:
        end = end[1:]
    return set_cell_size(name, left).rstrip() + "…" + end
