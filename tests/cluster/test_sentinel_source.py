"""The keeper of a client of real Sentinels."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from redis.exceptions import AuthenticationError, ConnectionError
from redis.sentinel import MasterNotFoundError

from pyredisson._client.topology.sentinel_source import SentinelSource
from pyredisson._protocol.no_reply import NoReply
from pyredisson._protocol.routing import Changes
from pyredisson._settings.address import Address
from pyredisson.errors import UnsupportedServerError
from pyredisson.testing import Sentinels, Server
from pyredisson.testing.deployment import Node
from tests.support.keepers import Watched
from tests.support.waiting import TIME_LIMIT, eventually

Open = Callable[..., Watched]


@pytest.fixture
def watch(watch_topology: Callable[..., Watched]) -> Open:
    """Makes keepers for Sentinels."""

    def make(nodes: Any, **fields: Any) -> Watched:
        return watch_topology("sentinel", nodes, **({"master_name": "mymaster"} | fields))

    return make


def source_of(watched: Watched) -> SentinelSource:
    source = watched.keeper._source
    assert isinstance(source, SentinelSource)
    return source


def listening(watched: Watched) -> bool:
    """Whether the keeper has subscribed to a Sentinel and has looked at the topology after that."""
    connection = source_of(watched)._listener._connection
    return connection is not None and connection.fileno() >= 0


def is_master(node: Node) -> bool:
    try:
        return bool(node.ask("ROLE")[0] == "master")
    except ConnectionError:
        # A Sentinel closes the connections of a server that it promotes.
        return False


def test_the_master_is_found_by_any_sentinel(sentinels: Sentinels, watch: Open) -> None:
    for sentinel in sentinels.sentinels:
        watched = watch([sentinel])
        watched.discover()
        assert watched.only_node is watched.node_at(sentinels.master())
        assert list(watched.table.replicas.values()) == [1]
        assert len(source_of(watched)._sentinels.known()) == 3


def test_a_sentinel_that_hangs_costs_no_more_than_its_own_time(sentinels: Sentinels, watch: Open) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        watched = watch([silent.getsockname()[:2], sentinels.sentinels[0]])
        began = time.monotonic()
        watched.discover()
        # Twice as long as `LONGEST`, if it were asked twice.
        assert time.monotonic() - began < 1.9
        # The one that has answered goes first from now on.
        assert source_of(watched)._sentinels.known()[0].port == sentinels.sentinels[0].port


def test_a_dead_sentinel(sentinels: Sentinels, watch: Open) -> None:
    sentinels.kill(sentinels.sentinels[0])
    watched = watch(sentinels.sentinels[:2])
    watched.discover()
    assert watched.only_node is watched.node_at(sentinels.master())


def test_all_named_sentinels_die(sentinels: Sentinels, watch: Open) -> None:
    """The others are known by then."""
    watched = watch(sentinels.sentinels[:1])
    watched.discover()
    sentinels.kill(sentinels.sentinels[0])
    sentinels.kill(sentinels.master())
    watched.only_node.on_failure()
    eventually(lambda: watched.changes, 20.0)
    assert watched.only_node is watched.node_at(sentinels.wait_for_promotion(sentinels.nodes[0]))


def test_a_switch_is_heard_though_nothing_fails(sentinels: Sentinels, watch: Open) -> None:
    """The former master still replies, to those who don't ask for its role."""
    watched = watch(sentinels.sentinels)
    watched.discover()
    eventually(lambda: listening(watched))
    old = watched.only_node
    promoted = sentinels.fail_over()
    eventually(lambda: watched.changes)
    assert watched.changes[0] == Changes(
        failed_over_slots=frozenset(range(16384)),
        new_masters=(watched.node_at(promoted),),
        removed_nodes=(old,),
        demoted_nodes=(old,),
    )
    assert watched.only_node is watched.node_at(promoted)


def test_a_sentinel_that_is_listened_to_is_replaced(sentinels: Sentinels, watch: Open) -> None:
    watched = watch(sentinels.sentinels)
    watched.discover()
    eventually(lambda: listening(watched))
    connection = source_of(watched)._listener._connection
    assert connection is not None
    [heard] = [each for each in sentinels.sentinels if each.port == connection._node.config.port]
    sentinels.kill(heard)
    eventually(lambda: source_of(watched)._listener._connection not in (None, connection) and listening(watched))
    sentinels.fail_over()
    eventually(lambda: watched.changes)


def test_a_sentinel_that_hangs_while_it_is_listened_to(sentinels: Sentinels, watch: Open) -> None:
    watched = watch(sentinels.sentinels, ping_interval=0.2, timeout=0.3)
    watched.discover()
    eventually(lambda: listening(watched))
    connection = source_of(watched)._listener._connection
    assert connection is not None
    [heard] = [each for each in sentinels.sentinels if each.port == connection._node.config.port]
    sentinels.pause(heard)
    eventually(lambda: source_of(watched)._listener._connection not in (None, connection) and listening(watched))


@pytest.mark.parametrize("how", ["kill", "pause"])
def test_a_promoted_replica_is_known_at_once(sentinels: Sentinels, watch: Open, how: str) -> None:
    watched = watch(sentinels.sentinels)
    watched.discover()
    old = watched.only_node
    [replica] = sentinels.replicas()
    getattr(sentinels, how)(sentinels.master())
    old.on_failure()
    eventually(lambda: is_master(replica), 20.0)
    promoted_at = time.monotonic()
    eventually(lambda: watched.changes, 20.0)
    # A Sentinel names the new master when it has seen its role, which it asks for once a second.
    assert watched.known_at - promoted_at < 5
    assert watched.changes[0].demoted_nodes == (old,)
    assert watched.only_node is watched.node_at(replica)


def test_a_former_master_that_comes_back_is_not_the_master(sentinels: Sentinels, watch: Open) -> None:
    """It believes to be a master until the Sentinels tell it otherwise."""
    watched = watch(sentinels.sentinels)
    watched.discover()
    old = sentinels.master()
    sentinels.pause(old)
    watched.only_node.on_failure()
    promoted = sentinels.wait_for_promotion(old)
    eventually(lambda: watched.changes)
    sentinels.resume(old)
    for _ in range(5):
        source_of(watched).look()
    assert watched.only_node is watched.node_at(promoted)


def test_an_unknown_name(sentinels: Sentinels, watch: Open) -> None:
    with pytest.raises(MasterNotFoundError, match="nobody"):
        watch(sentinels.sentinels, master_name="nobody").discover()


def test_a_server_that_is_no_sentinel(server: Server, watch: Open) -> None:
    with pytest.raises(UnsupportedServerError, match="redis://"):
        watch([server]).discover()


def test_no_sentinel_replies(watch: Open) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = closed.getsockname()[:2]
    with pytest.raises(NoReply) as caught:
        watch([address]).discover()
    assert isinstance(caught.value.error, ConnectionError)


@pytest.mark.parametrize(
    ("sentinel_password", "fields"),
    [
        ("one", {"sentinel_password": "one", "password": "two"}),
        (None, {"password": "two"}),
        # Without a password of their own they get that of the servers, as in Redisson.
        ("two", {"password": "two"}),
    ],
)
def test_passwords(sentinel_password: str | None, fields: dict[str, str], watch: Open) -> None:
    with Sentinels(sentinels=1, password="two", sentinel_password=sentinel_password) as sentinels:
        watched = watch(sentinels.sentinels, **fields)
        watched.discover()
        assert watched.only_node is watched.node_at(sentinels.master())
        eventually(lambda: listening(watched))
        for wrong in ({}, {"password": "three"}, {"password": "two", "sentinel_password": "three"}):
            if sentinel_password is None and "sentinel_password" in wrong:
                continue
            with pytest.raises(AuthenticationError):
                watch(sentinels.sentinels, **wrong).discover()


def test_tls_to_both(watch: Open) -> None:
    with Sentinels(sentinels=1, tls=True) as sentinels:
        context = ssl.create_default_context(cafile=sentinels.ca_file)
        nodes = [(each.host, each.tls_port) for each in sentinels.sentinels]
        watched = watch(nodes, ssl=True, ssl_context=context, sentinel_ssl=True)
        watched.discover()
        assert watched.only_node.endpoint.port == sentinels.master().tls_port
        eventually(lambda: listening(watched))


def test_a_user_that_may_not_ask_for_the_role(watch: Open, caplog: pytest.LogCaptureFixture) -> None:
    with Sentinels(sentinels=1, users=["locker on >word ~* &* +@all -role -info"]) as sentinels:
        watched = watch(sentinels.sentinels, username="locker", password="word")
        watched.discover()
        assert watched.only_node is watched.node_at(sentinels.master())
        watched.keeper.request()
        eventually(lambda: listening(watched))
    assert [record.levelname for record in caplog.records if "confirmed" in record.message] == ["WARNING"]


def test_addresses_are_translated(sentinels: Sentinels, watch: Open) -> None:
    watched = watch(
        [("localhost", sentinels.sentinels[0].port)],
        address_mapper=lambda address: Address("localhost", address.port),
    )
    watched.discover()
    assert watched.only_node.endpoint == Address("localhost", sentinels.master().port)
    assert {sentinel.host for sentinel in source_of(watched)._sentinels.known()} == {"localhost"}


def test_closing_ends_both_threads(sentinels: Sentinels, watch: Open) -> None:
    watched = watch(sentinels.sentinels)
    watched.discover()
    eventually(lambda: listening(watched))
    thread = source_of(watched)._listener._thread
    assert isinstance(thread, threading.Thread)
    watched.close()
    thread.join(TIME_LIMIT)
    assert not thread.is_alive()
