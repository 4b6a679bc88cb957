"""Ctrl-C at each moment of a call, and at chosen ones: nothing is left behind, nobody else waits longer.

And what an observer was told of has its end.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest
from redis import Redis

import pyredisson
from pyredisson._api import arguments
from pyredisson._api.sync import releases
from pyredisson._backends.thread_start import start_thread
from pyredisson._backends.threads.connection import Connection
from pyredisson.logic.channels import ChannelRegistry
from pyredisson.logic.exactly_once import SessionSlots
from pyredisson.logic.permits.commands import SemaphoreCommands
from pyredisson.logic.permits.permit_expirable_semaphore import PermitExpirableSemaphoreLogic
from pyredisson.logic.permits.semaphore import SemaphoreLogic
from pyredisson.logic.waiting import WAITING
from pyredisson.testing import Proxy, Server
from tests.support.children import Child
from tests.support.faults import ACQUIRE, InterruptAt
from tests.support.observers import Recorder, check_pairs, everything_told, told, whats
from tests.support.server_state import listeners
from tests.support.waiting import eventually

from .kinds import PERMITS, Start, prepare, semaphore_of, sha, taken

LIMIT = 5.0
"""Seconds after which a waiter counts as forgotten. By its own timer it would make an attempt after 30 s."""
PACKAGE = Path(pyredisson.__file__).parent
INTERRUPTED = tuple(str(PACKAGE / part) for part in ("logic", "_backends", "_protocol"))
"""Where interrupts strike. In the public API its first instruction may be before the call."""


class Interrupt:
    """A KeyboardInterrupt at the n-th moment at which Python would run a signal's handler on this thread.

    It does so when a function begins, and after a call. Neither the end of a coroutine that is awaited is such a
    moment, nor the way from the body of a `try` or `with` to its end.
    """

    def __init__(self, step: int) -> None:
        self._left = step
        self.where = ""
        """Empty: there was no such moment."""

    @contextmanager
    def here(self) -> Iterator[None]:
        # An interrupt in a finalizer that the garbage collector runs is lost: Python only reports it.
        collects = gc.isenabled()
        gc.disable()
        sys.setprofile(self._profile)
        try:
            yield
        finally:
            sys.setprofile(None)
            if collects:
                gc.enable()

    def _profile(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if self.where or event == "c_call" or not code.co_filename.startswith(INTERRUPTED):
            return
        if event == "return" and (code.co_flags & inspect.CO_COROUTINE or code in PROPERTIES):
            return
        self._left -= 1
        if not self._left:
            self.where = f"{event} {code.co_qualname}:{frame.f_lineno}"
            raise KeyboardInterrupt


def properties() -> Iterator[CodeType]:
    """The code of all properties: reading one is no call."""
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("pyredisson.")]
    kinds = [kind for module in modules for kind in vars(module).values() if isinstance(kind, type)]
    for kind in kinds:
        for value in vars(kind).values():
            if isinstance(value, property) and isinstance(value.fget, FunctionType):
                yield value.fget.__code__


PROPERTIES = set(properties())


def sleeps(client: pyredisson.Client, owner: int) -> bool:
    """Whether the call of this owner waits, and hears of a release."""
    queue = client._session.lock_queues.get(b"a")
    channel = None if queue is None else queue.channel
    if queue is None or channel is None or not channel.confirmed:
        return False
    return any(waiter.call.owner.id == owner and waiter.state is WAITING for waiter in list(queue.waiters))


class Contender(threading.Thread):
    """Acquires the lock and releases it."""

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
    except KeyboardInterrupt:
        return True
    return False


def until_asleep(client: pyredisson.Client, contender: Contender) -> None:
    contender.start()
    eventually(lambda: sleeps(client, contender.owner) or not contender.is_alive(), LIMIT)


def at_each_moment(client: pyredisson.Client, admin: Redis, scenario: Callable[[Interrupt], None], least: int) -> None:
    """Runs the scenario with an interrupt at another moment each time, until there is no such moment."""
    session, where, step = client._session, "begin", 0
    while where:
        step += 1
        interrupt = Interrupt(step)
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


@pytest.mark.slow
# A connection, or a coroutine that has not begun, is collected if its only user is interrupted.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
class TestEachMoment:
    @pytest.mark.parametrize("call", ["acquire", "release"])
    def test_an_uncontended_call(self, server: Server, admin: Redis, call: str) -> None:
        """A release happens all the same."""
        with pyredisson.connect(server.url, observer=Recorder()) as client:
            lock = client.get_lock("a", owner=1)

            def scenario(interrupt: Interrupt) -> None:
                if call == "acquire":
                    interrupted = strikes(interrupt, lock.lock)
                    assert interrupted is bool(interrupt.where)
                    if not interrupted:
                        lock.unlock()
                else:
                    lock.lock()
                    strikes(interrupt, lock.unlock)
                if call == "release" or not interrupt.where:
                    eventually(lambda: whats(told(client)) == ["acquired", "released"], LIMIT)

            at_each_moment(client, admin, scenario, 20 if call == "acquire" else 15)

    @pytest.mark.parametrize("way", ["handed on", "message"])
    def test_a_waiter_is_interrupted(self, server: Server, admin: Redis, way: str) -> None:
        """It gets nothing; the waiter behind it gets the lock."""
        with (
            pyredisson.connect(server.url, local_hand_over_time=60, observer=Recorder()) as client,
            pyredisson.connect(server.url) as other,
        ):
            holder = (client if way == "handed on" else other).get_lock("a", owner=1)

            def scenario(interrupt: Interrupt) -> None:
                holder.lock()
                first, behind = Contender(client, 2, interrupt), Contender(client, 3)
                until_asleep(client, first)
                until_asleep(client, behind)
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
                for other in others:
                    until_asleep(client, other)
                assert strikes(interrupt, holder.unlock) is bool(interrupt.where)
                for other in others:
                    other.end(interrupt.where)
                    assert other.acquired

            at_each_moment(client, admin, scenario, 30)


def test_a_signal_while_a_reply_is_abandoned_leaves_it_to_no_other_call(proxy: Proxy, admin: Redis) -> None:
    admin.hset("a", "another:1", 1)
    with pyredisson.connect(proxy.url, timeout=0.8) as client:
        busy, free = client.get_lock("a"), client.get_lock("b")
        free.is_locked()
        # The reply comes after the deadline, on a connection that must not be used any more.
        proxy.latency(0.5)
        with pytest.raises(KeyboardInterrupt), InterruptAt(Connection._close_after_failure) as interrupt:
            busy.remain_time_to_live()
        assert interrupt.happened
        proxy.latency(0)
        time.sleep(0.5)
        assert free.is_locked() is False
        assert free.remain_time_to_live() is None
        assert busy.is_locked() is True


INTERRUPTED_ONCE = """
import sys, time
import pyredisson
url, kind, depth, permits, pause = sys.argv[1:]
client = pyredisson.connect(url, timeout=20, lock_watchdog_timeout=20)
lock = client.get_lock("a")
semaphore = client.get_permit_expirable_semaphore("a") if kind == "permits" else client.get_semaphore("a")

def acquire():
    if kind == "permits":
        semaphore.acquire_many(int(permits))
    elif kind == "semaphore":
        semaphore.acquire(int(permits))
    else:
        lock.lock()

for _ in range(int(depth)):
    acquire()
client.get_lock("other").is_locked()
print("go")
sys.stdin.readline()
print("start")
try:
    acquire()
except KeyboardInterrupt:
    if pause:
        time.sleep(float(pause))
        sys.exit(3)
    hold = lock._logic.hold_of(lock._owner().id)
    print("interrupted", 0 if hold is None else hold.count)
sys.stdin.readline()
print(lock.get_hold_count() if kind == "lock" else len(client._session.holds.table))
sys.stdin.readline()
"""


@pytest.fixture
def go(child: Start) -> Start:
    """Starts a process that waits with what it is told to acquire; an interrupt ends it after a `pause`."""

    def start(url: str, kind: str = "lock", depth: int = 0, permits: int = 2, pause: object = "") -> Child:
        user = child(INTERRUPTED_ONCE, url, kind, depth, permits, pause)
        assert user.receive() == "go"
        return user

    return start


def begin(user: Child) -> None:
    user.send()
    assert user.receive() == "start"


def test_an_interrupted_acquire_whose_request_comes_late_leaves_nothing(proxy: Proxy, admin: Redis, go: Start) -> None:
    user = go(proxy.url)
    late = proxy.hold_request(ACQUIRE)
    begin(user)
    assert late.held.wait(10)
    # The client can't reach the server and have that connection dropped: the late request runs.
    proxy.refuse(True)
    user.signal(signal.SIGINT)
    assert user.receive() == "interrupted 0"
    late.deliver()
    assert admin.exists("a")
    proxy.refuse(False)
    eventually(lambda: not admin.exists("a"), 5)
    user.send()
    assert user.receive() == "0"


@pytest.mark.parametrize(("kind", "depth"), [("lock", 0), ("lock", 1), ("lock", 3), ("permits", 0)])
def test_an_interrupted_acquire_whose_reply_is_on_its_way_leaves_the_outer_holds(
    proxy: Proxy, admin: Redis, go: Start, kind: str, depth: int
) -> None:
    prepare(admin, kind)
    user = go(proxy.url, kind, depth)
    late = proxy.hold_reply(sha("permit_acquire") if kind == "permits" else ACQUIRE)
    begin(user)
    assert late.held.wait(10)
    assert taken(admin, kind) == (2 if kind == "permits" else depth + 1)
    user.signal(signal.SIGINT)
    assert user.receive() == f"interrupted {depth}"
    eventually(lambda: taken(admin, kind) == depth, 5)
    assert depth or kind == "permits" or not admin.exists("a")
    user.send()
    assert user.receive() == f"{depth}"


@pytest.mark.parametrize("kind", ["lock", "semaphore", "permits"])
def test_an_interrupted_wait_ends_at_once_and_leaves_no_claim(
    server: Server, admin: Redis, go: Start, kind: str
) -> None:
    prepare(admin, kind)
    claim = "pyredisson_semaphore_claim:{a}"
    if kind == "lock":
        admin.hset("a", "another:1", 1)
    user = go(server.url, kind, 0, 9)
    begin(user)
    if kind == "lock":
        eventually(lambda: listeners(admin, "a") == 1)
    else:
        eventually(lambda: admin.exists(claim) == 1)
        # Else it would end by itself.
        admin.persist(claim)
    user.signal(signal.SIGINT)
    assert user.receive(3) == "interrupted 0"
    if kind == "lock":
        admin.delete("a")
        admin.publish("redisson_lock__channel:{a}", "0")
    eventually(lambda: not admin.exists(claim), 5)
    user.send()
    assert user.receive() == "0"
    assert admin.get("a") == (None if kind == "lock" else b"%d" % PERMITS)


@pytest.mark.parametrize(
    ("what", "pause"), [*[("hold_reply", pause) for pause in (0, 0.02, 0.06, 0.1)], ("hold_request", 0)]
)
def test_the_exit_releases_an_acquire_that_ctrl_c_interrupted(
    proxy: Proxy, admin: Redis, go: Start, what: str, pause: float
) -> None:
    """A request that was on its way never runs after the exit."""
    user = go(proxy.url, pause=pause)
    late = getattr(proxy, what)(ACQUIRE)
    # So that the repair is under way, at one step or another, when the program ends.
    proxy.latency(0.02)
    begin(user)
    assert late.held.wait(10)
    assert bool(admin.exists("a")) is (what == "hold_reply")
    user.signal(signal.SIGINT)
    assert user.wait() == 3
    if what == "hold_request":
        with pytest.raises(ConnectionError, match="closed the connection"):
            late.deliver()
    assert not admin.exists("a")


ALARMED = """
import signal, sys, time
import pyredisson

def ring(*_):
    raise TimeoutError("the time of the job is over")

signal.signal(signal.SIGALRM, ring)
client = pyredisson.connect(sys.argv[1], timeout=20)
if sys.argv[2] == "connected":
    client.get_lock("other").is_locked()
print("go")
sys.stdin.readline()
signal.setitimer(signal.ITIMER_REAL, 0.2)
began = time.monotonic()
try:
    client.get_lock("a").lock()
except TimeoutError as error:
    print(error, time.monotonic() - began < 5)
"""


@pytest.mark.parametrize("moment", ["connect", "reply", "message"])
def test_a_handler_may_raise_what_a_socket_raises(proxy: Proxy, admin: Redis, child: Start, moment: str) -> None:
    """It is no failure of the connection, after which the call would try again without an end."""
    user = child(ALARMED, proxy.url, "connect" if moment == "connect" else "connected")
    assert user.receive() == "go"
    if moment == "message":
        admin.hset("a", "another:1", 1)
    else:
        proxy.hold_reply(b"" if moment == "connect" else ACQUIRE)
    user.send()
    assert user.receive(10) == "the time of the job is over True"


def test_an_interrupted_start_of_a_thread_is_an_interrupt() -> None:
    """And not what becomes of it inside `threading`."""
    with InterruptAt(threading.Condition._acquire_restore), pytest.raises(KeyboardInterrupt):  # type: ignore[attr-defined]
        while True:
            # One that is there at once isn't waited for.
            start_thread(threading.Thread(target=int))


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
            ("release", SemaphoreLogic.release),
            ("release", SemaphoreCommands.add),
            ("release", SessionSlots.allocate),
            ("release", SessionSlots.send),
            ("release ids", PermitExpirableSemaphoreLogic.release),
            ("try_release ids", PermitExpirableSemaphoreLogic.release),
            ("acquire ids", PermitExpirableSemaphoreLogic._renew),
            ("acquire ids", PermitExpirableSemaphoreLogic._hold_key),
        ],
    )
    def test_a_release_is_done_and_an_acquire_is_undone(
        self, client: pyredisson.Client, call: str, step: Callable[..., Any]
    ) -> None:
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
        ended: list[bool] = []

        def wait() -> None:
            try:
                with interrupt:
                    semaphore.acquire(2)
            except KeyboardInterrupt:
                ended.append(True)

        waiter = threading.Thread(target=wait)
        waiter.start()
        eventually(lambda: admin.pubsub_numsub("redisson_sc:{a}")[0][1] == 1)
        semaphore.release(5)
        waiter.join(10)
        assert interrupt.happened
        assert ended
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
