"""Reads URLs, and the clients and connection options of redis-py, as fields of a Config."""

import re
import ssl as tls
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote, unquote_plus, urlsplit

import redis
import redis.asyncio
import redis.asyncio.connection as asyncio_connection
import redis.asyncio.sentinel
import redis.connection
import redis.sentinel

from pyredisson._settings.address import REDIS_PORT, SENTINEL_PORT, Address, AddressMap
from pyredisson._settings.fields import names
from pyredisson.errors import ConfigError


def settings_of_options(options: Mapping[str, Any], *, ssl: bool) -> dict[str, Any]:
    """Config fields from redis-py's connection options. None means no limit there; then the default is used."""
    settings: dict[str, Any] = {field: options[name] for name, field in _TAKEN.items() if options.get(name) is not None}
    if ssl:
        settings |= {"ssl": True, "ssl_context": ssl_context(options)}
    return settings


def ssl_context(options: Mapping[str, Any], *, truststore: str | None = None) -> tls.SSLContext:
    """The TLS context that redis-py would make of its ssl_* options. A truststore replaces the system's authorities."""
    if any(options.get(name) not in (None, False) for name in OCSP_OPTIONS):
        raise ConfigError("OCSP validation (ssl_validate_ocsp and its kin) isn't supported")
    verify = options.get("ssl_cert_reqs", "required")
    try:
        if not isinstance(verify, int):
            # A URL for Celery has the names of the constants, as CERT_REQUIRED.
            verify = tls.VerifyMode[f"CERT_{(verify or 'none').upper().removeprefix('CERT_')}"]
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
        # OpenSSL doesn't say which file it could not read.
        files = ", ".join(str(options[name]) for name in _TLS_FILES if options.get(name))
        raise ConfigError(f"the TLS settings can't be used: {error}" + (f" (of {files})" if files else "")) from error
    return context


_TLS_FILES = ("ssl_certfile", "ssl_keyfile", "ssl_ca_certs", "ssl_ca_path")
_SAME = ("host", "port", "path", "username", "password", "credential_provider", "client_name", "socket_keepalive")
_TAKEN = {name: name for name in _SAME} | {
    "db": "database",
    "socket_timeout": "timeout",
    "socket_connect_timeout": "connect_timeout",
    "max_connections": "connection_pool_size",
}
TLS_OPTIONS = names(
    """
    ssl_keyfile ssl_certfile ssl_password ssl_cert_reqs ssl_include_verify_flags ssl_exclude_verify_flags ssl_ca_certs
    ssl_ca_path ssl_ca_data ssl_check_hostname ssl_min_version ssl_ciphers
    """
)
OCSP_OPTIONS = {"ssl_ocsp_context", "ssl_ocsp_expected_cert", "ssl_validate_ocsp", "ssl_validate_ocsp_stapled"}
# In redis-py `timeout` is the time to wait for a free connection, not for a reply.
_IRRELEVANT_OPTIONS = names(
    """
    decode_responses encoding encoding_errors health_check_interval legacy_responses lib_name lib_version protocol
    retry_on_error retry_on_timeout socket_read_size socket_type timeout
    """
)
KNOWN_OPTIONS = _TAKEN.keys() | TLS_OPTIONS | OCSP_OPTIONS | _IRRELEVANT_OPTIONS
"""The options that redis-py knows. Options that are not taken have no meaning here."""


def settings_of_url(url: str) -> dict[str, Any]:
    """The Config fields for a URL. The message of a ConfigError never contains the URL's password."""
    url = re.sub(r"^valkey(s?)(?=://|\+)", r"redis\1", url)  # Redisson's names of the same schemes
    if match := re.match(r"(rediss?)\+(cluster|sentinel|replicated)://", url):
        return _of_several_servers(match[1], match[2], url[match.end() :])
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
    unknown = options.keys() - KNOWN_OPTIONS
    if unknown and "@" in parts.query:  # for `redis://:1?pass=word@host` the option is part of a password
        raise unreadable
    if unknown:
        raise ConfigError(f"unknown URL options: {', '.join(sorted(unknown))}")
    for_tls = options.keys() & (TLS_OPTIONS | OCSP_OPTIONS)
    if for_tls and parts.scheme != "rediss":  # nothing would be encrypted
        raise ConfigError(f"{', '.join(sorted(for_tls))}: needs rediss://")
    return settings_of_options(options, ssl=parts.scheme == "rediss")


def _of_several_servers(scheme: str, topology: str, rest: str) -> dict[str, Any]:
    """The Config fields for a URL of several servers; `rest` is what follows its `://`."""
    usage, paths = _SEVERAL[topology]
    try:
        if not (form := _FORM.fullmatch(rest)) or not (path := re.fullmatch(paths, form["path"] or "")):
            raise ValueError
        default_port = SENTINEL_PORT if topology == "sentinel" else REDIS_PORT
        nodes = tuple(Address.parse(unquote(host), default_port) for host in form["hosts"].split(","))
    except ValueError:
        # Without details or a cause, which could quote a part of a password.
        raise ConfigError(
            f"the URL can't be read: {scheme}+{topology}://user:password@{usage}, with redis-py's options;"
            " / ? # @ in a user name or a password are percent-encoded"
        ) from None
    settings: dict[str, Any] = {"topology": topology, "nodes": nodes}
    options = [option.partition("=") for option in (form["query"] or "").split("&") if option]
    if topology == "sentinel":
        settings["master_name"] = unquote(path["name"])
        settings |= _sentinel_settings(options)
        # The options for TLS are for both, or for the Sentinels alone if only they are asked over TLS.
        used = _FOR_SENTINELS | TLS_OPTIONS if scheme == "redis" and "sentinel_ssl" in settings else _FOR_SENTINELS
        options = [option for option in options if option[0] not in used]
    if {name for name, *_ in options} & {"host", "port", "path"}:
        raise ConfigError("the options host, port and path aren't for a URL of several servers")
    # User name, password, database and options are read as for one server, whose name doesn't matter.
    user = "" if form["user"] is None else f"{form['user']}@"
    one = settings_of_url(f"{scheme}://{user}host/{path['database'] or ''}?{'&'.join(map(''.join, options))}")
    del one["host"]
    return one | settings


def _sentinel_settings(options: list[tuple[str, str, str]]) -> dict[str, Any]:
    given = {name: unquote_plus(value) for name, _, value in options if name in _FOR_SENTINELS}
    settings: dict[str, Any] = {name: given.pop(name) for name in _SENTINEL_CREDENTIALS if name in given}
    ssl = given.pop("sentinel_ssl", "false").lower()
    if ssl not in ("true", "false", "yes", "no", "1", "0"):
        raise ConfigError("the option sentinel_ssl must be true or false")
    if ssl in ("true", "yes", "1"):
        # redis-py takes the first one of a name, so the options of the Sentinels precede the options of the servers.
        tls = ["".join(option).removeprefix("sentinel_") for option in options if option[0] in _SENTINEL_TLS_OPTIONS]
        tls += ["".join(option) for option in options if option[0] in TLS_OPTIONS]
        context = settings_of_url(f"rediss://host?{'&'.join(tls)}")["ssl_context"]
        settings |= {"sentinel_ssl": True, "sentinel_ssl_context": context}
    elif given:
        raise ConfigError(f"{', '.join(sorted(given))}: needs sentinel_ssl=true")
    return settings


_SENTINEL_CREDENTIALS = ("sentinel_username", "sentinel_password")
_SENTINEL_TLS_OPTIONS = {f"sentinel_{name}" for name in TLS_OPTIONS}
_FOR_SENTINELS = {"sentinel_ssl", *_SENTINEL_CREDENTIALS, *_SENTINEL_TLS_OPTIONS}
# Only the options may contain an @ that isn't percent-encoded: else a part of a password could be taken for a host.
_FORM = re.compile(r"(?:(?P<user>[^@/?#]*)@)?(?P<hosts>[^@/?#]+)(?P<path>/[^@?#]*)?(?:\?(?P<query>[^#]*))?")
_SEVERAL = {
    "cluster": ("host:port,host:port", r"/?(?P<database>\d*)/?"),
    "replicated": ("host:port,host:port/database", r"/?(?P<database>\d*)/?"),
    "sentinel": ("host:port,host:port/master/database", r"/(?P<name>[^/]+)(?:/(?P<database>\d*))?/?"),
}


def settings_of_client(client: object) -> dict[str, Any]:
    """The Config fields for a client of redis-py, whose connections are not used. TypeError: it is none."""
    if isinstance(client, _SENTINELS):
        raise ConfigError("Sentinels serve several masters: pass sentinel.master_for(name)")
    if isinstance(client, _CLUSTERS):
        return _from_cluster(client)
    if isinstance(client, (redis.Redis, redis.asyncio.Redis)):
        return _from_pool(client.connection_pool)
    raise TypeError(
        "an address is None, a URL (redis://, rediss://, unix://, redis+cluster://, redis+sentinel://), a Config, or a"
        f" redis.Redis, a redis.RedisCluster, or one of redis.asyncio, not {type(client).__name__}"
    )


def _from_pool(pool: Any) -> dict[str, Any]:
    kind = pool.connection_class
    if not issubclass(kind, _CONNECTIONS):
        raise ConfigError(f"a client whose connections are {kind.__name__} can't be taken over")
    options = dict(pool.connection_kwargs)
    if options.get("redis_connect_func") is not None:
        raise ConfigError("a client with a redis_connect_func can't be taken over: its handshake is unknown")
    options["max_connections"] = _limit(pool.max_connections)
    settings = settings_of_options(options, ssl=issubclass(kind, _TLS_CONNECTIONS))
    if issubclass(kind, _SENTINEL_CONNECTIONS):
        return {**settings, **_from_sentinel_pool(pool)}
    return settings


def _from_sentinel_pool(pool: Any) -> dict[str, Any]:
    """The topology, for a client of `master_for`."""
    if not pool.is_master:
        raise ConfigError("a client from slave_for() can't be taken over: pass the one from master_for()")
    sentinels = pool.sentinel_manager
    pools = [client.connection_pool for client in sentinels.sentinels]
    if not pools:
        raise ConfigError("the client's Sentinel has no sentinels")
    # All of them have the same sentinel_kwargs.
    ssl = issubclass(pools[0].connection_class, _TLS_CONNECTIONS)
    options = settings_of_options(pools[0].connection_kwargs, ssl=ssl)
    if "credential_provider" in options:
        raise ConfigError("a credential_provider for Sentinels isn't supported: give sentinel_username and _password")
    settings = {
        "topology": "sentinel",
        "nodes": _addresses((pool.connection_kwargs["host"], pool.connection_kwargs["port"]) for pool in pools),
        "master_name": pool.service_name,
    }
    settings |= {f"sentinel_{name}": options[name] for name in _SENTINEL_FIELDS if name in options}
    # Not in older versions of redis-py.
    if (host := getattr(sentinels, "_force_master_ip", None)) is not None:
        settings["address_mapper"] = AddressMap(other_host=host)
    return settings


def _from_cluster(cluster: Any) -> dict[str, Any]:
    manager = cluster.nodes_manager
    options: Mapping[str, Any] = manager.connection_kwargs
    # redis-py sets a redis_connect_func of its own. The user's function is only in the synchronous client.
    if getattr(cluster, "user_on_connect_func", None) is not None:
        raise ConfigError("a client with a redis_connect_func can't be taken over: its handshake is unknown")
    kind = options.get("connection_class")
    ssl = bool(options.get("ssl")) or (kind is not None and issubclass(kind, _TLS_CONNECTIONS))
    own = {name: options[name] for name in options.keys() - _OF_ONE_NODE}
    settings = settings_of_options({**own, "max_connections": _limit(own.get("max_connections"))}, ssl=ssl)
    # As the user gave them. The manager replaces its own by what the cluster says.
    seeds = getattr(cluster, "startup_nodes", None) or manager.startup_nodes.values()
    settings |= {"topology": "cluster", "nodes": _addresses((node.host, node.port) for node in seeds)}
    if (remap := getattr(manager, "address_remap", None)) is not None:
        settings["address_mapper"] = remap
    return settings


def _limit(connections: int | None) -> int | None:
    """redis-py's largest number of connections. None: no limit, for which its older versions have 2**31."""
    return None if connections is None or connections >= 2**31 else connections


def _addresses(pairs: Iterable[tuple[Any, Any]]) -> tuple[Address, ...]:
    try:
        return tuple(Address.of((host, int(port))) for host, port in pairs)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"a node of the client: {error}") from error


_SENTINEL_FIELDS = ("username", "password", "ssl", "ssl_context")
_OF_ONE_NODE = {"host", "port", "path", "db"}
_CLUSTERS = (redis.RedisCluster, redis.asyncio.RedisCluster)
_SENTINELS = (redis.Sentinel, redis.asyncio.Sentinel)
_TLS_CONNECTIONS = (redis.connection.SSLConnection, asyncio_connection.SSLConnection)
_SENTINEL_CONNECTIONS = (redis.sentinel.SentinelManagedConnection, redis.asyncio.sentinel.SentinelManagedConnection)
_CONNECTIONS = (
    redis.connection.Connection,
    redis.connection.UnixDomainSocketConnection,
    asyncio_connection.Connection,
    asyncio_connection.UnixDomainSocketConnection,
)
