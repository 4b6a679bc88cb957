"""The fields of a Config as keywords: their types for type checkers, and an error for a name that isn't one."""

import difflib
import ssl as tls
from collections.abc import Callable, Collection, Iterable
from typing import Literal, TypedDict

from redis.credentials import CredentialProvider

from pyredisson._settings.address import Address
from pyredisson._settings.durations import Duration
from pyredisson.errors import ConfigError

Topology = Literal["single", "cluster", "sentinel", "replicated"]
ShardedPubsub = Literal["auto", "both", "on", "off"]


class ConfigFields(TypedDict, total=False):
    """The keywords of `connect`: the fields of `Config`, where they are described.

    The types differ from Config for what a Config converts: durations and `nodes`.
    """

    lock_watchdog_timeout: Duration
    fair_lock_wait_timeout: Duration
    local_hand_over_time: Duration
    retry_attempts: int
    connect_timeout: Duration
    timeout: Duration
    name_mapper: Callable[[str], str] | None
    topology: Topology
    nodes: Iterable[Address | tuple[str, int] | str]
    host: str
    port: int
    path: str | None
    database: int
    username: str | None
    password: str | None
    credential_provider: CredentialProvider | None
    client_name: str | None
    announce: bool
    observer: object | None
    ssl: bool
    ssl_context: tls.SSLContext | None
    server_hostname: str | None
    connection_pool_size: int
    ping_interval: Duration
    socket_keepalive: bool
    release_when_owner_ends: bool
    master_name: str | None
    sentinel_username: str | None
    sentinel_password: str | None
    sentinel_ssl: bool
    sentinel_ssl_context: tls.SSLContext | None
    topology_refresh_interval: Duration
    address_mapper: Callable[[Address], tuple[str, int]] | None
    sharded_pubsub: ShardedPubsub
    check_lock_synced_replicas: bool
    replicas_sync_timeout: Duration
    min_synced_replicas: int


def names(text: str) -> frozenset[str]:
    return frozenset(text.split())


def refuse_unknown(settings: Iterable[str], known: Collection[str]) -> None:
    """ConfigError for the first of `settings` that isn't `known`, with the name that is nearest to it."""
    for name in settings:
        if name not in known:
            close = difflib.get_close_matches(name, sorted(known), 1)
            raise ConfigError(f"unknown setting {name}" + (f"; did you mean {close[0]}?" if close else ""))
