"""The scripts of the count-down latch: every branch, sent twice, and late."""

from __future__ import annotations

import pytest

from .scripted import Call, Case, Scripted

CHANNEL = "redisson_countdownlatch__channel__{done}"
SLOT, OTHER = "pyredisson_once:{done}:me:0", "pyredisson_once:{done}:me:1"


def set_count(number: int, count: int) -> Call:
    return Call("latch_set", ["done", SLOT], [number, count, CHANNEL])


def count_down(number: int, slot: str = SLOT) -> Call:
    return Call("latch_count_down", ["done", slot], [number, CHANNEL])


def delete(number: int) -> Call:
    return Call("exactly_once_delete", ["done", SLOT], [number, CHANNEL, "1"])


def once(text: str) -> dict[str, tuple[str, int]]:
    return {SLOT: (text, 660_000)}


CASES = {
    "set, one that counts": Case({"done": 2}, [(set_count(2, 3), 0)], {"done": 2, **once("2 0")}),
    "the largest count": Case(
        {}, [(set_count(2, 2**63 - 1), 1), (count_down(4), 0)], {"done": 2**63 - 2, **once("4 0")}, ["1"]
    ),
    "count down": Case({"done": 3}, [(count_down(2), 0), (count_down(4), 0)], {"done": 1, **once("4 0")}),
    "count down to zero": Case({"done": 1}, [(count_down(2), 1)], once("2 1"), ["0"]),
    "delete": Case({"done": 3}, [(delete(2), 1)], once("2 1"), ["1"]),
    "delete, none": Case({}, [(delete(2), 0)], once("2 0")),
    # The message makes Redisson's clients wait for the new count.
    **{
        f"set, open: {count}": Case({"done": count}, [(set_count(2, 3), 1)], {"done": 3, **once("2 1")}, ["1"])
        for count in (0, -2)
    },
    **{f"count down, open: {count}": Case({"done": count}, [(count_down(2), 0)], once("2 0")) for count in (0, -2)},
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_script(scripts: Scripted, case: Case) -> None:
    scripts.check(case)
