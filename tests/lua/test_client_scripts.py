"""The script by which clients announce themselves: every branch, sent twice, and late."""

from __future__ import annotations

from typing import Any

import pytest

from .scripted import About, Call, Case, Scripted

KEY = "pyredisson_client:{me}"
LEASE = 30_000


def announce(number: int, base: int, *stored: object, removed: tuple[str, ...] = ()) -> Call:
    words: list[Any] = [number, base, LEASE, len(removed), *removed, *stored]
    return Call("client_announce", [KEY], words)


def announced(number: int, lasts: Any = LEASE, **fields: Any) -> dict[str, Any]:
    return {KEY: ({"n": number, **fields}, lasts)}


FIRST = {"host": "web-3", "h:1 a": "x", "h:1 b": "x"}
CHANGES = announce(2, 1, "h:1 c", "x", -1, removed=("h:1 a", "h:1 d"))
LATER = announce(3, 2, "h:1 c", "x", -1)
WHOLE = announce(4, 0, "host", "web-4", -1)
CASES = {
    "changes": Case(
        announced(1, 1_000, **FIRST), [(CHANGES, 1, 2)], announced(2, **{"host": "web-3", "h:1 b": "x", "h:1 c": "x"})
    ),
    "changes of another one": Case(announced(1, host="web-3"), [(LATER, 0)]),
    "changes of none": Case({}, [(LATER, 0)]),
    "a whole one replaces another": Case(announced(1, **FIRST), [(WHOLE, 1, 2)], announced(4, host="web-4")),
    "late": Case(announced(5, host="web-3"), [(WHOLE, 2), (LATER, 2)]),
    **{
        f"somebody else's: {value}": Case({KEY: value}, [(LATER, 0), (WHOLE, 1, 2)], announced(4, host="web-4"))
        for value in ("text", {"n": "9" * 30}, {"n": "text"})
    },
    "many": Case(
        {},
        [
            (announce(1, 0, *(word for number in range(500) for word in (f"h:1 {number}", " lock", 5))), 1, 2),
            (announce(2, 1, removed=tuple(f"h:1 {number}" for number in range(500))), 1, 2),
        ],
        announced(2),
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_script(scripts: Scripted, case: Case) -> None:
    scripts.check(case)


def test_times(scripts: Scripted) -> None:
    """A number behind a value is how long ago it began; the server adds its own time."""
    call = announce(1, 0, "host", "web-3", -1, "h:1 a b", " lock", 2_000, "since", "", 0)
    for reply in (1, 2):
        assert scripts.call(call) == reply
        fields, ttl = scripts.contents()[KEY]
        began, kind = fields.pop("h:1 a b").split()
        assert kind == "lock"
        assert scripts.now() - 10_000 < int(began) == int(fields.pop("since")) - 2_000
        assert (fields, ttl) == ({"n": "1", "host": "web-3"}, About(LEASE))
