"""A cluster of three masters beside one standalone server: calls, and the time that a failover takes."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack, nullcontext
from statistics import median
from time import perf_counter, thread_time
from typing import Any, NamedTuple

import pyredisson
import pyredisson.asyncio
from benchmarks import Row, Target
from benchmarks.bare import RELEASED, Commands, PipeliningProtocol, bare_pair
from benchmarks.measure import Samples, interleave, one_core
from pyredisson._client.servers import SHORTEST_SETTLING
from pyredisson._protocol.pubsub import PubSub
from pyredisson.testing import Cluster, Server
from pyredisson.testing.cluster_node import ClusterNode

MASTERS = 3
TASKS = 500
PAIRS_OF_A_TASK = 8
PAIRS_ON_A_MASTER = 100
CALM = 30.0
"""The node timeout in seconds where nothing is to fail: a busy machine must not lead to a failover."""
PATIENCE = 30.0
"""Seconds within which a replica is promoted."""
POLL = 0.002
"""Seconds between two questions whether a replica is the master now."""

DEFAULT, SHARDED, BOTH = "default", "sharded messages", "both flavours"
"""What a release publishes: by default, with `sharded_pubsub="on"`, and with `"both"`. A plain message goes to every
node of the cluster, whose servers share the two cores here. By default it is left out, as nobody waits."""
FORMS = {DEFAULT: PubSub.AUTO, SHARDED: PubSub.SHARDED, BOTH: PubSub.BOTH}
SETTINGS = {DEFAULT: "auto", SHARDED: "on", BOTH: "both"}
SETTLED = SHORTEST_SETTLING + 1.0
"""Seconds after its first call for which a client publishes both flavours by default, too: it doesn't know yet whether
others have noticed where the slots are. What is measured is a client that has run for longer."""

Pair = Callable[[], Awaitable[None]]


def rows(*, quick: bool) -> list[Row]:
    """Calls on masters without replicas, failover on masters with one replica each."""
    return [
        *_one_thread(10 if quick else 60),
        _client_share(10 if quick else 60),
        *_many_tasks(4 if quick else 16, pinned=True),
        *_many_tasks(4 if quick else 16, pinned=False),
        _failover(1 if quick else 3),
    ]


def _masters() -> Cluster:
    return Cluster(masters=MASTERS, replicas=0, node_timeout=CALM)


# --- One thread


def _one_thread(rounds: int) -> list[Row]:
    with one_core(), ExitStack() as stack:
        server, cluster = stack.enter_context(Server()), stack.enter_context(_masters())
        names = _one_name_of_each(cluster)
        own = {name: cluster.node_of_key(name) for name in names}

        def ours(url: str, **settings: Any) -> Callable[[], float]:
            client = stack.enter_context(pyredisson.connect(url, **settings))
            return _in_turn([_pair(client.get_lock(name)) for name in names])

        def bare(server_of: Callable[[str], Server], pubsub: PubSub) -> Callable[[], float]:
            made = [bare_pair(server_of(name), name, pubsub) for name in names]
            for _, connection in made:
                stack.callback(connection.close)
            return _in_turn([pair for pair, _ in made])

        contenders = {
            "standalone": ours(server.url),
            **{name: ours(cluster.url, sharded_pubsub=setting) for name, setting in SETTINGS.items()},
            "bare standalone": bare(lambda _: server, PubSub.PLAIN),
            **{f"bare {name}": bare(own.__getitem__, pubsub) for name, pubsub in FORMS.items()},
        }
        contenders[DEFAULT]()
        time.sleep(SETTLED)
        samples = interleave(contenders, rounds)
    return _rows(
        samples,
        "cluster, 1 thread, {} *",
        "lock() + unlock() of a free lock, on three masters one after the other, beside a standalone server",
        "us/pair",
        Target("ratio", "<=", 1.15),
    )


def _client_share(rounds: int) -> Row:
    with one_core(), ExitStack() as stack:
        server, cluster = stack.enter_context(Server()), stack.enter_context(_masters())
        names = _one_name_of_each(cluster)

        def ours(url: str) -> Callable[[], float]:
            # The messages of a release are no work of the client. Sharded ones disturb it least.
            client = stack.enter_context(pyredisson.connect(url, sharded_pubsub="on"))
            return _in_turn([_pair(client.get_lock(name)) for name in names], thread_time)

        samples = interleave({"cluster": ours(cluster.url), "standalone": ours(server.url)}, rounds)
    return Row(
        name="cluster, 1 thread, client's share *",
        what="processor time of the calling thread alone: what it costs to find the node of each command",
        unit="us/pair",
        ours=samples.median("cluster"),
        baselines=samples.medians("cluster"),
        ratio=samples.ratio("cluster", "standalone"),
        target=Target("ratio", "<=", 1.15),
    )


def _one_name_of_each(cluster: Cluster) -> list[str]:
    """The name of a lock on each master."""
    names: dict[ClusterNode, str] = {}
    for number in range(1000):
        names.setdefault(cluster.node_of_key(f"lock-{number}"), f"lock-{number}")
        if len(names) == MASTERS:
            return list(names.values())
    raise AssertionError("a master serves none of the names")


def _pair(lock: pyredisson.Lock) -> Callable[[], None]:
    def pair() -> None:
        lock.lock()
        lock.unlock()

    return pair


def _in_turn(pairs: Sequence[Callable[[], None]], clock: Callable[[], float] = perf_counter) -> Callable[[], float]:
    """A contender that returns the microseconds per pair.

    Many pairs on one master follow each other: three servers that take turns on one core find nothing in its caches.
    """

    def run() -> float:
        began = clock()
        for pair in pairs:
            for _ in range(PAIRS_ON_A_MASTER):
                pair()
        return (clock() - began) / (len(pairs) * PAIRS_ON_A_MASTER) * 1e6

    return run


def _rows(samples: Samples, name: str, what: str, unit: str, target: Target) -> list[Row]:
    """A row for each way to publish, beside the same calls on a standalone server.

    The bare ones show how much more work the servers of a cluster have with them.
    """

    def row(messages: str) -> Row:
        beside = ("standalone", f"bare {messages}", "bare standalone", BOTH)
        return Row(
            name=name.format(messages),
            what=what,
            unit=unit,
            ours=samples.median(messages),
            baselines={each: samples.median(each) for each in beside},
            ratio=samples.ratio(messages, "standalone"),
            target=target,
        )

    return [row(messages) for messages in (DEFAULT, SHARDED)]


# --- Many tasks


def _many_tasks(rounds: int, *, pinned: bool) -> list[Row]:
    """Pinned, more servers are only more work for the one core. With all cores they work beside the client."""
    names = [f"lock-{number}" for number in range(TASKS)]
    with one_core() if pinned else nullcontext(), ExitStack() as stack:
        server, cluster = stack.enter_context(Server()), stack.enter_context(_masters())
        own = {name: cluster.node_of_key(name) for name in names}
        runner = stack.enter_context(asyncio.Runner())
        open_ = AsyncExitStack()
        makers = {
            "standalone": _pairs(open_, names, server.url),
            **{name: _pairs(open_, names, cluster.url, sharded_pubsub=setting) for name, setting in SETTINGS.items()},
            "bare standalone": _bare_pairs(open_, names, lambda _: server, PubSub.PLAIN),
            **{f"bare {name}": _bare_pairs(open_, names, own.__getitem__, pubsub) for name, pubsub in FORMS.items()},
        }
        contenders = {name: _together(runner, runner.run(pairs)) for name, pairs in makers.items()}
        contenders[DEFAULT]()
        time.sleep(SETTLED)
        samples = interleave(contenders, rounds)
        runner.run(open_.aclose())
    return _rows(
        samples,
        f"cluster, 500 tasks, {{}}{' *' if pinned else ''}",
        "pairs a second of 500 tasks on 500 locks on three masters, beside the same on a standalone server",
        "pairs/s",
        Target("ratio", ">=", 0.9 if pinned else 1.2),
    )


async def _pairs(open_: AsyncExitStack, names: Sequence[str], url: str, **settings: Any) -> list[Pair]:
    client = await open_.enter_async_context(pyredisson.asyncio.connect(url, **settings))

    def pair_of(name: str) -> Pair:
        lock = client.get_lock(name)

        async def pair() -> None:
            await lock.lock()
            await lock.unlock()

        return pair

    return [pair_of(name) for name in names]


async def _bare_pairs(
    open_: AsyncExitStack, names: Sequence[str], server_of: Callable[[str], Server], pubsub: PubSub
) -> list[Pair]:
    """The same commands over one bare protocol for each server."""
    lines: dict[Server, PipeliningProtocol] = {}
    for server in {server_of(name) for name in names}:
        loop = asyncio.get_running_loop()
        transport, lines[server] = await loop.create_connection(PipeliningProtocol, server.host, server.port)
        open_.callback(transport.close)

    def pair_of(name: str) -> Pair:
        server = server_of(name)
        line, commands = lines[server], Commands(server, name, pubsub)

        async def pair() -> None:
            taken = await line.call(commands.acquire)
            if taken is not None or await line.call(commands.release) not in RELEASED:
                raise AssertionError("the bare protocol didn't lock and unlock")

        return pair

    return [pair_of(name) for name in names]


def _together(runner: asyncio.Runner, pairs: Sequence[Pair]) -> Callable[[], float]:
    """A contender that returns the pairs per second of all tasks together."""

    async def work(pair: Pair) -> None:
        for _ in range(PAIRS_OF_A_TASK):
            await pair()

    async def all_tasks() -> float:
        began = perf_counter()
        await asyncio.gather(*map(work, pairs))
        return PAIRS_OF_A_TASK * len(pairs) / (perf_counter() - began)

    return lambda: runner.run(all_tasks())


# --- Failover


class Outage(NamedTuple):
    """Seconds from the kill -9 of a master."""

    promoted: float
    """Its replica says that it is the master."""
    locked: float
    """A lock of its slots is acquired."""


def _failover(clusters: int) -> Row:
    outages: list[Outage] = []
    for _ in range(clusters):
        with Cluster(masters=MASTERS, replicas=1) as cluster:
            # Each promoted replica makes the masters complete again, so all of the first ones can fail.
            outages += [_outage(cluster, master) for master in cluster.masters()]
    return Row(
        name="cluster, failover",
        what="from the promotion of a replica after kill -9 of its master, until a lock of its slots is acquired",
        unit="s",
        ours=median(outage.locked - outage.promoted for outage in outages),
        baselines={
            "kill to promotion": median(outage.promoted for outage in outages),
            "kill to lock": median(outage.locked for outage in outages),
        },
        target=Target("ours", "<=", 0.3),
    )


def _outage(cluster: Cluster, master: ClusterNode) -> Outage:
    (replica,) = cluster.replicas_of(master)
    promoted: list[float] = []
    ends = perf_counter() + PATIENCE

    def watch() -> None:
        while perf_counter() < ends:
            if replica.ask("ROLE")[0] == "master":
                promoted.append(perf_counter())
                return
            # No server tells that it was promoted.
            time.sleep(POLL)

    with pyredisson.connect(cluster.url) as client:
        name = next(name for name in map(str, range(1000)) if cluster.node_of_key(name) is master)
        lock = client.get_lock(name)
        with lock:
            pass
        watcher = threading.Thread(target=watch)
        watcher.start()
        cluster.kill(master)
        killed = perf_counter()
        if not lock.try_lock(PATIENCE):
            raise AssertionError(f"no lock of a failed master was acquired within {PATIENCE} s")
        locked = perf_counter()
        lock.unlock()
        watcher.join()
    cluster.wait_for_promotion(master)
    return Outage(promoted[0] - killed, locked - killed)
