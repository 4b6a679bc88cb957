"""Addresses of servers: URLs, Unix sockets, user names and passwords."""

from __future__ import annotations

import dataclasses
import socket
import ssl
from typing import Any

import pytest
import redis
import redis.asyncio

from pyredisson._settings.config import Config
from pyredisson.errors import ConfigError
from pyredisson.testing import Server

SECRET = "hunter2"


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

    @pytest.mark.parametrize("address", [3, b"redis://h", ["redis://h"], object(), redis.ConnectionPool()])
    def test_anything_else(self, address: object) -> None:
        with pytest.raises(TypeError, match=r"redis://.*Config.*redis\.Redis"):
            Config.of(address)
