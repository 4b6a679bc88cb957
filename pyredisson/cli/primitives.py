"""One use of each primitive, by which `doctor` finds out what the user may do. It leaves no key without a TTL."""

from __future__ import annotations

from collections.abc import Callable

from pyredisson._api.sync.client import Client


def _lock(client: Client, name: str) -> None:
    with client.get_lock(name).hold(wait_time=0, lease_time=10):
        pass


def _fair_lock(client: Client, name: str) -> None:
    with client.get_fair_lock(name).hold(wait_time=0, lease_time=10):
        pass


def _read_write_lock(client: Client, name: str) -> None:
    lock = client.get_read_write_lock(name)
    for side in (lock.read_lock(), lock.write_lock()):
        with side.hold(wait_time=0, lease_time=10):
            pass


def _fenced_lock(client: Client, name: str) -> None:
    lock = client.get_fenced_lock(name)
    try:
        with lock.hold(wait_time=0, lease_time=10):
            lock.get_token()
    finally:
        lock.delete()


def _semaphore(client: Client, name: str) -> None:
    semaphore = client.get_semaphore(name)
    try:
        semaphore.try_set_permits(1, ttl=60)
        with semaphore:
            pass
    finally:
        semaphore.delete()


def _permits(client: Client, name: str) -> None:
    semaphore = client.get_permit_expirable_semaphore(name)
    try:
        semaphore.try_set_permits(1)
        semaphore.release(semaphore.acquire(lease_time=10))
    finally:
        semaphore.delete()


def _latch(client: Client, name: str) -> None:
    latch = client.get_count_down_latch(name)
    try:
        latch.try_set_count(1)
        latch.count_down()
    finally:
        latch.delete()


USES: dict[str, Callable[[Client, str], None]] = {
    "Lock": _lock,
    "FairLock": _fair_lock,
    "ReadWriteLock": _read_write_lock,
    "FencedLock": _fenced_lock,
    "Semaphore": _semaphore,
    "PermitExpirableSemaphore": _permits,
    "CountDownLatch": _latch,
}
"""What `doctor` calls with a client and a name of its own, by the names of the classes."""
