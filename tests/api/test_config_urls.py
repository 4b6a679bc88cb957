"""Addresses as URLs, with TLS, user names and passwords; and settings that come from a client of redis-py."""

from __future__ import annotations

import dataclasses
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
FOR_SENTINELS = "sentinel_ssl_cert_reqs=required&sentinel_ssl_check_hostname=true"
CHECKED, BY_CA, UNCHECKED = (ssl.CERT_REQUIRED, True), (ssl.CERT_REQUIRED, False), (ssl.CERT_NONE, False)


def cluster(*nodes: Any, **fields: Any) -> dict[str, Any]:
    return {"topology": "cluster", "nodes": nodes, **fields}


def sentinel(*nodes: Any, **fields: Any) -> dict[str, Any]:
    return {"topology": "sentinel", "nodes": nodes, "master_name": "m", **fields}


def checks(context: ssl.SSLContext | None) -> tuple[ssl.VerifyMode, bool] | None:
    """What TLS verifies: the certificate, and the host's name."""
    return None if context is None else (context.verify_mode, context.check_hostname)


def test_what_config_of_accepts() -> None:
    assert Config.of() == Config.of(None) == Config()
    config = Config(database=2, ssl=True)
    assert Config.of(config) is config
    assert Config.of(config, timeout=9) == dataclasses.replace(config, timeout=9.0)
    # Fields win.
    config = Config.of("redis://u:p@h/1", database=7, password="q")
    assert (config.database, config.password) == (7, "q")
    url = "redis+sentinel://:p@s1/m?sentinel_password=q"
    config = Config.of(url, master_name="n", nodes=["s2:1"], sentinel_password="r", sharded_pubsub="on")
    assert (config.master_name, config.nodes, config.host) == ("n", (("s2", 1),), "s2")
    assert (config.password, config.sentinel_password, config.sharded_pubsub) == ("p", "r", "on")
    for address in (3, b"redis://h", ["redis://h"], object(), redis.ConnectionPool()):
        with pytest.raises(TypeError, match=r"redis://.*Config.*redis\.Redis"):
            Config.of(address)


@pytest.mark.parametrize(
    ("url", "fields"),
    [
        ("redis://", {}),
        ("redis://h", {"host": "h"}),
        ("redis://h:7000/5", {"host": "h", "port": 7000, "database": 5}),
        ("redis://[::1]:7000", {"host": "::1", "port": 7000}),
        ("redis://h/?db=4", {"host": "h", "database": 4}),
        ("redis://:p%40%2F%23@h", {"host": "h", "password": "p@/#"}),
        ("redis://us%3Aer:p@h", {"host": "h", "username": "us:er", "password": "p"}),
        ("valkey://h:1", {"host": "h", "port": 1}),
        ("unix:///run/redis.sock", {"path": "/run/redis.sock"}),
        ("unix://u:p@/r.sock?db=2", {"path": "/r.sock", "database": 2, "username": "u", "password": "p"}),
        ("unix:///r.sock?password=p%25", {"path": "/r.sock", "password": "p%"}),
        ("redis://?socket_timeout=2.5&socket_connect_timeout=1", {"timeout": 2.5, "connect_timeout": 1.0}),
        ("redis://?client_name=me&max_connections=3", {"client_name": "me", "connection_pool_size": 3}),
        ("redis://?socket_keepalive=no", {"socket_keepalive": False}),
        ("redis://?decode_responses=True&protocol=3&health_check_interval=9&retry_on_timeout=1&encoding=x", {}),
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
            {"topology": "replicated", "nodes": (("h1", 6379), ("h2", 1)), "database": 3, "password": "p"},
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
def test_urls(url: str, fields: dict[str, Any]) -> None:
    assert Config.of(url) == Config(**fields)


class TestTls:
    @pytest.mark.parametrize(
        ("url", "servers", "sentinels"),
        [
            ("redis://h", None, None),
            ("rediss://h:6380", CHECKED, None),
            ("rediss://h?ssl_cert_reqs=none", UNCHECKED, None),
            ("rediss://h?ssl_check_hostname=false", BY_CA, None),
            ("rediss+cluster://h?ssl_cert_reqs=none", UNCHECKED, None),
            ("rediss+replicated://h?ssl_cert_reqs=none", UNCHECKED, None),
            ("valkeys+cluster://h?ssl_cert_reqs=none", UNCHECKED, None),
            ("rediss+sentinel://s/m", CHECKED, None),
            ("redis+sentinel://s/m?sentinel_ssl=true&sentinel_ssl_check_hostname=false", None, BY_CA),
            ("redis+sentinel://s/m?sentinel_ssl=True", None, CHECKED),
            ("redis+sentinel://s/m?sentinel_ssl=1", None, CHECKED),
            ("redis+sentinel://s/m?sentinel_ssl=yes", None, CHECKED),
            # The options are for both, unless the Sentinels have their own.
            ("redis+sentinel://s/m?sentinel_ssl=true&ssl_cert_reqs=none", None, UNCHECKED),
            (f"rediss+sentinel://s/m?sentinel_ssl=1&ssl_cert_reqs=none&{FOR_SENTINELS}", UNCHECKED, CHECKED),
        ],
    )
    def test_what_is_verified(self, url: str, servers: Any, sentinels: Any) -> None:
        config = Config.of(url)
        assert (checks(config.ssl_context), checks(config.sentinel_ssl_context)) == (servers, sentinels)
        assert (config.ssl, config.sentinel_ssl) == (servers is not None, sentinels is not None)

    def test_the_version(self) -> None:
        context = Config.of("rediss://h:6380?ssl_min_version=772").ssl_context
        assert context is not None
        assert context.minimum_version is ssl.TLSVersion.TLSv1_3


SEVERAL = r"host:port,host:port"
BAD_TLS = [
    *("ssl_cert_reqs=perhaps", "ssl_ca_certs=/no/such/file", "ssl_keyfile=/no/such/file"),
    *("ssl_ciphers=none-such", "ssl_min_version=1"),
]


@pytest.mark.parametrize(
    ("message", "urls"),
    [
        ("frobnicate", ["redis://h?frobnicate=1", "redis+cluster://h?frobnicate=1"]),
        ("sentinel_frobnicate", ["redis+sentinel://h/m?sentinel_frobnicate=1"]),
        ("TLS", [f"rediss://h?{option}" for option in BAD_TLS]),
        ("TLS", ["redis+sentinel://h/m?sentinel_ssl=1&sentinel_ssl_ca_certs=/no/such/file"]),
        ("OCSP", ["rediss://h?ssl_validate_ocsp=True", "rediss://h?ssl_validate_ocsp_stapled=True"]),
        (rf"redis\+cluster://user:password@{SEVERAL}", [f"redis+cluster://{nodes}" for nodes in ("", "/", ",")]),
        (rf"{SEVERAL}/master", [f"redis+sentinel://s1{master}" for master in ("", "/", "/m/x", "/m/1/2")]),
        ("database must be 0 in a cluster", ["redis+cluster://h/5", "redis+cluster://h?db=5"]),
        ("host, port and path", [f"redis+cluster://h?{option}" for option in ("host=x", "port=1", "path=x")]),
        ("sentinel_ssl", ["redis+cluster://h?sentinel_ssl=true"]),
        (
            "sentinel_ssl must be true or false",
            ["redis+sentinel://h/m?sentinel_ssl=perhaps", "redis+sentinel://h/m?sentinel_ssl"],
        ),
        ("sentinel_ssl_ca_certs: needs sentinel_ssl=true", ["redis+sentinel://h/m?sentinel_ssl_ca_certs=x"]),
        ("URL", ["redis+ring://h", "unix+cluster:///run/r.sock"]),
    ],
)
def test_what_cannot_be_used(message: str, urls: list[str]) -> None:
    for url in urls:
        with pytest.raises(ConfigError, match=message):
            Config.of(url)


BAD_URLS = """
    localhost  http://h  REDIS://h  redis://:{0}@h:port  redis://:{0}#@h  redis://:{0}/x@h  redis://u:{0}?@h
    redis://:{0}@h/db  redis://:{0}@h/1/2x  redis://:{0}@h/1#x  redis://:{0}@[::1  redis://:{0}@h?db=x
    redis://:{0}@h?socket_timeout=soon  redis://:{0}@h?frobnicate=1  redis://:{0}@h:99999  redis://:{0}@h:0
    redis://:1?{0}@h  redis://:1?{0}=x@h  unix://:{0}@run/redis.sock  unix://:{0}@
"""
BAD_RESTS = """
    :{0}@h:port/m  :{0}#@h/m  :{0}/x@h/m  u:{0}?@h/m  :{0}@h/m/x/y  :{0}@[::1/m  :{0}@h/m?db=x
    :{0}@h/m?socket_timeout=soon  :{0}@h/m#x  :{0}@h/m?frobnicate=1  :{0}@h:0/m  :{0}@h1,,h2/m  :{0}@/m  :{0}/m
    u:1?{0}@h/m  u:1?{0}=x@h/m  a:{0}@h1,b:{0}@h2/m  a:{0}@b@h/m  :{0}[@h/m
"""
SCHEMES = ("redis+cluster", "rediss+cluster", "redis+sentinel", "redis+replicated")


@pytest.mark.parametrize(
    "url",
    ["", *BAD_URLS.format(SECRET).split()]
    + [f"{scheme}://{rest}" for scheme in SCHEMES for rest in BAD_RESTS.format(SECRET).split()],
)
def test_bad_urls_do_not_give_the_password_away(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config.of(url)
    assert SECRET not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


PROVIDER = redis.UsernamePasswordCredentialProvider("user", SECRET)
UNLIMITED = 2**31
modules = pytest.mark.parametrize("module", [redis, redis.asyncio], ids=["threads", "asyncio"])


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

    def test_pools(self, module: Any) -> None:
        pool = module.BlockingConnectionPool.from_url("rediss://:p@h/3?timeout=1", max_connections=5)
        config = Config.of(module.Redis(connection_pool=pool), host="other")
        assert checks(config.ssl_context) == CHECKED
        assert (config.host, config.database, config.password) == ("other", 3, "p")
        assert (config.ssl, config.connection_pool_size, config.timeout) == (True, 5, 3.0)

    def test_what_cannot_be_taken_over(self, module: Any) -> None:
        """A renewal has its own handshake."""
        with pytest.raises(ConfigError, match="redis_connect_func"):
            Config.of(module.Redis(redis_connect_func=print))
        for option in ("ssl_validate_ocsp", "ssl_validate_ocsp_stapled") if module is redis else ():
            with pytest.raises(ConfigError, match="OCSP"):
                Config.of(module.Redis(ssl=True, **{option: True}))


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
        one = module.Redis(host="h", ssl=True, ssl_cert_reqs="none")
        both = module.Sentinel([("s1", 1)], sentinel_kwargs={"ssl": True, "ssl_cert_reqs": "none"}, ssl=True)
        master = module.Sentinel([("s1", 1)]).master_for("m", ssl=True)
        for client, servers, sentinels in (
            (one, UNCHECKED, None),
            (both.master_for("m"), CHECKED, UNCHECKED),
            (master, CHECKED, None),
        ):
            config = Config.of(client)
            assert (checks(config.ssl_context), checks(config.sentinel_ssl_context)) == (servers, sentinels)
            assert (config.ssl, config.sentinel_ssl) == (servers is not None, sentinels is not None)

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
        sentinels._force_master_ip = "10.0.0.1"  # the argument force_master_ip is not in redis-py 5
        assert Config.of(sentinels.master_for("m")).address_mapper == OneHost("10.0.0.1")


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
        assert checks(config.ssl_context) == UNCHECKED
        assert set(config.nodes) == {("h", 7000), ("h2", 7001)}
        assert (config.topology, config.username, config.password, config.client_name) == ("cluster", "u", "p", "me")
        assert (config.timeout, config.connection_pool_size) == (6.0, 9)

    def test_what_has_no_meaning_here(self) -> None:
        config = Config.of(redis.asyncio.RedisCluster(host="h", max_connections=UNLIMITED))
        assert config.connection_pool_size == Config().connection_pool_size
        # Reading from replicas needs no handshake here.
        config = Config.of(redis.asyncio.RedisCluster(host="h", load_balancing_strategy=LoadBalancingStrategy.RANDOM))
        assert config.nodes == (("h", 6379),)

    def test_a_url_and_mapped_addresses(self) -> None:
        config = Config.of(redis.asyncio.RedisCluster.from_url(f"rediss://:{SECRET}@h:7000?socket_timeout=2"))
        assert (config.nodes, config.ssl, config.password, config.timeout) == ((("h", 7000),), True, SECRET, 2)
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
