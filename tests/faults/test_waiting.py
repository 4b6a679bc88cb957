"""Waiters keep their wakeups and places, and handing a lock on leaves nothing, whatever is lost, killed or forked."""

import asyncio
import signal
import time
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
from redis import Redis, ResponseError

from pyredisson._backends.aio import listener as aio_listener
from pyredisson._backends.threads import listener
from pyredisson._backends.threads.runtime import ThreadBackend, run
from pyredisson._backends.threads.wakeup import ThreadWakeup
from pyredisson.errors import LockLostError, LockNotHeldError
from pyredisson.logic import channels
from pyredisson.testing import Proxy, Server
from tests.support.backends import OtherOwner, RawBackend, _finished, asleep, finished, listeners, scripts_run
from tests.support.children import CHILD_LIMIT, forked
from tests.support.faults import HAND_OVER, LOSSES, Lose, sha

from .kinds import Log, Patch, Start, Used, do_all, given_back, lock_of, taken_by_another

NOTICE = sha("lock_wake_waiters")
ACQUIRE, HEARTBEAT = sha("fair_acquire"), sha("fair_heartbeat")
QUEUE, SCORES = "redisson_lock_queue:{a}", "redisson_lock_timeout:{a}"
SHORT = 0.1
"""Seconds without a message after which the client sends a PING, and unsubscribes."""
ENTERED = {"lock": [":2"], "fair": [":2"], "write": [":2:write"], "read": [":2", ":3"]}
"""The ends of the names that the server has entered."""


def waiting(backend: RawBackend, client: Any, kind: str = "lock") -> OtherOwner[Any]:
    """A waiter that takes the lock, says when, and gives it back."""
    lock = lock_of(client, kind)

    async def take() -> float:
        return float((await do_all(backend, lock.lock, time.monotonic, lock.unlock))[1])

    return backend.start(take)


async def contended(
    backend: RawBackend, admin: Redis, url: str, other: str, kind: str = "lock", wanted: str = "lock", **fields: Any
) -> OtherOwner[Any]:
    """A client at `url` holds the lock, and a client at `other` waits for it."""
    lock = lock_of(backend.connect(url, **({"lock_watchdog_timeout": 1.5} | fields)), kind)
    # Seconds that a waiter reads as the time left to the holder.
    await do_all(backend, partial(lock.lock, 30.0), lock.lock)
    waiter = waiting(backend, backend.connect(other), wanted)
    await backend.until(lambda: any(b"{a}" in channel for channel in admin.pubsub_channels()))
    # The waiter looks once more when it is known that messages arrive.
    await backend.sleep(0.1)
    return waiter


async def test_a_waiter_without_a_subscription_polls(backend: RawBackend, proxy: Proxy, admin: Redis) -> None:
    """The subscription is broken, and commands work: the waiter must not sleep until the end of the lease."""
    taken_by_another(admin)
    client = backend.connect(proxy.url)
    before = scripts_run(admin)
    waiter = await backend.started(lambda: scripts_run(admin) - before == 2, client.get_lock("a").try_lock, 25)
    proxy.refuse(True)
    admin.client_kill_filter(_type="pubsub")
    await backend.until(lambda: listeners(admin, "a") == 0)
    admin.delete("a")
    assert await waiter.result(5) is True


async def test_a_thread_that_waits_for_something_else_does_not_read_messages(
    threads: RawBackend, server: Server, admin: Redis, caplog: Log, monkeypatch: Patch
) -> None:
    """A thread that stops waiting for messages hands the reading over to the listener's own thread."""
    monkeypatch.setattr(listener, "LINGER", 0.01)
    client = threads.connect(server.url)
    taken_by_another(admin)
    assert not client.get_lock("a").try_lock(0.1)
    runtime = client._session.runtime
    wakeup = runtime.wakeup()
    other = threads.start(run, runtime.wait, wakeup, 20)
    waiters = [waiting(threads, client) for _ in range(2)]
    await threads.sleep(0.5)
    given_back(admin)
    await finished(waiters, 5)
    wakeup.set()
    await other.result(5)
    assert caplog.messages == []


async def test_one_connection_listens_for_all_locks(backend: RawBackend, server: Server, admin: Redis) -> None:
    """To a channel of its own for each, and to Redisson's, as the holders may be Java's."""
    client = backend.connect(server.url)
    names = [f"a{number}" for number in range(20)]
    taken_by_another(admin, *names)
    calls = [backend.start(client.get_lock(name).try_lock, 20) for name in names]
    await backend.until(lambda: all(listeners(admin, name) == 1 for name in names))
    assert [entry["sub"] for entry in admin.client_list() if int(entry["sub"])] == ["40"]
    given_back(admin, *names)
    assert await finished(calls) == [True] * 20


@pytest.mark.parametrize("by", ["a PING", "a command without a reply"])
async def test_a_silent_subscription_is_made_anew(backend: RawBackend, proxy: Proxy, admin: Redis, by: str) -> None:
    """Nothing shows that all connections are dead: no FIN, no RST, no more messages."""
    taken_by_another(admin)
    client = backend.connect(proxy.url, ping_interval=0.2 if by == "a PING" else 600, timeout=0.8)
    waiter = waiting(backend, client)
    await backend.until(lambda: listeners(admin, "a") == 1)
    proxy.blackhole()
    released = time.monotonic()
    # Its message goes into the hole.
    given_back(admin)
    if by != "a PING":
        assert not await backend.do(client.get_lock("b").is_locked())
    assert await waiter.result() - released < 5


async def test_a_living_subscription_answers_pings_and_stays(backend: RawBackend, proxy: Proxy, admin: Redis) -> None:
    """Also where the reply to a PING comes together with a message."""
    taken_by_another(admin)
    client = backend.connect(proxy.url, ping_interval=0.1, timeout=1)
    reply = proxy.hold_reply(b"PING")
    waiter = waiting(backend, client)
    await backend.until(reply.held.is_set)
    given_back(admin)
    reply.deliver()
    await waiter.result()
    taken_by_another(admin)
    waiter = waiting(backend, client)
    proxy.forget()
    # Longer than a reply may take.
    await backend.sleep(1.5)
    await backend.until(lambda: proxy.seen(b"PING") >= 3)
    given_back(admin)
    await waiter.result()
    assert proxy.seen(b"\r\nSUBSCRIBE") == 0, "the connection was replaced"


@pytest.mark.parametrize(
    ("held", "wanted"),
    [(kind, kind) for kind in ("lock", "fair", "fenced", "multi")]
    + [("lock", "non-reentrant"), ("read", "write"), ("write", "read")],
)
async def test_waiters_of_a_lock_that_is_gone_are_woken(
    backend: RawBackend, server: Server, admin: Redis, proxy: Proxy, held: str, wanted: str
) -> None:
    """A notice that is lost is sent again."""
    waiter = await contended(backend, admin, proxy.url, server.url, held, wanted, timeout=0.8)
    fault = proxy.cut_request(NOTICE, times=2) if held == wanted == "lock" else None
    gone = time.monotonic()
    admin.flushall()
    # The half that lies between two renewals of the holder, and what a busy machine takes.
    assert await waiter.result() - gone < 2.5
    assert fault is None or fault.happened.is_set()


@pytest.mark.usefixtures("restarts_noticed")
async def test_closed_connections_show_a_loss(backend: RawBackend, server: Server, admin: Redis, proxy: Proxy) -> None:
    """No renewal is due for 40 s."""
    waiter = await contended(backend, admin, proxy.url, server.url, lock_watchdog_timeout=120)
    admin.delete("a")
    proxy.cut()
    await waiter.result()


@pytest.mark.parametrize("refused", ["resetkeys", "resetchannels"])
async def test_a_notice_that_is_refused_is_not_repeated(backend: RawBackend, refused: str) -> None:
    with Server(users=["alice on >x ~* &* +@all"]) as own, Proxy(own.host, own.port) as proxy, own.redis() as admin:
        client = backend.connect(proxy.url, username="alice", password="x", lock_watchdog_timeout=0.9)
        await backend.do(client.get_lock("a").lock())
        admin.execute_command("ACL", "SETUSER", "alice", refused)
        if refused == "resetchannels":
            admin.delete("a")
        await backend.until(lambda: proxy.seen(NOTICE) > 0)
        # A failed renewal is repeated ten times a round.
        await backend.sleep(0.3)
        assert proxy.seen(NOTICE) == 1


@pytest.mark.parametrize("refused", ["ping", "unsubscribe"])
async def test_a_refusal_belongs_to_the_command_that_was_refused(
    backend: RawBackend, proxy: Proxy, admin: Redis, caplog: Log, monkeypatch: Patch, refused: str
) -> None:
    """The reply to the refused command comes when a SUBSCRIBE, which is allowed, is on its way behind it."""
    for module in (channels, listener, aio_listener):
        monkeypatch.setattr(module, "LINGER", SHORT)
    rights = ["+@all", f"-{refused}"]
    admin.acl_setuser("app", enabled=True, nopass=True, keys=["*"], channels=["*"], commands=rights)
    taken_by_another(admin, "a", "b")
    client = backend.connect(proxy.url, username="app", password="any", ping_interval=SHORT)
    held = proxy.hold_reply(refused.upper().encode())
    assert await backend.do(client.get_lock("a").try_lock(SHORT)) is False
    calls = [backend.start(client.get_lock("a").try_lock, 5)] if refused == "ping" else []
    await backend.run_blocking(held.held.wait, 5)
    calls.append(backend.start(client.get_lock("b").try_lock, 5))
    await backend.run_blocking(proxy.wait_for, b"SUBSCRIBE\r\n$26\r\nredisson_lock__channel:{b}")
    await backend.run_blocking(held.deliver)
    await backend.until(lambda: listeners(admin, "b") == 1)
    given_back(admin, "a", "b")
    assert (await finished(calls, 2), caplog.messages) == ([True] * len(calls), [])
    admin.acl_deluser("app")


async def in_line(backend: RawBackend, admin: Any, client: Any) -> OtherOwner[Any]:
    """A waiter behind all that are in the queue already."""
    before = admin.llen(QUEUE)
    waiter = waiting(backend, client, "fair")
    await backend.until(lambda: admin.llen(QUEUE) == before + 1)
    return waiter


@pytest.fixture
async def holder(backend: RawBackend, server: Server) -> Any:
    """The lock, held by another client than those that wait for it."""
    lock = backend.connect(server.url).get_fair_lock("a", owner=9)
    await backend.do(lock.lock())
    return lock


@LOSSES
@pytest.mark.parametrize("moment", ["enters the queue", "its turn has come"])
async def test_a_waiter_whose_acquire_is_lost_keeps_its_place(
    backend: RawBackend, server: Server, proxy: Proxy, admin: Redis, holder: Any, lose: Lose, moment: str
) -> None:
    waiter, client = await backend.connected(proxy.url, timeout=0.8), backend.connect(server.url)
    enters = moment == "enters the queue"
    fault = lose(proxy, ACQUIRE) if enters else None
    first = await in_line(backend, admin, waiter)
    # It hears that its turn has come, or has looked again.
    await backend.until(lambda: len(admin.pubsub_channels("redisson_lock__channel:{a}:*")) == 1)
    second = await in_line(backend, admin, client)
    if fault is None:
        fault = lose(proxy, ACQUIRE)
    else:
        await backend.until(lambda: fault.happened.is_set() and proxy.seen(ACQUIRE) >= 2)
        assert admin.llen(QUEUE) == 2
    await backend.do(holder.unlock())
    assert await first.result() < await second.result()
    assert fault.happened.is_set()
    await backend.until(lambda: not admin.exists("a", QUEUE, SCORES))


async def test_a_heartbeat_or_a_subscription_that_is_lost_costs_no_turn(
    backend: RawBackend, server: Server, proxy: Proxy, admin: Any, holder: Any
) -> None:
    fault = proxy.drop_reply(HEARTBEAT)
    first = await in_line(backend, admin, backend.connect(proxy.url, timeout=0.8))
    await backend.until(fault.happened.is_set)
    second = await in_line(backend, admin, backend.connect(server.url))
    admin.client_kill_filter(_type="pubsub")
    await backend.do(holder.unlock())
    assert await first.result() < await second.result()


async def wanted(threads: RawBackend, proxy: Proxy, kind: str = "lock", *args: Any) -> tuple[Any, Any, OtherOwner[Any]]:
    """The lock of owner 1, which holds it, and of owner 2, which acquires it on a thread, and keeps it."""
    client = threads.connect(proxy.url, local_hand_over_time=60)
    holder, lock = (lock_of(client, kind, owner) for owner in (1, 2))
    holder.lock()
    return holder, lock, await threads.started(lambda: asleep(client, "a") == 1, lock.lock, *args)


class Striking(ThreadWakeup):
    """Ctrl-C in the thread that sets it, as soon as the thread that it has woken has acquired the lock."""

    __slots__ = ()

    struck: OtherOwner[Any] | None = None

    def set(self) -> None:
        super().set()
        call, Striking.struck = Striking.struck, None
        if call is not None:
            _finished(call.result())
            raise KeyboardInterrupt


async def test_an_interrupt_of_the_holder(threads: RawBackend, proxy: Proxy, admin: Redis, monkeypatch: Patch) -> None:
    """What the waiter has acquired by itself since then isn't undone: its caller relies on it."""
    monkeypatch.setattr(ThreadBackend, "wakeup", lambda _: Striking())
    holder, lock, Striking.struck = await wanted(threads, proxy)
    # The hand-over finds neither of both owners.
    admin.delete("a")
    with pytest.raises(KeyboardInterrupt):
        holder.unlock()
    await threads.until(lambda: not threads._clients[0]._session.watchdog.pending_repairs())
    assert lock.is_held()
    lock.force_unlock()


async def test_a_refused_second_copy(threads: RawBackend, admin: Redis, proxy: Proxy) -> None:
    """The first copy has released the lock: the second one says nothing about the hold that was released."""
    holder, _, waiting = await wanted(threads, proxy, "fenced")
    slow = proxy.hold_reply(HAND_OVER["lock"])
    lost: list[object] = []
    holder.on_lost(lost.append)
    releasing = await threads.started(slow.held.is_set, holder.unlock)
    admin.set("redisson_lock_token:{a}", "text")
    proxy.cut()
    for call in (releasing, waiting):
        await threads.fails(ResponseError, call.result, match="not an integer")
    assert lost == []
    await threads.until(lambda: not admin.exists("a"))


async def test_a_release_that_hangs_keeps_only_one_waiting(threads: RawBackend, proxy: Proxy) -> None:
    """Its thread may run the handler of a signal, or its server hang for longer than the lease."""
    client = threads.connect(proxy.url, lock_watchdog_timeout=1.2, timeout=60, local_hand_over_time=60)
    holder, second, third = (client.get_lock("a", owner=owner) for owner in (1, 2, 3))
    holder.lock()
    chosen = await threads.started(lambda: asleep(client, "a") == 1, second.lock)
    behind = await threads.started(lambda: asleep(client, "a") == 2, third.lock)
    request = proxy.hold_request(HAND_OVER["lock"])
    releasing = await threads.started(request.held.is_set, holder.unlock)
    await behind.result()
    third.unlock()
    request.deliver()
    await threads.fails(LockLostError, releasing.result)
    await chosen.result()


async def test_the_waiters_owner_acquires_it_by_another_call(threads: RawBackend, proxy: Proxy, admin: Redis) -> None:
    """Two acquires of one owner are two levels, whichever way each of them got the lock."""
    holder, lock, waiting = await wanted(threads, proxy)
    calls = lock._owner().calls
    in_flight = calls.in_flight

    def enter(*args: Any) -> Any:
        """Another call comes just before the given one gets the turn."""
        admin.delete("a")
        calls.in_flight = in_flight
        assert lock.try_lock()
        return in_flight.enter(*args)

    calls.in_flight = Mock(wraps=in_flight, enter=enter)
    await threads.fails(LockLostError, holder.unlock)
    await waiting.result()
    assert await do_all(threads, lock.get_hold_count, *[lock.unlock, lock.get_hold_count] * 2) == [2, None, 1, None, 0]
    assert not admin.exists("a")


async def test_no_queue_remains_when_a_lease_ends(threads: RawBackend, proxy: Proxy) -> None:
    """Many programs never release a lock with a lease, and use other names later."""
    holder, _, waiting = await wanted(threads, proxy, "lock", 1.5)
    holder.unlock()
    await waiting.result()
    session = threads._clients[0]._session
    assert session.lock_queues
    await threads.until(lambda: not session.lock_queues)


PROGRAM = """
import asyncio, sys
from tests.support.backends import _finished
from tests.support.kinds import KINDS
from tests.support.backends import RawBackend
from tests.support.backends import asleep
url, kind, lease, world = sys.argv[1:]
backend = RawBackend(world)
client = backend.connect(url, local_hand_over_time=600, lock_watchdog_timeout=float(lease), timeout=30)
holder, *others = [KINDS["write" if owner == 1 and kind == "read" else kind](client, "a", owner) for owner in (1, 2, 3)]

async def main():
    await backend.do(holder.lock())
    for count, lock in enumerate(others, 1):
        backend.start(lock.lock)
        await backend.until(lambda: asleep(client, "a", kind) == count, 60)
    print("waiting", flush=True)
    await backend.run_blocking(sys.stdin.readline)
    await backend.do(holder.unlock())

asyncio.run(main()) if world == "asyncio" else _finished(main())
"""


def owners(admin: Any, kind: str = "") -> list[str]:
    """Who holds the lock, as the server knows. `kind`: it has entered those that waited for it, and nobody else."""
    found = sorted(field.decode() for field in admin.hkeys("a") if field != b"mode")
    assert not kind or all(name.endswith(end) for name, end in zip(found, ENTERED[kind], strict=True))
    return found


@pytest.mark.parametrize(
    ("kind", "other"), [("lock", "lock"), ("fair", "fair"), ("write", "write"), ("write", "read"), ("read", "write")]
)
async def test_the_process_is_killed(
    backend: RawBackend, server: Server, proxy: Proxy, admin: Redis, child: Start, kind: str, other: str
) -> None:
    """Only the server knows that the next owners have the lock: another process gets it when their leases end."""
    killed = child(PROGRAM, proxy.url, kind, 2.0, backend.name)
    assert await backend.run_blocking(killed.receive, CHILD_LIMIT) == "waiting"
    client = backend.connect(server.url)
    lock = lock_of(client, other)

    async def take() -> float:
        return float((await do_all(backend, lock.lock, time.monotonic))[1])

    waiter = await backend.started(lambda: asleep(client, "a", other), take)
    fault = proxy.drop_reply(HAND_OVER[kind])
    killed.send()
    assert await backend.run_blocking(fault.happened.wait, CHILD_LIMIT)
    killed.signal(signal.SIGKILL)
    await backend.run_blocking(killed.wait)
    owners(admin, kind)
    # The clock first: the lease doesn't end before `began + left`.
    began, left = time.monotonic(), admin.pttl("a") / 1000
    assert not waiter.done()
    waited = await waiter.result() - began
    # By itself the waiter would look again after 30 s.
    assert left - 0.01 < waited < left + 3
    [owner] = owners(admin)
    assert owner.startswith(client.id)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("kind", HAND_OVER)
async def test_the_process_is_forked(backend: RawBackend, proxy: Proxy, admin: Redis, kind: str) -> None:
    """The child neither ends the hand-over nor undoes it, and has none of the parent's waiters."""
    held, do = "write" if kind == "read" else kind, backend.do
    parent = Used(backend, backend.connect(proxy.url, local_hand_over_time=60, timeout=30), held, 1, admin)
    client, holder, parent_id = parent.client, parent.handle, parent.client.id

    async def wait(owner: int) -> None:
        lock = lock_of(client, kind, owner)
        await do_all(backend, lock.lock, lock.unlock)

    async def live() -> bool:
        assert client.id != parent_id
        assert parent.knows_nothing()
        # It is a client of its own.
        own = client.get_lock("own")
        await do(own.lock())
        assert await do(own.is_held())
        await do(own.unlock())
        assert not await do(holder.is_held())
        assert await do(lock_of(client, kind).is_locked())
        for lock in (holder, lock_of(client, kind, 2)):
            await backend.fails(LockNotHeldError, lock.unlock)
        assert not await do(lock_of(client, held).try_lock(0.05))
        await do(client.close())
        return True

    await do(holder.lock())
    calls = [await backend.started(lambda: asleep(client, "a", kind) == 1, wait, 2)]
    calls.append(await backend.started(lambda: asleep(client, "a", kind) == 2, wait, 3))
    slow = proxy.hold_reply(HAND_OVER[kind])
    calls.append(await backend.started(slow.held.is_set, holder.unlock))
    entered = owners(admin, kind)
    assert forked(lambda: _finished(live()) if backend.threads else asyncio.run(live()))
    assert owners(admin) == entered
    slow.deliver()
    await finished(calls)
    await backend.until(parent.knows_nothing)
    assert admin.keys() == []
