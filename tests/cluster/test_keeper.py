"""The keeper's thread: when it looks at the topology, whom it wakes, and when it ends."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from redis.exceptions import AuthenticationError, ConnectionError

from pyredisson._backends.threads.wakeup import ThreadWakeup
from pyredisson._client.topology import keeper
from pyredisson._client.topology.keeper import TopologyKeeper
from pyredisson._protocol import routing
from pyredisson._protocol.replies import NoReply
from pyredisson._protocol.routing import RoutingTable
from pyredisson._protocol.topology import TopologyView
from tests.support.topologies import LAST, address, make_node, shard, view
from tests.support.waiting import TIME_LIMIT, eventually

ONE = view(shard(0, ((0, LAST),), 1))
OTHER = view(shard(1, ((0, LAST),), 0), epoch=2)


class Scripted:
    """A keeper over a source without servers. Each look takes a permit first, so a test decides how many there are."""

    def __init__(self, interval: float) -> None:
        self.table = RoutingTable(make_node, None)
        self.keeper = TopologyKeeper(self.table, self, interval, "cluster of h:1")
        self.permits = threading.Semaphore(0)
        self.began = threading.Semaphore(0)
        self.looks = 0
        self.outcome: TopologyView | BaseException = ONE
        self.closed = False

    def look(self) -> tuple[TopologyView, int]:
        begun = self.table.begin_view()
        self.began.release()
        assert self.permits.acquire(timeout=TIME_LIMIT)
        self.looks += 1
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome, begun

    def close(self) -> None:
        self.closed = True
        self.permits.release(1000)

    def begins(self, seconds: float = TIME_LIMIT) -> bool:
        """Whether a look begins within that time."""
        return self.began.acquire(timeout=seconds)

    def wait(self) -> ThreadWakeup:
        wakeup = ThreadWakeup()
        self.keeper.wait_until_known(wakeup)
        return wakeup

    def discover(self, outcome: TopologyView | BaseException = ONE) -> None:
        """A look that ends like this. Returns when the calls that wait for it were woken."""
        self.outcome = outcome
        wakeups = self.wait(), self.wait()
        self.permits.release()
        assert all(wakeup.wait(TIME_LIMIT) for wakeup in wakeups)
        # The end of the look before this one may have woken them.
        eventually(lambda: self.table.ready is isinstance(outcome, TopologyView))

    def join(self) -> None:
        thread = self.keeper._thread
        if thread is not None:
            thread.join(TIME_LIMIT)
            assert not thread.is_alive()


Make = Callable[..., Scripted]


@pytest.fixture
def scripted() -> Iterator[Make]:
    made: list[Scripted] = []

    def make(interval: float = 1000.0) -> Scripted:
        made.append(Scripted(interval))
        return made[-1]

    yield make
    for one in made:
        one.keeper.close()
        one.join()


@pytest.fixture
def one(scripted: Make) -> Scripted:
    """One that looks on request only."""
    return scripted()


@pytest.fixture
def known(one: Scripted) -> Scripted:
    """One that has found the first map."""
    one.discover()
    assert one.begins()
    return one


def test_a_thousand_first_calls_cause_one_look(one: Scripted) -> None:
    """Also on many threads, if one of them has left, and if another one can't be woken."""

    class Broken:
        def set(self) -> None:
            raise RuntimeError("Event loop is closed")

    with ThreadPoolExecutor(8, initializer=threading.Barrier(8).wait) as threads:
        wakeups = list(threads.map(lambda _: one.wait(), range(1000)))
    left = one.wait()
    for _ in range(2):
        one.keeper.forget(left)
    one.keeper.wait_until_known(Broken())
    assert one.begins()
    wakeups.append(one.wait())
    assert not any(wakeup.is_set() for wakeup in wakeups)
    one.permits.release()
    assert all(wakeup.wait(TIME_LIMIT) for wakeup in wakeups)
    one.keeper.check_known()
    assert one.looks == 1
    assert not one.begins(0.2)
    assert not one.keeper._waiting
    assert not left.is_set()
    assert one.wait().is_set()


def test_requests_during_a_look_cause_one_more(known: Scripted) -> None:
    known.outcome = OTHER
    known.keeper.request()
    assert known.begins()
    for _ in range(100):
        known.keeper.request()
    known.permits.release()
    assert known.begins()
    known.permits.release()
    eventually(lambda: known.looks == 3 and address(1) in known.table.nodes)
    assert not known.begins(0.5)


def test_the_topology_is_looked_at_from_time_to_time(scripted: Make) -> None:
    """Not before it is needed, and not after the keeper was closed."""
    one = scripted(interval=0.05)
    assert not one.begins(0.2)
    one.permits.release(3)
    one.wait()
    eventually(lambda: one.looks == 3)
    other = scripted(interval=0.05)
    other.keeper.close()
    other.keeper.request()
    assert other.keeper._thread is None


def test_it_is_looked_at_often_while_a_master_fails(known: Scripted) -> None:
    """Until it recovers, or another one has taken over."""
    node = known.table.nodes[address(0)]
    known.permits.release(1000)
    node.on_failure()
    eventually(lambda: known.looks >= 4)
    node.on_handshake(None)
    eventually(lambda: not known.table.troubled)
    looks = known.looks
    while known.begins(0.5):
        # One more, which was requested by the recovery; and those that had begun before.
        assert known.looks < looks + 20
    known.outcome = OTHER
    node.on_failure()
    eventually(lambda: known.table.node_of_slot(0) is not node)
    assert not known.table.troubled


def test_it_is_looked_at_less_often_in_a_long_outage(one: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(routing, "monotonic", lambda: now)
    one.table.apply(view(shard(0, ((0, 99),)), shard(1, ((100, LAST),))), one.table.begin_view())
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


@pytest.mark.parametrize("raised", [AuthenticationError("WRONGPASS"), ZeroDivisionError("a user's address_mapper")])
def test_what_waiting_cant_help_is_raised_itself_and_not_tried_again(
    scripted: Make, caplog: pytest.LogCaptureFixture, raised: Exception
) -> None:
    one = scripted(interval=0.01)
    one.discover(raised)
    one.permits.release(100)
    with pytest.raises(type(raised)):
        one.keeper.check_known()
    # What nobody expects is logged with its place.
    assert ("Traceback" in caplog.text) is isinstance(raised, ZeroDivisionError)
    assert one.begins()
    assert not one.begins(0.5)
    one.discover()


def test_a_failure_is_raised_to_those_who_wait(one: Scripted) -> None:
    one.wait()
    with pytest.raises(NoReply, match="cluster of h:1: no server has replied in time"):
        one.keeper.check_known()
    one.discover(ConnectionError("refused"))
    errors = []
    for _ in range(2):
        with pytest.raises(NoReply) as caught:
            one.keeper.check_known()
        assert not caught.value.may_have_run
        errors.append(caught.value.error)
    assert errors[0] is not errors[1]
    assert isinstance(errors[0], ConnectionError)
    one.discover()
    one.keeper.check_known()


def test_the_map_outlives_outages_with_one_warning_each(scripted: Make, caplog: pytest.LogCaptureFixture) -> None:
    one = scripted(interval=0.001)
    one.discover()
    one.outcome = AuthenticationError("WRONGPASS")
    one.permits.release(3)
    eventually(lambda: one.keeper.failures >= 2)
    one.keeper.check_known()
    assert one.table.node_of_slot(0) is one.table.nodes[address(0)]
    one.outcome = ONE
    one.permits.release(3)
    eventually(lambda: one.keeper.failures == 0)
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 2
    assert "WRONGPASS" in warnings[0]
    assert "is refreshed again" in warnings[1]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_was_ended_is_replaced(one: Scripted) -> None:
    """A user's credential provider may raise SystemExit."""
    one.discover(SystemExit())
    one.join()
    one.discover()


@pytest.mark.parametrize("known", [False, True], ids=["a look", "the pause"])
def test_closing_ends(one: Scripted, known: bool) -> None:
    if known:
        one.discover()
    else:
        one.wait()
        assert one.begins()
    one.keeper.close()
    one.join()
    assert one.closed


def test_the_child_of_a_fork_has_no_keeper(known: Scripted) -> None:
    child = os.fork()
    if child == 0:
        known.keeper.request()
        os._exit(threading.active_count() - 1)
    _, status = os.waitpid(child, 0)
    assert status == 0
