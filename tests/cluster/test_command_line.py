"""The command line on a cluster, and behind Sentinels."""

from __future__ import annotations

import json
import uuid

import pytest

import pyredisson
from pyredisson._settings.config import Config
from pyredisson.cli import checks
from pyredisson.cli.reading import reader
from pyredisson.testing import Cluster, Sentinels
from tests.cli.test_watch import watching
from tests.support.commands import Commands

NAMES = [f"orders-{number}" for number in range(10)]
OWNER = f"{uuid.UUID(int=3)}:1"


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Commands:
    return Commands(capsys, monkeypatch)


def names(lines: str) -> set[str]:
    return {json.loads(line)["name"] for line in lines.splitlines()}


def test_ls_on_all_masters(command: Commands, cluster: Cluster) -> None:
    with cluster.redis() as redis:
        for name in NAMES:
            redis.hset(name, OWNER, 1)
    ended = command("ls", "--json", "--url", cluster.url)
    assert (ended.status, ended.err) == (0, "")
    assert names(ended.out) == set(NAMES)
    assert {json.loads(line)["server"] for line in ended.out.splitlines()} == {
        f"{node.address[0]}:{node.address[1]}" for node in cluster.masters()
    }


def test_one_node_of_a_cluster_is_not_the_cluster(command: Commands, cluster: Cluster) -> None:
    """Otherwise a part of the locks would be missing without a word."""
    host, port = cluster.masters()[0].address
    ended = command("ls", "--url", f"redis://{host}:{port}")
    assert (ended.status, ended.out) == (69, "")
    assert "is a node of a cluster, which is addressed as redis+cluster://" in ended.err


def test_inspect_and_unlock(command: Commands, cluster: Cluster) -> None:
    """On the node of the lock."""
    with cluster.redis() as redis:
        for name in NAMES[:3]:
            redis.hset(name, OWNER, 1)
        for name in NAMES[:3]:
            host, port = cluster.node_of_key(name).address
            assert f"server: {host}:{port}\n" in command("inspect", name, "--url", cluster.url).out
            assert command("unlock", name, "--yes", "--url", cluster.url).status == 0
            assert not redis.exists(name)


def test_doctor(command: Commands, cluster: Cluster) -> None:
    """The messages of each master arrive."""
    ended = command("doctor", "--json", "--url", cluster.url)
    assert (ended.status, ended.err) == (0, "")
    findings = [json.loads(line) for line in ended.out.splitlines()]
    addresses = {":".join(map(str, node.address)) for node in cluster.masters()}
    for check in ("version", "latency", "pubsub", "min-replicas"):
        assert {each["server"] for each in findings if each["check"] == check} == addresses
    assert {each["level"] for each in findings if each["check"] in ("pubsub", "rights", "clock", "slots")} == {"ok"}


def test_doctor_when_a_master_has_another_map(own_cluster: Cluster) -> None:
    """The owner of a slot has given it up, which the other masters don't hear."""
    owner, slot = own_cluster.node_of(7), 7
    config = Config.of(own_cluster.url)
    with reader(config) as reading:
        owner.ask("CLUSTER", "DELSLOTS", slot)
        found = {each.check: each for each in checks.Checks(config, reading, "x")._cluster()}
    address = ":".join(map(str, owner.address))
    assert {check: (each.level, each.server) for check, each in found.items()} == {
        "cluster": ("error", address),
        "slots": ("warning", address),
    }
    assert "for 1 slots, the first of them is 7" in found["slots"].text
    assert f"redis-cli --cluster check {address}" in found["slots"].advice


def test_doctor_with_names_on_one_server(command: Commands, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says of the other servers what was not tested."""
    monkeypatch.setattr(checks.Checks, "_wakes", lambda *_: 0.0)
    ended = command("doctor", "--json", "--name", "{app}", "--url", cluster.url)
    assert (ended.status, ended.err) == (0, "")
    found = [each for each in map(json.loads, ended.out.splitlines()) if each["check"] == "pubsub"]
    assert sorted(each["level"] for each in found) == ["note"] * (len(cluster.masters()) - 1) + ["ok"]


def test_bench(command: Commands, cluster: Cluster) -> None:
    """Over all masters, and it leaves nothing."""
    ended = command("bench", "--seconds", "0.3", "--url", cluster.url)
    assert (ended.status, ended.err) == (0, "")
    assert " pairs" in ended.out
    with cluster.redis() as redis:
        assert redis.dbsize() == 0


def test_watch(cluster: Cluster) -> None:
    with cluster.redis() as redis, watching(cluster.url) as screen:
        for name in NAMES:
            redis.hset(name, OWNER, 1)
        # In the order of the names, of all masters: the last one comes after the others.
        screen.until(NAMES[-1])
        redis.delete(NAMES[-1])
        screen.until(NAMES[-2], without=NAMES[-1])


@pytest.mark.slow
def test_ls_without_one_of_the_masters(command: Commands, own_cluster: Cluster) -> None:
    """The others are listed, and the status says that something may be missing."""
    gone, *left = own_cluster.masters()
    expected = {name for name in NAMES if own_cluster.node_of_key(name) is not gone}
    with own_cluster.redis() as redis:
        for name in NAMES:
            redis.hset(name, OWNER, 1)
    # No replica takes over while the command runs.
    own_cluster.set_node_timeout(60.0)
    own_cluster.pause(gone)
    try:
        ended = command("ls", "--json", "--url", own_cluster.url, "--timeout", "3")
    finally:
        own_cluster.resume(gone)
    assert ended.status == 1
    assert names(ended.out) == expected
    host, port = gone.address
    assert f"incomplete: {host}:{port} (" in ended.err
    assert left


def test_ls_behind_sentinels(command: Commands, sentinels: Sentinels) -> None:
    with pyredisson.connect(sentinels.url) as client, client.get_lock("orders"):
        ended = command("ls", "--json", "--url", sentinels.url)
    assert (ended.status, ended.err) == (0, "")
    assert names(ended.out) == {"orders"}


def test_inspect_and_unlock_behind_sentinels(command: Commands, sentinels: Sentinels) -> None:
    with pyredisson.connect(sentinels.url) as client:
        client.get_lock("orders").lock()
        ended = command("inspect", "orders", "--url", sentinels.url)
        assert (ended.status, ended.err) == (0, "")
        assert "orders" in ended.out
        assert command("unlock", "orders", "--yes", "--url", sentinels.url).status == 0
        assert not client.get_lock("orders").is_locked()


def test_doctor_and_bench_behind_sentinels(command: Commands, sentinels: Sentinels) -> None:
    ended = command("doctor", "--json", "--url", sentinels.url)
    assert (ended.status, ended.err) == (0, "")
    found = [json.loads(line) for line in ended.out.splitlines()]
    assert {each["level"] for each in found if each["check"] in ("pubsub", "rights")} == {"ok"}
    ended = command("bench", "--seconds", "0.3", "--url", sentinels.url)
    assert (ended.status, ended.err) == (0, "")
    assert " pairs" in ended.out


def test_watch_behind_sentinels(sentinels: Sentinels) -> None:
    with watching(sentinels.url) as screen, pyredisson.connect(sentinels.url) as client:
        with client.get_lock("orders"):
            screen.until("orders")
        screen.until("", without="orders")
