"""Names and owners as the server has them, which Redisson shares; and what is refused before a command is sent."""

import copy
import gc
import math
import pickle
import re
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from itertools import product
from threading import TIMEOUT_MAX
from typing import Any
from uuid import UUID

import pytest

import pyredisson.asyncio
from pyredisson import LockAlreadyHeldError, LockNotHeldError, new_owner
from pyredisson.testing import Proxy
from tests.support.backends import NOWHERE, TIME_LIMIT, Backend, ServerState, fails, in_turn, waiters
from tests.support.kinds import KINDS

from .kinds import GROUPS, ID, lock_of

MANY = 20_000


async def test_owners_are_distinguished(backend: Backend, client: Any, state: ServerState) -> None:
    fresh, other = new_owner(), new_owner()
    assert (len({fresh, other, fresh}), repr(fresh)) == (2, f"<pyredisson.ExplicitOwner {fresh.id}>")
    assert 2**48 <= fresh.id < other.id < 2**62
    # In another process its id is the id of an owner that was made there.
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="belongs to its process"):
            duplicate(fresh)
    owners: list[Any] = [fresh, other, "alice", "7", "07", 7, 0, 2**32 - 1]
    locks = [client.get_lock("orders", owner=owner) for owner in owners]
    for owner, lock in zip(owners, locks, strict=True):
        await lock.lock()
        assert [await lock.is_held_by(each) for each in owners] == [each is owner for each in owners]
        assert await lock.is_held_by(fresh.id) == (owner is fresh)
        for another in {client.get_lock("orders"), *locks} - {lock}:
            assert not await another.try_lock()
            await fails(LockNotHeldError, another.unlock)
        # Ids on the server are decimal.
        [(name, holds)] = state.holds("orders").items()
        client_id, _, number = name.partition(":")
        assert (client_id, holds) == (client.id, "1")
        of_text = isinstance(owner, str)
        assert int(number) in range(2**62, 2**63) if of_text else number == str(getattr(owner, "id", owner))
        await lock.unlock()
    assert (str(UUID(client.id)), UUID(client.id).version) == (client.id, 4)
    # Threads' and tasks' own ids are used again as soon as they have ended; those of owners are not.
    found = set()
    for index in range(20):
        await backend.as_another_owner(client.get_lock(f"orders{index}").lock)
        assert state.redis.type(f"orders{index}") == b"hash"
        [(name, holds)] = state.holds(f"orders{index}").items()
        client_id, _, number = name.partition(":")
        assert re.fullmatch("[0-9]+", number)
        assert (client_id, int(number) >= 2**32, holds) == (client.id, True, "1")
        found.add(name)
    assert len(found) == 20


async def test_owners_that_are_kept_in_memory(client: Any, state: ServerState) -> None:
    """A question makes no owner."""
    lock = client.get_lock("orders", owner=1)
    gc.collect()
    before = sys.getallocatedblocks()
    for number in range(MANY):
        await lock.is_held_by(2 + number)
    gc.collect()
    assert sys.getallocatedblocks() - before < MANY / 2
    known = client._session.owners._explicit
    assert len(known) == 1
    # Owners are forgotten with their handles.
    handles = [client.get_lock("orders", owner=2 + number) for number in range(1000)]
    assert len(known) == 1001
    del handles
    for number in range(MANY):
        client.get_lock("orders", owner=f"request {number}")
    assert len(known) == 1
    # A hold outlives its handle.
    del lock
    for count in ("1", "2"):
        await client.get_lock("orders", owner="alice").lock()
        gc.collect()
        assert list(state.holds("orders").values()) == [count]
    await in_turn(client.get_lock("orders", owner="alice").unlock for _ in range(2))
    assert not state.holds("orders")
    gc.collect()
    assert not known


@pytest.mark.parametrize("owner", [7, "alice"])
async def test_no_name_in_doubt_recurs(backend: Backend, proxy: Proxy, state: ServerState, owner: Any) -> None:
    """Also when the owner was forgotten meanwhile: a late copy of the command must not meet a later hold."""
    client = backend.connect(proxy.url, timeout=0.5)
    proxy.drop_reply(b"orders")
    names: set[str] = set()
    for _ in range(3):
        await client.get_lock("orders", owner=owner).lock()
        async with client.get_lock("stock", owner=owner):
            names.update(state.holds("stock"))
        await client.get_lock("orders", owner=owner).unlock()
        gc.collect()  # the error that told of the doubt refers to the call
        assert not client._session.owners._explicit
    assert (len(names), client._session.id + ":7" in names) == (3, False)


async def test_threads_that_make_the_same_owner_at_once_get_one() -> None:
    with pyredisson.connect(NOWHERE) as client:
        begin = threading.Barrier(4)

        def make_owners(_: int) -> list[Any]:
            begin.wait(5)
            return [client.get_lock("orders", owner=number)._owner() for number in range(2000)]

        with ThreadPoolExecutor(4) as pool:
            made = list(pool.map(make_owners, range(4)))
        assert all(len(set(map(id, same))) == 1 for same in zip(*made, strict=True))


async def test_a_refused_waiter_leaves_the_hold_alone(backend: Backend, client: Any, state: ServerState) -> None:
    holder, lock = client.get_lock("orders", owner=1), client.get_non_reentrant_lock("orders", owner=7)
    await holder.lock()
    others = [backend.spawn(lock.lock) for _ in range(3)]
    await backend.until(lambda: waiters(client, "orders") == 3)
    await holder.unlock()
    await backend.until(lambda: any(other.done() for other in others))
    # The others are woken one by one, by messages that mean nothing.
    for _ in range(2):
        state.redis.publish("redisson_lock__channel:{orders}", "0")
    taken = 0
    for other in others:
        with suppress(LockAlreadyHeldError):
            await other.result()
            taken += 1
    assert (taken, await lock.get_hold_count(), list(state.holds("orders").values())) == (1, 1, ["1"])
    await lock.unlock()


@pytest.mark.parametrize("kind", ["get_lock", "get_non_reentrant_lock"])
async def test_no_level_is_released_twice(threads: Backend, proxy: Proxy, state: ServerState, kind: str) -> None:
    lock = getattr(threads.connect(proxy.url), kind)("orders", owner=7)
    await lock.lock()
    slow = proxy.hold_reply(b"orders")
    other = await threads.begin(lock.unlock, slow.held.is_set)
    await threads.until(lambda: not state.redis.exists("orders"))
    again = threads.spawn(lock.try_lock)
    slow.deliver()
    await other.result()
    assert (await again.result(), await lock.is_held()) == (True, True)
    await lock.unlock()
    await fails(LockNotHeldError, lock.unlock)


NAMES: list[str | bytes] = ["orders", "{t}foo", "a b", "a}b", "a{b", "'\"\r\n", "Schlüssel☃", b"\x00\xff", b"orders"]


@pytest.mark.parametrize("mapped", [False, True])
async def test_keys_and_channels(backend: Backend, state: ServerState, mapped: bool) -> None:
    """Any client hears every lock's messages."""
    client = backend.connect(name_mapper=(lambda name: f"{{t}}foo:{name}") if mapped else None)
    with state.redis.pubsub() as ear:
        ear.psubscribe("*")
        assert ear.get_message(timeout=TIME_LIMIT)["type"] == "psubscribe"
        for name in ("orders", b"orders") if mapped else NAMES:
            key = b"{t}foo:orders" if mapped else name.encode() if isinstance(name, str) else name
            channel = b"redisson_lock__channel:" + (key if b"{" in key else b"{%b}" % key)
            lock = client.get_lock(name)
            assert (lock.name, type(lock.name)) == (name, type(name))
            await lock.lock()
            assert state.redis.keys() == [key]
            await lock.unlock()
            message = ear.get_message(timeout=TIME_LIMIT)
            assert (message["channel"], message["data"], state.redis.keys()) == (channel, b"0", [])


FACTORIES = sorted(name for name in dir(pyredisson.Client) if re.match("get_(?!multi|red)", name))
Call = Callable[[Any, Any], Any]
Refused = tuple[list[Call], type[Exception], str, list[Any]]


def calls(*names: str, after: Sequence[Any] = (), by: str | None = None, **others: Any) -> list[Call]:
    """Calls of these methods with a value behind these arguments, or by this keyword, and with other keywords."""

    def call(name: str) -> Call:
        if by is None:
            return lambda called, value: getattr(called, name)(*after, value, **others)
        return lambda called, value: getattr(called, name)(**{by: value}, **others)

    return [call(name) for name in names]


def both(methods: list[Call], match: str, values: list[Any], of_types: list[Any]) -> list[Refused]:
    """Values that can't be, and others of types that can't be."""
    return [(methods, ValueError, match, values), (methods, TypeError, match, of_types)]


NO_LEASES = [
    *(0, 0.0, 0.000999, -1, -0.5, math.nan, math.inf, -math.inf, 2**52 / 1000 + 1, 2**63, 1e300, 10**400, -(10**400)),
    *(timedelta(0), timedelta(-1), timedelta(microseconds=999)),
]
NO_WAITS = [-2, -0.001, math.nan, -math.inf, -(10**400), timedelta(seconds=-2)]
NO_TIMES: list[Any] = ["1", b"1", True, [1]]
NO_NUMBERS: list[Any] = [True, 1.0, "1", None]
NO_IDS = ["", ID[:-1], ID + "0", "g" + ID[1:], " " + ID[1:], ID[:16] + " " * 16, "é" * 32]
LEASED = calls("lock", "extend") + calls("try_lock", after=[0]) + calls("lock", "try_lock", by="lease_time")
LEASED += [lambda lock, lease: lock.hold(lease_time=lease).__aenter__()]
WAITING = calls("try_lock") + calls("try_lock", by="wait_time", lease_time=1)
WAITING += calls("acquire", after=[True]) + calls("acquire", by="timeout")
WAITING += [lambda lock, wait: lock.hold(wait).__aenter__(), lambda lock, wait: lock.lost.wait(wait)]
WITH_TOKEN = [*calls("lock_and_get_token"), *calls("try_lock_and_get_token", after=[0])]
SET = ("try_set_permits", "add_permits")
COUNTING = calls(*SET, "acquire", "try_acquire", "release", "release_if_exists", "reduce_permits")
COUNTING_IDS = calls(*SET, "acquire_many", "try_acquire_many", "set_permits")
LEASED_PERMITS = calls("acquire") + calls("try_acquire", after=[0])
LEASED_PERMITS += calls("acquire_many", after=[1]) + calls("try_acquire_many", after=[1, 0])
RENEWED_PERMITS = calls("acquire", "try_acquire", "permit", by="lease_time", renew=True)
RENEWED_PERMITS += calls("acquire_many", "try_acquire_many", by="lease_time", permits=1, renew=True)
LIMITS = [0, -1, math.nan, math.inf, timedelta(0)]
LIMITED = ("lock", "try_lock", "hold")
OWNED = [name for name in FACTORIES if name.endswith("lock")]
BY_ID = calls("release", "try_release", "get_lease_time")
OF_LOCKS: list[Refused] = [
    *both(LEASED, "lease_time", NO_LEASES, [*NO_TIMES, 1j]),
    *both(WAITING, "wait_time|timeout", NO_WAITS, NO_TIMES),
    (calls("acquire", after=[False]), ValueError, "timeout", [0, 1]),
    (calls("acquire", after=[True]), ValueError, "timeout", [-2, -0.5]),
    # Threading's timeout has no None, and a maximum.
    (calls("acquire", by="timeout"), TypeError, "timeout", [None]),
    (calls("acquire", by="timeout"), OverflowError, "timeout", [TIMEOUT_MAX + 1, 1e100, 10**400, math.inf]),
    (calls("on_lost"), TypeError, "function", [None, 5]),
    *both(calls(*LIMITED, by="at_most"), "at_most", LIMITS, NO_TIMES),
    (calls(*LIMITED, by="at_most", lease_time=5), ValueError, "at_most.*lease_time", [5]),
]
REFUSED: dict[str, list[Refused]] = {
    "lock": [*OF_LOCKS, (calls("is_held_by"), TypeError, "owner", [b"1", 1.0, True, None])],
    "spin": OF_LOCKS,
    "fenced": [
        *OF_LOCKS,
        *both(WITH_TOKEN, "lease_time", NO_LEASES, [*NO_TIMES, 1j]),
        *both(calls("try_lock_and_get_token"), "wait_time", NO_WAITS, NO_TIMES),
    ],
    **dict.fromkeys(GROUPS, OF_LOCKS),
    "semaphore": [
        *both(COUNTING, "permits", [-1, 2**31, 10**30], NO_NUMBERS),
        (calls("try_acquire", after=[1]) + calls("try_acquire", by="wait_time"), ValueError, "wait_time", NO_WAITS),
        *both(calls("try_set_permits", after=[1]), "ttl", [0, -1, math.inf], ["1"]),
    ],
    "permit": [
        *both(COUNTING_IDS, "permits", [-1, 2**31, 10**30], NO_NUMBERS),
        (calls("try_acquire_many", after=[1]), ValueError, "wait_time", NO_WAITS),
        (calls("try_acquire", "permit", by="wait_time"), ValueError, "wait_time", NO_WAITS),
        (LEASED_PERMITS + calls("update_lease_time", after=[ID]), ValueError, "lease_time", NO_LEASES),
        (RENEWED_PERMITS, ValueError, "renew", [1]),
        (BY_ID, ValueError, "32 hex digits", NO_IDS),
        (BY_ID, TypeError, "id must be str, not (None|int|bytes|list)", [None, 1, ID.encode(), [ID.encode()], [1]]),
        (calls("release", "try_release"), ValueError, "32 hex digits", [[ID, wrong] for wrong in NO_IDS]),
        (calls("release", "try_release"), ValueError, "twice", [[ID, ID.upper()]]),
        (calls("update_lease_time", by="permit", lease_time=1), ValueError, "32 hex digits", NO_IDS),
    ],
    "latch": [
        *both(calls("try_set_count"), "count", [-1, 2**63], NO_NUMBERS),
        *both(calls("wait"), "timeout", [-1, math.nan, timedelta(-1)], ["1", True]),
    ],
    "client": [
        *both(calls("singleton", "elect", "locked", by="at_most", name="orders"), "at_most", LIMITS, NO_TIMES),
        *both(calls(*OWNED, by="watchdog_timeout", name="orders"), "watchdog_timeout", LIMITS, NO_TIMES),
        *both(calls(*OWNED, by="owner", name="orders"), "owner", [-1, 2**32, ""], [b"1", 1.0, True]),
    ],
}
"""For each kind: calls, the error that each of them raises, what it names, and the values that can't be."""
MAKES = {"semaphore": "get_semaphore", "permit": "get_permit_expirable_semaphore", "latch": "get_count_down_latch"}


@pytest.mark.parametrize("kind", REFUSED)
async def test_what_cannot_be(backend: Backend, kind: str) -> None:
    called: Any = backend.connect(NOWHERE)
    if kind != "client":
        called = getattr(called, MAKES[kind])("orders") if kind in MAKES else lock_of(called, kind)
    for methods, error, match, values in REFUSED[kind]:
        for call, value in product(methods, values):
            await fails(error, call, called, value, match=match)


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


async def test_what_can_be(backend: Backend, lock: Any) -> None:
    for wait in (0, 0.0, 0.001, 1e9, math.inf, timedelta(days=1), timedelta(0)):
        assert (await lock.try_lock(wait_time=wait), await lock.acquire(timeout=TIMEOUT_MAX)) == (True, True)
    assert await lock.force_unlock()
    for lease in (1, 2**40 / 1000):
        assert await lock.try_lock(lease_time=lease)
    # A lease that ends before the reply is here is no grant.
    for short in (0.001, 0.0015, timedelta(milliseconds=1)):
        await backend.connect().get_lock("short").try_lock(lease_time=short)


async def test_weak_references_to_all_that_a_client_makes() -> None:
    for module in (pyredisson, pyredisson.asyncio):
        client = module.connect(NOWHERE)
        made = [lock_of(client, kind, "a") for kind in [*KINDS, *GROUPS]]
        made += [getattr(client, factory)("b") for factory in (*MAKES.values(), "get_read_write_lock")]
        assert [weakref.ref(each)() for each in made] == made
    assert {"get_lock", "get_read_write_lock", "get_semaphore", "get_count_down_latch"} <= {*FACTORIES}
    assert len(FACTORIES) == 10


PARTED = ["a{b", "{}x", "a}b", "{", "x}y", "{}", "a{}b{c}"]


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
    for name in ("orders", "{orders}:1", "a{b}c", "x}y{z}", "{a}{}", " ", "\u00e4"):
        assert get(name).name == name
    for others in ({"topology": "single"}, {**cluster, "topology": "replicated"}):
        assert [getattr(module.connect(**others), factory)(name).name for name in PARTED] == PARTED
    mapping = module.connect(**cluster, name_mapper=lambda name: f"{name}}}")
    with pytest.raises(ValueError, match="'orders}' can't be used on a cluster"):
        getattr(mapping, factory)("orders")
    repaired = module.connect(**cluster, name_mapper=lambda name: name.replace("{", ""))
    assert getattr(repaired, factory)("a{b").name == "a{b"


@pytest.mark.parametrize("factory", FACTORIES)
async def test_handles_of_one_name(backend: Backend, state: ServerState, factory: str) -> None:
    get: Any = getattr(backend.connect(name_mapper=lambda name: f"app:{name}"), factory)
    for wrong, error, match in (
        *((name, ValueError, "empty") for name in ("", b"")),
        *((name, TypeError, "name") for name in (None, 1, 1 / 2, ["orders"], bytearray(b"orders"), True)),
    ):
        with pytest.raises(error, match=match):
            getattr(backend.connect(NOWHERE), factory)(wrong)
    one, two = get("orders"), get(b"orders")
    assert (one.name, two.name) == ("orders", b"orders")
    assert f"{factory.removeprefix('get_').title().replace('_', '')} 'app:orders'" in repr(one)
    if factory not in MAKES.values():
        return
    setting, asking = ("try_set_count", "get_count") if "latch" in factory else ("try_set_permits", "available_permits")
    await getattr(one, setting)(2)
    assert await getattr(two, asking)() == int(state.redis.get("app:orders")) == 2
