"""How a call sends its command, and when it sends the command again: one policy for all scripts and both backends.

An attempt and a retry are different things. An attempt asks for a lock or a permit; a call whose attempt was refused
makes another one later. A retry sends another copy of the same command, because the copy before it got no usable reply.
So one attempt may need several retries.

A redirect (MOVED or ASK) says that the command has not run, and which server to send it to. So it leaves no doubt. It
is followed at once and within any limits.

TRYAGAIN is an answer, too: the keys of the command are in two places, as their slot is being moved, and it has not run.
It is sent again within the limits of the call. When they are over, an acquire says "not acquired in time"; any other
call raises the `TryAgainError`, as it has nothing else to say.

A command is in doubt as soon as a copy of it may have run without a reply. Then it is sent again at once, one time,
even with no retries remaining or after each limit: it would be wrong to report a lock as not acquired that was
acquired. Every other retry follows after a pause.

Three places retry by rules of their own: a pool uses another connection if one was stale, `repairs` repeats commands in
the background, and the final release of a client has little time.
"""

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from redis.exceptions import InvalidResponse, NoScriptError, RedisError, TryAgainError

from pyredisson._protocol.moving_slots import without_list
from pyredisson._protocol.replication import NotConfirmed
from pyredisson._protocol.replies import (
    NOT_MASTER,
    NonLocalKeyError,
    NoReply,
    Redirected,
    Reply,
    code_of,
    is_transient_reply,
    public,
)
from pyredisson._protocol.scripts import words_of
from pyredisson.errors import NotReplicatedError
from pyredisson.logic.ports import Sender


def lock_granted(reply: Reply) -> bool:
    """Whether a lock was acquired. A list contains its fencing token."""
    return reply is None or reply.__class__ is list


def permits_granted(reply: Reply) -> bool:
    return reply.__class__ is int and reply > 0


def has_run(reply: Reply) -> bool:
    """Whether a call that changes a number of permits, or the count of a latch, has run."""
    return reply.__class__ is int


def expirable_permits_granted(reply: Reply) -> bool:
    return reply is None


def not_replicated(what: str, problem: NotConfirmed) -> NotReplicatedError:
    """The error for an acquire of `what`, which was undone."""
    return NotReplicatedError(f"{what} was acquired and released again: {problem}")


LIMITED_BY_RETRIES = -math.inf
"""In place of a deadline, for a call that doesn't wait for other owners: the number of retries limits the call.

It is before every reading of the clock, so a check whether the deadline has passed needs no special case. The deadline
None is the opposite: no limit.
"""

FIRST_DELAY = 0.25
LONGEST_DELAY = 2.0
GROWTH = 4.0
"""Seconds before a command is sent again, and their growth; half of each pause is random (equal jitter). The default
four retries take 2.6 to 5.2 s: enough for a server that restarts."""
MOST_REDIRECTS = 5
"""Redirects that are followed without a pause. Nodes that disagree about a slot may name each other for a while."""


async def send(
    runtime: Sender,
    payload: bytes,
    *,
    failure: NoReply | RedisError | None = None,
    retries: int,
    deadline: float | None = LIMITED_BY_RETRIES,
    expires: float = math.inf,
    idempotent: bool = True,
    idempotent_until: float = math.inf,
    reply_if_done: Callable[[Reply], Reply] | None = None,
    on_doubt: Callable[[], None] | None = None,
) -> tuple[Reply, float]:
    """Sends a command, and sends it again where that can help.

    Returns the reply, and when the copy was sent that the reply answers: a lease counts from that moment. Raises the
    latest error of Redis or the network when it gives up.

    - `failure`: how a first try has ended that the caller has made itself. None: it has made none.
    - `retries`: how many retries follow after a pause. It counts only with the deadline `LIMITED_BY_RETRIES`.
    - `deadline`: until when the command is sent again, on the clock of the runtime. None: until a server replies.
    - `expires`: from when on the result is of no use. It counts only with `LIMITED_BY_RETRIES`.
    - `idempotent`: whether the command may run twice. If not, it isn't sent again once it is in doubt.
    - `idempotent_until`: if the command becomes in doubt at this moment or later, it isn't sent again either.
    - `reply_if_done`: makes the true reply from a copy's reply, if an earlier copy may have run on the same server.
    - `on_doubt`: is called once, when the command becomes in doubt.
    """
    if failure is None:
        sent_at = runtime.clock()
        try:
            # A connection that was closed while it was idle would cost a command that can't be repeated.
            return await runtime.send(payload, new_connection=not idempotent), sent_at
        except (NoReply, RedisError) as problem:
            failure = problem
    until = idempotent_until if idempotent else -math.inf
    return await _Retry(runtime, payload, retries, deadline, expires, until, reply_if_done, on_doubt).run(failure)


async def send_once(runtime: Sender, payload: bytes) -> Reply:
    """Sends a command; again only where it has not run: another server serves it, or its script isn't known.

    While its slot is being moved, see `without_list`.
    """
    try:
        return await _send_once(runtime, payload)
    except TryAgainError:
        if (alone := without_list(payload)) is None:
            raise
        return await _send_once(runtime, alone)


async def _send_once(runtime: Sender, payload: bytes) -> Reply:
    try:
        return await runtime.send(payload)
    except NoScriptError:
        return await runtime.send(runtime.scripts.as_eval(payload))
    except Redirected as error:
        redirect = error
    reply, _ = await runtime.follow(redirect, payload)
    if isinstance(reply, NoScriptError):
        reply, _ = await runtime.follow(redirect, runtime.scripts.as_eval(payload))
    if isinstance(reply, RedisError):
        raise reply
    return reply


def may_have_run(error: BaseException, in_doubt: bool) -> bool:
    """Whether a command that ended with this error may have run, or may run late. What Redis refuses has not run."""
    return in_doubt or isinstance(error, InvalidResponse) or not isinstance(error, RedisError)


@dataclass(slots=True, eq=False)
class _Retry:
    """The further tries of one command whose first try has failed. The limits: see `send`."""

    runtime: Sender
    payload: bytes
    retries: int
    deadline: float | None
    expires: float
    idempotent_until: float
    reply_if_done: Callable[[Reply], Reply] | None
    on_doubt: Callable[[], None] | None
    pauses: int = 0
    redirects: int = 0
    """Redirects since the latest pause."""
    redirect: Redirected | None = None
    """What the next try follows. None: the next try goes to the server that serves the command as far as known."""
    continues: bool = False
    """Whether the next try goes to a server that has the data of another one, to which a copy in doubt was sent."""
    new_connection: bool = False
    shard: Hashable = None
    """The server that served the command at the latest try, as far as known."""
    text: tuple[Hashable, bytes] | None = None
    """The script whose text this call has sent, see `ScriptSet.texts_on_way`."""
    behind_text: bool = False
    """Whether the latest try was sent behind a text that another call had sent. It may have overtaken the text."""
    in_doubt: bool = False
    met_stale_connection: bool = False
    servers_in_doubt: set[bytes | None] = field(default_factory=set)
    """The identities of the servers to which copies in doubt were sent. None in the set: an unknown server."""

    async def run(self, problem: NoReply | RedisError) -> tuple[Reply, float]:
        """Sends the command until there is a reply, see `send`."""
        runtime = self.runtime
        self.shard = runtime.shard_of_command(self.payload)
        while True:
            await self._before_next_try(problem)
            sent_at = runtime.clock()
            try:
                reply, server = await self._try()
            except (NoReply, RedisError) as error:
                problem = error
                continue
            finally:
                runtime.scripts.texts_on_way.discard(self.text)
            if isinstance(reply, RedisError):
                problem = reply
                continue
            if self.pauses:
                runtime.on_command_served(self.payload)
            return self._corrected(reply, server), sent_at

    async def _try(self) -> tuple[Reply, bytes | None]:
        """One try. Returns the reply, which may be an error, and the identity of the server that gave it."""
        runtime, payload = self.runtime, self.payload
        if self.redirect is not None:
            return await runtime.follow(self.redirect, payload, new_connection=self.new_connection)
        self.shard = runtime.shard_of_command(payload)
        in_doubt = [server for server in self.servers_in_doubt if server is not None]
        self.continues = any(runtime.has_handed_over(server, payload) for server in in_doubt)
        return await runtime.send_identified(payload, new_connection=self.new_connection)

    async def _before_next_try(self, problem: NoReply | RedisError) -> None:
        """Finds out how to make the next try; pauses as long as `problem` asks for. Raises if there must be none."""
        self.new_connection = False
        behind_text, self.behind_text = self.behind_text, False
        if isinstance(problem, NoScriptError):
            # After a redirect the same server is asked again: another one may know the script, but doesn't serve it.
            text = self.runtime.shard_of_command(self.payload), words_of(self.payload)[1]
            on_way = self.runtime.scripts.texts_on_way
            # Thousands of calls may get this error at once. Each text would be sent as often.
            self.behind_text = text in on_way and not behind_text
            if not self.behind_text:
                self.payload = self.runtime.scripts.as_eval(self.payload)
                on_way.add(text)
                self.text = text
            return
        if self.redirect is not None:
            # MOVED has changed who serves the command. That server has failed by now, so a pause must not end because
            # it isn't the one that the first try went to: two nodes may name each other for a while.
            self.shard = self.runtime.shard_of_command(self.payload)
        self.redirect = None
        if isinstance(problem, Redirected):
            self.redirects += 1
            if self.redirects <= MOST_REDIRECTS:
                self.redirect = problem
                self.continues = self.runtime.continues(problem) and self._is_in_doubt(problem.server_id)
                return
            await self._pause(problem)
        elif isinstance(problem, NoReply):
            self.new_connection = True
            if not self._note_no_reply(problem):
                await self._pause(problem.error)
        elif isinstance(problem, NonLocalKeyError):
            # The next copy is told to try again, or where the slot moves, until all keys are in one place.
            if not self._note_no_reply(NoReply(problem, may_have_run=True)):
                await self._pause(problem)
        elif isinstance(problem, TryAgainError) and (alone := without_list(self.payload)) is not None:
            self.payload = alone
        elif is_transient_reply(problem):
            self.new_connection = code_of(problem) in NOT_MASTER
            await self._pause(problem)
        else:
            raise problem

    def _note_no_reply(self, problem: NoReply) -> bool:
        """Notes what may have become of the command; whether to send it again at once."""
        if problem.may_have_run:
            self.servers_in_doubt.add(problem.server_id)
            if not self.in_doubt:
                self.in_doubt = True
                if self.on_doubt is not None:
                    self.on_doubt()
                if self.runtime.clock() >= self.idempotent_until:
                    raise self.runtime.located(self.payload, public(problem.error))
                return True
        if problem.stale and not self.met_stale_connection:
            self.met_stale_connection = True
            return True
        return False

    async def _pause(self, error: RedisError) -> None:
        seconds = self._seconds_to_pause()
        if seconds is None:
            raise self.runtime.located(self.payload, public(error))
        self.pauses += 1
        self.redirects = 0
        self.runtime.on_command_failed(self.payload, error)
        await self.runtime.pause(seconds, self.payload, self.shard)

    def _seconds_to_pause(self) -> float | None:
        """How many seconds to wait before the next try; None: the limits allow none."""
        seconds = delay(self.pauses, self.runtime.jitter())
        if self.deadline is None:
            return seconds
        if self.deadline == LIMITED_BY_RETRIES:
            remaining = self.expires - self.runtime.clock()
            return min(seconds, remaining) if self.pauses < self.retries and remaining > 0 else None
        remaining = self.deadline - self.runtime.clock()
        # The last try is made at the deadline itself.
        return min(seconds, remaining) if remaining > 0 else None

    def _corrected(self, reply: Reply, server: bytes | None) -> Reply:
        """What the reply means if an earlier copy may have run; another server knows nothing of an earlier copy."""
        if self.reply_if_done is None or not self.servers_in_doubt:
            return reply
        # Of several servers in doubt the first one had what the command is about, which the others may not have.
        in_doubt = self.servers_in_doubt
        same = server is None or None in in_doubt or in_doubt == {server}
        return self.reply_if_done(reply) if self.continues or same else reply

    def _is_in_doubt(self, server: bytes | None) -> bool:
        """Whether a copy in doubt may have been sent to that server."""
        return server is None or None in self.servers_in_doubt or server in self.servers_in_doubt


def longest(retries: int, timeout: float) -> float:
    """For how many seconds a call tries at most that is `LIMITED_BY_RETRIES`, if each try takes `timeout` seconds."""
    # The first try, the retries, one more at once after a lost reply, and the pauses.
    return (retries + 2) * timeout + retries * LONGEST_DELAY


def delay(tries: int, jitter: float) -> float:
    """Seconds to pause after so many tries."""
    # Of calls that try without end the power would be too large.
    half: float = min(FIRST_DELAY * GROWTH ** min(tries, 10), LONGEST_DELAY) / 2
    return half + half * jitter
