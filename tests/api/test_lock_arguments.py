"""Invalid arguments, and names that a cluster can't serve, are refused before anything is sent."""

from __future__ import annotations

import math
import re
import weakref
from collections.abc import Callable
from datetime import timedelta
from threading import TIMEOUT_MAX
from typing import Any

import pytest

import pyredisson
import pyredisson.asyncio
from tests.support.backends import NOWHERE, Backend
from tests.support.kinds import KINDS

from .kinds import GROUPS, kinds, lock_of

pytestmark = pytest.mark.asyncio
NAMES: list[tuple[Any, type[Exception], str]] = [
    ("", ValueError, "empty"),
    (b"", ValueError, "empty"),
    *((wrong, TypeError, "name") for wrong in (None, 1, 1.5, ["orders"], bytearray(b"orders"), True)),
]
LEASED: list[Callable[[Any, Any], Any]] = [
    lambda lock, lease: lock.lock(lease),
    lambda lock, lease: lock.lock(lease_time=lease),
    lambda lock, lease: lock.try_lock(0, lease),
    lambda lock, lease: lock.try_lock(lease_time=lease),
    lambda lock, lease: lock.hold(lease_time=lease).__aenter__(),
]
LEASED_WITH_TOKEN: list[Callable[[Any, Any], Any]] = [
    lambda lock, lease: lock.lock_and_get_token(lease),
    lambda lock, lease: lock.try_lock_and_get_token(0, lease),
]
WAITING: list[Callable[[Any, Any], Any]] = [
    lambda lock, wait: lock.try_lock(wait),
    lambda lock, wait: lock.try_lock(wait_time=wait, lease_time=1),
    lambda lock, wait: lock.hold(wait).__aenter__(),
    lambda lock, wait: lock.acquire(True, wait),
    lambda lock, wait: lock.acquire(timeout=wait),
    lambda lock, wait: lock.lost.wait(wait),
]
IMPOSSIBLE = [
    *(0, 0.0, 0.000999, -1, -0.5, math.nan, math.inf, -math.inf, 2**52 / 1000 + 1, 2**63, 1e300, 10**400, -(10**400)),
    *(timedelta(0), timedelta(-1), timedelta(microseconds=999)),
]
IMPOSSIBLE_WAITS = [-2, -0.001, math.nan, -math.inf, -(10**400), timedelta(seconds=-2)]


@kinds
async def test_names(backend: Backend, kind: str) -> None:
    client = backend.connect(NOWHERE)
    for name, error, text in NAMES:
        with pytest.raises(error, match=text):
            lock_of(client, kind, name)


async def test_a_name_that_is_no_text_and_mappers(backend: Backend) -> None:
    text = re.escape(r"the name 'a\ud800' can't be encoded as UTF-8 (position 1)")
    mapping = backend.connect(NOWHERE, name_mapper=lambda name: name)
    for client in (backend.connect(NOWHERE), mapping):
        with pytest.raises(ValueError, match=text):
            client.get_lock("a\ud800")
    with pytest.raises(ValueError, match=re.escape(r"the name b'a\xff' isn't UTF-8 (position 1)")):
        mapping.get_lock(b"a\xff")
    for mapped, error in (("", ValueError), (None, TypeError), (b"x", TypeError)):
        mapper: Any = lambda _, mapped=mapped: mapped  # noqa: E731
        with pytest.raises(error):
            backend.connect(NOWHERE, name_mapper=mapper).get_lock("orders")


@pytest.mark.parametrize(
    ("owner", "error"),
    [(-1, ValueError), (2**32, ValueError), ("", ValueError), (b"1", TypeError), (1.0, TypeError), (True, TypeError)],
)
async def test_owners(backend: Backend, owner: Any, error: type[Exception]) -> None:
    client = backend.connect(NOWHERE)
    for kind in KINDS:
        with pytest.raises(error, match="owner"):
            lock_of(client, kind, owner=owner)
    if error is TypeError:
        lock: Any = client.get_lock("orders")
        for wrong in (owner, None):
            with pytest.raises(TypeError, match="owner"):
                await lock.is_held_by(wrong)


@pytest.mark.parametrize("kind", ["lock", "spin", "fenced", *GROUPS])
async def test_leases(backend: Backend, kind: str) -> None:
    lock = lock_of(backend.connect(NOWHERE), kind)
    for call in LEASED + (LEASED_WITH_TOKEN if kind == "fenced" else []):
        for lease in IMPOSSIBLE:
            with pytest.raises(ValueError, match="lease_time"):
                await call(lock, lease)
        for wrong in ("10", b"10", True, [10], 1j):
            with pytest.raises(TypeError, match="lease_time"):
                await call(lock, wrong)


@pytest.mark.parametrize("kind", ["lock", "spin", "fenced", *GROUPS])
async def test_waits(backend: Backend, kind: str) -> None:
    lock = lock_of(backend.connect(NOWHERE), kind)
    calls = WAITING + ([lambda lock, wait: lock.try_lock_and_get_token(wait)] if kind == "fenced" else [])
    for call in calls:
        for wait in IMPOSSIBLE_WAITS:
            with pytest.raises(ValueError, match=r"wait_time|timeout"):
                await call(lock, wait)
        for wrong in ("1", b"1", True, [1]):
            with pytest.raises(TypeError, match=r"wait_time|timeout"):
                await call(lock, wrong)
    for refused in ((False, 1), (False, 0), (True, -2), (True, -0.5)):
        with pytest.raises(ValueError, match="timeout"):
            await lock.acquire(*refused)
    # Threading's timeout has no None, and a maximum.
    with pytest.raises(TypeError, match="timeout"):
        await lock.acquire(timeout=None)
    for endless in (TIMEOUT_MAX + 1, 1e100, 10**400, math.inf):
        with pytest.raises(OverflowError, match="timeout"):
            await lock.acquire(timeout=endless)


async def test_what_can_be(backend: Backend) -> None:
    lock = backend.connect().get_lock("orders")
    for wait in (0, 0.0, 0.001, 1e9, math.inf, timedelta(days=1), timedelta(0)):
        assert await lock.try_lock(wait_time=wait)
        assert await lock.acquire(timeout=TIMEOUT_MAX)
    assert await lock.force_unlock()
    for lease in (1, 2**40 / 1000):
        assert await lock.try_lock(lease_time=lease)
    # A lease that ends before the reply is here is no grant.
    for short in (0.001, 0.0015, timedelta(milliseconds=1)):
        await backend.connect().get_lock("short").try_lock(lease_time=short)


async def test_weak_references_to_all_that_a_client_makes() -> None:
    for module in (pyredisson, pyredisson.asyncio):
        client = module.connect(NOWHERE)
        pair = client.get_read_write_lock("a")
        made = [lock_of(client, kind, "a") for kind in [*KINDS, *GROUPS]]
        made += [pair, client.get_count_down_latch("b"), client.get_semaphore("c")]
        made.append(client.get_permit_expirable_semaphore("d"))
        assert [weakref.ref(each)() for each in made] == made


async def test_on_lost_needs_a_function(backend: Backend) -> None:
    lock = backend.connect(NOWHERE).get_lock("orders")
    for wrong in (None, 5):
        with pytest.raises(TypeError, match="function"):
            lock.on_lost(wrong)  # type: ignore[type-var]


FACTORIES = [
    name for name in dir(pyredisson.Client) if name.startswith("get_") and name[4:] not in ("multi_lock", "red_lock")
]
PARTED = ["a{b", "{}x", "a}b", "{", "x}y", "{}", "a{}b{c}"]
TOGETHER = ["orders", "{orders}:1", "a{b}c", "x}y{z}", "{a}{}", " ", "\u00e4"]


@pytest.mark.parametrize("module", [pyredisson, pyredisson.asyncio], ids=["threads", "asyncio"])
@pytest.mark.parametrize("factory", FACTORIES)
async def test_names_on_a_cluster(module: Any, factory: str) -> None:
    """The name that counts is the mapped one."""
    cluster = {"topology": "cluster", "nodes": ["h1:7000"]}
    get = getattr(module.connect(**cluster), factory)
    for name in PARTED:
        for given in (name, name.encode()):
            with pytest.raises(ValueError, match=r"can't be used on a cluster: its braces.*\{orders\}:1") as caught:
                get(given)
            assert repr(name) in str(caught.value)
    for name in TOGETHER:
        assert get(name).name == name
    for others in ({"topology": "single"}, {**cluster, "topology": "replicated"}):
        assert [getattr(module.connect(**others), factory)(name).name for name in PARTED] == PARTED
    mapping = module.connect(**cluster, name_mapper=lambda name: f"{name}}}")
    with pytest.raises(ValueError, match="'orders}' can't be used on a cluster"):
        getattr(mapping, factory)("orders")
    repaired = module.connect(**cluster, name_mapper=lambda name: name.replace("{", ""))
    assert getattr(repaired, factory)("a{b").name == "a{b"


async def test_all_factories_are_tested() -> None:
    assert {"get_lock", "get_read_write_lock", "get_semaphore", "get_count_down_latch"} <= {*FACTORIES}
    assert len(FACTORIES) == 10
