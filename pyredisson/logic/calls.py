"""When a command is sent again: the one retry policy, for every script and both worlds."""

from __future__ import annotations

from collections.abc import Callable

from redis.exceptions import NoScriptError, RedisError, TimeoutError

from pyredisson.runtime import Cut, Reply, Runtime
from pyredisson.scripts import as_eval

FIRST_DELAY = 1.0
LONGEST_DELAY = 2.0
"""Seconds; half of it is random, as Redisson's own delay (equal jitter, 1 s doubling to 2 s)."""

ELSEWHERE = frozenset({"READONLY", "MASTERDOWN", "LOADING"})
"""Replies of a server that isn't the master, or not yet: a new connection may reach another one."""
PASSING = frozenset({"BUSY", "CLUSTERDOWN", "NOREPLICAS", "TRYAGAIN"}) | ELSEWHERE
"""First words of error replies that pass by themselves; the command was not executed."""


async def call(
    runtime: Runtime,
    payload: bytes,
    *,
    attempts: int,
    deadline: float | None = None,
    idempotent: bool = True,
) -> Reply:
    """Sends a command by the policy of `repeat`."""
    try:
        # A connection that was closed while it lay idle would cost a command that can't be repeated.
        return await runtime.send(payload, fresh=not idempotent)
    except (Cut, RedisError) as problem:
        reply, _ = await repeat(runtime, payload, problem, attempts=attempts, deadline=deadline, idempotent=idempotent)
        return reply


async def repeat(
    runtime: Runtime,
    payload: bytes,
    problem: Cut | RedisError,
    *,
    attempts: int,
    deadline: float | None = None,
    idempotent: bool = True,
    if_done: Callable[[Reply], Reply] | None = None,
    on_doubt: Callable[[], None] | None = None,
) -> tuple[Reply, float]:
    """Sends a command again whose first try failed with `problem`; raises what Redis reported when it gives up.

    Gives the reply, and when the copy was sent that it answers: a lease counts from there.

    At most `attempts` more tries, none begun after `deadline` (on the runtime's clock); a server that doesn't
    answer in time is tried further only for a caller who named a deadline. One look at the
    outcome of a command that may have run is always taken, even when the caller's time is over: to say
    "not taken" of a lock that was taken would be a lie. A command that isn't `idempotent` is never sent
    again once it may have run. `on_doubt` is called as soon as an earlier copy may have run; `if_done` tells what a
    reply means then, if that copy went to the server that replies: another server knows nothing of it.
    """
    in_doubt = False
    servers: set[bytes | None] = set()
    passing = 0
    idle = False
    while True:
        delay = 0.0
        fresh = False
        if isinstance(problem, NoScriptError):
            payload = as_eval(payload, flags=runtime.scripts.flags)
        else:
            first_doubt = isinstance(problem, Cut) and problem.sent and not in_doubt
            if isinstance(problem, Cut) and problem.sent:
                servers.add(problem.server)
            if first_doubt:
                in_doubt = True
                if on_doubt is not None:
                    on_doubt()
                if not idempotent:
                    raise _reported(problem)
            elif not isinstance(problem, Cut) and not passes(problem):
                raise problem
            fresh = isinstance(problem, Cut) or _code(problem) in ELSEWHERE
            if isinstance(problem, Cut) and problem.idle and not idle:
                idle = True
            elif not first_doubt:
                # A server that is silent once more won't be asked for ever by someone who named no deadline.
                silent = isinstance(problem, Cut) and isinstance(problem.error, TimeoutError)
                if passing >= attempts or (silent and deadline is None):
                    raise _reported(problem)
                delay = _delay(passing, runtime.jitter())
                if deadline is not None and runtime.clock() + delay >= deadline:
                    raise _reported(problem)
                passing += 1
        if delay:
            await runtime.sleep(delay)
        sent_at = runtime.clock()
        try:
            reply, server = await runtime.ask(payload, fresh=fresh)
        except (Cut, RedisError) as again:
            problem = again
            continue
        if if_done is not None and servers and (server is None or not servers.isdisjoint((server, None))):
            reply = if_done(reply)
        return reply, sent_at


def passes(error: RedisError) -> bool:
    """Whether an error reply is one that passes by itself."""
    return _code(error) in PASSING


def _delay(tries: int, jitter: float) -> float:
    half: float = min(FIRST_DELAY * 2**tries, LONGEST_DELAY) / 2
    return half + half * jitter


def _code(error: RedisError) -> str:
    return str(error).partition(" ")[0]


def _reported(problem: Cut | RedisError) -> RedisError:
    return problem.error if isinstance(problem, Cut) else problem
