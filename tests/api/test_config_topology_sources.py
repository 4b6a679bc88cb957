"""Settings of several servers from URLs and from clients of redis-py."""

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
MODULES: list[Any] = [redis, redis.asyncio]


def cluster(*nodes: Any, **fields: Any) -> Config:
    return Config(topology="cluster", nodes=nodes, **fields)


def sentinel(*nodes: Any, **fields: Any) -> Config:
    return Config(topology="sentinel", nodes=nodes, **{"master_name": "m", **fields})


class TestUrls:
    @pytest.mark.parametrize(
        ("url", "config"),
        [
            ("redis+cluster://h1:7000,h2:7001", cluster(("h1", 7000), ("h2", 7001))),
            ("redis+cluster://h1,[::1],10.0.0.1:7/", cluster(("h1", 6379), ("::1", 6379), ("10.0.0.1", 7))),
            ("redis+cluster://[fe80::1%25eth0]:7000", cluster(("fe80::1%eth0", 7000))),
            ("redis+cluster://h/0?db=0", cluster(("h", 6379))),
            ("redis+cluster://u%3Aser:p%40%2F%23%2C@h", cluster(("h", 6379), username="u:ser", password="p@/#,")),
            ("redis+cluster://:p,q@h1,h2", cluster(("h1", 6379), ("h2", 6379), password="p,q")),
            ("redis+cluster://@h", cluster(("h", 6379))),
            ("redis+cluster://h?socket_timeout=2&client_name=a", cluster(("h", 6379), timeout=2, client_name="a")),
            ("redis+cluster://h?username=u&password=p@q", cluster(("h", 6379), username="u", password="p@q")),
            ("valkey+cluster://h", cluster(("h", 6379))),
            (
                "redis+replicated://:p@h1,h2:1/3",
                Config(topology="replicated", nodes=(("h1", 6379), ("h2", 1)), database=3, password="p"),  # type: ignore[arg-type]
            ),
            ("redis+sentinel://s1,s2:5/m", sentinel(("s1", 26379), ("s2", 5))),
            ("redis+sentinel://s1/my%2Fm%40/2", sentinel(("s1", 26379), master_name="my/m@", database=2)),
            ("redis+sentinel://u:p@s1/m/?db=4", sentinel(("s1", 26379), database=4, username="u", password="p")),
            (
                "redis+sentinel://s1/m?sentinel_username=a%26b&sentinel_password=c%25d@e+f&sentinel_ssl=no",
                sentinel(("s1", 26379), sentinel_username="a&b", sentinel_password="c%d@e f"),
            ),
        ],
    )
    def test_urls(self, url: str, config: Config) -> None:
        assert Config.of(url) == config

    def test_fields_win(self) -> None:
        url = "redis+sentinel://:p@s1/m?sentinel_password=q"
        config = Config.of(url, master_name="n", nodes=["s2:1"], sentinel_password="r", sharded_pubsub="on")
        assert (config.master_name, config.nodes, config.host) == ("n", (("s2", 1),), "s2")
        assert (config.password, config.sentinel_password, config.sharded_pubsub) == ("p", "r", "on")

    def test_tls_of_the_servers(self) -> None:
        for scheme in ("rediss+cluster", "rediss+replicated", "valkeys+cluster"):
            context = Config.of(f"{scheme}://h?ssl_cert_reqs=none").ssl_context
            assert context is not None
            assert context.verify_mode is ssl.CERT_NONE
        config = Config.of("rediss+sentinel://s/m")
        assert (config.ssl, config.sentinel_ssl) == (True, False)

    @pytest.mark.parametrize("ssl_value", ["true", "True", "1", "yes"])
    def test_tls_of_the_sentinels(self, ssl_value: str) -> None:
        config = Config.of(f"redis+sentinel://s/m?sentinel_ssl={ssl_value}&sentinel_ssl_check_hostname=false")
        assert (config.ssl, config.ssl_context) == (False, None)
        assert config.sentinel_ssl_context is not None
        assert not config.sentinel_ssl_context.check_hostname

    def test_tls_options_are_for_both_unless_the_sentinels_have_their_own(self) -> None:
        config = Config.of("rediss+sentinel://s/m?sentinel_ssl=true&ssl_cert_reqs=none&sentinel_ssl_cert_reqs=required")
        assert config.ssl_context is not None
        assert config.sentinel_ssl_context is not None
        modes = (config.ssl_context.verify_mode, config.sentinel_ssl_context.verify_mode)
        assert modes == (ssl.CERT_NONE, ssl.CERT_REQUIRED)
        config = Config.of("redis+sentinel://s/m?sentinel_ssl=true&ssl_cert_reqs=none")
        assert config.sentinel_ssl_context is not None
        assert config.sentinel_ssl_context.verify_mode is ssl.CERT_NONE

    @pytest.mark.parametrize(
        ("url", "message"),
        [
            *(
                (f"redis+cluster://{rest}", r"redis\+cluster://user:password@host:port,host:port")
                for rest in ("", "/", ",")
            ),
            ("redis+sentinel://s1", r"host:port,host:port/master"),
            ("redis+sentinel://s1/", r"host:port,host:port/master"),
            ("redis+sentinel://s1/m/x", r"host:port,host:port/master"),
            ("redis+sentinel://s1/m/1/2", r"host:port,host:port/master"),
            ("redis+cluster://h/5", "database must be 0 in a cluster"),
            ("redis+cluster://h?db=5", "database must be 0 in a cluster"),
            ("redis+cluster://h?host=x", "host, port and path"),
            ("redis+cluster://h?port=1", "host, port and path"),
            ("redis+cluster://h?path=x", "host, port and path"),
            ("redis+cluster://h?frobnicate=1", "frobnicate"),
            ("redis+cluster://h?sentinel_ssl=true", "sentinel_ssl"),
            ("redis+sentinel://h/m?sentinel_frobnicate=1", "sentinel_frobnicate"),
            ("redis+sentinel://h/m?sentinel_ssl=perhaps", "sentinel_ssl must be true or false"),
            ("redis+sentinel://h/m?sentinel_ssl", "sentinel_ssl must be true or false"),
            ("redis+sentinel://h/m?sentinel_ssl_ca_certs=x", "sentinel_ssl_ca_certs: needs sentinel_ssl=true"),
            ("redis+sentinel://h/m?sentinel_ssl=1&sentinel_ssl_ca_certs=/no/such/file", "TLS"),
            ("redis+ring://h", "URL"),
            ("unix+cluster:///run/r.sock", "URL"),
        ],
    )
    def test_what_cannot_be_used(self, url: str, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            Config.of(url)

    @pytest.mark.parametrize("scheme", ["redis+cluster", "rediss+cluster", "redis+sentinel", "redis+replicated"])
    @pytest.mark.parametrize(
        "rest",
        [
            *(f":{SECRET}@h:port/m", f":{SECRET}#@h/m", f":{SECRET}/x@h/m", f"u:{SECRET}?@h/m", f":{SECRET}@h/m/x/y"),
            *(f":{SECRET}@[::1/m", f":{SECRET}@h/m?db=x", f":{SECRET}@h/m?socket_timeout=soon", f":{SECRET}@h/m#x"),
            *(
                f":{SECRET}@h/m?frobnicate=1",
                f":{SECRET}@h:0/m",
                f":{SECRET}@h1,,h2/m",
                f":{SECRET}@/m",
                f":{SECRET}/m",
            ),
            *(f"u:1?{SECRET}@h/m", f"u:1?{SECRET}=x@h/m", f"a:{SECRET}@h1,b:{SECRET}@h2/m", f"a:{SECRET}@b@h/m"),
            f":{SECRET}[@h/m",
        ],
    )
    def test_bad_urls_do_not_give_the_password_away(self, scheme: str, rest: str) -> None:
        with pytest.raises(ConfigError) as caught:
            Config.of(f"{scheme}://{rest}")
        assert SECRET not in str(caught.value)
        assert caught.value.__suppress_context__ or caught.value.__context__ is None


class TestSentinelClients:
    @pytest.mark.parametrize("module", MODULES)
    def test_a_master(self, module: Any) -> None:
        sentinels = module.Sentinel(
            [("s1", 1), ("s2", "2")],
            sentinel_kwargs={"username": "su", "password": "sp"},
            username="u",
            password="p",
            socket_timeout=7,
        )
        config = Config.of(sentinels.master_for("m", db=3, max_connections=9))
        assert config == sentinel(
            ("s1", 1),
            ("s2", 2),
            username="u",
            password="p",
            timeout=7.0,
            database=3,
            connection_pool_size=9,
            sentinel_username="su",
            sentinel_password="sp",
        )

    @pytest.mark.parametrize("module", MODULES)
    def test_tls(self, module: Any) -> None:
        sentinels = module.Sentinel([("s1", 1)], sentinel_kwargs={"ssl": True, "ssl_cert_reqs": "none"}, ssl=True)
        config = Config.of(sentinels.master_for("m"))
        assert config.ssl_context is not None
        assert config.ssl_context.verify_mode is ssl.CERT_REQUIRED
        assert config.sentinel_ssl_context is not None
        assert config.sentinel_ssl_context.verify_mode is ssl.CERT_NONE
        config = Config.of(module.Sentinel([("s1", 1)]).master_for("m", ssl=True))
        assert (config.ssl, config.sentinel_ssl) == (True, False)

    @pytest.mark.parametrize("module", MODULES)
    def test_one_host_for_all_masters(self, module: Any) -> None:
        sentinels = module.Sentinel([("s1", 1)])
        sentinels._force_master_ip = "10.0.0.1"  # the argument force_master_ip is not in redis-py 5
        assert Config.of(sentinels.master_for("m")).address_mapper == OneHost("10.0.0.1")

    @pytest.mark.parametrize("module", MODULES)
    def test_what_cannot_be_taken_over(self, module: Any) -> None:
        sentinels = module.Sentinel([("s1", 1)])
        with pytest.raises(ConfigError, match=r"master_for\(name\)"):
            Config.of(sentinels)
        with pytest.raises(ConfigError, match="slave_for"):
            Config.of(sentinels.slave_for("m"))
        with pytest.raises(ConfigError, match="redis_connect_func"):
            Config.of(sentinels.master_for("m", redis_connect_func=print))
        with pytest.raises(ConfigError, match="no sentinels"):
            Config.of(module.Sentinel([]).master_for("m"))
        provider = redis.UsernamePasswordCredentialProvider("user", SECRET)
        with pytest.raises(ConfigError, match="credential_provider for Sentinels"):
            Config.of(module.Sentinel([("s1", 1)], sentinel_kwargs={"credential_provider": provider}).master_for("m"))
        assert Config.of(sentinels.master_for("m", credential_provider=provider)).credential_provider is provider


@pytest.fixture(scope="module")
def one_node() -> Iterator[Address]:
    """The address of a cluster of one node. redis-py's client for threads asks it when it is made."""
    with Cluster(masters=1, replicas=0) as running:
        yield Address(*running.nodes[0].address)


class TestClusterClients:
    def test_asyncio(self) -> None:
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
        assert config.ssl_context is not None
        assert config.ssl_context.verify_mode is ssl.CERT_NONE
        assert set(config.nodes) == {("h", 7000), ("h2", 7001)}
        assert (config.topology, config.username, config.password, config.client_name) == ("cluster", "u", "p", "me")
        assert (config.timeout, config.connection_pool_size) == (6.0, 9)

    def test_an_unlimited_pool(self) -> None:
        client = redis.asyncio.RedisCluster(host="h", max_connections=2**31)
        assert Config.of(client).connection_pool_size == Config().connection_pool_size

    def test_asyncio_from_a_url(self) -> None:
        config = Config.of(redis.asyncio.RedisCluster.from_url(f"rediss://:{SECRET}@h:7000?socket_timeout=2"))
        assert (config.nodes, config.ssl, config.password, config.timeout) == ((("h", 7000),), True, SECRET, 2.0)

    def test_reading_from_replicas_needs_no_handshake_here(self) -> None:
        config = Config.of(redis.asyncio.RedisCluster(host="h", load_balancing_strategy=LoadBalancingStrategy.RANDOM))
        assert config.nodes == (("h", 6379),)

    def test_mapped_addresses(self) -> None:
        client = redis.asyncio.RedisCluster(host="h", address_remap=lambda address: ("gate", address[1]))
        config = Config.of(client)
        assert config.nodes == (("h", 6379),)
        assert config.map_address(config.nodes[0]) == ("gate", 6379)

    def test_threads(self, one_node: Address) -> None:
        with redis.RedisCluster(
            startup_nodes=[ClusterNode(*one_node)],  # type: ignore[no-untyped-call]
            client_name="me",
            socket_timeout=7,
        ) as client:
            config = Config.of(client)
        assert config == cluster(
            ("127.0.0.1", one_node.port), client_name="me", timeout=7.0, connect_timeout=config.connect_timeout
        )

    def test_threads_from_a_url(self, one_node: Address) -> None:
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
