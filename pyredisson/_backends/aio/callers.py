"""Which owner the calling task is."""

from __future__ import annotations

import asyncio
import weakref
from asyncio import current_task
from typing import Any

from pyredisson.logic.holds import Owner
from pyredisson.logic.session import Session


class Callers:
    """Which owner the calling task is; an owner's id is never given twice, unlike a task's address."""

    owners: dict[asyncio.Task[Any] | None, Owner]
    blocks: dict[asyncio.Task[Any] | None, list[Any]]

    def begin(self, session: Session) -> None:
        """Nobody is an owner yet."""
        self._session = session
        self._reference = weakref.ref(self)
        self.owners = {}
        self.blocks = {}

    def current(self) -> Owner:
        """The calling task's owner. `RuntimeError` where no task runs."""
        task = current_task()
        return self.owners.get(task) or self._adopt(task)

    def current_blocks(self) -> list[Any]:
        """The `async with` blocks that the calling task is in, innermost last. `RuntimeError` as `current`."""
        task = current_task()
        if task not in self.owners:
            self._adopt(task)
        return self.blocks.setdefault(task, [])

    def _adopt(self, task: asyncio.Task[Any] | None) -> Owner:
        if task is None:
            raise RuntimeError("a lock's owner is a task, and no task is running here")
        owner = self.owners[task] = self._session.new_owner()
        # Weakly: a task that goes on must not keep a client alive that it has dropped.
        reference = self._reference
        task.add_done_callback(lambda task: None if (callers := reference()) is None else callers._ended(task))
        return owner

    def _ended(self, task: asyncio.Task[Any]) -> None:
        owner = self.owners.pop(task, None)
        if owner is not None:
            owner.calls.ended = True
        for block in self.blocks.pop(task, ()):
            block.orphaned()
