"""Reads Redisson's YAML file as fields of a Config."""

from __future__ import annotations

import os
import re
import ssl as tls
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import IO, Any, Literal, NamedTuple

import yaml

from pyredisson._diagnostics import logger
from pyredisson._settings.address import REDIS_PORT, SENTINEL_PORT, Address, AddressMap
from pyredisson._settings.fields import names, refuse_unknown
from pyredisson._settings.redis_options import settings_of_url, ssl_context
from pyredisson.errors import ConfigError


def settings_of_file(source: str | os.PathLike[str] | IO[str], given: Collection[str]) -> dict[str, Any]:
    """The Config fields that a file sets, as `Config.from_yaml` says. `given`: the fields that the caller sets."""
    root = as_mapping(load(source), "the file")
    section, mode = _section(root)
    servers = as_mapping(root.pop(section), section)
    refuse_unknown(root, ROOT)
    known = _SHARED | mode.keys.keys() | _SERVER_KEYS.keys() | mode.ignored | _IGNORED_SERVER | {*mode.addresses}
    refuse_unknown(servers, known)

    nodes = {key: node for part in (root, servers) for key, node in part.items() if node.tag != NULL}
    ignored = sorted(nodes.keys() & (IGNORED | mode.ignored))
    if ignored:
        logger.info("Redisson settings that have no meaning in Python: %s", ", ".join(ignored))
    _refuse_java_classes((root, servers), given)

    settings = _servers(section, mode, nodes)
    for key, (field, read) in (_ROOT_KEYS | _SHARED_KEYS | _SERVER_KEYS | mode.keys).items():
        # A Java class that the caller replaces may have settings that are unknown here.
        if key in nodes and not (key in JAVA_CLASSES and field in given):
            settings[field] = read(nodes[key], key)
    for name in ("password", "sentinel_password"):
        if str(settings.get(name)).startswith("{aes}"):
            raise ConfigError(f"{name}: encrypted by Redisson PRO, which can't be undone here")
    for name in ("ssl", "sentinel_ssl"):
        if settings.get(name):
            settings[f"{name}_context"] = redisson_ssl_context(nodes)
    # As in Redisson. Its own files have the keys of verification in any case.
    unused = sorted(nodes.keys() & TLS_KEYS - {"sslEnableEndpointIdentification", "sslVerificationMode"})
    if unused and not settings.get("ssl"):
        logger.warning("%s: without effect, as the addresses don't begin with rediss://", ", ".join(unused))
    return settings


def _section(root: Mapping[str, yaml.Node]) -> tuple[str, Mode]:
    """The section of the servers: its name, and what it may contain."""
    found = [key for key in root if key.endswith("ServersConfig") or key in MODES]
    for key in found:
        if key not in MODES:
            raise ConfigError(f"{key} isn't supported, only {', '.join(MODES)}")
    if len(found) != 1:
        raise ConfigError(f"the file needs one of {', '.join(MODES)}" + ", not several" * bool(found))
    return found[0], MODES[found[0]]


def _servers(section: str, mode: Mode, nodes: Mapping[str, yaml.Node]) -> dict[str, Any]:
    if mode.addresses[0] not in nodes:
        raise ConfigError(f"{section}: {mode.addresses[0]} is missing")
    addresses = [url for key in mode.addresses if key in nodes for url in as_texts(nodes[key], key)]
    if mode.topology == "single":
        if len(addresses) != 1:
            raise ConfigError(f"{section}: address must be one address")
        return settings_of_url(addresses[0])
    port = SENTINEL_PORT if mode.topology == "sentinel" else REDIS_PORT
    servers = [settings_of_url(address) for address in addresses]
    if any(server.keys() & {"path", "topology"} or "host" not in server for server in servers):
        raise ConfigError(f"{section}: each address must be redis://host:port or rediss://host:port")
    found = [Address(server.pop("host"), server.pop("port", port)) for server in servers]
    for server in servers:
        server.pop("ssl_context", None)  # made from the keys of the file
    if any(server != servers[0] for server in servers):
        raise ConfigError(f"{section}: all addresses must have the same scheme, credentials and options")
    settings = dict(servers[0]) if servers else {}
    if mode.topology == "sentinel":
        # Redisson talks to the master over TLS if it does to the Sentinels.
        own = {name: settings.pop(name) for name in ("username", "password") if name in settings}
        settings |= {f"sentinel_{name}": value for name, value in own.items()}
        settings["sentinel_ssl"] = settings.get("ssl", False)
    return {**settings, "topology": mode.topology, "nodes": tuple(found)}


def _refuse_java_classes(parts: Sequence[Mapping[str, yaml.Node]], given: Collection[str]) -> None:
    for key, (accepted, field) in JAVA_CLASSES.items():
        # At the root and beside the address: with a name mapper overlooked, Java and Python would lock different keys.
        tags = {part[key].tag for part in parts if key in part} - {NULL}
        if field not in given and any(tag.rpartition(".")[2] not in accepted for tag in tags):
            advice = f"; give {field}= beside the file" if field else ""
            raise ConfigError(f"{key}: a Java class can't be taken over{advice}")


NULL = "tag:yaml.org,2002:null"


def load(source: str | os.PathLike[str] | IO[str]) -> yaml.Node | None:
    """The root node of a file, with placeholders replaced. None: it is empty. ConfigError: it isn't YAML.

    Nodes, not values: Java's tags have no effect then, and a password `0123` or `yes` stays text.
    """
    try:
        text = _PLACEHOLDER.sub(lambda m: os.environ.get(m[1], m[0] if m[2] is None else m[2]), _content(source))
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except UnicodeDecodeError:
        raise ConfigError("not valid YAML: it isn't UTF-8") from None  # the error has the whole file, with its password
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"not valid YAML{where}") from None  # without the reason, which may quote a password


def as_mapping(node: yaml.Node | None, where: str) -> dict[str, yaml.Node]:
    """The entries of a mapping. `where` names it, for the message; in the functions below `key` does."""
    if node is None or _kind(node) != "mapping" or any(_kind(key) != "scalar" for key, _ in node.value):
        raise ConfigError(f"{where} must hold settings, each a name and a value")
    return {key.value: value for key, value in node.value}


def as_text(node: yaml.Node, key: str) -> str:
    if _kind(node) != "scalar":
        raise ConfigError(f"{key} must be a single value")
    if match := _PLACEHOLDER.search(node.value):
        raise ConfigError(f"{key}: {match[1]} isn't set in the environment")
    return str(node.value)


def as_texts(node: yaml.Node, key: str) -> list[str]:
    """The texts of a sequence, or a single text as a list of one."""
    return [as_text(item, key) for item in node.value] if _kind(node) == "sequence" else [as_text(node, key)]


def as_text_mapping(node: yaml.Node, key: str) -> dict[str, str]:
    return {name: as_text(value, key) for name, value in as_mapping(node, key).items() if value.tag != NULL}


def as_integer(node: yaml.Node, key: str) -> int:
    text = as_text(node, key)
    if not re.fullmatch(r"[+-]?[0-9]{1,19}", text):  # 19 digits: Java's long
        raise ConfigError(f"{key} must be a whole number")
    return int(text)


def as_seconds(node: yaml.Node, key: str) -> float:
    return as_integer(node, key) / 1000


def as_flag(node: yaml.Node, key: str) -> bool:
    text = as_text(node, key).lower()
    if text not in ("true", "false"):
        raise ConfigError(f"{key} must be true or false")
    return text == "true"


def _content(source: str | os.PathLike[str] | IO[str]) -> str:
    # Text with a newline can't be a path. Opened as a path, FileNotFoundError would quote it with its password.
    if isinstance(source, str) and "\n" in source:
        return source
    if isinstance(source, (str, os.PathLike)):
        with open(source, encoding="utf-8") as file:
            return file.read()
    return source.read()


def _kind(node: yaml.Node) -> Literal["scalar", "sequence", "mapping"]:
    return node.id  # type: ignore[attr-defined, no-any-return]  # in PyYAML, but not in its stubs


_PLACEHOLDER = re.compile(r"\$\{([\w.]+)(?::-([^}]*))?\}")


TLS_KEYS = names(
    """
    sslCiphers sslEnableEndpointIdentification sslKeystore sslKeystorePassword sslProtocols sslTruststore
    sslVerificationMode
    """
)


def redisson_ssl_context(nodes: Mapping[str, yaml.Node]) -> tls.SSLContext:
    """The TLS context for the settings in `nodes`. ConfigError: one of them can't be used."""

    def given(key: str, read: Callable[[yaml.Node, str], Any], default: Any = None) -> Any:
        return read(nodes[key], key) if key in nodes else default

    # As in Redisson, where the certificate isn't checked without endpoint identification, either.
    default = "STRICT" if given("sslEnableEndpointIdentification", as_flag, True) else "NONE"
    verification = given("sslVerificationMode", as_text, default)
    if verification not in ("NONE", "CA_ONLY", "STRICT"):
        raise ConfigError("sslVerificationMode must be NONE, CA_ONLY or STRICT")
    options = {
        "ssl_cert_reqs": "none" if verification == "NONE" else "required",
        "ssl_check_hostname": verification == "STRICT",
        "ssl_certfile": given("sslKeystore", _pem),
        "ssl_password": given("sslKeystorePassword", as_text) if "sslKeystore" in nodes else None,
        "ssl_ciphers": ":".join(given("sslCiphers", as_texts, ())),
    }
    if (protocols := given("sslProtocols", as_texts)) is not None:
        try:
            options["ssl_min_version"] = min(tls.TLSVersion[name.replace(".", "_")] for name in protocols)
        except (KeyError, ValueError):
            raise ConfigError("sslProtocols must list some of TLSv1.3, TLSv1.2, TLSv1.1, TLSv1") from None
    return ssl_context(options, truststore=given("sslTruststore", _pem))


def _pem(node: yaml.Node, key: str) -> str:
    """The path of a PEM file, from a path or a URL (file:...)."""
    path = re.sub(r"^file:(//(?=/))?", "", as_text(node, key))
    try:
        with open(path, "rb") as file:
            is_pem = b"-----BEGIN " in file.read()
    except OSError as error:
        raise ConfigError(f"{key}: {error}") from error
    if not is_pem:
        raise ConfigError(f"{key}: Java's key stores can't be read here; convert {path} to PEM")
    return path


Keys = dict[str, tuple[str, Callable[[yaml.Node, str], Any]]]
"""Redisson's key: the field of Config, and the function that reads the key's value."""


class Mode(NamedTuple):
    """One of Redisson's modes: the section of the file that describes its servers."""

    topology: str
    addresses: tuple[str, ...]
    """The keys of the servers' addresses. The first one is required."""
    keys: Keys
    """What the servers' section may set, beside what every mode has."""
    ignored: frozenset[str]


def _sharded_pubsub(node: yaml.Node, key: str) -> str:
    mode = as_text(node, key)
    if mode not in ("AUTO", "ON", "OFF"):
        raise ConfigError(f"{key} must be AUTO, ON or OFF")
    return mode.lower()


def _nat_map(node: yaml.Node, key: str) -> AddressMap:
    """The table of a `HostPortNatMapper`: an address that servers announce, and the one that replaces it."""
    try:
        table = {Address.parse(old): Address.parse(new) for old, new in as_text_mapping(node, key).items()}
    except ValueError as error:
        raise ConfigError(f"{key}: {error}") from error
    return AddressMap(table)


def _nat_mapper(node: yaml.Node, key: str) -> AddressMap | None:
    """One of Redisson's own mappers. None: it has no table, and maps nothing."""
    settings = {name: table for name, table in as_mapping(node, key).items() if table.tag != NULL}
    refuse_unknown(settings, {"hostsMap", "hostsPortMap"})
    if "hostsPortMap" in settings:
        return _nat_map(settings["hostsPortMap"], "hostsPortMap")
    return AddressMap(hosts=as_text_mapping(settings["hostsMap"], "hostsMap")) if settings else None


_ROOT_KEYS: Keys = {
    "lockWatchdogTimeout": ("lock_watchdog_timeout", as_seconds),
    "fairLockWaitTimeout": ("fair_lock_wait_timeout", as_seconds),
    "checkLockSyncedSlaves": ("check_lock_synced_replicas", as_flag),
    "slavesSyncTimeout": ("replicas_sync_timeout", as_seconds),
}
# At the root or in the section of the servers.
_SHARED_KEYS: Keys = {
    "username": ("username", as_text),
    "password": ("password", as_text),
    "tcpKeepAlive": ("socket_keepalive", as_flag),
}
_SERVER_KEYS: Keys = {
    "database": ("database", as_integer),
    "clientName": ("client_name", as_text),
    "connectTimeout": ("connect_timeout", as_seconds),
    "timeout": ("timeout", as_seconds),
    "retryAttempts": ("retry_attempts", as_integer),
    "pingConnectionInterval": ("ping_interval", as_seconds),
    "keepAlive": ("socket_keepalive", as_flag),
}
_POOL: Keys = {"masterConnectionPoolSize": ("connection_pool_size", as_integer)}
_SCAN: Keys = {"scanInterval": ("topology_refresh_interval", as_seconds)}
_NAT: Keys = {"natMap": ("address_mapper", _nat_map), "natMapper": ("address_mapper", _nat_mapper)}
_SENTINEL_KEYS: Keys = {
    "masterName": ("master_name", as_text),
    "sentinelUsername": ("sentinel_username", as_text),
    "sentinelPassword": ("sentinel_password", as_text),
}
# The Java classes that are accepted, and the field that replaces any other class.
JAVA_CLASSES: dict[str, tuple[set[str], str | None]] = {
    "commandMapper": ({"DefaultCommandMapper"}, None),
    "credentialsResolver": ({"DefaultCredentialsResolver"}, "credential_provider"),
    "nameMapper": ({"DefaultNameMapper"}, "name_mapper"),
    "natMapper": ({"DefaultNatMapper", "HostNatMapper", "HostPortNatMapper"}, "address_mapper"),
}
_IGNORED_ROOT = names(
    """
    addressResolverGroupFactory cleanUpKeysAmount codec codecProvider connectionListener decodeInExecutor
    eventLoopGroup executor keepPubSubOrder lazyInitialization lockWatchdogBatchSize maxCleanUpDelay meterMode
    meterRegistryProvider minCleanUpDelay nettyExecutor nettyHook nettyThreads performanceMode protocol
    redissonReferenceEnabled referenceCodecProvider referenceEnabled registrationKey reliableTopicWatchdogTimeout
    resolverProvider threads transportMode useLinuxNativeEpoll useScriptCache useThreadClassLoader
    valkeyCapabilities
    """
)
_IGNORED_SHARED = names(
    """
    secretKey sslKeyManagerFactory sslKeystoreType sslProvider sslTrustManagerFactory sslTruststorePassword
    tcpKeepAliveCount tcpKeepAliveIdle tcpKeepAliveInterval tcpNoDelay tcpUserTimeout
    """
)
_IGNORED_SERVER = names(
    """
    credentialsReapplyInterval dnsMonitoring dnsMonitoringInterval dnsMonitoringTimes failedAttempts
    idleConnectionTimeout pingTimeout reconnectionDelay reconnectionTimeout retryDelay retryInterval
    subscriptionConnectionMinimumIdleSize subscriptionConnectionPoolSize subscriptionTimeout
    subscriptionsPerConnection tlsVersion
    """
)
_IGNORED_OF_REPLICAS = names(
    """
    failedSlaveCheckInterval failedSlaveNodeDetector failedSlaveReconnectionInterval fallbackLoadingToMaster
    loadBalancer masterConnectionMinimumIdleSize readMode slaveConnectionMinimumIdleSize slaveConnectionPoolSize
    slaveSubscriptionConnectionMinimumIdleSize slaveSubscriptionConnectionPoolSize subscriptionMode
    """
)
_SHARED = _SHARED_KEYS.keys() | TLS_KEYS | (JAVA_CLASSES.keys() - _NAT.keys()) | _IGNORED_SHARED
ROOT = _SHARED | _ROOT_KEYS.keys() | _IGNORED_ROOT
"""All keys that the root may contain, beside the section of the servers."""
IGNORED = _IGNORED_ROOT | _IGNORED_SHARED | _IGNORED_SERVER
"""Keys without a meaning in Python. Keys of one mode are in `Mode.ignored`."""
MODES = {
    "singleServerConfig": Mode(
        "single",
        ("address",),
        {"connectionPoolSize": ("connection_pool_size", as_integer)},
        frozenset({"connectionMinimumIdleSize"}),
    ),
    "clusterServersConfig": Mode(
        "cluster",
        ("nodeAddresses",),
        _POOL | _SCAN | _NAT | {"shardedSubscriptionMode": ("sharded_pubsub", _sharded_pubsub)},
        _IGNORED_OF_REPLICAS | {"checkMasterLinkStatus", "checkSlotsCoverage", "slots", "topicSlots"},
    ),
    "sentinelServersConfig": Mode(
        "sentinel",
        ("sentinelAddresses",),
        _POOL | _SCAN | _NAT | _SENTINEL_KEYS,
        _IGNORED_OF_REPLICAS | {"checkSentinelsList", "checkSlaveStatusWithSyncing", "sentinelsDiscovery"},
    ),
    "masterSlaveServersConfig": Mode("replicated", ("masterAddress", "slaveAddresses"), _POOL, _IGNORED_OF_REPLICAS),
    "replicatedServersConfig": Mode(
        "replicated", ("nodeAddresses",), _POOL | _SCAN | _NAT, _IGNORED_OF_REPLICAS | {"monitorIPChanges"}
    ),
}
