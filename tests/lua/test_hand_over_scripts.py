"""The scripts that hand an exclusive lock on to the next owner: what holds for every kind of lock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from .scripted import ANYTHING, ME, YOU, Call, Case, Ends, Scripted, State

QUEUE, SCORES = "redisson_lock_queue:{orders}", "redisson_lock_timeout:{orders}"
COUNTER = "redisson_lock_token:{orders}"
FAIR = ["orders", QUEUE, SCORES, "pyredisson_fair_waiters:{orders}", "pyredisson_fair_clients:{orders}"]
LIST = "pyredisson_waiting:{orders}"
LEASE = 20_000
MY_WRITE, YOUR_WRITE = f"{ME}:write", f"{YOU}:write"


@dataclass(frozen=True)
class Kind:
    """A kind of lock."""

    call: Call
    held: Callable[[str, int], dict[str, Any]] = lambda owner, levels: {owner: levels}
    waiting: State | None = None
    """Further keys while the next owner waits."""
    after: State | None = None
    """Further keys after a hand-over."""


KINDS = {
    "lock": Kind(Call("lock_hand_over", ["orders", LIST], [ME, YOU, LEASE, "me:1"])),
    "fenced": Kind(
        Call(
            "fenced_hand_over", ["orders", COUNTER, "pyredisson_fenced_newest:{orders}", LIST], [ME, YOU, LEASE, "me:1"]
        ),
        after={COUNTER: ANYTHING},
    ),
    "fair": Kind(
        Call("fair_hand_over", FAIR, ["redisson_lock__channel:{orders}", ME, 300_000, YOU, LEASE]),
        waiting={QUEUE: [YOU], SCORES: Ends({YOU: 300_000})},
    ),
    "write": Kind(
        Call("write_hand_over", ["orders", "{orders}:"], ["redisson_rwlock:{orders}", MY_WRITE, YOUR_WRITE, LEASE]),
        lambda owner, levels: {"mode": "write", f"{owner}:write": levels},
    ),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize(
    ("holder", "levels", "lease", "levels_after", "lease_after"),
    [
        pytest.param(ME, 1, 30_000, 1, LEASE, id="a hold"),
        pytest.param(ME, 3, 30_000, 1, LEASE, id="all levels"),
        pytest.param(ME, 1, None, 1, LEASE, id="a hold without an end"),
        pytest.param(YOU, 1, 60_000, 1, 60_000, id="a copy does not shorten the lease"),
        pytest.param(YOU, 1, 10_000, 1, LEASE, id="a copy lengthens the lease"),
    ],
)
def test_the_next_owner_has_it(
    scripts: Scripted, kind: Kind, holder: str, levels: int, lease: int | None, levels_after: int, lease_after: int
) -> None:
    before = {"orders": (kind.held(holder, levels), lease), **((kind.waiting or {}) if holder == ME else {})}
    after = {"orders": (kind.held(YOU, levels_after), lease_after), **(kind.after or {})}
    scripts.check(Case(before, [(kind.call, [ANYTHING])], after))


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("free", [False, True])
def test_the_hold_was_lost(scripts: Scripted, kind: Kind, free: bool) -> None:
    """Nobody gets the lock by that."""
    before = {} if free else {"orders": (kind.held(f"{YOU}0", 2), 20_000)}
    scripts.check(Case({**before, **(kind.waiting or {})}, [(kind.call, 0)]))


def test_each_copy_has_a_token_of_its_own(scripts: Scripted) -> None:
    scripts.write({"orders": ({ME: 1}, 30_000)})
    [[first], [second]] = [scripts.call(KINDS["fenced"].call) for _ in range(2)]
    assert 0 < first < second
    assert scripts.text(COUNTER) == str(second)
