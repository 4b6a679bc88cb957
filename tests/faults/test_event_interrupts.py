"""Ctrl-C at each moment of an acquire and of a release: each wait and each hold that was told has one end."""

from __future__ import annotations

import pytest
from redis import Redis

import pyredisson
from pyredisson.testing import Server
from tests.support.observers import Recorder, check_pairs, everything_told, told, whats
from tests.support.waiting import eventually

from .test_hand_over_interrupts import LIMIT, Contender, Interrupt, nothing_is_left, sleeps

pytestmark = [
    pytest.mark.slow,
    # A connection, or a coroutine that has not begun, is collected if its only user is interrupted.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def take_events(client: pyredisson.Client) -> list[pyredisson.Event]:
    events = told(client)
    everything_told(client).clear()
    return events


def test_an_acquire(server: Server, admin: Redis) -> None:
    interrupts = 0
    with pyredisson.connect(server.url, observer=Recorder()) as client:
        lock = client.get_lock("a", owner=1)
        while True:
            interrupt = Interrupt(interrupts + 1)
            interrupted = False
            try:
                with interrupt.here():
                    lock.lock()
            except KeyboardInterrupt:
                interrupted = True
            else:
                lock.unlock()
            assert interrupted is bool(interrupt.where)
            nothing_is_left(client, admin, interrupt.where)
            events = take_events(client)
            check_pairs(events, interrupt.where)
            if not interrupt.where:
                assert whats(events) == ["acquired", "released"]
                break
            interrupts += 1
    assert interrupts > 20


def test_a_release(server: Server, admin: Redis) -> None:
    interrupts = 0
    with pyredisson.connect(server.url, observer=Recorder()) as client:
        lock = client.get_lock("a", owner=1)
        while True:
            interrupt = Interrupt(interrupts + 1)
            lock.lock()
            try:
                with interrupt.here():
                    lock.unlock()
            except KeyboardInterrupt:
                pass
            nothing_is_left(client, admin, interrupt.where)
            events = take_events(client)
            assert whats(events) == ["acquired", "released"], interrupt.where
            check_pairs(events, interrupt.where)
            if not interrupt.where:
                break
            interrupts += 1
    assert interrupts > 15


@pytest.mark.parametrize("way", ["handed on", "message"])
def test_a_wait(server: Server, admin: Redis, way: str) -> None:
    interrupts = 0
    with (
        pyredisson.connect(server.url, local_hand_over_time=60, observer=Recorder()) as client,
        pyredisson.connect(server.url) as other,
    ):
        holder = (client if way == "handed on" else other).get_lock("a", owner=1)
        while True:
            interrupt = Interrupt(interrupts + 1)
            holder.lock()
            waiter = Contender(client, 2, interrupt)
            waiter.start()
            eventually(lambda: sleeps(client, 2) or not waiter.is_alive(), LIMIT)  # noqa: B023
            holder.unlock()
            waiter.end(interrupt.where)
            nothing_is_left(client, admin, interrupt.where)
            check_pairs(take_events(client), interrupt.where)
            if not interrupt.where:
                break
            interrupts += 1
    assert interrupts > 50
