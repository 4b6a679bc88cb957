"""A real master with replicas on loopback ports, and the sentinels that may watch over them."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Unpack
from urllib.parse import quote

from redis import Redis
from redis.sentinel import Sentinel

from pyredisson._protocol.replies import pairs
from pyredisson.testing.deployment import Deployment, Node, P
from pyredisson.testing.server import HOST, ServerError, ServerOptions, credentials, quoted

_QUICK_MS = {
    "INFO-PERIOD": 500,
    "PING-PERIOD": 200,
    "ASK-PERIOD": 200,
    "PUBLISH-PERIOD": 500,
    "MIN-LINK-RECONNECT-PERIOD": 500,
    # A machine that stood still would otherwise keep the sentinels from acting for 30 seconds.
    "TILT-PERIOD": 1000,
}
_FAILOVER_SECONDS = 30.0


class ReplicatedNode(Node):
    """A master, or a replica of one. All methods of a `Server` act on this node only, and return at once."""

    def begin_as(self, master: ReplicatedNode | None) -> None:
        """Let it be a replica of `master` from its next start on, or with None a master."""
        self._config.pop("replicaof", None)
        if master is not None:
            self._config["replicaof"] = f"{master.host} {master.internal_port}"
        # The file of the next start is a new one.
        if self._directory is not None:
            (self._directory / "server.conf").unlink(missing_ok=True)

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


class ReplicatedNodes(Deployment[ReplicatedNode, P]):
    """The nodes of `Replicated` and of `Sentinels`: the first one is the original master."""

    def __init__(self, replicas: int, options: ServerOptions) -> None:
        if replicas < 0:
            raise ValueError("no negative number of replicas")
        super().__init__(ReplicatedNode, 1 + replicas, options, {})

    def master(self) -> ReplicatedNode:
        """The living node that says that it is the master. `ServerError`: none does, or several do."""
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

    def _configure(self) -> None:
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
    living nodes have noticed what it did, and raises `ServerError` if they don't within 20 seconds. The other arguments
    are as for `Server`, of every node: replication needs all rights of the default user, and uses TLS if there is TLS.

    Args:
        replicas: how many replicas the master has.
    """

    def __init__(self, replicas: int = 1, **options: Unpack[ServerOptions]) -> None:
        super().__init__(replicas, options)
        self._servers = self.nodes
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
        """Make `to`, or the first living replica, the master of all living nodes. Returns it. The present master may be
        dead or paused. When it comes back it is a replica."""
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
        """Start a node again on its port, without data. It is the master only if `fail_over` has promoted no other one:
        then its replicas lose their data, too."""
        self._known(node).begin_as(None if node is self._master else self._master)
        super().restart(node)

    def _inconsistency(self) -> str | None:
        return self._unlinked(self._master) if self._master.alive else None


class SentinelNode(Node):
    """One sentinel. All methods of a `Server` act on this process only, and return at once."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.id = secrets.token_hex(20)
        self._lines: list[str] = []

    def watch(
        self, name: str, nodes: Sequence[ReplicatedNode], others: Sequence[SentinelNode], options: dict[str, str]
    ) -> None:
        """Write down what it begins with: the master (the first node), its replicas, and the other sentinels, which
        otherwise take seconds to find each other."""
        master, *replicas = nodes
        majority = len(others) // 2 + 1
        self._lines = [f"myid {self.id}", f"monitor {name} {_address(master)} {majority}"]
        self._lines += [f"{option} {name} {value}" for option, value in options.items()]
        self._lines += [f"known-replica {name} {_address(each)}" for each in replicas]
        self._lines += [f"known-sentinel {name} {_address(each)} {each.id}" for each in others if each is not self]
        if self.password is not None:
            self._lines.append(f"sentinel-pass {quoted(self.password)}")

    def master_port(self, name: str) -> int:
        """The port of the master that it tells clients."""
        return int(self.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", name)[1])

    def unseen(self, name: str, replicas: Sequence[Node], others: Sequence[SentinelNode]) -> str | None:
        """In words, which of these living replicas and sentinels it doesn't know as such yet."""
        seen = {int(each["port"]): each for each in map(pairs, self.ask("SENTINEL", "REPLICAS", name))}
        for replica in replicas:
            known = seen.get(replica.internal_port)
            if known is None or known["flags"] != "slave" or known["master-link-status"] != "ok":
                return f"the sentinel {self.port} doesn't know the connected replica {replica.port}: {known}"
        met = {each["runid"]: each for each in map(pairs, self.ask("SENTINEL", "SENTINELS", name))}
        for other in others:
            # Valkey 9.1 keeps for good what another sentinel has said last about a master that was down.
            flags = met.get(other.id, {}).get("flags", "").split(",")
            if other is not self and set(flags) - {"master_down"} != {"sentinel"}:
                return f"the sentinel {self.port} doesn't know the sentinel {other.port}: {met.get(other.id)}"
        state = pairs(self.ask("SENTINEL", "MASTER", name))["flags"]
        return None if state == "master" else f"the sentinel {self.port} says about the master: {state}"

    def _configuration(self, directory: Path) -> str:
        return super()._configuration(directory) + "".join(f"sentinel {line}\n" for line in self._lines)

    def _spawn(self, *arguments: str) -> None:
        super()._spawn("--sentinel", *arguments)

    def _await_answer(self, deadline: float) -> None:
        super()._await_answer(deadline)
        if self.version >= (7,):
            words = [word for pair in _QUICK_MS.items() for word in pair]
            self.ask("SENTINEL", "DEBUG", *words)


def _address(node: Node) -> str:
    return f"{node.host} {node.internal_port}"


class Sentinels(ReplicatedNodes[ReplicatedNode | SentinelNode]):
    """One master with replicas and sentinels on 127.0.0.1, which persist nothing and end with this process.

    Use it as a context manager, or call `start` and `stop`. `kill`, `pause`, `resume` and `restart` take nodes and
    sentinels. Except `kill` and `pause`, every method returns when all living processes have noticed what it did, and
    raises `ServerError` if they don't within 20 seconds, or 30 seconds for a failover. The other arguments are as for
    `Server`, of every node: replication and sentinels need all rights of the default user, and use TLS if there is TLS.

    Args:
        sentinels: how many sentinels. A majority of them must live for a failover.
        replicas: how many replicas the master has.
        master_name: the name by which the sentinels know the master.
        sentinel_password: of the default user of every sentinel.
        down_after: the seconds after which a silent process counts as failed (``down-after-milliseconds``).
        failover_timeout: the seconds that a step of a failover may take (``failover-timeout``). For twice as long no
            other failover begins by itself.
    """

    def __init__(
        self,
        sentinels: int = 3,
        replicas: int = 1,
        master_name: str = "mymaster",
        *,
        sentinel_password: str | None = None,
        down_after: float = 1.0,
        failover_timeout: float = 3.0,
        **options: Unpack[ServerOptions],
    ) -> None:
        super().__init__(replicas, options)
        if sentinels < 1:
            raise ValueError("there must be at least one sentinel")
        for secret in (self.password or "", sentinel_password or ""):
            if re.search(r"[\s\"'\\]", secret):
                raise ValueError("a sentinel forgets how to quote a password with spaces, quotes or backslashes")
        self.master_name = master_name
        self.sentinel_password = sentinel_password
        self._options = {
            "down-after-milliseconds": str(round(down_after * 1000)),
            "failover-timeout": str(round(failover_timeout * 1000)),
        }
        if self.password is not None:
            self._options["auth-pass"] = quoted(self.password)
        its: ServerOptions = {"executable": self.nodes[0].executable, "password": sentinel_password, "tls": self._tls}
        self.sentinels = tuple(SentinelNode(**its) for _ in range(sentinels))
        """All sentinels, living or not."""
        self._servers = (*self.nodes, *self.sentinels)

    @property
    def url(self) -> str:
        """The sentinels, without TLS, and the name of the master. With `tls=True` the sentinels name the TLS ports of
        the nodes, so the scheme says TLS to the nodes."""
        return self._url("rediss" if self._tls else "redis", [each.port for each in self.sentinels], [])

    @property
    def tls_url(self) -> str:
        """The same with TLS to the sentinels too. A client needs `ca_file` beside this address."""
        return self._url("rediss", [each.tls_port for each in self.sentinels], ["sentinel_ssl=true"])

    def redis(self, **options: Any) -> Redis:
        """Return a new redis-py client that asks the sentinels for the master; `options` override its arguments."""
        addresses = [(each.host, each.port) for each in self.sentinels]
        asking = {"password": self.sentinel_password, "socket_timeout": 1.0}
        finder = Sentinel(addresses, sentinel_kwargs=asking)  # type: ignore[no-untyped-call]
        settings: dict[str, Any] = {"password": self.password}
        if self._tls:
            settings |= {"ssl": True, "ssl_ca_certs": self.ca_file}
        client: Redis = finder.master_for(self.master_name, **(settings | options))  # type: ignore[no-untyped-call]
        return client

    @property
    def living_sentinels(self) -> tuple[SentinelNode, ...]:
        return tuple(each for each in self.sentinels if each.alive)

    def master(self) -> ReplicatedNode:
        """The node which all living sentinels name as the master, and which says so itself. `ServerError`: none is."""
        master = self._named()
        if master is None or not master.alive or not master.is_master:
            raise ServerError(f"the sentinels of {self!r} don't name a living master")
        return master

    def fail_over(self) -> ReplicatedNode:
        """Let the sentinels promote a replica (``SENTINEL FAILOVER``). Returns the new master."""
        if not self.living_sentinels:
            raise ServerError(f"no sentinel of {self!r} is alive")
        before, told = self._named(), False

        def missing() -> str | None:
            nonlocal told
            if not told:
                # Refused while another failover is going on, or while no replica is known to be good.
                self.living_sentinels[0].ask("SENTINEL", "FAILOVER", self.master_name)
                told = True
            return self._not_followed(before)

        self._wait("the sentinels promote a replica", missing, _FAILOVER_SECONDS)
        self.wait_until_consistent()
        return self.master()

    def wait_for_promotion(self, failed: ReplicatedNode, timeout: float = _FAILOVER_SECONDS) -> ReplicatedNode:
        """Return the master in place of one that was killed or paused, when all living sentinels know it."""
        what = f"the sentinels promote a replica of {self._known(failed).port}"
        self._wait(what, lambda: self._not_followed(failed), timeout)
        self.wait_until_consistent()
        return self.master()

    def _url(self, scheme: str, ports: Sequence[int], query: list[str]) -> str:
        hosts = ",".join(f"{HOST}:{port}" for port in ports)
        if self.sentinel_password is not None:
            query = [*query, f"sentinel_password={quote(self.sentinel_password, safe='')}"]
        asked = "?" + "&".join(query) if query else ""
        return f"{scheme}+sentinel://{credentials(self.password)}{hosts}/{self.master_name}{asked}"

    def _configure(self) -> None:
        super()._configure()
        for each in self.sentinels:
            each.watch(self.master_name, self.nodes, self.sentinels, self._options)

    def _named(self) -> ReplicatedNode | None:
        """The node that all living sentinels name as the master; None if they name different ones."""
        ports = {each.master_port(self.master_name) for each in self.living_sentinels}
        found = [node for node in self.nodes if {node.internal_port} == ports]
        return found[0] if found else None

    def _not_followed(self, former: ReplicatedNode | None) -> str | None:
        named = self._named()
        if named is None or named is former or not named.alive:
            return f"the living sentinels name {named and named.port}"
        return None if named.is_master else f"{named.port} is no master yet"

    def _inconsistency(self) -> str | None:
        if not self.living_sentinels:
            return None
        if (master := self._named()) is None:
            return "the living sentinels name different masters"
        if not master.alive:
            return None  # nobody else is the master until `wait_for_promotion`
        if (missing := self._unlinked(master)) is not None:
            return missing
        replicas = [node for node in self.living if node is not master]
        answers = (each.unseen(self.master_name, replicas, self.living_sentinels) for each in self.living_sentinels)
        return next((answer for answer in answers if answer is not None), None)
