"""Rules of the logic without a server: series of hand-overs, when waiters look, which losses are remembered."""

from __future__ import annotations

from typing import Any

import pytest

from pyredisson.logic import losses
from pyredisson.logic.locks.queued_wait import delay_of
from pyredisson.logic.losses import UnreleasedLosses
from pyredisson.logic.permits.permit_queue import PermitQueue


def test_a_series_of_hand_overs_has_an_end() -> None:
    queue, waiter = PermitQueue(), Any
    assert not queue.may_hand_over(100.0, 5.0)
    queue.waiters[waiter] = None  # type: ignore[index]
    assert not queue.may_hand_over(100.0, 0.0)
    assert queue.may_hand_over(100.0, 5.0)
    queue.on_handed_over(100.0, 5.0)
    queue.on_handed_over(104.0, 5.0)
    assert queue.may_hand_over(104.9, 5.0)
    assert not queue.may_hand_over(105.0, 5.0)
    assert not queue.may_hand_over(200.0, 5.0)


def test_a_queue_is_kept_while_a_series_would_have_to_be_ended() -> None:
    queue = PermitQueue()
    assert queue.is_idle(100.0)
    queue.on_handed_over(100.0, 5.0)
    assert not queue.is_idle(104.9)
    assert queue.is_idle(105.0)


def test_the_first_clients_look_soon_and_the_others_within_two_thirds_of_the_lease() -> None:
    assert [delay_of(place, 30.0) for place in (0, 1)] == [0.0, 0.05]
    delays = [delay_of(place, 30.0) for place in range(2, 1000)]
    assert delays == sorted(delays)
    assert 10.0 < delays[0] < 11.0
    assert delays[-1] == 20.0


def test_the_latest_losses_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "MOST_LOST", 10)
    forgotten: list[int] = []
    unreleased = UnreleasedLosses[int](lambda _: True, forgotten.append)
    for key in (*range(10), 0, 10):
        unreleased.add(key)
    assert forgotten == [1, 2]
