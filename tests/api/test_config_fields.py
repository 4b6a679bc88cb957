"""Settings as keyword arguments and fields: durations, leases, and what each field accepts."""

from __future__ import annotations

import dataclasses
import math
import pickle
import ssl
from collections.abc import Iterable
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any, get_type_hints

import pytest
import redis
import redis.asyncio
from hypothesis import example, given
from hypothesis import strategies as st

import pyredisson.asyncio
from pyredisson._settings.address import Address
from pyredisson._settings.config import _DURATIONS, Config
from pyredisson._settings.durations import Duration, lease_ms, seconds
from pyredisson._settings.fields import ConfigFields
from pyredisson.errors import ConfigError
from pyredisson.events import Event, Observer, handlers_of

SECRET = "hunter2"
FILE = "singleServerConfig:\n  address: redis://h:1\n"


class TestSeconds:
    @pytest.mark.parametrize(
        ("value", "expected"),
        [(0, 0.0), (3, 3.0), (0.25, 0.25), (timedelta(milliseconds=1500), 1.5), (timedelta(0), 0.0)],
    )
    def test_numbers_and_timedeltas(self, value: float | timedelta, expected: float) -> None:
        result = seconds(value, "wait_time")
        assert result == expected
        assert type(result) is float

    def test_impossible_values(self) -> None:
        for check in (seconds, lease_ms):
            for other in (True, False, None, "1", b"1", 1j, [1]):
                with pytest.raises(TypeError, match="wait_time"):
                    check(other, "wait_time")  # type: ignore[arg-type]
            for value in (math.nan, -1, -0.001, timedelta(seconds=-1), -math.inf, 10**400, -(10**400)):
                with pytest.raises(ValueError, match="wait_time"):
                    check(value, "wait_time")

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
        "value", [0, 0.0005, 0.000999, math.inf, 2**52 / 1000 + 1, 1e300, timedelta(microseconds=999)]
    )
    def test_what_the_server_cannot_hold(self, value: float | timedelta) -> None:
        with pytest.raises(ValueError, match="lease_time"):
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
        assert (config.retry_attempts, config.name_mapper) == (4, None)
        assert (config.connect_timeout, config.timeout) == (10.0, 3.0)
        assert (config.ssl, config.ssl_context) == (False, None)
        assert (config.topology, config.nodes, config.master_name) == ("single", (), None)
        assert (config.sentinel_username, config.sentinel_password, config.sentinel_ssl) == (None, None, False)
        assert (config.topology_refresh_interval, config.address_mapper, config.sharded_pubsub) == (5.0, None, "auto")
        assert (config.check_lock_synced_replicas, config.replicas_sync_timeout) == (True, 1.0)
        assert config.min_synced_replicas == 1

    def test_durations_are_stored_as_float_seconds(self) -> None:
        config = Config.of(lock_watchdog_timeout=timedelta(minutes=1), timeout=2)
        assert (config.lock_watchdog_timeout, config.timeout) == (60.0, 2.0)
        assert type(config.timeout) is float

    @pytest.mark.parametrize("field", sorted(_DURATIONS))
    @pytest.mark.parametrize("value", [math.nan, math.inf, -1, True, "3", None])
    def test_durations_that_cannot_be(self, field: str, value: Any) -> None:
        with pytest.raises(ConfigError, match=field):
            Config(**{field: value})

    @pytest.mark.parametrize(
        ("field", "values"),
        [
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
        ],
    )
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

    def test_a_value_of_its_own(self) -> None:
        config = Config(password="p", database=3)
        assert pickle.loads(pickle.dumps(config)) == config
        assert {config: 1}[Config(password="p", database=3)] == 1
        with pytest.raises(dataclasses.FrozenInstanceError):
            config.database = 4  # type: ignore[misc]
