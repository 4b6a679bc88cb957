"""Tells others who this client is, and which locks it holds: a hash under a key of its own.

The watchdog sends it, as a chore, so nothing of this is part of a lock or an unlock. A hold is listed once it has lived
for a second (`watchdog.LISTED_AFTER`): a shorter one costs nothing. Each announcement has a number, and names the one
that the server has confirmed last. So a server that lacks an earlier one says so, and gets everything again: after a
lost reply, a restart or a failover.
"""

import itertools
import weakref
from collections.abc import Callable
from typing import Any

from redis.exceptions import NoPermissionError, RedisError

from pyredisson._core import command, prefixed
from pyredisson._diagnostics import logger
from pyredisson._protocol.replies import NoReply
from pyredisson._protocol.scripts import ScriptSet
from pyredisson._settings.config import Config
from pyredisson.identity import connection_name, identity
from pyredisson.logic import retry
from pyredisson.logic.holds import HELD, Hold, HoldTable
from pyredisson.logic.ports import Runtime
from pyredisson.logic.waits import LISTED_AFTER, Wait, Waits
from pyredisson.logic.watchdog import Alarm, Watchdog
from pyredisson.version import VERSION

CLIENT_PREFIX = b"pyredisson_client"
HOLD_PREFIX = b"h:"
"""The beginning of the fields that stand for a hold."""
WAITING = b"waiting"
"""The field with the calls that wait, see `Waits.listed`."""


def client_key(client_id: str) -> bytes:
    """The key in which that client announces itself."""
    return prefixed(CLIENT_PREFIX, client_id.encode())


def hold_field(owner: bytes, key: bytes) -> bytes:
    """The field for a hold of the lock `key`. `owner`: the part of its name after the client's id, or a permit's id.

    It contains no space, so the first space separates it from the name of the lock.
    """
    return b"%b%b %b" % (HOLD_PREFIX, owner, key)


FIRST_AFTER = 0.25
"""Seconds from the first hold or wait of a client to its announcement. A short program sends none. `inf`: no client is
announced."""
SHORTEST_TTL = 30_000
"""Milliseconds for which an announcement lasts at least. It is renewed after each third of its time."""
TICKS_PER_TTL = 3
PAUSE = 1.0
"""Seconds between two announcements at least, however many holds begin and end."""
PAUSE_OF_PARTS = 0.1
"""The same between the parts of one that is too long for one call."""
MOST_IN_ONE = 500
"""Holds in one call of the script: a longer call would delay other clients."""
MOST_LISTED = 10_000
"""Holds of one client that are listed."""
OUTDATED = 0
"""The reply of the script if the hash must be made anew. Any other one says that the announcement is stored."""
DENIED = ("ACL failure", "can't run this command", "can't access at least one of the keys")
"""In the text of the error if a command of a script is denied. Many errors have its code."""


class Announcement:
    """The announcement of one client. A chore of its watchdog.

    Any thread adds and removes holds, without a mutex: each change is one operation of a dict. A field is taken from
    the changes before its hold is looked up, so a change that is made meanwhile is sent with the next announcement.
    """

    def __init__(
        self, client_id: str, config: Config, holds: HoldTable, watchdog: Watchdog, clock: Callable[[], float]
    ) -> None:
        self.key = client_key(client_id)
        self.waits = 0
        """Calls that had to wait."""
        self.waited = 0.0
        """Seconds that they have waited."""
        self.lost = 0
        """Holds that were lost."""
        self._wait_numbers, self.loss_numbers = itertools.count(1), itertools.count(1)
        self._holds = holds
        self._watchdog = watchdog
        self._clock = clock
        self._began = clock()
        self._prefix = client_id.encode() + b":"
        self._name = config.client_name
        self._lease = int(config.lock_watchdog_timeout * 1000)
        self._ttl = max(SHORTEST_TTL, self._lease)
        self._number = 0
        self._confirmed = 0
        """The number of the latest announcement that is known to be stored; 0: none is."""
        self._listed: dict[bytes, Hold] = {}
        """The holds that are listed, by their fields."""
        self._more = 0
        """How many further holds there are, as counted at the latest tick, and the ones that came since then."""
        self._is_counted = True
        """Whether they were counted since the latest tick."""
        self._waiting = Waits(holds, clock)
        self._said: bytes | None = None
        """What the latest announcement has said of the waits. None: none has said anything."""
        self._look = _Ringing(self._on_look)
        self._changed: dict[bytes, None] = {}
        """Fields that are to be stored or removed."""
        self._tick = _Ringing(self._on_tick)
        self._soon = _Ringing(self._ask)
        self._last_run = self._began
        self._is_asked = False
        """Whether the chore is waiting to be run."""
        self._is_denied = False
        """Whether the user has no right to announce anything."""
        self._may_exist = False
        """Whether the key may be on the server."""
        self._stays_until = 0.0
        """The reading of the clock until which a lock is kept that this client has released; 0.0: none was kept."""

    # --- For other threads

    def begin(self) -> None:
        """The watchdog is about to start. Its loop is not woken: it looks at the alarm when it starts."""
        first = self._clock() + FIRST_AFTER
        self._watchdog.wheel.add(self._tick, int(first * 1000) + 1)
        # Nor is a hold listed before that, whose lease is short.
        self._last_run = first - PAUSE

    def add(self, hold: Hold) -> None:
        """Lists a hold that has lived for a second, or for a third of its lease if that is less."""
        hold.listed = True
        if self._is_denied:
            return
        if len(self._listed) >= MOST_LISTED:
            # No listener tells of its end: that would be 250 bytes for each hold.
            self._more += 1
            return
        field = self._field(hold)
        self._listed[field] = hold
        self._changed[field] = None
        # After the entry: a hold that has ended meanwhile calls the listener at once.
        hold.listen(self._on_end)
        self._ask_soon(PAUSE)

    def begin_waiting(self, wait: Wait) -> None:
        """A call begins to wait. It is listed after a second."""
        self.waits = next(self._wait_numbers)
        self._waiting.began[wait] = now = self._clock()
        # After the entry: a look that is set already finds it.
        if self._look.due < 0 and not self._watchdog.closed:
            self._watchdog.set_alarm(self._look, now + LISTED_AFTER)

    def end_waiting(self, wait: Wait) -> None:
        began = self._waiting.began.pop(wait, None)
        if began is not None:
            # No call comes between reading the sum and setting it.
            self.waited = self._clock() - began + self.waited

    def stay_until(self, moment: float) -> None:
        """The client has released a lock that is kept until then. So long others may ask who it was."""
        self._stays_until = max(self._stays_until, moment)

    def last(self, scripts: ScriptSet) -> bytes | None:
        """The command of a client that ends, once. None: there is nothing to send.

        It removes the key. If a lock is still kept, it says who the client was, for as long as the lock is kept. An
        announcement of everything that is on its way may arrive behind it, and make the key anew: without a client that
        renews it, the key ends with its TTL.
        """
        ttl = 0 if self._is_denied else _milliseconds(self._stays_until - self._clock())
        self._stays_until = 0.0
        if not (self._may_exist or ttl):
            return None
        self._may_exist = False
        if not ttl:
            return command(b"DEL", self.key)
        # The hash is made anew: without the holds, which have ended.
        self._confirmed = 0
        self._number += 1
        return self._command(scripts, [], ttl)

    def _on_end(self, hold: Hold) -> None:
        """A listener of holds: any thread, any line."""
        field = self._field(hold)
        # The same owner may have acquired the lock again.
        if self._listed.get(field) is hold and self._listed.pop(field, None) is not None:
            self._changed[field] = None
            self._ask_soon(PAUSE)

    def _field(self, hold: Hold) -> bytes:
        return hold_field(hold.owner.removeprefix(self._prefix), hold.commands.key)

    # --- When it is sent

    def _on_tick(self) -> None:
        if self._is_denied:
            return
        self._watchdog.set_alarm(self._tick, self._clock() + self._ttl / 1000 / TICKS_PER_TTL)
        self._is_counted = False
        self._ask()

    def _on_look(self) -> None:
        if not self._waiting.began and not self._said:
            return
        self._watchdog.set_alarm(self._look, self._clock() + PAUSE)
        self._waiting.report_deadlocks()
        if self._waiting.listed(self._began) != self._said:
            self._ask()

    def _ask_soon(self, pause: float) -> None:
        if self._soon.due < 0 and not self._watchdog.closed:
            self._watchdog.set_alarm(self._soon, max(self._clock(), self._last_run + pause))

    def _ask(self) -> None:
        # During an outage no chore is run, and this one must not be there many times after it.
        if not (self._is_asked or self._is_denied):
            self._is_asked = True
            self._watchdog.do(self)

    # --- The chore

    async def run(self, runtime: Runtime) -> None:
        """Sends what has changed, or everything if the server lacks an earlier announcement."""
        self._is_asked = False
        self._last_run = self._clock()
        # In this order: whoever closes the client sees the first one, or this sees that it is closed.
        self._may_exist = True
        if self._watchdog.closed:
            return
        if self._more and not self._is_counted:
            self._is_counted = True
            known = sum(hold.listed and hold.state is HELD for hold in list(self._holds.table.values()))
            self._more = max(0, known - len(self._listed))
        reply = await self._send(runtime)
        if reply == OUTDATED:
            self._begin_anew()
            reply = await self._send(runtime)
        if reply is not None and self._changed:
            self._ask_soon(PAUSE_OF_PARTS)

    async def _send(self, runtime: Runtime) -> int | None:
        """Sends one announcement. Returns the reply; None: there is none that says that it is stored."""
        fields = list(self._changed)[:MOST_IN_ONE]
        for field in fields:
            self._changed.pop(field, None)
        self._number += 1
        try:
            reply = await retry.send_once(runtime, self._command(runtime.scripts, fields, self._ttl))
        except (NoReply, RedisError) as problem:
            self._note(problem.error if isinstance(problem, NoReply) else problem)
            self._begin_anew()
            return None
        if reply != OUTDATED:
            self._confirmed = self._number
        return int(reply)

    def _begin_anew(self) -> None:
        """The next announcement makes the hash anew. Earlier changes don't count: they would grow without bound."""
        self._confirmed = 0
        self._said = None
        # In this order: another thread changes what is listed first.
        self._changed.clear()
        self._changed.update(dict.fromkeys(list(self._listed)))

    def _command(self, scripts: ScriptSet, fields: list[bytes], ttl: int) -> bytes:
        now, as_it_is = self._clock(), -1
        removed = []
        stored: list[Any] = []
        if not self._confirmed:
            process = identity()
            client = {"name": self._name or connection_name(process), **process._asdict()}
            for key, value in (*client.items(), ("version", VERSION), ("lease", self._lease)):
                stored += (key, value, as_it_is)
            stored += ("since", "", _milliseconds(now - self._began))
        for field in fields:
            hold = self._listed.get(field)
            if hold is None:
                removed.append(field)
            else:
                stored += (field, f" {hold.commands.kind}", _milliseconds(now - hold.begun))
        for key, number in (("waits", self.waits), ("waited", _milliseconds(self.waited)), ("lost", self.lost)):
            stored += (key, number, as_it_is)
        self._said = self._waiting.listed(self._began)
        for field, value in ((WAITING, self._said), (b"more", self._more)):
            if value:
                stored += (field, value, as_it_is)
            else:
                removed.append(field)
        words = (self._number, self._confirmed, ttl, len(removed), *removed, *stored)
        return command(b"EVALSHA", scripts.client_announce, 1, self.key, *words)

    def _note(self, error: RedisError) -> None:
        if isinstance(error, NoPermissionError) or any(text in str(error) for text in DENIED):
            self._is_denied = True
            if not self._confirmed:
                # Nothing was written, so nothing is to be deleted.
                self._may_exist = False
            self._listed.clear()
            self._more = 0
            self._changed.clear()
            logger.info("others can't see who this client is, as its user may not write %r: %s", self.key, error)
        else:
            logger.debug("who this client is was not announced: %s", error)


class _Ringing(Alarm):
    """Calls a method when it rings. It refers to the object weakly: the garbage collector doesn't look into a wheel."""

    def __init__(self, method: Callable[[], None]) -> None:
        self._method = weakref.WeakMethod(method)

    def ring(self) -> None:
        method = self._method()
        if method is not None:
            method()


def _milliseconds(seconds: float) -> int:
    return max(0, round(seconds * 1000))
