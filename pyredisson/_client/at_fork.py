"""In the child of a fork, all clients are new: they can neither renew nor release what the parent holds."""

from __future__ import annotations

import os

from pyredisson._client.lifecycle import dropped_clients, live_clients
from pyredisson.logic import holds


def reset_all() -> None:
    """Replaces everything that another thread of the parent may have been changing, and all of the parent's state."""
    holds.after_fork()
    dropped_clients.clear()
    for lifecycle in live_clients():
        lifecycle.reset_after_fork()


os.register_at_fork(after_in_child=reset_all)
