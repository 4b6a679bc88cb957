"""Running a coroutine that never suspends: its result, its errors, and what remains of it."""

from __future__ import annotations

import asyncio
import gc
import sys
import weakref
from typing import Any

import pytest

from pyredisson._core import HoldFields, Run, Wheel


async def double(value: int) -> int:
    return 2 * value


async def nested(value: int) -> int:
    return await double(value) + await double(1)


async def fails(value: int) -> int:
    raise LookupError(value)


async def suspends(value: int) -> int:
    await asyncio.sleep(0)
    return value


class Thing:
    pass


async def gives(thing: Thing) -> Thing:
    return thing


def test_the_result_is_what_the_coroutine_returns() -> None:
    assert Run(double, 21).result == 42
    assert Run(nested, 20).result == 42


def test_nothing_runs_before_the_result_is_read() -> None:
    calls = []

    async def note(value: int) -> None:
        calls.append(value)

    run = Run(note, 1)
    assert not calls
    assert run.result is None
    assert calls == [1]


async def interrupted() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("error", "match", "run"),
    [
        (LookupError, "3", Run(fails, 3)),
        (KeyboardInterrupt, None, Run(interrupted)),
        (TypeError, None, Run(double)),  # type: ignore[call-arg]
        (RuntimeError, "suspended", Run(suspends, 1)),
    ],
)
def test_errors(error: type[BaseException], match: str | None, run: Run[Any]) -> None:
    with pytest.raises(error, match=match):
        _ = run.result


def test_nothing_is_kept() -> None:
    thing = Thing()
    before = sys.getrefcount(thing)
    for _ in range(100):
        assert Run(gives, thing).result is thing
    assert sys.getrefcount(thing) == before
    gone = weakref.ref(thing)
    del thing
    assert gone() is None


def test_the_fields_of_a_hold() -> None:
    under = Thing()
    hold = HoldFields((b"a", 1), "lock", b"me:1", None, 2.5, "held")
    hold.lost_below = under
    assert (hold.key, hold.commands, hold.owner, hold.count, hold.leases) == ((b"a", 1), "lock", b"me:1", 1, None)
    found = (hold.valid_until, hold.lost_below, hold.state, hold.reason, hold.listeners)
    assert found == (2.5, under, "held", "", None)
    wheel = Wheel()
    wheel.add(hold, 5)
    assert wheel.advance(5) == {0: [hold]}


def test_a_hold_in_a_ring_is_collected() -> None:
    thing = Thing()
    hold = HoldFields((b"a", 1), thing, b"me:1", None, 2.5, "held")
    thing.hold = hold  # type: ignore[attr-defined]
    gone = weakref.ref(thing)
    del hold, thing
    gc.collect()
    assert gone() is None
