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

SCRIPTS = [script("lock_release", with_shebang=flags) for flags in (False, True)]
RELEASES = {word for each in SCRIPTS for word in (each.sha, each.text)}


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
        if words[1:2] and words[1] in RELEASES and isinstance(reply, int):
            _, _, _, key, _, name, _ = words
            self._released[key, name] = self.simulation.now

    def _forgotten(self) -> None:
        for key, value in self.keyspace.values.items():
            if isinstance(value, Hash):
                # Until the watchdog asks, its client believes to hold it.
                self._tampered.update((key, name) for name in value)
