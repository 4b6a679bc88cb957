"""The keeper of a client of a real cluster: whom it asks, and which answers it relies on."""

from __future__ import annotations

import random
import socket
import ssl
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from redis.exceptions import AuthenticationError, ClusterDownError, NoPermissionError, ResponseError

from pyredisson._client.topology.cluster_source import ClusterSource
from pyredisson._protocol.no_reply import NoReply
from pyredisson._protocol.routing import Changes
from pyredisson._settings.address import Address
from pyredisson.errors import UnsupportedServerError
from pyredisson.testing import Cluster, Server
from tests.support.keepers import Watched
from tests.support.waiting import eventually

Open = Callable[..., Watched]


@pytest.fixture
def watch(watch_topology: Callable[..., Watched]) -> Open:
    """Makes keepers for clusters."""
    return partial(watch_topology, "cluster")


def source_of(watched: Watched) -> ClusterSource:
    source = watched.keeper._source
    assert isinstance(source, ClusterSource)
    return source


def assert_same(watched: Watched, cluster: Cluster) -> None:
    masters = cluster.masters()
    assert set(watched.table.nodes) == {Address(node.host, node.port) for node in masters}
    for slot in (*range(0, 16384, 500), 16383):
        owner = cluster.node_of(slot)
        assert watched.table.node_of_slot(slot) is watched.node_at(owner)


def test_the_whole_map_comes_from_any_node(cluster: Cluster, watch: Open) -> None:
    for node in cluster.nodes:
        watched = watch([node])
        watched.discover()
        assert_same(watched, cluster)
        assert set(watched.table.replicas.values()) == {1}
        assert watched.table.epoch > 0


def test_a_slot_that_moves(cluster: Cluster, watch: Open) -> None:
    watched = watch(cluster.nodes)
    watched.discover()
    source = cluster.node_of(77)
    target = next(node for node in cluster.masters() if node is not source)
    cluster.move_slot(77, target)
    watched.table.redirect(ResponseError(f"MOVED 77 {target.host}:{target.port}"), watched.node_at(source))
    eventually(lambda: watched.changes)
    assert watched.changes == [Changes(moved_slots=frozenset({77}))]
    assert_same(watched, cluster)


def test_a_failover_on_request(cluster: Cluster, watch: Open) -> None:
    watched = watch(cluster.nodes)
    watched.discover()
    master = cluster.masters()[0]
    old = watched.node_at(master)
    promoted = cluster.fail_over(master, takeover=True)
    watched.table.request_refresh("READONLY")
    eventually(lambda: watched.changes)
    [changes] = watched.changes
    assert changes.demoted_nodes == changes.removed_nodes == (old,)
    assert changes.new_masters == (watched.node_at(promoted),)
    assert len(changes.failed_over_slots) > 5000
    assert not changes.moved_slots
    assert_same(watched, cluster)


@pytest.mark.parametrize("how", ["kill", "pause"])
def test_a_promoted_replica_is_known_at_once(own_cluster: Cluster, watch: Open, how: str) -> None:
    """No redirect comes from a master that died or hangs: the failure of a connection has to be enough."""
    watched = watch(own_cluster.nodes)
    watched.discover()
    master = own_cluster.masters()[0]
    [replica] = own_cluster.replicas_of(master)
    getattr(own_cluster, how)(master)
    watched.node_at(master).on_failure()
    while replica.ask("ROLE")[0] != "master":
        time.sleep(0.005)
    promoted_at = time.monotonic()
    eventually(lambda: watched.changes)
    # 0.3 s, and the time that other nodes need to hear of it, on a busy machine. The next refresh is far away.
    assert watched.known_at - promoted_at < 3
    assert len(watched.changes[0].failed_over_slots) > 5000
    assert not watched.table.troubled


def test_all_but_one_of_the_users_addresses_are_dead(own_cluster: Cluster, watch: Open) -> None:
    dead = own_cluster.replicas_of(own_cluster.masters()[0])[0]
    own_cluster.kill(dead)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        watched = watch([silent.getsockname()[:2], dead, own_cluster.masters()[0]])
        watched.discover()
        assert_same(watched, own_cluster)


def test_most_of_the_users_addresses_hang(own_cluster: Cluster, watch: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that hang may take all the time of the first refresh, but not that of the next one too."""
    monkeypatch.setattr(random, "sample", lambda population, count: list(population)[:count])
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        silent = [each.getsockname()[:2] for each in (one, other)]
        watched = watch([*silent, own_cluster.masters()[0]])
        with pytest.raises(NoReply):
            watched.discover()
        began = time.monotonic()
        watched.discover()
        assert time.monotonic() - began < 1
        assert watched.table.ready


def test_a_node_that_hangs_is_asked_last(cluster: Cluster, watch: Open) -> None:
    watched = watch(cluster.nodes)
    watched.discover()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = Address(*silent.getsockname()[:2])
        source_of(watched)._members = [address]
        source_of(watched).look()
        assert address in source_of(watched)._servers._silent
        source_of(watched)._members.append(address)
        assert all(source_of(watched)._known()[-1] == address for _ in range(50))


def test_all_nodes_behind_one_name_are_replaced(watch: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Managed services do so in maintenance. The name is the only thing that stays."""
    resolve = socket.getaddrinfo
    behind: list[Cluster] = []

    def getaddrinfo(host: str, port: int, **options: Any) -> Any:
        if host == "cluster.example":
            return [entry for node in behind[0].living for entry in resolve(node.host, node.port, **options)]
        return resolve(host, port, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with Cluster(masters=1, replicas=0) as former, Cluster(masters=1, replicas=0) as present:
        behind[:] = [former]
        watched = watch([("cluster.example", 6379)])
        watched.discover()
        old = watched.node_at(former.nodes[0])
        behind[:] = [present]
        former.stop()
        old.on_failure()
        eventually(lambda: watched.changes)
        assert_same(watched, present)
        assert watched.changes[0].removed_nodes == (old,)
        assert source_of(watched)._members == [Address(present.nodes[0].host, present.nodes[0].port)]


def test_a_node_that_was_cut_off_doesnt_bring_back_the_past(own_cluster: Cluster, watch: Open) -> None:
    """The former master was forgotten by the others and forgot them, so it still believes in its slots."""
    former = own_cluster.masters()[0]
    [replica] = own_cluster.replicas_of(former)
    alone = Address(former.host, former.port)
    for node in own_cluster.living:
        if node is not former:
            former.ask("CLUSTER", "FORGET", node.id)
    replica.ask("CLUSTER", "FAILOVER", "TAKEOVER")
    others = [node for node in own_cluster.nodes if node is not former]
    eventually(lambda: all(node.view()[replica.id].has(0) for node in others))
    watched = watch(others)
    watched.discover()
    assert watched.table.node_of_slot(0) is watched.node_at(replica)
    epoch = watched.table.epoch
    for _ in range(20):
        source_of(watched)._members = [alone, Address(replica.host, replica.port)]
        view, _ = source_of(watched).look()
        assert view.epoch >= epoch
        assert view.covered == 16384
        assert alone not in {shard.master.address for shard in view.shards}


def test_a_single_server_is_no_cluster(server: Server, watch: Open) -> None:
    watched = watch([server])
    with pytest.raises(UnsupportedServerError, match="redis://"):
        watched.discover()


def test_a_wrong_password_is_reported_at_once(watch: Open) -> None:
    with Cluster(masters=1, replicas=0, password="right") as cluster:
        watch(cluster.nodes, password="right").discover()
        for credentials, kind in (({"password": "wrong"}, AuthenticationError), ({}, AuthenticationError)):
            with pytest.raises(kind):
                watch(cluster.nodes, **credentials).discover()


def test_a_user_without_the_right_to_ask(watch: Open) -> None:
    users = ["limited on >word ~* &* +@all -cluster", "locker on >word ~* &* +@all -cluster +cluster|slots"]
    with Cluster(masters=1, replicas=0, users=users) as cluster:
        with pytest.raises(NoPermissionError):
            watch(cluster.nodes, username="limited", password="word").discover()
        watched = watch(cluster.nodes, username="locker", password="word")
        watched.discover()
        assert_same(watched, cluster)


def test_a_cluster_without_slots(watch: Open) -> None:
    with Server(config={"cluster-enabled": "yes"}) as server:
        watched = watch([server])
        with pytest.raises(NoReply) as caught:
            watched.discover()
        assert isinstance(caught.value.error, ClusterDownError)
        with server.redis() as redis:
            redis.execute_command("CLUSTER ADDSLOTSRANGE", 100, 16383)
            watched.discover()
            assert watched.table.node_of_slot(99) is None
            assert watched.table.node_of_slot(100) is watched.node_at(server)
            redis.execute_command("CLUSTER ADDSLOTSRANGE", 0, 99)
        watched.table.request_refresh("slot 99 has no node")
        eventually(lambda: watched.table.node_of_slot(99))
        assert watched.changes == [Changes(moved_slots=frozenset(range(100)))]


def test_addresses_are_translated(cluster: Cluster, watch: Open) -> None:
    """The user's addresses are those of this client's network, and are not translated."""
    outside = {(node.host, node.port): ("localhost", node.port) for node in cluster.nodes}
    node = cluster.nodes[0]
    watched = watch([("localhost", node.port)], address_mapper=lambda address: outside[address])
    watched.discover()
    assert set(watched.table.nodes) == {Address("localhost", node.port) for node in cluster.masters()}
    assert watched.table.nodes[Address("localhost", cluster.node_of(0).port)] is watched.table.node_of_slot(0)


def test_tls(watch: Open) -> None:
    with Cluster(masters=1, replicas=0, tls=True) as cluster:
        node = cluster.nodes[0]
        context = ssl.create_default_context(cafile=cluster.ca_file)
        watched = watch([(node.host, node.tls_port)], ssl=True, ssl_context=context)
        watched.discover()
        assert [node.endpoint.port for node in watched.table.nodes.values()] == [cluster.nodes[0].tls_port]


def test_a_certificate_that_isnt_trusted_is_reported_at_once(watch: Open) -> None:
    with Cluster(masters=1, replicas=0, tls=True) as cluster:
        watched = watch([(cluster.nodes[0].host, cluster.nodes[0].tls_port)], ssl=True)
        with pytest.raises(Exception, match="CERTIFICATE_VERIFY_FAILED") as caught:
            watched.discover()
        assert not isinstance(caught.value, NoReply)
