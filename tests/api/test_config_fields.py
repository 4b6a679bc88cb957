"""Settings as fields: durations, what each field accepts, nodes and their addresses, and what describes them."""

from __future__ import annotations

import dataclasses
import math
import pickle
import ssl
from collections.abc import Iterable
from datetime import timedelta
from functools import partial
from string import ascii_lowercase, digits
from types import SimpleNamespace
from typing import Any, get_type_hints

import pytest
import redis
import redis.asyncio
from hypothesis import example, given
from hypothesis import strategies as st

import pyredisson.asyncio
from pyredisson._settings.address import Address, AddressMap, OneHost
from pyredisson._settings.config import _DURATIONS, Config
from pyredisson._settings.durations import Duration, lease_ms
from pyredisson._settings.fields import ConfigFields, Topology
from pyredisson.errors import ConfigError
from pyredisson.events import Event, Observer, handlers_of

SECRET = "hunter2"
FILE = "singleServerConfig:\n  address: redis://h:1\n"


NODES = (Address("h1", 7000), Address("h2", 7001))
SENTINEL: dict[str, Any] = {"topology": "sentinel", "nodes": NODES, "master_name": "m"}


WRONG: list[tuple[str, list[Any]]] = [
    *((field, [math.nan, math.inf, -1, True, "3", None]) for field in sorted(_DURATIONS)),
    ("timeout", [0, 2**31]),  # a socket that never waits; settimeout() would wrap round and time out at once
    ("connect_timeout", [0, 2**31]),
    ("ping_interval", [2**31]),
    ("lock_watchdog_timeout", [0, 2**52]),
    ("fair_lock_wait_timeout", [2**52]),
    ("topology_refresh_interval", [0]),
    ("replicas_sync_timeout", [0, 2**31]),  # WAIT would wait for ever
    ("retry_attempts", [-1, 1.0, True]),
    ("port", [0, 65536, "6379"]),
    ("database", [-1]),
    ("connection_pool_size", [0]),
    ("release_when_owner_ends", ["yes"]),
    ("socket_keepalive", [None]),
    ("name_mapper", ["prefix"]),
    ("host", ["", None, "a\udcff", "a..b"]),  # no DNS name has an empty part
    ("password", ["secret\udcff"]),
    ("username", ["\udcff", b"user"]),
    ("path", [""]),
    ("client_name", [3, "", "two words", "café", "a\n"]),
    ("announce", [1]),
    ("observer", [object(), Observer(), SimpleNamespace(acquired="no method")]),  # those of Observer do nothing
    ("check_lock_synced_replicas", ["yes"]),
    ("min_synced_replicas", [0, True]),
    ("sharded_pubsub", [True, "perhaps"]),
    ("address_mapper", [{"a": "b"}]),
    ("master_name", [b"mymaster"]),
    ("sentinel_ssl", [None]),
]
"""Fields, and values that they can't have."""


class TestDurations:
    @pytest.mark.parametrize(
        ("value", "expected"),
        [(0, 0.0), (3, 3.0), (0.25, 0.25), (timedelta(milliseconds=1500), 1.5), (timedelta(0), 0.0)],
    )
    def test_seconds(self, value: float | timedelta, expected: float) -> None:
        config = Config.of(local_hand_over_time=value)
        assert config.local_hand_over_time == expected
        assert type(config.local_hand_over_time) is float

    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            (0.001, 1),
            (0.0015, 2),
            (1.0004, 1000),
            (timedelta(milliseconds=1), 1),
            (2**52 // 1000, 2**52 // 1000 * 1000),
        ],
    )
    def test_whole_milliseconds(self, value: float | timedelta, expected: int) -> None:
        assert lease_ms(value) == expected

    @given(st.integers(1, 2**52))
    @example(4_495_899_107_221_563)
    def test_milliseconds_survive_the_way_through_seconds(self, ms: int) -> None:
        assert lease_ms(ms / 1000) == ms


class TestFields:
    def test_defaults(self) -> None:
        config = Config()
        assert (config.host, config.port, config.path, config.database) == ("localhost", 6379, None, 0)
        assert (config.lock_watchdog_timeout, config.fair_lock_wait_timeout) == (30.0, 300.0)
        assert (config.retry_attempts, config.name_mapper) == (4, None)
        assert (config.connect_timeout, config.timeout) == (10.0, 3.0)
        assert (config.ssl, config.ssl_context) == (False, None)
        assert (config.topology, config.nodes, config.master_name) == ("single", (), None)
        assert (config.sentinel_username, config.sentinel_password, config.sentinel_ssl) == (None, None, False)
        assert (config.topology_refresh_interval, config.address_mapper, config.sharded_pubsub) == (5.0, None, "auto")
        assert (config.check_lock_synced_replicas, config.replicas_sync_timeout) == (True, 1.0)
        assert config.min_synced_replicas == 1

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
        provider = redis.UsernamePasswordCredentialProvider("user", SECRET)
        assert "credential_provider" not in repr(Config(credential_provider=provider))
        for wrong in ({"password": SECRET.encode()}, {"password": SECRET, "credential_provider": provider}):
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

    @pytest.mark.parametrize(
        "fields",
        [{"password": SECRET, "database": 3}, SENTINEL | {"sentinel_password": SECRET}],
        ids=["one", "several"],
    )
    def test_a_value_of_its_own(self, fields: dict[str, Any]) -> None:
        config = Config(**fields)
        assert pickle.loads(pickle.dumps(config)) == config
        assert {config: 1}[Config(**fields)] == 1
        assert dataclasses.replace(config, timeout=1).nodes == config.nodes
        assert SECRET not in repr(config)
        with pytest.raises(dataclasses.FrozenInstanceError):
            config.database = 4  # type: ignore[misc]


class TestAddress:
    @pytest.mark.parametrize(
        ("text", "host", "port"),
        [
            ("h:1", "h", 1),
            ("10.0.0.1:65535", "10.0.0.1", 65535),
            ("[::1]:7000", "::1", 7000),
            ("::1:7000", "::1", 7000),  # as Redis writes IPv6
            ("fe80::1%eth0:7000", "fe80::1%eth0", 7000),
            ("[fe80::1%eth0]:7000", "fe80::1%eth0", 7000),
            ("h", "h", 6379),
            ("[::1]", "::1", 6379),
            ("::1", "::1", 6379),
            ("1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7:8", 6379),
            ("fe80::1:6380", "fe80::1", 6380),
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

    @given(
        st.one_of(st.ip_addresses().map(str), st.text(ascii_lowercase + digits + ".-", min_size=1, max_size=40)),
        st.integers(1, 65535),
        st.integers(1, 65535),
    )
    def test_text_and_back(self, host: str, port: int, default: int) -> None:
        address = Address(host, port)
        assert Address.parse(str(address)) == Address.parse(str(address), default) == address
        assert Address.parse(f"[{host}]" if ":" in host else host, default) == (host, default)

    def test_mappers(self) -> None:
        table = AddressMap({Address("a", 1): Address("b", 2)}, {"a": "c"})
        assert table(Address("a", 1)) == ("b", 2)
        assert table(Address("a", 3)) == ("c", 3)
        assert table(Address("d", 1)) == ("d", 1)
        assert OneHost("e")(Address("a", 1)) == ("e", 1)
        for mapper in (table, OneHost("e")):
            assert pickle.loads(pickle.dumps(mapper)) == mapper
            assert hash(Config(address_mapper=mapper)) == hash(Config(address_mapper=mapper))


class TestNodes:
    @pytest.mark.parametrize(("topology", "port"), [("cluster", 6379), ("replicated", 6379), ("sentinel", 26379)])
    def test_each_once_and_the_first_is_host_and_port(self, topology: Topology, port: int) -> None:
        fields: dict[str, Any] = {"topology": topology, "master_name": "m" if topology == "sentinel" else None}
        spelled: list[Any] = [NODES, ["h1:7000", "h2:7001"], [("h1", 7000), ["h2", 7001]]]
        for nodes in spelled:
            config = Config.of(nodes=nodes, host="ignored", port=1, **fields)
            assert config.nodes == NODES
            assert (config.host, config.port) == ("h1", 7000)
            assert all(type(node) is Address for node in config.nodes)
        config = Config.of(nodes=["a", f"b:{port}", "[::1]", ("a", port), "b"], **fields)
        assert config.nodes == (("a", port), ("b", port), ("::1", port))

    @pytest.mark.parametrize(
        "fields",
        [
            *({"nodes": ()}, {"nodes": "h1:7000"}, {"nodes": None}, {"nodes": ["h1:x"]}, {"nodes": [3]}),
            {"nodes": [f":{SECRET}"]},
            {"nodes": NODES, "topology": "single"},
            {"nodes": NODES, "path": "/run/redis.sock"},
            {"nodes": NODES, "database": 1},
            {"nodes": NODES, "topology": "sentinel"},
            {"nodes": NODES, "topology": "sentinel", "master_name": ""},
            {"nodes": NODES, "topology": "ring"},
            {"nodes": NODES, "topology": ["cluster"]},
            {"nodes": NODES, "master_name": "mymaster"},
            {"nodes": NODES, "sentinel_username": "u"},
            {"nodes": NODES, "sentinel_password": SECRET},
            {"nodes": NODES, "sentinel_ssl": True},
            {"topology": "single", "sentinel_password": SECRET},
        ],
    )
    def test_what_cannot_be(self, fields: dict[str, Any]) -> None:
        with pytest.raises(ConfigError) as caught:
            Config(**{"topology": "cluster", **fields})
        wanted = "nodes" if {"nodes"} == set(fields) else "topology" if "topology" in fields else [*fields][-1]
        assert any(name in str(caught.value) for name in (wanted, "nodes", "master_name", "sentinel_password"))
        assert SECRET not in str(caught.value)

    def test_tls(self) -> None:
        context = ssl.create_default_context()
        with pytest.raises(ConfigError, match="sentinel_ssl_context"):
            Config(**SENTINEL, sentinel_ssl_context=context)
        with pytest.raises(ConfigError, match="ssl_context"):  # it would have talked in the clear
            Config(ssl_context=context)
        with pytest.raises(ConfigError, match="unix socket"):
            Config(ssl=True, path="/run/redis.sock")
        fields = SENTINEL | {"sentinel_ssl": True}
        assert Config(**fields, sentinel_ssl_context=context).sentinel_ssl_context is context
        assert Config(**fields, ssl=True, ssl_context=context).sentinel_ssl_context is context
        sentinels_only = Config(**fields)
        assert sentinels_only.ssl_context is None
        for made in (sentinels_only.sentinel_ssl_context, Config(ssl=True).ssl_context):
            assert made is not None
            assert (made.verify_mode, made.check_hostname) == (ssl.CERT_REQUIRED, True)


class TestServersOfAConfig:
    @pytest.mark.parametrize(
        ("fields", "text"),
        [
            ({}, "localhost:6379/0"),
            ({"host": "::1", "port": 1, "database": 2}, "[::1]:1/2"),
            ({"path": "/run/r.sock"}, "/run/r.sock/0"),
            ({"topology": "cluster", "nodes": NODES}, "cluster of h1:7000, h2:7001"),
            ({"topology": "cluster", "nodes": NODES[::-1]}, "cluster of h1:7000, h2:7001"),
            ({"topology": "replicated", "nodes": NODES, "database": 3}, "master of h1:7000, h2:7001/3"),
            (SENTINEL | {"nodes": [("::1", 26379)]}, "m of Sentinels [::1]:26379/0"),
        ],
    )
    def test_describe(self, fields: dict[str, Any], text: str) -> None:
        assert Config(**fields).describe() == text

    def test_one_server_of_several(self) -> None:
        provider = redis.UsernamePasswordCredentialProvider("u", SECRET)
        sentinels = SENTINEL | {"sentinel_username": "s", "sentinel_password": "p"}
        config = Config(**sentinels, database=2, credential_provider=provider, ssl=True)
        server = config.at(Address("master", 1))
        assert (server.host, server.port, server.address) == ("master", 1, "master:1")
        assert (server.database, server.credential_provider, server.topology) == (2, provider, "sentinel")
        assert server.ssl_context is config.ssl_context
        sentinel = config.at_sentinel(NODES[1])
        assert (sentinel.host, sentinel.port, sentinel.database) == ("h2", 7001, 0)
        assert (sentinel.username, sentinel.password, sentinel.credential_provider) == ("s", "p", None)
        assert (sentinel.ssl, sentinel.ssl_context) == (False, None)
        assert config.at_sentinel(NODES[1], data_credentials=True).credential_provider is provider
        assert (config.host, config.port, config.database, config.ssl) == ("h1", 7000, 2, True)

    def test_announced_addresses_are_mapped(self) -> None:
        assert Config().map_address(NODES[0]) is NODES[0]
        config = Config(address_mapper=lambda address: (address[0] + ".example", address[1] + 1))
        assert config.map_address(NODES[0]) == Address("h1.example", 7001)
        assert type(config.map_address(NODES[0])) is Address

        wrong_results: list[Any] = [None, "h1:7000", ("h1", "7000"), ("", 1), ("h", 0)]
        for wrong in wrong_results:
            config = Config(address_mapper=lambda _: wrong)  # noqa: B023
            with pytest.raises(ConfigError, match=r"address_mapper, for h1:7000"):
                config.map_address(NODES[0])
