"""How a call sends its command, and when it sends the command again: one policy for all scripts and both backends.

Three places retry by rules of their own: a pool uses another connection if one was stale, `repairs` repeats commands in
the background, and the final release of a client has little time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from redis.exceptions import InvalidResponse, NoScriptError, RedisError

from pyredisson._protocol.error_codes import NOT_MASTER, code_of, is_transient_reply
from pyredisson._protocol.no_reply import NoReply, Reply
from pyredisson._protocol.scripts import as_eval
from pyredisson.logic.ports import Runtime

NO_WAIT = -math.inf
"""In place of a deadline, for a call that doesn't wait for other owners: the number of attempts limits the call.

The deadline None is the opposite: no limit.
"""

FIRST_DELAY = 0.25
LONGEST_DELAY = 2.0
GROWTH = 4.0
"""Seconds before a command is sent again, and their growth; half of each pause is random (equal jitter). The default
four retries take 2.6 to 5.2 s: enough for a server that restarts."""


async def send(
    runtime: Runtime,
    payload: bytes,
    *,
    attempts: int,
    deadline: float | None = NO_WAIT,
    expires: float = math.inf,
    idempotent: bool = True,
    idempotent_until: float = math.inf,
    reply_if_done: Callable[[Reply], Reply] | None = None,
    on_doubt: Callable[[], None] | None = None,
) -> tuple[Reply, float]:
    """Sends a command, and sends it again where that can help.

    Returns the reply, and when the copy was sent that the reply answers: a lease counts from that moment. Raises what
    Redis reported when it gives up.

    The limits of the caller: with `deadline` None the command is sent until the server serves it; with a deadline (on
    the clock of the runtime), until then; with `NO_WAIT` at most `attempts` more times, each after a pause, and not
    after `expires`, when the result would be of no use any more.

    A command is in doubt as soon as a copy of it may have run without a reply. Then `on_doubt` is called, and the
    command is sent once more at once, even with no attempts left or after the deadline: it would be wrong to report a
    lock as not acquired that was acquired. A command that isn't `idempotent`, or is so only until a moment that has
    passed, is not sent again once it is in doubt. `reply_if_done` corrects the reply of a copy in case an earlier copy
    has run on the same server.
    """
    sent_at = runtime.clock()
    try:
        # A connection that was closed while it was idle would cost a command that can't be repeated.
        return await runtime.send(payload, new_connection=not idempotent), sent_at
    except (NoReply, RedisError) as problem:
        failure = problem
    return await send_again(
        runtime,
        payload,
        failure,
        attempts=attempts,
        deadline=deadline,
        expires=expires,
        idempotent_until=idempotent_until if idempotent else -math.inf,
        reply_if_done=reply_if_done,
        on_doubt=on_doubt,
    )


async def send_again(
    runtime: Runtime,
    payload: bytes,
    failure: NoReply | RedisError,
    *,
    attempts: int,
    deadline: float | None = NO_WAIT,
    expires: float = math.inf,
    idempotent_until: float = math.inf,
    reply_if_done: Callable[[Reply], Reply] | None = None,
    on_doubt: Callable[[], None] | None = None,
) -> tuple[Reply, float]:
    """What `send` does after a first try that ended with `failure`."""
    limits = _Limits(attempts, deadline, expires, idempotent_until)
    return await _Retry(runtime, payload, limits, reply_if_done, on_doubt).run(failure)


async def send_once(runtime: Runtime, payload: bytes) -> Reply:
    """Sends a command; again only if the server doesn't know its script."""
    try:
        return await runtime.send(payload)
    except NoScriptError:
        return await runtime.send(as_eval(payload, flags=runtime.scripts.flags))


def may_have_run(error: BaseException, in_doubt: bool) -> bool:
    """Whether a command that ended with this error may have run, or may run late. What Redis refuses has not run."""
    return in_doubt or isinstance(error, InvalidResponse) or not isinstance(error, RedisError)


class _Limits(NamedTuple):
    """Until when a command is sent again, see `send`."""

    attempts: int
    deadline: float | None
    expires: float
    idempotent_until: float

    def pause(self, runtime: Runtime, tries: int) -> float | None:
        """How many seconds to wait before the next try, after so many; None: the limits allow none."""
        seconds = delay(tries, runtime.jitter())
        if self.deadline is None:
            return seconds
        if self.deadline == NO_WAIT:
            remaining = self.expires - runtime.clock()
            return min(seconds, remaining) if tries < self.attempts and remaining > 0 else None
        remaining = self.deadline - runtime.clock()
        # The last try is made at the deadline itself.
        return min(seconds, remaining) if remaining > 0 else None


class _Retry:
    """The further tries of one command whose first try has failed."""

    def __init__(
        self,
        runtime: Runtime,
        payload: bytes,
        limits: _Limits,
        reply_if_done: Callable[[Reply], Reply] | None,
        on_doubt: Callable[[], None] | None,
    ) -> None:
        self._runtime = runtime
        self._payload = payload
        self._limits = limits
        self._reply_if_done = reply_if_done
        self._on_doubt = on_doubt
        self._pauses = 0
        self._in_doubt = False
        self._met_stale_connection = False
        self._servers: set[bytes | None] = set()
        """The identities of the servers to which copies in doubt went; None: it isn't known which server."""

    async def run(self, problem: NoReply | RedisError) -> tuple[Reply, float]:
        """Sends the command until there is a reply, see `send`."""
        runtime = self._runtime
        while True:
            new_connection = await self._before_next_try(problem)
            sent_at = runtime.clock()
            try:
                reply, server = await runtime.send_identified(self._payload, new_connection=new_connection)
            except (NoReply, RedisError) as error:
                problem = error
                continue
            if self._pauses:
                runtime.on_command_served()
            return self._corrected(reply, server), sent_at

    async def _before_next_try(self, problem: NoReply | RedisError) -> bool:
        """Pauses as long as `problem` asks for; raises if there must be no other try.

        Returns whether the next try needs a new connection.
        """
        if isinstance(problem, NoScriptError):
            self._payload = as_eval(self._payload, flags=self._runtime.scripts.flags)
            return False
        at_once = False
        if isinstance(problem, NoReply):
            at_once = self._note_no_reply(problem)
        elif not is_transient_reply(problem):
            raise problem
        if not at_once:
            await self._pause(problem.error if isinstance(problem, NoReply) else problem)
        return isinstance(problem, NoReply) or code_of(problem) in NOT_MASTER

    def _note_no_reply(self, problem: NoReply) -> bool:
        """Notes what may have become of the command; whether to send it again at once."""
        if problem.may_have_run:
            self._servers.add(problem.server_id)
            if not self._in_doubt:
                self._in_doubt = True
                if self._on_doubt is not None:
                    self._on_doubt()
                if self._runtime.clock() >= self._limits.idempotent_until:
                    raise problem.error
                return True
        if problem.stale and not self._met_stale_connection:
            self._met_stale_connection = True
            return True
        return False

    async def _pause(self, error: RedisError) -> None:
        seconds = self._limits.pause(self._runtime, self._pauses)
        if seconds is None:
            raise error
        self._pauses += 1
        self._runtime.on_command_failed(error)
        await self._runtime.sleep(seconds)

    def _corrected(self, reply: Reply, server: bytes | None) -> Reply:
        """What the reply means if an earlier copy may have run; another server knows nothing of an earlier copy."""
        if self._reply_if_done is None or not self._servers:
            return reply
        if server is None or None in self._servers or server in self._servers:
            return self._reply_if_done(reply)
        return reply


def delay(tries: int, jitter: float) -> float:
    """Seconds to pause after so many tries."""
    # Of calls that try without end the power would be too large.
    half: float = min(FIRST_DELAY * GROWTH ** min(tries, 10), LONGEST_DELAY) / 2
    return half + half * jitter
