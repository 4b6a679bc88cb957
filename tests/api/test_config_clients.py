"""Settings that come from a client of redis-py."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any

import pytest
import redis
import redis.asyncio

from pyredisson._settings.config import Config
from pyredisson.errors import ConfigError

SECRET = "hunter2"
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

    @pytest.mark.parametrize("client", CLIENTS)
    def test_a_renewal_has_its_own_handshake(self, client: Callable[..., Any]) -> None:
        with pytest.raises(ConfigError, match="redis_connect_func"):
            Config.of(client(redis_connect_func=print))

    @pytest.mark.parametrize("option", ["ssl_validate_ocsp", "ssl_validate_ocsp_stapled"])
    def test_ocsp(self, option: str) -> None:
        with pytest.raises(ConfigError, match="OCSP"):
            Config.of(redis.Redis(ssl=True, **{option: True}))  # type: ignore[arg-type]
