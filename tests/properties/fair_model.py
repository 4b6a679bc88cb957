"""What fairness means: which waiter may take the lock, and what every step must leave on the server."""

from __future__ import annotations

from dataclasses import dataclass, field

from . import fair_java as java
from .fair_servers import CHANNEL, CLIENTS, LOCK, WAITERS, FairServer, State

SIGN = 1500
"""ms for which a look or a heartbeat is a sign of life."""
OFFER = 2000
"""ms for which a free lock is kept for a head of ours."""
FOREIGN = b"java"
"""How the names of foreign owners begin."""


class Unfair(AssertionError):
    """A step that it should not have come to."""


@dataclass
class Moment:
    """When something happened: at the earliest and at the latest, ms."""

    first: int
    last: int


@dataclass
class Place:
    """A name in the queue."""

    foreign: bool
    looked: Moment
    gone: bool = False
    """Its owner gave up."""


@dataclass
class QueueModel:
    """The queue as it should be. It follows the server step by step, and says which steps are right."""

    server: FairServer
    state: State
    places: dict[bytes, Place] = field(default_factory=dict)
    """In the order of arrival."""
    heartbeats: dict[bytes, Moment] = field(default_factory=dict)
    """The last of each client."""
    free_since: Moment | None = None
    """Since when the lock is free and the head of the queue is the one that it is now."""
    offered: Moment | None = None
    """Since when the head knows of that from a script of ours."""
    valid_until: int = 0
    """The last millisecond of the holder's lease."""
    forgotten_at: int | None = None
    """When the server forgets which waiters are ours, ms."""
    torn: bool = False
    """A key was lost: who is in the queue is for the server to say."""

    def is_free(self) -> bool | None:
        """Whether nobody holds the lock in the present step; None: its time may be over just now."""
        if not self.state.holders or self.server.before > self.valid_until:
            return True
        return False if self.server.after <= self.valid_until else None

    def keeps(self, name: bytes) -> bool | None:
        """Whether the turn of that name is to be waited for. None: it is on the edge."""
        before, after = self.server.before, self.server.after
        place = self.places[name]
        score = self.state.scores.get(name)
        if score is None or place.gone:
            return False
        if place.foreign:
            return True if score > after else False if score <= before else None
        signs = [place.looked]
        heartbeat = self.heartbeats.get(name.partition(b":")[0])
        if heartbeat is not None:
            signs.append(heartbeat)
        if any(sign.first > after for sign in signs):
            # The clock was set back.
            return None
        # All clients were silent for so long that it may have been the server: they get time to speak.
        grace = before <= self.server.grace
        if all(sign.last + SIGN < before for sign in signs):
            return None if grace else False
        alive = any(sign.first + SIGN >= after for sign in signs)
        if self.state.queue[:1] == [name] and self.free_since is not None:
            if self.offered is not None and self.offered.last + OFFER <= before:
                return None if grace else False
            if self.free_since.first + OFFER <= after:
                return None
        return True if alive else None

    def before_me(self, name: bytes) -> bool | None:
        """Whether anybody in the queue before that name, or at all if it isn't in the queue, keeps his turn."""
        answer: bool | None = False
        for other in self.state.queue:
            if other == name:
                break
            kept = self.keeps(other)
            if kept:
                return True
            if kept is None:
                answer = None
        return answer

    def follow(
        self, actor: bytes | None, now: State, *, arrives: bool = False, leaves: bool = False, ours: bool = True
    ) -> None:
        """Checks what a step left, which `actor` made, and remembers it. `ours`: by a script of ours."""
        if self.forgotten_at is not None and self.forgotten_at <= self.server.after and now.queue:
            # Nobody of ours did anything for ten minutes. Those in the queue keep their places by Redisson's rules now.
            self.torn = True
        _check(now, torn=self.torn)
        if self.torn:
            known = self.places
            born = Moment(self.server.before, self.server.after)
            self.places = {
                name: known.get(name, Place(name.startswith(FOREIGN), born, gone=int(now.waiters.get(name, b"1")) <= 0))
                for name in now.queue
            }
            self.torn = bool(now.queue or now.scores)
        else:
            self._check_places(actor, now, arrives=arrives, leaves=leaves)
        self._check_messages(now)
        self._remember(now, ours)

    def clear(self, now: State) -> None:
        """Somebody deleted the queue."""
        self.state, self.places, self.torn = now, {}, False
        self.free_since = self.offered = self.forgotten_at = None

    def _check_places(self, actor: bytes | None, now: State, *, arrives: bool, leaves: bool) -> None:
        old = self.state.queue
        if arrives and actor is not None and actor in old[:-1] and now.queue[-1:] == [actor] and not self.keeps(actor):
            # Its time was over, which it found itself, and it stands in the queue anew.
            old = [name for name in old if name != actor]
            del self.places[actor]
        left = [name for name in old if name not in now.queue]
        for name in left:
            if name == actor and leaves:
                continue
            if self.keeps(name):
                raise Unfair(f"{readable(name)} lost its place, though it is alive and did not give up")
        came = [name for name in now.queue if name not in old]
        if came not in ([], [actor]) or (came and not arrives):
            raise Unfair(f"{[*map(readable, came)]} came into the queue")
        if now.queue != [name for name in old if name in now.queue] + came:
            raise Unfair("the order of the queue changed")
        for name in left:
            del self.places[name]
        if came:
            foreign = came[0].startswith(FOREIGN)
            self.places[came[0]] = Place(foreign, Moment(self.server.before, self.server.after))
            tail = old[-1] if old else None
            if foreign and tail in self.places and not self.places[tail].foreign:
                # Whatever ours left at the end of the queue, the place of whoever comes next must last.
                sound = self.places[tail].gone or self.keeps(tail)
                if sound and now.scores[came[0]] < self.server.before + java.WAIT * 0.75:
                    raise Unfair(
                        f"{readable(came[0])} got a place that is over before its time, behind {readable(tail)}"
                    )

    def _check_messages(self, now: State) -> None:
        for channel, payload in self.server.heard:
            name = channel.removeprefix(CHANNEL + b":")
            if payload != b"0":
                raise Unfair(f"{payload!r} was published")
            anew = name in self.state.queue and name not in self.state.scores
            if not anew and (now.queue[:1] != [name] or LOCK in now.left_of):
                raise Unfair(f"{readable(name)} was notified, and it is not its turn")

    def must_tell(self, now: State) -> None:
        """Whoever made the lock free, or found it so, must have told the next one."""
        if now.queue and LOCK not in now.left_of and not self.tells(now):
            raise Unfair(f"nobody told {readable(now.queue[0])} that it is next")

    def tells(self, now: State) -> bool:
        """Whether the last step told the head of the queue."""
        return any(channel == CHANNEL + b":" + now.queue[0] for channel, _ in self.server.heard)

    def _remember(self, now: State, ours: bool) -> None:
        server = self.server
        if LOCK in now.left_of or not now.queue:
            self.free_since = self.offered = None
        elif self.free_since is None or self.state.queue[:1] != now.queue[:1] or self.free_since.first > server.after:
            since = server.before
            if self.state.holders and self.state.queue[:1] == now.queue[:1]:
                since = min(since, self.valid_until)
            self.free_since, self.offered = Moment(since, server.after), None
        if ours and self.offered is None and self.free_since is not None and self.tells(now):
            self.offered = Moment(server.before, server.after)
        if LOCK in now.left_of:
            self.valid_until = server.after + now.left_of[LOCK]
        self.forgotten_at = server.after + now.left_of[WAITERS] if WAITERS in now.left_of else None
        self.state = now


def _check(now: State, *, torn: bool) -> None:
    if len(now.holders) > 1:
        raise Unfair(f"held by {[*map(readable, now.holders)]}")
    for key in (LOCK, WAITERS, CLIENTS):
        if now.left_of.get(key, 0) < 0:
            raise Unfair(f"{key!r} never expires")
    if not torn and len(set(now.queue)) < len(now.queue):
        raise Unfair(f"the queue has somebody twice: {[*map(readable, now.queue)]}")
    if not torn and set(now.queue) != set(now.scores):
        raise Unfair(f"the queue is {[*map(readable, now.queue)]}, the scores are of {[*map(readable, now.scores)]}")
    broken = [name for name, score in now.scores.items() if not score.is_integer()]
    if broken:
        raise Unfair(f"the score of {readable(broken[0])} is no whole number")


def readable(name: bytes) -> str:
    """An owner as the rules of the machine name it: `a1`, and `a1.2` after two changes of name."""
    client, _, rest = name.partition(b":")
    return client.decode().rstrip("-") + rest.decode().replace(":", ".")
