"""What must be true of every schedule, looked at after every event and at its end."""

from __future__ import annotations

from logging import LogRecord
from typing import NoReturn

from redis.exceptions import RedisError

from pyredisson._core import frames, prefixed
from pyredisson.errors import LockLostError
from pyredisson.logic.holds import HELD, LOST, Hold
from pyredisson.logic.lock import CHANNEL

from .client import Client, Owner
from .weather import STORM_ENDS
from .wire import Network

WAYS = 30
"""How often a message may cross the network until somebody has noticed what happened, retries of others included."""
AFTERMATH = 20.0
"""Seconds after a storm in which the last timeouts and pauses between tries run out."""


class Violation(AssertionError):
    """A schedule in which something happened that must not."""


class Judge:
    """Knows the truth of a schedule: what the server holds, what the clients believe, who waits since when."""

    def __init__(self, network: Network, keys: list[bytes], lease: float) -> None:
        self._world = network.world
        self._weather = network.weather
        self._keyspace = network.server.keyspace
        self._lease = lease
        self.soon = WAYS * network.weather.slowest
        self._forcing = {frames(key, prefixed(CHANNEL, key)): key for key in keys}
        self._tampered: set[tuple[bytes, bytes]] = set()
        self.clients: list[Client] = []
        self.owners: list[Owner] = []
        self._busy: list[Owner] = []
        self.acquired = 0
        self.waits = 0
        self.lost = 0
        self.verdict = ""
        network.on_executed = self._executed
        self._keyspace.on_taken = self._taken
        self._world.after_event = self._look

    def add(self, owner: Owner) -> None:
        """One more who takes part."""
        self.owners.append(owner)
        self._busy.append(owner)

    def blame(self, text: str) -> NoReturn:
        """Ends the schedule, even if whoever called this swallows the exception."""
        self.verdict = self.verdict or text
        raise Violation(self.verdict)

    def filter(self, record: LogRecord) -> bool:
        """What the logic logs as an error is one: it went on after an exception that nobody expected."""
        self.blame(f"{record.getMessage()}: {record.exc_info and record.exc_info[1]!r}")
        return False

    def answered(self, owner: Owner, key: bytes, deadline: float | None, *, taken: bool) -> None:
        """An acquire came to its end."""
        assert owner.wants is not None
        self.waits += self._world.now - owner.wants[1] > 3 * self._weather.slowest
        if taken:
            self.acquired += 1
            return
        now = self._world.now
        if deadline is None:
            self.blame(f"{owner.name}: an acquire without a deadline gave up")
        elif now < deadline:
            self.blame(f"{owner.name}: an acquire gave up {deadline - now:.3f} s before its deadline")
        elif self._weather.calm and now > deadline + self.soon:
            self.blame(f"{owner.name}: an acquire gave up {now - deadline:.3f} s after its deadline")
        if not self._keyspace.hash(key):
            self._neglected(key)

    def taken(self, name: str, key: bytes, hold: Hold | None, depth: int, *, clean: bool) -> None:
        """An acquire said True, for the `depth`th time."""
        self.has_hold(name, hold)
        assert hold is not None
        count = hold.count + (hold.under.count if hold.under is not None else 0)
        if count != depth:
            self.blame(f"{name}: holds it {depth} times and counts {count}")
        if hold.count == 1:
            hold.listen(self._hold_ended)
        if hold.state is HELD and hold.ends > self._world.now:
            known = self._keyspace.hash(key).get(hold.owner)
            sure = clean and hold.under is None and (key, hold.owner) not in self._tampered
            if sure and known != b"%d" % hold.count:
                self.blame(f"{name}: counts {hold.count}, the server {known!r}")
        elif self._weather.calm and hold.renewed and (key, hold.owner) not in self._tampered:
            self.blame(f"{name}: was told True of a hold that is over")

    def has_hold(self, name: str, hold: Hold | None) -> None:
        """Whoever was told True and gave nothing back has a hold, lost or not."""
        if hold is None:
            self.blame(f"{name}: its hold was forgotten")

    def failed(self, name: str, error: RedisError) -> None:
        """An operation raised what Redis, or the line, reported."""
        if self._weather.calm:
            self.blame(f"{name}: {error!r} in calm weather")

    def told_lost(self, name: str, hold: Hold, error: LockLostError) -> None:
        """A release said that the hold was lost."""
        if hold.state is not LOST:
            self.blame(f"{name}: was told {error} of a hold that was {hold.state.value}")

    def operation_ended(self, owner: Owner, key: bytes) -> None:
        """Whatever became of it: soon nothing must be left on the server that its client doesn't know of."""
        if self._weather.calm:
            self._world.after(self.soon, self._leaked, owner, key, owner.operations)
        else:
            when = max(self._world.now, STORM_ENDS) + AFTERMATH
            self._world.at(when, self._leaked, owner, key, owner.operations)

    def all_over(self) -> bool:
        """Whether everybody has done all that they had to do, or is dead."""
        while self._busy and self._busy[-1].over:
            self._busy.pop()
        return not self._busy

    def stuck(self) -> None:
        """The time is over."""
        self.blame(f"stuck: {', '.join(owner.name for owner in self.owners if not owner.over)}")

    def closing(self) -> None:
        """Everybody has gone home: nothing is left but what the dead and those who left without a word hold."""
        for key, value in list(self._keyspace.values.items()):
            if self._keyspace.value(key) is None:
                continue
            if key not in self._keyspace.ends:
                self.blame(f"{key!r} has no end")
            for owner in self.owners:
                if owner.client.alive and not owner.gone and any(_names(owner, name) for name in value):
                    self.blame(f"{owner.name}: {key!r} is left behind")
            if self._keyspace.ends[key] / 1000 > self._world.now + 2 * self._lease + self.soon:
                self.blame(f"{key!r} lasts too long")
        for client in self.clients:
            if not client.alive:
                continue
            ids = {owner.holder.id for owner in self.owners if owner.gone}
            left = [hold for hold in client.shared.holds.table.values() if hold.key[1] not in ids]
            if left:
                self.blame(f"{client.name}: a hold was not forgotten")
            if not ids and not self.lost and len(client.shared.watchdog._wheel):
                self.blame(f"{client.name}: a timer is left behind")
            if any(channel.waiters for channel in client.shared.hub._channels.values()):
                self.blame(f"{client.name}: a waiter is left behind")

    def _look(self) -> None:
        """Nobody believes what isn't true, least of all two at once."""
        if self.verdict:
            raise Violation(self.verdict)
        now = self._world.now
        believed: dict[bytes, Hold] = {}
        for client in self.clients:
            if not client.alive:
                continue
            for hold in client.shared.holds.table.values():
                key = hold.lock.key
                if hold.state is not HELD or hold.ends <= now or (key, hold.owner) in self._tampered:
                    continue
                if key in believed:
                    self.blame(f"{key!r} is held by {believed[key].owner!r} and by {hold.owner!r}")
                believed[key] = hold
                if hold.owner not in self._keyspace.hash(key):
                    self.blame(f"{hold.owner!r} believes to hold {key!r}; the server knows nothing of it")

    def _hold_ended(self, hold: Hold) -> None:
        self.lost += hold.state is LOST
        if hold.state is not LOST or (hold.lock.key, hold.owner) in self._tampered:
            return
        if hold.ends > self._world.now:
            self.blame(f"{hold.owner!r}: lost for no reason: {hold.reason}")
        if self._weather.calm and hold.renewed:
            self.blame(f"{hold.owner!r}: lost in calm weather: {hold.reason}")

    def _executed(self, payload: bytes) -> None:
        for ending, key in self._forcing.items():
            if payload.endswith(ending):
                for name in self._keyspace.hash(key):
                    self._tampered.add((key, name))
                    for hold in self._believed(key, name):
                        if self._weather.calm and hold.renewed:
                            self._world.after(self._lease / 3 * 1.02 + self.soon, self._must_know, hold)

    def _believed(self, key: bytes, name: bytes) -> list[Hold]:
        holds = [hold for client in self.clients for hold in client.shared.holds.table.values()]
        return [hold for hold in holds if hold.lock.key == key and hold.owner == name and hold.state is HELD]

    def _must_know(self, hold: Hold) -> None:
        if hold.state is HELD and hold.owner not in self._keyspace.hash(hold.lock.key):
            self.blame(f"{hold.owner!r} was not told that {hold.lock.key!r} was taken away")

    def _taken(self, key: bytes) -> None:
        self._neglected(key)

    def _neglected(self, key: bytes) -> None:
        """No lock is free for long while somebody waits for it."""
        freed = self._keyspace.freed.get(key)
        if freed is None:
            return
        when, expired = freed
        now = self._world.now
        for owner in self.owners:
            if owner.wants is None or owner.wants[0] != key or not owner.client.alive:
                continue
            since = max(when, owner.wants[1])
            bound = self.soon
            if expired or not self._weather.calm:
                # No message came, or none that was heard: the time that is left to the holder, but a lease at most.
                bound += self._lease
            if not self._weather.calm:
                since = max(since, STORM_ENDS, owner.client.paused_until)
                bound += AFTERMATH
            if now - since > bound:
                self.blame(f"{owner.name}: {key!r} was free for {now - since:.3f} s while it waited")

    def _leaked(self, owner: Owner, key: bytes, operations: int) -> None:
        if owner.operations != operations or not owner.client.alive:
            # A later operation may have left something to be undone, and is looked at in its turn.
            return
        for name in self._keyspace.hash(key):
            if not _names(owner, name):
                continue
            hold = owner.client.shared.holds.table.get((key, owner.holder.id))
            while hold is not None and hold.owner != name:
                hold = hold.under
            if hold is None:
                self.blame(f"{owner.name}: {key!r} is held by {name!r}, of which its client knows nothing")


def _names(owner: Owner, name: bytes | int) -> bool:
    """Whether a field of a lock is a name of that owner."""
    first = f"{owner.client.name}:{owner.holder.id}".encode()
    return isinstance(name, bytes) and (name == first or name.startswith(first + b":"))
