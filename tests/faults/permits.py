"""What the server has of a semaphore with expiring permits."""

from __future__ import annotations

from typing import Any

from redis import Redis

from pyredisson._protocol.scripts import NAMES, script
from tests.support.faults import FLAGS

USED, CHANNEL = "{p}:timeout", "redisson_sc:{p}"
TEXTS = {name: script(name, with_shebang=FLAGS) for name in NAMES}
ACQUIRE, RELEASE = TEXTS["permit_acquire"].sha, TEXTS["permit_release"].sha


def state(admin: Redis) -> tuple[int, int]:
    """How many are free, how many in use."""
    found: Any = admin.get("p")
    used: Any = admin.zcard(USED)
    return int(found), used
