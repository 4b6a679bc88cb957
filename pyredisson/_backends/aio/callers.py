"""Which owner the calling task is."""

import asyncio
import weakref
from asyncio import _get_running_loop, current_task, get_running_loop
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyredisson._core import TaskOwners
from pyredisson.logic.owners import Owner
from pyredisson.logic.session import Session


class Callers(TaskOwners):
    """Assigns an owner to each calling task. An owner's id is never used twice, unlike the address of a task."""

    blocks: dict[asyncio.Task[Any] | None, list[Any]]

    def begin(self, session: Session) -> None:
        """Starts without any owner: for a new client, and after a fork."""
        self._session = session
        self._reference = weakref.ref(self)
        self.owners = {}
        self.blocks = {}
        self.remember(None)

    def _find_current(self) -> Owner:
        task = current_task()
        return self.owners.get(task) or self._adopt(task)

    def known(self) -> Owner | None:
        """The calling task's owner. None: it has none yet, or no task is running."""
        # Only a thread with a running loop has a task.
        return None if _get_running_loop() is None else self.owners.get(current_task())

    @contextmanager
    def acting_for(self, owner: Owner) -> Iterator[None]:
        """The calling task, which has no owner yet, is `owner` in this block. The task that is it otherwise waits."""
        task = current_task()
        self.owners[task] = owner
        try:
            yield
        finally:
            self.owners.pop(task, None)

    def current_blocks(self) -> list[Any]:
        """The `async with` blocks that the calling task is in, innermost last. RuntimeError: no task is running."""
        task = current_task()
        if task not in self.owners:
            self._adopt(task)
        return self.blocks.setdefault(task, [])

    def _adopt(self, task: asyncio.Task[Any] | None) -> Owner:
        if task is None:
            raise RuntimeError("a lock's owner is a task, and no task is running here")
        loop = get_running_loop()
        self.remember(loop)
        owner = self.owners[task] = self._session.owners.new()
        owner.calls.is_stranded = loop.is_closed
        # A weak reference: a task that goes on must not keep a client alive that the program has dropped.
        reference = self._reference
        task.add_done_callback(lambda task: None if (callers := reference()) is None else callers._on_done(task))
        return owner

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        if (owner := self.owners.pop(task, None)) is not None:
            owner.calls.ended = True
            # Otherwise a hold that is never released would keep the event loop.
            owner.calls.is_stranded = None
        for block in self.blocks.pop(task, ()):
            block.orphaned()
