"""`pyredisson ls` and `inspect`: what is held and what is waited for, and all that the servers know of one object."""

import sys
import time
from collections.abc import Iterator, Sequence

import click

from pyredisson._diagnostics import printable, readable
from pyredisson.cli import INCOMPLETE, INTERRUPTED
from pyredisson.cli.options import Settings, common, explained, fail, say_error
from pyredisson.cli.reading import Reader, name_argument, read_state, reader
from pyredisson.cli.tables import KINDS, NOTHING, as_json, duration, holders, lasts, moment, print_table, waiters, who
from pyredisson.inspection.discovery import Discovery
from pyredisson.inspection.model import Kind, State

COLUMNS = ("NAME", "KIND", "HOLDER", "SINCE", "TTL", "WAITERS")
OPTIONAL = ("SINCE", "KIND", "WAITERS", "TTL")
"""In a narrow terminal these are left out, in this order, before a name is cut."""
PROGRESS_AFTER = 1.0
"""Seconds after which a terminal shows how far the walk is."""


@click.command(
    epilog="""\b
Examples:
  pyredisson ls
  pyredisson ls 'cron:*'
  pyredisson ls --json 'cron:*' | jq -r '.owners[].holder.host'

It looks at all keys in small steps, so that a server is busy with it for half of the time at most. SINCE is known of
holds that have lived for a second or two. WAITERS are the queue of a fair lock; of other objects, who has waited for
longest, or how many clients listen for a release. A semaphore is listed, with its use, also while nobody uses it. The
exit status is 1 if something may be missing, as a server didn't answer."""
)
@click.argument("pattern", default="*")
@click.option("--json", "as_lines", is_flag=True, help="One JSON object a line.")
@click.option("--all", "everything", is_flag=True, help="Also what is free, as far as the server knows its name.")
@click.option("--kind", metavar="KIND", type=click.Choice(KINDS), help=f"Only one of: {', '.join(KINDS)}.")
@common
def ls(settings: Settings, pattern: str, as_lines: bool, everything: bool, kind: str | None) -> None:
    """List what is held: name, kind, holder, since when, time to live, waiters.

    PATTERN is a glob such as 'cron:*', in quotes, as the shell would look for files.
    """
    with reader(settings.config) as reading:
        discovery, interrupted = _search(reading, pattern)
        states, failed = reading.found(discovery.found, [*discovery.clients])
    if discovery.unanswered:
        fail(*explained(next(iter(discovery.failed.values())), settings.config))
    chosen = [state for state in states if (everything or state.in_use) and kind in (None, state.kind)]
    chosen.sort(key=lambda state: state.name)
    if as_lines:
        for state in chosen:
            click.echo(as_json(state))
    elif chosen:
        print_table(COLUMNS, [row(state) for state in chosen], OPTIONAL, color=settings.color)
    else:
        like = "nothing" if pattern == "*" else f"nothing like {pattern!r}"
        say_error(f"{like} is held at {settings.config.describe()}")
    if interrupted:
        fail(INTERRUPTED, "interrupted: there may be more")
    if discovery.topology_changed:
        say_error("slots moved during the search, so something may be missing; run it again")
    problems = [f"{address} ({error})" for address, error in discovery.failed.items()]
    problems += sorted({str(error) for error in failed.values()})
    if problems:
        fail(INCOMPLETE, f"incomplete: {'; '.join(problems)}")


def _search(reading: Reader, pattern: str) -> tuple[Discovery, bool]:
    """The names on the servers, and whether the search was ended by Ctrl-C."""
    discovery = Discovery(reading.session, pattern)
    begun, shown = time.monotonic(), False
    try:
        while reading.run(discovery.step):
            if time.monotonic() - begun >= PROGRESS_AFTER and sys.stderr.isatty():
                text = f"{discovery.scanned:,} of {discovery.total:,} keys, {len(discovery.found):,} names"
                click.echo(f"\r\x1b[K{text}", nl=False, err=True)
                shown = True
    except KeyboardInterrupt:
        return discovery, True
    finally:
        if shown:
            click.echo("\r\x1b[K", nl=False, err=True)
    return discovery, False


def row(state: State) -> tuple[str, ...]:
    return printable(state.name), state.kind, holders(state), moment(state.since), lasts(state), waiters(state)


# --- inspect


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
    """Show all of one object: holders, waiters, deadlocks, permits, token, its keys.

    The kind is found out from what the server has. If it can't be, or is wrong, say it with --as.
    """
    with reader(settings.config) as reading:
        state = read_state(reading, name, kind=kind)
        deadlocks = reading.deadlocks([state.key]) if state.waiters else []
    if as_line:
        click.echo(as_json(state, deadlocks=deadlocks))
        return
    click.echo("\n".join([*head(state), *map(printable, deadlocks)]))
    for columns, rows in _tables(state):
        click.echo()
        print_table(columns, rows, (), color=settings.color)


def head(state: State) -> list[str]:
    name = printable(state.name)
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


def _tables(state: State) -> Iterator[tuple[Sequence[str], Sequence[Sequence[str]]]]:
    if state.kind == "unknown":
        # Keys that look like its companions are somebody else's.
        return
    if state.owners and state.kind == "permits":
        permits = [(o.raw, who(o), moment(o.holder.since), duration(o.holder.time_to_live)) for o in state.owners]
        yield ("PERMIT", "HOLDER", "SINCE", "TTL"), permits
    elif state.owners:
        owners = [
            (
                who(owner),
                str(owner.levels),
                owner.side or NOTHING,
                moment(owner.holder.since),
                duration(owner.holder.time_to_live),
                f"{printable(owner.raw)}{' (work done, only kept)' if owner.kept else ''}",
            )
            for owner in state.owners
        ]
        yield ("HOLDER", "LEVELS", "SIDE", "SINCE", "TTL", "OWNER"), owners
    if state.waiters:
        alive = {True: "alive", False: "silent", None: "of Redisson"}
        waiters = [
            (
                who(each.owner),
                moment(each.owner.holder.since),
                each.owner.side or (NOTHING if each.place is None else str(each.place)),
                alive[each.alive],
                duration(each.place_lasts),
                printable(each.owner.raw),
            )
            for each in state.waiters
        ]
        yield ("WAITER", "SINCE", "PLACE" if state.kind == "fair" else "SIDE", "STATE", "PLACE LASTS", "OWNER"), waiters
    if state.companions:
        keys = [
            (printable(readable(each.key)), each.type, duration(each.time_to_live), each.purpose)
            for each in state.companions
        ]
        yield ("KEY", "TYPE", "TTL", "PURPOSE"), keys
