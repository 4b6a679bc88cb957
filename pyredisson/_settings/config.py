"""The settings of a client. `connect`, redis-py's clients and Redisson's YAML file become such settings too."""

from __future__ import annotations

import dataclasses
import os
import ssl as tls
from collections.abc import Callable
from typing import IO, Any

from redis.credentials import CredentialProvider

from pyredisson._settings import addresses
from pyredisson._settings.durations import MAX_LEASE_MS, seconds
from pyredisson.errors import ConfigError


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Every setting of a client.

    Durations are seconds, kept as float. A timedelta is accepted too; for type checkers, by `connect` and `Config.of`
    only. A value that can't be used raises ConfigError, which is a ValueError, and which names the field.
    """

    lock_watchdog_timeout: float = 30.0
    """Seconds of the lease of a lock that is acquired without `lease_time`. The watchdog renews it after each third."""
    fair_lock_wait_timeout: float = 300.0
    """Seconds for which a waiter of Redisson keeps its place in the queue of a fair lock without a sign of life. A
    waiter of this library loses its place 1.5 s after the last heartbeat of its client."""
    retry_attempts: int = 4
    """How often a command is sent again, after a pause, when a try has failed. A command whose reply was lost is sent
    once more at once, also with 0: else nobody would know whether it has run."""
    connect_timeout: float = 10.0
    """Seconds that connecting may take, including the handshake."""
    timeout: float = 3.0
    """Seconds that a reply may take."""
    name_mapper: Callable[[str], str] | None = None
    """Maps an object's name to its name on the server."""

    host: str = "localhost"
    port: int = 6379
    path: str | None = None
    """The path of a unix socket, which is used instead of `host` and `port`."""
    database: int = 0
    username: str | None = None
    password: str | None = dataclasses.field(default=None, repr=False)
    credential_provider: CredentialProvider | None = dataclasses.field(default=None, repr=False)
    """One of redis-py's. It is called at every connect, instead of using `username` and `password`."""
    client_name: str | None = None
    """The name that CLIENT LIST shows."""
    ssl: bool = False
    """Whether to use TLS."""
    ssl_context: tls.SSLContext | None = dataclasses.field(default=None, repr=False)
    """The TLS settings. With `ssl` and without a context: Python's default, which checks certificate and host name."""
    server_hostname: str | None = None
    """The name that the server's certificate must be for. None: `host`."""
    connection_pool_size: int = 64
    """The largest number of connections of one client, not counting its subscription and its watchdog."""
    ping_interval: float = 10.0
    """Seconds without a message after which a subscription sends a PING (in asyncio: one to two times as long). It
    reconnects when there is no reply within `timeout`. 0: never."""
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
            if value is not None and not isinstance(value, str):  # without the value: it may be a password
                raise ConfigError(f"{name} must be text or None, not {type(value).__name__}")
        if not isinstance(self.host, str) or not self.host:
            raise ConfigError("host must be a name or an address")
        if self.path == "":
            raise ConfigError("path must name a unix socket")
        if self.name_mapper is not None and not callable(self.name_mapper):
            raise ConfigError("name_mapper must be a function from str to str, or None")
        if self.credential_provider is not None and (self.username is not None or self.password is not None):
            raise ConfigError("credential_provider replaces username and password; give one of them")
        if self.ssl and self.path is not None:
            raise ConfigError("TLS (ssl) isn't spoken over a unix socket (path)")
        if self.ssl_context is not None and not self.ssl:
            raise ConfigError("ssl_context needs ssl=True or rediss://")  # otherwise nothing would be encrypted
        if self.ssl and self.ssl_context is None:
            object.__setattr__(self, "ssl_context", tls.create_default_context())

    @classmethod
    def of(cls, address: object = None, **fields: Any) -> Config:
        """The Config for an address that `connect` accepts: None (localhost), a URL, a Config, or redis-py's client.

        `fields` are Config fields, and take precedence over the address. Of a redis-py client only the settings are
        used, not its connections. ConfigError: a URL or a client that can't be used. TypeError: another type.
        """
        if isinstance(address, cls):
            return dataclasses.replace(address, **fields) if fields else address
        return cls(**{**addresses.settings_of(address), **fields})

    @classmethod
    def from_yaml(cls, source: str | os.PathLike[str] | IO[str], **fields: Any) -> Config:
        """The Config for Redisson's YAML file of a single server: a path, an open text file, or text with a newline.

        `${NAME}` and `${NAME:-default}` are replaced from the environment. Durations in the file are milliseconds.
        Keys that have no meaning in Python are logged once, at INFO. `fields` are Config fields, and take precedence;
        `name_mapper` and `credential_provider` replace Java classes. ConfigError: an unknown key, or a value that
        can't be used.
        """
        # Imported here, as most programs never read a file: PyYAML would slow down every import of pyredisson.
        from pyredisson._settings import redisson_yaml

        return cls(**{**redisson_yaml.settings_of_file(source, fields), **fields})


_LONGEST_LEASE = MAX_LEASE_MS / 1000
_LONGEST_SOCKET_WAIT = (2**31 - 1) / 1000  # settimeout() overflows above it, and times out early
_DURATIONS = {
    "lock_watchdog_timeout": (0.001, _LONGEST_LEASE),
    "fair_lock_wait_timeout": (0.001, _LONGEST_LEASE),
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
_FLAGS = ("release_when_owner_ends", "socket_keepalive", "ssl")
_TEXTS = ("path", "username", "password", "client_name", "server_hostname")
