"""Calls of the scripts of exclusive locks. The list of the clients that wait for a lock, and the messages to them."""

import re
from typing import Any

from .scripted import ANYTHING, ME, RESERVED, YOU, Call, Came, Scripted

CHANNEL, PREFIX = "redisson_lock__channel:{orders}", "pyredisson_wake:{orders}:"
LIST, WOKEN = "pyredisson_waiting:{orders}", "pyredisson_woken:{orders}"
WAIT_TO_READ = "pyredisson_waiting_readers:{orders}"
COUNTER, NEWEST = "redisson_lock_token:{orders}", "pyredisson_fenced_newest:{orders}"
QUEUE, SCORES = "redisson_lock_queue:{orders}", "redisson_lock_timeout:{orders}"
KEYS = {
    "lock": ["orders", LIST, WOKEN],
    "fenced": ["orders", COUNTER, NEWEST, LIST, WOKEN],
    "fair": ["orders", QUEUE, SCORES, "pyredisson_fair_waiters:{orders}", "pyredisson_fair_clients:{orders}"],
}
LASTS = 60_000
"""The TTL of a list, ms."""
PATIENCE = 5_000
"""Microseconds. The clients of `Came` have waited for longer."""
WAKING: list[str | int] = [PREFIX, PATIENCE]
"""The last arguments of a script that wakes clients."""
WAIT = 300_000
"""How long Redisson keeps a place in the queue of a fair lock, ms."""
HERE, THERE = ME.partition(":")[0], YOU.partition(":")[0]
"""The clients of both owners."""


def acquire(
    member: str = "", *, owner: str = "", level: int = 1, lease: int = 30_000, waits: bool = True, kind: str = "lock"
) -> Call:
    """By that client, which waits for the lock; else by an owner that doesn't wait."""
    owner = owner or (f"{client_of(member)}:4294967296" if member else ME)
    if kind == "fair":
        return Call("fair_acquire", KEYS[kind], [CHANNEL, owner, level, lease, WAIT, 0])
    lasts = LASTS if member and waits else 0
    return Call(f"{kind}_acquire", KEYS[kind], [owner, level, lease, member or "me:1", lasts])


def release(
    left: int = 0,
    *,
    owner: str = ME,
    channel: str = CHANNEL,
    patience: int = PATIENCE,
    late: int = 0,
    kind: str = "lock",
) -> Call:
    rest = [WAIT] if kind == "fair" else [PREFIX, patience, late]
    return Call(f"{kind}_release", KEYS[kind], [channel, owner, left, *rest])


def force_release(channel: str = CHANNEL, kind: str = "lock") -> Call:
    return Call(f"{kind}_force_release", KEYS[kind], [channel, *([WAIT] if kind == "fair" else WAKING)])


def keep(rest: int = 10_000, channel: str = CHANNEL) -> Call:
    return Call("lock_keep", KEYS["lock"], [channel, ME, rest, *WAKING, 0])


def hand_over(
    member: str = "me:1", *, owner: str = ME, following: str = YOU, lease: int = 30_000, kind: str = "lock"
) -> Call:
    if kind == "fair":
        return Call("fair_hand_over", KEYS[kind], [CHANNEL, owner, WAIT, following, lease])
    return Call(f"{kind}_hand_over", KEYS[kind][:-1], [owner, following, lease, member])


def leave(member: str) -> Call:
    return Call("lock_leave", KEYS["lock"], [member, *WAKING])


LOST = Call("lock_wake_waiters", KEYS["lock"], [CHANNEL, "0", *WAKING])
DELETE = Call("fenced_delete", KEYS["fenced"], [CHANNEL, *WAKING])


def client_of(owner: str) -> str:
    return owner.partition(":")[0]


def member_of(word: str) -> str:
    """A client in the list: `a` stands for `a:1`, `a:r` for `a:1:r`, which waits to read."""
    client, *rest = word.split(":")
    number = [part for part in rest if part.isdigit()] or ["1"]
    return ":".join([client, *number, *(["r"] if "r" in rest else [])])


def waiting(members: str, lasts: int = LASTS) -> dict[str, Any]:
    """The lists of these clients, in their order."""
    names = [member_of(word) for word in members.split()]
    lists = {
        LIST: [name for name in names if not name.endswith(":r")],
        WAIT_TO_READ: [name for name in names if name.endswith(":r")],
    }
    return {key: (Came(each), lasts) for key, each in lists.items() if each}


def woken(
    member: str = "", *, came: Any = ANYTHING, exclusive: int = 1, phase: Any = "", lasts: int | None = RESERVED
) -> dict[str, Any]:
    """The client that was woken, and since when a phase of readers goes on."""
    fields = {"member": member_of(member), "came": came, "exclusive": exclusive} if member else {}
    return {WOKEN: (fields | ({"phase": phase} if phase else {}), lasts)}


class OfList(Scripted):
    """Messages with the clients that they go to, or with `redisson`; `look` for as long as a reservation may last."""

    def published(self) -> list[str]:
        return [f"{listener(channel)} {short(message)}" for channel, message in self.published_on()]

    def hear_only(self, *clients: str, channel: str | None = None) -> None:
        """Nobody hears any other messages than those to these clients, and on this channel."""
        channels = ["end", *(f"{PREFIX}{client}" for client in clients), *([] if channel is None else [channel])]
        self.listening.punsubscribe("*")
        self.listening.subscribe(*channels)
        for _ in ("*", *channels):
            assert self.listening.get_message(timeout=5) is not None


def listener(channel: str) -> str:
    return "redisson" if channel.startswith("redisson_") else channel.removeprefix(PREFIX)


def short(message: str) -> str:
    look = re.match(r"look:(\d+)", message)
    return message.replace(f":{look[1]}", "", 1) if look and 0 < int(look[1]) <= RESERVED else message
