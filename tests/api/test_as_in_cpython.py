"""CPython's own tests of locks and semaphores (`test.lock_tests`), for each kind that they apply to. Threads only."""

import math
import unittest
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from itertools import count
from typing import Any

import pytest

import pyredisson
from pyredisson.testing import Server

from .kinds import GROUPS, NON_REENTRANT, REENTRANT, lock_of

lock_tests = pytest.importorskip("test.lock_tests", reason="this Python was installed without its own tests")

Tests = type[unittest.TestCase]

NUMBERS = count()
OTHERWISE = {
    "test_acquire_timeout": "it wants each reply of a server within 5 ms",
    "test_constructor_noargs": "clients make the locks",
    **dict.fromkeys(("test_repr", "test_locked_repr", "test_repr_count"), "the text is another one"),
}
"""Tests that don't apply, and why."""
OTHERWISE_IN_GROUPS = {
    "test_recursion_count": "a group has no count",
    **dict.fromkeys(("test_locked", "test_locked_with_2threads"), "a group says only whether the caller holds it"),
}


def cases(tests: Tests, kinds: Iterable[str]) -> list[Any]:
    return [
        pytest.param(tests, name, kind, id=f"{kind}-{name}")
        for kind in kinds
        for name in unittest.defaultTestLoader.getTestCaseNames(tests)
        if name not in OTHERWISE and not (kind in GROUPS and name in OTHERWISE_IN_GROUPS)
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
    ("tests", "name", "kind"),
    # A read lock isn't exclusive.
    cases(lock_tests.RLockTests, [kind for kind in [*REENTRANT, *GROUPS] if kind != "read"])
    + cases(lock_tests.BaseLockTests, NON_REENTRANT),
)
def test_locks(client: pyredisson.Client, tests: Tests, name: str, kind: str) -> None:
    def new() -> Any:
        """A lock of its own, with the names that `threading.Condition` wants of a re-entrant lock."""
        lock = lock_of(client, kind, f"orders-{next(NUMBERS)}")
        ours = type(lock)
        names = {"_is_owned": ours.is_held, "_recursion_count": ours.get_hold_count, "_release_save": ours.unlock}
        lock.__class__ = type(ours.__name__, (ours,), {"__slots__": (), **names})
        return lock

    run(tests, name, locktype=new)


class AsInThreading:
    """A semaphore with the methods of `threading.Semaphore`."""

    def __init__(self, semaphore: Any, value: int) -> None:
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

    __enter__ = acquire

    def __exit__(self, *_: object) -> None:
        self.release()


@pytest.mark.parametrize(
    ("tests", "name", "factory"),
    cases(lock_tests.SemaphoreTests, ["get_semaphore"])
    # Only who has acquired a permit can release it, so `SemaphoreTests` doesn't apply.
    + cases(lock_tests.BaseSemaphoreTests, ["get_permit_expirable_semaphore"]),
)
def test_semaphores(client: pyredisson.Client, tests: Tests, name: str, factory: str) -> None:
    make = getattr(client, factory)
    run(tests, name, semtype=lambda value=1: AsInThreading(make(f"orders-{next(NUMBERS)}"), value))
