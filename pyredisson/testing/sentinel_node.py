"""One sentinel of a test: its process, and what it knows."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyredisson.testing.deployment import Node
from pyredisson.testing.process import quoted
from pyredisson.testing.replicated import ReplicatedNode

__all__ = ["SentinelNode"]

_QUICK_MS = {
    "INFO-PERIOD": 500,
    "PING-PERIOD": 200,
    "ASK-PERIOD": 200,
    "PUBLISH-PERIOD": 500,
    "MIN-LINK-RECONNECT-PERIOD": 500,
    # A machine that stood still would otherwise keep the sentinels from acting for 30 seconds.
    "TILT-PERIOD": 1000,
}


class SentinelNode(Node):
    """One sentinel. All methods of a `Server` act on this process only, and return at once."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.id = secrets.token_hex(20)
        self._lines: list[str] = []

    def watch(
        self,
        name: str,
        nodes: Sequence[ReplicatedNode],
        others: Sequence[SentinelNode],
        quorum: int,
        options: dict[str, str],
    ) -> None:
        """Write down what it begins with: the master (the first node), its replicas, and the other sentinels.

        Otherwise it takes the sentinels seconds to find each other.
        """
        master, *replicas = nodes
        self._lines = [f"myid {self.id}", f"monitor {name} {_address(master)} {quorum}"]
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
        seen = {int(each["port"]): each for each in self._list("REPLICAS", name)}
        for replica in replicas:
            known = seen.get(replica.internal_port)
            if known is None or known["flags"] != "slave" or known["master-link-status"] != "ok":
                return f"the sentinel {self.port} doesn't know the connected replica {replica.port}: {known}"
        met = {each["runid"]: each for each in self._list("SENTINELS", name)}
        for other in others:
            # Valkey 9.1 keeps for good what another sentinel has said last about a master that was down.
            flags = met.get(other.id, {}).get("flags", "").split(",")
            if other is not self and set(flags) - {"master_down"} != {"sentinel"}:
                return f"the sentinel {self.port} doesn't know the sentinel {other.port}: {met.get(other.id)}"
        state = _pairs(self.ask("SENTINEL", "MASTER", name))["flags"]
        return None if state == "master" else f"the sentinel {self.port} says about the master: {state}"

    def _list(self, what: str, name: str) -> list[dict[str, str]]:
        return [_pairs(each) for each in self.ask("SENTINEL", what, name)]

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


def _pairs(flat: Sequence[str]) -> dict[str, str]:
    return dict(zip(flat[::2], flat[1::2], strict=True))
