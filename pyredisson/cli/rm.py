"""`pyredisson rm`: removes what a lock that nobody uses has left on the server."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import click

from pyredisson.cli.exit_codes import INCOMPLETE
from pyredisson.cli.naming import complete, read_state
from pyredisson.cli.options import Settings, common
from pyredisson.cli.output import readable, say_error
from pyredisson.cli.reading import Reader, reader
from pyredisson.cli.words import KINDS, holders
from pyredisson.inspection.model import State

LOCKS = ("lock", "fair", "fenced", "spin")
SILENT_WAITERS = 10.0
"""Seconds within which the server passes over waiters that are silent."""


@click.command(
    epilog="""\b
Examples:
  pyredisson rm cron:nightly
  pyredisson ls --all --kind fenced --json 'order:*' | jq -r 'select(.held | not).name' | xargs pyredisson rm

A fenced lock, and 'pyredisson run', leave a counter of fencing tokens for ever. Without it tokens grow all the same:
the next one begins at the server's time in microseconds, which is above every former one. The exit status is 1 if a
lock is in use, or if nothing was left of it."""
)
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete)
@common
def rm(settings: Settings, names: Sequence[str]) -> int:
    """Remove what is left of locks that nobody uses: counters of fencing tokens, queues whose waiters are dead.

    A lock that is held or waited for stays as it is.
    """
    with reader(settings.config) as reading:
        removed = [_remove(reading, name) for name in names]
    return 0 if all(removed) else INCOMPLETE


def _remove(reading: Reader, name: str) -> bool:
    """Whether something was removed; says what."""
    state = read_state(reading, name)
    what = f"lock {readable(state.name)!r}"
    if state.kind != "unknown" and state.kind not in LOCKS:
        say_error(f"{readable(state.name)!r} is a {KINDS[state.kind]}, which leaves nothing")
        return False
    if state.held or state.waiter_count:
        say_error(f"{what} is {f'held by {holders(state)}' if state.held else 'waited for'}: it stays as it is")
        return False
    left = [each.purpose for each in state.companions if math.isinf(each.time_to_live)] if state.kind in LOCKS else []
    if not left:
        say_error(f"nothing is left of {what}")
        return False
    if not _delete(reading, state, os.fsencode(name)):
        say_error(f"{what} was acquired meanwhile: it stays as it is")
        return False
    click.echo(f"{what}: removed {', '.join(left)}.")
    return True


def _delete(reading: Reader, state: State, name: bytes) -> bool:
    """False: somebody else has the lock by now. It is deleted by its holder only, which is this client."""
    client = reading.client
    fair = any(companion.key.startswith((b"redisson_lock_queue", b"pyredisson_fair")) for companion in state.companions)
    for lock in [*([client.get_fair_lock(name)] if fair else []), client.get_fenced_lock(name)]:
        if not lock.try_lock(SILENT_WAITERS if fair else 0):
            return False
        lock.delete()
    return True
