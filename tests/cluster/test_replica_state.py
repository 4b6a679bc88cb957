"""What is known about the replicas of a master."""

from __future__ import annotations

import math

import pytest

from pyredisson._protocol.replication import (
    ASKED_EVERY,
    RELIED_ON,
    REMEMBERED,
    ReplicaState,
    Replication,
    read_replication,
)
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
    state.begin_question(now)
    state.set(Replication(True, HISTORY, FORMER, replicas), known, now)


@pytest.mark.parametrize("replicas", [(), (ONE,)], ids=["none", "one"])
def test_an_answer_counts_for_a_while(replicas: tuple[Address, ...]) -> None:
    state = ReplicaState()
    assert state.is_due(0.0)
    asked(state, 1.0, *replicas)
    assert state.none_until == (-math.inf if replicas else 1.0 + RELIED_ON)
    assert not state.is_due(1.0 + ASKED_EVERY / 2)
    assert state.is_due(1.0 + ASKED_EVERY)
    # One call asks. Until there is an answer, the others rely on the latest one, but not for longer than on any other.
    state.begin_question(1.0 + ASKED_EVERY)
    assert not state.is_due(1.0 + ASKED_EVERY)
    assert state.is_due(1.0 + RELIED_ON)
    assert state.none_until <= 1.0 + RELIED_ON


@pytest.mark.parametrize("replicas", [(), (ONE,)], ids=["none", "one"])
def test_no_call_relies_on_what_was_said_long_ago(replicas: tuple[Address, ...]) -> None:
    state = ReplicaState()
    state.begin_question(0.0)
    assert state.is_due(0.0), "nothing is known yet"
    asked(state, 1.0, *replicas)
    state.begin_question(60.0)
    assert state.is_due(60.0)
    assert state.none_until < 60.0


def test_an_answer_that_is_overtaken_counts_for_nothing() -> None:
    state = ReplicaState()
    asked(state, 2.0, ONE)
    asked(state, 1.0)
    assert state.online == 1
    assert state.asked_at == 2.0
    state.set(read_replication(REPLICA), (), 1.5)
    assert state.online == 1


def test_a_master_that_refuses_wait_is_asked_no_more() -> None:
    state = ReplicaState()
    asked(state, 1.0, ONE)
    state.refuse()
    assert not state.is_due(60.0)
    assert state.none_until == state.ask_again_at == math.inf


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
