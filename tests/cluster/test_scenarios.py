"""While locks are held, waited for, and acquired by many: slots move, masters are replaced or out of reach.

The load is two processes, one of threads and one of tasks, that contend for the same locks. Its history is judged:
there must be no overlaps of holds, no locks that nobody gets, and no keys that stay.
"""

import itertools
import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import pyredisson
from pyredisson.testing import Cluster, ClusterNode, Proxy, Sentinels, ServerError
from tests.faults.soak import Journals, judge
from tests.faults.soak_worker import PERMITS, PROGRAM, Wanted, clock
from tests.support.backends import Backend, finished, hold_all, in_turn
from tests.support.children import Child, completed
from tests.support.kinds import LOCKS, SINGLE_KEY
from tests.support.programs import also_on, newest_redis, newest_valkey, valkey_server
from tests.support.waiting import eventually

from .conftest import atomically, everywhere
from .scenes import begin_slow_move, let_a_minute_pass, other_than, places, tag_on, while_it_is_copied

BACKENDS = ("threads", "asyncio")
LEASE = 3.0
"""Seconds: the watchdog's lease. What a failed server has forgotten to release is free after it."""
OPTIONS = {"lock_watchdog_timeout": LEASE, "timeout": 1.0, "connect_timeout": 1.0, "topology_refresh_interval": 1.0}
END_SECONDS = 30.0
FACTORIES: dict[str, Callable[[pyredisson.Client, str], Any]] = {
    "semaphore": pyredisson.Client.get_semaphore,
    "permit": pyredisson.Client.get_permit_expirable_semaphore,
}
"""What has permits. Their keys stay."""
ALL = (*LOCKS, *FACTORIES)
FIRST_LOCK_SECONDS = 3.0
"""How much longer than the promotion the first locks on the slot may take on a busy machine, without any refresh."""
Taken = set[tuple[str, str, str]]
"""Backends, kinds and names of holds."""
LASTING = ("redisson_lock_token", "pyredisson_", "{")
"""How names of keys begin that may stay: the tokens of fenced locks, and what the server removes by itself."""


@dataclass
class History(Journals):
    """What the processes of a load have written until now."""

    directory: Path = Path()
    backends: dict[str, str] = field(default_factory=dict)
    """The backend of each hold."""
    _read: dict[Path, int] = field(default_factory=dict)

    def update(self) -> int:
        """Reads what was written since the last time. Returns how many holds are known."""
        for path in sorted(self.directory.glob("*.journal")):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._read[path] = self._read.get(path, 0) + len(whole)
            known = len(self.holds)
            self.add(whole.decode().splitlines())
            for identity in itertools.islice(self.holds, known, None):
                self.backends[identity] = path.stem
        return len(self.holds)

    def taken_since(self, moment: float) -> Taken:
        """What was granted since then."""
        return {
            (self.backends[hold.identity], hold.kind, hold.name)
            for hold in self.holds.values()
            if hold.begin > moment and hold.end >= hold.begin > hold.asked
        }

    def faults(self) -> list[str]:
        """Overlaps, fencing tokens that decrease, errors that nobody expects; one line each."""
        found = [f"unexpected: {error}" for error in self.errors]
        holds = list(self.holds.values())
        for name in dict.fromkeys(hold.name for hold in holds):
            # Only the tokens of one lock rise in one sequence.
            found += judge(Journals({str(number): hold for number, hold in enumerate(holds) if hold.name == name}))
        return found

    def summary(self) -> str:
        kinds = sorted({hold.kind for hold in self.holds.values()})
        counts = ", ".join(f"{kind} {sum(hold.kind == kind for hold in self.holds.values())}" for kind in kinds)
        errors = sorted({failure.error or "refused" for failure in self.failures})
        lost = sum(hold.lost for hold in self.holds.values())
        return f"{len(self.holds)} holds ({counts}), {lost} lost, {len(self.failures)} failed acquires {errors}"


def starved(history: History, since: float, bound: float) -> list[str]:
    """The locks that an owner waited for, and nobody acquired, for longer than `bound` seconds after `since`."""
    grants: dict[tuple[str, str], list[float]] = {}
    waits: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for hold in history.holds.values():
        grants.setdefault((hold.kind, hold.name), []).append(hold.begin)
        waits.setdefault((hold.kind, hold.name), []).append((hold.asked, hold.begin))
    for failure in history.failures:
        waits.setdefault((failure.kind, failure.name), []).append((failure.asked, failure.at))
    found = []
    for lock, periods in waits.items():
        moments, longest = sorted(grants.get(lock, [])), 0.0
        for asked, end in periods:
            begin = max(asked, since)
            within = moments[bisect_right(moments, begin) : bisect_left(moments, end)]
            longest = max(longest, *(two - one for one, two in itertools.pairwise((begin, *within, end))))
        if longest > bound:
            found.append(f"nobody acquired {lock[0]} {lock[1]!r} for {longest:.2f} s")
    return found


def wants(tag: str, kinds: Sequence[str] = tuple(LOCKS), prefix: str = "load") -> list[Wanted]:
    """Locks of these kinds whose keys are all on the slot of `tag`; readers and writers have the same lock."""
    return [(kind, [f"{prefix}-{'rw' if kind in {'read', 'write'} else kind}{{{tag}}}"]) for kind in kinds]


class Load:
    """What goes on in the processes of a load (`under_load`)."""

    def __init__(self, servers: Cluster | Sentinels, directory: Path, owners: list[list[Wanted]]) -> None:
        self.servers = servers
        self.children: list[Child] = []
        self.history = History(directory=directory)
        self.wanted = {(kind, name) for wanted in owners for kind, names in wanted for name in names}

    def wait_until_all_are_taken(self) -> None:
        """Returns when each backend has acquired every lock since now. No lock promises an owner its share."""
        everything = {(backend, *each) for backend in BACKENDS for each in self.wanted}
        self._wait_until_taken(lambda taken: everything - taken, END_SECONDS)

    def wait_until_served(self, seconds: float, names: str = "") -> None:
        """Returns when since now every lock whose name contains `names` was acquired, and some of them by each backend:
        neither a lock nor a client waits for a server that doesn't answer."""
        locks = {each for each in self.wanted if names in each[1]}

        def missing(taken: Taken) -> set[Any]:
            found = [each for each in taken if names in each[2]]
            return locks - {each[1:] for each in found} | set(BACKENDS) - {backend for backend, *_ in found}

        self._wait_until_taken(missing, seconds)

    def _wait_until_taken(self, missing: Callable[[Taken], set[Any]], seconds: float) -> None:
        """Returns when nothing is `missing` in what was acquired since now."""
        begin = clock()

        def left() -> set[Any]:
            self.history.update()
            return missing(self.history.taken_since(begin))

        try:
            eventually(lambda: not left(), seconds)
        except AssertionError:
            said = f"not taken within {seconds:g} s: {sorted(map(str, left()))}; {self.history.summary()}"
            raise AssertionError(said) from None

    def wait_until_taken(self, count: int) -> None:
        """Returns when so many holds have begun since now."""
        aim = self.history.update() + count
        eventually(lambda: self.history.update() >= aim, END_SECONDS)

    def end(self, *, undisturbed: bool) -> None:
        """Ends the load when every lock was acquired on each backend once more, and judges it: no two holds overlap,
        nothing stays on the servers, and no lock was waited for, and acquired by nobody, for longer than two leases
        since this was called. `undisturbed`: no hold was lost, and no acquire has failed."""
        calm_since = clock()
        self.wait_until_all_are_taken()
        for child in self.children:
            child.send()
        for child in self.children:
            assert [child.receive(END_SECONDS) for _ in range(2)] == ["ready", "done"]
            assert child.wait(END_SECONDS) == 0
        self.history.update()
        found = self.history.faults() + starved(self.history, calm_since, 2 * LEASE)
        # Until all leases have ended.
        with suppress(AssertionError):
            eventually(lambda: not self._left(), 2 * LEASE)
        found += self._left()
        if undisturbed:
            found += [f"lost: {hold}" for hold in self.history.holds.values() if hold.lost]
            found += map(str, self.history.failures)
        assert not found, "\n".join([*found, self.history.summary()])

    def _left(self) -> list[str]:
        """Keys that belong to no semaphore, and that no lease and no lifetime removes; permits in use."""
        servers, found = self.servers, []
        counters = {name for kind, name in self.wanted if kind in FACTORIES}
        for node in servers.masters() if isinstance(servers, Cluster) else (servers.master(),):
            keys = set(node.ask("KEYS", "*")) - counters
            found += [f"{key} on {node.port}" for key in keys if not key.startswith(LASTING)]
        with pyredisson.connect(servers.url) as client:
            for kind, name in sorted(self.wanted):
                if kind in FACTORIES and (permits := FACTORIES[kind](client, name).available_permits()) != PERMITS:
                    found.append(f"{kind} {name!r} has {permits} permits of {PERMITS}")
        return found


@contextmanager
def under_load(
    servers: Cluster | Sentinels, directory: Path, owners: list[list[Wanted]], undisturbed: bool = False, **options: Any
) -> Iterator[Load]:
    """The body begins when every lock was acquired on each backend. `owners`: what each wants in both processes."""
    load = Load(servers, directory, owners)
    with pyredisson.connect(servers.url) as client:
        for kind, name in load.wanted:
            if kind in FACTORIES:
                FACTORIES[kind](client, name).try_set_permits(PERMITS)
    with ExitStack() as stack:
        for backend in BACKENDS:
            wanted = json.dumps(owners), json.dumps(OPTIONS | options)
            child = Child(PROGRAM, servers.url, backend, directory / f"{backend}.journal", backend, *wanted)
            stack.callback(child.close)
            load.children.append(child)
        load.wait_until_all_are_taken()
        yield load
        load.end(undisturbed=undisturbed)


BEHIND_SENTINELS = [wants("a"), wants("a"), [("multi", ["both-1", "both-2"])]]

pytestmark = pytest.mark.slow


# Slots move


@everywhere
def test_a_cluster_changes_under_load(own_cluster: Cluster, tmp_path: Path) -> None:
    """Slots move to and fro, scripts are flushed, redis-cli reshards, and masters fail over. CLUSTER FAILOVER: the
    master stops serving until its replica has everything. So nothing may be lost."""
    source, other = own_cluster.node_of(0), other_than(own_cluster.node_of(0), own_cluster)
    first = [slot for slot, node in enumerate(map(own_cluster.node_of, range(200))) if node is source][:50]
    # redis-cli moves the first slots of a node.
    tag = next(tag for tag in map(str, range(100_000)) if own_cluster.slot_of_key(tag) in first)
    tags = [tag, *(tag_on(own_cluster, master) for master in own_cluster.masters() if master is not source)]
    owners = [*(wants(tag, ALL) for tag in tags), [("multi", [f"both{{{tag}}}" for tag in tags[:2]])]]
    with under_load(own_cluster, tmp_path, [wants(tag, ALL), *owners], undisturbed=True) as load:
        for to in (other, source) * 2:
            own_cluster.move_slot(own_cluster.slot_of_key(tag), to)
            load.wait_until_taken(40)
        for _ in range(20):
            own_cluster.flush_scripts()
            load.wait_until_taken(10)
        for origin, target in ((source, other), (other, source)):
            reshard(origin, target, 200)
            assert own_cluster.node_of_key(tag) is target
            load.wait_until_taken(40)
        for each in tags[:2]:
            own_cluster.fail_over(own_cluster.node_of_key(each))
            load.wait_until_taken(40)


@also_on(newest_redis)
def test_a_slot_stays_half_moved_under_load(cluster: Cluster, tmp_path: Path) -> None:
    tag, source, other = places(cluster)
    slot = cluster.slot_of_key(tag)
    with under_load(cluster, tmp_path, [wants(tag, SINGLE_KEY)] * 4, undisturbed=True) as load:
        for to in (other, source):
            cluster.begin_move(slot, to)
            load.wait_until_taken(40)
            cluster.move_keys(slot)
            load.wait_until_taken(40)
            # A key that was deleted and set again is on the new node, those that were held are on the former.
            load.wait_until_all_are_taken()
            cluster.move_keys(slot)
            cluster.finish_move(slot)
            load.wait_until_taken(40)


def reshard(source: ClusterNode, target: ClusterNode, slots: int) -> None:
    command = ["redis-cli", "--cluster", "reshard", f"{source.host}:{source.port}", "--cluster-from", source.id]
    command += ["--cluster-to", target.id, "--cluster-slots", str(slots), "--cluster-yes"]
    done = completed(*command, timeout=50)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr


@atomically
def test_slots_move_atomically_under_load(cluster: Cluster, tmp_path: Path) -> None:
    """One slot, all slots of a master, and moves that are cancelled."""
    source, other, third = cluster.masters()
    tag, *others = [tag_on(cluster, node) for node in (source, other)]
    slot = cluster.slot_of_key(tag)
    ((first, last),) = source.view()[source.id].slots
    owners = [wants(each, ALL) for each in (tag, tag, tag, *others)]
    with under_load(cluster, tmp_path, owners, undisturbed=True) as load:
        for to in (other, source) * 2:
            cluster.move_atomically(slot, slot, to)
            load.wait_until_taken(40)
        for to in (other, third, source):
            cluster.move_atomically(first, last, to)
            load.wait_until_taken(60)
        for _ in range(2):
            move = begin_slow_move(cluster, tag, other)
            load.wait_until_taken(5)
            move.cancel()
            with pytest.raises(ServerError, match="the slots have not moved"):
                cluster.finish_atomic_move(move)
            load.wait_until_taken(10)
        assert cluster.node_of_key(tag) is source
        with while_it_is_copied(cluster, tag, other):
            load.wait_until_taken(20)


@atomically
@pytest.mark.parametrize(("struck", "strike"), [("source", "pause"), ("target", "kill")])
def test_a_node_fails_amid_a_move_under_load(own_cluster: Cluster, tmp_path: Path, struck: str, strike: str) -> None:
    """The slot stays at the source, or at the replica that is promoted in its place, which has what it confirmed."""
    tag, source, other = places(own_cluster)
    node = source if struck == "source" else other
    with under_load(own_cluster, tmp_path, [wants(tag), wants(tag)]) as load:
        begin_slow_move(own_cluster, tag, other, 20.0)
        load.wait_until_taken(20)
        getattr(own_cluster, strike)(node)
        promoted = own_cluster.wait_for_promotion(node)
        load.wait_until_served(LEASE + 3)
        assert own_cluster.node_of_key(tag) is (promoted if struck == "source" else source)
        (own_cluster.restart if strike == "kill" else own_cluster.resume)(node)


# Masters are replaced


def promotion(replica: ClusterNode, slot: int) -> float:
    """When the replica serves the slot as a master."""
    eventually(lambda: replica.view()[replica.id].has(slot), 20)
    return clock()


@also_on(valkey_server)
@pytest.mark.parametrize("kind", ["kill", "pause"])
async def test_a_lock_on_the_slots_of_a_dead_master_is_acquired_right_after_the_promotion(
    own_cluster: Cluster, backend: Backend, kind: str
) -> None:
    replica = own_cluster.masters()[0]
    (master,) = own_cluster.replicas_of(replica)
    tag = tag_on(own_cluster, replica)
    # A client that waits for a replica which has left would wait so long.
    client = backend.connect(**OPTIONS | {"topology_refresh_interval": 600, "replicas_sync_timeout": 30})
    before = client.get_lock(f"before{{{tag}}}")
    # The server that will be promoted has been a master before, which had a replica.
    for promote in (lambda: own_cluster.fail_over(replica, takeover=True), own_cluster.wait_until_consistent):
        async with before:
            let_a_minute_pass(client)
            promote()
    with ThreadPoolExecutor(1) as watcher:
        promoted = watcher.submit(promotion, replica, own_cluster.slot_of_key(tag))
        getattr(own_cluster, kind)(master)
        locks = [client.get_lock(f"after{i}{{{tag}}}", owner=i) for i in range(6)]
        await finished([backend.spawn(lock.lock) for lock in locks], 30)
        taken = clock()
    assert taken - promoted.result() < FIRST_LOCK_SECONDS
    await in_turn(lock.unlock for lock in locks)


@also_on(valkey_server)
@pytest.mark.parametrize("strike", ["kill", "pause"])
def test_a_master_dies_or_freezes_under_load(own_cluster: Cluster, tmp_path: Path, strike: str) -> None:
    """The replica that is promoted has confirmed each acquire. The other nodes' locks don't wait."""
    master, spared = own_cluster.masters()[:2]
    tag, other = tag_on(own_cluster, master), tag_on(own_cluster, spared)
    both = [("multi", [f"both{{{tag}}}", f"both{{{other}}}"])]
    owners = [wants(tag), wants(tag), both, *(wants(other, ("lock", kind), "spared") for kind in ("fair", "read"))]
    # So there is time to see that the locks of other nodes don't wait for the promotion.
    own_cluster.set_node_timeout(5)
    with under_load(own_cluster, tmp_path, owners) as load:
        getattr(own_cluster, strike)(master)
        load.wait_until_served(4, "spared")
        own_cluster.wait_for_promotion(master)
        load.wait_until_served(LEASE + 3, f"{{{tag}}}")
        (own_cluster.restart if strike == "kill" else own_cluster.resume)(master)
    assert not [failure for failure in load.history.failures if "spared" in failure.name]


@also_on(valkey_server)
@pytest.mark.parametrize("strike", ["kill", "pause"])
def test_sentinels_replace_the_master_under_load(sentinels: Sentinels, tmp_path: Path, strike: str) -> None:
    master = sentinels.master()
    with under_load(sentinels, tmp_path, BEHIND_SENTINELS) as load:
        getattr(sentinels, strike)(master)
        sentinels.wait_for_promotion(master)
        assert sentinels.master() is not master
        load.wait_until_served(LEASE + 5)
        (sentinels.restart if strike == "kill" else sentinels.resume)(master)


@also_on(newest_valkey)
@pytest.mark.parametrize("replicas", [1, 2])
def test_sentinels_fail_over_on_request_under_load(tmp_path: Path, replicas: int, program: str | None) -> None:
    """The Sentinels demote the former master after the promotion. In between both are masters."""
    with (
        Sentinels(replicas=replicas, executable=program) as sentinels,
        under_load(sentinels, tmp_path, BEHIND_SENTINELS, min_synced_replicas=replicas) as load,
    ):
        former = sentinels.master()
        assert sentinels.fail_over() is not former
        load.wait_until_served(LEASE + 5)


def refuse(proxy: Proxy) -> None:
    proxy.refuse(True)
    proxy.cut(reset=True)


def swallow(proxy: Proxy) -> None:
    proxy.blackhole()
    proxy.stall()


PARTITIONS: dict[str, tuple[Callable[[Proxy], object], Callable[[Proxy], object]]] = {
    # What was sent meanwhile arrives late, when the connections are open again.
    "stall": (Proxy.stall, Proxy.resume),
    "refuse": (refuse, lambda proxy: proxy.refuse(False)),
    "swallow": (swallow, Proxy.resume),
}


@pytest.mark.parametrize("kind", PARTITIONS)
def test_a_node_is_out_of_reach_under_load(proxied_cluster: Cluster, tmp_path: Path, kind: str) -> None:
    """For the client only, and for longer than a lease: holders lose what they hold there, and nothing else waits."""
    separate, reunite = PARTITIONS[kind]
    node, spared = proxied_cluster.masters()[:2]
    tag, other = tag_on(proxied_cluster, node), tag_on(proxied_cluster, spared)
    both = [("multi", [f"both{{{tag}}}", f"both{{{other}}}"])]
    owners = [wants(tag), wants(tag), both, *[wants(other, ("lock", "fair", "read"), "spared")] * 2]
    with under_load(proxied_cluster, tmp_path, owners) as load:
        separate(proxied_cluster.proxy_of(node))
        separated = clock()
        while clock() < separated + LEASE + 1:
            load.wait_until_served(LEASE, "spared")
        reunite(proxied_cluster.proxy_of(node))
        reunited = clock()
        load.wait_until_served(LEASE + 3, f"{{{tag}}}")
    amid = [hold for hold in load.history.holds.values() if separated < hold.asked and hold.begin < reunited]
    assert not [hold for hold in amid if tag in hold.name and f"both{{{other}}}" != hold.name], "it was no partition"


async def test_all_nodes_are_replaced(backend: Backend) -> None:
    """As behind one DNS name in maintenance: of the addresses that the user gave, another one answers now."""
    with Cluster(replicas=0) as former, Cluster(replicas=0) as latter:
        for node in latter.nodes:
            latter.kill(node)
        seeds = [former.nodes[0].address, former.nodes[1].address, latter.nodes[2].address]
        url = "redis+cluster://" + ",".join(f"{host}:{port}" for host, port in seeds)
        one, two = backend.connect(url, **OPTIONS), backend.connect(url, **OPTIONS)
        names = [f"orders-{number}" for number in range(6)]
        await hold_all(one, *names)
        former.stop()
        for node in latter.nodes:
            node.start()
        latter.wait_until_consistent()
        for name in names:
            # What the former nodes knew is gone, so all that was held is lost.
            await backend.until(one.get_lock(name).lost.is_set, 10)
            assert await two.get_lock(name).try_lock(10)
            await two.get_lock(name).unlock()
        assert await one.get_lock("new").try_lock(10)
        # Before the servers.
        await backend.close()
