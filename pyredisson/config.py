"""Where the server is and how a client behaves: durations, addresses, redis-py clients, Redisson's YAML."""

from __future__ import annotations

import dataclasses
import difflib
import logging
import math
import os
import re
import ssl as tls
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from typing import IO, TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import redis
import redis.asyncio
import redis.asyncio.connection as asyncio_connection
import redis.asyncio.sentinel
import redis.connection
import redis.sentinel
from redis.credentials import CredentialProvider

from pyredisson.errors import ConfigError

if TYPE_CHECKING:
    import yaml

    _Reader = Callable[[yaml.Node, str], Any]

log = logging.getLogger("pyredisson")

Duration = float | timedelta
MAX_LEASE_MS = 2**52


def seconds(value: Duration, name: str, *, minimum: float = 0.0, allow_inf: bool = False) -> float:
    """The duration `value` in seconds, as a float.

    `name` is the argument's name, for the message. TypeError when it is neither a number nor a timedelta
    (a bool is neither); ValueError when it is NaN, below `minimum`, or infinite without `allow_inf`.
    """
    if isinstance(value, timedelta):
        result = value.total_seconds()
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            result = float(value)
        except OverflowError:  # an int beyond the floats
            result = math.inf if value > 0 else -math.inf
    else:
        raise TypeError(f"{name} must be seconds (int or float) or a timedelta, not {type(value).__name__}")
    if math.isnan(result):
        raise ValueError(f"{name} must be a number of seconds, not NaN")
    if result < minimum:
        raise ValueError(f"{name} must be at least {minimum:g} s, not {result:g} s")
    if math.isinf(result) and not allow_inf:
        raise ValueError(f"{name} must be finite")
    return result


def lease_ms(value: Duration, name: str = "lease_time") -> int:
    """The lease `value` (seconds or a timedelta) in whole milliseconds, the server's unit; halves go up.

    Count a local deadline from this number, not from `value`: where it was rounded down, the holder would
    believe longer than the server does. ValueError below 1 ms and above 2**52 ms (142,000 years): scripts
    count in doubles, and the server's time plus the lease must stay below 2**53 to be exact; PEXPIRE itself
    refuses only near 2**63. TypeError as for `seconds`.
    """
    ms = seconds(value, name) * 1000
    if ms < 1:
        raise ValueError(f"{name} must be at least 1 ms (0.001 s)")
    if ms > MAX_LEASE_MS:
        raise ValueError(f"{name} is longer than the server can hold ({MAX_LEASE_MS // 1000} s)")
    return math.floor(ms + 0.5)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Every setting of a client.

    Durations are seconds, kept as float; a timedelta does too (where types are checked: through `connect` or
    `Config.of`). A value that can't be used raises ConfigError, which is a ValueError, naming the field.
    """

    lock_watchdog_timeout: float = 30.0
    """The lease of a lock taken without `lease_time`; the watchdog renews it every third of that."""
    fair_lock_wait_timeout: float = 300.0
    """How long a waiter of a fair lock keeps its place without showing up."""
    check_lock_synced_replicas: bool = True
    """Whether an acquire counts only when the replicas have it (not with a single server)."""
    replicas_sync_timeout: float = 1.0
    """How long to wait for the replicas to confirm."""
    sharded_pubsub: Literal["auto"] | bool = "auto"
    """Whether to use SPUBLISH and SSUBSCRIBE; "auto": where the server is a cluster that knows them."""
    retry_attempts: int = 4
    """How often a command is sent again after a failure; 0: never."""
    connect_timeout: float = 10.0
    """How long connecting may take, the handshake included."""
    timeout: float = 3.0
    """How long a reply may take."""
    name_mapper: Callable[[str], str] | None = None
    """Turns an object's name into the one on the server."""

    host: str = "localhost"
    port: int = 6379
    path: str | None = None
    """A unix socket; `host` and `port` are not used then."""
    database: int = 0
    username: str | None = None
    password: str | None = dataclasses.field(default=None, repr=False)
    credential_provider: CredentialProvider | None = dataclasses.field(default=None, repr=False)
    """redis-py's; asked at every connect, instead of `username` and `password`."""
    client_name: str | None = None
    """What CLIENT LIST shows."""
    ssl: bool = False
    """Whether to speak TLS."""
    ssl_context: tls.SSLContext | None = dataclasses.field(default=None, repr=False)
    """How; Python's default context (certificate and host name checked) when `ssl` is set without one."""
    server_hostname: str | None = None
    """The name that the server's certificate must carry; `host` when None."""
    connection_pool_size: int = 64
    """The most connections of one client, subscriptions and the watchdog aside."""
    ping_interval: float = 10.0
    """How long a subscription may stay silent before it is asked, and then cut; 0: never asked."""
    socket_keepalive: bool = True

    def __post_init__(self) -> None:
        for name, (shortest, longest) in _DURATIONS.items():
            try:
                duration = seconds(getattr(self, name), name, minimum=shortest)
            except (TypeError, ValueError) as error:
                raise ConfigError(str(error)) from None
            if duration > longest:
                raise ConfigError(f"{name} must be at most {longest:.0f} s")
            object.__setattr__(self, name, duration)
        for name, (lowest, highest) in _INTEGERS.items():
            value = getattr(self, name)
            if type(value) is not int or not lowest <= value <= highest:
                raise ConfigError(f"{name} must be an integer from {lowest} to {highest}, not {value!r}")
        for name in _FLAGS:
            if type(getattr(self, name)) is not bool:
                raise ConfigError(f"{name} must be True or False")
        for name in _TEXTS:
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):  # the value may be a password: never shown
                raise ConfigError(f"{name} must be text or None, not {type(value).__name__}")
        if not isinstance(self.host, str) or not self.host:
            raise ConfigError("host must be a name or an address")
        if self.path == "":
            raise ConfigError("path must name a unix socket")
        if self.sharded_pubsub != "auto" and type(self.sharded_pubsub) is not bool:
            raise ConfigError('sharded_pubsub must be "auto", True or False')
        if self.name_mapper is not None and not callable(self.name_mapper):
            raise ConfigError("name_mapper must be a function from str to str, or None")
        if self.credential_provider is not None and (self.username is not None or self.password is not None):
            raise ConfigError("credential_provider stands instead of username and password; give one of them")
        if self.ssl and self.path is not None:
            raise ConfigError("TLS (ssl) isn't spoken over a unix socket (path)")
        if self.ssl_context is not None and not self.ssl:
            raise ConfigError("ssl_context needs ssl=True or rediss://")  # else it would talk in the clear
        if self.ssl and self.ssl_context is None:
            object.__setattr__(self, "ssl_context", tls.create_default_context())

    @classmethod
    def of(cls, address: object = None, **fields: Any) -> Config:
        """What `connect` takes, as a Config: None (localhost), a URL, a Config, or redis-py's client.

        `fields` are Config fields and win over what the address says. A client's pool is not used, only its
        settings. ConfigError for a URL or a client that can't be used, TypeError for anything else.
        """
        if isinstance(address, cls):
            return dataclasses.replace(address, **fields) if fields else address
        return cls(**{**_settings(address), **fields})

    @classmethod
    def from_yaml(cls, source: str | os.PathLike[str] | IO[str], **fields: Any) -> Config:
        """Redisson's own file, single server: a path, an open text file, or text with a newline in it.

        `${NAME}` and `${NAME:-default}` are taken from the environment; durations are milliseconds there.
        Keys that mean nothing in Python are named once in the log, at INFO. `fields` are Config fields and
        win; `name_mapper` and `credential_provider` stand in for Java classes. ConfigError for an unknown key
        or a value that can't be used.
        """
        # A path has no newline; text taken for a path would be quoted by FileNotFoundError, password and all.
        if isinstance(source, str) and "\n" in source:
            text = source
        elif isinstance(source, (str, os.PathLike)):
            with open(source, encoding="utf-8") as file:
                text = file.read()
        else:
            text = source.read()
        return cls(**{**_from_yaml(text, fields), **fields})


_LONGEST_LEASE = MAX_LEASE_MS / 1000
_LONGEST_SOCKET_WAIT = (2**31 - 1) / 1000  # above, settimeout() wraps round and times out early
_DURATIONS = {
    "lock_watchdog_timeout": (0.001, _LONGEST_LEASE),
    "fair_lock_wait_timeout": (0.001, _LONGEST_LEASE),
    "replicas_sync_timeout": (0.001, _LONGEST_SOCKET_WAIT),  # WAIT takes 0 as for ever
    "connect_timeout": (0.001, _LONGEST_SOCKET_WAIT),
    "timeout": (0.001, _LONGEST_SOCKET_WAIT),
    "ping_interval": (0.0, _LONGEST_SOCKET_WAIT),
}
_INTEGERS = {
    "retry_attempts": (0, 2**31 - 1),
    "port": (1, 65535),
    "database": (0, 2**31 - 1),
    "connection_pool_size": (1, 2**31 - 1),
}
_FLAGS = ("check_lock_synced_replicas", "ssl", "socket_keepalive")
_TEXTS = ("path", "username", "password", "client_name", "server_hostname")


def _settings(address: object) -> dict[str, Any]:
    """The Config fields that an address stands for."""
    if address is None:
        return {}
    if isinstance(address, str):
        return _from_url(address)
    if isinstance(address, (redis.Redis, redis.asyncio.Redis)):
        return _from_client(address)
    if isinstance(address, _LATER):
        raise ConfigError(f"{type(address).__name__}: {_NOT_YET}")
    raise TypeError(
        "an address is None, a URL (redis://, rediss://, unix://), a Config, a redis.Redis or a"
        f" redis.asyncio.Redis, not {type(address).__name__}"
    )


_NOT_YET = "only a single server (redis://, rediss://, unix://) is available in this version"
_LATER = (
    redis.RedisCluster,
    redis.asyncio.RedisCluster,
    redis.Sentinel,
    redis.asyncio.Sentinel,
)


def _from_url(url: str) -> dict[str, Any]:
    url = re.sub(r"^valkey(s?)://", r"redis\1://", url)  # as Redisson spells the same two
    if url.startswith(("redis+cluster://", "redis+sentinel://")):
        raise ConfigError(f"{url.partition(':')[0]}: {_NOT_YET}")
    # No detail, and no cause: of `redis://:pa#ss@host` they would quote the port `pa`.
    unreadable = ConfigError(
        "the URL can't be read: redis:// or rediss://user:password@host:port/database, or"
        " unix://user:password@/path, with redis-py's options; / ? # @ in a password are percent-encoded"
    )
    try:
        options: dict[str, Any] = redis.connection.parse_url(url)  # type: ignore[no-untyped-call]
        parts = urlsplit(url)
        if parts.scheme == "unix":
            readable = bool(parts.path) and not parts.hostname  # unix://run/x would be /x on the host run
        else:  # redis-py takes any other path for database 0, and port 0 for 6379
            readable = re.fullmatch(r"/?\d*/?", parts.path) is not None and parts.port != 0
    except ValueError:
        raise unreadable from None
    if not readable or parts.fragment or not all("=" in option for option in parts.query.split("&") if option):
        raise unreadable
    options.pop("connection_class", None)
    unknown = options.keys() - _TAKEN.keys() - _TLS_OPTIONS - _OCSP_OPTIONS - _IRRELEVANT_OPTIONS
    if unknown and "@" in parts.query:  # of `redis://:1?pass=word@host` the option would be a part of the password
        raise unreadable
    if unknown:
        raise ConfigError(f"unknown URL options: {', '.join(sorted(unknown))}")
    return _from_options(options, ssl=parts.scheme == "rediss")


def _from_client(client: Any) -> dict[str, Any]:
    pool = client.connection_pool
    options = dict(pool.connection_kwargs)
    kind = pool.connection_class
    if not issubclass(kind, _CONNECTIONS) or issubclass(kind, _SENTINEL_CONNECTIONS):
        raise ConfigError(f"a client whose connections are {kind.__name__}: {_NOT_YET}")
    if options.get("redis_connect_func") is not None:
        raise ConfigError("a client with a redis_connect_func can't be taken over: its handshake is unknown")
    if pool.max_connections < 2**31:  # an older redis-py's way to say: no limit
        options["max_connections"] = pool.max_connections
    return _from_options(options, ssl=issubclass(kind, _TLS_CONNECTIONS))


def _from_options(options: Mapping[str, Any], *, ssl: bool) -> dict[str, Any]:
    """Config fields from redis-py's connection options; None, no limit there, leaves our default."""
    settings: dict[str, Any] = {field: options[name] for name, field in _TAKEN.items() if options.get(name) is not None}
    if ssl:
        settings |= {"ssl": True, "ssl_context": _ssl_context(options)}
    return settings


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
    "timeout",  # redis-py's wait for a free connection, not a reply's time
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


def _ssl_context(options: Mapping[str, Any], *, truststore: str | None = None) -> tls.SSLContext:
    """What redis-py would make of its ssl_* options; a truststore replaces the system's authorities."""
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


def _from_yaml(text: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    import yaml  # here: most programs never read a file, and every import of pyredisson would pay for it

    text = _PLACEHOLDER.sub(lambda m: os.environ.get(m[1], m[0] if m[2] is None else m[2]), text)
    try:
        # Composed, not loaded: Java's !<class> tags are harmless, a password `0123` or `yes` stays as it is.
        document = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"not valid YAML{where}") from None  # the reason may quote a password
    root = _mapping(document, "the file")
    for key in root:
        if key.endswith("ServersConfig"):
            raise ConfigError(f"{key} isn't available in this version, only singleServerConfig is")
    if "singleServerConfig" not in root:
        raise ConfigError("singleServerConfig is missing")
    server = _mapping(root.pop("singleServerConfig"), "singleServerConfig")
    shared = _SHARED_KEYS.keys() | _TLS_KEYS | _JAVA_CLASSES.keys() | _IGNORED_SHARED
    _refuse_unknown(root, shared | _ROOT_KEYS.keys() | _IGNORED_ROOT)
    _refuse_unknown(server, shared | _SERVER_KEYS.keys() | _IGNORED_SERVER | {"address"})

    nodes = {key: node for part in (root, server) for key, node in part.items() if node.tag != _NULL}
    ignored = sorted(nodes.keys() & (_IGNORED_ROOT | _IGNORED_SHARED | _IGNORED_SERVER))
    if ignored:
        log.info("Redisson settings that have no meaning in Python: %s", ", ".join(ignored))
    for key, (default, instead) in _JAVA_CLASSES.items():
        # Each place counts: one mapper overlooked, and Java and Python lock different keys.
        tags = {part[key].tag for part in (root, server) if key in part} - {_NULL}
        if instead not in fields and any(tag.rpartition(".")[2] != default for tag in tags):
            advice = f"; give {instead}= beside the file" if instead else ""
            raise ConfigError(f"{key}: a Java class can't be taken over{advice}")

    settings = _from_url(_address(nodes))
    for key, (field, read) in (_ROOT_KEYS | _SHARED_KEYS | _SERVER_KEYS).items():
        if key in nodes:
            settings[field] = read(nodes[key], key)
    if str(settings.get("password")).startswith("{aes}"):
        raise ConfigError("password: encrypted by Redisson PRO, which can't be undone here")
    if settings.get("ssl"):
        settings["ssl_context"] = _redisson_ssl_context(nodes)
    return settings


def _address(nodes: Mapping[str, yaml.Node]) -> str:
    if "address" not in nodes:
        raise ConfigError("singleServerConfig: address is missing")
    addresses = _texts(nodes["address"], "address")
    if len(addresses) != 1:
        raise ConfigError("singleServerConfig: address must be one address")
    return addresses[0]


def _redisson_ssl_context(nodes: Mapping[str, yaml.Node]) -> tls.SSLContext:
    options: dict[str, Any] = {}
    verification = "STRICT"
    endpoint = nodes.get("sslEnableEndpointIdentification")
    if endpoint is not None and not _flag(endpoint, "sslEnableEndpointIdentification"):
        verification = "NONE"  # as Redisson reads it: the certificate isn't checked either
    if "sslVerificationMode" in nodes:
        verification = _text(nodes["sslVerificationMode"], "sslVerificationMode")
    if verification not in ("NONE", "CA_ONLY", "STRICT"):
        raise ConfigError("sslVerificationMode must be NONE, CA_ONLY or STRICT")
    options["ssl_cert_reqs"] = "none" if verification == "NONE" else "required"
    options["ssl_check_hostname"] = verification == "STRICT"
    if "sslKeystore" in nodes:
        options["ssl_certfile"] = _pem(nodes["sslKeystore"], "sslKeystore")
        if "sslKeystorePassword" in nodes:
            options["ssl_password"] = _text(nodes["sslKeystorePassword"], "sslKeystorePassword")
    if "sslProtocols" in nodes:
        protocols = _texts(nodes["sslProtocols"], "sslProtocols")
        try:
            options["ssl_min_version"] = min(tls.TLSVersion[name.replace(".", "_")] for name in protocols)
        except (KeyError, ValueError):
            raise ConfigError("sslProtocols must list some of TLSv1.3, TLSv1.2, TLSv1.1, TLSv1") from None
    if "sslCiphers" in nodes:
        options["ssl_ciphers"] = ":".join(_texts(nodes["sslCiphers"], "sslCiphers"))
    truststore = _pem(nodes["sslTruststore"], "sslTruststore") if "sslTruststore" in nodes else None
    return _ssl_context(options, truststore=truststore)


def _pem(node: yaml.Node, key: str) -> str:
    """The path of a PEM file that Redisson names by URL (file:...) or path."""
    path = re.sub(r"^file:(//(?=/))?", "", _text(node, key))
    try:
        with open(path, "rb") as file:
            is_pem = b"-----BEGIN " in file.read()
    except OSError as error:
        raise ConfigError(f"{key}: {error}") from error
    if not is_pem:
        raise ConfigError(f"{key}: Java's key stores can't be read here; convert {path} to PEM")
    return path


def _mapping(node: yaml.Node | None, where: str) -> dict[str, yaml.Node]:
    if node is None or _kind(node) != "mapping" or any(_kind(key) != "scalar" for key, _ in node.value):
        raise ConfigError(f"{where} must hold settings, each a name and a value")
    return {key.value: value for key, value in node.value}


def _kind(node: yaml.Node) -> Literal["scalar", "sequence", "mapping"]:
    return node.id  # type: ignore[attr-defined, no-any-return]  # in PyYAML, but not in its stubs


def _refuse_unknown(settings: Mapping[str, yaml.Node], known: Collection[str]) -> None:
    for key in settings:
        if key not in known:
            close = difflib.get_close_matches(key, sorted(known), 1)
            raise ConfigError(f"unknown setting {key}" + (f"; did you mean {close[0]}?" if close else ""))


def _text(node: yaml.Node, key: str) -> str:
    if _kind(node) != "scalar":
        raise ConfigError(f"{key} must be a single value")
    if match := _PLACEHOLDER.search(node.value):
        raise ConfigError(f"{key}: {match[1]} isn't set in the environment")
    return str(node.value)


def _texts(node: yaml.Node, key: str) -> list[str]:
    return [_text(item, key) for item in node.value] if _kind(node) == "sequence" else [_text(node, key)]


def _integer(node: yaml.Node, key: str) -> int:
    text = _text(node, key)
    if not re.fullmatch(r"[+-]?[0-9]{1,19}", text):  # 19: Java's long; int() itself refuses far longer ones
        raise ConfigError(f"{key} must be a whole number")
    return int(text)


def _milliseconds(node: yaml.Node, key: str) -> float:
    return _integer(node, key) / 1000


def _flag(node: yaml.Node, key: str) -> bool:
    text = _text(node, key).lower()
    if text not in ("true", "false"):
        raise ConfigError(f"{key} must be true or false")
    return text == "true"


_PLACEHOLDER = re.compile(r"\$\{([\w.]+)(?::-([^}]*))?\}")
_NULL = "tag:yaml.org,2002:null"

# Redisson's key: the field, and how its text is read. Shared keys stand at the root or beside the address.
_ROOT_KEYS: dict[str, tuple[str, _Reader]] = {
    "lockWatchdogTimeout": ("lock_watchdog_timeout", _milliseconds),
    "fairLockWaitTimeout": ("fair_lock_wait_timeout", _milliseconds),
    "checkLockSyncedSlaves": ("check_lock_synced_replicas", _flag),
    "slavesSyncTimeout": ("replicas_sync_timeout", _milliseconds),
}
_SHARED_KEYS: dict[str, tuple[str, _Reader]] = {
    "username": ("username", _text),
    "password": ("password", _text),
    "tcpKeepAlive": ("socket_keepalive", _flag),
}
_SERVER_KEYS: dict[str, tuple[str, _Reader]] = {
    "database": ("database", _integer),
    "clientName": ("client_name", _text),
    "connectTimeout": ("connect_timeout", _milliseconds),
    "timeout": ("timeout", _milliseconds),
    "retryAttempts": ("retry_attempts", _integer),
    "connectionPoolSize": ("connection_pool_size", _integer),
    "pingConnectionInterval": ("ping_interval", _milliseconds),
    "keepAlive": ("socket_keepalive", _flag),
}
_TLS_KEYS = {
    "sslCiphers",
    "sslEnableEndpointIdentification",
    "sslKeystore",
    "sslKeystorePassword",
    "sslProtocols",
    "sslTruststore",
    "sslVerificationMode",
}
# The class that does nothing, and the field that stands in for any other.
_JAVA_CLASSES = {
    "commandMapper": ("DefaultCommandMapper", None),
    "credentialsResolver": ("DefaultCredentialsResolver", "credential_provider"),
    "nameMapper": ("DefaultNameMapper", "name_mapper"),
}
_IGNORED_ROOT = {
    "addressResolverGroupFactory",
    "cleanUpKeysAmount",
    "codec",
    "codecProvider",
    "connectionListener",
    "decodeInExecutor",
    "eventLoopGroup",
    "executor",
    "keepPubSubOrder",
    "lazyInitialization",
    "lockWatchdogBatchSize",
    "maxCleanUpDelay",
    "meterMode",
    "meterRegistryProvider",
    "minCleanUpDelay",
    "nettyExecutor",
    "nettyHook",
    "nettyThreads",
    "performanceMode",
    "protocol",
    "redissonReferenceEnabled",
    "referenceCodecProvider",
    "referenceEnabled",
    "registrationKey",
    "reliableTopicWatchdogTimeout",
    "resolverProvider",
    "threads",
    "transportMode",
    "useLinuxNativeEpoll",
    "useScriptCache",
    "useThreadClassLoader",
    "valkeyCapabilities",
}
_IGNORED_SHARED = {
    "secretKey",
    "sslKeyManagerFactory",
    "sslKeystoreType",
    "sslProvider",
    "sslTrustManagerFactory",
    "sslTruststorePassword",
    "tcpKeepAliveCount",
    "tcpKeepAliveIdle",
    "tcpKeepAliveInterval",
    "tcpNoDelay",
    "tcpUserTimeout",
}
_IGNORED_SERVER = {
    "connectionMinimumIdleSize",
    "credentialsReapplyInterval",
    "dnsMonitoring",
    "dnsMonitoringInterval",
    "failedAttempts",
    "idleConnectionTimeout",
    "pingTimeout",
    "reconnectionDelay",
    "reconnectionTimeout",
    "retryDelay",
    "retryInterval",
    "subscriptionConnectionMinimumIdleSize",
    "subscriptionConnectionPoolSize",
    "subscriptionTimeout",
    "subscriptionsPerConnection",
    "tlsVersion",
}
