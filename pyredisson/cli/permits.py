"""`pyredisson permits`: how many permits of a semaphore are free, and a correction of that number."""

from __future__ import annotations

import sys

import click
from redis.exceptions import ConnectionError, RedisError, TimeoutError

from pyredisson._api.arguments import MAX_PERMITS
from pyredisson.cli.exit_codes import INCOMPLETE, UNAVAILABLE
from pyredisson.cli.naming import name_argument, read_state
from pyredisson.cli.options import Settings, common
from pyredisson.cli.output import fail, readable
from pyredisson.cli.reading import Reader, reader
from pyredisson.cli.words import KINDS
from pyredisson.inspection.model import State
from pyredisson.inspection.unlocking import correct_free


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
        what = f"semaphore {readable(state.name)!r}"
        click.echo(f"{what} has {_count(state.free)}{f' (a guess: {doubt})' if doubt else ''}.")
        if wanted is None or wanted == state.free:
            return
        if yes and doubt:
            raise click.UsageError(f"{readable(state.name)!r} may be something else: --yes is refused ({doubt})")
        if not yes:
            if not sys.stdin.isatty():
                raise click.UsageError("nobody can be asked here: give --yes")
            question = f"Set it to {_count(wanted)}? Those who have a permit now will add it when they release it."
            if not click.confirm(question, err=True):
                fail(INCOMPLETE, "nothing was done")
        _correct(reading, state, wanted, what)
        click.echo(f"{what} has {_count(wanted)}.")


def _semaphore(reading: Reader, name: str) -> tuple[State, str]:
    """The state of the semaphore, and why it may be something else; empty: it is used as one."""
    state = read_state(reading, name)
    shown = readable(state.name)
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


def _correct(reading: Reader, state: State, wanted: int, what: str) -> None:
    try:
        done = reading.run(lambda: correct_free(reading.session, state, wanted))
    except RedisError as error:
        if type(error) not in (ConnectionError, TimeoutError):
            raise
        fail(UNAVAILABLE, f"no reply: 'pyredisson permits' says whether the number of {what} was set")
    if not done:
        fail(INCOMPLETE, f"the number of free permits of {what} has changed meanwhile: nothing was done")


def _count(permits: int | None) -> str:
    return f"{permits} free permit{'' if permits == 1 else 's'}"
