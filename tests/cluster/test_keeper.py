"""What nodes, Sentinels and servers say about the topology, in all forms of their versions; when a keeper asks them."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.exceptions import AuthenticationError, ConnectionError, InvalidResponse, NoPermissionError, ResponseError

from pyredisson._backends.threads.wakeup import ThreadWakeup
from pyredisson._client.topology import keeper
from pyredisson._client.topology.keeper import TopologyKeeper
from pyredisson._protocol import routing, topology
from pyredisson._protocol.replies import NonLocalKeyError, NoReply, as_error, is_transient
from pyredisson._protocol.routing import RoutingTable
from pyredisson._protocol.topology import ALL_SLOTS, Member, Redirect, SentinelAnswer, Shard, TopologyView
from pyredisson._settings.address import Address
from tests.support.backends import TIME_LIMIT, eventually
from tests.support.children import forked
from tests.support.topologies import LAST, address, make_node, shard, view

ASKED = Address("asked.example", 7000)
MASTER, SENTINEL = Address("10.0.0.1", 6379), Address("10.0.0.8", 26379)
SLOTS = [[0, 16383, [b"h", 1, b"a"]]]
NAMED = [b"10.0.0.1", b"6379"]
DETAILS = [b"name", b"mymaster", b"ip", b"10.0.0.1", b"port", b"6379", b"config-epoch", b"7"]
OTHERS = [[b"name", b"x", b"ip", b"10.0.0.8", b"port", b"26379"], [b"ip", b"::1", b"port", b"26380"]]
REPLICAS = [[b"ip", b"10.0.0.2", b"port", b"6380", b"flags", b"s_down,slave,disconnected"]]
REFUSED, UNKNOWN = NoPermissionError("NOPERM"), ResponseError("ERR No such master with that name")
SERVER = b"# Server\r\nredis_version:7.0.15\r\nrun_id:abc\r\n"
REPLICATION = b"# Replication\r\nrole:master\r\nslave0:ip=10.0.0.2,port=6380,state=online,lag=0\r\n"
FIRST, SECOND = Member(Address("10.0.0.2", 6380)), Member(Address("10.0.0.3", 6381))
SLAVES = [[b"10.0.0.3", b"6381", b"0"], [b"10.0.0.2", b"6380", b"0"]]


def member(port: int, id_: bytes) -> Member:
    return Member(Address("10.0.0.1", port), id_)


def one_master(*replicas: Member, id_: bytes = b"abc", epoch: int = 0) -> TopologyView:
    return TopologyView((Shard(Member(ASKED, id_), replicas, ALL_SLOTS),), epoch)


READERS: dict[str, Callable[[Any], Any]] = {
    "slots": lambda reply: topology.read_slots(reply, ASKED).shards,
    "address": lambda node: topology.read_slots([[0, 16383, node]], ASKED).shards[0].master.address,
    "state": lambda info: attrgetter("healthy", "epoch", "covered")(topology.read_cluster([SLOTS, info], ASKED)),
    "redirect": lambda text: topology.read_redirect(ResponseError(text), ASKED),
    "sentinel": lambda replies: topology.read_sentinel(replies, ASKED),
    "role": lambda replies: topology.read_role(replies, ASKED, 5),
}
READABLE: dict[str, list[tuple[object, object]]] = {
    "slots": [
        (
            [
                [8192, 16383, [b"10.0.0.1", 7001, b"b"], [b"10.0.0.1", 7003, b"d"], [b"10.0.0.1", 7004, b"e", []]],
                [0, 99, [b"10.0.0.1", 7000, b"a", []], [b"10.0.0.1", 7002, b"c", []]],
                [101, 8191, [b"10.0.0.1", 7000, b"a", []], [b"10.0.0.1", 7002, b"c", []]],
            ],
            (
                Shard(member(7000, b"a"), (member(7002, b"c"),), ((0, 99), (101, 8191))),
                Shard(member(7001, b"b"), (member(7003, b"d"), member(7004, b"e")), ((8192, 16383),)),
            ),
        ),
    ],
    "address": [
        ([b"10.0.0.1", 7000, b"a"], Address("10.0.0.1", 7000)),
        ([b"::1", 7000, b"a", []], Address("::1", 7000)),
        ([b"node.example", 7000, b"a", [b"ip", b"10.0.0.1"]], Address("node.example", 7000)),
        # cluster-preferred-endpoint-type unknown-endpoint
        ([None, 7009, b"a", [b"ip", b"10.0.0.1"]], Address("asked.example", 7009)),
        # A node that hasn't met another one doesn't know its address.
        ([b"", 7000, b"a", []], Address("asked.example", 7000)),
        # cluster-preferred-endpoint-type hostname, without a host name
        ([b"?", 7000, b"a", [b"ip", b"10.0.0.1"]], Address("10.0.0.1", 7000)),
        ([b"10.0.0.1", 7000], Address("10.0.0.1", 7000)),
    ],
    "state": [
        (b"cluster_state:ok\r\ncluster_current_epoch:17\r\ncluster_my_epoch:3\r\n", (True, 17, 16384)),
        (b"cluster_state:fail\r\ncluster_current_epoch:17\r\n", (False, 17, 16384)),
        (REFUSED, (True, 0, 16384)),
    ],
    "redirect": [
        ("MOVED 3999 10.0.0.1:6381", Redirect(False, 3999, Address("10.0.0.1", 6381))),
        ("ASK 0 node.example:6381", Redirect(True, 0, Address("node.example", 6381))),
        ("MOVED 16383 ::1:6381", Redirect(False, 16383, Address("::1", 6381))),
        ("MOVED 5 :6381", Redirect(False, 5, Address("asked.example", 6381))),
        ("MOVED 5 ?:6381", Redirect(False, 5, None)),
        ("MOVED 5 10.0.0.1:0", Redirect(False, 5, None)),
    ],
    "sentinel": [
        (
            [NAMED, DETAILS, OTHERS, REPLICAS],
            SentinelAnswer(MASTER, 7, (SENTINEL, Address("::1", 26380)), (Address("10.0.0.2", 6380),)),
        ),
        # Without the right to ask for details.
        ([NAMED, REFUSED, REFUSED, REFUSED], SentinelAnswer(MASTER, 0, ())),
        ([None, UNKNOWN, UNKNOWN, UNKNOWN], None),
    ],
    "role": [
        ([[b"master", 100, SLAVES], REPLICATION, SERVER], one_master(FIRST, SECOND, epoch=5)),
        ([[b"slave", b"10.0.0.1", 6379, b"connected", 1], b"role:slave\r\n", SERVER], None),
        ([[b"sentinel", [b"mymaster"]], b"", SERVER], None),
        # INFO tells it too.
        ([REFUSED, REPLICATION, SERVER], one_master(FIRST, epoch=5)),
        ([REFUSED, b"role:slave\r\n", SERVER], None),
    ],
}
UNREADABLE: dict[str, list[object]] = {
    "slots": [None, 1, b"OK", [1], [[0, 5, b"x"]], [[0, 5]], [[b"x", 5, [b"h", 1, b"a"]]]],
    "redirect": ["MOVED", "MOVED 5", "MOVED x h:1", "ASK 5 h", "MOVED 5 h:1 "],
    "sentinel": [[*each, [], []] for each in ([[b"h"], DETAILS], [[b"h", b"x"], DETAILS], [[b"h", b"1"], [b"odd"]])],
    "role": [
        [role, REPLICATION, SERVER]
        for role in (None, 1, [], [b"master"], [b"master", 0, [[b"h"]]], [b"master", 0, [[b"h", b"x"]]])
    ],
}


@pytest.mark.parametrize(("kind", "reply", "expected"), [(kind, *case) for kind in READABLE for case in READABLE[kind]])
def test_what_is_readable(kind: str, reply: object, expected: object) -> None:
    assert READERS[kind](reply) == expected


@pytest.mark.parametrize(("kind", "reply"), [(kind, reply) for kind in UNREADABLE for reply in UNREADABLE[kind]])
def test_what_is_unreadable_is_an_error_of_redis(kind: str, reply: object) -> None:
    with pytest.raises(InvalidResponse, match=r"asked\.example:7000"):
        READERS[kind](reply)


def test_nodes_that_report_in_another_order_give_equal_views() -> None:
    master, one, two = [b"h", 1, b"a"], [b"h", 2, b"b"], [b"h", 3, b"c"]
    here, there = [[0, 5, master, one, two], [6, 9, master, one, two]], [[0, 9, master, two, one]]
    assert READERS["slots"](here) == READERS["slots"](there)
    assert topology.read_slots([], ASKED) == TopologyView(())


@pytest.mark.parametrize("node", [[b"?", 7000, b"a", []], [b"?", 7000, b"a"], [b"10.0.0.1", 0, b"a", []]])
def test_a_node_without_an_address_is_left_out(node: list[object]) -> None:
    master = [b"10.0.0.1", 7001, b"b", []]
    assert topology.read_slots([[0, 5, node], [6, 9, master]], ASKED).covered == 4
    assert [found.replicas for found in READERS["slots"]([[0, 5, master, node]])] == [()]


@given(st.lists(st.integers(0, 30), unique=True, min_size=1), st.randoms(use_true_random=False))
def test_ranges_are_joined(slots: list[int], random: object) -> None:
    reply = [[slot, slot, [b"h", 1, b"a"]] for slot in slots]
    [found] = READERS["slots"](reply)
    assert [slot for first, last in found.slots for slot in range(first, last + 1)] == sorted(slots)
    assert all(last + 1 < first for (_, last), (first, _) in zip(found.slots, found.slots[1:], strict=False))
    assert topology.read_slots(reply, ASKED).covered == len(slots)


def test_a_user_without_the_right_to_ask() -> None:
    for kind, replies in (("sentinel", [REFUSED, DETAILS, OTHERS, []]), ("role", [REFUSED] * 3)):
        with pytest.raises(NoPermissionError):
            READERS[kind](replies)
    with pytest.raises(NoPermissionError):
        topology.read_cluster([REFUSED, b""], ASKED)
    assert topology.unconfirmed_master([REFUSED] * 3, ASKED, 3) == one_master(id_=b"", epoch=3)
    assert topology.unconfirmed_master([REFUSED, REFUSED, SERVER], ASKED, 3) == one_master(epoch=3)
    assert topology.unconfirmed_master([REFUSED, REPLICATION, SERVER], ASKED, 3) is None
    assert topology.unconfirmed_master([[b"master", 0, []], REFUSED, SERVER], ASKED, 3) is None


def test_sentinels_are_asked_for_one_master_and_tell_of_all() -> None:
    assert all(payload.endswith(b"$8\r\nmymaster\r\n") for payload in topology.sentinel_query("mymaster"))
    for message, about in ((b"mymaster 10.0.0.1 6379", True), (b"mymaster2 10.0.0.1 6379", False), (b"", False)):
        assert topology.names_master(message, "mymaster") is about


@pytest.mark.parametrize(
    "text",
    [
        "ERR Script attempted to access a non local key in a cluster node script: e46d14b4, on @user_script:2.",
        "ERR Attempted to access a non local key in a cluster node script: on @user_script:2.",
        "ERR Error running script (call to f_e): Lua script attempted to access a non local key in a cluster node",
    ],
)
def test_the_error_of_a_script_that_was_ended_in_the_middle(text: str) -> None:
    error = as_error(text)
    assert (type(error), is_transient(error)) == (NonLocalKeyError, True)


# The keeper

FOUND = view(shard(0, ((0, LAST),), 1))
OTHER = view(shard(1, ((0, LAST),), 0), epoch=2)


class Scripted:
    """A keeper over a source without servers. Each look takes a permit first, so a test decides how many there are."""

    def __init__(self, interval: float) -> None:
        self.table = RoutingTable(make_node, None)
        self.keeper = TopologyKeeper(self.table, self, interval, "cluster of h:1")
        self.permits = threading.Semaphore(0)
        self.began = threading.Semaphore(0)
        self.looks = 0
        self.outcome: TopologyView | BaseException = FOUND
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
        return self.began.acquire(timeout=seconds)

    def wait(self) -> ThreadWakeup:
        wakeup = ThreadWakeup()
        self.keeper.wait_until_known(wakeup.set)
        return wakeup

    def discover(self, outcome: TopologyView | BaseException = FOUND) -> None:
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

    def broken() -> None:
        raise RuntimeError("Event loop is closed")

    with ThreadPoolExecutor(8, initializer=threading.Barrier(8).wait) as threads:
        wakeups = list(threads.map(lambda _: one.wait(), range(1000)))
    left = one.wait()
    for _ in range(2):
        one.keeper.forget(left.set)
    one.keeper.wait_until_known(broken)
    assert one.begins()
    wakeups.append(one.wait())
    assert not any(wakeup.is_set() for wakeup in wakeups)
    one.permits.release()
    assert all(wakeup.wait(TIME_LIMIT) for wakeup in wakeups)
    one.keeper.check_known()
    assert (one.looks, one.begins(0.2), len(one.keeper._waiting)) == (1, False, 0)
    assert (left.is_set(), one.wait().is_set()) == (False, True)


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
    assert (pauses, pauses[15], pauses[-1]) == (sorted(pauses), keeper.PAUSE, keeper.LONGEST_PAUSE)
    assert 0.25 < pauses[60] < 0.35
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
    assert (one.begins(), one.begins(0.5)) == (True, False)
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
        errors.append(caught.value.error)
        assert (caught.value.may_have_run, type(errors[-1])) == (False, ConnectionError)
    assert errors[0] is not errors[1]
    one.discover()
    one.keeper.check_known()


def test_the_map_outlives_outages_with_one_warning_each(scripted: Make, caplog: pytest.LogCaptureFixture) -> None:
    one = scripted(interval=0.001)
    one.discover()
    one.outcome, looks = AuthenticationError("WRONGPASS"), one.looks
    one.permits.release(3)
    # One of them may have begun already.
    eventually(lambda: one.looks >= looks + 2)
    one.keeper.check_known()
    assert one.table.node_of_slot(0) is one.table.nodes[address(0)]
    one.outcome = FOUND
    one.permits.release(3)
    eventually(lambda: "is refreshed again" in caplog.text)
    first, second = (record.message for record in caplog.records if record.levelname == "WARNING")
    assert ("WRONGPASS" in first, "is refreshed again" in second) == (True, True)


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
    def is_alone() -> bool:
        known.keeper.request()
        return threading.active_count() == 1

    assert forked(is_alone)
