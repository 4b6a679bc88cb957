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

from .faults import Faults
from .history import passed_over
from .java import JavaOwners
from .load import OPTIONS, Load, wants
from .owners import Wanted
from .programs import SteppedServer
from .wrong_locks import WRONG

SERVERS: dict[str, Callable[[Path], Any]] = {
    "single": SteppedServer,
    "replicated": lambda _: Replicated(),
    "sentinel": lambda _: Sentinels(),
    "cluster": lambda _: Cluster(proxied=True),
}
WITH_JAVA = ("single", "cluster")
KINDS = (*LOCKS, "multi", "red", "semaphore", "permit", "election", "singleton", "latch")
HOT = ("lock", "fair", "read", "write", "semaphore")
"""What one more owner of each process wants, and nothing else."""
NO_FAULTS = "none"
WITHIN = 60.0
"""Seconds of faults within which a planted bug is found."""
FAR = 0.02
"""Seconds, one way, to the processes that are far from a single server."""


def owners(servers: Any, kinds: Sequence[str]) -> list[list[Wanted]]:
    """What each owner of a process wants. No latches behind failovers: of questions nothing is promised then."""
    tags = ["a"]
    if isinstance(servers, Cluster):
        names = list(map(str, range(1000)))
        tags = [next(tag for tag in names if servers.node_of_key(tag) is node) for node in servers.masters()]
    left_out = ("multi", "red") if isinstance(servers, Server) else ("multi", "red", "latch")
    wanted = [each for tag in tags for each in wants(tag, [kind for kind in kinds if kind not in left_out])]
    if "multi" in kinds:
        wanted.append(("multi", [*(f"load-lock{{{tag}}}" for tag in tags), "beside"]))
    if "red" in kinds:
        wanted.append(("red", ["load-red"]))
    return [wanted, wanted, wants(tags[0], [kind for kind in HOT if kind in kinds]) or wanted]


def finds(bug: str, directory: Path) -> bool:
    """Whether the judge finds a planted bug within `WITHIN` seconds of faults, and says of it what it should."""
    kinds, faults, said, _ = WRONG[bug]
    end, numbers = monotonic() + WITHIN, itertools.count()
    while monotonic() < end:
        number = str(next(numbers))
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
) -> tuple[str, dict[str, int]]:
    """The summary of the history, and how many faults of each name occurred. `AssertionError`: what is wrong."""
    choice = Random(seed)
    with ExitStack() as stack:
        servers = stack.enter_context(SERVERS[kind](directory))
        wanted = owners(servers, kinds)
        load = Load(servers, directory, wanted, OPTIONS, unruly=faults != NO_FAULTS, wrong=wrong)
        load.beside = [stack.enter_context(Server()) for _ in range(2 if "red" in kinds else 0)]
        stack.callback(load.close)
        proxies, urls = list[Proxy](), [servers.url]
        if isinstance(servers, Server):
            proxies = [stack.enter_context(Proxy(servers.host, servers.port)) for _ in range(2)]
            proxies[1].latency(FAR)
            urls = [proxy.url for proxy in proxies]
        elif isinstance(servers, Cluster):
            proxies = [servers.proxy_of(node) for node in servers.masters()]
        for backend in ("threads", "asyncio", "both"):
            load.start(backend, urls[0], seed)
        load.start("both", urls[-1], seed)
        beside = stack.enter_context(ExitStack())
        if java:
            target = (cluster_of_servers if isinstance(servers, Cluster) else single_server)(servers)
            beside.callback(target.close)
            beside.callback(JavaOwners(target, directory / "java.journal", wanted[0], seed).close)
        load.wait_until_all_are_taken()
        begun = Faults(load, proxies, choice, lambda: load.start("both", choice.choice(urls), seed))
        try:
            begun.run(monotonic() + seconds, faults)
        finally:
            begun.heal()
        beside.close()
        load.end(undisturbed=faults == NO_FAULTS, excused=begun.excuses)
        found = passed_over(load.history) if faults == NO_FAULTS else []
        assert not found, "\n".join(found)
        return load.history.summary(), begun.counts
