"""How states are shown: holders, times and numbers in words, as JSON, and in tables that fit the terminal."""

import json
import math
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

import click
from rich.cells import cell_len, set_cell_size

from pyredisson._diagnostics import printable, readable
from pyredisson.cli.findings import Finding
from pyredisson.holder import who as named
from pyredisson.inspection.model import Owner, State

NOTHING = "-"
SHORT_ID = 8
"""Characters of a client's id that are shown where there is little room."""
KINDS = {
    "lock": "lock",
    "fair": "fair lock",
    "fenced": "fenced lock",
    "spin": "spin lock",
    "read-write": "read-write lock",
    "semaphore": "semaphore",
    "permits": "semaphore whose permits have ids",
    "latch": "latch",
    "group": "multi-lock of Redisson in one hash",
}
GAP = 2
SHORTEST = 10
"""A column that may be cut keeps so much."""
WHOLE_NAME = 48
"""In a narrow terminal a name of that length stays whole, and other columns give way."""


def duration(seconds: float | None) -> str:
    if seconds is None:
        return NOTHING
    if math.isinf(seconds):
        return "no end"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def moment(time: datetime | None) -> str:
    """A time of day on this machine's clock, with the date if it is another day."""
    if time is None:
        return NOTHING
    local = time.astimezone()
    today = datetime.now().astimezone().date()
    return local.strftime("%H:%M:%S" if local.date() == today else "%Y-%m-%d %H:%M")


def who(owner: Owner) -> str:
    """Who an owner is, in few words: host and process, or else what is known, its ids."""
    holder = owner.holder
    if holder.host is not None:
        return printable(named(holder, owner.id))
    if holder.client_id is None:
        return NOTHING if holder.owner_id is None else str(holder.owner_id)
    program = {True: "Redisson", False: "pyredisson", None: "client"}[holder.foreign]
    return f"{program} {printable(holder.client_id)[:SHORT_ID]}:{holder.owner_id}"


def holders(state: State) -> str:
    """Who has an object, for one column."""
    if state.kind == "latch":
        return NOTHING if state.count is None else f"{state.count} to go" if state.count else "open"
    if state.kind == "semaphore":
        return NOTHING if state.free is None else f"{state.free} free"
    if state.kind == "permits":
        of_all = "" if state.permits is None else f" of {state.permits}"
        return f"{state.owner_count}{of_all} in use"
    # A writer may read as well: it is two owners, and the only holder.
    owners = [owner for owner in state.owners if owner.side == "write"] or state.owners
    if owners and (owners[0].side == "write" or state.owner_count == 1):
        owner = owners[0]
        return f"{who(owner)}, work done" if owner.kept else who(owner)
    if not state.owner_count:
        return NOTHING
    readers = state.kind == "read-write" and all(owner.side == "read" for owner in state.owners)
    return f"{state.owner_count} {'readers' if readers else 'holders'}"


def lasts(state: State) -> str:
    """The TTL, for one column. A semaphore or a latch without one is usual, a lock without one is not."""
    if state.time_to_live == math.inf:
        return NOTHING if state.kind in ("semaphore", "permits", "latch") else "no lease"
    return duration(state.time_to_live)


def waiters(state: State) -> str:
    """The waiters, for one column: of a queue how many, else who has waited for longest, or how many clients listen."""
    if state.waiter_count is not None:
        silent = sum(waiter.is_silent for waiter in state.waiters)
        living = str(state.waiter_count or NOTHING)
        return living if not silent else f"{silent} silent" if not state.waiter_count else f"{living}, {silent} silent"
    if state.waiters:
        more = len(state.waiters) - 1
        return f"{who(state.waiters[0].owner)}{f', and {more} more' if more else ''}"
    if not state.waiting_clients:
        return NOTHING
    return f"{state.waiting_clients} client{'s' if state.waiting_clients > 1 else ''}"


def as_json(value: State | Finding, **more: Any) -> str:
    """One line of JSON: durations in seconds (null: no end, or not known), moments as ISO 8601. `more`: more fields."""
    fields = asdict(value, dict_factory=_fields) | more
    # The name of an object says the same as text.
    fields.pop("key", None)
    return json.dumps(fields)


def _fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # The id of an owner is its raw name in another form.
    return {name: _plain(value) for name, value in pairs if name != "id"}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return readable(value)
    if isinstance(value, datetime):
        return value.isoformat()
    return None if isinstance(value, float) and not math.isfinite(value) else value


# --- Tables


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], optional: Sequence[str], *, color: bool) -> None:
    """A table that fits into the terminal. If it goes elsewhere, nothing is cut. `optional`: as for `table`."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    head, *lines = table(columns, rows, optional, width)
    click.echo(click.style(head, bold=True), color=None if color else False)
    click.echo("\n".join(lines))


def table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], optional: Sequence[str], width: int | None
) -> list[str]:
    """The lines of a table, its heading first. The first column has the names.

    What gives way if the table is wider than `width`: first the widest columns are cut, but not the first one and not
    the `optional` ones; then the latter are left out, in that order; then the names are cut.
    """
    widths = {at: max(cell_len(row[at]) for row in (columns, *rows)) for at in range(len(columns))}
    if width is not None:
        _fit(widths, [columns.index(column) for column in optional], width)
    lines = []
    for row in (columns, *rows):
        cells = [(cut if at == 0 else _cut_end)(row[at], width) for at, width in widths.items()]
        lines.append((" " * GAP).join(map(set_cell_size, cells, widths.values())).rstrip())
    return lines


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


def _cut_end(text: str, width: int) -> str:
    return text if cell_len(text) <= width else set_cell_size(text, width - 1).rstrip() + "…"


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
