"""`pyredisson ls`: what is held and what is waited for."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable

import click
from redis.exceptions import RedisError

from pyredisson.cli.exit_codes import INCOMPLETE, INTERRUPTED
from pyredisson.cli.options import Settings, common
from pyredisson.cli.output import explained, fail, readable, say_error
from pyredisson.cli.reading import Reader, reader
from pyredisson.cli.tables import print_table
from pyredisson.cli.words import KINDS, as_json, holders, lasts, moment, waiters
from pyredisson.inspection.discovery import Discovery
from pyredisson.inspection.model import State

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
holds that have lived for a second or two. WAITERS are the queue of a fair lock; of other objects, the clients that
listen for a release. A semaphore is listed, with its use, also while nobody uses it. The exit status is 1 if
something may be missing, as a server didn't answer."""
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
    if discovery.failed and not discovery.scanned:
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
    _say_what_is_missing(discovery, failed.values())


def _search(reading: Reader, pattern: str) -> tuple[Discovery, bool]:
    """The names on the servers, and whether the search was ended by Ctrl-C."""
    discovery = reading.inspector.discovery(pattern)
    progress = _Progress(discovery)
    try:
        while reading.run(discovery.step):
            progress.show()
    except KeyboardInterrupt:
        return discovery, True
    finally:
        progress.clear()
    return discovery, False


def row(state: State) -> tuple[str, ...]:
    """A line of the table."""
    name = readable(state.name)
    return name, state.kind, holders(state), moment(state.since), lasts(state), waiters(state)


def _say_what_is_missing(discovery: Discovery, failed: Iterable[RedisError]) -> None:
    if discovery.topology_changed:
        say_error("slots moved during the search, so something may be missing; run it again")
    problems = [f"{address} ({error})" for address, error in discovery.failed.items()]
    errors = {str(error) for error in failed}
    if problems or errors:
        fail(INCOMPLETE, f"incomplete: {'; '.join([*problems, *sorted(errors)])}")


class _Progress:
    """How far the walk is: one line of a terminal."""

    def __init__(self, discovery: Discovery) -> None:
        self._discovery = discovery
        self._begun = time.monotonic()
        self._shown = False

    def show(self) -> None:
        if time.monotonic() - self._begun < PROGRESS_AFTER or not sys.stderr.isatty():
            return
        discovery = self._discovery
        text = f"{discovery.scanned:,} of {discovery.total:,} keys, {len(discovery.found):,} names"
        click.echo(f"\r\x1b[K{text}", nl=False, err=True)
        self._shown = True

    def clear(self) -> None:
        if self._shown:
            click.echo("\r\x1b[K", nl=False, err=True)
