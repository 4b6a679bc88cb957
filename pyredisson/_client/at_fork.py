"""In the child of a fork, all clients are new: they can neither renew nor release what the parent holds."""

from __future__ import annotations

import os

from pyredisson._client.delivery import go_on_after_fork, pause_before_fork
from pyredisson._client.lifecycle import dropped_clients, live_clients
from pyredisson.logic import holds

LONGEST_PAUSE = 0.1
"""Seconds that a fork waits for observers at most."""


def pause_observers() -> None:
    """Waits until no observer is being called."""
    if deliveries := [lifecycle.delivery for lifecycle in live_clients() if lifecycle.delivery is not None]:
        pause_before_fork(deliveries, LONGEST_PAUSE)


def reset_all() -> None:
    """Replaces everything that another thread of the parent may have been changing, and all of the parent's state."""
    go_on_after_fork(in_child=True)
    holds.after_fork()
    dropped_clients.clear()
    for lifecycle in live_clients():
        lifecycle.reset_after_fork()


os.register_at_fork(before=pause_observers, after_in_parent=go_on_after_fork, after_in_child=reset_all)
