"""Clusters, masters with replicas, and sentinels of the test kit: they serve, move slots, fail over and break."""

import os
import re
import signal
import socket

import pytest
import redis
from redis.exceptions import ResponseError

from pyredisson._settings.redis_options import settings_of_url
from pyredisson.testing import Cluster, ClusterNode, Replicated, ReplicatedNode, Sentinels, ServerError
from pyredisson.testing.cluster_node import SLOTS
from tests.cluster.conftest import started
from tests.cluster.scenes import other_than, tag_on
from tests.support.backends import raises
from tests.support.children import PROGRAMS


@pytest.fixture(scope="module", params=PROGRAMS)
def program(request: pytest.FixtureRequest) -> str:
    return str(request.param())


# For all tests of this module, which leave all of their nodes running.
cluster, sentinels = started(Cluster, "module"), started(Sentinels, "module")
replicated = started(Replicated, "module", replicas=2)


def store(master: ClusterNode | ReplicatedNode, name: str, replicas: int = 1) -> None:
    """All replicas have it, too."""
    master.ask("SET", name, "kept")
    assert master.ask("WAIT", replicas, 5000) == replicas


def error_of(node: ClusterNode, *words: str) -> str:
    with pytest.raises(ResponseError) as caught:
        node.ask(*words)
    return f"{caught.type.__name__} {caught.value}"


def test_every_node_knows_the_others_and_serves(cluster: Cluster) -> None:
    masters = cluster.masters()
    assert (len(masters), [len(cluster.replicas_of(master)) for master in masters]) == (3, [1, 1, 1])
    # Earlier tests may have moved slots, so which master serves which slot isn't known.
    ranges = [each for view in cluster.nodes[0].view().values() for each in view.slots]
    assert {cluster.node_of(first) for first, _ in ranges} == set(masters)
    for node in cluster.nodes:
        assert "cluster_state:ok" in node.ask("CLUSTER", "INFO")
        shards = node.ask("CLUSTER", "SLOTS")
        # A node is named once for each range of slots.
        assert {port for shard in shards for _, port, *_ in shard[2:]} == {n.port for n in cluster.nodes}
        served = [slot for view in node.view().values() for first, end in view.slots for slot in range(first, end + 1)]
        assert sorted(served) == list(range(SLOTS)), "a slot has no master, or two"
    assert cluster.url == "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in cluster.nodes)
    cluster.flush()
    with cluster.redis() as client:
        for number in range(50):
            client.set(str(number), number)
        assert [client.get(str(number)) for number in range(50)] == [b"%d" % number for number in range(50)]
        cluster.flush()
        assert client.dbsize() == 0
    digests = {node: node.ask("SCRIPT", "LOAD", "return 1") for node in cluster.nodes}
    cluster.flush_scripts()
    assert all(node.ask("SCRIPT", "EXISTS", digest) == [False] for node, digest in digests.items())


def test_slots_move_with_their_keys(cluster: Cluster) -> None:
    """One at once and in steps, and many."""
    slot, source = cluster.slot_of_key("{moved}"), cluster.node_of_key("{moved}")
    target = other_than(source, cluster)
    for number in range(250):
        source.ask("SET", f"{{moved}}:{number}", number, "PX", 60_000)
    cluster.move_slot(slot, target)
    assert (cluster.node_of_key("{moved}"), target.ask("CLUSTER", "COUNTKEYSINSLOT", slot)) == (target, 250)
    assert target.ask("PTTL", "{moved}:7") > 50_000
    # Every node, and not only the two, sends clients to the new one.
    for node in cluster.nodes:
        if node is not target:
            assert error_of(node, "GET", "{moved}:7") == f"MovedError {slot} 127.0.0.1:{target.port}"
    cluster.begin_move(slot, source)
    assert target.ask("GET", "{moved}:1") == "1"
    cluster.move_keys(slot, "{moved}:1")
    assert error_of(target, "GET", "{moved}:1") == f"AskError {slot} 127.0.0.1:{source.port}"
    assert target.ask("GET", "{moved}:2") == "2"
    assert error_of(target, "MGET", "{moved}:1", "{moved}:2").startswith("TryAgainError")
    cluster.move_keys(slot)
    cluster.finish_move(slot)
    assert source.ask("GET", "{moved}:2") == "2"
    raises(ValueError, cluster.begin_move, slot, source, match="is there already")
    raises(ValueError, cluster.finish_move, slot, match="not being moved")
    source = cluster.node_of(0)
    target = other_than(source, cluster)
    name = next(name for name in map(str, range(SLOTS)) if cluster.slot_of_key(name) == 0)
    source.ask("SET", name, "kept")
    cluster.reshard(50, source, target)
    assert ({cluster.node_of(slot) for slot in range(50)}, target.ask("GET", name)) == ({target}, "kept")
    raises(ValueError, cluster.reshard, SLOTS, source, target, match="slots only")
    cluster.unassign(0)
    raises(ServerError, cluster.node_of, 0, match="assigned to no node")
    cluster.assign(0, target)
    assert cluster.node_of(0) is target


def test_slots_move_atomically(cluster: Cluster) -> None:
    source = cluster.node_of_key("{atomic}")
    target = other_than(source, cluster)
    slot = cluster.slot_of_key("{atomic}")
    source.ask("SET", "{atomic}", "kept")
    if cluster.version < (8, 4):
        raises(ServerError, cluster.begin_atomic_move, slot, slot, target, match=re.escape("Valkey 9.0 and Redis 8.4"))
        return
    cluster.move_atomically(slot, slot, target)
    assert (cluster.node_of(slot), target.ask("GET", "{atomic}")) == (target, "kept")
    assert error_of(source, "GET", "{atomic}") == f"MovedError {slot} 127.0.0.1:{target.port}"
    target.ask("CONFIG", "SET", "rdb-key-save-delay", 10_000_000)
    move = cluster.begin_atomic_move(slot, slot, source)
    assert move.missing()
    move.cancel()
    raises(ServerError, cluster.finish_atomic_move, move, match="the slots have not moved")
    assert move.state.startswith("cancel")
    target.ask("CONFIG", "SET", "rdb-key-save-delay", 0)
    assert (cluster.node_of(slot), target.ask("GET", "{atomic}")) == (target, "kept")


@pytest.mark.parametrize("mode", ["", "force", "takeover"])
def test_a_replica_takes_over(cluster: Cluster, mode: str) -> None:
    master = cluster.masters()[0]
    name = tag_on(cluster, master)
    store(master, name)
    promoted = cluster.fail_over(master, force=mode == "force", takeover=mode == "takeover")
    assert (promoted.ask("GET", name), cluster.replicas_of(promoted)) == ("kept", (master,))
    assert (promoted is master, master.ask("ROLE")[0]) == (False, "slave")


@pytest.mark.usefixtures("program")
@pytest.mark.parametrize("broken", ["killed", "paused"])
@pytest.mark.parametrize("kind", ["cluster", "replicated", "sentinels"])
def test_a_master_comes_back_as_replica(request: pytest.FixtureRequest, kind: str, broken: str) -> None:
    servers, cluster = request.getfixturevalue(kind), kind == "cluster"
    master = servers.masters()[0] if cluster else servers.master()
    replicas = [*(servers.replicas_of(master) if cluster else servers.replicas())]
    name, port = tag_on(servers, master) if cluster else "a", master.port
    store(master, name, len(replicas))
    if broken == "killed":
        servers.kill(master)
        raises(ConnectionRefusedError, socket.create_connection, (master.host, port), 5)
        if not cluster:
            raises(ServerError, servers.master, match=r"0 living nodes|don't name a living master")
    else:
        servers.pause(master)
        if cluster:
            servers.wait_for_failure(master)
    promoted = servers.fail_over(to=replicas[0]) if kind == "replicated" else servers.wait_for_promotion(master)
    assert (promoted, promoted.ask("GET", name)) == (replicas[0], "kept")
    assert not cluster or master not in servers.masters()
    servers.restart(master) if broken == "killed" else servers.resume(master)
    assert promoted in (servers.masters() if cluster else (servers.master(),))
    assert {*(servers.replicas_of(promoted) if cluster else servers.replicas())} == {master, *replicas[1:]}
    assert (master.port, master.ask("ROLE")[0]) == (port, "slave")
    # It stays a replica when it ends by itself and is started again, and gets what was written meanwhile.
    os.kill(master.pid, signal.SIGKILL)
    assert master._process is not None
    master._process.wait()
    assert master not in servers.living
    promoted.ask("SET", name, "later")
    servers.restart(master)
    assert master in servers.living
    assert (master.ask("ROLE")[3], promoted.ask("WAIT", len(replicas), 5000)) == ("connected", len(replicas))
    assert cluster or master.ask("GET", name) == "later"


def test_a_cluster_of_one_node_serves_all_slots(program: str) -> None:
    with Cluster(masters=1, replicas=0, executable=program) as cluster:
        [node] = cluster.nodes
        assert {cluster.node_of(slot) for slot in (0, SLOTS - 1)} == {node}
        assert node.ask("SPUBLISH", "channel", "message") == 0
        cluster.restart(node)
        assert node.ask("SET", "a", 1)
        raises(ServerError, cluster.fail_over, node, match="no living replica")
        raises(ValueError, cluster.kill, ClusterNode(), match="no node of")
        raises(RuntimeError, cluster.start, match="already running")
        raises(RuntimeError, cluster.proxy_of, node, match="proxied=True")
        cluster.kill(node)
        raises(ServerError, cluster.masters, match="is alive")


def test_password_users_and_tls() -> None:
    users, password = ["alice on >x ~a* &* +@all"], 'sp ace"/#@'
    with Cluster(password=password, users=users, tls=True) as cluster:
        name = tag_on(cluster, cluster.masters()[0])
        cluster.masters()[0].ask("SET", name, "kept")
        options, node = {"ssl": True, "ssl_ca_certs": cluster.ca_file, "startup_nodes": None}, cluster.nodes[-1]
        with cluster.redis(host=node.host, port=node.tls_port, **options) as client:
            assert client.get(name) == b"kept"
            assert {each.port for each in client.get_nodes()} == {node.tls_port for node in cluster.nodes}
        with node.redis(username="alice", password="x") as alice:
            assert alice.acl_whoami() == "alice"
        slot = cluster.slot_of_key(name)
        cluster.move_slot(slot, cluster.masters()[1])
        assert cluster.masters()[1].ask("GET", name) == "kept"
        cluster.fail_over(cluster.masters()[1])
        # What the library reads in the addresses.
        with_tls = settings_of_url(f"{cluster.tls_url}?ssl_ca_certs={cluster.ca_file}")
        for settings, nodes in (
            (settings_of_url(cluster.url), [each.address for each in cluster.nodes]),
            (with_tls, [(each.host, each.tls_port) for each in cluster.nodes]),
        ):
            assert (settings["topology"], settings["password"]) == ("cluster", password)
            assert list(settings["nodes"]) == nodes


def test_a_proxied_cluster(program: str) -> None:
    """Clients come through the proxies. The nodes reach each other whatever a proxy breaks."""
    with Cluster(executable=program, proxied=True) as cluster:
        master = cluster.masters()[0]
        proxy, name = cluster.proxy_of(master), tag_on(cluster, master)
        assert (master.address, f":{proxy.port}" in cluster.url) == ((proxy.host, proxy.port), True)
        with cluster.redis() as client:
            client.set(name, "here")
        assert proxy.seen(b"here") == 1
        moved = error_of(cluster.masters()[1], "GET", name)
        assert moved == f"MovedError {cluster.slot_of_key(name)} 127.0.0.1:{proxy.port}"
        proxy.forget()
        proxy.refuse(True)
        proxy.stall()
        proxy.cut()
        store(master, name)
        promoted = cluster.fail_over(master)
        proxy.refuse(False)
        proxy.resume()
        # The old master is a replica now, and its own connection goes through the proxy of the new one.
        assert (cluster.replicas_of(promoted), proxy.commands) == ((master,), [])


def test_nodes_announce_what_a_test_wants() -> None:
    with Cluster(masters=1, replicas=0, announce=lambda node: ("localhost", node.port)) as cluster:
        assert cluster.nodes[0].address == ("localhost", cluster.nodes[0].port)
    config = {"cluster-announce-hostname": "localhost", "cluster-preferred-endpoint-type": "hostname"}
    with Cluster(masters=1, replicas=0, config=config) as cluster:
        [[_, _, [host, port, *_]]] = cluster.nodes[0].ask("CLUSTER", "SLOTS")
        assert (host, port) == ("localhost", cluster.nodes[0].port)
    config = {"bind": "127.0.0.1 ::1"}
    with Cluster(replicas=0, announce=lambda node: ("::1", node.port), config=config) as cluster:
        assert cluster.url == "redis+cluster://" + ",".join(f"[::1]:{node.port}" for node in cluster.nodes)
        node, other, _ = cluster.nodes
        assert {host for shard in node.ask("CLUSTER", "SLOTS") for host, *_ in shard[2:]} == {"::1"}
        # A wait that ends says what was missing.
        with pytest.raises(ServerError, match=r"not within 0.1 s: .* counts as failed: unknown to \["):
            cluster.wait_for_failure(node, timeout=0.1)
        other.ask("CLUSTER", "FORGET", node.id)
        raises(ServerError, cluster.wait_until_consistent, 0.1, match=f"{other.port} doesn't know {node.port}")


def test_replicas_have_the_data_of_their_master_and_take_over(replicated: Replicated) -> None:
    master, replicas = replicated.master(), replicated.replicas()
    assert {master, *replicas} == {*replicated.nodes}
    assert replicated.addresses == tuple(("127.0.0.1", node.port) for node in replicated.nodes)
    with replicated.redis() as client:
        client.set("a", "1")
        # At once: replicas that are connected, and don't confirm yet, would be of no use to a test. After a second
        # they confirm unasked.
        assert client.wait(2, 700) == 2
    assert [node.ask("GET", "a") for node in replicas] == ["1", "1"]
    for replica in replicas:
        assert replicated.fail_over(to=replica) is replica
    assert replicated.fail_over() in (master, replicas[0])
    master, [replica, _] = replicated.master(), replicated.replicas()
    store(master, "b", 2)
    # One that is paused confirms nothing.
    replicated.pause(replica)
    master.ask("SET", "a", "1")
    assert master.ask("WAIT", 2, 1000) == 1
    replicated.resume(replica)
    assert master.ask("WAIT", 2, 5000) == 2
    # A master that is restarted stays master, and is empty.
    replicated.restart(master)
    assert (replicated.master(), [each.ask("EXISTS", "a") for each in replicated.replicas()]) == (master, [0, 0])


def test_replicas_with_password_and_tls() -> None:
    with Replicated(password='sp ace"', tls=True) as replicated:
        replicated.fail_over()
        replicated.restart(replicated.nodes[1])
        node = replicated.master()
        with node.redis(port=node.tls_port, ssl=True, ssl_ca_certs=replicated.ca_file) as client:
            assert client.ping()
        replicated.kill(replicated.nodes[0])
        raises(ServerError, replicated.fail_over, match="no living replica")
        raises(ValueError, replicated.restart, ReplicatedNode(), match="no node of")


def test_sentinels_know_the_master_and_each_other_and_fail_over(sentinels: Sentinels) -> None:
    master = sentinels.master()
    assert {master, *sentinels.replicas()} == {*sentinels.nodes}
    for each in sentinels.sentinels:
        assert each.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster") == ["127.0.0.1", str(master.port)]
        assert each.ask("SENTINEL", "CKQUORUM", "mymaster").startswith("OK 3 usable")
    ports = ",".join(f"127.0.0.1:{each.port}" for each in sentinels.sentinels)
    assert sentinels.url == f"redis+sentinel://{ports}/mymaster"
    with sentinels.redis() as client:
        client.set("a", "1")
    assert master.ask("GET", "a") == "1"
    sentinels.flush()
    assert master.ask("GET", "a") is None
    # A failover on request, without one of them.
    store(master, "a")
    first, second, third = sentinels.sentinels
    sentinels.kill(first)
    assert sentinels.living_sentinels == (second, third)
    promoted = sentinels.fail_over()
    assert (promoted is master, promoted.ask("GET", "a"), sentinels.replicas()) == (False, "kept", (master,))
    sentinels.restart(first)
    assert {each.master_port("mymaster") for each in sentinels.sentinels} == {promoted.port}
    sentinels.pause(second)
    raises(redis.TimeoutError, second.ask, "PING")
    sentinels.resume(second)
    assert second.ask("SENTINEL", "CKQUORUM", "mymaster").startswith("OK 3 usable")
    assert sentinels.fail_over() is master


def test_sentinels_with_passwords_users_and_tls() -> None:
    users = ["bob on >x +@all"]
    with Sentinels(1, 2, "orders", password="s/e@", sentinel_password="x%y&", users=users, tls=True) as sentinels:
        [sentinel], former = sentinels.sentinels, sentinels.master()
        assert len(sentinels.replicas()) == 2
        with sentinels.redis() as client:
            assert client.ping()
        with former.redis(username="bob", password="x") as bob:
            assert bob.acl_whoami() == "bob"
        raises(redis.AuthenticationError, lambda: sentinel.redis(password="wrong").ping())
        assert sentinels.fail_over() is not former
        # What the library reads in the addresses.
        passwords = {"password": "s/e@", "sentinel_password": "x%y&"}
        expected = {"topology": "sentinel", "master_name": "orders", "ssl": True} | passwords
        for url, port in ((sentinels.url, sentinel.port), (sentinels.tls_url, sentinel.tls_port)):
            settings = settings_of_url(url)
            assert {name: settings[name] for name in expected} == expected
            assert bool(settings.get("sentinel_ssl")) is (port == sentinel.tls_port)
            assert list(settings["nodes"]) == [(sentinel.host, port)]
        sentinels.restart(sentinel)
        assert sentinels.master().ask("PING")
