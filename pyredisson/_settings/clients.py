"""Reads the settings of redis-py's clients as fields of a Config. Their connections are not used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import redis
import redis.asyncio
import redis.asyncio.connection as asyncio_connection
import redis.asyncio.sentinel
import redis.connection
import redis.sentinel

from pyredisson._settings.address import Address, OneHost
from pyredisson._settings.redis_options import settings_of_options
from pyredisson.errors import ConfigError


def settings_of_client(client: object) -> dict[str, Any]:
    """The Config fields for a client. ConfigError: it can't be used. TypeError: it isn't a client."""
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
    options = settings_of_options(
        pools[0].connection_kwargs, ssl=issubclass(pools[0].connection_class, _TLS_CONNECTIONS)
    )
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
        settings["address_mapper"] = OneHost(host)
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
