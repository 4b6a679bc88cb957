"""A real master with replicas on loopback ports."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from redis import Redis

from pyredisson.testing.deployment import Deployment, Node, replication_settings
from pyredisson.testing.process import (
    HOST,
    ServerError,
    credentials,
    find_executable,
    lasting_ports,
    read_version,
)

__all__ = ["Replicated", "ReplicatedNode", "ReplicatedNodes"]


class ReplicatedNode(Node):
    """A master, or a replica of one. All methods of a `Server` act on this node only, and return at once."""

    def begin_as(self, master: ReplicatedNode | None) -> None:
        """Let it be a replica of `master` from its next start on, or with None a master."""
        self._config.pop("replicaof", None)
        if master is not None:
            self._config["replicaof"] = f"{master.host} {master.internal_port}"
        self._forget_configuration()

    def follow(self, master: ReplicatedNode | None) -> None:
        """Make the running node a replica of `master`, or with None a master. It remains so when it is restarted."""
        words = ("NO", "ONE") if master is None else (master.host, master.internal_port)
        self.ask("REPLICAOF", *words)
        self.ask("CONFIG", "REWRITE")

    @property
    def is_master(self) -> bool:
        """Whether it says so itself (``ROLE``)."""
        return bool(self.ask("ROLE")[0] == "master")

    def unlinked(self, master: ReplicatedNode) -> str | None:
        """In words why it is no connected replica of `master`; None if it is one."""
        role = self.ask("ROLE")
        if role[0] == "slave" and role[2] == master.internal_port and role[3] == "connected":
            return None
        return f"{self.port} is no connected replica of {master.port}: {role}"


P = TypeVar("P", bound=Node)


class ReplicatedNodes(Deployment[ReplicatedNode, P]):
    """The nodes of `Replicated` and of `Sentinels`: the first one is the original master."""

    def __init__(
        self,
        replicas: int,
        executable: str | os.PathLike[str] | None,
        password: str | None,
        users: Sequence[str],
        tls: bool,
        config: Mapping[str, str] | None,
    ) -> None:
        super().__init__()
        if replicas < 0:
            raise ValueError("no negative number of replicas")
        program = find_executable(executable)
        self.version = read_version(program)
        self.password = password
        self._tls = tls
        settings = replication_settings(self.version, password, tls) | dict(config or {})
        options: dict[str, Any] = {
            "executable": program,
            "password": password,
            "users": users,
            "tls": tls,
            "config": settings,
        }
        first = ReplicatedNode(**options)
        self.nodes = (first, *(ReplicatedNode(certificates_of=first, **options) for _ in range(replicas)))

    @property
    def ca_file(self) -> str:
        """The certificate authority that signed the certificates of all processes (`tls=True` only)."""
        return self.nodes[0].ca_file

    def master(self) -> ReplicatedNode:
        """The living node that says that it is the master.

        Raises:
            ServerError: none does, or several do.
        """
        masters = [node for node in self.living if node.is_master]
        if len(masters) != 1:
            raise ServerError(f"{len(masters)} living nodes of {self!r} say that they are the master")
        return masters[0]

    def replicas(self) -> tuple[ReplicatedNode, ...]:
        """The living nodes that say that they are replicas."""
        return tuple(node for node in self.living if not node.is_master)

    def flush(self) -> None:
        """Remove all keys."""
        self.master().ask("FLUSHALL")

    def _assign_ports(self) -> None:
        servers = self._servers()
        ports = lasting_ports(len(servers) * (2 if self._tls else 1))
        for number, server in enumerate(servers):
            server.port = ports[number]
            server.tls_port = ports[len(servers) + number] if self._tls else 0
        for node in self.nodes:
            node.begin_as(None if node is self.nodes[0] else self.nodes[0])

    def _unlinked(self, master: ReplicatedNode) -> str | None:
        """What is missing until all other living nodes are replicas of `master`, which knows them as such."""
        role = master.ask("ROLE")
        if role[0] != "master":
            return f"{master.port} is no master: {role}"
        connected = {int(port) for _host, port, _offset in role[2]}
        for node in self.living:
            if node is master:
                continue
            if (missing := node.unlinked(master)) is not None:
                return missing
            if node.internal_port not in connected:
                return f"the master {master.port} doesn't know its replica {node.port}"
        return None


class Replicated(ReplicatedNodes[ReplicatedNode]):
    """One master with replicas on 127.0.0.1, which persist nothing and end with this process. Nobody watches over them.

    Use it as a context manager, or call `start` and `stop`. Except `kill` and `pause`, every method returns when all
    living nodes have noticed what it did, and raises `ServerError` if they don't within 20 seconds.

    Args:
        replicas: how many replicas the master has.
        executable: the program to run; without it `find_executable` looks for one.
        password: of the default user of every node.
        users: ACL lines without the leading word ``user``. Replication needs all rights of the default user.
        tls: listen on TLS ports too. Replicas then connect by TLS.
        config: further lines of the configuration file of every node.
    """

    def __init__(
        self,
        replicas: int = 1,
        *,
        executable: str | os.PathLike[str] | None = None,
        password: str | None = None,
        users: Sequence[str] = (),
        tls: bool = False,
        config: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(replicas, executable, password, users, tls, config)
        self._master = self.nodes[0]

    def start(self) -> Replicated:
        self._master = self.nodes[0]
        return super().start()

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        """The host and port of each node."""
        return tuple(node.address for node in self.nodes)

    @property
    def url(self) -> str:
        """All nodes, for clients without TLS."""
        return self._url("redis", [node.port for node in self.nodes])

    @property
    def tls_url(self) -> str:
        """All nodes, for clients with TLS, which need `ca_file` beside this address."""
        return self._url("rediss", [node.tls_port for node in self.nodes])

    def _url(self, scheme: str, ports: Sequence[int]) -> str:
        return f"{scheme}+replicated://{credentials(self.password)}{','.join(f'{HOST}:{port}' for port in ports)}"

    def redis(self, **options: Any) -> Redis:
        """Return a new redis-py client for the present master; `options` override the arguments of `redis.Redis`."""
        return self.master().redis(**options)

    def fail_over(self, to: ReplicatedNode | None = None) -> ReplicatedNode:
        """Make `to`, or the first living replica, the master of all living nodes. Returns the new master.

        The present master may be dead or paused. When it comes back it is a replica.
        """
        promoted = to or next((node for node in self.living if node is not self._master), None)
        if promoted is None:
            raise ServerError(f"{self!r} has no living replica")
        self._known(promoted).follow(None)
        self._master = promoted
        for node in self.living:
            if node is not promoted:
                node.follow(promoted)
        self.wait_until_consistent()
        return promoted

    def resume(self, node: ReplicatedNode) -> None:
        """Continue a paused node; another one that has become the master meanwhile is its master then."""
        self._known(node).resume()
        # A node that was a master when it was paused, as any frozen one, answers as such until this command runs.
        if node is not self._master:
            node.follow(self._master)
        self.wait_until_consistent()

    def restart(self, node: ReplicatedNode) -> None:
        """Start a node again on its port, without data. It is the master only if `fail_over` has promoted no other one.

        The replicas of a master that is started without data lose theirs, too.
        """
        if self._known(node).running:
            node.kill()
        node.begin_as(None if node is self._master else self._master)
        super().restart(node)

    def _servers(self) -> Sequence[ReplicatedNode]:
        return self.nodes

    def _inconsistency(self) -> str | None:
        return self._unlinked(self._master) if self._master.alive else None
