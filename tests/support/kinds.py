"""The kinds of locks, and how each is made."""

from collections.abc import Callable
from typing import Any

KINDS: dict[str, Callable[..., Any]] = {
    "lock": lambda client, name, owner=None: client.get_lock(name, owner=owner),
    "fair": lambda client, name, owner=None: client.get_fair_lock(name, owner=owner),
    "fenced": lambda client, name, owner=None: client.get_fenced_lock(name, owner=owner),
    "spin": lambda client, name, owner=None: client.get_spin_lock(name, owner=owner),
    "read": lambda client, name, owner=None: client.get_read_write_lock(name, owner=owner).read_lock(),
    "write": lambda client, name, owner=None: client.get_read_write_lock(name, owner=owner).write_lock(),
    "non-reentrant": lambda client, name, owner=None: client.get_non_reentrant_lock(name, owner=owner),
    "non-reentrant fair": lambda client, name, owner=None: client.get_non_reentrant_fair_lock(name, owner=owner),
}
LOCKS = {kind: make for kind, make in KINDS.items() if kind != "non-reentrant fair"}
"""Without the kind that is two of the others at once."""
SINGLE_KEY = ("lock", "spin", "non-reentrant")
"""The other kinds have several keys, or create them: a node of a cluster refuses these until it has all of them."""


def against(kind: str, client: Any, name: str) -> Any:
    """A lock that a hold of this kind excludes."""
    return LOCKS["write" if kind == "read" else kind](client, name)


async def acquired(lock: Any, *lease: Any, **limits: Any) -> Any:
    """That lock, which its caller has acquired."""
    await lock.lock(*lease, **limits)
    return lock
