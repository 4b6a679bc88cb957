"""`pyredisson unlock`: releases a hold in its holder's place."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click
from redis.exceptions import ConnectionError, RedisError, TimeoutError

from pyredisson.cli.exit_codes import INCOMPLETE, UNAVAILABLE
from pyredisson.cli.naming import name_argument, read_state
from pyredisson.cli.options import Settings, common
from pyredisson.cli.output import fail, readable
from pyredisson.cli.reading import Reader, reader
from pyredisson.cli.words import KINDS, moment, who
from pyredisson.inspection.model import Owner, State
from pyredisson.inspection.unlocking import release_shown


@click.command(
    epilog="""\b
Examples:
  pyredisson unlock cron:nightly
  pyredisson unlock cron:nightly --yes
  pyredisson unlock report --all-readers
  pyredisson unlock db --permit 00112233445566778899aabbccddeeff

Only the hold that was shown is released: if the lock has another holder by then, nothing is done. The waiters are
woken. The exit status is 1 if nothing was held, or if nothing was done."""
)
@name_argument
@click.option("--yes", is_flag=True, help="Doesn't ask.")
@click.option("--all-readers", is_flag=True, help="All readers of a read-write lock.")
@click.option("--permit", metavar="ID", help="This permit of a semaphore whose permits have ids.")
@common
def unlock(settings: Settings, name: str, yes: bool, all_readers: bool, permit: str | None) -> None:
    """Release a lock in the place of its holder, who may still be working.

    Says whose it is, and asks. The holder finds out at the next renewal that it has lost the lock.
    """
    with reader(settings.config) as reading:
        state = read_state(reading, name)
        owners = _chosen(state, all_readers, permit)
        what = f"permit {permit} of {readable(state.name)!r}" if permit else _named(state)
        for owner in owners:
            click.echo(f"{what} is held by {_holder(owner)}.")
        if not yes:
            if not sys.stdin.isatty():
                raise click.UsageError("nobody can be asked here: give --yes")
            if not click.confirm(_question(owners), err=True):
                fail(INCOMPLETE, "nothing was done")
        _release(reading, state, owners, what)


def _chosen(state: State, all_readers: bool, permit: str | None) -> Sequence[Owner]:
    """The owners whose holds are to be released."""
    name = readable(state.name)
    if state.kind == "permits":
        if permit is None:
            raise click.UsageError(f"{name!r} has permits with ids: say which one with --permit; 'inspect' lists them")
        owners = [owner for owner in state.owners if owner.raw == permit.lower()]
        if not owners:
            fail(INCOMPLETE, f"{name!r} has no permit {permit} in use")
        return owners
    if permit is not None:
        raise click.UsageError(f"{name!r} has no permits with ids")
    if state.kind in ("semaphore", "latch", "group"):
        raise click.UsageError(f"{name!r} is a {KINDS[state.kind]}, of which no single hold can be released")
    if not state.owners:
        fail(INCOMPLETE, f"lock {name!r} is free: {state.why if state.kind == 'unknown' else 'nobody holds it'}")
    readers = [owner for owner in state.owners if owner.side == "read"]
    if len(state.owners) > 1 and not (all_readers and readers):
        raise click.UsageError(f"lock {name!r} has {state.owner_count} readers: --all-readers releases them")
    return readers if all_readers and readers else state.owners


def _named(state: State) -> str:
    return f"{KINDS[state.kind]} {readable(state.name)!r}"


def _holder(owner: Owner) -> str:
    since = "" if owner.holder.since is None else f" since {moment(owner.holder.since)}"
    kept = "; its work is done, and it is only kept" if owner.kept else ""
    return f"{who(owner)}{since}{kept}"


def _question(owners: Sequence[Owner]) -> str:
    if all(owner.kept for owner in owners):
        return "Release it?"
    return "Release it? The holder finds out at its next renewal, and may still be working."


def _release(reading: Reader, state: State, owners: Sequence[Owner], what: str) -> None:
    released = 0
    for owner in owners:
        try:
            released += reading.run(lambda owner=owner: release_shown(reading.session, state, owner))  # type: ignore[misc]
        except RedisError as error:
            if type(error) not in (ConnectionError, TimeoutError):
                raise
            fail(UNAVAILABLE, f"no reply to the release: 'pyredisson inspect' says whether {what} was released")
    if released < len(owners):
        left = "nothing was done" if not released else f"{released} of {len(owners)} were released"
        fail(INCOMPLETE, f"the holder of {what} has changed meanwhile: {left}")
    if len(state.owners) < state.owner_count and state.kind != "permits":
        fail(INCOMPLETE, f"{released} of {state.owner_count} holders of {what} were released; run it again")
    click.echo(f"{what} is released.")
