"""Reads what the servers hold, again and again: the objects on visible pages each time, all others in turn."""

import asyncio
import logging
import math
import time
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import NamedTuple

from redis.exceptions import RedisError

import pyredisson.asyncio
from pyredisson._backends.aio.operations import cancel_and_wait
from pyredisson._core import command
from pyredisson._protocol.node import Node
from pyredisson._protocol.replies import NoReply
from pyredisson._settings.config import Config
from pyredisson.dashboard.snapshot import History, PastHold, Seen, Snapshot, error_words, remember
from pyredisson.inspection.announcements import read_clients
from pyredisson.inspection.deadlocks import Deadlock, DeadlockSearch, find
from pyredisson.inspection.discovery import Discovery
from pyredisson.inspection.model import ClientState, Evidence, State
from pyredisson.inspection.states import MOST_LISTED, Inspector, by_key, waiters_of
from pyredisson.logic.announcement import client_key
from pyredisson.logic.ports import Runtime

logger = logging.getLogger("pyredisson.dashboard")

MOST_OBJECTS = 20_000
"""Names that are read. Of more, the first ones."""
MOST_CLIENTS = 500
"""Clients whose announcements one round reads."""
WALK_RATE = 20_000
"""Keys that the walk looks at in a second, on all servers together."""
LONGER = 0.5
"""Seconds for which a ping is waited for, after the timeout of its connection."""
SOON = 1.0
"""Seconds. If the intervals are longer, whoever asks for one object doesn't wait for the next one."""
FIRST_WALK = 5.0
"""Seconds after which the charts begin although the first walk still goes on."""
IDLE_AFTER = 30.0
IDLE_INTERVAL = 10.0
"""Seconds: if nobody has looked for so long, the known objects are read this often only, and no keys are looked for."""
READ_EACH_ROUND = 500
"""Objects that one round reads, besides visible and new ones. Each takes a server about 0.07 ms."""
NEW_EACH_ROUND = 3_000
"""Objects that were never read, which one round reads."""
ROUNDS_FOR_ALL = 20
"""After so many rounds each object was read, however many there are."""
_PING = command(b"PING")


@dataclass(eq=False)
class Watch:
    """What one browser has on its page."""

    keys: frozenset[bytes] = frozenset()
    detail: bytes | None = None
    """The object whose page it is."""


class Collector:
    """Makes a snapshot of what the servers hold every `interval` seconds. Belongs to one event loop."""

    def __init__(self, config: Config, interval: float) -> None:
        # Each round is another try. A retry would only delay the news that the server doesn't reply.
        self.config = replace(config, retry_attempts=0, observer=None, announce=False)
        self.interval = interval
        self.history = History()
        self.snapshot = Snapshot()
        self.stopped = False
        self.failure: BaseException | None = None
        """What has ended `run` before `stop` was called."""
        self._seen: dict[bytes, Seen] = {}
        self._clients: dict[str, ClientState] = {}
        self._past: dict[bytes, tuple[PastHold, ...]] = {}
        self._deadlocks: list[Deadlock] = []
        self._position = 0
        """Of the next object to be read, among all names in their order."""
        self._client_position = 0
        self._watches: set[Watch] = set()
        self._began = time.monotonic()
        self._looked_at = self._began
        """When somebody has looked last, if nobody does now."""
        self._awake_since = self._began
        """When somebody looked for the first time after the collector had been idle."""
        self._walked = -math.inf
        """When the last pass of the walk that has ended began."""
        self._silent: frozenset[Node] = frozenset()
        """The masters that didn't reply at the beginning of this round."""
        self._defect_logged = False
        self._walk_problem: str | None = None
        self._complete = False
        self._changed = asyncio.Event()
        self._wanted = asyncio.Event()

    # --- For viewers

    @contextmanager
    def watch(self) -> Iterator[Watch]:
        """Somebody looks; what is set on the watch is read in each round."""
        self.look()
        watch = Watch()
        self._watches.add(watch)
        try:
            yield watch
        finally:
            self.look()
            self._watches.discard(watch)

    def look(self) -> None:
        """Somebody has looked: the next round begins soon if the collector was idle."""
        if not self._looking():
            self._awake_since = time.monotonic()
            self._wanted.set()
        self._looked_at = time.monotonic()

    async def next(self, after: int, timeout: float | None = None) -> Snapshot | None:
        """The first snapshot with a larger number. None: the collector was stopped. Raises TimeoutError."""
        async with asyncio.timeout(timeout):
            while self.snapshot.number <= after and not self.stopped:
                await self._changed.wait()
        return None if self.stopped else self.snapshot

    async def fresh(self, timeout: float, since: float = -math.inf) -> Snapshot | None:
        """A snapshot that isn't older than two intervals, with the names of a walk that began after the last idle time.

        The latest one if there is none so soon. `since`: its reading has begun after that moment.
        """
        self.look()
        not_before = time.monotonic() - 2 * self.interval
        if since > -math.inf and self.interval > SOON:
            self._wanted.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while not self.stopped:
                    latest = self.snapshot
                    # While no server replies, there is nothing to wait for.
                    walked = latest.away_since is not None or latest.walked >= self._awake_since
                    if latest.number and walked and latest.at >= not_before and latest.began >= since:
                        break
                    await self.next(latest.number)
        return None if self.stopped else self.snapshot

    def stop(self) -> None:
        """Ends all streams, and `run`."""
        self.stopped = True
        self._changed.set()
        self._wanted.set()

    # --- The work

    async def run(self) -> None:
        """Reads until `stop` is called."""
        async with pyredisson.asyncio.connect(self.config) as client:
            session = self.session = client._session
            self._runtime = session.runtime
            self.inspector = Inspector(session)
            self._discovery = Discovery(session, rate=WALK_RATE)
            self._search = DeadlockSearch(self.inspector)
            walking = asyncio.create_task(self._walk())
            try:
                while not self.stopped:
                    began = time.monotonic()
                    await self._round()
                    await self._pause(began + (self.interval if self._looking() else IDLE_INTERVAL))
                    if walking.done():
                        # A defect: without this the walk would end in silence.
                        walking.result()
            finally:
                await cancel_and_wait(walking)

    def _looking(self) -> bool:
        return bool(self._watches) or time.monotonic() - self._looked_at < IDLE_AFTER

    async def _pause(self, until: float) -> None:
        """Until that moment, or until somebody looks again."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(until - time.monotonic(), 0.0)):
                await self._wanted.wait()
        # Not before: who has asked during the round waits for the next one.
        self._wanted.clear()

    async def _round(self) -> None:
        """Reads once, and publishes a snapshot."""
        began, walked = time.monotonic(), self._walked
        pings = await ping_all(self._runtime, self.config.timeout + LONGER)
        self._silent = pings.silent
        problems, away_since = [*pings.problems], None
        if pings.round_trip is None:
            away_since = self.snapshot.away_since or datetime.now(UTC)
        else:
            problems += await self._read_or_say_why()
            if self._walk_problem is not None:
                problems.append(self._walk_problem)
        states = [each.state for each in self._seen.values()]
        held, waiting = sum(state.owner_count for state in states), sum(state.waiting for state in states)
        now = time.time()
        # What the first walk finds in its first moments wasn't acquired then: the charts would begin with a rise.
        begun = self._complete or time.monotonic() - self._began > FIRST_WALK
        if away_since is None and begun:
            self.history.add(now, held, waiting, self._clients.values())
        self.snapshot = Snapshot(
            number=self.snapshot.number + 1,
            time=now,
            at=time.monotonic(),
            began=began,
            walked=walked,
            seen=dict(self._seen),
            clients=dict(self._clients),
            away_since=away_since,
            problems=tuple(dict.fromkeys(problems)),
            deadlocks=tuple(sorted(deadlock.text for deadlock in self._deadlocks)),
            deadlocked=frozenset(edge for deadlock in self._deadlocks for edge in deadlock.edges),
            scanned=self._discovery.scanned,
            total=self._discovery.total,
            complete=self._complete,
            round_trip=pings.round_trip,
            waiting=waiting,
            held=held,
            lost=self.history.lost,
            past=dict(self._past),
        )
        self._changed.set()
        self._changed = asyncio.Event()

    async def _read_or_say_why(self) -> list[str]:
        try:
            return await self._read()
        except (NoReply, RedisError) as error:
            return [error_words(error)]
        except Exception as error:
            # Any program can write anything to the keys. What nobody has thought of must not end the dashboard.
            if not self._defect_logged:
                self._defect_logged = True
                logger.exception("what some keys contain can't be read; this is logged once")
            return [f"what some keys contain can't be read: {type(error).__name__}"]

    def _is_silent(self, key: bytes) -> bool:
        """Whether the server of that key doesn't reply. Each command that it is sent nevertheless takes a timeout."""
        return bool(self._silent) and self._runtime.shard_of(key) in self._silent

    # --- Objects and clients

    async def _read(self) -> list[str]:
        """Reads the objects and clients whose turn it is. Returns what couldn't be read."""
        if self.history.began is None:
            seconds, _ = await self.session.runtime.send(command(b"TIME"))
            self.history.began = datetime.fromtimestamp(int(seconds), UTC)
        problems = await self._read_clients()
        found, left_out = self._names()
        if left_out:
            problems.append(f"only {MOST_OBJECTS:,} of {MOST_OBJECTS + left_out:,} names are read")
        visible = [key for watch in self._watches for key in watch.keys]
        served = {name: evidence for name, evidence in found.items() if not self._is_silent(name)}
        batch = self._turn(served, visible)
        # The server doesn't know who has a permit, so each client is asked. For locks that would be in vain.
        has_permits = Evidence.PERMITS in batch.values()
        known, failed = await self.inspector.found(batch, clients=[*self._clients] if has_permits else ())
        at = time.monotonic()
        problems += [f"some locks can't be read: {error}" for error in failed.values()][:1]
        self._note(known, [key for key in batch if key not in failed], at)
        # What a user has named is shown even if it is free, or of an unknown kind.
        details = {watch.detail for watch in self._watches if watch.detail is not None}
        asked = [key for key in details if not self._is_silent(key)]
        if asked:
            known, failed = await self.inspector.states(asked, clients=[*self._clients], limit=MOST_LISTED)
            problems += [f"{key!r} can't be read: {error}" for key, error in failed.items()]
            self._note(known, [], time.monotonic())
        kept = found.keys() | details
        for key in self._seen.keys() - kept:
            remember(self._past, self._seen[key], None, time.monotonic())
        self._seen = {key: seen for key, seen in self._seen.items() if key in kept}
        waits = [wait for client in self._clients.values() for wait in client.waiting]
        seeming = find(waits, {key: seen.state for key, seen in self._seen.items()})
        keys = {wait.key for deadlock in seeming for wait in deadlock.waits}
        self._deadlocks = await self._search.look(key for key in keys if not self._is_silent(key))
        return problems

    def _turn(self, found: Mapping[bytes, Evidence], visible: Iterable[bytes]) -> dict[bytes, Evidence]:
        """The names that this round reads, of all that were found: it goes through them again and again."""
        names = sorted(found)
        if self._position >= len(names):
            self._position = 0
        part = max(READ_EACH_ROUND, len(names) // ROUNDS_FOR_ALL)
        turn = names[self._position : self._position + part]
        self._position += part
        new = [name for name in names if is_new(name, found[name], self._seen)][:NEW_EACH_ROUND]
        chosen = [*visible, *turn, *new]
        # Two names with the same companion keys: only together it can be told which one exists.
        chosen += map(_double, chosen.copy())
        return {name: found[name] for name in chosen if name in found}

    def _note(self, states: Iterable[State], asked: Iterable[bytes], at: float) -> None:
        """Remembers states. Of what was asked for, everything else is gone."""
        before = self._seen
        waits = by_key(wait for client in self._clients.values() for wait in client.waiting)
        # Clients say more of their waiters than the server knows. The queue of a fair lock is on the server.
        new = {}
        for state in states:
            if state.kind not in ("fair", "unknown"):
                state = replace(state, waiters=tuple(waiters_of(waits.get(state.key, ()))))
            new[state.key] = Seen.of(state, at, before.get(state.key))
        for key in {*asked, *new}:
            remember(self._past, before.pop(key, None), new.get(key), at)
        before.update(new)

    def _names(self) -> tuple[dict[bytes, Evidence], int]:
        """The names of all objects: what the walk has found, and what clients announce, which is known earlier.

        And how many were left out.
        """
        found: dict[bytes, Evidence] = {}
        for client in self._clients.values():
            for hold in client.holds:
                found[hold.name.encode()] = Evidence.PERMITS if hold.kind == "permit" else Evidence.HASH
        found.update(self._discovery.found)
        left_out = len(found) - MOST_OBJECTS
        if left_out <= 0:
            return found, 0
        # Last the names of which only a companion key was found: the counters of fenced locks stay for ever.
        first = sorted(found, key=lambda name: (found[name] is Evidence.COMPANION, name))[:MOST_OBJECTS]
        return {name: found[name] for name in first}, left_out

    async def _read_clients(self) -> list[str]:
        """Reads the clients whose turn it is. Returns what couldn't be read."""
        ids = sorted(self._discovery.clients)
        if self._client_position >= len(ids):
            self._client_position = 0
        turn = ids[self._client_position :][:MOST_CLIENTS]
        part = [id_ for id_ in turn if not self._is_silent(client_key(id_))]
        self._client_position += MOST_CLIENTS
        states, failed = await read_clients(self.session, part)
        known = {client.id: client for client in states}
        gone = set(part) - known.keys() - failed.keys()
        kept = {id_: client for id_, client in self._clients.items() if id_ in self._discovery.clients}
        self._clients = {id_: client for id_, client in (kept | known).items() if id_ not in gone}
        return [f"some clients can't be read: {error_words(error)}" for error in failed.values()][:1]

    # --- The walk

    async def _walk(self) -> None:
        pass_began = time.monotonic()
        while not self.stopped:
            began = time.monotonic()
            try:
                while await self._discovery.step():
                    await self._until_somebody_looks()
                self._complete = self._complete or not self._discovery.failed
                self._walk_problem = None
                self._walked = pass_began
            except (NoReply, RedisError) as error:
                self._walk_problem = f"can't look for locks: {error_words(error)}"
                # It counts as a walk: whoever waits for one would wait in vain.
                self._walked = began
            await asyncio.sleep(max(began + self.interval - time.monotonic(), self.interval / 2))
            await self._until_somebody_looks()
            if self._discovery.done:
                self._discovery.restart()
                pass_began = time.monotonic()

    async def _until_somebody_looks(self) -> None:
        while not self._looking() and not self.stopped:
            await self._changed.wait()


def is_new(name: bytes, evidence: Evidence, seen: Container[bytes]) -> bool:
    """Whether nothing is known of it. Of two names with the same companion keys only one is ever seen."""
    return name not in seen and (evidence is Evidence.HASH or _double(name) not in seen)


def _double(name: bytes) -> bytes:
    """The other name that has the same companion keys: `{orders}` for `orders`, and the other way round."""
    return name[1:-1] if name.startswith(b"{") and name.endswith(b"}") else b"{%b}" % name


# --- Which masters reply


class Pings(NamedTuple):
    problems: tuple[str, ...]
    """Who doesn't reply, and why."""
    silent: frozenset[Node] = frozenset()
    """The masters that don't."""
    round_trip: float | None = None
    """Seconds; of several servers the slowest. None: no server replies."""


async def ping_all(runtime: Runtime, timeout: float) -> Pings:
    """Asks all masters at the same time. `timeout`: seconds."""
    try:
        async with asyncio.timeout(timeout):
            masters = await runtime.masters()
    except TimeoutError:
        return Pings(("no server replies",))
    except (NoReply, RedisError) as error:
        return Pings((error_words(error),))
    if not masters:
        return Pings(("no master is known",))
    results = await asyncio.gather(*(_ping(runtime, node, timeout) for node in masters))
    silent = {node: why for node, why in zip(masters, results, strict=True) if isinstance(why, str)}
    slowest = max((result for result in results if not isinstance(result, str)), default=None)
    return Pings(tuple(silent.values()), frozenset(silent), slowest)


async def _ping(runtime: Runtime, node: Node, timeout: float) -> float | str:
    """The seconds of a round trip, or why there is no reply."""
    began = time.monotonic()
    try:
        async with asyncio.timeout(timeout):
            [reply] = await runtime.ask(node, (_PING,))
    except TimeoutError:
        return f"{node.address} doesn't reply"
    except (NoReply, RedisError) as error:
        return f"{node.address}: {error_words(error)}"
    if isinstance(reply, RedisError):
        return f"{node.address}: {error_words(reply)}"
    return time.monotonic() - began
