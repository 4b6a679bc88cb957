"""The settings of Redisson's YAML file: what each becomes in a Config, and which have no meaning here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import yaml

from pyredisson._settings.address import Address, AddressMap
from pyredisson._settings.fields import refuse_unknown
from pyredisson._settings.redisson_tls import TLS_KEYS
from pyredisson._settings.yaml_nodes import NULL, as_flag, as_integer, as_mapping, as_seconds, as_text, as_text_mapping
from pyredisson.errors import ConfigError

Keys = dict[str, tuple[str, Callable[[yaml.Node, str], Any]]]
"""Redisson's key: the field of Config, and the function that reads the key's value."""


@dataclass(frozen=True)
class Mode:
    """One of Redisson's modes: the section of the file that describes its servers."""

    topology: str
    addresses: tuple[str, ...]
    """The keys of the servers' addresses. The first one is required."""
    keys: Keys
    """What the servers' section may set, beside what every mode has."""
    ignored: frozenset[str] = field(default_factory=frozenset)

    def known(self) -> set[str]:
        """All keys that the section may contain."""
        return _SHARED | self.keys.keys() | _SERVER_KEYS.keys() | self.ignored | _IGNORED_SERVER | {*self.addresses}

    def readable(self) -> Keys:
        """All keys, of the root or of the section, that become fields."""
        return _ROOT_KEYS | _SHARED_KEYS | _SERVER_KEYS | self.keys


def _sharded_pubsub(node: yaml.Node, key: str) -> str:
    mode = as_text(node, key)
    if mode not in ("AUTO", "ON", "OFF"):
        raise ConfigError(f"{key} must be AUTO, ON or OFF")
    return mode.lower()


def _nat_map(node: yaml.Node, key: str) -> AddressMap:
    """The table of a `HostPortNatMapper`: an address that servers announce, and the one that replaces it."""
    try:
        table = {
            Address.parse(announced): Address.parse(mapped) for announced, mapped in as_text_mapping(node, key).items()
        }
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
    "credentialsReapplyInterval",
    "dnsMonitoring",
    "dnsMonitoringInterval",
    "dnsMonitoringTimes",
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
_IGNORED_OF_REPLICAS = {
    "failedSlaveCheckInterval",
    "failedSlaveNodeDetector",
    "failedSlaveReconnectionInterval",
    "fallbackLoadingToMaster",
    "loadBalancer",
    "masterConnectionMinimumIdleSize",
    "readMode",
    "slaveConnectionMinimumIdleSize",
    "slaveConnectionPoolSize",
    "slaveSubscriptionConnectionMinimumIdleSize",
    "slaveSubscriptionConnectionPoolSize",
    "subscriptionMode",
}
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
        frozenset(_IGNORED_OF_REPLICAS | {"checkMasterLinkStatus", "checkSlotsCoverage", "slots", "topicSlots"}),
    ),
    "sentinelServersConfig": Mode(
        "sentinel",
        ("sentinelAddresses",),
        _POOL | _SCAN | _NAT | _SENTINEL_KEYS,
        frozenset(_IGNORED_OF_REPLICAS | {"checkSentinelsList", "checkSlaveStatusWithSyncing", "sentinelsDiscovery"}),
    ),
    "masterSlaveServersConfig": Mode(
        "replicated", ("masterAddress", "slaveAddresses"), _POOL, frozenset(_IGNORED_OF_REPLICAS)
    ),
    "replicatedServersConfig": Mode(
        "replicated", ("nodeAddresses",), _POOL | _SCAN | _NAT, frozenset(_IGNORED_OF_REPLICAS | {"monitorIPChanges"})
    ),
}
"""Redisson's modes by the name of their section."""
