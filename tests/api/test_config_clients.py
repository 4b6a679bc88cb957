"""Settings that come from a client of redis-py: for one server, for Sentinels, for a cluster."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.cluster import ClusterNode, LoadBalancingStrategy

from pyredisson._settings.address import Address, OneHost
from pyredisson._settings.config import Config
from pyredisson.errors import ConfigError
from pyredisson.testing import Cluster

SECRET = "hunter2"
PROVIDER = redis.UsernamePasswordCredentialProvider("user", SECRET)
UNLIMITED = 2**31
modules = pytest.mark.parametrize("module", [redis, redis.asyncio], ids=["threads", "asyncio"])


def verified(context: ssl.SSLContext | None) -> bool:
    assert context is not None
    return context.verify_mode is ssl.CERT_REQUIRED


@modules
class TestClients:
    @pytest.mark.parametrize(
        ("theirs", "ours"),
        [
            ({"host": "h", "port": 1, "db": 2}, {"host": "h", "port": 1, "database": 2}),
            ({"username": "u", "password": "p", "client_name": "me"},) * 2,
            ({"socket_timeout": 7, "socket_connect_timeout": 8}, {"timeout": 7.0, "connect_timeout": 8.0}),
            # No limit there is our limit here.
            ({"socket_timeout": None, "socket_connect_timeout": None}, {"timeout": 3.0, "connect_timeout": 10.0}),
            ({"socket_keepalive": False, "max_connections": 9}, {"socket_keepalive": False, "connection_pool_size": 9}),
            ({"max_connections": UNLIMITED}, {"connection_pool_size": Config().connection_pool_size}),
            ({"unix_socket_path": "/run/r.sock", "db": 1}, {"path": "/run/r.sock", "database": 1, "ssl": False}),
            ({"credential_provider": PROVIDER},) * 2,
        ],
    )
    def test_options(self, module: Any, theirs: dict[str, Any], ours: dict[str, Any]) -> None:
        config = Config.of(module.Redis(**theirs))
        assert {name: getattr(config, name) for name in ours} == ours

    def test_tls(self, module: Any) -> None:
        config = Config.of(module.Redis(host="h", ssl=True, ssl_cert_reqs="none"))
        assert config.ssl
        assert not verified(config.ssl_context)

    def test_pools(self, module: Any) -> None:
        pool = module.BlockingConnectionPool.from_url("rediss://:p@h/3?timeout=1", max_connections=5)
        config = Config.of(module.Redis(connection_pool=pool), host="other")
        assert (config.host, config.database, config.password) == ("other", 3, "p")
        assert (config.ssl, config.connection_pool_size, config.timeout) == (True, 5, 3.0)

    def test_a_renewal_has_its_own_handshake(self, module: Any) -> None:
        with pytest.raises(ConfigError, match="redis_connect_func"):
            Config.of(module.Redis(redis_connect_func=print))


@pytest.mark.parametrize("option", ["ssl_validate_ocsp", "ssl_validate_ocsp_stapled"])
def test_ocsp(option: str) -> None:
    with pytest.raises(ConfigError, match="OCSP"):
        Config.of(redis.Redis(ssl=True, **{option: True}))  # type: ignore[arg-type]


@modules
class TestSentinelClients:
    def test_a_master(self, module: Any) -> None:
        sentinels = module.Sentinel(
            [("s1", 1), ("s2", "2")],
            sentinel_kwargs={"username": "su", "password": "sp"},
            username="u",
            password="p",
            socket_timeout=7,
        )
        config = Config.of(sentinels.master_for("m", db=3, max_connections=9))
        assert config == Config(
            topology="sentinel",
            nodes=(Address("s1", 1), Address("s2", 2)),
            master_name="m",
            username="u",
            password="p",
            timeout=7.0,
            database=3,
            connection_pool_size=9,
            sentinel_username="su",
            sentinel_password="sp",
        )

    def test_tls(self, module: Any) -> None:
        sentinels = module.Sentinel([("s1", 1)], sentinel_kwargs={"ssl": True, "ssl_cert_reqs": "none"}, ssl=True)
        config = Config.of(sentinels.master_for("m"))
        assert (verified(config.ssl_context), verified(config.sentinel_ssl_context)) == (True, False)
        config = Config.of(module.Sentinel([("s1", 1)]).master_for("m", ssl=True))
        assert (config.ssl, config.sentinel_ssl) == (True, False)

    def test_one_host_for_all_masters(self, module: Any) -> None:
        sentinels = module.Sentinel([("s1", 1)])
        sentinels._force_master_ip = "10.0.0.1"  # the argument force_master_ip is not in redis-py 5
        assert Config.of(sentinels.master_for("m")).address_mapper == OneHost("10.0.0.1")

    def test_what_cannot_be_taken_over(self, module: Any) -> None:
        sentinels = module.Sentinel([("s1", 1)])
        own = module.Sentinel([("s1", 1)], sentinel_kwargs={"credential_provider": PROVIDER})
        for client, message in (
            (sentinels, r"master_for\(name\)"),
            (sentinels.slave_for("m"), "slave_for"),
            (sentinels.master_for("m", redis_connect_func=print), "redis_connect_func"),
            (module.Sentinel([]).master_for("m"), "no sentinels"),
            (own.master_for("m"), "credential_provider for Sentinels"),
        ):
            with pytest.raises(ConfigError, match=message):
                Config.of(client)
        assert Config.of(sentinels.master_for("m", credential_provider=PROVIDER)).credential_provider is PROVIDER


class TestAsyncioClusterClients:
    def test_options(self) -> None:
        client = redis.asyncio.RedisCluster(
            host="h",
            port=7000,
            startup_nodes=[redis.asyncio.cluster.ClusterNode("h2", 7001)],
            username="u",
            password="p",
            socket_timeout=7,
            max_connections=9,
            client_name="me",
            ssl=True,
            ssl_cert_reqs="none",
        )
        config = Config.of(client, timeout=6)
        assert not verified(config.ssl_context)
        assert set(config.nodes) == {("h", 7000), ("h2", 7001)}
        assert (config.topology, config.username, config.password, config.client_name) == ("cluster", "u", "p", "me")
        assert (config.timeout, config.connection_pool_size) == (6.0, 9)

    def test_what_has_no_meaning_here(self) -> None:
        config = Config.of(redis.asyncio.RedisCluster(host="h", max_connections=UNLIMITED))
        assert config.connection_pool_size == Config().connection_pool_size
        # Reading from replicas needs no handshake here.
        config = Config.of(redis.asyncio.RedisCluster(host="h", load_balancing_strategy=LoadBalancingStrategy.RANDOM))
        assert config.nodes == (("h", 6379),)

    def test_a_url(self) -> None:
        config = Config.of(redis.asyncio.RedisCluster.from_url(f"rediss://:{SECRET}@h:7000?socket_timeout=2"))
        assert (config.nodes, config.ssl, config.password, config.timeout) == ((("h", 7000),), True, SECRET, 2.0)

    def test_mapped_addresses(self) -> None:
        client = redis.asyncio.RedisCluster(host="h", address_remap=lambda address: ("gate", address[1]))
        config = Config.of(client)
        assert config.nodes == (("h", 6379),)
        assert config.map_address(config.nodes[0]) == ("gate", 6379)


@pytest.fixture(scope="module")
def one_node() -> Iterator[Address]:
    """The address of a cluster of one node. redis-py's client for threads asks it when it is made."""
    with Cluster(masters=1, replicas=0) as running:
        yield Address(*running.nodes[0].address)


class TestClusterClients:
    def test_options(self, one_node: Address) -> None:
        with redis.RedisCluster(
            startup_nodes=[ClusterNode(*one_node)],  # type: ignore[no-untyped-call]
            client_name="me",
            socket_timeout=7,
        ) as client:
            config = Config.of(client)
        theirs: dict[str, Any] = {"client_name": "me", "timeout": 7.0, "connect_timeout": config.connect_timeout}
        assert config == Config(topology="cluster", nodes=(Address("127.0.0.1", one_node.port),), **theirs)

    def test_a_url(self, one_node: Address) -> None:
        with redis.RedisCluster.from_url(f"redis://{one_node}?client_name=me") as client:
            config = Config.of(client)
        assert (config.topology, config.client_name, config.ssl) == ("cluster", "me", False)
        assert config.nodes == (one_node,)

    def test_a_handshake_of_the_user(self, one_node: Address) -> None:
        def greet(connection: Any) -> None:
            connection.on_connect()

        with (
            redis.RedisCluster(*one_node, redis_connect_func=greet) as client,
            pytest.raises(ConfigError, match="redis_connect_func"),
        ):
            Config.of(client)
