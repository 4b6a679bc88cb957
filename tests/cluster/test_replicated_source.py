"""The keeper of a client of a master and its replicas, without a cluster or Sentinels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from redis.exceptions import ConnectionError, NoPermissionError

from pyredisson._protocol.no_reply import NoReply
from pyredisson._protocol.routing import Changes
from pyredisson.testing import Replicated, Server
from tests.support.keepers import Watched
from tests.support.waiting import eventually

Open = Callable[..., Watched]


@pytest.fixture
def watch(watch_topology: Callable[..., Watched]) -> Open:
    """Makes keepers for replicated servers."""
    return partial(watch_topology, "replicated")


def test_the_master_is_found_among_all(replicated: Replicated, watch: Open) -> None:
    for nodes in (replicated.nodes, replicated.nodes[::-1], replicated.nodes[:1]):
        watched = watch(nodes)
        watched.discover()
        assert watched.only_node is watched.node_at(replicated.master())
        assert list(watched.table.replicas.values()) == [1]


def test_replicas_alone_are_no_master(replicated: Replicated, watch: Open) -> None:
    with pytest.raises(NoReply) as caught:
        watch(replicated.replicas()).discover()
    assert isinstance(caught.value.error, ConnectionError)
    assert "is a replica" in str(caught.value.error)


def test_a_failover(replicated: Replicated, watch: Open) -> None:
    watched = watch(replicated.nodes)
    watched.discover()
    old = watched.only_node
    promoted = replicated.fail_over()
    watched.table.request_refresh("READONLY")
    eventually(lambda: watched.changes)
    assert watched.changes[0] == Changes(
        failed_over_slots=frozenset(range(16384)),
        new_masters=(watched.node_at(promoted),),
        removed_nodes=(old,),
        demoted_nodes=(old,),
    )


@pytest.mark.parametrize("how", ["kill", "pause"])
def test_a_master_that_fails_is_replaced_and_comes_back(replicated: Replicated, watch: Open, how: str) -> None:
    watched = watch(replicated.nodes)
    watched.discover()
    old, node = replicated.master(), watched.only_node
    getattr(replicated, how)(old)
    node.on_failure()
    promoted = replicated.fail_over()
    eventually(lambda: watched.changes)
    assert watched.only_node is watched.node_at(promoted)
    if how == "pause":
        # It still believes to be the master.
        old.resume()
    else:
        old.start()
    watched.changes.clear()
    for _ in range(5):
        watched.table.apply(*watched.keeper._source.look())
    assert watched.only_node is watched.node_at(promoted)
    assert not watched.changes


def test_of_two_masters_the_one_that_has_replaced_the_other_counts(replicated: Replicated, watch: Open) -> None:
    old, promoted = replicated.nodes
    watched = watch(replicated.nodes)
    watched.discover()
    promoted.ask("REPLICAOF", "NO", "ONE")
    assert old.is_master
    watched.table.request_refresh("its replica has left")
    eventually(lambda: watched.changes)
    assert watched.changes[0].demoted_nodes
    for nodes in (replicated.nodes, replicated.nodes[::-1]):
        other = watch(nodes)
        other.discover()
        assert watched.only_node is watched.node_at(promoted)
        assert other.only_node is other.node_at(promoted)


def test_a_master_that_was_restarted_is_another_server(watch: Open) -> None:
    with Server() as server:
        watched = watch([server])
        watched.discover()
        node = watched.only_node
        server.kill()
        node.on_failure()
        server.start()
        eventually(lambda: watched.changes)
        assert watched.changes == [Changes(failed_over_slots=frozenset(range(16384)), demoted_nodes=(node,))]
        assert watched.only_node is node


def test_the_number_of_replicas_follows(replicated: Replicated, watch: Open) -> None:
    watched = watch(replicated.nodes)
    watched.discover()
    replicated.kill(replicated.replicas()[0])
    watched.table.request_refresh("a replica is gone")
    eventually(lambda: list(watched.table.replicas.values()) == [0])
    assert not watched.changes


def test_a_user_without_the_right_to_ask_for_the_role(watch: Open) -> None:
    with Server(users=["locker on >word ~* &* +@all -role -info"]) as server, pytest.raises(NoPermissionError):
        watch([server], username="locker", password="word").discover()
    with Server(users=["locker on >word ~* &* +@all -role"]) as server:
        watched = watch([server], username="locker", password="word")
        watched.discover()
        assert watched.only_node is watched.node_at(server)
