"""The keeper's thread: when it looks at the topology, whom it wakes, and when it ends."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable, Iterator

import pytest
from redis.exceptions import AuthenticationError, ConnectionError

from pyredisson._backends.threads.wakeup import ThreadWakeup
from pyredisson._client.topology import keeper
from pyredisson._client.topology.keeper import TopologyKeeper
from pyredisson._protocol import routing, server_health
from pyredisson._protocol.no_reply import NoReply
from pyredisson._protocol.routing import RoutingTable
from pyredisson._protocol.topology import TopologyView
from tests.support.topologies import LAST, Recorder, address, make_node, shard, view
from tests.support.waiting import TIME_LIMIT, eventually

ONE = view(shard(0, ((0, LAST),), 1))
OTHER = view(shard(1, ((0, LAST),), 0), epoch=2)


class ScriptedSource:
    """A source without servers. Each look takes a permit first, so a test decides how many there are."""

    def __init__(self, table: RoutingTable) -> None:
        self._table = table
        self.permits = threading.Semaphore(0)
        self.began = threading.Semaphore(0)
        self.looks = 0
        self.outcome: TopologyView | BaseException = ONE
        self.closed = False

    def look(self) -> tuple[TopologyView, int]:
        begun = self._table.begin_view()
        outcome = self.outcome
        self.began.release()
        assert self.permits.acquire(timeout=TIME_LIMIT)
        self.looks += 1
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome, begun

    def close(self) -> None:
        self.closed = True
        self.permits.release(1000)


class Scripted:
    """A keeper over a scripted source."""

    def __init__(self, interval: float) -> None:
        self.table = RoutingTable(make_node, None)
        self.source = ScriptedSource(self.table)
        self.keeper = TopologyKeeper(self.table, self.source, interval, "cluster of h:1")

    def wait(self) -> ThreadWakeup:
        wakeup = ThreadWakeup()
        self.keeper.wait_until_known(wakeup)
        return wakeup

    def discover(self) -> None:
        self.source.permits.release()
        assert self.wait().wait(TIME_LIMIT)
        assert self.table.ready

    @property
    def thread(self) -> threading.Thread:
        thread = self.keeper._thread
        assert thread is not None
        return thread


@pytest.fixture
def scripted() -> Iterator[Callable[..., Scripted]]:
    made: list[Scripted] = []

    def make(interval: float = 1000.0) -> Scripted:
        made.append(Scripted(interval))
        return made[-1]

    yield make
    for one in made:
        one.keeper.close()
        if one.keeper._thread is not None:
            one.thread.join(TIME_LIMIT)
            assert not one.thread.is_alive()


Make = Callable[..., Scripted]


def test_nothing_happens_before_it_is_needed(scripted: Make) -> None:
    one = scripted(interval=0.01)
    assert one.keeper._thread is None
    assert not one.source.began.acquire(timeout=0.1)


def test_a_thousand_first_calls_cause_one_look(scripted: Make) -> None:
    one = scripted()
    wakeups = [one.wait() for _ in range(1000)]
    assert one.source.began.acquire(timeout=TIME_LIMIT)
    late = one.wait()
    assert not any(wakeup.is_set() for wakeup in wakeups)
    one.source.permits.release()
    assert all(wakeup.wait(TIME_LIMIT) for wakeup in [*wakeups, late])
    one.keeper.check_known()
    assert one.source.looks == 1
    assert not one.keeper._waiting


def test_who_comes_later_waits_for_nothing(scripted: Make) -> None:
    one = scripted()
    one.discover()
    assert one.wait().is_set()
    one.keeper.check_known()


def test_who_has_left_is_not_woken(scripted: Make) -> None:
    one = scripted()
    wakeup = one.wait()
    one.keeper.forget(wakeup)
    one.keeper.forget(wakeup)
    one.discover()
    assert not wakeup.is_set()


def test_a_waiter_that_cant_be_woken_doesnt_keep_the_others_waiting(scripted: Make) -> None:
    class Broken:
        def set(self) -> None:
            raise RuntimeError("Event loop is closed")

    one = scripted()
    one.keeper.wait_until_known(Broken())
    one.discover()


def test_requests_during_a_look_cause_one_more(scripted: Make) -> None:
    one = scripted()
    one.discover()
    one.source.outcome = OTHER
    one.keeper.request()
    assert one.source.began.acquire(timeout=TIME_LIMIT)  # the first one's
    assert one.source.began.acquire(timeout=TIME_LIMIT)
    for _ in range(100):
        one.keeper.request()
    one.source.permits.release()
    assert one.source.began.acquire(timeout=TIME_LIMIT)
    one.source.permits.release()
    eventually(lambda: one.source.looks == 3 and address(1) in one.table.nodes)
    assert not one.source.began.acquire(timeout=0.5)
    assert one.source.looks == 3


def test_the_topology_is_looked_at_from_time_to_time(scripted: Make) -> None:
    one = scripted(interval=0.05)
    one.source.permits.release(3)
    one.wait()
    eventually(lambda: one.source.looks == 3)


def test_it_is_looked_at_often_while_a_master_fails(scripted: Make) -> None:
    one = scripted()
    one.discover()
    node = one.table.nodes[address(0)]
    one.source.permits.release(3)
    node.on_failure()
    eventually(lambda: one.source.looks == 4)
    one.source.outcome = OTHER
    one.source.permits.release(2)
    eventually(lambda: one.table.node_of_slot(0) is not node)
    assert not one.table.troubled


def test_it_is_looked_at_less_often_in_a_long_outage(scripted: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    for module in (routing, server_health):
        monkeypatch.setattr(module, "monotonic", lambda: now)
    one = scripted()
    begun = one.table.begin_view()
    one.table.apply(view(shard(0, ((0, 99),)), shard(1, ((100, LAST),))), begun)
    one.keeper.close()
    first, second = (one.table.nodes[address(number)] for number in (0, 1))
    pauses = []
    for _ in range(1000):
        first.on_failure()
        pauses.append(one.keeper._pause())
        now += 1
    assert pauses[15] == keeper.PAUSE
    assert 0.25 < pauses[60] < 0.35
    assert pauses[-1] == keeper.LONGEST_PAUSE
    assert pauses == sorted(pauses)
    # Another master may be replaced within seconds.
    second.on_failure()
    assert one.keeper._pause() == keeper.PAUSE


def test_a_master_that_recovers_ends_that(scripted: Make) -> None:
    one = scripted()
    one.discover()
    node = one.table.nodes[address(0)]
    one.source.permits.release(1000)
    node.on_failure()
    eventually(lambda: one.source.looks >= 3)
    node.on_handshake(None)
    eventually(lambda: not one.table.troubled)
    while one.source.began.acquire(timeout=0.5):
        # One more, which was requested by the recovery; and those that had begun before.
        assert one.source.looks < 20


def test_a_failure_is_raised_to_those_who_wait(scripted: Make) -> None:
    one = scripted()
    one.source.outcome = ConnectionError("refused")
    first, second = one.wait(), one.wait()
    one.source.permits.release()
    assert first.wait(TIME_LIMIT)
    assert second.wait(TIME_LIMIT)
    errors = []
    for _ in range(2):
        with pytest.raises(NoReply) as caught:
            one.keeper.check_known()
        assert not caught.value.may_have_run
        errors.append(caught.value.error)
    assert errors[0] is not errors[1]
    assert isinstance(errors[0], ConnectionError)
    one.source.outcome = ONE
    one.discover()
    one.keeper.check_known()


def test_what_waiting_cant_help_is_raised_itself_and_not_tried_again(scripted: Make) -> None:
    one = scripted(interval=0.01)
    one.source.outcome = AuthenticationError("WRONGPASS")
    wakeup = one.wait()
    one.source.permits.release(100)
    assert wakeup.wait(TIME_LIMIT)
    with pytest.raises(AuthenticationError):
        one.keeper.check_known()
    assert one.source.began.acquire(timeout=TIME_LIMIT)
    assert not one.source.began.acquire(timeout=0.5)


def test_a_topology_that_isnt_known_in_time(scripted: Make) -> None:
    one = scripted()
    one.wait()
    with pytest.raises(NoReply, match="cluster of h:1"):
        one.keeper.check_known()


def test_the_map_outlives_a_failed_refresh(scripted: Make) -> None:
    one = scripted()
    one.discover()
    one.source.outcome = AuthenticationError("WRONGPASS")
    one.source.permits.release()
    one.keeper.request()
    eventually(lambda: one.keeper.failures == 1)
    one.keeper.check_known()
    assert one.table.node_of_slot(0) is one.table.nodes[address(0)]


def test_one_warning_for_each_outage(scripted: Make, caplog: pytest.LogCaptureFixture) -> None:
    one = scripted(interval=0.001)
    one.discover()
    one.source.outcome = ConnectionError("refused")
    one.source.permits.release(3)
    eventually(lambda: one.keeper.failures >= 2)
    one.source.outcome = ONE
    one.source.permits.release(3)
    eventually(lambda: one.keeper.failures == 0)
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 2
    assert "refused" in warnings[0]
    assert "is refreshed again" in warnings[1]


def test_an_unexpected_exception_is_logged_and_survived(scripted: Make, caplog: pytest.LogCaptureFixture) -> None:
    one = scripted()
    one.source.outcome = ZeroDivisionError("a user's address_mapper")
    wakeup = one.wait()
    one.source.permits.release()
    assert wakeup.wait(TIME_LIMIT)
    with pytest.raises(ZeroDivisionError):
        one.keeper.check_known()
    assert "Traceback" in caplog.text
    one.source.outcome = ONE
    one.discover()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_was_ended_is_replaced(scripted: Make) -> None:
    """A user's credential provider may raise SystemExit."""
    one = scripted()
    one.source.outcome = SystemExit()
    wakeup = one.wait()
    one.source.permits.release()
    assert wakeup.wait(TIME_LIMIT)
    one.thread.join(TIME_LIMIT)
    one.source.outcome = ONE
    one.discover()


def test_closing_ends_a_look(scripted: Make) -> None:
    one = scripted()
    one.wait()
    assert one.source.began.acquire(timeout=TIME_LIMIT)
    one.keeper.close()
    one.thread.join(TIME_LIMIT)
    assert not one.thread.is_alive()
    assert one.source.closed


def test_closing_ends_the_pause(scripted: Make) -> None:
    one = scripted()
    one.discover()
    one.keeper.close()
    one.thread.join(TIME_LIMIT)
    assert not one.thread.is_alive()


def test_a_closed_keeper_starts_nothing(scripted: Make) -> None:
    one = scripted()
    one.keeper.close()
    one.keeper.request()
    assert one.keeper._thread is None


def test_many_first_requests_leave_one_thread(scripted: Make) -> None:
    one = scripted()
    barrier = threading.Barrier(8)

    def request() -> None:
        barrier.wait()
        one.keeper.request()

    threads = [threading.Thread(target=request) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert one.source.began.acquire(timeout=TIME_LIMIT)
    assert not one.source.began.acquire(timeout=0.2)


def test_the_thread_keeps_no_listener_alive(scripted: Make) -> None:
    one = scripted()
    one.discover()
    recorder = Recorder(one.table)
    one.table.on_request = one.keeper.request
    reference = weakref.ref(recorder)
    del recorder
    gc.collect()
    assert reference() is None


def test_the_child_of_a_fork_has_no_keeper(scripted: Make) -> None:
    one = scripted()
    one.discover()
    child = os.fork()
    if child == 0:
        one.keeper.request()
        os._exit(threading.active_count() - 1)
    _, status = os.waitpid(child, 0)
    assert status == 0
