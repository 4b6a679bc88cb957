"""`pyredisson run`: a command under a lock."""

import contextlib
import functools
import math
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, TypeVar

import click
from redis.exceptions import RedisError, ResponseError

from pyredisson._api.arguments import key_of
from pyredisson._api.holds import limited
from pyredisson._api.sync.client import Client
from pyredisson._api.sync.locks import FairLock, FencedLock, Lock
from pyredisson._backends.runtime import clock
from pyredisson._core import Run, command
from pyredisson._diagnostics import printable
from pyredisson._protocol.replies import NoReply
from pyredisson._settings.config import Config
from pyredisson._settings.durations import lease_ms
from pyredisson.cli import LOST, NOT_ACQUIRED, UNAVAILABLE, USAGE
from pyredisson.cli.options import Seconds, Settings, common, fail, say_error
from pyredisson.cli.supervision import Child, Ended, NotStarted, Signals, Stopped, has_terminal, supervise
from pyredisson.errors import LockLostError, LockTimeoutError, NotReplicatedError, PermitNotHeldError
from pyredisson.logic import retry
from pyredisson.logic.holds import AT_MOST, LEASE_ENDED, Hold
from pyredisson.logic.locks.keeping import KeepingCommands, KeepingFairLock, KeepingFencedLock

EXCLUSIVE = (("wait", "no_wait"), ("fair", "semaphore"), ("lease", "at_most"), ("lease", "ttl"), ("quiet", "verbose"))
Block = TypeVar("Block", bound=AbstractContextManager[Any])


class Wanted(NamedTuple):
    """What the options say."""

    name: str
    wait: float | None
    """Seconds; None: without limit."""
    lease: float | None
    at_least: float
    fair: bool
    semaphore: int | None
    grace: float
    conflict: int
    quiet: bool
    verbose: bool = False
    at_most: float | None = None
    ttl: float | None = None

    @property
    def says_that_it_waits(self) -> bool:
        """Whether somebody is to be told for whom it waits: a person at a terminal, or whoever has asked for it."""
        return self.wait != 0 and not self.quiet and (self.verbose or sys.stderr.isatty())

    def say(self, text: str) -> None:
        if not self.quiet:
            say_error(text)


class Held(NamedTuple):
    """What the command runs under."""

    what: str
    """For messages."""
    environment: dict[str, str]
    hold: Hold | None
    """What is renewed. None: a permit with a fixed lease."""
    ends: float
    """The reading of the clock at which a permit with a fixed lease ends."""


@click.command(
    epilog="""\b
Examples:
  pyredisson run cron:nightly --no-wait --at-least 60 -- /usr/local/bin/nightly
  pyredisson run deploy --wait 600 -- make deploy
  pyredisson run encode --semaphore 4 -- ffmpeg -i in.mov out.mp4

\b
Exit status: what COMMAND returns, or 128 + n if it died of signal n.
  75  the lock was not acquired (another one with -E)
  74  the lock was lost, and COMMAND was stopped
  69  the server can't be reached
  77  the password is wrong, or the user has no right
  126, 127  COMMAND can't be executed, or isn't there

\b
In the environment of COMMAND: PYREDISSON_LOCK (NAME) and, without --fair and
--semaphore, PYREDISSON_FENCING_TOKEN, which grows with every run. Its counter
stays on the server, one key for each NAME, until 'pyredisson rm NAME'.
"""
)
@click.argument("name")
@click.argument("arguments", metavar="-- COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--wait", metavar="SECONDS", type=Seconds(min=0), help="Wait at most SECONDS.  [default: for ever]")
@click.option("--no-wait", is_flag=True, help="Don't wait: the same as --wait 0.")
@click.option("--lease", metavar="SECONDS", type=Seconds(min=0.001), help="Stop COMMAND after that time.")
@click.option(
    "--at-least", metavar="SECONDS", type=Seconds(min=0), default=0.0, help="Keep the lock for at least SECONDS."
)
@click.option(
    "--at-most", metavar="SECONDS", type=Seconds(min=0.001), help="Renew the lock for SECONDS, then stop COMMAND."
)
@click.option(
    "--ttl", metavar="SECONDS", type=Seconds(min=0.001), help="The lock's lease if 'run' is killed.  [default: 30]"
)
@click.option("--fair", is_flag=True, help="First come, first served.")
@click.option("--semaphore", metavar="N", type=click.IntRange(1, 2**31 - 1), help="Up to N commands at a time.")
@click.option(
    "--grace",
    metavar="SECONDS",
    type=Seconds(min=0),
    default=10.0,
    help="From TERM to KILL when the lock is lost.  [default: 10]",
)
@click.option(
    "-E",
    "--conflict-exit-code",
    "conflict",
    metavar="N",
    type=click.IntRange(0, 255),
    default=NOT_ACQUIRED,
    help=f"The exit status if the lock wasn't acquired.  [default: {NOT_ACQUIRED}]",
)
@click.option("-q", "--quiet", is_flag=True, help="Say nothing about the lock on stderr.")
@click.option("-v", "--verbose", is_flag=True, help="Say for whom it waits, also if stderr isn't a terminal.")
@common
def run(settings: Settings, arguments: Sequence[str], no_wait: bool, **options: Any) -> int:
    """Run COMMAND while holding the lock NAME, which is renewed for as long as COMMAND runs.

    When the lock is lost, COMMAND is stopped. TERM, INT, HUP, QUIT, USR1 and USR2 are forwarded to it, and the lock is
    released after COMMAND has ended.
    """
    wanted = Wanted(**options)
    given = {
        name for name, value in (options | {"no_wait": no_wait}).items() if value is not None and value is not False
    }
    for one, other in EXCLUSIVE:
        if {one, other} <= given:
            raise click.UsageError(f"--{one} and --{other} exclude each other".replace("_", "-"))
    if "semaphore" in given and given & {"at_most", "ttl"}:
        raise click.UsageError("--at-most and --ttl are for locks: use --lease with --semaphore")
    if no_wait:
        wanted = wanted._replace(wait=0.0)
    try:
        for seconds in (wanted.lease, wanted.at_least, wanted.at_most, wanted.ttl):
            if seconds:
                lease_ms(seconds)
        key_of(wanted.name, settings.config.name_mapper, settings.config.topology == "cluster")
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    # Before the client, which has threads.
    child = Child(arguments, own_group=not has_terminal())
    try:
        with Signals() as signals:
            try:
                return _under_lock(wanted, settings.config, child, signals)
            finally:
                signals.raising = False
                # Here, where SIGCHLD isn't ignored: else the system would forget the status of the process.
                child.cancel()
    except Stopped as stopped:
        return 128 + stopped.number
    except NotStarted as failure:
        wanted.say(f"{printable(arguments[0])}: {failure.strerror}")
        return failure.status


def _under_lock(wanted: Wanted, config: Config, child: Child, signals: Signals) -> int:
    """Returns the exit status. Raises `Stopped` and `NotStarted`."""
    ended: Ended | None = None
    with Client(config) as client:
        # A server that is away is an error at once. From now on an outage is survived.
        exists = command(b"EXISTS", key_of(wanted.name, config.name_mapper))
        try:
            _ = Run(retry.send_once, client._session.runtime, exists).result
        except NoReply as problem:
            raise problem.error from None
        try:
            with _held(client, wanted) as held:
                signals.raising = False
                ended = _executed(wanted, held, child, signals)
        except LockTimeoutError as error:
            waited = f"; waited {wanted.wait:g} s" if wanted.wait else ""
            wanted.say(f"{_refusal(error)}{waited}")
            return wanted.conflict
        except NotReplicatedError as error:
            wanted.say(str(error))
            return UNAVAILABLE
        except (LockLostError, PermitNotHeldError) as error:
            # Perhaps nobody has noticed it before the release.
            if ended is None or not ended.lost:
                wanted.say(str(error))
            return LOST
        except RedisError as error:
            if ended is not None:
                wanted.say(f"the lock {printable(wanted.name)!r} can't be released, and ends with its lease: {error}")
            elif isinstance(error, ResponseError) and str(error).startswith("WRONGTYPE"):
                used, needs = ("a lock", "a semaphore") if wanted.semaphore else ("something else", "a lock")
                fail(USAGE, f"{wanted.name!r} is used as {used}; {needs} needs a name of its own")
            else:
                raise
    assert ended is not None
    return LOST if ended.lost else ended.status


def _executed(wanted: Wanted, held: Held, child: Child, signals: Signals) -> Ended:
    """Runs the command until its end. Raises `NotStarted`."""
    child.start({**os.environ, **held.environment})
    try:
        return supervise(child, signals, held.hold, held.ends, wanted.grace, functools.partial(_lost, wanted, held))
    except BaseException:
        # The lock is about to be released, and the command must not go on beside its next holder.
        child.send(signal.SIGKILL)
        child.wait()
        raise


def _lost(wanted: Wanted, held: Held) -> None:
    # A hold is lost a moment before it knows why.
    reason = (held.hold.reason if held.hold is not None else "") or LEASE_ENDED
    ended = f"{held.what} was lost ({reason})"
    if wanted.lease is not None and reason == LEASE_ENDED:
        ended = "the time of --lease is over"
    elif reason == AT_MOST:
        ended = "the time of --at-most is over"
    wanted.say(f"{ended}; stopping the command")


def _refusal(error: LockTimeoutError) -> str:
    """Who has the lock. Without the id of the owner that wanted it: a person has nothing to look it up in."""
    text = str(error)
    return text.rpartition("; owner ")[0] or text.partition(" was acquired in ")[0] + " is free"


def _enter(stack: contextlib.ExitStack, wanted: Wanted, block: Callable[[float | None], Block]) -> tuple[Block, Any]:
    """Enters the block for a wait of so many seconds (None: without limit). Returns the block, and what it gives."""
    wait = wanted.wait
    if wanted.says_that_it_waits:
        began = clock()
        made = block(0.0)
        try:
            return made, stack.enter_context(made)
        except LockTimeoutError as error:
            wanted.say(f"{_refusal(error)}; waiting")
        wait = None if wait is None else max(0.0, wait - (clock() - began))
    made = block(wait)
    return made, stack.enter_context(made)


@contextlib.contextmanager
def _held(client: Client, wanted: Wanted) -> Iterator[Held]:
    if wanted.semaphore is not None:
        with _permit(client, wanted, wanted.semaphore) as held:
            yield held
        return
    kind: type[Lock]
    kind, keeping = (FairLock, KeepingFairLock) if wanted.fair else (FencedLock, KeepingFencedLock)
    logic = functools.partial(keeping, at_least=lease_ms(wanted.at_least) if wanted.at_least else 0)
    lock = limited(client._lock(kind, logic, wanted.name, watchdog_timeout=wanted.ttl), wanted.at_most)
    with contextlib.ExitStack() as stack:
        _enter(stack, wanted, lambda wait: lock.hold(wait, wanted.lease))
        environment = {"PYREDISSON_LOCK": wanted.name}
        if isinstance(lock, FencedLock):
            environment["PYREDISSON_FENCING_TOKEN"] = environment["PYREDISSON_TOKEN"] = str(lock.token)
        try:
            yield Held(f"lock {wanted.name!r}", environment, lock._logic.hold_of(lock._owner().id), math.inf)
        except NotStarted:
            # The work that the lock was kept for has not begun. Another machine may be able to do the job.
            if isinstance(lock._logic.commands, KeepingCommands):
                lock._logic.commands.keep_until = 0.0
            raise


@contextlib.contextmanager
def _permit(client: Client, wanted: Wanted, permits: int) -> Iterator[Held]:
    semaphore = client.get_permit_expirable_semaphore(wanted.name)
    if not semaphore.try_set_permits(permits) and (present := semaphore.get_permits()) != permits:
        wanted.say(f"semaphore {wanted.name!r} has {present} permits, not {permits}: {present} count")
    with contextlib.ExitStack() as stack:
        renew = wanted.lease is None
        block, permit = _enter(stack, wanted, lambda wait: semaphore.permit(wait, wanted.lease, renew=renew))
        begun = clock()
        holds = semaphore._logic._holds_of([bytes.fromhex(permit)])
        environment = {"PYREDISSON_LOCK": wanted.name, "PYREDISSON_PERMIT": permit}
        # The server says when a fixed lease ends: this process may have been stopped since the permit was granted.
        ends = math.inf if wanted.lease is None else begun + semaphore.get_lease_time(permit)
        yield Held(f"a permit of semaphore {wanted.name!r}", environment, holds[0] if holds else None, ends)
        rest = begun + wanted.at_least - clock()
        if wanted.at_least and rest >= 0.001:
            # The block releases nothing then, also if it isn't known whether the server has the new lease.
            ids, block._ids = block._ids, []
            if not semaphore.update_lease_time(permit, rest):
                # It was lost: the block finds that out.
                block._ids = ids
