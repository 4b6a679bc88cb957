"""Observers that fail, hang, fork or come last: locks don't depend on them, and no event is lost without a word."""

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import pyredisson.asyncio
from pyredisson._client import callbacks, lifecycle, process
from pyredisson._client.callbacks import Delivery
from pyredisson.events import Event
from pyredisson.logic.observing import Observing
from pyredisson.testing import Server
from tests.support.backends import TIME_LIMIT, eventually, our_threads
from tests.support.children import forked
from tests.support.garbage import DuringCall, Garbage, collect_at_each_line, only_collections_asked_for
from tests.support.inspecting import Recorder, check_pairs, told, whats

from .kinds import Log, NoThread, Patch, Start


def use(client: pyredisson.Client, times: int = 1, name: str = "a") -> None:
    lock = client.get_lock(name, owner=1)
    for _ in range(times):
        lock.lock()
        lock.unlock()


def messages(caplog: Log) -> list[str]:
    return [message for message in caplog.messages if "observer" in message]


class Calling(Recorder):
    """Calls `first` with each event `acquired`, and then keeps it."""

    def __init__(self, first: Callable[[Event], object]) -> None:
        super().__init__()
        keep = self.events.append
        # Set as `Recorder` does it.
        vars(self)["acquired"] = lambda event: (first(event), keep(event))


class Hanging(Calling):
    """Its first call of `acquired` lasts until `go_on` is set."""

    def __init__(self) -> None:
        super().__init__(self.hang)
        self.hangs = threading.Event()
        self.go_on = threading.Event()

    def hang(self, _: Event) -> None:
        self.hangs.set()
        assert self.go_on.wait(60)


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    observer = Hanging()
    yield observer
    observer.go_on.set()


@pytest.mark.parametrize("error", [LookupError("the metric is unknown"), SystemExit(3), KeyboardInterrupt()])
def test_one_that_raises(server: Server, caplog: Log, error: BaseException) -> None:
    """The later events are delivered. The log has the first failure, and at the end the number of all."""

    def fail(event: Event) -> None:
        raise error

    with pyredisson.connect(server.url, observer=Calling(fail)) as client:
        use(client, 3)
        assert whats(told(client)) == ["released"] * 3
        assert messages(caplog) == ["the observer's method acquired failed; this is logged once"]
        assert (caplog.records[-1].exc_info or [None, None])[1] is error
    assert messages(caplog)[1:] == ["the observer's method acquired failed 3 times"]


class TestOneThatHangs:
    def test_the_oldest_are_dropped(self, server: Server, hanging: Hanging, monkeypatch: Patch, caplog: Log) -> None:
        monkeypatch.setattr(callbacks, "MOST_EVENTS", 4)
        with pyredisson.connect(server.url, observer=hanging) as client:
            use(client)
            assert hanging.hangs.wait(TIME_LIMIT)
            use(client, 10)
            assert messages(caplog) == ["4 events wait for the observer, which is too slow: the oldest are dropped"]
            hanging.go_on.set()
            eventually(lambda: len(hanging.events) >= 6)
            first, dropped, *rest = told(client)
            assert first.what == "acquired"
            # The event that filled the queue may be counted, too.
            assert (dropped.what, dropped.client_id) == ("dropped", client.id)
            assert 17 <= dropped.count <= 18
            assert whats(rest) == ["acquired", "released"] * 2
            # Said after the last event was delivered.
            eventually(lambda: messages(caplog)[1:] == ["the observer has caught up with the events"])

    def test_close_does_not_wait_for_it(self, server: Server, hanging: Hanging) -> None:
        client = pyredisson.connect(server.url, observer=hanging)
        client.get_lock("a").lock()
        assert hanging.hangs.wait(TIME_LIMIT)
        client.close()
        assert not hanging.events
        # What was left is delivered, as soon as it goes on.
        hanging.go_on.set()
        eventually(lambda: whats(hanging.events) == ["acquired", "released"])
        check_pairs(hanging.events)

    def test_close_does_not_block_the_loop(self, server: Server, hanging: Hanging, monkeypatch: Patch) -> None:
        monkeypatch.setattr(lifecycle, "DELIVERY_TIMEOUT", TIME_LIMIT)

        async def main() -> None:
            client = pyredisson.asyncio.connect(server.url, observer=hanging)
            await client.get_lock("a").lock()
            assert await asyncio.to_thread(hanging.hangs.wait, TIME_LIMIT)
            closing = asyncio.ensure_future(client.close())
            await asyncio.sleep(0.05)
            # On a loop that was blocked, the sleep would have lasted for as long as `close`.
            assert not closing.done()
            hanging.go_on.set()
            await closing

        asyncio.run(main())


@pytest.mark.parametrize("what", ["closes", "locks"])
def test_one_that_uses_the_client_that_it_observes(server: Server, what: str) -> None:
    def use_it(event: Event) -> None:
        if what == "closes":
            client.close()
        elif event.name == "a":
            use(client, name="b")

    recorder = Calling(use_it)
    client = pyredisson.connect(server.url, observer=recorder)
    client.get_lock("a", owner=1).lock()
    if what == "locks":
        eventually(lambda: len(recorder.events) == 3)
        client.close()
    eventually(lambda: whats(recorder.events)[-1:] == ["released"] and len(recorder.events) in (2, 4))
    check_pairs(recorder.events)
    assert client.closed


class TestFinalizers:
    def test_a_finalizer_in_the_middle_of_an_observer(self, server: Server) -> None:
        """It releases a lock on the observer's thread, which has a mutex that can't be taken twice."""
        recorder = Recorder()
        mutex = threading.Lock()
        client: pyredisson.Client

        def note(event: Event) -> None:
            with mutex:
                if (event.what, event.name) == ("acquired", "a"):
                    Garbage(client.get_lock("b", owner=1).unlock)
                    gc.collect()
                recorder.events.append(event)

        vars(recorder).update(acquired=note, released=note)
        with pyredisson.connect(server.url, observer=recorder) as client:
            for name in "ba":
                client.get_lock(name, owner=1).lock()
            eventually(lambda: len(recorder.events) == 3)
            said = [(event.what, event.name) for event in recorder.events]
            assert said == [("acquired", "b"), ("acquired", "a"), ("released", "b")]

    def test_a_finalizer_in_the_middle_of_adding_an_event(self, server: Server) -> None:
        """Also while the thread is started."""
        clients: list[pyredisson.Client] = []

        def scenario() -> DuringCall:
            client = pyredisson.connect(server.url, observer=Recorder())
            clients.append(client)
            lock, semaphore = client.get_lock("a", owner=1), client.get_semaphore("s")
            # The scripts and the connection are there before, and the thread of the observer is not.
            assert not lock.is_locked()

            def act() -> None:
                lock.lock()
                semaphore.release()
                lock.unlock()

            left = [2]

            def finalizer() -> None:
                # At the end it is called once more, and a collection may strike in it.
                if left:
                    semaphore.release(left.pop())

            return act, finalizer

        functions = [Observing.call_ended, Observing.hold_ended, Observing.emit, Delivery.wake, Delivery._start]
        with only_collections_asked_for():
            assert collect_at_each_line(functions, scenario) > 20
        for client in clients:
            with client:
                events = told(client)
            # In any order: the finalizer's event may come in the middle of another one's.
            said = sorted(f"{event.what} {event.count}" for event in events)
            assert said == ["acquired 1", "released 1", "released 1", "released 2"]
            check_pairs([event for event in events if event.kind == "lock"])


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
class TestFork:
    def test_the_child_has_events_of_its_own(self, server: Server) -> None:
        with pyredisson.connect(server.url, observer=Recorder()) as client:
            client.get_lock("a", owner=1).lock()

            def in_child() -> bool:
                recorder: Any = client._config.observer
                recorder.events.clear()
                events = list(told(client))
                client.get_lock("b", owner=1).lock()
                return not events and [event.client_id for event in told(client)] == [client.id]

            assert forked(in_child)
            assert whats(told(client)) == ["acquired"]

    def test_not_in_the_middle_of_a_call(self, server: Server, monkeypatch: Patch) -> None:
        """A mutex of the observer, which it holds then, would stay held in the child."""
        monkeypatch.setattr(process, "LONGEST_PAUSE", TIME_LIMIT)
        mutex = threading.Lock()
        inside = threading.Event()

        def acquired(_: Event) -> None:
            with mutex:
                inside.set()
                # Until the fork is about to happen: it comes after this call.
                eventually(lambda: callbacks.paused)

        with pyredisson.connect(server.url, observer=Calling(acquired)) as client:
            use(client)
            assert inside.wait(TIME_LIMIT)
            assert forked(lambda: mutex.acquire(blocking=False))
            # The parent's observer goes on.
            assert whats(told(client)) == ["acquired", "released"]

    def test_an_interrupt_hides_the_end_of_a_fork(self, server: Server, monkeypatch: Patch) -> None:
        """The observer is called again after a while."""
        monkeypatch.setattr(callbacks, "LONGEST_FORK", 0.1)
        recorder = Recorder()
        with pyredisson.connect(server.url, observer=recorder) as client:
            delivery = client._lifecycle.delivery
            assert delivery is not None
            callbacks.pause_before_fork([delivery], 0)
            del callbacks.paused[threading.get_ident()]
            use(client)
            assert whats(told(client)) == ["acquired", "released"]
            assert forked(lambda: True)

    def test_a_fork_does_not_wait_for_one_that_hangs(self, server: Server, hanging: Hanging) -> None:
        with pyredisson.connect(server.url, observer=hanging) as client:
            use(client)
            assert hanging.hangs.wait(TIME_LIMIT)
            assert forked(lambda: True)

    def test_an_observer_that_forks(self, server: Server) -> None:
        outcomes: list[bool] = []
        recorder = Calling(lambda _: outcomes.append(forked(lambda: True)))
        with pyredisson.connect(server.url, observer=recorder) as client:
            use(client)
            assert (whats(told(client)), outcomes) == (["acquired", "released"], [True])


class TestTheEnd:
    def test_events_after_close(self, server: Server) -> None:
        """A thread that waited learns of the end late: its event is delivered although the thread has ended."""
        recorder = Recorder()
        client = pyredisson.connect(server.url, observer=recorder)
        use(client)
        client.close()
        eventually(lambda: not our_threads("pyredisson-observer"))
        observing: Any = client._session.observing
        observing.emit("renewed", count=1, late=0.0)
        eventually(lambda: whats(recorder.events)[2:] == ["renewed"])
        eventually(lambda: not our_threads("pyredisson-observer"))

    @pytest.mark.parametrize("kind", ["threads", "asyncio", "hanging"])
    def test_exit_of_the_interpreter(self, server: Server, child: Start, kind: str) -> None:
        said = ["hangs"] if kind == "hanging" else ["acquired", "released"]
        process = child(EXIT, server.url, kind)
        assert ([process.receive() for _ in [*said, ""]], process.wait()) == ([*said, ""], 0)


EXIT = """
import asyncio, sys, threading, pyredisson, pyredisson.asyncio
from pyredisson._client import lifecycle
url, kind = sys.argv[1:]
lifecycle.DELIVERY_TIMEOUT = 0.2 if kind == "hanging" else 10
hangs = threading.Event()
class Printing:
    acquired = released = staticmethod(lambda event: print(event.what))
class Hanging:
    def acquired(self, event):
        print("hangs")
        hangs.set()
        threading.Event().wait()
async def main():
    await client.get_lock("a").lock()
connect = pyredisson.asyncio.connect if kind == "asyncio" else pyredisson.connect
client = connect(url, observer=Hanging() if kind == "hanging" else Printing())
if kind == "asyncio":
    asyncio.run(main())
else:
    client.get_lock("a").lock()
if kind == "hanging":
    hangs.wait()
"""


def test_no_thread_can_be_started(server: Server, no_thread: NoThread, caplog: Log) -> None:
    """The next event starts it."""
    recorder = Recorder()
    no_thread("pyredisson-observer")
    with pyredisson.connect(server.url, observer=recorder) as client, caplog.at_level("WARNING"):
        use(client)
        assert messages(caplog) == [
            "no thread could be started for the observer, which is told later: can't start new thread"
        ]
        eventually(lambda: whats(recorder.events) == ["acquired", "released"])


def test_an_observer_of_many_threads(server: Server) -> None:
    """Whatever adds the first event, one thread delivers, and no event is delivered twice or never."""
    deliverers: set[int] = set()
    recorder = Calling(lambda _: deliverers.add(threading.get_ident()))
    number = 8
    start = threading.Barrier(number)
    with pyredisson.connect(server.url, observer=recorder) as client:

        def work(index: int) -> None:
            start.wait()
            use(client, 50, f"a{index}")

        with ThreadPoolExecutor(number) as pool:
            list(pool.map(work, range(number)))
        events = told(client)
        check_pairs(events)
        assert (len(events), len(deliverers)) == (number * 50 * 2, 1)
        for index in range(number):
            own = [event for event in events if event.name == f"a{index}"]
            assert whats(own) == ["acquired", "released"] * 50
