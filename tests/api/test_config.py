"""Durations, addresses, redis-py clients and Redisson's YAML: what is taken over, and what is refused how."""

from __future__ import annotations

import dataclasses
import io
import logging
import math
import pickle
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from hypothesis import example, given
from hypothesis import strategies as st

from pyredisson._settings.config import Config
from pyredisson._settings.durations import lease_ms, seconds
from pyredisson.errors import ConfigError
from pyredisson.testing import Server

SECRET = "hunter2"


class TestSeconds:
    @pytest.mark.parametrize(
        ("value", "expected"),
        [(0, 0.0), (3, 3.0), (0.25, 0.25), (timedelta(milliseconds=1500), 1.5), (timedelta(0), 0.0)],
    )
    def test_numbers_and_timedeltas(self, value: float | timedelta, expected: float) -> None:
        result = seconds(value, "wait_time")
        assert result == expected
        assert type(result) is float

    @pytest.mark.parametrize("value", [True, False, None, "1", b"1", 1j, [1]])
    def test_other_types(self, value: Any) -> None:
        with pytest.raises(TypeError, match="wait_time"):
            seconds(value, "wait_time")

    @pytest.mark.parametrize(
        "value",
        [
            math.nan,
            -1,
            -0.001,
            timedelta(seconds=-1),
            -math.inf,
            pytest.param(10**400, id="beyond the floats"),
            pytest.param(-(10**400), id="below the floats"),
        ],
    )
    def test_impossible_values(self, value: float | timedelta) -> None:
        with pytest.raises(ValueError, match="wait_time"):
            seconds(value, "wait_time")

    def test_infinity_only_where_allowed(self) -> None:
        with pytest.raises(ValueError, match="lease_time must be finite"):
            seconds(math.inf, "lease_time")
        assert seconds(math.inf, "wait_time", allow_inf=True) == math.inf

    def test_minimum(self) -> None:
        assert seconds(0.5, "delay", minimum=0.5) == 0.5
        with pytest.raises(ValueError, match=r"delay must be at least 0\.5 s"):
            seconds(0.4, "delay", minimum=0.5)


class TestLeaseMs:
    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            (0.001, 1),
            (0.0015, 2),
            (1.0004, 1000),
            (30, 30_000),
            (timedelta(milliseconds=1), 1),
            (2**52 // 1000, 2**52 // 1000 * 1000),
        ],
    )
    def test_whole_milliseconds(self, value: float | timedelta, expected: int) -> None:
        assert lease_ms(value) == expected

    @pytest.mark.parametrize(
        "value", [0, 0.0005, 0.000999, -1, math.nan, math.inf, 2**52, 1e300, timedelta(microseconds=999)]
    )
    def test_what_the_server_cannot_hold(self, value: float | timedelta) -> None:
        with pytest.raises(ValueError, match="lease_time"):
            lease_ms(value)

    @pytest.mark.parametrize("value", [True, None, "1"])
    def test_other_types(self, value: Any) -> None:
        with pytest.raises(TypeError, match="lease_time"):
            lease_ms(value)

    @given(st.integers(1, 2**52))
    @example(4_495_899_107_221_563)
    def test_milliseconds_survive_the_way_through_seconds(self, ms: int) -> None:
        assert lease_ms(ms / 1000) == ms


class TestFields:
    def test_defaults(self) -> None:
        config = Config()
        assert (config.host, config.port, config.path, config.database) == ("localhost", 6379, None, 0)
        assert (config.lock_watchdog_timeout, config.fair_lock_wait_timeout) == (30.0, 300.0)
        assert (config.check_lock_synced_replicas, config.replicas_sync_timeout) == (True, 1.0)
        assert (config.sharded_pubsub, config.retry_attempts, config.name_mapper) == ("auto", 4, None)
        assert (config.connect_timeout, config.timeout) == (10.0, 3.0)
        assert (config.ssl, config.ssl_context) == (False, None)

    def test_durations_are_stored_as_float_seconds(self) -> None:
        config = Config.of(lock_watchdog_timeout=timedelta(minutes=1), timeout=2)
        assert (config.lock_watchdog_timeout, config.timeout) == (60.0, 2.0)
        assert type(config.timeout) is float

    @pytest.mark.parametrize(
        "field",
        [
            "lock_watchdog_timeout",
            "fair_lock_wait_timeout",
            "replicas_sync_timeout",
            "connect_timeout",
            "timeout",
            "ping_interval",
        ],
    )
    @pytest.mark.parametrize("value", [math.nan, math.inf, -1, True, "3", None])
    def test_durations_that_cannot_be(self, field: str, value: Any) -> None:
        with pytest.raises(ConfigError, match=field):
            Config(**{field: value})

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("timeout", 0),  # a socket that never waits
            ("connect_timeout", 0),
            ("replicas_sync_timeout", 0),  # WAIT would wait for ever
            ("lock_watchdog_timeout", 0),
            ("lock_watchdog_timeout", 2**52),
            ("fair_lock_wait_timeout", 2**52),
            ("timeout", 2**31),  # settimeout() would wrap round and time out at once
            ("connect_timeout", 2**31),
            ("replicas_sync_timeout", 2**31),
            ("ping_interval", 2**31),
            ("retry_attempts", -1),
            ("retry_attempts", 1.0),
            ("retry_attempts", True),
            ("port", 0),
            ("port", 65536),
            ("port", "6379"),
            ("database", -1),
            ("connection_pool_size", 0),
            ("check_lock_synced_replicas", "yes"),
            ("socket_keepalive", None),
            ("sharded_pubsub", "never"),
            ("sharded_pubsub", 1),
            ("name_mapper", "prefix"),
            ("host", ""),
            ("host", None),
            ("path", ""),
            ("username", b"user"),
            ("client_name", 3),
        ],
    )
    def test_values_that_cannot_be(self, field: str, value: Any) -> None:
        with pytest.raises(ConfigError, match=field):
            Config(**{field: value})

    def test_the_special_zeros(self) -> None:
        config = Config(ping_interval=0, retry_attempts=0)
        assert (config.ping_interval, config.retry_attempts) == (0.0, 0)

    def test_the_password_is_never_shown(self) -> None:
        provider = redis.UsernamePasswordCredentialProvider("user", SECRET)
        assert SECRET not in repr(Config(password=SECRET))
        assert "credential_provider" not in repr(Config(credential_provider=provider))
        for wrong in ({"password": SECRET.encode()}, {"password": SECRET, "credential_provider": provider}):
            with pytest.raises(ConfigError) as caught:
                Config(**wrong)
            assert SECRET not in str(caught.value)

    def test_tls(self) -> None:
        config = Config(ssl=True)
        assert config.ssl_context is not None
        assert config.ssl_context.verify_mode is ssl.CERT_REQUIRED
        assert config.ssl_context.check_hostname
        with pytest.raises(ConfigError, match="ssl_context"):  # it would have talked in the clear
            Config(ssl_context=config.ssl_context)
        with pytest.raises(ConfigError, match="unix socket"):
            Config(ssl=True, path="/run/redis.sock")

    def test_a_value_of_its_own(self) -> None:
        config = Config(password="p", database=3)
        assert pickle.loads(pickle.dumps(config)) == config
        assert {config: 1}[Config(password="p", database=3)] == 1
        with pytest.raises(dataclasses.FrozenInstanceError):
            config.database = 4  # type: ignore[misc]


class TestAddresses:
    def test_none_is_localhost(self) -> None:
        assert Config.of() == Config.of(None) == Config()

    def test_a_config_is_itself(self) -> None:
        config = Config(database=2, ssl=True)
        assert Config.of(config) is config
        assert Config.of(config, timeout=9) == dataclasses.replace(config, timeout=9.0)

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
            (
                "unix://u:p@/run/r.sock?db=2",
                {"path": "/run/r.sock", "database": 2, "username": "u", "password": "p"},
            ),
            ("unix:///r.sock?password=p%25", {"path": "/r.sock", "password": "p%"}),
            (
                "redis://?socket_timeout=2.5&socket_connect_timeout=1",
                {"timeout": 2.5, "connect_timeout": 1.0},
            ),
            ("redis://?client_name=me&max_connections=3", {"client_name": "me", "connection_pool_size": 3}),
            ("redis://?socket_keepalive=no", {"socket_keepalive": False}),
            (
                "redis://?decode_responses=True&protocol=3&health_check_interval=9&retry_on_timeout=1&encoding=x",
                {},
            ),
        ],
    )
    def test_urls(self, url: str, fields: dict[str, Any]) -> None:
        assert Config.of(url) == Config(**fields)

    def test_fields_win(self) -> None:
        assert Config.of("redis://u:p@h/1", database=7, password="q").database == 7
        assert Config.of("redis://u:p@h/1", password="q").password == "q"
        with pytest.raises(TypeError, match="no_such_field"):
            Config.of("redis://h", no_such_field=1)

    def test_tls_url(self) -> None:
        config = Config.of("rediss://h:6380?ssl_min_version=772")
        assert config.ssl
        assert config.ssl_context is not None
        assert config.ssl_context.minimum_version is ssl.TLSVersion.TLSv1_3
        assert config.ssl_context.check_hostname

    def test_tls_url_without_checks(self) -> None:
        context = Config.of("rediss://h?ssl_cert_reqs=none").ssl_context
        assert context is not None
        assert (context.verify_mode, context.check_hostname) == (ssl.CERT_NONE, False)
        context = Config.of("rediss://h?ssl_check_hostname=false").ssl_context
        assert context is not None
        assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, False)

    def test_the_context_checks_a_real_server(self, tls_server: Server) -> None:
        address = (tls_server.host, tls_server.tls_port)
        trusting = Config.of(tls_server.tls_url + f"?ssl_ca_certs={tls_server.ca_file}").ssl_context
        doubting = Config.of(tls_server.tls_url).ssl_context
        assert trusting is not None
        assert doubting is not None
        with (
            socket.create_connection(address, 5) as plain,
            trusting.wrap_socket(plain, server_hostname=tls_server.host) as wrapped,
        ):
            wrapped.sendall(b"PING\r\n")
            assert wrapped.recv(7) == b"+PONG\r\n"
        with socket.create_connection(address, 5) as plain, pytest.raises(ssl.SSLCertVerificationError):
            doubting.wrap_socket(plain, server_hostname=tls_server.host)

    @pytest.mark.parametrize(
        "option",
        [
            "ssl_cert_reqs=perhaps",
            "ssl_ca_certs=/no/such/file",
            "ssl_keyfile=/no/such/file",
            "ssl_ciphers=none-such",
            "ssl_min_version=1",
            "ssl_validate_ocsp=True",
            "ssl_validate_ocsp_stapled=True",
        ],
    )
    def test_tls_options_that_cannot_be_used(self, option: str) -> None:
        with pytest.raises(ConfigError, match=r"TLS|OCSP"):
            Config.of(f"rediss://h?{option}")

    @pytest.mark.parametrize(
        "url",
        [
            "localhost",
            "http://h",
            "REDIS://h",
            "",
            f"redis://:{SECRET}@h:port",
            f"redis://:{SECRET}#@h",
            f"redis://:{SECRET}/x@h",
            f"redis://u:{SECRET}?@h",
            f"redis://:{SECRET}@h/db",
            f"redis://:{SECRET}@h/1/2x",
            f"redis://:{SECRET}@h/1#x",
            f"redis://:{SECRET}@[::1",
            f"redis://:{SECRET}@h?db=x",
            f"redis://:{SECRET}@h?socket_timeout=soon",
            f"redis://:{SECRET}@h?frobnicate=1",
            f"redis://:{SECRET}@h:99999",
            f"redis://:{SECRET}@h:0",
            f"redis://:1?{SECRET}@h",
            f"redis://:1?{SECRET}=x@h",
            f"unix://:{SECRET}@run/redis.sock",
            f"unix://:{SECRET}@",
            f"redis+cluster://:{SECRET}@h:1,h:2",
            f"redis+sentinel://:{SECRET}@h:1/mymaster",
        ],
    )
    def test_bad_urls_do_not_give_the_password_away(self, url: str) -> None:
        with pytest.raises(ConfigError) as caught:
            Config.of(url)
        assert SECRET not in str(caught.value)
        assert caught.value.__suppress_context__ or caught.value.__context__ is None

    def test_the_unknown_option_is_named(self) -> None:
        with pytest.raises(ConfigError, match="frobnicate"):
            Config.of("redis://h?frobnicate=1")

    @pytest.mark.parametrize("scheme", ["redis+cluster", "redis+sentinel"])
    def test_what_is_not_there_yet(self, scheme: str) -> None:
        with pytest.raises(ConfigError, match="available in this version"):
            Config.of(f"{scheme}://h:1")

    @pytest.mark.parametrize("address", [3, b"redis://h", ["redis://h"], object(), redis.ConnectionPool()])
    def test_anything_else(self, address: object) -> None:
        with pytest.raises(TypeError, match=r"redis://.*Config.*redis\.Redis"):
            Config.of(address)


CLIENTS: list[Callable[..., Any]] = [redis.Redis, redis.asyncio.Redis]
MODULES: list[Any] = [redis, redis.asyncio]


class TestClients:
    @pytest.mark.parametrize("client", CLIENTS)
    def test_tcp(self, client: Callable[..., Any]) -> None:
        config = Config.of(
            client(
                host="h",
                port=1,
                db=2,
                username="u",
                password="p",
                client_name="me",
                socket_timeout=7,
                socket_connect_timeout=8,
                socket_keepalive=False,
                max_connections=9,
            )
        )
        assert config == Config(
            host="h",
            port=1,
            database=2,
            username="u",
            password="p",
            client_name="me",
            timeout=7.0,
            connect_timeout=8.0,
            socket_keepalive=False,
            connection_pool_size=9,
        )

    @pytest.mark.parametrize("client", CLIENTS)
    def test_no_limit_there_is_our_limit_here(self, client: Callable[..., Any]) -> None:
        config = Config.of(client(socket_timeout=None, socket_connect_timeout=None))
        assert (config.timeout, config.connect_timeout) == (3.0, 10.0)

    @pytest.mark.parametrize("client", CLIENTS)
    def test_unix(self, client: Callable[..., Any]) -> None:
        config = Config.of(client(unix_socket_path="/run/r.sock", db=1))
        assert (config.path, config.database, config.ssl) == ("/run/r.sock", 1, False)

    @pytest.mark.parametrize("client", CLIENTS)
    def test_tls(self, client: Callable[..., Any]) -> None:
        config = Config.of(client(host="h", ssl=True, ssl_cert_reqs="none"))
        assert config.ssl
        assert config.ssl_context is not None
        assert config.ssl_context.verify_mode is ssl.CERT_NONE

    @pytest.mark.parametrize("client", CLIENTS)
    def test_an_unlimited_pool(self, client: Callable[..., Any]) -> None:
        assert Config.of(client(max_connections=2**31)).connection_pool_size == Config().connection_pool_size

    @pytest.mark.parametrize("client", CLIENTS)
    def test_credential_provider(self, client: Callable[..., Any]) -> None:
        provider = redis.UsernamePasswordCredentialProvider("user", SECRET)
        assert Config.of(client(credential_provider=provider)).credential_provider is provider

    @pytest.mark.parametrize("module", MODULES)
    def test_pools(self, module: Any) -> None:
        pool = module.BlockingConnectionPool.from_url("rediss://:p@h/3?timeout=1", max_connections=5)
        config = Config.of(module.Redis(connection_pool=pool), host="other")
        assert (config.host, config.database, config.password) == ("other", 3, "p")
        assert (config.ssl, config.connection_pool_size, config.timeout) == (True, 5, 3.0)

    @pytest.mark.parametrize("module", MODULES)
    def test_sentinels_are_not_there_yet(self, module: Any) -> None:
        sentinel = module.Sentinel([("h", 1)])
        for address in (sentinel, sentinel.master_for("mymaster"), sentinel.master_for("mymaster", ssl=True)):
            with pytest.raises(ConfigError, match="available in this version"):
                Config.of(address)

    def test_clusters_are_not_there_yet(self) -> None:
        cluster = redis.asyncio.RedisCluster(host="h")  # the sync one connects at once
        with pytest.raises(ConfigError, match="available in this version"):
            Config.of(cluster)

    @pytest.mark.parametrize("client", CLIENTS)
    def test_a_handshake_of_its_own(self, client: Callable[..., Any]) -> None:
        with pytest.raises(ConfigError, match="redis_connect_func"):
            Config.of(client(redis_connect_func=print))

    @pytest.mark.parametrize("option", ["ssl_validate_ocsp", "ssl_validate_ocsp_stapled"])
    def test_ocsp(self, option: str) -> None:
        with pytest.raises(ConfigError, match="OCSP"):
            Config.of(redis.Redis(ssl=True, **{option: True}))  # type: ignore[arg-type]


def single(settings: str, root: str = "") -> str:
    """A Redisson file with one server and these settings."""
    lines = "\n".join(f"  {line.strip()}" for line in settings.splitlines() if line.strip())
    return f'singleServerConfig:\n  address: "redis://h:7000"\n{lines}\n{root}\n'


# As Redisson 3.x documents it, with what its toYAML writes beside it.
DOCUMENTED = """---
singleServerConfig:
  idleConnectionTimeout: 10000
  connectTimeout: 11000
  timeout: 3500
  retryAttempts: 3
  retryInterval: 1500
  retryDelay: !<org.redisson.config.EqualJitterDelay> {baseDelay: PT1S, maxDelay: PT2S}
  password: null
  subscriptionsPerConnection: 5
  clientName: null
  address: "redis://127.0.0.1:6380"
  subscriptionConnectionMinimumIdleSize: 1
  subscriptionConnectionPoolSize: 50
  connectionMinimumIdleSize: 24
  connectionPoolSize: 65
  database: 2
  dnsMonitoringInterval: 5000
  pingConnectionInterval: 30000
  keepAlive: false
  tcpNoDelay: true
  credentialsResolver: !<org.redisson.client.DefaultCredentialsResolver> {}
  commandMapper: !<org.redisson.config.DefaultCommandMapper> {}
  nameMapper: !<org.redisson.api.DefaultNameMapper> {}
  sslVerificationMode: "STRICT"
threads: 16
nettyThreads: 32
codec: !<org.redisson.codec.Kryo5Codec> {}
transportMode: "NIO"
lockWatchdogTimeout: 20000
fairLockWaitTimeout: 200000
checkLockSyncedSlaves: false
slavesSyncTimeout: 1500
"""


class TestYaml:
    def test_the_documented_file(self, tmp_path: Path) -> None:
        file = tmp_path / "redisson.yaml"
        file.write_text(DOCUMENTED, encoding="utf-8")
        expected = Config(
            host="127.0.0.1",
            port=6380,
            database=2,
            connect_timeout=11.0,
            timeout=3.5,
            retry_attempts=3,
            connection_pool_size=65,
            ping_interval=30.0,
            socket_keepalive=False,
            lock_watchdog_timeout=20.0,
            fair_lock_wait_timeout=200.0,
            check_lock_synced_replicas=False,
            replicas_sync_timeout=1.5,
        )
        assert Config.from_yaml(file) == Config.from_yaml(str(file)) == expected
        assert Config.from_yaml(DOCUMENTED) == Config.from_yaml(io.StringIO(DOCUMENTED)) == expected

    def test_ignored_keys_are_logged_once_at_info(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, logger="pyredisson")
        Config.from_yaml(single("retryInterval: 9\nclientName: me", "threads: 1\nnettyThreads: 2\nexecutor: null"))
        (record,) = caplog.records
        assert (record.name, record.levelno) == ("pyredisson", logging.INFO)
        assert record.getMessage().endswith(": nettyThreads, retryInterval, threads")

    def test_nothing_to_log(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG, logger="pyredisson")
        Config.from_yaml(single("timeout: 1000"))
        assert not caplog.records

    def test_fields_win(self) -> None:
        assert Config.from_yaml(single("database: 1\ntimeout: 1000"), database=5).database == 5

    @pytest.mark.parametrize("written", ["0123", "yes", "1e3", "12:30:45", '"null"', "2001-01-01", "'a # b'"])
    def test_a_password_stays_as_written(self, written: str) -> None:
        assert Config.from_yaml(single(f"password: {written}")).password == written.strip("'\"")

    def test_shared_keys_at_the_root(self) -> None:
        root = "username: u\npassword: p\ntcpKeepAlive: false"
        config = Config.from_yaml(single("password: null", root))
        assert (config.username, config.password, config.socket_keepalive) == ("u", "p", False)
        assert Config.from_yaml(single("password: q", root)).password == "q"

    @pytest.mark.parametrize(
        "address", ['["redis://h:7000"]', '"valkey://h:7000"', "redis://h:7000", '"redis://u:p@h:7000"']
    )
    def test_addresses(self, address: str) -> None:
        config = Config.from_yaml(f"singleServerConfig:\n  address: {address}\n")
        assert (config.host, config.port) == ("h", 7000)

    def test_credentials_beside_the_address_win(self) -> None:
        text = 'singleServerConfig:\n  address: "redis://u:p@h"\n  password: q\n'
        config = Config.from_yaml(text)
        assert (config.username, config.password) == ("u", "q")

    def test_the_special_zeros(self) -> None:
        config = Config.from_yaml(single("pingConnectionInterval: 0\nretryAttempts: 0\ndnsMonitoringInterval: -1"))
        assert (config.ping_interval, config.retry_attempts) == (0.0, 0)

    def test_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("REDIS_DB", "3")
        monkeypatch.setenv("redis.password", SECRET)
        monkeypatch.setenv("EMPTY", "")
        monkeypatch.delenv("MISSING", raising=False)
        config = Config.from_yaml(
            "singleServerConfig:\n"
            '  address: "redis://${MISSING:-h}:${MISSING:-7000}"\n'
            "  database: ${REDIS_DB:-1}\n"
            "  password: ${redis.password}\n"
            "  clientName: ${MISSING:-}\n"
            "  username: ${EMPTY}\n"
            "  retryInterval: ${MISSING}\n"
        )
        assert (config.host, config.port, config.database) == ("h", 7000, 3)
        assert (config.password, config.client_name, config.username) == (SECRET, None, None)

    def test_a_variable_that_is_not_set(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("MISSING", raising=False)
        with pytest.raises(ConfigError, match="password: MISSING isn't set"):
            Config.from_yaml(single("password: ${MISSING}"))

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            (single("conectTimeout: 1"), "conectTimeout; did you mean connectTimeout?"),
            (single("", "lockWatchDogTimeout: 1"), "lockWatchDogTimeout; did you mean lockWatchdogTimeout?"),
            (single("xyzzy: 1"), "unknown setting xyzzy"),
            (single("threads: 1"), "threads"),
            (single("timeout: soon"), "timeout must be a whole number"),
            (single("timeout: 1.5"), "timeout must be a whole number"),
            (single("timeout: -1"), "timeout"),
            (single("timeout: [1]"), "timeout must be a single value"),
            (single("keepAlive: perhaps"), "keepAlive must be true or false"),
            (single("database: 99999999999999999999999"), "database"),
            (single("password: '{aes}M+TfpT4T'"), "encrypted"),
            (single("nameMapper: !<com.example.Mapper> {}"), "nameMapper.*name_mapper="),
            (single("credentialsResolver: !<com.example.R> {}"), "credentialsResolver.*credential_provider="),
            (single("commandMapper: !<com.example.C> {}"), "commandMapper"),
            (single("nameMapper: !<x.DefaultNameMapper> {}", "nameMapper: !<x.Mapper> {}"), "nameMapper"),
            ("singleServerConfig:\n  database: 1\n", "address is missing"),
            ("singleServerConfig:\n  address: [redis://a, redis://b]\n", "one address"),
            ("singleServerConfig:\n  address: h:6379\n", "URL"),
            ("singleServerConfig: redis://h\n", "singleServerConfig must hold settings"),
            ("threads: 1\n", "singleServerConfig is missing"),
            ("\n", "the file must hold settings"),
            ("- 1\n", "the file must hold settings"),
            ("? [a]\n: 1\n", "the file must hold settings"),
            ("clusterServersConfig:\n  nodeAddresses: []\n", "clusterServersConfig.*in this version"),
            ("sentinelServersConfig: {}\n", "sentinelServersConfig.*in this version"),
            ("masterSlaveServersConfig: {}\n", "masterSlaveServersConfig.*in this version"),
            ("replicatedServersConfig: {}\n", "replicatedServersConfig.*in this version"),
        ],
    )
    def test_what_cannot_be_used(self, text: str, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            Config.from_yaml(text)

    def test_stand_ins_for_java_classes(self) -> None:
        text = single("nameMapper: !<com.example.M> {}\ncredentialsResolver: !<com.example.R> {}")
        provider = redis.UsernamePasswordCredentialProvider("u", "p")
        config = Config.from_yaml(text, name_mapper=str.upper, credential_provider=provider)
        assert (config.name_mapper, config.credential_provider) == (str.upper, provider)

    @pytest.mark.parametrize("line", [f"password: *{SECRET}", f"password: @{SECRET}", f"password: {{{SECRET}", "\x07"])
    def test_broken_yaml_does_not_give_the_password_away(self, line: str) -> None:
        with pytest.raises(ConfigError, match="not valid YAML") as caught:
            Config.from_yaml(single(line, f"password: {SECRET}"))
        assert SECRET not in str(caught.value)
        assert caught.value.__suppress_context__

    def test_a_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            Config.from_yaml(tmp_path / "none.yaml")

    def test_pyredisson_does_not_import_yaml(self) -> None:
        code = "import sys, pyredisson._settings.config; sys.exit('yaml' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], timeout=20, check=False).returncode == 0


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate and its key in one file."""
    folder = tmp_path_factory.mktemp("pem")
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=h -days 9"
    subprocess.run([*command.split(), "-keyout", "key", "-out", "crt"], cwd=folder, check=True, capture_output=True)
    both = folder / "both.pem"
    both.write_bytes((folder / "crt").read_bytes() + (folder / "key").read_bytes())
    return both


def tls_context(settings: str) -> ssl.SSLContext:
    config = Config.from_yaml(single(settings).replace("redis://", "rediss://"))
    assert config.ssl
    assert config.ssl_context is not None
    return config.ssl_context


class TestYamlTls:
    @pytest.mark.parametrize(
        ("setting", "verify_mode", "check_hostname"),
        [
            ("", ssl.CERT_REQUIRED, True),
            ("sslVerificationMode: STRICT", ssl.CERT_REQUIRED, True),
            ("sslVerificationMode: CA_ONLY", ssl.CERT_REQUIRED, False),
            ("sslVerificationMode: NONE", ssl.CERT_NONE, False),
            ("sslEnableEndpointIdentification: true", ssl.CERT_REQUIRED, True),
            ("sslEnableEndpointIdentification: false", ssl.CERT_NONE, False),
            ("sslVerificationMode: STRICT\nsslEnableEndpointIdentification: false", ssl.CERT_REQUIRED, True),
        ],
    )
    def test_verification(self, setting: str, verify_mode: ssl.VerifyMode, check_hostname: bool) -> None:
        context = tls_context(setting)
        assert (context.verify_mode, context.check_hostname) == (verify_mode, check_hostname)

    @pytest.mark.parametrize("prefix", ["", "file:", "file://"])
    def test_pem_stores(self, pem: Path, prefix: str) -> None:
        context = tls_context(f"sslTruststore: {prefix}{pem}\nsslKeystore: {prefix}{pem}")
        subjects = [authority["subject"] for authority in context.get_ca_certs()]
        assert subjects == [((("commonName", "h"),),)]  # and none of the system's

    def test_protocols_and_ciphers(self) -> None:
        context = tls_context("sslProtocols: [TLSv1.3, TLSv1.2]\nsslCiphers: [ECDHE-RSA-AES128-GCM-SHA256]")
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2
        assert "ECDHE-RSA-AES128-GCM-SHA256" in [cipher["name"] for cipher in context.get_ciphers()]

    @pytest.mark.parametrize(
        ("setting", "message"),
        [
            ("sslVerificationMode: PERHAPS", "sslVerificationMode"),
            ("sslProtocols: [SSLv9]", "sslProtocols"),
            ("sslProtocols: []", "sslProtocols"),
            ("sslCiphers: [TLS_NONE_SUCH]", "TLS settings"),
            ("sslTruststore: file:/no/such/file", "sslTruststore"),
        ],
    )
    def test_what_cannot_be_used(self, setting: str, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            tls_context(setting)

    def test_java_key_stores(self, tmp_path: Path) -> None:
        store = tmp_path / "store.jks"
        store.write_bytes(b"\xfe\xed\xfe\xed\x00\x00\x00\x02")
        with pytest.raises(ConfigError, match="sslTruststore: Java's key stores"):
            tls_context(f"sslTruststore: {store}")

    def test_a_plain_address_needs_none_of_it(self) -> None:
        assert Config.from_yaml(single("sslTruststore: file:/no/such/file")).ssl_context is None
