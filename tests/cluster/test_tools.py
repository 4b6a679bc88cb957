"""The command line, the dashboard, decorators, singletons and elections on a cluster, and behind Sentinels."""

from __future__ import annotations

import json
import sys
import uuid
from typing import Any

import pytest

import pyredisson
from pyredisson import LockTimeoutError
from pyredisson._settings.config import Config
from pyredisson.cli import doctor
from pyredisson.cli.reading import reader
from pyredisson.logic.announcement import client_key
from pyredisson.testing import Cluster, Sentinels
from tests.cli.test_watch import watching
from tests.dashboard.running import Dashboard
from tests.support.commands import Commands, Ended
from tests.support.commands import pyredisson as run_command
from tests.support.inspecting import announce

from .conftest import NO_FAILOVER

NAMES = [f"orders-{number}" for number in range(10)]
CLIENT = str(uuid.UUID(int=3))
OWNER = f"{CLIENT}:1"
SAYS_WHAT_IT_HOLDS = "import os; print(os.environ['PYREDISSON_LOCK'], int(os.environ['PYREDISSON_FENCING_TOKEN']) > 0)"

Servers = Cluster | Sentinels


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Commands:
    return Commands(capsys, monkeypatch)


@pytest.fixture(params=["cluster", "sentinels"])
def servers(request: pytest.FixtureRequest) -> Servers:
    made: Servers = request.getfixturevalue(request.param)
    return made


def address_of(servers: Servers, name: str) -> str:
    host, port = (servers.node_of_key(name) if isinstance(servers, Cluster) else servers.master()).address
    return f"{host}:{port}"


def found(lines: str) -> dict[str, Any]:
    return {each["name"]: each for each in map(json.loads, lines.splitlines())}


def hold(servers: Servers, *names: str) -> None:
    with servers.redis() as redis:
        for name in names:
            redis.hset(name, OWNER, 1)
            redis.pexpire(name, 600_000)


def test_commands(command: Commands, servers: Servers) -> None:
    """`ls`, `inspect` and `unlock` see and reach the locks of all masters; `bench` uses all, and leaves nothing."""
    hold(servers, *NAMES)
    with servers.redis() as redis:
        # It is on one node, and the locks are on all.
        announce(redis, CLIENT, {f"1 {NAMES[0]}": "fair"})
    ended = command("ls", "--json", "--url", servers.url)
    assert (ended.status, ended.err) == (0, "")
    listed = found(ended.out)
    assert {name: each["server"] for name, each in listed.items()} == {
        name: address_of(servers, name) for name in NAMES
    }
    assert {each["owners"][0]["holder"]["host"] for each in listed.values()} == {"web-3"}
    assert listed[NAMES[0]]["kind"] == "fair"
    with servers.redis() as redis:
        redis.delete(client_key(CLIENT))
        for name in NAMES:
            assert f"server: {address_of(servers, name)}\n" in command("inspect", name, "--url", servers.url).out
            assert command("unlock", name, "--yes", "--url", servers.url).status == 0
            assert not redis.exists(name)
        ended = command("bench", "--seconds", "0.3", "--url", servers.url)
        assert (ended.status, ended.err) == (0, "")
        assert " pairs" in ended.out
        assert redis.dbsize() == 0
    assert run_command("run", "--url", servers.url, "job", "--", sys.executable, "-c", SAYS_WHAT_IT_HOLDS) == Ended(
        0, "job True\n", ""
    )


def test_doctor(command: Commands, servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    """The messages of each master arrive. With names on one server it says of the others what was not tested."""
    ended = command("doctor", "--json", "--url", servers.url)
    assert (ended.status, ended.err) == (0, "")
    findings = [json.loads(line) for line in ended.out.splitlines()]
    masters = servers.masters() if isinstance(servers, Cluster) else [servers.master()]
    addresses = {":".join(map(str, node.address)) for node in masters}
    for check in ("version", "latency", "pubsub", "min-replicas"):
        assert {each["server"] for each in findings if each["check"] == check} == addresses
    assert {each["level"] for each in findings if each["check"] in ("pubsub", "rights", "clock", "slots")} == {"ok"}
    monkeypatch.setattr(doctor.Checks, "_wakes", lambda *_: 0.0)
    ended = command("doctor", "--json", "--name", "{app}", "--url", servers.url)
    assert (ended.status, ended.err) == (0, "")
    levels = [each["level"] for each in map(json.loads, ended.out.splitlines()) if each["check"] == "pubsub"]
    assert sorted(levels) == ["note"] * (len(masters) - 1) + ["ok"]


def test_doctor_when_a_master_has_another_map(own_cluster: Cluster) -> None:
    """The owner of a slot has given it up, which the other masters don't hear."""
    owner, slot = own_cluster.node_of(7), 7
    config = Config.of(own_cluster.url)
    with reader(config) as reading:
        owner.ask("CLUSTER", "DELSLOTS", slot)
        said = {each.check: each for each in doctor.Checks(config, reading, "x")._cluster()}
    address = ":".join(map(str, owner.address))
    assert {check: (each.level, each.server) for check, each in said.items()} == {
        "cluster": ("error", address),
        "slots": ("warning", address),
    }
    assert "for 1 slots, the first of them is 7" in said["slots"].text
    assert f"redis-cli --cluster check {address}" in said["slots"].advice


def test_watch(servers: Servers) -> None:
    with servers.redis() as redis, watching(servers.url) as screen:
        hold(servers, *NAMES)
        # In the order of the names, of all masters: the last one comes after the others.
        screen.until(NAMES[-1])
        redis.delete(NAMES[-1])
        screen.until(NAMES[-2], without=NAMES[-1])


@pytest.mark.slow
def test_one_of_the_masters_hangs(command: Commands, own_cluster: Cluster) -> None:
    """`ls` and the dashboard show the others, and say that something may be missing."""
    # No replica takes over.
    own_cluster.set_node_timeout(NO_FAILOVER)
    names, more = ([f"{word}-{number}" for number in range(30)] for word in ("orders", "stock"))
    hold(own_cluster, *names)
    dashboard = Dashboard(own_cluster.url, "--allow-unlock")
    try:
        dashboard.until(lambda: sorted(dashboard.rows()) == sorted(names))
        servers = {name: dashboard.view("lock", name=name)["server"] for name in names[:10]}
        assert servers == {name: address_of(own_cluster, name) for name in names[:10]}
        # A release goes to the node of the lock.
        assert dashboard.post("/api/unlock", {"name": names[0], "owner": OWNER}).status == 200
        dashboard.until(lambda: names[0] not in dashboard.rows())
        hanging, address = own_cluster.node_of_key(names[1]), address_of(own_cluster, names[1])
        served = next(name for name in more if own_cluster.node_of_key(name) != hanging)
        # Also a client that has announced itself on the master that will hang.
        ids = (str(uuid.UUID(int=number)) for number in range(100))
        client = next(id_ for id_ in ids if own_cluster.node_of_key(client_key(id_).decode()) == hanging)
        with own_cluster.redis() as redis:
            announce(redis, client)
        dashboard.until(lambda: client in dashboard.rows("clients"))
        own_cluster.pause(hanging)
        try:
            ended = command("ls", "--json", "--url", own_cluster.url, "--timeout", "3")
            dashboard.until(lambda: any(address in each for each in problems(dashboard)))
            assert dashboard.get("/api/locks").json["totals"]["away_since"] is None
            # What was known of it is still shown.
            assert names[1] in dashboard.rows()
            assert client in dashboard.rows("clients")
            # And the others go on.
            hold(own_cluster, served)
            dashboard.until(lambda: served in dashboard.rows())
        finally:
            own_cluster.resume(hanging)
        dashboard.until(lambda: problems(dashboard) == [])
        assert sorted(dashboard.rows()) == sorted([*names[1:], served])
    finally:
        dashboard.stop()
    assert ended.status == 1
    assert set(found(ended.out)) == {name for name in names[1:] if own_cluster.node_of_key(name) is not hanging}
    assert f"incomplete: {address} (" in ended.err


def problems(dashboard: Dashboard) -> list[str]:
    said: list[str] = dashboard.get("/api/locks").json["totals"]["problems"]
    return said


def test_helpers(servers: Servers) -> None:
    with pyredisson.connect(servers.url) as client, pyredisson.connect(servers.url) as other:

        @client.locked("order:{order}")
        def work(order: int) -> bool:
            return other.get_lock(f"order:{order}").is_locked()

        # On several nodes of the cluster.
        assert all(work(order) for order in range(8))
        with client.singleton("nightly", at_least=600):
            pass
        with pytest.raises(LockTimeoutError, match="is kept for another"), other.singleton("nightly"):
            raise AssertionError("not reached")
        with client.elect("billing") as term:
            if isinstance(servers, Cluster):
                # The replica that takes over has everything, so the term goes on.
                servers.fail_over(servers.node_of_key("billing"), takeover=True)
            leader = other.elect("billing").leader()
            assert leader is not None
            assert leader.client_id == client.id
            assert term.valid
            assert not term.lost.is_set()
        with other.elect("billing") as later:
            assert later.token > term.token
