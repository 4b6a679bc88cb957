"""While locks are held, waited for, and acquired by many: slots move, masters are replaced or out of reach.

The load is two processes, one of threads and one of tasks, that contend for the same locks. Its history is judged:
there must be no overlaps of holds, no locks that nobody gets, and no keys that stay.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic

import pytest

from pyredisson.testing import Cluster, ClusterNode, Proxy, Sentinels, ServerError
from tests.campaign.load import COUNTERS, LEASE, OPTIONS, under_load, wants
from tests.campaign.rounds import refuse
from tests.support.backends import Backend, eventually, finished, hold_all, in_turn
from tests.support.children import also_on, completed, newest_redis, newest_valkey, valkey_server
from tests.support.kinds import LOCKS, SINGLE_KEY

from .conftest import atomically, everywhere
from .scenes import begin_slow_move, let_a_minute_pass, other_than, places, tag_on, while_it_is_copied

FIRST_LOCK_SECONDS = 3.0
"""How much longer than the promotion the first locks on the slot may take on a busy machine, without any refresh."""
KINDS = (*LOCKS, *COUNTERS)
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
    owners = [*(wants(tag, KINDS) for tag in tags), [("multi", [f"both{{{tag}}}" for tag in tags[:2]])]]
    with under_load(own_cluster, tmp_path, [wants(tag, KINDS), *owners], undisturbed=True) as load:
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
    owners = [wants(each, KINDS) for each in (tag, tag, tag, *others)]
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
    return monotonic()


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
        taken = monotonic()
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
        separated = monotonic()
        while monotonic() < separated + LEASE + 1:
            load.wait_until_served(LEASE, "spared")
        reunite(proxied_cluster.proxy_of(node))
        reunited = monotonic()
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
