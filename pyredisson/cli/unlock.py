"""The commands that change what is on the servers: `unlock`, `rm` and `permits`."""

import math
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click
from redis.exceptions import ConnectionError, RedisError, TimeoutError

from pyredisson._api.arguments import MAX_PERMITS
from pyredisson._diagnostics import printable
from pyredisson.cli import INCOMPLETE, UNAVAILABLE
from pyredisson.cli.options import Settings, common, fail, say_error
from pyredisson.cli.reading import Reader, complete, name_argument, read_state, reader
from pyredisson.cli.tables import KINDS, holders, moment, who
from pyredisson.inspection.model import Owner, State
from pyredisson.inspection.unlocking import correct_free, release_shown

LOCKS = ("lock", "fair", "fenced", "spin")
SILENT_WAITERS = 10.0
"""Seconds within which the server passes over waiters that are silent."""


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
        kind = f"permit {permit} of" if permit else KINDS[state.kind]
        what = f"{kind} {printable(state.name)!r}"
        for owner in owners:
            click.echo(f"{what} is held by {_holder(owner)}.")
        if not yes:
            only_kept = all(owner.kept for owner in owners)
            warning = "" if only_kept else " The holder finds out at its next renewal, and may still be working."
            _ask(f"Release it?{warning}")
        _release(reading, state, owners, what)


def _chosen(state: State, all_readers: bool, permit: str | None) -> Sequence[Owner]:
    name = printable(state.name)
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
    # A writer may read as well, and is one holder. All others with several owners have readers only.
    sides = {owner.side for owner in state.owners}
    if len(state.owners) > 1 and "write" not in sides and not (all_readers and "read" in sides):
        raise click.UsageError(f"lock {name!r} has {state.owner_count} readers: --all-readers releases them")
    return state.owners


def _holder(owner: Owner) -> str:
    since = "" if owner.holder.since is None else f" since {moment(owner.holder.since)}"
    kept = "; its work is done, and it is only kept" if owner.kept else ""
    return f"{who(owner)}{since}{kept}"


def _ask(question: str) -> None:
    """Returns if the answer is yes."""
    if not sys.stdin.isatty():
        raise click.UsageError("nobody can be asked here: give --yes")
    if not click.confirm(question, err=True):
        fail(INCOMPLETE, "nothing was done")


@contextmanager
def _in_doubt(text: str) -> Iterator[None]:
    """Around a command that is sent once: without a reply it isn't known whether it has run, as the text says."""
    try:
        yield
    except RedisError as error:
        if type(error) not in (ConnectionError, TimeoutError):
            raise
        fail(UNAVAILABLE, text)


def _release(reading: Reader, state: State, owners: Sequence[Owner], what: str) -> None:
    released = 0
    for owner in owners:
        with _in_doubt(f"no reply to the release: 'pyredisson inspect' says whether {what} was released"):
            released += reading.run(release_shown, reading.session, state, owner)
    if released < len(owners):
        left = "nothing was done" if not released else f"{released} of {len(owners)} were released"
        fail(INCOMPLETE, f"the holder of {what} has changed meanwhile: {left}")
    if len(state.owners) < state.owner_count and state.kind != "permits":
        fail(INCOMPLETE, f"{released} of {state.owner_count} holders of {what} were released; run it again")
    click.echo(f"{what} is released.")


# --- rm


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
    what = f"lock {printable(state.name)!r}"
    left = [each.purpose for each in state.companions if math.isinf(each.time_to_live)] if state.kind in LOCKS else []
    if state.kind != "unknown" and state.kind not in LOCKS:
        say_error(f"{printable(state.name)!r} is a {KINDS[state.kind]}, which leaves nothing")
    elif state.held or state.waiter_count:
        say_error(f"{what} is {f'held by {holders(state)}' if state.held else 'waited for'}: it stays as it is")
    elif not left:
        say_error(f"nothing is left of {what}")
    elif not _delete(reading, state, os.fsencode(name)):
        say_error(f"{what} was acquired meanwhile: it stays as it is")
    else:
        click.echo(f"{what}: removed {', '.join(left)}.")
        return True
    return False


def _delete(reading: Reader, state: State, name: bytes) -> bool:
    """False: somebody else has the lock by now. It is deleted by its holder only, which is this client."""
    client = reading.client
    fair = any(companion.key.startswith((b"redisson_lock_queue", b"pyredisson_fair")) for companion in state.companions)
    for lock in [*([client.get_fair_lock(name)] if fair else []), client.get_fenced_lock(name)]:
        if not lock.try_lock(SILENT_WAITERS if fair else 0):
            return False
        lock.delete()
    return True


# --- permits


@click.command(
    epilog="""\b
Examples:
  pyredisson permits seats
  pyredisson permits seats --free 20

For semaphores whose permits have no ids: the server doesn't know who has them, and a killed process's permits stay in
use. The number is set only if it is still the one that was shown; else nothing is done, and the exit status is 1."""
)
@name_argument
@click.option("--free", "wanted", metavar="N", type=click.IntRange(0, MAX_PERMITS), help="Sets how many are free.")
@click.option("--yes", is_flag=True, help="Doesn't ask.")
@common
def permits(settings: Settings, name: str, wanted: int | None, yes: bool) -> None:
    """Show how many permits of a semaphore are free, and set that number.

    Those who have a permit at that time still release it: then there is one more than was set.
    """
    with reader(settings.config) as reading:
        state, doubt = _semaphore(reading, name)
        what = f"semaphore {printable(state.name)!r}"
        click.echo(f"{what} has {_count(state.free)}{f' (a guess: {doubt})' if doubt else ''}.")
        if wanted is None or wanted == state.free:
            return
        if yes and doubt:
            raise click.UsageError(f"{printable(state.name)!r} may be something else: --yes is refused ({doubt})")
        if not yes:
            _ask(f"Set it to {_count(wanted)}? Those who have a permit now will add it when they release it.")
        with _in_doubt(f"no reply: 'pyredisson permits' says whether the number of {what} was set"):
            done = reading.run(correct_free, reading.session, state, wanted)
        if not done:
            fail(INCOMPLETE, f"the number of free permits of {what} has changed meanwhile: nothing was done")
        click.echo(f"{what} has {_count(wanted)}.")


def _semaphore(reading: Reader, name: str) -> tuple[State, str]:
    """The state of the semaphore, and why it may be something else; empty: it is used as one."""
    state = read_state(reading, name)
    shown = printable(state.name)
    if state.kind == "unknown" and not state.certain:
        # A number that nobody has used in the last minutes.
        return read_state(reading, name, kind="semaphore"), state.why
    if state.kind == "permits":
        text = "has permits with ids, which end with their leases: 'inspect' lists them, 'unlock --permit' releases one"
        raise click.UsageError(f"{shown!r} {text}")
    if state.kind == "unknown":
        fail(INCOMPLETE, f"{shown!r} is no semaphore: {state.why}")
    if state.kind != "semaphore":
        raise click.UsageError(f"{shown!r} is a {KINDS[state.kind]}, not a semaphore")
    return state, ""


def _count(permits: int | None) -> str:
    return f"{permits} free permit{'' if permits == 1 else 's'}"
