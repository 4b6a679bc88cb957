"""What is known about the replicas of a master."""

from __future__ import annotations

import math

from pyredisson._protocol.replication import ASKED_EVERY, REMEMBERED, ReplicaState, Replication, read_replication
from pyredisson._settings.address import Address

ONE, TWO, THREE = (Address("10.0.0.2", port) for port in (1, 2, 3))
HISTORY, FORMER = b"a" * 40, b"b" * 40
MASTER = b"""# Replication\r
role:master\r
connected_slaves:4\r
slave0:ip=10.0.0.2,port=1,state=online,offset=14,lag=0\r
slave1:ip=10.0.0.2,port=2,state=wait_bgsave,offset=0,lag=0\r
slave2:ip=::1,port=3,state=online,offset=14,lag=1\r
slave3:ip=10.0.0.9,port=4,state=send_bulk,offset=0,lag=0\r
master_failover_state:no-failover\r
master_replid:%b\r
master_replid2:%b\r
""" % (HISTORY, FORMER)
REPLICA = b"role:slave\r\nmaster_host:10.0.0.1\r\nmaster_replid:%b\r\nmaster_replid2:%b\r\n" % (HISTORY, FORMER)


def test_the_reply_of_a_master() -> None:
    assert read_replication(MASTER) == Replication(True, HISTORY, FORMER, (ONE, Address("::1", 3)))


def test_only_a_master_replaces_the_one_whose_history_it_has_continued() -> None:
    assert read_replication(MASTER).replaces(FORMER)
    assert not read_replication(MASTER).replaces(HISTORY)
    assert not read_replication(REPLICA).replaces(FORMER)
    # A server that doesn't tell.
    assert not read_replication(b"role:master").replaces(b"")


def asked(state: ReplicaState, now: float, *replicas: Address, known: tuple[Address, ...] = ()) -> None:
    state.set(Replication(True, HISTORY, FORMER, replicas), known, now)


def test_while_a_master_without_replicas_is_asked_others_rely_on_its_latest_answer() -> None:
    state = ReplicaState()
    state.begin_question(9.0)
    assert state.none_until < 9.0, "nothing is known yet"
    asked(state, 10.0)
    assert state.none_until == 10.0 + ASKED_EVERY
    state.begin_question(12.0)
    assert not state.is_due(12.0)
    assert state.none_until == 12.0 + ASKED_EVERY
    state.forget_question()
    assert state.is_due(12.0)
    assert state.none_until < 12.0
    asked(state, 13.0, Address("h", 1))
    state.begin_question(15.0)
    assert state.none_until < 15.0
    state.refuse()
    state.forget_question()
    assert state.none_until > 1e9


def test_a_master_without_replicas_is_relied_on_for_a_while() -> None:
    state = ReplicaState()
    assert state.is_due(0)
    asked(state, 1.0)
    assert state.none_until == 1 + ASKED_EVERY
    assert not state.is_due(1.5)
    assert state.is_due(1 + ASKED_EVERY)


def test_a_replica_that_leaves_is_noticed_once() -> None:
    state = ReplicaState()
    asked(state, 1, ONE, TWO)
    assert not state.left
    assert not state.away
    asked(state, 2, TWO)
    assert state.left == {ONE: 2}
    state.on_answer(ONE, 2.5)
    asked(state, 3, TWO)
    assert not state.left
    # As long as it is away, acquires that too few replicas confirm depend on it.
    assert state.away == (ONE,)
    asked(state, 4, ONE, TWO)
    assert not state.away
    asked(state, 5)
    assert set(state.left) == {ONE, TWO}
    assert state.none_until == -math.inf


def test_an_answer_says_nothing_about_what_comes_after_it() -> None:
    state = ReplicaState()
    asked(state, 1, ONE)
    asked(state, 2)
    state.on_answer(ONE, 1.5)
    assert state.left == {ONE: 2}


def test_a_replica_is_remembered_as_long_as_it_may_come_back() -> None:
    state = ReplicaState()
    asked(state, 1, ONE, TWO)
    state.on_unreachable(ONE, 1000)
    asked(state, REMEMBERED, known=(TWO,))
    assert ONE in state.away
    assert state.is_unreachable(ONE, REMEMBERED)
    asked(state, 1 + REMEMBERED, known=(TWO,))
    assert state.away == (TWO,)
    assert set(state.left) == {TWO}
    assert not state.unreachable


def test_a_server_that_is_known_from_elsewhere_may_be_master_from_the_beginning() -> None:
    state = ReplicaState()
    asked(state, 1, ONE, known=(ONE, THREE))
    assert state.left == {THREE: 1}


def test_a_server_that_is_no_master_any_more() -> None:
    state = ReplicaState()
    asked(state, 1, ONE)
    state.set(read_replication(REPLICA), (), 2)
    assert state.online is None
    assert state.is_due(2)
