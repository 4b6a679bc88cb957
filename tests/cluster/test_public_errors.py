"""Whatever a call of a primitive raises in an outage is of a class that a user can import."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import redis.exceptions

import pyredisson
from pyredisson.testing import Cluster
from tests.support.backends import Backend

from .test_redirects import NAME, connect, naming_each_other, other_than

FACTORIES: dict[str, Callable[[Any, str], Any]] = {
    "Lock": lambda client, name: client.get_lock(name),
    "FairLock": lambda client, name: client.get_fair_lock(name),
    "FencedLock": lambda client, name: client.get_fenced_lock(name),
    "SpinLock": lambda client, name: client.get_spin_lock(name),
    "NonReentrantLock": lambda client, name: client.get_non_reentrant_lock(name),
    "NonReentrantFairLock": lambda client, name: client.get_non_reentrant_fair_lock(name),
    "ReadLock": lambda client, name: client.get_read_write_lock(name).read_lock(),
    "WriteLock": lambda client, name: client.get_read_write_lock(name).write_lock(),
    "MultiLock": lambda client, name: client.get_multi_lock(client.get_lock(name), client.get_fair_lock("f" + name)),
    "RedLock": lambda client, name: client.get_red_lock(client.get_lock(name), client.get_fair_lock("f" + name)),
    "Semaphore": lambda client, name: client.get_semaphore(name),
    "PermitExpirableSemaphore": lambda client, name: client.get_permit_expirable_semaphore(name),
    "CountDownLatch": lambda client, name: client.get_count_down_latch(name),
}
NOT_AWAITED = {"hold", "on_lost", "permit", "remove_on_lost"}
ENDLESS = {"acquire", "acquire_many", "lock", "lock_and_get_token"}
"""Without a limit they go on until the trouble is over."""
ID = "0" * 32
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "add_permits": (1,),
    "get_lease_time": (ID,),
    "is_held_by": (1,),
    "reduce_permits": (1,),
    "set_permits": (1,),
    "try_acquire_many": (2,),
    "try_release": (ID,),
    "try_set_count": (1,),
    "try_set_permits": (1,),
    "update_lease_time": (ID, 1),
    "wait": (0.05,),
}


@contextmanager
def half_moved(cluster: Cluster, slot: int) -> Iterator[None]:
    cluster.begin_move(slot, other_than(cluster.node_of(slot), cluster))
    try:
        yield
    finally:
        cluster.move_keys(slot)
        cluster.finish_move(slot)


@contextmanager
def never_found(cluster: Cluster, slot: int) -> Iterator[None]:
    """Nodes name each other, which the server allows only without keys. The client still believes to hold its locks."""
    cluster.flush()
    with naming_each_other(cluster, slot):
        yield


def is_public(kind: type[Exception]) -> bool:
    return any(getattr(module, kind.__name__, None) is kind for module in (redis.exceptions, pyredisson, builtins))


@pytest.mark.asyncio
@pytest.mark.parametrize("trouble", [never_found, half_moved])
async def test_each_call(
    cluster: Cluster, backend: Backend, trouble: Callable[[Cluster, int], AbstractContextManager[None]]
) -> None:
    client = connect(backend, retry_attempts=0)
    objects = {kind: make(client, f"{kind}{{{NAME}}}") for kind, make in FACTORIES.items()}
    for made in objects.values():
        if hasattr(getattr(made, "_target", made), "lock"):
            await made.lock(60)
    raised: dict[str, type[Exception]] = {}
    with trouble(cluster, cluster.slot_of_key(NAME)):
        for kind, made in objects.items():
            public = getattr(pyredisson, kind)
            for method in sorted(name for name in dir(public) if callable(getattr(public, name))):
                if method.startswith("_") or method in NOT_AWAITED | ENDLESS:
                    continue
                arguments = ARGUMENTS.get(method, ())
                if method == "release" and kind == "PermitExpirableSemaphore":
                    arguments = (ID,)
                try:
                    await getattr(made, method)(*arguments)
                except Exception as error:  # noqa: BLE001 - any class may come
                    raised[f"{kind}.{method}"] = type(error)
    assert not {call: error for call, error in raised.items() if not is_public(error)}
    assert sum(issubclass(error, redis.exceptions.RedisError) for error in raised.values()) > 20
