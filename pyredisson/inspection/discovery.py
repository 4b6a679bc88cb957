"""Finds the names of all objects and clients: a walk over all keys of all masters, in bounded steps."""

from dataclasses import dataclass
from fnmatch import fnmatchcase

from redis.exceptions import AuthenticationError, ClusterDownError, NoPermissionError, NoScriptError, RedisError

from pyredisson._core import command, pack
from pyredisson._diagnostics import readable
from pyredisson._protocol.node import Node
from pyredisson._protocol.replies import ASKING, NoReply, Reply
from pyredisson._protocol.routing import Changes
from pyredisson.inspection.announcements import with_missing_right
from pyredisson.inspection.model import Evidence
from pyredisson.inspection.raw import client_of, objects_of
from pyredisson.logic import retry
from pyredisson.logic.announcement import client_key
from pyredisson.logic.session import Session

KEYS_IN_A_STEP = 256
"""A server looks at so many keys within about a millisecond."""
MOST_TRIES = 3
"""After so many failures in a row the walk goes on without that server."""
_BEGIN = b"0"


@dataclass
class _Walk:
    node: Node
    cursor: bytes = _BEGIN
    ended: bool = False
    keys: int = 0
    """How many keys the server has. 0: not known."""
    failures: int = 0
    """In a row."""
    not_before: float = 0.0
    """When the next step may begin, on the clock of the runtime."""


class Discovery:
    """A walk over all keys of all masters.

    A pass finds every object that exists during the whole pass, if the owners have ids as Redisson's clients and this
    library's have them. There is one exception: if a slot moves meanwhile from a server that comes later to one whose
    keys were looked at already, its objects may be missed. The next pass finds them. `topology_changed` says whether
    that may have happened.
    """

    def __init__(self, session: Session, pattern: str = "*", rate: float = 0.0) -> None:
        """`pattern`: a glob for the names as text. `rate`: keys a second, on all servers together; 0: no limit."""
        self._session = session
        self._pattern = pattern
        self._rate = rate
        # In a slot that is being moved to a node, the script can look at the keys that have come already only then.
        self._before = (ASKING,) if session.config.topology == "cluster" else ()
        self.found: dict[bytes, Evidence] = {}
        """Names that objects may have: of this pass, and until it ends also of the pass before."""
        self.clients: dict[str, None] = {}
        """The ids of the clients that have announced themselves, likewise."""
        self._rate_allows = 0.0
        self.restart()
        session.runtime.on_topology_change(self._on_topology_change)

    @property
    def total(self) -> int:
        """How many keys the masters have together, as far as they were asked."""
        return sum(walk.keys for walk in self._walks.values())

    @property
    def unanswered(self) -> bool:
        """Whether no master has answered in this pass."""
        return bool(self.failed) and not self.scanned and len(self.failed) == len(self._walks)

    def restart(self) -> None:
        """Begins another pass. Until it has ended, `found` and `clients` also have what this one finds."""
        self.scanned = 0
        self.failed: dict[str, RedisError] = {}
        """The addresses of the masters whose keys were not all looked at, and why."""
        self.done = False
        self.topology_changed = False
        """Whether slots have moved, or another server has become a master, during this pass."""
        self._walks: dict[Node, _Walk] = {}
        self._found_now: dict[bytes, Evidence] = {}
        self._clients_now: dict[str, None] = {}

    async def step(self) -> bool:
        """One step on each master that may be asked now. False: the pass has ended.

        Pauses as long as the steps before took, so that no server works on it for more than half of the time. A server
        that doesn't answer is asked again, and after `MOST_TRIES` failures left out: see `failed`. Raises if no server
        is known (also `NoReply`), or if the user has no right to what the walk needs.
        """
        if self.done:
            return False
        session = self._session
        session.check_open()
        if not self._walks:
            self._walks = {node: _Walk(node) for node in await self._session.runtime.masters()}
            if not self._walks:
                raise ClusterDownError("CLUSTERDOWN no master is known")
        waiting = [walk for walk in self._walks.values() if not walk.ended]
        # There is none if a step was cancelled after all of them had ended.
        begin = max(self._rate_allows, min((walk.not_before for walk in waiting), default=0.0))
        if (seconds := begin - session.clock()) > 0:
            await session.runtime.sleep(seconds)
            session.check_open()
        now = session.clock()
        for walk in waiting:
            if walk.not_before <= now:
                await self._advance(walk)
        walks = self._walks.values()
        if any(walk.failures and not walk.ended for walk in walks) or all(walk.ended for walk in walks):
            # A replica may have replaced a master that failed. And a new server may have got slots.
            await self._follow_topology()
        if all(walk.ended for walk in self._walks.values()):
            self.done = True
            self.found = {key: self.found[key] for key in self.found if key in self._found_now or self._may_exist(key)}
            self.clients = {
                id_: None for id_ in self.clients if id_ in self._clients_now or self._may_exist(client_key(id_))
            }
        return not self.done

    async def _advance(self, walk: _Walk) -> None:
        clock = self._session.clock
        began = clock()
        try:
            reply = await self._ask(walk)
        except (AuthenticationError, NoPermissionError):
            raise
        except (NoReply, RedisError) as failure:
            self.failed[walk.node.address] = failure.error if isinstance(failure, NoReply) else failure
            walk.failures += 1
            walk.ended = walk.failures == MOST_TRIES
            walk.not_before = clock() + retry.delay(walk.failures - 1, self._session.runtime.jitter())
            return
        cursor, looked_at, locks, companions = reply
        # Before the walk goes on: an interrupt between the two would lose what this step has found.
        self._note(locks, companions)
        self.scanned += looked_at
        walk.cursor, walk.failures = cursor, 0
        walk.ended = cursor == _BEGIN
        now = clock()
        walk.not_before = now + (now - began)
        if self._rate:
            self._rate_allows = max(self._rate_allows, began) + looked_at / self._rate

    async def _ask(self, walk: _Walk) -> Reply:
        scripts = self._session.runtime.scripts
        payload = pack(scripts.inspect_scan, walk.cursor, KEYS_IN_A_STEP)
        size, *_, reply = await self._session.runtime.ask(walk.node, (command(b"DBSIZE"), *self._before, payload))
        if isinstance(reply, NoScriptError):
            payload = scripts.as_eval(payload)
            *_, reply = await self._session.runtime.ask(walk.node, (*self._before, payload))
        if isinstance(reply, RedisError):
            raise with_missing_right(reply)
        # A user without the right to DBSIZE only doesn't see how far the walk is.
        walk.keys = 0 if isinstance(size, RedisError) else size
        return reply

    def _note(self, locks: list[bytes], companions: list[bytes]) -> None:
        objects: list[tuple[tuple[bytes, ...], Evidence]] = [((key,), Evidence.HASH) for key in locks]
        for key in companions:
            if (client := client_of(key)) is not None:
                self.clients[client] = self._clients_now[client] = None
            else:
                objects.append(objects_of(key))
        for names, evidence in objects:
            for name in names:
                if fnmatchcase(readable(name), self._pattern):
                    self.found[name] = self._found_now[name] = max(evidence, self._found_now.get(name, evidence))

    async def _follow_topology(self) -> None:
        """Walks over the keys of new masters, too, and forgets failures of servers that are no masters any more."""
        masters = await self._session.runtime.masters()
        if not masters:
            # For the moment nobody knows who serves: the walks go on.
            return
        for node in masters:
            if node not in self._walks:
                self._walks[node] = _Walk(node)
                self.topology_changed = True
        for walk in self._walks.values():
            if walk.node not in masters:
                walk.ended = True
            if walk.node not in masters or not walk.failures:
                self.failed.pop(walk.node.address, None)

    def _may_exist(self, key: bytes) -> bool:
        """Whether what wasn't found again may be on a server that didn't answer."""
        node = self._session.runtime.shard_of(key)
        return isinstance(node, Node) and node.address in self.failed

    def _on_topology_change(self, changes: Changes) -> None:
        """Called on any thread."""
        if changes.moved_slots or changes.failed_over_slots:
            self.topology_changed = True
