"""A client announces itself under a key of its own, with holds that live for a second; and it names its connections."""

import math
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import NoPermissionError, ResponseError

import pyredisson
from pyredisson._protocol.node import Handshake
from pyredisson.identity import Identity, _program, connection_name, identity
from pyredisson.logic import announcement, watchdog
from pyredisson.testing import Proxy, Server
from tests.support.backends import Backend, eventually, fails, in_turn
from tests.support.children import Child
from tests.support.faults import ACQUIRE, RELEASE, RENEW, sha
from tests.support.inspecting import key_of
from tests.support.kinds import acquired

from .kinds import PERMITS, held, lock_of, rival_of, take, turn_of, use

pytestmark = pytest.mark.usefixtures("announced")

ANNOUNCE = sha("client_announce")
LEASE = 1.5
"""Seconds. A hold is listed after a third of it, which is less than a second."""
NAME = "a b"


def announced(admin: Any, client: Any) -> dict[str, str]:
    return {field.decode(): value.decode() for field, value in admin.hgetall(key_of(client)).items()}


def listed(admin: Any, client: Any) -> dict[str, str]:
    return {field: value for field, value in announced(admin, client).items() if field.startswith("h:")}


def now_of(admin: Any) -> float:
    """The server's clock in ms."""
    seconds, microseconds = admin.time()
    return float(seconds * 1000 + microseconds / 1000)


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    """An announcement is renewed every 0.2 s."""
    monkeypatch.setattr(announcement, "SHORTEST_TTL", 600)


@pytest.mark.parametrize("fields", [{}, {"client_name": "billing", "lock_watchdog_timeout": 60}])
async def test_who_and_where(backend: Backend, admin: Redis, fields: dict[str, Any]) -> None:
    before = now_of(admin)
    client = backend.connect(**fields)
    async with client.get_lock(NAME):
        pass  # a hold would be listed after a second
    await backend.until(lambda: bool(admin.exists(key_of(client))))
    found = announced(admin, client)
    process = identity()
    name = fields.get("client_name", f"{process.program}@{process.host}:{process.pid}")
    lease = 1000 * fields.get("lock_watchdog_timeout", 30)
    assert before - 5 < int(found.pop("since")) <= now_of(admin)
    who = {"program": process.program, "host": process.host, "pid": str(process.pid), "name": name}
    counted = {"n": "1", "waits": "0", "waited": "0", "lost": "0"}
    assert found == {**who, **counted, "version": pyredisson.__version__, "lease": str(lease)}
    assert lease - 10_000 < admin.pttl(key_of(client)) <= lease
    assert admin.keys("pyredisson*") == [key_of(client).encode()]


@pytest.mark.parametrize("kind", ["lock", "fair", "spin", "read", *PERMITS, "latch"])
async def test_a_client_that_only_waits(backend: Backend, admin: Redis, ticking: None, kind: str) -> None:
    silent = backend.connect(announce=False)
    client: Any = backend.connect(client_name="waiting", lock_watchdog_timeout=LEASE)
    if kind == "latch":
        await silent.get_count_down_latch("orders").try_set_count(1)
        waiter: Any = backend.spawn(client.get_count_down_latch("orders").wait)
    else:
        await held(silent, rival_of(kind))
        waiter = backend.spawn(partial(take, turn_of(client, kind)))
    await backend.until(lambda: announced(admin, client).get("waits") == "1")
    assert announced(admin, client)["name"] == "waiting"
    await client.close()
    await fails(pyredisson.ClosedError, waiter.result)
    assert (client._session.announcement.waited > 0, admin.exists(key_of(client))) == (True, 0)


async def test_what_is_counted(backend: Backend, admin: Redis, ticking: None) -> None:
    holder, client = (backend.connect(lock_watchdog_timeout=LEASE) for _ in range(2))
    lock = holder.get_lock("x")
    for number in (1, 2):
        await lock.lock()
        waiter = backend.spawn(lambda: use(client.get_lock("x")))
        await backend.until(lambda number=number: announced(admin, client).get("waits") == str(number))  # type: ignore[misc]
        await lock.unlock()
        await waiter.result()
    await backend.until(lambda: int(announced(admin, client)["waited"]) > 0)
    await lock.lock()
    await lock.force_unlock()
    await backend.until(lambda: int(announced(admin, holder).get("lost", "0")) >= 1)


@pytest.mark.parametrize(("announce", "after"), [(True, 3600.0), (True, math.inf), (False, 0.0)])
async def test_none_is_sent(backend: Backend, proxy: Proxy, monkeypatch: Any, announce: bool, after: float) -> None:
    """By a short program, or where it is switched off."""
    monkeypatch.setattr(announcement, "FIRST_AFTER", after)
    client = backend.connect(proxy.url, lock_watchdog_timeout=LEASE, announce=announce)
    async with client.get_lock(NAME):
        assert not await backend.connect(proxy.url, announce=False).get_lock(NAME).try_lock(0.01)
        await backend.until(lambda: proxy.seen(RENEW) > 1)
    await client.close()
    assert not proxy.seen(b"pyredisson_client")


async def test_the_pair_makes_two_calls(backend: Backend, admin: Redis, proxy: Proxy) -> None:
    """Before the announcement, while a hold is listed, and after it."""
    client = backend.connect(proxy.url, lock_watchdog_timeout=LEASE)
    lock = client.get_lock("a")

    async def pair() -> None:
        proxy.forget()
        await use(lock)
        ours = [words[1] for words in proxy.commands if words[0] == b"EVALSHA" and words[1] not in (ANNOUNCE, RENEW)]
        assert ours == [ACQUIRE, RELEASE]

    await use(lock)
    await pair()
    async with client.get_lock("b"):
        await backend.until(lambda: len(listed(admin, client)) == 1)
        await pair()
    await backend.until(lambda: not listed(admin, client))
    await pair()


@pytest.mark.parametrize("kind", ["lock", "fair", "fenced", "spin", "read", "write", "lock with a lease", "permit"])
async def test_a_hold_is_listed(backend: Backend, admin: Redis, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "LISTED_AFTER", 50)
    client = backend.connect(lock_watchdog_timeout=3600)
    kind, _, fixed = kind.partition(" ")
    # The second hold has the same field as the first one, but for a permit, which has an id of its own.
    for _ in range(2):
        before = now_of(admin)
        if kind == "permit":
            semaphore = client.get_permit_expirable_semaphore(NAME)
            await semaphore.set_permits(1)
            release = partial(semaphore.release, await semaphore.acquire(renew=True))
        else:
            lock = await acquired(lock_of(client, kind, NAME), 3600 if fixed else None)
            release = lock.unlock
        await backend.until(lambda: len(listed(admin, client)) == 1)
        [(field, value)] = listed(admin, client).items()
        began, _, said = value.partition(" ")
        owner, _, name = field.removeprefix("h:").partition(" ")
        assert (said, name) == (kind, NAME)
        assert before - 5 < int(began) <= now_of(admin)
        if kind != "permit":
            assert f"{client.id}:{owner}".encode() in admin.hkeys(NAME)
            found = await lock_of(backend.connect(announce=False), kind, NAME).holder()
            assert (round(found.since.timestamp() * 1000), found.pid) == (int(began), identity().pid)
        await release()
        await backend.until(lambda: not listed(admin, client))
    assert admin.exists(key_of(client))


async def test_a_later_hold_of_the_same_owner_stays_listed(client: Any) -> None:
    """The end of the former hold may be noticed when the later one is listed already."""
    lock = client.get_lock(NAME, owner=7)
    session: Any = getattr(client, "_target", client)._session
    found, holds = session.announcement, []
    for _ in range(2):
        await lock.lock()
        [hold] = session.holds.table.values()
        found.add(hold)
        holds.append(hold)
        if len(holds) == 1:
            hold.unlisten(found._on_end)
            await lock.unlock()
    found._on_end(holds[0])
    assert list(found._listed.values()) == [holds[1]]
    await lock.unlock()
    assert not found._listed


async def test_many_holds(backend: Backend, admin: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are listed in several steps, up to a limit. The others are counted."""
    for name, value in (("MOST_IN_ONE", 7), ("MOST_LISTED", 30), ("SHORTEST_TTL", 3_000)):
        monkeypatch.setattr(announcement, name, value)
    client = backend.connect(lock_watchdog_timeout=LEASE)
    locks = [client.get_lock(f"lock {number}") for number in range(40)]
    await in_turn(lock.lock for lock in locks)
    await backend.until(lambda: len(listed(admin, client)) == 30 and announced(admin, client).get("more") == "10")
    await in_turn(lock.unlock for lock in locks)
    await backend.until(lambda: not listed(admin, client) and "more" not in announced(admin, client))


@pytest.mark.parametrize("end", ["held", "released", "no longer kept", "without a server"])
async def test_closing_removes_it(backend: Backend, redis: Any, proxy: Proxy, caplog: Any, end: str) -> None:
    client = backend.connect(proxy.url)
    if end == "no longer kept":
        async with client.singleton(NAME, at_least=0.05):
            await backend.until(lambda: bool(redis.exists(key_of(client))))
        await backend.until(lambda: not redis.exists(NAME))
    else:
        await client.get_lock(NAME).lock()
        if end != "held":
            await client.get_lock(NAME).unlock()
        await backend.until(lambda: bool(redis.exists(key_of(client))))
    proxy.refuse(end == "without a server")
    for _ in range(2):
        await client.close()
        assert redis.keys() == [] or end == "without a server"
    # No lock stays, so there is nothing to warn of.
    assert "not released" not in caplog.text


@pytest.mark.parametrize("first_after", [0.0, 3600.0])
async def test_closing_while_a_lock_is_kept(backend: Backend, redis: Any, monkeypatch: Any, first_after: float) -> None:
    """Others shall see who has done the work, also if the client was too short-lived to announce itself before."""
    monkeypatch.setattr(announcement, "FIRST_AFTER", first_after)
    client = backend.connect(lock_watchdog_timeout=LEASE)
    async with client.singleton(NAME, at_least=20):
        if not first_after:
            await backend.until(lambda: len(listed(redis, client)) == 1)
    await client.close()
    assert not listed(redis, client)
    # That of the lock is read first. And the key's began a little later: it was computed before it was sent.
    kept_for = redis.pttl(NAME)
    assert 15_000 < redis.pttl(key_of(client)) <= kept_for + 2_000
    found: Any = await backend.connect(announce=False).get_lock(NAME).holder()
    assert (found.kept, found.host, found.pid) == (True, identity().host, identity().pid)


PROGRAM = """
import os, sys, time
import pyredisson
from pyredisson.logic import announcement
announcement.FIRST_AFTER = 0.0
client = pyredisson.connect(sys.argv[1])
lock = client.get_lock("a", owner=7)
lock.lock()
print(client.id)
input()
pid = os.fork()
if not pid:
    assert lock._owner().name == f"{client.id}:7".encode() and not lock.try_lock()
    client.get_lock("b").lock()
    print(client.id, os.getpid())
    input()
    client.close()
    os._exit(0)
os.waitpid(pid, 0)
if sys.argv[2] == "signal":
    pyredisson.release_on_signals()
print("end")
wait_for_line()
"""


@pytest.mark.parametrize("end", ["exit", "signal"])
async def test_a_forked_child_has_its_own(threads: Backend, admin: Any, child: Callable[..., Child], end: str) -> None:
    """And a name of its own, and other owners. The end of the parent removes its announcement."""
    process = child(PROGRAM, threads.url, end)
    parents = f"pyredisson_client:{{{process.receive()}}}"
    eventually(lambda: admin.exists(parents))
    process.send()
    client_id, pid = process.receive().split()
    own = f"pyredisson_client:{{{client_id}}}"
    eventually(lambda: admin.exists(own))
    parents_pid = admin.hget(parents, "pid").decode()
    assert admin.hget(own, "pid").decode() == pid != parents_pid
    assert {pid, parents_pid} <= {name.rpartition(":")[2] for name in names(admin)}
    process.send()
    assert (process.receive(), admin.exists(parents), admin.exists(own)) == ("end", True, False)
    if end == "signal":
        process.signal(signal.SIGTERM)
    else:
        process.send()
    assert (process.wait(), admin.keys()) == (-signal.SIGTERM if end == "signal" else 0, [])


def names(admin: Redis) -> list[str]:
    return [entry["name"] for entry in admin.client_list() if entry["name"]]


@pytest.mark.parametrize("chosen", [None, "billing"])
async def test_a_name_that_a_person_recognizes(backend: Backend, redis: Any, chosen: str | None) -> None:
    """All connections have it: that for commands, that for messages, and the watchdog's."""
    process = identity()
    name = chosen or f"{process.program}@{os.uname().nodename}:{os.getpid()}"
    # Renewed after a third of that, over the watchdog's connection.
    client = backend.connect(lock_watchdog_timeout=4, client_name=chosen)
    lock = await acquired(client.get_lock("a", owner=1))
    other = await backend.begin(client.get_lock("a", owner=2).lock, lambda: names(redis).count(name) >= 3)
    # A connection of the test before may be listed for a moment.
    await backend.until(lambda: set(names(redis)) == {name})
    await lock.unlock()
    await other.result()
    await client.close()
    await backend.until(lambda: name not in names(redis))


async def test_a_user_may_lack_the_right(backend: Backend, own_server: Server) -> None:
    """The default name is a courtesy. Without a chosen one somebody may not find this client."""
    user = {"username": "plain", "password": "any"}
    rights: dict[str, Any] = {"keys": ["*"], "channels": ["*"], "commands": ["+@all", "-client|setname"]}
    with own_server.redis() as admin:
        admin.acl_setuser("plain", enabled=True, nopass=True, **rights)
        lock = await acquired(backend.connect(own_server.url, **user).get_lock("a"))
        assert names(admin) == []
        await lock.unlock()
        refused = backend.connect(own_server.url, **user, client_name="billing")
        await fails(NoPermissionError, refused.get_lock("a").lock)


@pytest.mark.parametrize(
    ("argv", "program"),
    [
        *((["/srv/billing.py"], "billing"), (["/srv/billing/__main__.py"], "billing"), (["__main__.py"], "folder")),
        *((["/usr/bin/gunicorn"], "gunicorn"), *((argv, "python") for argv in (["-c"], ["-m"], [""], []))),
    ],
)
async def test_the_program(argv: list[str], program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path / "folder")
    monkeypatch.setattr(sys, "argv", argv)
    assert _program() == program


@pytest.mark.parametrize("program", ["two words", "café", "日本", "x" * 300, "line\nbreak"])
async def test_any_name_is_accepted_by_the_server(program: str, admin: Redis) -> None:
    name = connection_name(Identity(program, "h" * 64, 4_194_304))
    assert len(name) <= 128
    assert (admin.client_setname(name), name.endswith(f"@{'h' * 64}:4194304")) == (True, True)


async def test_other_errors_are_not_excused() -> None:
    """A server that is busy refuses each step, and the connection is tried again."""
    handshake = Handshake(pyredisson.Config(), ())
    with pytest.raises(ResponseError, match="BUSY"):
        handshake.read([ResponseError("BUSY a script runs")] * len(handshake))
