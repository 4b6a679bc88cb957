"""At the exit of the interpreter, clients that are still open release what they hold."""

from __future__ import annotations

import atexit

from pyredisson._backends.clock import clock
from pyredisson._client.lifecycle import CLOSE_TIMEOUT, SHORTEST_CLOSE_TIMEOUT, dropped_clients, live_clients
from pyredisson._diagnostics import logger


def close_all() -> None:
    """Closes all clients, and sends what dropped clients have not sent yet."""
    # One deadline for all clients: behind servers that hang, each client would use up a timeout of its own.
    deadline = clock() + CLOSE_TIMEOUT
    for lifecycle in [*live_clients(), *list(dropped_clients)]:
        try:
            lifecycle.end()
            lifecycle.send_final_releases(max(SHORTEST_CLOSE_TIMEOUT, deadline - clock()))
        except Exception:  # noqa: BLE001
            # Any exception: the other clients must be closed, too.
            logger.exception("a client could not be closed; the others are")


atexit.register(close_all)
