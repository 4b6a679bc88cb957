"""Calls of the read-write lock's scripts, and its states as Redisson leaves them."""

from collections.abc import Mapping, Sequence
from typing import Any

from .locks import LASTS, LIST, PREFIX, WAIT_TO_READ, WAKING, WOKEN, client_of
from .scripted import ME, YOU, Call

MY_WRITE, YOUR_WRITE = ME + ":write", YOU + ":write"
CLAIM, TURN = "pyredisson_rwlock_writer:{orders}", "pyredisson_rwlock_turn:{orders}"
LEASES = "{orders}:"
LISTS = [LIST, WAIT_TO_READ, WOKEN]
CHANNEL = "redisson_rwlock:{orders}"
READERS = [f"{YOU}{number}" for number in range(3)]
Readers = Mapping[str, Sequence[int]]
"""Of each reader the leases of its levels."""


def lease_key(reader: str, level: int, lock: str = "orders") -> str:
    return f"{{{lock}}}:{reader}:rwlock_timeout:{level}"


def read(reader: str, level: int, lease: int, *, waits: bool = False) -> Call:
    keys, member = ["orders", LEASES, CLAIM, *LISTS], client_of(reader) + ":1:r"
    return Call("read_acquire", keys, [reader, level, lease, f"{reader}:write", member, waits * LASTS, PREFIX])


def read_release(reader: str, left: int) -> Call:
    return Call("read_release", ["orders", LEASES, TURN, *LISTS], [CHANNEL, reader, left, *WAKING])


def renew(*holds: tuple[str, str, int]) -> Call:
    keys = [lock for lock, _, _ in holds] + [lease_key(reader, 1, lock) for lock, reader, _ in holds]
    return Call("read_renew", keys, [word for lock, reader, lease in holds for word in (f"{{{lock}}}:", reader, lease)])


def write(writer: str, level: int, lease: int, *, waits: bool = False) -> Call:
    keys, member = ["orders", CLAIM, TURN, LISTS[0], LISTS[2]], client_of(writer) + ":1"
    return Call("write_acquire", keys, [writer, level, lease, member, waits * LASTS])


def write_release(left: int, writer: str = MY_WRITE, *, late: bool = False) -> Call:
    return Call("write_release", ["orders", LEASES, *LISTS], [CHANNEL, writer, left, *WAKING, int(late)])


def let_in(readers: Mapping[str, int], member: str = "") -> Call:
    """`member`: what leaves the list of readers."""
    words = [word for reader in readers.items() for word in reader]
    return Call("write_let_readers_in", ["orders", LEASES, *LISTS], [CHANNEL, MY_WRITE, member, *WAKING, *words])


def hand_over(lease: int, member: str = "") -> Call:
    return Call("write_hand_over", ["orders", LEASES, *LISTS], [CHANNEL, MY_WRITE, YOUR_WRITE, lease, member, *WAKING])


def leave(member: str) -> Call:
    """A client waits to write no longer."""
    return Call("write_leave", ["orders", CLAIM, *LISTS], [member, *WAKING])


def leave_reading(member: str) -> Call:
    """A client waits to read no longer."""
    return Call("lock_leave", ["orders", WAIT_TO_READ, WOKEN, LIST], [member, *WAKING])


def force(side: str) -> Call:
    return Call("read_write_force_release", ["orders", *LISTS], [CHANNEL, side, *WAKING])


def reading(readers: Readers, lasts: int = 0, lock: str = "orders") -> dict[str, Any]:
    """The keys of a lock that is read. It lasts as long as its longest lease."""
    counts = {reader: len(leases) for reader, leases in readers.items()}
    longest = max(lease for leases in readers.values() for lease in leases)
    found: dict[str, Any] = {lock: ({"mode": "read", **counts}, lasts or longest)}
    # The lock comes last, so that it lasts as long as the leases of which it was computed.
    return leases_of(readers, lock) | found


def writing(owner: str, levels: int, lasts: int | None, readers: Readers | None = None) -> dict[str, Any]:
    """The keys of a lock that is written, and that its writer may read."""
    counts = {reader: len(leases) for reader, leases in (readers or {}).items()}
    return {"orders": ({"mode": "write", f"{owner}:write": levels, **counts}, lasts), **leases_of(readers or {})}


def leases_of(readers: Readers, lock: str = "orders") -> dict[str, Any]:
    return {
        lease_key(reader, level, lock): ("1", lease)
        for reader, leases in readers.items()
        for level, lease in enumerate(leases, 1)
    }
