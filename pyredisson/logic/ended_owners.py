"""Holds whose owner has ended: a thread or a task that can't release them any more."""

from __future__ import annotations

from collections.abc import Callable

from pyredisson._diagnostics import logger, readable
from pyredisson.logic.holds import HELD, Hold, HoldTable


class EndedOwners:
    """Releases the holds of owners that have ended, or logs each of them once. All renewers of a client share it."""

    def __init__(self, holds: HoldTable, repair: Callable[[bytes], None], *, release: bool) -> None:
        """`repair` sends the release in the background. `release`: whether such a hold is released."""
        self._holds = holds
        self._repair = repair
        self._release = release
        self._reported: dict[Hold, None] = {}

    def release_if_ended(self, hold: Hold) -> bool:
        """Whether the hold was released, because its owner has ended."""
        owner = hold.acquired_by
        if owner is None or not owner.calls.ended or not hold.renewed or hold in self._reported:
            return False
        if self._release:
            # A later hold must have another name on the server: the repair may run after its acquire.
            owner.new_epoch()
            self._holds.declare_lost(hold, "the thread or task that took it has ended")
            self._repair(hold.commands.abandon(hold))
            return True
        for reported in list(self._reported):
            if reported.state is not HELD:
                self._reported.pop(reported, None)
        self._reported[hold] = None
        logger.warning(
            "lock %r is renewed although the thread or task that took it, owner %s, has ended: until another thread"
            " leaves its block, it is removed by force, or its client is closed (release_when_owner_ends releases it)",
            readable(hold.commands.key),
            readable(hold.owner),
        )
        return False
