"""One round of a campaign: servers, processes, faults, and the judgement."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

from pyredisson.testing import Cluster, Proxy, Replicated, Sentinels, Server
from tests.interop.targets import cluster_of_servers, single_server
from tests.support.kinds import LOCKS

from .faults import NO_LOSS, Faults
from .history import passed_over
from .java import JavaOwners
from .load import OPTIONS, Load, wants
from .owners import Wanted
from .programs import SteppedServer
from .wrong_locks import WRONG

SERVERS: dict[str, Callable[[Path, bool], Any]] = {
    "single": SteppedServer,
    "replicated": lambda _, tls: Replicated(tls=tls),
    "sentinel": lambda _, tls: Sentinels(tls=tls),
    "cluster": lambda _, tls: Cluster(tls=tls),
}
KINDS = (*LOCKS, "multi", "red", "semaphore", "permit", "election", "singleton", "latch")
HOT = ("lock", "fair", "read", "write", "semaphore")
"""What one more owner of each process wants, and nothing else."""
NO_FAULTS = "none"
WITHIN = 60.0
"""Seconds of faults within which a planted bug is found."""
FAR = 0.02
"""Seconds, one way, from some of the processes to all servers."""


def owners(servers: Any, kinds: Sequence[str]) -> list[list[Wanted]]:
    """What each owner of a process wants. No latches behind failovers: of questions nothing is promised then."""
    tags = ["a"]
    if isinstance(servers, Cluster):
        # On early slots of the nodes: redis-cli moves a slot together with all before it.
        some = sorted(map(str, range(100)), key=servers.slot_of_key)
        tags = [next(tag for tag in some if servers.node_of_key(tag) is node) for node in servers.masters()]
    left_out = ("multi", "red") if isinstance(servers, Server) else ("multi", "red", "latch")
    wanted = [each for tag in tags for each in wants(tag, [kind for kind in kinds if kind not in left_out])]
    if "multi" in kinds:
        wanted.append(("multi", [*(f"load-lock{{{tag}}}" for tag in tags), "beside"]))
    if "red" in kinds:
        wanted.append(("red", ["load-red"]))
    return [wanted, wanted, wants(tags[0], [kind for kind in HOT if kind in kinds]) or wanted]


def proxies_of(servers: Any, beside: ExitStack) -> dict[int, Proxy]:
    """A proxy for each server, by its port. So a fault cuts off some of the processes only."""
    nodes = [servers] if isinstance(servers, Server) else [*servers.nodes, *getattr(servers, "sentinels", [])]
    return {node.port: beside.enter_context(Proxy(node.host, node.port)) for node in nodes}


def finds(bug: str, directory: Path) -> bool:
    """Whether the judge finds a planted bug within `WITHIN` seconds of faults, and says of it what it should."""
    kinds, faults, said, _ = WRONG[bug]
    end = monotonic() + WITHIN
    for number in itertools.takewhile(lambda _: monotonic() < end, map(str, itertools.count())):
        (made := directory / number).mkdir()
        try:
            run("single", number, made, 6.0, kinds=kinds.split(), faults=faults, wrong=bug)
        except AssertionError as error:
            return re.search(said, str(error)) is not None
    return False


def run(
    kind: str,
    seed: str,
    directory: Path,
    seconds: float,
    *,
    kinds: Sequence[str] = KINDS,
    faults: str = "",
    wrong: str | None = None,
    java: bool = False,
    tls: bool = False,
) -> tuple[str, dict[str, int]]:
    """The summary of the history, and how many faults of each name occurred. `AssertionError`: what is wrong."""
    choice = Random(seed)
    with ExitStack() as stack:
        servers = stack.enter_context(SERVERS[kind](directory, tls))
        wanted = owners(servers, kinds)
        orderly = faults in (NO_FAULTS, NO_LOSS)
        load = Load(servers, directory, wanted, OPTIONS, unruly=not orderly, wrong=wrong)
        load.beside = [stack.enter_context(Server()) for _ in range(2 if "red" in kinds else 0)]
        stack.callback(load.close)
        near, far = sides = [{} if tls else proxies_of(servers, stack) for _ in range(2)]
        for proxy in far.values():
            proxy.latency(FAR)
        near_ports, far_ports = ways = [{port: proxy.port for port, proxy in side.items()} for side in sides]
        for backend in ("threads", "asyncio", "both"):
            load.start(backend, near_ports, seed)
        load.start("both", far_ports, seed)
        beside = stack.enter_context(ExitStack())
        if java:
            target = (cluster_of_servers if isinstance(servers, Cluster) else single_server)(servers)
            beside.callback(target.close)
            beside.callback(JavaOwners(target, directory / "java.journal", wanted[0], seed).close)
        load.wait_until_all_are_taken()
        proxies, start = [*near.values(), *far.values()], lambda: load.start("both", choice.choice(ways), seed)
        begun = Faults(load, proxies, choice, start)
        try:
            begun.run(monotonic() + seconds, faults)
        finally:
            begun.heal()
        beside.close()
        load.end(keeps=orderly, excused=begun.excuses)
        if faults == NO_FAULTS and (found := passed_over(load.history)):
            raise AssertionError("\n".join(found))
        return load.history.summary(), begun.counts
