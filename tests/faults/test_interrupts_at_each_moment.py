"""Ctrl-C at each moment of a call, and at chosen ones: nothing is left behind, and nobody else waits longer.

And what an observer was told of has its end.
"""

import gc
import inspect
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
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
from pyredisson.testing import Proxy, Server
from tests.support.backends import _finished
from tests.support.children import CHILD_LIMIT
from tests.support.faults import ACQUIRE, InterruptAt, pool_of
from tests.support.observers import Recorder, check_pairs, everything_told, told, whats
from tests.support.raw_backends import RawBackend
from tests.support.server_state import listeners
from tests.support.waiting import eventually

from .kinds import GROUPS, KINDS, PERMITS, Start, Used, given_back, prepare, taken, taken_by_another, used

LIMIT = 20.0
"""Seconds after which a waiter counts as forgotten. By its own timer it would make an attempt after 30 s."""
CALLERS = 3
PACKAGE = Path(pyredisson.__file__).parent
API = str(PACKAGE / "_api/sync")
INTERRUPTED = (API, *(str(PACKAGE / part) for part in ("logic", "_backends", "_protocol")))
"""Where interrupts strike."""


class Interrupt:
    """An error of a signal's handler at the n-th moment at which Python would run the handler on this thread.

    It does so when a function begins, and after a call. Neither the end of a coroutine that is awaited is such a
    moment, nor the way from the body of a `try` or `with` to its end.
    """

    def __init__(self, step: int, error: type[BaseException] = KeyboardInterrupt) -> None:
        self._left, self.error = step, error
        self.where = ""
        """Empty: there was no such moment."""

    def strikes(self, call: Callable[[], Coroutine[Any, Any, object]]) -> bool:
        """Makes the call, and tells whether it was interrupted."""
        # An interrupt in a finalizer that the garbage collector runs is lost: Python only reports it.
        gc.disable()
        sys.setprofile(self._profile)
        try:
            _finished(call())
        except self.error:
            return True
        finally:
            sys.setprofile(None)
            gc.enable()
        return False

    def _profile(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if self.where or event == "c_call" or not code.co_filename.startswith(INTERRUPTED):
            return
        if event == "return" and (code.co_flags & inspect.CO_COROUTINE or code in PROPERTIES):
            return
        # What comes at the begin of a public function comes before the call. In a generator that is closed it is lost.
        if event != "c_return" and (code.co_flags & inspect.CO_GENERATOR or code.co_filename.startswith(API)):
            return
        self._left -= 1
        if not self._left:
            self.where = f"{event} {code.co_qualname}:{frame.f_lineno}"
            raise self.error


def properties() -> Iterator[CodeType]:
    """The code of all properties: reading one is no call."""
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("pyredisson.")]
    kinds = [kind for module in modules for kind in vars(module).values() if isinstance(kind, type)]
    for kind in kinds:
        for value in vars(kind).values():
            if isinstance(value, property) and isinstance(value.fget, FunctionType):
                yield value.fget.__code__


PROPERTIES = set(properties())


class Contender(threading.Thread):
    """Acquires and releases."""

    def __init__(self, one: Used, interrupt: Interrupt) -> None:
        super().__init__(daemon=True)
        self.one, self.interrupt = one, interrupt
        self.interrupted = False

    def run(self) -> None:
        self.interrupted = self.interrupt.strikes(self.one.acquire)
        if not self.interrupted:
            _finished(self.one.release())


def at_each_moment(one: Used, scenario: Callable[[Interrupt], None], least: int, **options: Any) -> None:
    """Runs the scenario with an interrupt at another moment each time, until there is no such moment."""
    step, missed, before, pool = 0, 0, one.taken(), pool_of(one.client)

    def is_over() -> bool:
        queued = one.admin.exists("redisson_lock_queue:{a}")
        return one.taken() == before and one.knows_nothing() and not (one.client._session.lock_queues or queued)

    # A call may have fewer moments than the one before it.
    while missed < 3:
        # Otherwise a call that has to connect would have more of them than all later ones.
        while len(pool._idle) < CALLERS:
            pool._return(pool._connect_or_wait())
        step += 1
        interrupt = Interrupt(step, **options)
        scenario(interrupt)
        missed = 0 if interrupt.where else missed + 1
        eventually(is_over, LIMIT)
        # Permits have no numbers by which an observer finds the pairs.
        if one.is_lock:
            check_pairs(told(one.client), interrupt.where)
        everything_told(one.client).clear()
    assert step > least


@pytest.mark.slow
# A connection, or a coroutine that has not begun, is collected if its only user is interrupted.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
class TestEachMoment:
    @pytest.mark.parametrize(
        ("kind", "call", "error"),
        [(kind, call, KeyboardInterrupt) for kind in (*KINDS, *GROUPS) for call in ("acquire", "release")]
        + [("lock", call, KeyboardInterrupt) for call in ("block", "hold", "first call")]
        # Many programs limit a time by a signal whose handler raises this error, which is an OSError.
        + [("lock", "acquire", TimeoutError)],
    )
    def test_an_uncontended_call(
        self,
        threads: RawBackend,
        servers: list[Server],
        redises: list[Redis],
        kind: str,
        call: str,
        error: type[BaseException],
    ) -> None:
        """A release happens all the same. The members of a group are on several servers."""
        prepare(redises[0], kind)
        clients = [threads.connect(each.url, observer=Recorder()) for each in servers]
        one = Used(threads, clients[0], kind, 1, redises[0])
        if kind in GROUPS:
            one.handle = getattr(clients[0], f"get_{kind}_lock")(*[each.get_lock("a", owner=1) for each in clients])

        def is_whole() -> bool:
            held = [client for client in clients if client._session.holds.table]
            return not held and not any(redis.exists("a") for redis in redises[1:])

        async def block() -> None:
            if call == "first call":
                pool_of(one.client).close_idle()
            with one.handle.hold(wait_time=5) if call == "hold" else one.handle:
                pass

        def scenario(interrupt: Interrupt) -> None:
            if call == "release":
                _finished(one.acquire())
            interrupted = interrupt.strikes(getattr(one, call, block))
            assert interrupted is bool(interrupt.where)
            if call == "acquire" and not interrupted:
                _finished(one.release())
            if one.is_lock and (call == "release" or not interrupted):
                eventually(lambda: "released" in whats(told(one.client)), LIMIT)
            assert one.kind != "lock" or not one.handle._blocks
            eventually(is_whole, LIMIT)

        at_each_moment(one, scenario, 10, error=error)

    @pytest.mark.parametrize("kind", ["lock", "fair", "read", "write", "semaphore", "permits", "multi", "red"])
    @pytest.mark.parametrize(
        ("who", "way"), [("waiter", "handed on"), ("waiter", "message"), ("holder", "handed on"), ("holder", "woken")]
    )
    def test_a_contended_call(
        self, threads: RawBackend, server: Server, admin: Redis, who: str, way: str, kind: str
    ) -> None:
        """A waiter gets nothing, and a release happens all the same. Nobody else is forgotten."""
        prepare(admin, kind)
        client, other = (
            threads.connect(server.url, local_hand_over_time=0 if way == "woken" else 60, observer=Recorder())
            for _ in range(2)
        )
        holder = Used(threads, other if way == "message" else client, "write" if kind == "read" else kind, 1, admin)
        first, behind = (Used(threads, client, kind, owner, admin) for owner in (2, 3))
        if not first.is_lock:
            admin.set("a", first.each)

        def scenario(interrupt: Interrupt) -> None:
            never = Interrupt(0)
            of_waiter, of_holder = (interrupt, never) if who == "waiter" else (never, interrupt)
            _finished(holder.acquire())
            contenders = [Contender(first, of_waiter), Contender(behind, never)]
            for count, contender in enumerate(contenders, 1):
                contender.start()
                eventually(lambda: first.sleeping() >= count or not contenders[0].is_alive(), LIMIT)  # noqa: B023
            interrupted = of_holder.strikes(holder.release)
            for contender in contenders:
                contender.join(LIMIT)
                assert not contender.is_alive(), f"owner {contender.one.owner} is forgotten: {interrupt.where}"
            assert (interrupted or contenders[0].interrupted) is bool(interrupt.where)

        at_each_moment(first, scenario, 20)


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


async def test_an_interrupted_acquire_whose_request_comes_late_leaves_nothing(
    threads: RawBackend, proxy: Proxy, admin: Redis
) -> None:
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
async def test_an_interrupted_acquire_whose_reply_is_on_its_way_leaves_the_outer_holds(
    threads: RawBackend, proxy: Proxy, admin: Redis, kind: str, depth: int
) -> None:
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
def test_the_exit_releases_an_acquire_that_ctrl_c_interrupted(
    proxy: Proxy, admin: Redis, child: Start, what: str, pause: float
) -> None:
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


def test_an_interrupted_start_of_a_thread_is_an_interrupt() -> None:
    """And not what becomes of it inside `threading`."""
    with InterruptAt(threading.Condition._acquire_restore), pytest.raises(KeyboardInterrupt):  # type: ignore[attr-defined]
        while True:
            # One that is there at once isn't waited for.
            start_thread(threading.Thread(target=int))


def test_before_the_ids_were_read(client: pyredisson.Client, admin: Redis) -> None:
    """As if the signal had come before the call."""
    prepare(admin, "permits")
    semaphore = client.get_permit_expirable_semaphore("a")
    permit = semaphore.acquire()
    for step in (releases.release_permit_ids, arguments.permit_ids_of):
        with InterruptAt(step) as interrupt, pytest.raises(KeyboardInterrupt):
            semaphore.release(permit)
        assert interrupt.happened
        assert taken(admin, "permits") == 1
