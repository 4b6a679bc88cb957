"""CPython's own tests of locks and semaphores (`test.lock_tests`), for each kind that they apply to. Threads only."""

from __future__ import annotations

import math
import unittest
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import count
from typing import Any

import pytest

import pyredisson
from pyredisson.testing import Server

lock_tests = pytest.importorskip("test.lock_tests", reason="this Python was installed without its own tests")

Tests = type[unittest.TestCase]
AnyLock = pyredisson.Lock | pyredisson.MultiLock | pyredisson.RedLock
AnySemaphore = pyredisson.Semaphore | pyredisson.PermitExpirableSemaphore
MakeLock = Callable[[pyredisson.Client, str], AnyLock]
MakeSemaphore = Callable[[pyredisson.Client, str], AnySemaphore]

RE_ENTRANT: dict[str, MakeLock] = {
    "lock": lambda client, name: client.get_lock(name),
    "fair": lambda client, name: client.get_fair_lock(name),
    "fenced": lambda client, name: client.get_fenced_lock(name),
    "spin": lambda client, name: client.get_spin_lock(name),
    "write": lambda client, name: client.get_read_write_lock(name).write_lock(),
    "multi": lambda client, name: client.get_multi_lock(client.get_lock(name), client.get_fair_lock(name + "b")),
    "red": lambda client, name: client.get_red_lock(*(client.get_lock(name + member) for member in "abc")),
}
NON_RE_ENTRANT: dict[str, MakeLock] = {
    "non-reentrant": lambda client, name: client.get_non_reentrant_lock(name),
    "non-reentrant-fair": lambda client, name: client.get_non_reentrant_fair_lock(name),
}

OTHERWISE = {
    "test_acquire_timeout": "it wants each reply of a server within 5 ms",
    "test_constructor_noargs": "clients make the locks",
    "test_repr": "the text is another one",
    "test_locked_repr": "the text is another one",
    "test_repr_count": "the text is another one",
}
"""Tests that don't apply, and why."""
OTHERWISE_IN_GROUPS = {
    "test_recursion_count": "a group has no count",
    "test_locked": "a group says only whether the caller holds it",
    "test_locked_with_2threads": "a group says only whether the caller holds it",
}


def cases(tests: Tests, kinds: dict[str, Any]) -> list[Any]:
    return [
        pytest.param(tests, name, make, id=f"{kind}-{name}")
        for kind, make in kinds.items()
        for name in unittest.defaultTestLoader.getTestCaseNames(tests)
        if name not in OTHERWISE and not (kind in {"multi", "red"} and name in OTHERWISE_IN_GROUPS)
    ]


@pytest.fixture
def client(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[pyredisson.Client]:
    # The tests count the threads of the process before and after. A client has threads of its own.
    monkeypatch.setattr(lock_tests.threading_helper, "wait_threads_exit", lambda _=None: nullcontext())
    with pyredisson.connect(server.url) as client:
        yield client


def run(tests: Tests, name: str, **made: Callable[..., object]) -> None:
    """One test. What CPython does before and after it is left out, as it looks for threads and processes of others."""
    alone = {"setUp": lambda _: None, "tearDown": lambda _: None}
    case = type(tests.__name__, (tests,), alone | {key: staticmethod(make) for key, make in made.items()})
    case(name).debug()


@pytest.mark.parametrize(
    ("tests", "name", "make"),
    cases(lock_tests.RLockTests, RE_ENTRANT) + cases(lock_tests.BaseLockTests, NON_RE_ENTRANT),
)
def test_locks(client: pyredisson.Client, tests: Tests, name: str, make: MakeLock) -> None:
    numbers = count()

    def new() -> AnyLock:
        """A lock of its own, with the names that `threading.Condition` wants of a re-entrant lock."""
        lock = make(client, f"orders-{next(numbers)}")
        of_condition = {
            "_is_owned": lambda lock: lock.is_held(),
            "_recursion_count": lambda lock: lock.get_hold_count(),
            "_release_save": lambda lock: lock.unlock(),
        }
        lock.__class__ = type(type(lock).__name__, (type(lock),), {"__slots__": (), **of_condition})
        return lock

    run(tests, name, locktype=new)


class AsInThreading:
    """A semaphore with the methods of `threading.Semaphore`."""

    def __init__(self, semaphore: AnySemaphore, value: int) -> None:
        self._semaphore = semaphore
        self._acquired: list[Any] = []
        semaphore.try_set_permits(value)

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        if not blocking and timeout is not None:
            raise ValueError
        permit = self._semaphore.try_acquire(wait_time=math.inf if blocking and timeout is None else timeout or 0)
        if permit:
            self._acquired.append(permit)
        return bool(permit)

    def release(self, permits: int = 1) -> None:
        if isinstance(self._semaphore, pyredisson.Semaphore):
            self._semaphore.release(permits)
        else:
            self._semaphore.release([self._acquired.pop() for _ in range(permits)])

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


@pytest.mark.parametrize(
    ("tests", "name", "make"),
    cases(lock_tests.SemaphoreTests, {"semaphore": lambda client, name: client.get_semaphore(name)})
    + cases(
        # Only who has acquired a permit can release it, so `SemaphoreTests` doesn't apply.
        lock_tests.BaseSemaphoreTests,
        {"expirable": lambda client, name: client.get_permit_expirable_semaphore(name)},
    ),
)
def test_semaphores(client: pyredisson.Client, tests: Tests, name: str, make: MakeSemaphore) -> None:
    numbers = count()
    run(tests, name, semtype=lambda value=1: AsInThreading(make(client, f"orders-{next(numbers)}"), value))
