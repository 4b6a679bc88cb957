"""Reads redis-py's URLs, clients and TLS options as fields of a Config."""

from __future__ import annotations

import re
import ssl as tls
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import redis
import redis.asyncio
import redis.asyncio.connection as asyncio_connection
import redis.asyncio.sentinel
import redis.connection
import redis.sentinel

from pyredisson.errors import ConfigError


def settings_of(address: object) -> dict[str, Any]:
    """The Config fields for an address. ConfigError: it can't be used. TypeError: it isn't an address."""
    if address is None:
        return {}
    if isinstance(address, str):
        return settings_of_url(address)
    if isinstance(address, (redis.Redis, redis.asyncio.Redis)):
        return _from_client(address)
    if isinstance(address, _LATER):
        raise ConfigError(f"{type(address).__name__}: {_NOT_YET}")
    raise TypeError(
        "an address is None, a URL (redis://, rediss://, unix://), a Config, a redis.Redis or a"
        f" redis.asyncio.Redis, not {type(address).__name__}"
    )


def settings_of_url(url: str) -> dict[str, Any]:
    """The Config fields for a URL. The message of a ConfigError never contains the URL's password."""
    url = re.sub(r"^valkey(s?)://", r"redis\1://", url)  # Redisson's names of the same two schemes
    if url.startswith(("redis+cluster://", "redis+sentinel://")):
        raise ConfigError(f"{url.partition(':')[0]}: {_NOT_YET}")
    # Not with an @ after the comma: then the text before it is the beginning of a password, not a list of hosts.
    if re.match(r"rediss?://([^/?#]*@)?[^/?#@]*,[^@]*$", url):
        raise ConfigError(
            f"{url.partition(':')[0]}:// takes one host: a cluster's nodes are redis+cluster://host:port,host:port,"
            " Sentinels are redis+sentinel://host:port,host:port/master"
        )
    # Without details or a cause: for `redis://:pa#ss@host` they would quote `pa` as the port.
    unreadable = ConfigError(
        "the URL can't be read: redis:// or rediss://user:password@host:port/database, or"
        " unix://user:password@/path, with redis-py's options; / ? # @ in a password are percent-encoded"
    )
    try:
        options: dict[str, Any] = redis.connection.parse_url(url)  # type: ignore[no-untyped-call]
        parts = urlsplit(url)
        if parts.scheme == "unix":
            readable = bool(parts.path) and not parts.hostname  # unix://run/x means /x on a host named run
        else:  # redis-py reads any other path as database 0, and port 0 as 6379
            readable = re.fullmatch(r"/?\d*/?", parts.path) is not None and parts.port != 0
    except ValueError:
        raise unreadable from None
    if not readable or parts.fragment or not all("=" in option for option in parts.query.split("&") if option):
        raise unreadable
    options.pop("connection_class", None)
    unknown = options.keys() - _TAKEN.keys() - _TLS_OPTIONS - _OCSP_OPTIONS - _IRRELEVANT_OPTIONS
    if unknown and "@" in parts.query:  # for `redis://:1?pass=word@host` the option is part of a password
        raise unreadable
    if unknown:
        raise ConfigError(f"unknown URL options: {', '.join(sorted(unknown))}")
    return _from_options(options, ssl=parts.scheme == "rediss")


def ssl_context(options: Mapping[str, Any], *, truststore: str | None = None) -> tls.SSLContext:
    """The TLS context that redis-py would make of its ssl_* options. A truststore replaces the system's authorities."""
    if any(options.get(name) not in (None, False) for name in _OCSP_OPTIONS):
        raise ConfigError("OCSP validation (ssl_validate_ocsp and its kin) isn't supported")
    verify = options.get("ssl_cert_reqs", "required")
    try:
        if not isinstance(verify, int):
            verify = tls.VerifyMode[f"CERT_{verify or 'none'}".upper()]
        context = tls.create_default_context(cafile=truststore)
        context.check_hostname = verify != tls.CERT_NONE and options.get("ssl_check_hostname") is not False
        context.verify_mode = tls.VerifyMode(verify)
        for flag in options.get("ssl_include_verify_flags") or ():
            context.verify_flags |= flag
        for flag in options.get("ssl_exclude_verify_flags") or ():
            context.verify_flags &= ~flag
        if certificate := options.get("ssl_certfile"):
            context.load_cert_chain(certificate, options.get("ssl_keyfile"), options.get("ssl_password"))
        elif options.get("ssl_keyfile"):
            raise ValueError("ssl_keyfile needs ssl_certfile")
        authorities = [options.get(name) for name in ("ssl_ca_certs", "ssl_ca_path", "ssl_ca_data")]
        if any(authorities):
            context.load_verify_locations(*authorities)
        if options.get("ssl_min_version") is not None:
            context.minimum_version = tls.TLSVersion(int(options["ssl_min_version"]))
        if options.get("ssl_ciphers"):
            context.set_ciphers(options["ssl_ciphers"])
    except (KeyError, OSError, TypeError, ValueError) as error:
        raise ConfigError(f"the TLS settings can't be used: {error}") from error
    return context


def _from_client(client: Any) -> dict[str, Any]:
    pool = client.connection_pool
    options = dict(pool.connection_kwargs)
    kind = pool.connection_class
    if not issubclass(kind, _CONNECTIONS) or issubclass(kind, _SENTINEL_CONNECTIONS):
        raise ConfigError(f"a client whose connections are {kind.__name__}: {_NOT_YET}")
    if options.get("redis_connect_func") is not None:
        raise ConfigError("a client with a redis_connect_func can't be taken over: its handshake is unknown")
    if pool.max_connections < 2**31:  # in older versions of redis-py that means no limit
        options["max_connections"] = pool.max_connections
    return _from_options(options, ssl=issubclass(kind, _TLS_CONNECTIONS))


def _from_options(options: Mapping[str, Any], *, ssl: bool) -> dict[str, Any]:
    """Config fields from redis-py's connection options. None means no limit there; then the default is used."""
    settings: dict[str, Any] = {field: options[name] for name, field in _TAKEN.items() if options.get(name) is not None}
    if ssl:
        settings |= {"ssl": True, "ssl_context": ssl_context(options)}
    return settings


_NOT_YET = "only a single server (redis://, rediss://, unix://) is available in this version"
_LATER = (
    redis.RedisCluster,
    redis.asyncio.RedisCluster,
    redis.Sentinel,
    redis.asyncio.Sentinel,
)
_TAKEN = {
    "host": "host",
    "port": "port",
    "path": "path",
    "db": "database",
    "username": "username",
    "password": "password",
    "credential_provider": "credential_provider",
    "client_name": "client_name",
    "socket_timeout": "timeout",
    "socket_connect_timeout": "connect_timeout",
    "socket_keepalive": "socket_keepalive",
    "max_connections": "connection_pool_size",
}
_TLS_OPTIONS = {
    "ssl_keyfile",
    "ssl_certfile",
    "ssl_password",
    "ssl_cert_reqs",
    "ssl_include_verify_flags",
    "ssl_exclude_verify_flags",
    "ssl_ca_certs",
    "ssl_ca_path",
    "ssl_ca_data",
    "ssl_check_hostname",
    "ssl_min_version",
    "ssl_ciphers",
}
_OCSP_OPTIONS = {
    "ssl_ocsp_context",
    "ssl_ocsp_expected_cert",
    "ssl_validate_ocsp",
    "ssl_validate_ocsp_stapled",
}
_IRRELEVANT_OPTIONS = {
    "decode_responses",
    "encoding",
    "encoding_errors",
    "health_check_interval",
    "legacy_responses",
    "lib_name",
    "lib_version",
    "protocol",
    "retry_on_error",
    "retry_on_timeout",
    "socket_read_size",
    "socket_type",
    "timeout",  # in redis-py the time to wait for a free connection, not for a reply
}
_TLS_CONNECTIONS = (redis.connection.SSLConnection, asyncio_connection.SSLConnection)
_SENTINEL_CONNECTIONS = (
    redis.sentinel.SentinelManagedConnection,
    redis.asyncio.sentinel.SentinelManagedConnection,
)
_CONNECTIONS = (
    redis.connection.Connection,
    redis.connection.UnixDomainSocketConnection,
    asyncio_connection.Connection,
    asyncio_connection.UnixDomainSocketConnection,
)
