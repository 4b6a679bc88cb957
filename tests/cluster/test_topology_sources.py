"""The keeper of a client of real servers: whom it asks, which answers it relies on, and how soon it knows a change."""

import random
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import pytest
from redis.exceptions import AuthenticationError, ClusterDownError, ConnectionError, NoPermissionError
from redis.sentinel import MasterNotFoundError

from pyredisson._backends.threads.wakeup import ThreadWakeup
from pyredisson._client.servers import open_topology
from pyredisson._client.topology import queries
from pyredisson._protocol.node import Node
from pyredisson._protocol.replies import NoReply
from pyredisson._protocol.routing import Changes
from pyredisson._protocol.scripts import ScriptSet
from pyredisson._settings.address import Address
from pyredisson._settings.config import Config
from pyredisson.testing import Cluster, Replicated, Sentinels, Server
from tests.support.backends import TIME_LIMIT, eventually, within
from tests.support.children import completed

from .conftest import CALM_NODE_TIMEOUT, either

Servers = Cluster | Sentinels | Replicated
Watch = Callable[..., "Watched"]
KINDS: dict[str, Callable[..., Any]] = {"cluster": Cluster, "sentinel": Sentinels, "replicated": Replicated}


@pytest.fixture(scope="module", params=KINDS)
def shared(request: pytest.FixtureRequest) -> Iterator[Servers]:
    """Servers of this module. Not to be changed."""
    with KINDS[request.param]() as running:
        if isinstance(running, Cluster):
            running.set_node_timeout(CALM_NODE_TIMEOUT)
        yield running


own = either("own_cluster", "sentinels", "replicated")


def named(servers: Any) -> Any:
    """The servers whose addresses a user gives."""
    return servers.sentinels if isinstance(servers, Sentinels) else servers.nodes


class Watched:
    """A keeper, and the changes that its table has reported. It refreshes on request only."""

    def __init__(self, config: Config) -> None:
        self.keeper = open_topology(config, "client", ScriptSet())
        self.table = self.keeper.table
        self.source: Any = self.keeper._source
        self.changes: list[Changes] = []
        self.known_at = 0.0
        """When the latest change was reported."""
        self.table.listen(self.follow)

    def follow(self, changes: Changes) -> None:
        self.known_at = time.monotonic()
        self.changes.append(changes)

    def discover(self) -> None:
        """Waits for the first map, as a call does. Raises what a call would raise."""
        wakeup = ThreadWakeup()
        self.keeper.wait_until_known(wakeup.set)
        assert wakeup.wait(TIME_LIMIT)
        self.keeper.check_known()
        self.changes.clear()

    def node_at(self, server: Any) -> Node:
        return self.table.nodes[Address(server.host, server.port)]

    @property
    def only_node(self) -> Node:
        [node] = self.table.nodes.values()
        assert self.table.node_of_slot(0) is self.table.node_of_slot(16383) is node
        return node

    def close(self) -> None:
        self.keeper.close()
        # Sentinels are listened to by another one.
        for owner in (self.keeper, getattr(self.source, "_listener", None)):
            if (thread := getattr(owner, "_thread", None)) is not None:
                thread.join(TIME_LIMIT)
                assert not thread.is_alive()


@pytest.fixture
def watch() -> Iterator[Watch]:
    """Makes keepers for such servers, which know them (`discover=False`: not yet). `nodes`: what the user names."""
    with ExitStack() as stack:

        def make(servers: Servers | str, nodes: Any = None, *, discover: bool = True, **fields: Any) -> Watched:
            kind: Any = servers if isinstance(servers, str) else type(servers).__name__.lower().removesuffix("s")
            usual = {"topology_refresh_interval": 1000.0} | ({"master_name": "mymaster"} if kind == "sentinel" else {})
            given = (each if isinstance(each, tuple) else (each.host, each.port) for each in nodes or named(servers))
            watched = Watched(Config.of(topology=kind, nodes=tuple(Address(*each) for each in given), **usual | fields))
            stack.callback(watched.close)
            if discover:
                watched.discover()
            return watched

        yield make


def listening(watched: Watched) -> bool:
    """Whether the keeper has subscribed to a Sentinel and has looked at the topology after that."""
    connection = watched.source._listener._connection
    return connection is not None and connection.fileno() >= 0


def masters(servers: Servers) -> tuple[Any, ...]:
    return servers.masters() if isinstance(servers, Cluster) else (servers.master(),)


def assert_same(watched: Watched, servers: Servers) -> None:
    assert set(watched.table.nodes) == {Address(node.host, node.port) for node in masters(servers)}
    for slot in (*range(0, 16384, 500), 16383):
        node = servers.node_of(slot) if isinstance(servers, Cluster) else servers.master()
        assert watched.table.node_of_slot(slot) is watched.node_at(node)


@contextmanager
def silent_server() -> Iterator[tuple[str, int]]:
    """The address of a server that accepts connections, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()


def test_the_whole_map_comes_from_any_of_them(shared: Servers, watch: Watch) -> None:
    of_replicated = [shared.nodes, shared.nodes[::-1], [shared.master()]] if isinstance(shared, Replicated) else []
    for nodes in of_replicated or [[each] for each in named(shared)]:
        watched = watch(shared, nodes)
        assert_same(watched, shared)
        assert {len(shard.replicas) for shard in watched.table.shards.values()} == {1}
        assert watched.table.epoch > 0 or not isinstance(shared, Cluster)
    # Addresses are translated. The user's are those of this client's network, and are not.
    outside = {(each.host, each.port): Address("localhost", each.port) for each in (*named(shared), *shared.nodes)}
    first = shared.master() if isinstance(shared, Replicated) else named(shared)[0]
    watched = watch(shared, [("localhost", first.port)], address_mapper=lambda address: outside[address])
    assert set(watched.table.nodes) == {Address("localhost", node.port) for node in masters(shared)}
    if isinstance(shared, Sentinels):
        assert {sentinel.host for sentinel in watched.source._sentinels.known()} == {"localhost"}


def test_most_addresses_are_dead_or_hang(shared: Servers, watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that hang may take all the time of the first refresh, but not that of the next one too."""
    monkeypatch.setattr(random, "sample", lambda population, count: list(population)[:count])
    with silent_server() as one, silent_server() as other:
        with silent_server() as dead:
            pass
        with pytest.raises(NoReply) as caught:
            watch(shared, [dead])
        assert isinstance(caught.value.error, ConnectionError)
        entry = shared.master() if isinstance(shared, Replicated) else named(shared)[0]
        assert_same(watch(shared, [dead, one, entry]), shared)
        watched = watch(shared, [one, other, entry], discover=False)
        try:
            watched.discover()
        except NoReply:
            with within(1):
                watched.discover()
        assert_same(watched, shared)


@pytest.mark.parametrize("make", [partial(Cluster, masters=1, replicas=0), partial(Sentinels, sentinels=1)])
def test_tls(make: Callable[..., Cluster | Sentinels], watch: Watch) -> None:
    """To Sentinels, too."""
    with make(tls=True) as servers:
        nodes = [(each.host, each.tls_port) for each in named(servers)]
        context = ssl.create_default_context(cafile=servers.ca_file)
        fields = {"sentinel_ssl": True} if isinstance(servers, Sentinels) else {}
        watched = watch(servers, nodes, ssl=True, ssl_context=context, **fields)
        assert watched.only_node.endpoint.port == masters(servers)[0].tls_port
        if isinstance(servers, Sentinels):
            eventually(lambda: listening(watched))
        # A certificate that isn't trusted is reported at once.
        with pytest.raises(Exception, match="CERTIFICATE_VERIFY_FAILED") as caught:
            watch(servers, nodes, ssl=True, **fields)
        assert not isinstance(caught.value, NoReply)


@pytest.mark.parametrize("how", ["kill", "pause"])
def test_a_promoted_replica_is_known_at_once(own: Servers, watch: Watch, how: str) -> None:
    """A failed connection is enough: no redirect comes from such a master. When it is back, it believes to be one."""
    watched = watch(own)
    former = masters(own)[0]
    old = watched.node_at(former)
    getattr(own, how)(former)
    old.on_failure()
    promoted = own.fail_over() if isinstance(own, Replicated) else own.wait_for_promotion(former)
    promoted_at = time.monotonic()
    eventually(lambda: watched.changes, 20.0)
    # The time that other nodes need to hear of it; a Sentinel asks for the role once a second. The next refresh is far.
    assert watched.known_at - promoted_at < 5
    [changes, *_] = watched.changes
    assert (changes.demoted_nodes, changes.new_masters) == ((old,), (watched.node_at(promoted),))
    eventually(lambda: not watched.table.troubled)
    if how == "pause":
        former.resume()
    elif not isinstance(own, Cluster):
        former.start()
    watched.changes.clear()
    for _ in range(5):
        watched.table.apply(*watched.source.look())
    assert (watched.table.node_of_slot(0) is old, watched.changes) == (False, [])


def test_a_node_that_was_cut_off_doesnt_bring_back_the_past(own_cluster: Cluster, watch: Watch) -> None:
    """The former master was forgotten by the others and forgot them, so it still believes in its slots."""
    former = own_cluster.masters()[0]
    [replica] = own_cluster.replicas_of(former)
    others = [node for node in own_cluster.nodes if node is not former]
    for node in others:
        former.ask("CLUSTER", "FORGET", node.id)
    replica.ask("CLUSTER", "FAILOVER", "TAKEOVER")
    eventually(lambda: all(node.view()[replica.id].has(0) for node in others))
    watched = watch(own_cluster, others)
    assert watched.table.node_of_slot(0) is watched.node_at(replica)
    epoch, alone = watched.table.epoch, Address(former.host, former.port)
    for _ in range(20):
        watched.source._members = [alone, Address(replica.host, replica.port)]
        view, _ = watched.source.look()
        masters = {shard.master.address for shard in view.shards}
        assert (view.epoch >= epoch, view.covered, alone in masters) == (True, 16384, False)


def test_passwords_and_rights_in_a_cluster(watch: Watch) -> None:
    users = ["limited on >word ~* &* +@all -cluster", "locker on >word ~* &* +@all -cluster +cluster|slots"]
    with Cluster(masters=1, replicas=0, password="right", users=users) as cluster:
        watch(cluster, password="right")
        assert_same(watch(cluster, username="locker", password="word"), cluster)
        for credentials in ({"password": "wrong"}, {}):
            with pytest.raises(AuthenticationError):
                watch(cluster, **credentials)
        with pytest.raises(NoPermissionError):
            watch(cluster, username="limited", password="word")


def test_a_cluster_without_slots(watch: Watch) -> None:
    with Server(config={"cluster-enabled": "yes"}) as server:
        watched = watch("cluster", [server], discover=False)
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


@pytest.mark.parametrize("shared", ["sentinel"], indirect=True)
def test_a_sentinel_that_hangs_costs_no_more_than_its_own_time(shared: Sentinels, watch: Watch) -> None:
    with silent_server() as silent, within(1.9):
        watched = watch(shared, [silent, shared.sentinels[0]])
        # Twice as long as `LONGEST`, if it were asked twice.
    # The one that has answered goes first from now on.
    known = watched.source._sentinels.known()
    assert (len(known), known[0].port) == (4, shared.sentinels[0].port)
    with pytest.raises(MasterNotFoundError, match="nobody"):
        watch(shared, master_name="nobody")


@pytest.mark.parametrize("shared", ["sentinel"], indirect=True)
def test_one_that_hangs_takes_half_of_what_a_call_waits(
    shared: Sentinels, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random, "sample", lambda population, count: list(population)[:count])
    monkeypatch.setattr(queries, "LONGEST", TIME_LIMIT)
    with silent_server() as silent, within(TIME_LIMIT / 2):
        watch(shared, [silent, shared.sentinels[0]], timeout=TIME_LIMIT, connect_timeout=1.0)


def test_a_sentinel_that_is_listened_to_fails(sentinels: Sentinels, watch: Watch) -> None:
    """First the one that the user has named hangs, then another one dies. The third one tells of the failover."""
    watched = watch(sentinels, sentinels.sentinels[:1], ping_interval=0.2, timeout=0.3)
    listener = watched.source._listener
    for strike in (sentinels.pause, sentinels.kill):
        eventually(lambda: listening(watched))
        connection = listener._connection
        assert connection is not None
        [heard] = [each for each in sentinels.sentinels if each.port == connection._node.config.port]
        strike(heard)
        eventually(lambda before=connection: listener._connection is not before and listening(watched))  # type: ignore[misc]
        if strike == sentinels.pause:
            sentinels.resume(heard)
    sentinels.fail_over()
    eventually(lambda: watched.changes)


@pytest.mark.parametrize(
    ("sentinel_password", "fields"),
    [
        ("one", {"sentinel_password": "one", "password": "two"}),
        (None, {"password": "two"}),
        # Without a password of their own they get that of the servers, as in Redisson.
        ("two", {"password": "two"}),
    ],
)
def test_passwords_of_sentinels(sentinel_password: str | None, fields: dict[str, str], watch: Watch) -> None:
    with Sentinels(sentinels=1, password="two", sentinel_password=sentinel_password) as sentinels:
        watched = watch(sentinels, **fields)
        assert_same(watched, sentinels)
        eventually(lambda: listening(watched))
        wrong = [{}, {"password": "three"}, {"password": "two", "sentinel_password": "three"}]
        for credentials in wrong if sentinel_password else wrong[:2]:
            with pytest.raises(AuthenticationError):
                watch(sentinels, **credentials)


def test_a_user_that_may_not_ask_for_the_role(watch: Watch, caplog: pytest.LogCaptureFixture) -> None:
    """INFO tells it as well. Without both rights a Sentinel is believed."""
    users = ["blind on >word ~* &* +@all -role -info", "locker on >word ~* &* +@all -role"]
    with Sentinels(sentinels=1, users=users) as sentinels:
        watched = watch(sentinels, username="blind", password="word")
        assert_same(watched, sentinels)
        watched.keeper.request()
        eventually(lambda: listening(watched))
        master = sentinels.master()
        with pytest.raises(NoPermissionError):
            watch("replicated", [master], username="blind", password="word")
        watched = watch("replicated", [master], username="locker", password="word")
        assert watched.only_node is watched.node_at(master)
    assert [record.levelname for record in caplog.records if "confirmed" in record.message] == ["WARNING"]


def test_replicas_alone_are_no_master(replicated: Replicated, watch: Watch) -> None:
    with pytest.raises(NoReply) as caught:
        watch(replicated, replicated.replicas())
    assert (isinstance(error := caught.value.error, ConnectionError), "is a replica" in str(error)) == (True, True)
    watched = watch(replicated)
    replicated.kill(replicated.replicas()[0])
    watched.table.request_refresh("a replica is gone")
    eventually(lambda: [shard.replicas for shard in watched.table.shards.values()] == [()])
    assert not watched.changes


def test_of_two_masters_the_one_that_replaced_the_other_counts(replicated: Replicated, watch: Watch) -> None:
    old, promoted = replicated.nodes
    watched = watch(replicated)
    promoted.ask("REPLICAOF", "NO", "ONE")
    assert old.is_master
    watched.table.request_refresh("its replica has left")
    eventually(lambda: watched.changes)
    assert watched.changes[0].demoted_nodes
    for nodes in (replicated.nodes, replicated.nodes[::-1]):
        other = watch(replicated, nodes)
        assert watched.only_node is watched.node_at(promoted)
        assert other.only_node is other.node_at(promoted)


@pytest.mark.parametrize("url", ["redis+cluster://127.0.0.1:{}", "redis+sentinel://127.0.0.1:{}/mymaster"])
def test_the_interpreter_exits_while_a_server_hangs(url: str) -> None:
    with silent_server() as silent:
        program = f"""
import threading, pyredisson, contextlib
client = pyredisson.connect({url.format(silent[1])!r}, timeout=600, connect_timeout=600)
def lock():
    with contextlib.suppress(pyredisson.ClosedError):
        client.get_lock("a").lock()
threading.Thread(target=lock, daemon=True).start()
while not any(thread.name == "pyredisson-topology" for thread in threading.enumerate()):
    pass
"""
        ended = completed(sys.executable, "-c", program, timeout=50)
        assert (ended.returncode, "Traceback" in ended.stderr) == (0, False), ended.stderr
