"""Tables: in columns, and cut to fit if they go to a terminal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence

import click
from rich.cells import cell_len, set_cell_size

GAP = 2
SHORTEST = 10
"""A column that may be cut keeps so much."""
WHOLE_NAME = 48
"""In a narrow terminal a name of that length stays whole, and other columns give way."""


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], optional: Sequence[str], *, color: bool) -> None:
    """A table that fits into the terminal. If it goes elsewhere, nothing is cut. `optional`: as for `table`."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    head, *lines = table(columns, rows, optional, width)
    click.echo(click.style(head, bold=True), color=None if color else False)
    if lines:
        click.echo("\n".join(lines))


def table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], optional: Sequence[str], width: int | None
) -> list[str]:
    """The lines of a table, its heading first. The first column has the names.

    What gives way if the table is wider than `width`: first the widest columns are cut, but not the first one and not
    the `optional` ones; then the latter are left out, in that order; then the names are cut.
    """
    widths = {at: max(_length(row[at]) for row in (columns, *rows)) for at in range(len(columns))}
    if width is not None:
        _fit(widths, [columns.index(column) for column in optional], width)
    last = max(widths)
    return [
        (" " * GAP).join(
            _padded(cut(row[at], widths[at]) if at == 0 else _cut_end(row[at], widths[at]), widths[at], at == last)
            for at in widths
        )
        for row in (columns, *rows)
    ]


def _fit(widths: dict[int, int], optional: list[int], width: int) -> None:
    """Changes the widths of the columns so that they fit, and removes the columns that are left out."""
    names = widths[0]
    widths[0] = min(names, max(WHOLE_NAME, width // 2))
    can_be_cut = [at for at in widths if at and at not in optional]
    wanted = {at: widths[at] for at in can_be_cut}
    for at in can_be_cut:
        widths[at] = min(wanted[at], SHORTEST)
    for at in optional:
        if _total(widths) > width:
            del widths[at]
    widths[0] = max(min(SHORTEST, names), widths[0] - max(0, _total(widths) - width))
    # What is left goes to the names, and then to the others, a bit to each.
    widths[0] += min(names - widths[0], max(0, width - _total(widths)))
    while _total(widths) < width and (cut_ones := [at for at in can_be_cut if widths[at] < wanted[at]]):
        widths[min(cut_ones, key=widths.__getitem__)] += 1


def _total(widths: dict[int, int]) -> int:
    return sum(widths.values()) + GAP * (len(widths) - 1)


def _padded(text: str, width: int, is_last: bool) -> str:
    return text if is_last else text + " " * (width - _length(text))


def _length(text: str) -> int:
    """In columns of a terminal."""
    return len(text) if text.isascii() else cell_len(text)


def _cut_end(text: str, width: int) -> str:
    return text if _length(text) <= width else set_cell_size(text, width - 1).rstrip() + "…"


def cut(name: str, width: int) -> str:
    """A name in so many columns of a terminal. What is left out is in the middle: both ends tell names apart."""
    if _length(name) <= width:
        return name
    left = width // 2
    right = width - left - 1
    end = name[-right:]
    while _length(end) > right:
        end = end[1:]
    return set_cell_size(name, left).rstrip() + "…" + end
