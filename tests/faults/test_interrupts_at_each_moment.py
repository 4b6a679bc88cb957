"""Ctrl-C at each moment of a call, and at chosen ones: nothing is left behind, nobody else waits longer."""

import contextlib
import inspect
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

import pytest
from redis import Redis

import pyredisson
from pyredisson._api import arguments
from pyredisson._api.sync import releases
from pyredisson._backends.runtime import start_thread
from pyredisson._backends.threads.connection import Connection
from pyredisson._backends.threads.listener import SubscriptionConnection
from pyredisson.logic.channels import ChannelRegistry
from pyredisson.logic.exactly_once import SessionSlots
from pyredisson.logic.permits.commands import SemaphoreCommands
from pyredisson.logic.permits.permit_expirable_semaphore import PermitExpirableSemaphoreLogic
from pyredisson.logic.permits.semaphore import SemaphoreLogic
from pyredisson.testing import Proxy, Server
from tests.support.backends import RawBackend, asleep, eventually, listeners
from tests.support.children import CHILD_LIMIT
from tests.support.faults import ACQUIRE, InterruptAt, handlers_may_raise, traced
from tests.support.inspecting import Recorder, check_pairs, everything_told, told, whats

from .kinds import PERMITS, Start, given_back, prepare, semaphore_of, taken, taken_by_another, used

LIMIT = 20.0
"""Seconds after which a waiter counts as forgotten. By its own timer it would make an attempt after 30 s."""
PACKAGE = Path(pyredisson.__file__).parent
INTERRUPTED = tuple(str(PACKAGE / part) for part in ("logic", "_backends", "_protocol"))
"""Where interrupts strike. In the public API its first instruction may be before the call."""


class Interrupt:
    """A KeyboardInterrupt at the n-th moment at which Python would run a signal's handler on this thread.

    It does so when a function begins, and after a call. Neither the end of a coroutine that is awaited is such a
    moment, nor the way from the body of a `try` or `with` to its end.
    """

    def __init__(self, step: int, error: type[BaseException] = KeyboardInterrupt) -> None:
        self._left = step
        self._error = error
        self.where = ""
        """Empty: there was no such moment."""

    def here(self) -> AbstractContextManager[None]:
        # An interrupt in a finalizer that the garbage collector runs is lost: Python only reports it.
        return traced(self._profile, sys.setprofile)

    def _profile(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if self.where or event == "c_call" or not code.co_filename.startswith(INTERRUPTED):
            return
        if event == "return" and (code.co_flags & inspect.CO_COROUTINE or code in PROPERTIES):
            return
        self._left -= 1
        if not self._left:
            self.where = f"{event} {code.co_qualname}:{frame.f_lineno}"
            raise self._error


MODULES = [module for name, module in list(sys.modules.items()) if name.startswith("pyredisson.")]
CLASSES = [value for module in MODULES for value in vars(module).values() if isinstance(value, type)]
GETTERS = [value.fget for each in CLASSES for value in vars(each).values() if isinstance(value, property)]
PROPERTIES = {getter.__code__ for getter in GETTERS if isinstance(getter, FunctionType)}
"""The code of all properties: reading one is no call."""


class Contender(threading.Thread):
    def __init__(self, client: pyredisson.Client, owner: int, interrupt: Interrupt | None = None) -> None:
        super().__init__(daemon=True)
        self.lock = client.get_lock("a", owner=owner)
        self.owner = owner
        self.interrupt = interrupt
        self.acquired = self.interrupted = False

    def run(self) -> None:
        self.interrupted = strikes(self.interrupt, self.lock.lock)
        if not self.interrupted:
            self.acquired = True
            self.lock.unlock()

    def end(self, where: str) -> None:
        self.join(LIMIT)
        assert not self.is_alive(), f"owner {self.owner} is forgotten: {where}"


def strikes(interrupt: Interrupt | None, call: Callable[[], object]) -> bool:
    """Makes the call, and tells whether it was interrupted."""
    try:
        with contextlib.nullcontext() if interrupt is None else interrupt.here():
            call()
    except (KeyboardInterrupt, LookupError):
        return True
    return False


def all_asleep(client: pyredisson.Client, one: Contender, two: Contender) -> None:
    """Starts one after the other, and returns when all sleep that are there. One that looks at the lock now and then
    may be interrupted before the other comes."""
    for each in (one, two):
        each.start()
        eventually(lambda: asleep(client, "a") >= one.is_alive() + two.is_alive(), LIMIT)


def at_each_moment(
    client: pyredisson.Client,
    admin: Redis,
    scenario: Callable[[Interrupt], None],
    least: int,
    error: type[BaseException] = KeyboardInterrupt,
) -> None:
    """Runs the scenario with an interrupt at another moment each time, until there is no such moment."""
    session, where, step = client._session, "begin", 0
    while where:
        step += 1
        interrupt = Interrupt(step, error)
        scenario(interrupt)
        where = interrupt.where
        end = time.monotonic() + LIMIT
        while admin.exists("a") or session.lock_queues or session.channels.waiting:
            assert time.monotonic() < end, (where, admin.hgetall("a"), session.lock_queues, session.channels.waiting)
            time.sleep(0.002)
        assert not any(client.get_lock("a", owner=owner)._logic.hold_of(owner) for owner in (1, 2, 3)), where
        check_pairs(told(client), where)
        everything_told(client).clear()
    assert step > least


@handlers_may_raise
@pytest.mark.slow
# A connection, or a coroutine that has not begun, is collected if its only user is interrupted.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
class TestEachMoment:
    @pytest.mark.parametrize("error", [KeyboardInterrupt, LookupError])
    @pytest.mark.parametrize("call", ["lock", "unlock"])
    def test_an_uncontended_call(self, server: Server, admin: Redis, call: str, error: type[BaseException]) -> None:
        """A release happens all the same."""
        with pyredisson.connect(server.url, observer=Recorder()) as client:
            lock = client.get_lock("a", owner=1)

            def scenario(interrupt: Interrupt) -> None:
                if call == "unlock":
                    lock.lock()
                assert strikes(interrupt, getattr(lock, call)) is bool(interrupt.where)
                if call == "lock" and not interrupt.where:
                    lock.unlock()
                if call == "unlock" or not interrupt.where:
                    eventually(lambda: whats(told(client)) == ["acquired", "released"], LIMIT)

            at_each_moment(client, admin, scenario, 20 if call == "lock" else 15, error)

    def test_the_release_of_a_permit(self, server: Server, admin: Redis) -> None:
        with pyredisson.connect(server.url, observer=Recorder()) as client:
            semaphore = client.get_permit_expirable_semaphore("a")

            def scenario(interrupt: Interrupt) -> None:
                semaphore.try_set_permits(1)
                permit = semaphore.acquire(renew=True)
                assert strikes(interrupt, lambda: semaphore.release(permit)) is bool(interrupt.where)
                semaphore.delete()

            at_each_moment(client, admin, scenario, 15)

    def test_the_wait_for_a_latch(self, server: Server, admin: Redis) -> None:
        with pyredisson.connect(server.url, observer=Recorder()) as client:
            latch = client.get_count_down_latch("a")

            def scenario(interrupt: Interrupt) -> None:
                latch.try_set_count(1)
                strikes(interrupt, lambda: latch.wait(0.02))
                latch.delete()

            at_each_moment(client, admin, scenario, 5)

    @pytest.mark.parametrize("way", ["handed on", "message"])
    def test_a_waiter_is_interrupted(self, server: Server, admin: Redis, way: str) -> None:
        """It gets nothing; the waiter behind it gets the lock."""
        options: dict[str, Any] = {"local_hand_over_time": 60, "observer": Recorder()}
        with pyredisson.connect(server.url, **options) as client, pyredisson.connect(server.url) as other:
            holder = (client if way == "handed on" else other).get_lock("a", owner=1)

            def scenario(interrupt: Interrupt) -> None:
                holder.lock()
                first, behind = Contender(client, 2, interrupt), Contender(client, 3)
                all_asleep(client, first, behind)
                holder.unlock()
                first.end(interrupt.where)
                behind.end(interrupt.where)
                assert first.interrupted is bool(interrupt.where)
                assert behind.acquired

            at_each_moment(client, admin, scenario, 50)

    @pytest.mark.parametrize("seconds", [60, 0])
    def test_a_release_is_interrupted(self, server: Server, admin: Redis, seconds: float) -> None:
        """It happens all the same, with a hand-over and with a message. Both waiters get the lock."""
        with pyredisson.connect(server.url, local_hand_over_time=seconds, observer=Recorder()) as client:
            holder = client.get_lock("a", owner=1)

            def scenario(interrupt: Interrupt) -> None:
                holder.lock()
                others = [Contender(client, owner) for owner in (2, 3)]
                all_asleep(client, *others)
                assert strikes(interrupt, holder.unlock) is bool(interrupt.where)
                for other in others:
                    other.end(interrupt.where)
                    assert other.acquired

            at_each_moment(client, admin, scenario, 30)


def test_a_signal_while_a_reply_is_abandoned_leaves_it_to_no_other_call(proxy: Proxy, admin: Redis) -> None:
    taken_by_another(admin)
    with pyredisson.connect(proxy.url, timeout=0.8) as client:
        busy, free = client.get_lock("a"), client.get_lock("b")
        free.is_locked()
        # The reply comes after the deadline, on a connection that must not be used any more.
        proxy.latency(0.5)
        with pytest.raises(KeyboardInterrupt), InterruptAt(Connection._close_after) as interrupt:
            busy.remain_time_to_live()
        assert interrupt.happened
        proxy.latency(0)
        time.sleep(0.5)
        assert (free.is_locked(), free.remain_time_to_live(), busy.is_locked()) == (False, None, True)


@contextmanager
def struck(when: Callable[[], object], error: type[BaseException] = KeyboardInterrupt) -> Iterator[None]:
    """A signal raises the error in the main thread, once this is so. That ends at once what runs in here."""
    main, rung = threading.get_ident(), [math.inf]

    def ring(*_: object) -> None:
        raise error("the time of the job is over")

    def strike() -> None:
        eventually(when)
        rung.append(time.monotonic())
        signal.pthread_kill(main, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, ring)
    striker = threading.Thread(target=strike, daemon=True)
    striker.start()
    with pytest.raises(error, match="the time of the job is over"):
        yield
    assert time.monotonic() - rung[-1] < LIMIT
    striker.join()
    signal.signal(signal.SIGUSR1, before)


async def test_an_interrupted_acquire_whose_request_comes_late(threads: RawBackend, proxy: Proxy, admin: Redis) -> None:
    lock = (await threads.connected(proxy.url, timeout=20, lock_watchdog_timeout=20)).get_lock("a")
    late = proxy.hold_request(ACQUIRE)

    def is_cut_off() -> bool:
        # The client can't reach the server and have that connection dropped: the late request runs.
        held = late.held.is_set()
        proxy.refuse(held)
        return held

    with struck(is_cut_off):
        lock.lock()
    late.deliver()
    assert admin.exists("a")
    proxy.refuse(False)
    eventually(lambda: not admin.exists("a"), 5)
    assert lock.get_hold_count() == 0


@pytest.mark.parametrize(("kind", "depth"), [("lock", 0), ("lock", 1), ("lock", 3), ("permits", 0)])
async def test_an_interrupted_acquire(threads: RawBackend, proxy: Proxy, admin: Redis, kind: str, depth: int) -> None:
    one = used(threads, proxy, admin, kind, None, timeout=20, lock_watchdog_timeout=20)
    await one.connect()
    for _ in range(depth):
        await one.acquire()
    late = proxy.hold_reply(one.acquiring)
    with struck(lambda: late.held.is_set() and one.taken() == (depth + 1) * one.each):
        await one.acquire()
    eventually(lambda: one.taken() == depth, 5)
    assert depth or kind == "permits" or not admin.exists("a")
    assert kind == "permits" or one.handle.get_hold_count() == depth


@pytest.mark.parametrize("kind", ["lock", "semaphore", "permits"])
def test_an_interrupted_wait_ends_at_once_without_a_claim(client: pyredisson.Client, admin: Redis, kind: str) -> None:
    prepare(admin, kind)
    claim = "pyredisson_semaphore_claim:{a}"
    if kind == "lock":
        taken_by_another(admin)
    wait: dict[str, Callable[[], object]] = {
        "lock": client.get_lock("a").lock,
        "semaphore": lambda: client.get_semaphore("a").acquire(9),
        "permits": lambda: client.get_permit_expirable_semaphore("a").acquire_many(9),
    }
    # Without `persist` the claim would end by itself.
    with struck(lambda: listeners(admin, "a") == 1 if kind == "lock" else admin.persist(claim)):
        wait[kind]()
    if kind == "lock":
        given_back(admin)
    eventually(lambda: not admin.exists(claim), 5)
    assert client._session.holds.table == {}
    assert admin.get("a") == (None if kind == "lock" else b"%d" % PERMITS)


@pytest.mark.parametrize("moment", ["connect", "reply", "message"])
def test_a_handler_may_raise_what_a_socket_raises(proxy: Proxy, admin: Redis, moment: str) -> None:
    """It is no failure of the connection, after which the call would try again without an end."""
    with pyredisson.connect(proxy.url, timeout=20) as client:
        if moment != "connect":
            client.get_lock("other").is_locked()
        if moment == "message":
            taken_by_another(admin)
        late = proxy.hold_reply(b"" if moment == "connect" else ACQUIRE) if moment != "message" else None
        with struck(lambda: listeners(admin, "a") if late is None else late.held.is_set(), TimeoutError):
            client.get_lock("a").lock()


INTERRUPTED_BEFORE_THE_EXIT = """
import sys, time
import pyredisson
url, pause = sys.argv[1:]
client = pyredisson.connect(url, timeout=20, lock_watchdog_timeout=20)
try:
    client.get_lock("a").lock()
except KeyboardInterrupt:
    time.sleep(float(pause))
    sys.exit(3)
"""


@pytest.mark.parametrize(
    ("what", "pause"), [*[("hold_reply", pause) for pause in (0, 0.02, 0.06, 0.1)], ("hold_request", 0)]
)
def test_the_exit_after_an_interrupt(proxy: Proxy, admin: Redis, child: Start, what: str, pause: float) -> None:
    """A request that was on its way never runs after the exit."""
    late = getattr(proxy, what)(ACQUIRE)
    # So that the repair is under way, at one step or another, when the program ends.
    proxy.latency(0.02)
    user = child(INTERRUPTED_BEFORE_THE_EXIT, proxy.url, pause)
    assert late.held.wait(CHILD_LIMIT)
    assert bool(admin.exists("a")) is (what == "hold_reply")
    user.signal(signal.SIGINT)
    assert user.wait() == 3
    if what == "hold_request":
        with pytest.raises(ConnectionError, match="closed the connection"):
            late.deliver()
    assert not admin.exists("a")


def test_a_subscription_is_changed_after_an_interrupt(client: pyredisson.Client) -> None:
    """Nothing that is sent later stays behind what was interrupted."""
    servers: Any = client._lifecycle.servers
    for step in range(1, 100):
        connection, interrupt = SubscriptionConnection(servers.node), Interrupt(step)
        connection.open()
        with contextlib.closing(connection):
            strikes(interrupt, lambda: connection.send(b"PING\r\n"))  # noqa: B023
            connection.send(b"PING\r\n")
            assert not connection._outbox, interrupt.where
        if not interrupt.where:
            break
    assert step > 4


def test_an_interrupted_start_of_a_thread_is_an_interrupt() -> None:
    """And not what becomes of it inside `threading`."""
    with InterruptAt(threading.Condition._acquire_restore), pytest.raises(KeyboardInterrupt):  # type: ignore[attr-defined]
        while True:
            # One that is there at once isn't waited for.
            start_thread(int, "short")


class TestPermits:
    """Ctrl-C at a chosen step."""

    @pytest.fixture
    def client(self, server: Server, admin: Redis) -> Iterator[pyredisson.Client]:
        prepare(admin, "semaphore")
        with pyredisson.connect(server.url, lock_watchdog_timeout=3) as client:
            yield client
            eventually(lambda: admin.get("a") == b"5" and not admin.zcard("{a}:timeout"), 5)
            assert client._session.holds.table == {}

    @pytest.mark.parametrize(
        ("call", "step"),
        [
            *[("release", step) for step in (SemaphoreLogic.release, SemaphoreCommands.add)],
            *[("release", step) for step in (SessionSlots.allocate, SessionSlots.send)],
            *[(f"{name} ids", PermitExpirableSemaphoreLogic.release) for name in ("release", "try_release")],
            ("acquire ids", PermitExpirableSemaphoreLogic._renew),
            ("acquire ids", PermitExpirableSemaphoreLogic._hold_key),
        ],
    )
    def test_a_release_is_done_and_an_acquire_is_undone(self, client: pyredisson.Client, call: str, step: Any) -> None:
        name, _, ids = call.partition(" ")
        semaphore = semaphore_of(client, "permits" if ids else "semaphore")

        def acquire() -> Any:
            return semaphore.acquire_many(2, renew=True) if ids else semaphore.acquire(2) or 2

        taken = None if name == "acquire" else acquire()
        with pytest.raises(KeyboardInterrupt), InterruptAt(step) as interrupt:
            acquire() if taken is None else getattr(semaphore, name)(taken)
        assert interrupt.happened

    def test_with_permits_in_its_hands(self, client: pyredisson.Client, admin: Redis) -> None:
        """At the last steps of a wait that has had what it waited for."""
        semaphore = client.get_semaphore("a")
        semaphore.acquire(5)
        interrupt = InterruptAt(ChannelRegistry.leave)

        def wait() -> None:
            with pytest.raises(KeyboardInterrupt), interrupt:
                semaphore.acquire(2)

        with ThreadPoolExecutor(1) as pool:
            waiter = pool.submit(wait)
            eventually(lambda: admin.pubsub_numsub("redisson_sc:{a}")[0][1] == 1)
            semaphore.release(5)
            waiter.result(10)
        assert interrupt.happened
        eventually(lambda: not any(channel.waiters for channel in client._session.channels.by_name.values()))

    def test_before_the_ids_were_read(self, client: pyredisson.Client, admin: Redis) -> None:
        semaphore = client.get_permit_expirable_semaphore("a")
        permit = semaphore.acquire()
        with InterruptAt(releases.release_permit_ids) as interrupt, pytest.raises(KeyboardInterrupt):
            semaphore.release(permit)
        # As if the signal had come before the call.
        assert interrupt.happened
        assert taken(admin, "permits") == 1
        with InterruptAt(arguments.permit_ids_of), pytest.raises(KeyboardInterrupt):
            semaphore.release(permit)
