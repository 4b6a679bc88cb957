"""`pyredisson inspect`: all that the servers know of one object."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import get_args

import click

from pyredisson.cli.naming import name_argument, read_state
from pyredisson.cli.options import Settings, common
from pyredisson.cli.output import readable
from pyredisson.cli.reading import reader
from pyredisson.cli.tables import print_table
from pyredisson.cli.words import KINDS, NOTHING, as_json, duration, lasts, moment, who
from pyredisson.inspection.model import Kind, State


@click.command(
    epilog="""\b
Examples:
  pyredisson inspect cron:nightly
  pyredisson inspect orders:42 --json | jq .waiters
  pyredisson inspect stock --as semaphore"""
)
@name_argument
@click.option("--as", "kind", metavar="KIND", type=click.Choice([*KINDS]), help=f"What it is: {', '.join(KINDS)}.")
@click.option("--json", "as_line", is_flag=True, help="One JSON object.")
@common
def inspect(settings: Settings, name: str, kind: Kind | None, as_line: bool) -> None:
    """Show all of one object: holders, queue in order, permits, token, its keys.

    The kind is found out from what the server has. If it can't be, or is wrong, say it with --as.
    """
    assert kind is None or kind in get_args(Kind)
    with reader(settings.config) as reading:
        state = read_state(reading, name, kind=kind)
    if as_line:
        click.echo(as_json(state))
        return
    for line in head(state):
        click.echo(line)
    for columns, rows in _tables(state):
        click.echo()
        print_table(columns, rows, (), color=settings.color)


def head(state: State) -> list[str]:
    """What it is, in some lines."""
    name = readable(state.name)
    if state.kind == "unknown":
        return [f"{name}: {state.why}"]
    guess = "" if state.certain else "a guess: "
    lines = [f"{name}: {KINDS[state.kind]} ({guess}{state.why})", f"server: {state.server}"]
    facts = {
        "time to live": None if state.time_to_live is None else lasts(state).replace(NOTHING, "no end"),
        "token": state.token,
        "permits": state.permits,
        "free": state.free,
        "count": state.count,
    }
    lines += [f"{what}: {value}" for what, value in facts.items() if value is not None]
    if not state.held:
        lines.append("held by: nobody")
    if state.waiting_clients:
        listen = "client listens" if state.waiting_clients == 1 else "clients listen"
        lines.append(f"waiting: {state.waiting_clients} {listen} for a release")
    more = state.owner_count - len(state.owners)
    if more > 0:
        lines.append(f"not listed: {more} of {state.owner_count} holders")
    return lines


def _tables(state: State) -> list[tuple[Sequence[str], list[Sequence[str]]]]:
    """Owners, waiters and further keys, as far as there are any."""
    found: list[tuple[Sequence[str], list[Sequence[str]]]] = []
    if state.kind == "unknown":
        # Keys that look like its companions are somebody else's.
        return found
    if state.owners and state.kind == "permits":
        permits = [(o.raw, who(o), moment(o.holder.since), duration(o.holder.time_to_live)) for o in state.owners]
        found.append((("PERMIT", "HOLDER", "SINCE", "TTL"), [*permits]))
    elif state.owners:
        owners = [
            (
                who(owner),
                str(owner.levels),
                owner.side or NOTHING,
                moment(owner.holder.since),
                duration(owner.holder.time_to_live),
                f"{readable(owner.raw)}{' (work done, only kept)' if owner.kept else ''}",
            )
            for owner in state.owners
        ]
        found.append((("HOLDER", "LEVELS", "SIDE", "SINCE", "TTL", "OWNER"), [*owners]))
    if state.waiters:
        alive = {True: "alive", False: "silent", None: "of Redisson"}
        waiters = [
            (who(each.owner), str(each.place), alive[each.alive], duration(each.place_lasts), readable(each.owner.raw))
            for each in state.waiters
        ]
        found.append((("WAITER", "PLACE", "STATE", "PLACE LASTS", "OWNER"), [*waiters]))
    if state.companions:
        keys = [
            (readable(_text(each.key)), each.type, _endless(each.time_to_live), each.purpose)
            for each in state.companions
        ]
        found.append((("KEY", "TYPE", "TTL", "PURPOSE"), [*keys]))
    return found


def _endless(seconds: float) -> str:
    return "no end" if math.isinf(seconds) else duration(seconds)


def _text(key: bytes) -> str:
    return key.decode("utf-8", "backslashreplace")
