"""A real master with replicas on loopback ports, and the sentinels that watch over them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from redis import Redis
from redis.sentinel import Sentinel

from pyredisson.testing.process import HOST, ServerError, credentials, quoted
from pyredisson.testing.replicated import ReplicatedNode, ReplicatedNodes
from pyredisson.testing.sentinel_node import SentinelNode

__all__ = ["Sentinels"]

_FAILOVER_SECONDS = 30.0


class Sentinels(ReplicatedNodes[ReplicatedNode | SentinelNode]):
    """One master with replicas and sentinels on 127.0.0.1, which persist nothing and end with this process.

    Use it as a context manager, or call `start` and `stop`. `kill`, `pause`, `resume` and `restart` take nodes and
    sentinels. Except `kill` and `pause`, every method returns when all living processes have noticed what it did, and
    raises `ServerError` if they don't within 20 seconds, or 30 seconds for a failover.

    Args:
        sentinels: how many sentinels. A majority of them must live for a failover.
        replicas: how many replicas the master has.
        master_name: the name by which the sentinels know the master.
        executable: the program to run; without it `find_executable` looks for one.
        password: of the default user of every node.
        sentinel_password: of the default user of every sentinel.
        users: ACL lines of the nodes without the leading word ``user``. Replication and the sentinels need all rights
            of the default user.
        tls: nodes and sentinels listen on TLS ports too, and use TLS among each other.
        config: further lines of the configuration file of every node.
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
        executable: str | os.PathLike[str] | None = None,
        password: str | None = None,
        sentinel_password: str | None = None,
        users: Sequence[str] = (),
        tls: bool = False,
        config: Mapping[str, str] | None = None,
        down_after: float = 1.0,
        failover_timeout: float = 3.0,
    ) -> None:
        super().__init__(replicas, executable, password, users, tls, config)
        if sentinels < 1:
            raise ValueError("there must be at least one sentinel")
        for secret in (password or "", sentinel_password or ""):
            if re.search(r"[\s\"'\\]", secret):
                raise ValueError("a sentinel forgets how to quote a password with spaces, quotes or backslashes")
        self.master_name = master_name
        self.sentinel_password = sentinel_password
        self._down_after = down_after
        self._failover_timeout = failover_timeout
        options: dict[str, Any] = {"executable": self.nodes[0].executable, "password": sentinel_password, "tls": tls}
        if tls:
            options["config"] = {"tls-replication": "yes"}
        made = [SentinelNode(certificates_of=self.nodes[0], **options) for _ in range(sentinels)]
        self.sentinels: tuple[SentinelNode, ...] = tuple(made)
        """All sentinels, living or not."""

    @property
    def url(self) -> str:
        """The sentinels, without TLS, and the name of the master.

        With `tls=True` the sentinels name the TLS ports of the nodes, so the scheme says TLS to the nodes.
        """
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
        """The node which all living sentinels name as the master, and which says so itself.

        Raises:
            ServerError: they name different ones, or the one that they name says otherwise or doesn't live.
        """
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
        """Return the new master, when all living sentinels know it, in place of one that was killed or paused.

        Raises:
            ServerError: not within `timeout` seconds.
        """
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

    def _servers(self) -> Sequence[ReplicatedNode | SentinelNode]:
        return (*self.nodes, *self.sentinels)

    def _assign_ports(self) -> None:
        super()._assign_ports()
        options = {
            "down-after-milliseconds": str(round(self._down_after * 1000)),
            "failover-timeout": str(round(self._failover_timeout * 1000)),
        }
        if self.password is not None:
            options["auth-pass"] = quoted(self.password)
        quorum = len(self.sentinels) // 2 + 1
        for each in self.sentinels:
            each.watch(self.master_name, self.nodes, self.sentinels, quorum, options)

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
        master = self._named()
        if master is None:
            return "the living sentinels name different masters"
        if not master.alive:
            return None  # nobody else is the master until `wait_for_promotion`
        if (missing := self._unlinked(master)) is not None:
            return missing
        replicas = [node for node in self.living if node is not master]
        answers = (each.unseen(self.master_name, replicas, self.living_sentinels) for each in self.living_sentinels)
        return next((answer for answer in answers if answer is not None), None)
