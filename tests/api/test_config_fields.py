"""Settings as fields: what each accepts, nodes and their addresses; and settings from a client of redis-py."""

import ast
import dataclasses
import math
import pickle
import re
import ssl
from collections.abc import Iterable
from datetime import timedelta
from functools import partial
from pathlib import Path
from string import ascii_lowercase, digits
from types import SimpleNamespace
from typing import Any, get_type_hints

import pytest
import redis.asyncio
from hypothesis import example, given
from hypothesis import strategies as st
from redis.cluster import ClusterNode, LoadBalancingStrategy

import pyredisson.asyncio
from pyredisson._settings.address import Address, AddressMap
from pyredisson._settings.config import _DURATIONS, Config
from pyredisson._settings.durations import Duration, lease_ms
from pyredisson._settings.fields import ConfigFields, Topology
from pyredisson.errors import ConfigError
from pyredisson.events import Event, Observer, handlers_of
from pyredisson.observe import PrometheusObserver
from pyredisson.testing import Cluster

SECRET = "hunter2"
PROVIDER = redis.UsernamePasswordCredentialProvider("user", SECRET)
FILE = "singleServerConfig:\n  address: redis://h:1\n"
CHECKED, BY_CA, UNCHECKED = (ssl.CERT_REQUIRED, True), (ssl.CERT_REQUIRED, False), (ssl.CERT_NONE, False)
NODES = (Address("h1", 7000), Address("h2", 7001))
SENTINEL: dict[str, Any] = {"topology": "sentinel", "nodes": NODES, "master_name": "m"}

HOSTS = st.one_of(st.ip_addresses().map(str), st.text(ascii_lowercase + digits + ".-", min_size=1, max_size=40))
PORTS = st.integers(1, 65535)

WRONG: list[tuple[str, list[Any]]] = [
    *((field, [math.nan, math.inf, -1, True, "3", None]) for field in sorted(_DURATIONS)),
    ("timeout", [0, 2**31]),  # a socket that never waits; settimeout() would wrap round and time out at once
    *(("connect_timeout", [0, 2**31]), ("ping_interval", [2**31]), ("lock_watchdog_timeout", [0, 2**52])),
    *(("fair_lock_wait_timeout", [2**52]), ("topology_refresh_interval", [0])),
    ("replicas_sync_timeout", [0, 2**31]),  # WAIT would wait for ever
    *(("retry_attempts", [-1, 1.0, True]), ("port", [0, 65536, "6379"]), ("database", [-1, 10**22])),
    *(("connection_pool_size", [0]), ("release_when_owner_ends", ["yes"]), ("socket_keepalive", [None])),
    ("name_mapper", ["prefix"]),
    ("host", ["", None, "a\udcff", "a\n", " a", "a..b"]),  # no DNS name has an empty part
    *(("password", ["secret\udcff"]), ("username", ["\udcff", b"user"]), ("path", [""])),
    *(("client_name", [3, "", "two words", "café", "a\n"]), ("announce", [1])),
    ("observer", [object(), Observer(), SimpleNamespace(acquired="no method")]),  # those of Observer do nothing
    *(("observer", [PrometheusObserver]), ("credential_provider", [redis.UsernamePasswordCredentialProvider])),
    *(("check_lock_synced_replicas", ["yes"]), ("min_synced_replicas", [0, True])),
    *(("sharded_pubsub", [True, "perhaps"]), ("address_mapper", [{"a": "b"}]), ("master_name", [b"mymaster"])),
    *(("sentinel_ssl", [None]), ("credential_provider", ["token", lambda: ("user", "token")])),
    ("server_hostname", ["h"]),  # without TLS nobody would check it
]
"""Fields, and values that they can't have."""


def checks(context: ssl.SSLContext | None) -> tuple[ssl.VerifyMode, bool] | None:
    """What TLS verifies: the certificate, and the host's name."""
    return None if context is None else (context.verify_mode, context.check_hostname)


class TestDurations:
    def test_seconds_and_whole_milliseconds(self) -> None:
        given: list[Duration] = [0, 3, 0.25, timedelta(milliseconds=1500), timedelta(0)]
        times = [Config.of(local_hand_over_time=value).local_hand_over_time for value in given]
        assert (times, {*map(type, times)}) == ([0.0, 3.0, 0.25, 1.5, 0.0], {float})
        given = [0.001, 0.0015, 1.0004, timedelta(milliseconds=1), 2**52 // 1000]
        assert [lease_ms(value) for value in given] == [1, 2, 1000, 1, 2**52 // 1000 * 1000]

    @given(st.integers(1, 2**52))
    @example(4_495_899_107_221_563)
    def test_milliseconds_survive_the_way_through_seconds(self, ms: int) -> None:
        assert lease_ms(ms / 1000) == ms


class TestFields:
    def test_the_defaults_are_those_of_the_docs(self) -> None:
        assert Config() == Config.of("redis://localhost:6379/0")
        page = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text("utf-8")
        rows = dict(re.findall(r'^\| `(\w+)` \| `?([\w" ]+)`? \|', page, re.MULTILINE))
        assert (rows.pop("nodes"), Config().nodes) == ("none", ())
        for name, text in rows.items():
            default = text.replace(" ms", "e-3").removesuffix(" s").replace("none", "None")
            assert getattr(Config(), name) == ast.literal_eval(default), name
        assert len(rows) == 19
        of_servers = ("path", "username", "password", "ssl", "ssl_context", "master_name")
        of_sentinels = ("sentinel_username", "sentinel_password", "sentinel_ssl", "sentinel_ssl_context")
        assert not any(getattr(Config(), name) for name in (*of_servers, *of_sentinels))

    @pytest.mark.parametrize(("field", "values"), WRONG)
    def test_values_that_cannot_be(self, field: str, values: list[Any]) -> None:
        for value in values:
            with pytest.raises(ConfigError, match=field):
                Config(**{field: value})

    def test_an_observer_needs_one_method(self) -> None:
        class Subclass(Observer):
            def lost(self, event: Event) -> None: ...

        for observer in (SimpleNamespace(acquired=print), Subclass()):
            assert Config(observer=observer).observer is observer
        assert set(handlers_of(Subclass())) == {"lost"}

    def test_the_password_is_never_shown(self) -> None:
        assert "credential_provider" not in repr(Config(credential_provider=PROVIDER))
        for wrong in ({"password": SECRET.encode()}, {"password": SECRET, "credential_provider": PROVIDER}):
            with pytest.raises(ConfigError) as caught:
                Config(**wrong)
            assert SECRET not in str(caught.value)

    @pytest.mark.parametrize(
        "connect", [pyredisson.connect, pyredisson.asyncio.connect, Config.of, partial(Config.from_yaml, FILE)]
    )
    @pytest.mark.parametrize(
        ("name", "meant"), [("lock_wachdog_timeout", "lock_watchdog_timeout"), ("time_out", "timeout"), ("xyzzy", None)]
    )
    def test_an_unknown_keyword(self, connect: Any, name: str, meant: str | None) -> None:
        with pytest.raises(ConfigError) as caught:
            connect(**{name: 1})
        assert str(caught.value) == f"unknown setting {name}" + (f"; did you mean {meant}?" if meant else "")

    def test_the_keywords_are_typed(self) -> None:
        fields = get_type_hints(Config)
        # What a Config converts.
        fields |= dict.fromkeys(_DURATIONS, Duration)
        fields["nodes"] = Iterable[Address | tuple[str, int] | str]
        assert get_type_hints(ConfigFields) == {each.name: fields[each.name] for each in dataclasses.fields(Config)}

    @pytest.mark.parametrize("fields", [{"password": SECRET, "database": 3}, SENTINEL | {"sentinel_password": SECRET}])
    def test_a_value_of_its_own(self, fields: dict[str, Any]) -> None:
        config = Config(**fields)
        assert (pickle.loads(pickle.dumps(config)), {config: 1}[Config(**fields)]) == (config, 1)
        assert (dataclasses.replace(config, timeout=1).nodes, SECRET in repr(config)) == (config.nodes, False)
        with pytest.raises(dataclasses.FrozenInstanceError):
            config.database = 4  # type: ignore[misc]


class TestAddress:
    @pytest.mark.parametrize(
        ("text", "host", "port"),
        [
            *(("h:1", "h", 1), ("10.0.0.1:65535", "10.0.0.1", 65535), ("[::1]:7000", "::1", 7000)),
            ("::1:7000", "::1", 7000),  # as Redis writes IPv6
            *(("fe80::1%eth0:7000", "fe80::1%eth0", 7000), ("[fe80::1%eth0]:7000", "fe80::1%eth0", 7000)),
            *(("h", "h", 6379), ("[::1]", "::1", 6379), ("::1", "::1", 6379)),
            *(("1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7:8", 6379), ("fe80::1:6380", "fe80::1", 6380)),
        ],
    )
    def test_parse(self, text: str, host: str, port: int) -> None:
        assert Address.parse(text, 6379) == (host, port)

    @pytest.mark.parametrize(
        "text",
        [
            *("", ":", ":1", "h:", "h:0", "h:65536", "h:-1", "h:+1", "h: 1", "h:1_0", "h:\u0661", "h:x", "h:000001"),
            *("[::1", "[::1]x", "[::1]:", "[::1]:x", "[h]:1", "[]:1", "a:b:1", "::g:1", f"user:{SECRET}"),
            "h:" + "9" * 5000,
        ],
    )
    def test_unreadable(self, text: str) -> None:
        with pytest.raises(ValueError, match="an address is a host and a port") as caught:
            Address.parse(text, 6379)
        assert SECRET not in str(caught.value)

    def test_other_values(self) -> None:
        for text in ("h", "[::1]", "", ":1"):
            with pytest.raises(ValueError, match="host and a port"):
                Address.parse(text)
        for value in ((), ("h",), ("h", 1, 2), ("", 1), (b"h", 1), ("h", "1"), ("h", True), "h1", None):
            with pytest.raises(ValueError, match="an address is a host and a port"):
                Address.of(value)

    @given(HOSTS, PORTS, PORTS)
    def test_text_and_back(self, host: str, port: int, default: int) -> None:
        address = Address(host, port)
        assert Address.parse(str(address)) == Address.parse(str(address), default) == address
        assert Address.parse(f"[{host}]" if ":" in host else host, default) == (host, default)

    def test_mappers(self) -> None:
        table = AddressMap({Address("a", 1): Address("b", 2)}, {"a": "c"})
        mapped = [table(Address(*each)) for each in (("a", 1), ("a", 3), ("d", 1))]
        assert [*mapped, AddressMap(other_host="e")(Address("a", 1))] == [("b", 2), ("c", 3), ("d", 1), ("e", 1)]
        for mapper in (table, AddressMap(other_host="e")):
            assert pickle.loads(pickle.dumps(mapper)) == mapper
            assert hash(Config(address_mapper=mapper)) == hash(Config(address_mapper=mapper))


class TestNodes:
    @pytest.mark.parametrize(("topology", "port"), [("cluster", 6379), ("replicated", 6379), ("sentinel", 26379)])
    def test_each_once_and_the_first_is_host_and_port(self, topology: Topology, port: int) -> None:
        fields: dict[str, Any] = {"topology": topology, "master_name": "m" if topology == "sentinel" else None}
        spelled: list[Any] = [NODES, ["h1:7000", "h2:7001"], [("h1", 7000), ["h2", 7001]]]
        for nodes in spelled:
            config = Config.of(nodes=nodes, host="ignored", port=1, **fields)
            assert (config.nodes, config.host, config.port) == (NODES, "h1", 7000)
            assert {*map(type, config.nodes)} == {Address}
        config = Config.of(nodes=["a", f"b:{port}", "[::1]", ("a", port), "b"], **fields)
        assert config.nodes == (("a", port), ("b", port), ("::1", port))

    @pytest.mark.parametrize(
        "fields",
        [
            *({"nodes": ()}, {"nodes": "h1:7000"}, {"nodes": None}, {"nodes": ["h1:x"]}, {"nodes": [3]}),
            {"nodes": ["h1:7000", " h2:7001"]},
            *({"nodes": [f":{SECRET}"]}, {"path": "/run/redis.sock"}, {"database": 1}, {"master_name": "mymaster"}),
            *({"topology": "single"}, {"topology": "sentinel"}, {"topology": "ring"}, {"topology": ["cluster"]}),
            *({"sentinel_username": "u"}, {"sentinel_password": SECRET}, {"sentinel_ssl": True}),
            {"topology": "sentinel", "master_name": ""},
            {"topology": "single", "nodes": (), "sentinel_password": SECRET},
        ],
    )
    def test_what_cannot_be(self, fields: dict[str, Any]) -> None:
        with pytest.raises(ConfigError) as caught:
            Config(**{"topology": "cluster", "nodes": NODES, **fields})
        wanted = "nodes" if {"nodes"} == set(fields) else "topology" if "topology" in fields else [*fields][-1]
        assert any(name in str(caught.value) for name in (wanted, "host", "nodes", "master_name", "sentinel_password"))
        assert SECRET not in str(caught.value)

    def test_tls(self) -> None:
        context = ssl.create_default_context()
        with pytest.raises(ConfigError, match="sentinel_ssl_context"):
            Config(**SENTINEL, sentinel_ssl_context=context)
        with pytest.raises(ConfigError, match="ssl_context"):  # it would have talked in the clear
            Config(ssl_context=context)
        with pytest.raises(ConfigError, match="unix socket"):
            Config(ssl=True, path="/run/redis.sock")
        for name in ("ssl", "sentinel_ssl"):
            with pytest.raises(ConfigError, match=rf"{name}_context must be an ssl\.SSLContext"):
                Config(**SENTINEL | {name: True, f"{name}_context": True})
        fields = SENTINEL | {"sentinel_ssl": True}
        assert Config(**fields, sentinel_ssl_context=context, server_hostname="h").sentinel_ssl_context is context
        assert Config(**fields, ssl=True, ssl_context=context).sentinel_ssl_context is context
        sentinels_only = Config(**fields)
        assert sentinels_only.ssl_context is None
        for made in (sentinels_only.sentinel_ssl_context, Config(ssl=True).ssl_context):
            assert checks(made) == CHECKED


class TestServersOfAConfig:
    @pytest.mark.parametrize(
        ("fields", "text"),
        [
            *(({}, "localhost:6379/0"), ({"host": "::1", "port": 1, "database": 2}, "[::1]:1/2")),
            ({"path": "/run/r.sock"}, "/run/r.sock/0"),
            *(({"topology": "cluster", "nodes": each}, "cluster of h1:7000, h2:7001") for each in (NODES, NODES[::-1])),
            ({"topology": "replicated", "nodes": NODES, "database": 3}, "master of h1:7000, h2:7001/3"),
            (SENTINEL | {"nodes": [("::1", 26379)]}, "m of Sentinels [::1]:26379/0"),
        ],
    )
    def test_describe(self, fields: dict[str, Any], text: str) -> None:
        assert Config(**fields).describe() == text

    def test_one_server_of_several(self) -> None:
        sentinels = SENTINEL | {"sentinel_username": "s", "sentinel_password": "p"}
        config = Config(**sentinels, database=2, credential_provider=PROVIDER, ssl=True)
        server = config.at(Address("master", 1))
        assert (server.host, server.port, server.address) == ("master", 1, "master:1")
        assert (server.database, server.credential_provider, server.topology) == (2, PROVIDER, "sentinel")
        assert server.ssl_context is config.ssl_context
        sentinel = config.at_sentinel(NODES[1])
        assert (sentinel.host, sentinel.port, sentinel.database) == ("h2", 7001, 0)
        assert (sentinel.username, sentinel.password, sentinel.credential_provider) == ("s", "p", None)
        assert (sentinel.ssl, sentinel.ssl_context) == (False, None)
        assert config.at_sentinel(NODES[1], data_credentials=True).credential_provider is PROVIDER
        assert (config.host, config.port, config.database, config.ssl) == ("h1", 7000, 2, True)

    def test_announced_addresses_are_mapped(self) -> None:
        assert Config().map_address(NODES[0]) is NODES[0]
        config = Config(address_mapper=lambda address: (address[0] + ".example", address[1] + 1))
        assert config.map_address(NODES[0]) == Address("h1.example", 7001)
        assert type(config.map_address(NODES[0])) is Address
        results: list[Any] = [None, "h1:7000", ("h1", "7000"), ("", 1), ("h", 0)]
        for wrong in results:
            with pytest.raises(ConfigError, match=r"address_mapper, for h1:7000"):
                Config(address_mapper=lambda _: wrong).map_address(NODES[0])  # noqa: B023


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


UNLIMITED = 2**31


class TestClients:
    """Settings from a client of redis-py."""

    @pytest.fixture(params=[redis, redis.asyncio], ids=["threads", "asyncio"])
    def module(self, request: pytest.FixtureRequest) -> Any:
        return request.param

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

    def test_sentinels(self, module: Any) -> None:
        common, theirs = {"username": "u", "password": "p"}, {"username": "su", "password": "sp"}
        sentinels = module.Sentinel([("s1", 1), ("s2", "2")], sentinel_kwargs=theirs, socket_timeout=7, **common)
        ours: dict[str, Any] = {"sentinel_username": "su", "sentinel_password": "sp", "timeout": 7.0, **common}
        nodes = (Address("s1", 1), Address("s2", 2))
        assert Config.of(sentinels.master_for("m", db=3, max_connections=9)) == Config(
            topology="sentinel", nodes=nodes, master_name="m", database=3, connection_pool_size=9, **ours
        )
        sentinels._force_master_ip = "10.0.0.1"  # the argument force_master_ip is not in redis-py 5
        config = Config.of(sentinels.master_for("m", credential_provider=PROVIDER, username=None, password=None))
        assert (config.credential_provider, config.address_mapper) == (PROVIDER, AddressMap(other_host="10.0.0.1"))

    def test_tls(self, module: Any) -> None:
        unchecked = {"ssl": True, "ssl_cert_reqs": "none"}
        both = module.Sentinel([("s1", 1)], sentinel_kwargs=unchecked, ssl=True).master_for("m")
        master = module.Sentinel([("s1", 1)]).master_for("m", ssl=True)
        one = (module.Redis(host="h", **unchecked), UNCHECKED, None)
        for client, servers, sentinels in (one, (both, CHECKED, UNCHECKED), (master, CHECKED, None)):
            config = Config.of(client)
            assert (checks(config.ssl_context), checks(config.sentinel_ssl_context)) == (servers, sentinels)
            assert (config.ssl, config.sentinel_ssl) == (servers is not None, sentinels is not None)

    def test_what_cannot_be_taken_over(self, module: Any) -> None:
        sentinels = module.Sentinel([("s1", 1)])
        own = module.Sentinel([("s1", 1)], sentinel_kwargs={"credential_provider": PROVIDER})
        unchecked = ("ssl_validate_ocsp", "ssl_validate_ocsp_stapled") if module is redis else ()
        for client, message in (
            *((module.Redis(ssl=True, **{option: True}), "OCSP") for option in unchecked),
            # A renewal has its own handshake.
            (module.Redis(redis_connect_func=print), "redis_connect_func"),
            (sentinels.master_for("m", redis_connect_func=print), "redis_connect_func"),
            (sentinels, r"master_for\(name\)"),
            (sentinels.slave_for("m"), "slave_for"),
            (module.Sentinel([]).master_for("m"), "no sentinels"),
            (own.master_for("m"), "credential_provider for Sentinels"),
        ):
            with pytest.raises(ConfigError, match=message):
                Config.of(client)

    def test_clusters_in_asyncio(self) -> None:
        theirs: dict[str, Any] = {"host": "h", "port": 7000, "client_name": "me", "username": "u", "password": "p"}
        theirs |= {"socket_timeout": 7, "max_connections": 9, "ssl": True, "ssl_cert_reqs": "none"}
        nodes = [redis.asyncio.cluster.ClusterNode("h2", 7001)]
        config = Config.of(redis.asyncio.RedisCluster(startup_nodes=nodes, **theirs), timeout=6)
        assert (checks(config.ssl_context), set(config.nodes)) == (UNCHECKED, {("h", 7000), ("h2", 7001)})
        assert (config.topology, config.username, config.password, config.client_name) == ("cluster", "u", "p", "me")
        assert (config.timeout, config.connection_pool_size) == (6, 9)
        config = Config.of(redis.asyncio.RedisCluster.from_url(f"rediss://:{SECRET}@h:7000?socket_timeout=2"))
        assert (config.nodes, config.ssl, config.password, config.timeout) == ((("h", 7000),), True, SECRET, 2)
        # Reading from replicas needs no handshake here.
        strategy, mapper = LoadBalancingStrategy.RANDOM, lambda address: ("gate", address[1])
        theirs = {"max_connections": UNLIMITED, "load_balancing_strategy": strategy, "address_remap": mapper}
        config = Config.of(redis.asyncio.RedisCluster(host="h", **theirs))
        assert config.connection_pool_size == Config().connection_pool_size
        assert (config.nodes, config.map_address(config.nodes[0])) == ((("h", 6379),), ("gate", 6379))

    def test_clusters_for_threads(self) -> None:
        """Such a client asks the cluster when it is made."""
        with Cluster(masters=1, replicas=0) as running:
            node = Address(*running.nodes[0].address)
            startup: list[Any] = [ClusterNode(*node)]  # type: ignore[no-untyped-call]
            with redis.RedisCluster(startup_nodes=startup, client_name="me", socket_timeout=7) as client:
                config = Config.of(client)
            theirs: dict[str, Any] = {"client_name": "me", "timeout": 7, "connect_timeout": config.connect_timeout}
            assert config == Config(topology="cluster", nodes=(node,), **theirs)
            with redis.RedisCluster.from_url(f"redis://{node}?client_name=me") as client:
                config = Config.of(client)
            assert (config.topology, config.client_name, config.ssl, config.nodes) == ("cluster", "me", False, (node,))
            # A handshake of the user.
            with (
                redis.RedisCluster(*node, redis_connect_func=lambda connection: connection.on_connect()) as client,
                pytest.raises(ConfigError, match="redis_connect_func"),
            ):
                Config.of(client)
