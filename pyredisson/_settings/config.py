"""The settings of a client. `connect`, redis-py's clients and Redisson's YAML file become such settings too."""

from __future__ import annotations

import copy
import dataclasses
import os
import re
import ssl as tls
from collections.abc import Callable, Iterable
from typing import IO, Any, Unpack, get_args, get_type_hints

from redis.credentials import CredentialProvider

from pyredisson._settings.address import REDIS_PORT, SENTINEL_PORT, Address
from pyredisson._settings.durations import MAX_LEASE_MS, seconds
from pyredisson._settings.fields import ConfigFields, ShardedPubsub, Topology, refuse_unknown
from pyredisson._settings.redis_options import settings_of_client, settings_of_url
from pyredisson.errors import ConfigError
from pyredisson.events import handlers_of


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
    local_hand_over_time: float = 0.005
    """For how many seconds a lock is handed on between the threads or tasks of this client, without a message to other
    clients that wait for it. 0: each release notifies all clients. A fair lock is acquired in the order of its queue,
    so for it only 0 makes a difference."""
    retry_attempts: int = 4
    """How often a call without time to wait sends its command again, after a pause, when a try has failed. It doesn't
    limit other calls: `lock()` waits until the server is back, also with 0, and `try_lock(10)` tries for ten seconds. A
    command whose reply was lost is sent once more at once, also with 0: else nobody would know whether it has run."""
    connect_timeout: float = 10.0
    """Seconds that connecting may take, including the handshake."""
    timeout: float = 3.0
    """Seconds that a reply may take."""
    name_mapper: Callable[[str], str] | None = None
    """Maps an object's name to its name on the server."""

    topology: Topology = "single"
    """`single`: one server. `cluster`: a Redis Cluster. `sentinel`: a master whose address Sentinels know.
    `replicated`: a master and its replicas, told apart by ROLE (Redisson's replicated and its master/slave mode)."""
    nodes: tuple[Address, ...] = ()
    """With another topology than `single`: some nodes of the cluster, the Sentinels, or the master and all replicas.
    `connect` and `Config.of` also accept pairs of host and port, and text as in `host:6379` or `[::1]:6379`."""
    host: str = "localhost"
    port: int = 6379
    """`host` and `port` name a single server. With another topology they are set to the first of `nodes`."""
    path: str | None = None
    """The path of a unix socket, which is used instead of `host` and `port`."""
    database: int = 0
    """A cluster has database 0 only."""
    username: str | None = None
    """For the servers that store the locks, as are `password`, `ssl` and `ssl_context`. Sentinels have their own."""
    password: str | None = dataclasses.field(default=None, repr=False)
    credential_provider: CredentialProvider | None = dataclasses.field(default=None, repr=False)
    """One of redis-py's. It is called at every connect, instead of using `username` and `password`."""
    client_name: str | None = None
    """The name that CLIENT LIST shows, of the characters `!` to `~`. None: `program@host:pid`, where the user may run
    CLIENT SETNAME."""
    announce: bool = True
    """Whether the client writes into a key of its own who it is, and which locks it has held for long."""
    observer: object | None = None
    """What is told of acquires, waits, releases, losses, renewals and outages: an object with any of the methods of
    `pyredisson.Observer`."""
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

    master_name: str | None = None
    """The name under which the Sentinels know the master."""
    sentinel_username: str | None = None
    sentinel_password: str | None = dataclasses.field(default=None, repr=False)
    """None: a Sentinel that demands a password gets the password of the locks' servers, as in Redisson."""
    sentinel_ssl: bool = False
    """Whether the Sentinels are asked over TLS."""
    sentinel_ssl_context: tls.SSLContext | None = dataclasses.field(default=None, repr=False)
    """The TLS settings for Sentinels. With `sentinel_ssl` and without a context: `ssl_context`, or Python's default."""
    topology_refresh_interval: float = 5.0
    """Seconds after which it is asked again which server is the master of what, even if nothing has failed."""
    address_mapper: Callable[[Address], tuple[str, int]] | None = None
    """Maps an address that servers announce to the address at which this client reaches that server, as with NAT."""
    sharded_pubsub: ShardedPubsub = "auto"
    """How waiters on a cluster are woken. `on`: by sharded messages (SPUBLISH; Redis 7.0 and later). `off`: by plain
    messages (PUBLISH). `auto` and `both`: by both, as a Redisson client uses one of them. With `auto` a plain message,
    which goes to every node, is left out if nobody has subscribed to it on the master of its slot."""
    check_lock_synced_replicas: bool = True
    """Whether an acquire of a lock or of permits raises `NotReplicatedError` if too few replicas confirm it. Without
    effect for a single server, for a master without replicas, and for a user without the right to WAIT."""
    replicas_sync_timeout: float = 1.0
    """Seconds for which an acquire waits for the confirmations of replicas, even if its `wait_time` is shorter."""
    min_synced_replicas: int = 1
    """How many replicas must confirm an acquire; all of them, if fewer are connected to the master. To have the servers
    refuse all writes while too few replicas are connected, set their own `min-replicas-to-write`."""

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
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ConfigError(f"{name} must be one of {', '.join(choices)}, not {getattr(self, name)!r}")
        for name in _FUNCTIONS:
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise ConfigError(f"{name} must be a function, or None")
        if self.observer is not None:
            try:
                handlers_of(self.observer)
            except ValueError as error:
                raise ConfigError(f"observer: {error}") from None
        self._check_texts()
        self._check_servers()
        self._check_tls()
        self._check_credentials()

    def _check_credentials(self) -> None:
        if self.credential_provider is None:
            return
        is_class = isinstance(self.credential_provider, type)
        if is_class or not callable(getattr(self.credential_provider, "get_credentials", None)):
            raise ConfigError("credential_provider must be a CredentialProvider of redis-py, or None")
        if self.username is not None or self.password is not None:
            raise ConfigError("credential_provider replaces username and password; give one of them")

    def _check_texts(self) -> None:
        for name in _TEXTS:
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):  # without the value: it may be a password
                raise ConfigError(f"{name} must be text or None, not {type(value).__name__}")
            if value is not None and name != "path" and not _is_sendable(value, "utf-8"):
                raise ConfigError(f"{name} can't be encoded as UTF-8")
        if self.client_name is not None and not re.fullmatch(r"[!-~]+", self.client_name):
            # The server would refuse each connection.
            raise ConfigError(f"client_name must consist of the characters ! to ~, not be {self.client_name!r}")

    def _check_servers(self) -> None:
        if self.topology == "single":
            if self.nodes:
                raise ConfigError("nodes needs topology cluster, sentinel or replicated")
            object.__setattr__(self, "nodes", ())
        else:
            nodes = _addresses(self.nodes, SENTINEL_PORT if self.topology == "sentinel" else REDIS_PORT)
            if self.path is not None:
                raise ConfigError(f"path names a single server, not the nodes of topology {self.topology}")
            object.__setattr__(self, "nodes", nodes)
            object.__setattr__(self, "host", nodes[0].host)
            object.__setattr__(self, "port", nodes[0].port)
        for host in (self.host, *(node.host for node in self.nodes)):
            if not isinstance(host, str) or not re.fullmatch(r"\S+", host) or not _is_sendable(host, "idna"):
                raise ConfigError("host must be a name or an address, without spaces")
        if self.path == "":
            raise ConfigError("path must name a unix socket")
        if self.topology == "cluster" and self.database:
            raise ConfigError("database must be 0 in a cluster")
        if self.topology == "sentinel":
            if not self.master_name:
                raise ConfigError("master_name is missing: the name under which the Sentinels know the master")
            return
        for name in ("master_name", "sentinel_username", "sentinel_password", "sentinel_ssl"):
            if getattr(self, name):  # it would have no effect
                raise ConfigError(f"{name} needs topology sentinel")

    def _check_tls(self) -> None:
        for name in ("ssl_context", "sentinel_ssl_context"):
            if not isinstance(getattr(self, name), tls.SSLContext | None):
                raise ConfigError(f"{name} must be an ssl.SSLContext, or None")
        if self.ssl and self.path is not None:
            raise ConfigError("TLS (ssl) isn't spoken over a unix socket (path)")
        if self.ssl_context is not None and not self.ssl:
            raise ConfigError("ssl_context needs ssl=True or rediss://")  # otherwise nothing would be encrypted
        if self.sentinel_ssl_context is not None and not self.sentinel_ssl:
            raise ConfigError("sentinel_ssl_context needs sentinel_ssl=True")
        if self.server_hostname is not None and not (self.ssl or self.sentinel_ssl):
            raise ConfigError("server_hostname needs ssl=True or rediss://")  # otherwise nobody would check it
        if self.ssl and self.ssl_context is None:
            object.__setattr__(self, "ssl_context", tls.create_default_context())
        if self.sentinel_ssl and self.sentinel_ssl_context is None:
            object.__setattr__(self, "sentinel_ssl_context", self.ssl_context or tls.create_default_context())

    @classmethod
    def of(cls, address: object = None, **fields: Unpack[ConfigFields]) -> Config:
        """The Config for an address that `connect` accepts: None (localhost), a URL, a Config, or redis-py's client.

        A client of redis-py is a `Redis` (also one from `Sentinel(...).master_for(...)`) or a `RedisCluster`, of
        threads or asyncio. Only its settings are used, not its connections. `fields` are Config fields, and take
        precedence. ConfigError: something can't be used, or an unknown field. TypeError: another type of address.
        """
        refuse_unknown(fields, _FIELDS)
        if isinstance(address, cls):
            return dataclasses.replace(address, **fields) if fields else address  # type: ignore[arg-type]  # it converts them
        found: dict[str, Any] = {}
        if address is not None:
            found = settings_of_url(address) if isinstance(address, str) else settings_of_client(address)
        return cls(**{**found, **fields})

    @classmethod
    def from_yaml(cls, source: str | os.PathLike[str] | IO[str], **fields: Unpack[ConfigFields]) -> Config:
        """The Config for Redisson's YAML file: a path, an open text file, or text with a newline.

        `${NAME}` and `${NAME:-default}` are replaced from the environment. Durations in the file are milliseconds.
        Keys that have no meaning in Python are logged once, at INFO. `fields` are Config fields, and take precedence;
        `name_mapper`, `credential_provider` and `address_mapper` replace Java classes. ConfigError: an unknown key,
        or a value that can't be used.
        """
        refuse_unknown(fields, _FIELDS)
        # Imported here, as most programs never read a file: PyYAML would slow down every import of pyredisson.
        from pyredisson._settings import redisson_yaml

        return cls(**{**redisson_yaml.settings_of_file(source, fields), **fields})

    @property
    def address(self) -> str:
        """The one server that `path`, or `host` and `port`, name; for messages."""
        return self.path or str(Address(self.host, self.port))

    def describe(self) -> str:
        """All servers, for messages. It doesn't depend on the order of `nodes`, as groups sort their members by it."""
        if self.topology == "single":
            return f"{self.address}/{self.database}"
        nodes = ", ".join(map(str, sorted(self.nodes)))
        if self.topology == "cluster":
            return f"cluster of {nodes}"
        servers = f"master of {nodes}" if self.topology == "replicated" else f"{self.master_name} of Sentinels {nodes}"
        return f"{servers}/{self.database}"

    def names_same_data(self, other: Config) -> bool:
        """Whether both certainly lead to the same data, as far as the settings tell: they name a server in common."""
        if self.topology == "single" or self.topology != other.topology:
            return self.describe() == other.describe()
        same_master = (self.master_name, self.database) == (other.master_name, other.database)
        return same_master and not set(self.nodes).isdisjoint(other.nodes)

    def at(self, address: Address) -> Config:
        """The settings of one of the servers that store the locks. `dataclasses.replace` would set `host` and `port` to
        the first of `nodes`, and make new TLS contexts."""
        return self._with(host=address.host, port=address.port)

    def at_sentinel(self, address: Address, *, data_credentials: bool = False) -> Config:
        """The settings of one Sentinel. `data_credentials`: the credentials are the servers' own."""
        other = self.at(address)._with(database=0, ssl=self.sentinel_ssl, ssl_context=self.sentinel_ssl_context)
        if data_credentials:
            return other
        return other._with(username=self.sentinel_username, password=self.sentinel_password, credential_provider=None)

    def map_address(self, address: Address) -> Address:
        """The address under which this client reaches a server that announces `address`. ConfigError: it is none."""
        if self.address_mapper is None:
            return address
        try:
            return Address.of(self.address_mapper(address))
        except ValueError as error:
            raise ConfigError(f"address_mapper, for {address}: {error}") from error

    def _with(self, **fields: Any) -> Config:
        """A copy with other values, which are not checked again."""
        other = copy.copy(self)
        for name, value in fields.items():
            object.__setattr__(other, name, value)
        return other


def _addresses(nodes: object, default_port: int) -> tuple[Address, ...]:
    """Nodes as a user gives them, each once. ConfigError: there is none, or one can't be used."""
    if isinstance(nodes, str) or not isinstance(nodes, Iterable):
        raise ConfigError("nodes must be a sequence of addresses")
    try:
        found = [Address.parse(node, default_port) if isinstance(node, str) else Address.of(node) for node in nodes]
    except ValueError as error:
        raise ConfigError(f"nodes: {error}") from error
    if not found:
        raise ConfigError("nodes is missing: the addresses of some servers")
    return tuple(dict.fromkeys(found))


def _is_sendable(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except UnicodeError:
        return False
    return True


_FIELDS = {field.name for field in dataclasses.fields(Config)}
_LONGEST_LEASE = MAX_LEASE_MS / 1000
_LONGEST_SOCKET_WAIT = (2**31 - 1) / 1000  # settimeout() overflows above it, and times out early
_DURATIONS = {
    "lock_watchdog_timeout": (0.001, _LONGEST_LEASE),
    "fair_lock_wait_timeout": (0.001, _LONGEST_LEASE),
    "local_hand_over_time": (0.0, _LONGEST_LEASE),
    "connect_timeout": (0.001, _LONGEST_SOCKET_WAIT),
    "timeout": (0.001, _LONGEST_SOCKET_WAIT),
    "ping_interval": (0.0, _LONGEST_SOCKET_WAIT),
    "topology_refresh_interval": (0.001, _LONGEST_SOCKET_WAIT),
    "replicas_sync_timeout": (0.001, _LONGEST_SOCKET_WAIT),  # WAIT with 0 never ends
}
_INTEGERS = {
    "retry_attempts": (0, 2**31 - 1),
    "port": (1, 65535),
    "database": (0, 2**31 - 1),
    "connection_pool_size": (1, 2**31 - 1),
    "min_synced_replicas": (1, 2**31 - 1),
}
_TYPES = get_type_hints(Config)
_FLAGS = [name for name, kind in _TYPES.items() if kind is bool]
_TEXTS = [name for name, kind in _TYPES.items() if kind == (str | None)]
_CHOICES: dict[str, tuple[str, ...]] = {"topology": get_args(Topology), "sharded_pubsub": get_args(ShardedPubsub)}
_FUNCTIONS = ("name_mapper", "address_mapper")
