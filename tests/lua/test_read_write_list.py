"""The lists of clients that wait for a read-write lock: phases of readers, the turn of a writer, and claims."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

from pyredisson.testing import Server

from .read_write import (
    CHANNEL,
    CLAIM,
    LASTS,
    LISTS,
    PREFIX,
    TURN,
    client_of,
    hand_over,
    leave,
    leave_reading,
    let_in,
    read,
    read_release,
    reading,
    write,
    write_release,
    writing,
)
from .scripted import ANYTHING, ME, RESERVED, YOU, About, Came, Case, Refused, Scripted

WRITERS, READERS, WOKEN = LISTS
HERE, THERE = client_of(ME), client_of(YOU)
LONG_AGO, LATER = 1, 2**53
"""Times at which a phase began: before everybody came, and after it."""
READ, WRITE = read(ME, 1, 30_000, waits=True), write(f"{ME}:write", 1, 30_000, waits=True)
LEAVE, STOP = read_release(ME, 0), write_release(0)
MINE, HELD = reading({ME: [30_000]}), writing(YOU, 1, 20_000)
CLAIMED: dict[str, Any] = {CLAIM: (THERE, 2_000)}


def waiting(*members: str) -> dict[str, Any]:
    """Those of readers end with `:r`."""
    writers = [each for each in members if not each.endswith(":r")]
    readers = [each for each in members if each.endswith(":r")]
    lists = {WRITERS: (Came(writers), LASTS), READERS: (Came(readers), LASTS)}
    return {key: value for key, value in lists.items() if value[0]}


def woken(member: str = "", *, phase: Any = "", exclusive: int = 1, came: Any = ANYTHING) -> dict[str, Any]:
    fields: dict[str, Any] = {"member": member, "came": came, "exclusive": exclusive} if member else {}
    return {WOKEN: (fields | ({"phase": phase} if phase else {}), RESERVED)}


def was_woken(member: str = "", *, phase: Any = "", exclusive: int = 1) -> dict[str, Any]:
    return woken(member, phase=phase, exclusive=exclusive, came=1)


ACQUIRE = {
    "a reader is refused, and enters its list": Case(
        HELD | waiting("a:1", "b:1:r"),
        [(READ, Refused(20_000, 1, 1))],
        HELD | waiting("a:1", "b:1:r", f"{HERE}:1:r"),
    ),
    "a writer is refused, and enters its list": Case(
        HELD | waiting("a:1", "b:1:r"), [(WRITE, Refused(20_000, 1, 1))], HELD | waiting("a:1", f"{HERE}:1", "b:1:r")
    ),
    "a claim keeps a reader out": Case(
        reading({YOU: [20_000]}) | CLAIMED,
        [(READ, Refused(2_000, 0, 1))],
        reading({YOU: [20_000]}) | CLAIMED | waiting(f"{HERE}:1:r"),
    ),
    "a claim keeps nobody from another level": Case(
        MINE | CLAIMED, [(read(ME, 2, 30_000), None)], reading({ME: [30_000, 30_000]}) | CLAIMED
    ),
    "a claim, and the writer reads": Case(
        writing(ME, 1, 30_000) | CLAIMED, [(READ, None)], writing(ME, 1, 30_000, {ME: [30_000]}) | CLAIMED
    ),
    "a lock that is reserved for a writer": Case(
        was_woken("a:1"), [(read(ME, 1, 30_000), About(RESERVED)), (write(f"{ME}:write", 1, 30_000), About(RESERVED))]
    ),
    "a lock that is reserved for a reader": Case(
        was_woken("a:1:r"), [(write(f"{ME}:write", 1, 30_000), About(RESERVED))]
    ),
    "readers keep no reader out": Case(was_woken("a:1:r"), [(READ, None)], MINE | was_woken("a:1:r")),
    "a writer that comes in ends the phase": Case(
        waiting(f"{HERE}:1", "a:1:r") | was_woken(phase=5),
        [(write(f"{ME}:write", 1, 30_000), None)],
        writing(ME, 1, 30_000) | waiting("a:1:r"),
    ),
    # The other side of its client goes on waiting.
    "the reader of a client whose writer was woken": Case(
        was_woken(f"{HERE}:1", exclusive=0), [(READ, None)], MINE | was_woken(f"{HERE}:1", exclusive=0)
    ),
    "a reader that was woken comes before a claim": Case(was_woken(f"{HERE}:1:r") | CLAIMED, [(READ, None)], MINE),
    "a reader that was woken comes before a claim, and others read": Case(
        reading({YOU: [20_000]}) | was_woken(f"{HERE}:1:r") | CLAIMED,
        [(READ, None)],
        reading({YOU: [20_000], ME: [30_000]}) | CLAIMED,
    ),
    "a reader of the phase comes before a claim": Case(
        reading({YOU: [20_000]}) | CLAIMED | waiting(f"{HERE}:1:r") | was_woken(phase=LATER),
        [(READ, None)],
        reading({YOU: [20_000], ME: [30_000]}) | CLAIMED | was_woken(phase=LATER),
    ),
    "a reader that came after the phase does not": Case(
        reading({YOU: [20_000]}) | CLAIMED | waiting(f"{HERE}:1:r") | was_woken(phase=LONG_AGO),
        [(READ, Refused(2_000, 0, 1))],
    ),
}
TOLD = {
    "the first reader lets in all others": Case(
        was_woken(f"{HERE}:1:r") | waiting("a:1", "b:1", "c:1:r", "gone:1:r", "d:1:r"),
        [(READ, None)],
        MINE | woken(phase=ANYTHING) | waiting("a:1", "b:1", "c:1:r", "d:1:r"),
        ["c r", "d r", "a look:0"],
    ),
    "once in a phase": Case(
        waiting(f"{HERE}:1:r", "a:1", "c:1:r") | was_woken(phase=5),
        [(READ, None)],
        MINE | was_woken(phase=5) | waiting("a:1", "c:1:r"),
    ),
    "a reader that has not waited lets nobody in": Case(
        waiting("a:1", "c:1:r"), [(READ, None)], MINE | waiting("a:1", "c:1:r")
    ),
    "the last reader: a writer": Case(
        MINE | waiting("c:1:r", "a:1", "b:1"),
        [(LEAVE, 1, None)],
        waiting("c:1:r", "b:1") | woken("a:1"),
        ["redisson 0", "a a:1", "b look"],
    ),
    "the last reader: a reader of the phase": Case(
        MINE | waiting("c:1:r", "a:1") | was_woken(phase=LATER),
        [(LEAVE, 1, None)],
        waiting("a:1") | woken("c:1:r", phase=LATER),
        ["redisson 0", "c c:1:r", "a look"],
    ),
    "the last reader: the phase is over": Case(
        MINE | waiting("c:1:r", "a:1") | was_woken(phase=LONG_AGO),
        [(LEAVE, 1, None)],
        waiting("c:1:r") | woken("a:1", phase=LONG_AGO),
        ["redisson 0", "a a:1", "c look:r"],
    ),
    "the last reader: writers that are gone": Case(
        MINE | waiting("gone:1", "c:1:r"), [(LEAVE, 1, None)], woken("c:1:r"), ["redisson 0", "c c:1:r"]
    ),
    "not the last reader": Case(
        reading({ME: [30_000], YOU: [60_000]}) | waiting("a:1"),
        [(LEAVE, 0, None)],
        reading({YOU: [60_000]}) | waiting("a:1"),
    ),
    "a writer: readers": Case(
        writing(ME, 1, 30_000) | waiting("a:1", "c:1:r", "d:1:r"),
        [(STOP, 3, None)],
        waiting("a:1", "d:1:r") | woken("c:1:r"),
        ["redisson 1", "c c:1:r", "d look:r"],
    ),
    "a writer: no readers": Case(
        writing(ME, 1, 30_000) | waiting("a:1"), [(STOP, 3, None)], woken("a:1"), ["redisson 1", "a a:1"]
    ),
    "a writer that goes on reading: readers": Case(
        writing(ME, 1, 30_000, {ME: [30_000]}) | waiting("a:1", "c:1:r"),
        [(STOP, 3, None)],
        MINE | waiting("a:1") | woken("c:1:r"),
        ["redisson 1", "c c:1:r", "a look"],
    ),
    "a writer that goes on reading: a writer may claim": Case(
        writing(ME, 1, 30_000, {ME: [30_000]}) | waiting("a:1"),
        [(hand_over(30_000), 1, 0)],
        MINE | waiting("a:1"),
        ["redisson 1", "a look:0"],
    ),
    "in the background, its own client hears of it": Case(
        {}, [(write_release(0, late=True), None)], {}, [f"{HERE} 0"] * 2
    ),
    "handed on, the client leaves the list": Case(
        writing(ME, 1, 60_000) | waiting("a:1", f"{HERE}:1"),
        [(hand_over(30_000, f"{HERE}:1"), [0])],
        writing(YOU, 1, 30_000) | waiting("a:1"),
    ),
    "let in, the client leaves the list": Case(
        writing(ME, 1, 60_000) | waiting(f"{THERE}:1:r", "c:1:r"),
        [(let_in({YOU: 20_000}, f"{THERE}:1:r"), [1])],
        reading({YOU: [20_000]}) | woken("c:1:r"),
        ["redisson 1", "c c:1:r"],
    ),
    "leave, others wait behind it": Case(HELD | waiting("a:1", "b:1"), [(leave("a:1"), 1, 0)], HELD | waiting("b:1")),
    "leave, the second of them listens to Redisson": Case(
        HELD | waiting("a:1", "b:1", "d:1"), [(leave("b:1"), 1, 0)], HELD | waiting("a:1", "d:1"), ["d look:0"]
    ),
    "leave, it was woken": Case(was_woken("a:1") | waiting("b:1"), [(leave("a:1"), 1, 0)], woken("b:1"), ["b b:1"]),
    "leave, it was woken, and readers wait": Case(
        was_woken("a:1") | waiting("c:1:r"), [(leave("a:1"), 1, 0)], woken("c:1:r"), ["c c:1:r"]
    ),
    "leave, its claim: the next writer": Case(
        MINE | {CLAIM: ("a", 2_000), TURN: ("1", 6_000)} | waiting("a:1", "gone:1", "b:1", "c:1:r"),
        [(leave("a:1"), 1, 0)],
        MINE | {TURN: ("1", 6_000)} | waiting("b:1", "c:1:r"),
        ["b b:1", "c look:r"],
    ),
    "leave, its claim: readers": Case(
        MINE | {CLAIM: ("a", 2_000)} | waiting("a:1", "c:1:r") | was_woken(phase=5),
        [(leave("a:1"), 1, 0)],
        MINE | woken("c:1:r"),
        ["c c:1:r"],
    ),
    "leave, another's claim": Case(
        MINE | CLAIMED | waiting("a:1", "b:1"), [(leave("a:1"), 1, 0)], MINE | CLAIMED | waiting("b:1")
    ),
    "leave, it was woken, and a reader came before it: the next writer": Case(
        MINE | was_woken("a:1") | waiting("b:1", "c:1:r"),
        [(leave("a:1"), 1, 0)],
        MINE | waiting("b:1", "c:1:r"),
        ["b b:1", "c look:r"],
    ),
    "leave, it was woken, and a reader came before it: readers": Case(
        MINE | was_woken("a:1") | waiting("c:1:r", "d:1:r"),
        [(leave("a:1"), 1, 0)],
        MINE | woken("c:1:r") | waiting("d:1:r"),
        ["c c:1:r", "d look:r"],
    ),
    "a reader leaves, it was woken, and others read: the next reader": Case(
        MINE | was_woken("a:1:r") | waiting("b:1", "c:1:r"),
        [(leave_reading("a:1:r"), 1, 0)],
        MINE | woken("c:1:r") | waiting("b:1"),
        ["c c:1:r", "b look"],
    ),
    "a reader leaves, it was woken, and others read: a writer may claim": Case(
        MINE | was_woken("a:1:r") | waiting("b:1"),
        [(leave_reading("a:1:r"), 1, 0)],
        MINE | waiting("b:1"),
        ["b look:0"],
    ),
    "a reader leaves, it was woken, and the lock is free": Case(
        was_woken("a:1:r") | waiting("b:1", "c:1:r"),
        [(leave_reading("a:1:r"), 1, 0)],
        woken("c:1:r") | waiting("b:1"),
        # The second copy repeats the last one.
        ["c c:1:r", "b look", "b look"],
    ),
    "leave, it isn't there": Case(MINE | CLAIMED | waiting("b:1"), [(leave("a:1"), 0)]),
}
CASES = ACQUIRE | TOLD


class OfLists(Scripted):
    """Messages with the clients that they go to, or with `redisson`."""

    def published(self) -> list[str]:
        return [f"{self.listener(channel)} {self.short(message)}" for channel, message in self.published_on()]

    def listener(self, channel: str) -> str:
        return channel.removeprefix(PREFIX) if channel.startswith(PREFIX) else "redisson"

    def short(self, message: str) -> str:
        """`look` for as long as a reservation may last."""
        words = message.split(":")
        return message.replace(f":{words[1]}", "", 1) if words[0] == "look" and words[1] != "0" else message


@pytest.fixture
def lists(server: Server, admin: Redis) -> Iterator[OfLists]:
    """The clients of the cases listen, but for `gone`."""
    found = OfLists(server, admin)
    found.listening.punsubscribe("*")
    names = [CHANNEL, "end", *(f"{PREFIX}{client}" for client in ("a", "b", "c", "d", HERE, THERE))]
    found.listening.subscribe(*names)
    for _ in ("*", *names):
        assert found.listening.get_message(timeout=5) is not None
    yield found
    found.listening.close()


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in CASES.items()])
def test_a_script(lists: OfLists, case: Case) -> None:
    lists.check(case)
