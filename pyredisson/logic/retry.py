"""When a command is sent again: the one retry policy, for every script and both worlds."""

from __future__ import annotations

import math
from collections.abc import Callable

from redis.exceptions import NoScriptError, RedisError

from pyredisson._protocol.error_codes import NOT_MASTER, code_of, is_transient_reply
from pyredisson._protocol.no_reply import NoReply, Reply
from pyredisson._protocol.scripts import as_eval
from pyredisson.logic.ports import Runtime

NO_WAIT = -math.inf
"""The deadline of a call that has no time to wait for something, but still for the server."""

FIRST_DELAY = 0.25
LONGEST_DELAY = 2.0
GROWTH = 4.0
"""Seconds before a command is sent again, and their growth; half of each pause is random (equal jitter). A server that
is back at once is found at once, and four more tries, the usual number, bridge 2.6 to 5.2 s, so a restart."""


async def call(
    runtime: Runtime,
    payload: bytes,
    *,
    attempts: int,
    deadline: float | None = NO_WAIT,
    idempotent: bool = True,
) -> Reply:
    """Sends a command by the policy of `repeat`."""
    try:
        # A connection that was closed while it lay idle would cost a command that can't be repeated.
        return await runtime.send(payload, new_connection=not idempotent)
    except (NoReply, RedisError) as problem:
        reply, _ = await repeat(runtime, payload, problem, attempts=attempts, deadline=deadline, idempotent=idempotent)
        return reply


async def repeat(
    runtime: Runtime,
    payload: bytes,
    problem: NoReply | RedisError,
    *,
    attempts: int,
    deadline: float | None = NO_WAIT,
    expires: float = math.inf,
    idempotent: bool = True,
    if_done: Callable[[Reply], Reply] | None = None,
    on_doubt: Callable[[], None] | None = None,
) -> tuple[Reply, float]:
    """Sends a command again whose first try failed with `problem`; raises what Redis reported when it gives up.

    Gives the reply, and when the copy was sent that it answers: a lease counts from there.

    The caller's limits: with `deadline` None it is tried until the server serves it; with one (on the runtime's
    clock), until then; with `NO_WAIT` at most `attempts` more times, and no more once the clock has reached `expires`:
    nothing is to be won by then. One look at the
    outcome of a command that may have run is always taken, even when the caller's time is over: to say
    "not taken" of a lock that was taken would be a lie. A command that isn't `idempotent` is never sent
    again once it may have run. `on_doubt` is called as soon as an earlier copy may have run; `if_done` tells what a
    reply means then, if that copy went to the server that replies: another server knows nothing of it.
    """
    in_doubt = False
    servers: set[bytes | None] = set()
    tries = 0
    idle = False
    while True:
        pause: float | None = None
        new_connection = False
        if isinstance(problem, NoScriptError):
            payload = as_eval(payload, flags=runtime.scripts.flags)
        else:
            first_doubt = isinstance(problem, NoReply) and problem.may_have_run and not in_doubt
            if isinstance(problem, NoReply) and problem.may_have_run:
                servers.add(problem.server_id)
            if first_doubt:
                in_doubt = True
                if on_doubt is not None:
                    on_doubt()
                if not idempotent:
                    raise _reported(problem)
            elif not isinstance(problem, NoReply) and not is_transient_reply(problem):
                raise problem
            new_connection = isinstance(problem, NoReply) or code_of(problem) in NOT_MASTER
            if isinstance(problem, NoReply) and problem.stale and not idle:
                idle = True
            elif not first_doubt:
                pause = _pause(runtime, tries, attempts, deadline, expires)
                if pause is None:
                    raise _reported(problem)
                tries += 1
                runtime.on_command_failed(_reported(problem))
        if pause is not None:
            await runtime.sleep(pause)
        sent_at = runtime.clock()
        try:
            reply, server = await runtime.send_identified(payload, new_connection=new_connection)
        except (NoReply, RedisError) as again:
            problem = again
            continue
        if tries:
            runtime.on_command_served()
        if if_done is not None and servers and (server is None or not servers.isdisjoint((server, None))):
            reply = if_done(reply)
        return reply, sent_at


def delay(tries: int, jitter: float) -> float:
    """Seconds to pause after so many tries."""
    # Of calls that try without end the power would be too large.
    half: float = min(FIRST_DELAY * GROWTH ** min(tries, 10), LONGEST_DELAY) / 2
    return half + half * jitter


def _pause(runtime: Runtime, tries: int, attempts: int, deadline: float | None, expires: float) -> float | None:
    """How long to pause before the next try; None: the caller's limits allow none."""
    seconds = delay(tries, runtime.jitter())
    if deadline is None:
        return seconds
    if deadline == NO_WAIT:
        left = expires - runtime.clock()
        return min(seconds, left) if tries < attempts and left > 0 else None
    left = deadline - runtime.clock()
    # The last one at the very end.
    return min(seconds, left) if left > 0 else None


def _reported(problem: NoReply | RedisError) -> RedisError:
    return problem.error if isinstance(problem, NoReply) else problem
