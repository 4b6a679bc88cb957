"""The judge of schedules in which a server restarts empty: a forgotten hold is lost, and not released."""

from __future__ import annotations

from collections.abc import Sequence

import hiredis

from pyredisson._protocol.no_reply import Reply
from pyredisson._protocol.scripts import script
from pyredisson.logic.holds import Hold

from .keys import Hash
from .lock_judge import LockJudge
from .network import Network
from .owner import Owner

OWNER_AT = {"lock_release": -2, "lock_hand_over": -3, "fenced_hand_over": -3}
"""The scripts that release a level, and the place of the owner in their commands."""
SCRIPTS = [script(name, with_shebang=flags) for name in OWNER_AT for flags in (False, True)]
RELEASES = {word: OWNER_AT[each.name] for each in SCRIPTS for word in (each.sha, each.text)}


class RestartJudge(LockJudge):
    """Knows which releases the server has done."""

    def __init__(self, networks: Sequence[Network], lease: float) -> None:
        super().__init__(networks, lease)
        self._released: dict[tuple[bytes, bytes], float] = {}
        self._reader = hiredis.Reader()
        networks[0].on_replied = self._replied
        networks[0].on_restart = self._forgotten

    def released(self, owner: Owner, hold: Hold) -> None:
        if self._released.get((hold.commands.key, hold.owner), 0.0) < owner.began:
            self.blame(
                f"{owner.name}: its release of {hold.commands.key!r} succeeded, but the server didn't know the hold"
            )

    def _replied(self, payload: bytes, reply: Reply) -> None:
        self._reader.feed(payload)
        words = self._reader.gets()
        place = RELEASES.get(words[1]) if len(words) > 3 else None
        # A hand-over replies with a list; 0: it has found neither of both owners.
        if place is not None and isinstance(reply, int if place == OWNER_AT["lock_release"] else list):
            self._released[words[3], words[place]] = self.simulation.now

    def _forgotten(self) -> None:
        for key, value in self.keyspace.values.items():
            if isinstance(value, Hash):
                # Until the watchdog asks, its client believes to hold it.
                self._tampered.update((key, name) for name in value)
