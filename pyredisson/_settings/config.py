"""Every setting of a client, checked; what `connect` takes and Redisson's file become one too."""

from __future__ import annotations

import dataclasses
import os
import ssl as tls
from collections.abc import Callable
from typing import IO, Any, Literal

from redis.credentials import CredentialProvider

from pyredisson._settings import addresses
from pyredisson._settings.durations import MAX_LEASE_MS, seconds
from pyredisson.errors import ConfigError


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
    release_when_owner_ends: bool = False
    """Whether a lock without `lease_time` is released, as a lost one, when the thread or task that took it has ended
    without releasing it. Otherwise that is logged once, and the lock is renewed for as long as the client lives.
    Noticed at the next renewal, within a third of `lock_watchdog_timeout`."""

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
        return cls(**{**addresses.settings_of(address), **fields})

    @classmethod
    def from_yaml(cls, source: str | os.PathLike[str] | IO[str], **fields: Any) -> Config:
        """Redisson's own file, single server: a path, an open text file, or text with a newline in it.

        `${NAME}` and `${NAME:-default}` are taken from the environment; durations are milliseconds there.
        Keys that mean nothing in Python are named once in the log, at INFO. `fields` are Config fields and
        win; `name_mapper` and `credential_provider` stand in for Java classes. ConfigError for an unknown key
        or a value that can't be used.
        """
        # Here: most programs never read a file, and every import of pyredisson would pay for PyYAML.
        from pyredisson._settings import redisson_yaml

        return cls(**{**redisson_yaml.settings_of_file(source, fields), **fields})


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
_FLAGS = ("check_lock_synced_replicas", "release_when_owner_ends", "socket_keepalive", "ssl")
_TEXTS = ("path", "username", "password", "client_name", "server_hostname")
