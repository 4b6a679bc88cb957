"""What programs make of several servers: groups in few round trips, exits; the command line, the dashboard."""

import json
import signal
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import Any

import pytest

import pyredisson.asyncio
from pyredisson._settings.config import Config
from pyredisson.cli import doctor
from pyredisson.cli.reading import reader
from pyredisson.logic.announcement import client_key
from pyredisson.testing import Cluster, Sentinels
from tests.cli.test_ls import watching
from tests.dashboard.conftest import Dashboard
from tests.support.backends import Backend, fails, in_turn
from tests.support.children import Child, Commands, output
from tests.support.children import pyredisson as run_command
from tests.support.inspecting import announce

from .conftest import NO_FAILOVER, either, started
from .scenes import CLIENT, OWNER, hold, names_on

PROGRAM = """
import os, sys, pyredisson
pyredisson.release_on_signals()
client = pyredisson.connect(sys.argv[1])
for number in range(20):
    client.get_lock(f"a{number}").lock()
if sys.argv[2] == "fork":
    parent, pid = client.id, os.fork()
    if not pid:
        assert client.id != parent
        assert not client.get_lock("a1").is_held()
        assert not client.get_lock("a1").try_lock()
        for number in range(20):
            client.get_lock(f"b{number}").lock()
        client.close()
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert all(client.get_lock(f"a{number}").is_held() for number in range(20))
print("held")
wait_for_line()
"""


def keys(cluster: Cluster) -> list[str]:
    found = [key for node in cluster.masters() for key in node.ask("KEYS", "*")]
    return [key for key in found if not key.startswith(("redisson_lock_token", "pyredisson_"))]


@pytest.mark.parametrize("end", ["exit", "fork", "SIGTERM", "SIGINT"])
def test_a_process_that_ends_releases_on_all_nodes(cluster: Cluster, child: Callable[..., Child], end: str) -> None:
    """Its forked child is a client of its own."""
    process, exits = child(PROGRAM, cluster.url, end), end in ("exit", "fork")
    assert (process.receive(), len(keys(cluster))) == ("held", 20)
    process.send() if exits else process.signal(signal.Signals[end])
    assert (process.wait() == 0, keys(cluster)) == (exits, [])


LATENCY = 0.25
"""Seconds, in each direction."""
MEMBERS = 3


proxied = started(Cluster, "module", masters=MEMBERS, replicas=0, proxied=True)
"""A cluster with a proxy before each node."""


async def test_calls_for_all_nodes_take_few_round_trips(
    proxied: Cluster, backend: Backend, request: pytest.FixtureRequest
) -> None:
    """A multi-lock is acquired in order. A red lock, releases and the end of a client reach all nodes at the same time,
    also releases of which one member is lost, or that follow an attempt which fails at the last member."""
    client = backend.connect(topology_refresh_interval=600, check_lock_synced_replicas=False)
    members = [client.get_lock(names_on(proxied, node, 1)[0]) for node in proxied.masters()]
    names = [str(member.name) for member in members]
    red, multi = client.get_red_lock(*members), client.get_multi_lock(*members)

    def latency(seconds: float = 0.0) -> None:
        for node in proxied.nodes:
            proxied.proxy_of(node).latency(seconds)

    def held() -> int:
        return sum(proxied.node_of_key(name).ask("EXISTS", name) for name in names)

    async def round_trips(call: Callable[[], Awaitable[object]], seconds: float = LATENCY) -> float:
        begun = time.monotonic()
        await call()
        return (time.monotonic() - begun) / (2 * seconds)

    async def fewest(*calls: Callable[[], Awaitable[object]]) -> list[float]:
        """How many round trips each of these calls takes, made in turn. The machine delays some."""
        taken = [[await round_trips(call) for call in calls] for _ in range(3)]
        return list(map(min, zip(*taken, strict=True)))

    await in_turn(member.lock for member in members)
    await in_turn(member.unlock for member in members)
    # One connection for each call that is in flight at the same time.
    await red.lock()
    await red.unlock()
    request.addfinalizer(latency)
    latency(LATENCY)
    for taken in await fewest(red.lock, red.is_held, red.unlock):
        assert 1 <= taken < 1.8
    assert held() == 0
    acquired, released = await fewest(multi.lock, multi.unlock)
    assert MEMBERS <= acquired < MEMBERS + 0.8
    assert 1 <= released < 1.8
    assert held() == 0
    await multi.lock()
    assert held() == MEMBERS
    proxied.node_of_key(names[1]).ask("DEL", names[1])
    await fails(pyredisson.LockLostError, multi.unlock)
    assert held() == 0
    last = max(names)
    proxied.node_of_key(last).ask("HSET", last, "java:1", 1)
    [taken] = await fewest(multi.try_lock)
    assert MEMBERS + 1 <= taken < MEMBERS + 1.8
    assert [name for name, member in zip(names, members, strict=True) if await member.is_locked()] == [last]
    proxied.node_of_key(last).ask("DEL", last)
    await red.lock()
    assert held() > MEMBERS / 2
    # Closing takes a second at most: a round trip for the handshakes, and one for the releases.
    latency(0.15)
    # At least 4 if the handshakes or the releases came one after the other.
    assert await round_trips(client.close, 0.15) < 3.8
    assert held() == 0


async def test_a_release_waits_for_a_server_as_that_of_one_lock_does(proxied: Cluster, backend: Backend) -> None:
    """Much longer than a third of `lock_watchdog_timeout`, as long as the limits of the call allow."""
    client = backend.connect(lock_watchdog_timeout=0.3, timeout=20, check_lock_synced_replicas=False)
    locks = [client.get_lock(names_on(proxied, node, 1)[0], owner=1) for node in proxied.masters()]
    group = client.get_multi_lock(*locks)
    await group.lock(lease_time=60)
    for node in proxied.nodes:
        proxied.proxy_of(node).stall()
    release = backend.spawn(group.unlock)
    await backend.sleep(0.5)
    assert not release.done()
    for node in proxied.nodes:
        proxied.proxy_of(node).resume()
    await release.result()
    assert not any([await lock.is_locked() for lock in locks])


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("redis+cluster://h1:1,h2:1", "redis+cluster://h3:1,h2:1", True),
        ("redis+cluster://h1:1", "redis+cluster://h2:1", False),
        ("redis+cluster://h1:1", "redis://h1:1", False),
        ("redis+sentinel://h1:1,h2:1/one", "redis+sentinel://h2:1/one", True),
        ("redis+sentinel://h1:1/one", "redis+sentinel://h1:1/other", False),
        ("redis+replicated://h1:1,h2:1", "redis+replicated://h2:1", True),
        ("redis://h1:1", "redis://h1:1/0", True),
        ("redis://h1:1", "redis://h1:1/1", False),
    ],
)
def test_a_lock_that_two_clients_have_by_other_addresses(one: str, other: str, same: bool) -> None:
    """A red lock would count it twice. No server is needed."""
    refused = pytest.raises(ValueError, match="twice") if same else nullcontext()
    with pyredisson.connect(one) as first, pyredisson.connect(other) as second, refused:
        first.get_red_lock(first.get_lock("a"), second.get_lock("a"))


# The command line and the dashboard

NAMES = [f"orders-{number}" for number in range(10)]
SAYS_WHAT_IT_HOLDS = "import os; print(os.environ['PYREDISSON_LOCK'], int(os.environ['PYREDISSON_FENCING_TOKEN']) > 0)"

Servers = Cluster | Sentinels


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Commands:
    return Commands(capsys, monkeypatch)


servers = either("cluster", "sentinels")


def address_of(servers: Servers, name: str) -> str:
    host, port = (servers.node_of_key(name) if isinstance(servers, Cluster) else servers.master()).address
    return f"{host}:{port}"


def found(lines: str) -> dict[str, Any]:
    return {each["name"]: each for each in map(json.loads, lines.splitlines())}


def test_commands(command: Commands, servers: Servers) -> None:
    """`ls`, `inspect` and `unlock` see and reach the locks of all masters; `bench` uses all, and leaves nothing."""
    hold(servers, *NAMES)
    with servers.redis() as redis:
        # It is on one node, and the locks are on all.
        announce(redis, CLIENT, {f"1 {NAMES[0]}": "fair"})
    listed = found(output(command("ls", "--json", "--url", servers.url)))
    assert {name: one["server"] for name, one in listed.items()} == {name: address_of(servers, name) for name in NAMES}
    assert {each["owners"][0]["holder"]["host"] for each in listed.values()} == {"web-3"}
    assert listed[NAMES[0]]["kind"] == "fair"
    with servers.redis() as redis:
        redis.delete(client_key(CLIENT))
        for name in NAMES:
            assert f"server: {address_of(servers, name)}\n" in command("inspect", name, "--url", servers.url).out
            assert command("unlock", name, "--yes", "--url", servers.url).status == 0
            assert not redis.exists(name)
        assert " pairs" in output(command("bench", "--seconds", "0.3", "--url", servers.url))
        assert redis.dbsize() == 0
    ran = run_command("run", "--url", servers.url, "job", "--", sys.executable, "-c", SAYS_WHAT_IT_HOLDS)
    assert output(ran) == "job True\n"


def test_doctor(command: Commands, servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    """The messages of each master arrive. With names on one server it says of the others what was not tested."""
    findings = [*map(json.loads, output(command("doctor", "--json", "--url", servers.url)).splitlines())]
    masters = servers.masters() if isinstance(servers, Cluster) else [servers.master()]
    addresses = {":".join(map(str, node.address)) for node in masters}
    for check in ("version", "latency", "pubsub", "min-replicas"):
        assert {each["server"] for each in findings if each["check"] == check} == addresses
    assert {each["level"] for each in findings if each["check"] in ("pubsub", "rights", "clock", "slots")} == {"ok"}
    monkeypatch.setattr(doctor.Checks, "_wakes", lambda *_: 0.0)
    said = map(json.loads, output(command("doctor", "--json", "--name", "{app}", "--url", servers.url)).splitlines())
    levels = [each["level"] for each in said if each["check"] == "pubsub"]
    assert sorted(levels) == ["note"] * (len(masters) - 1) + ["ok"]


def test_doctor_when_a_master_has_another_map(own_cluster: Cluster) -> None:
    """The owner of a slot has given it up, which the other masters don't hear."""
    owner, slot = own_cluster.node_of(7), 7
    config = Config.of(own_cluster.url)
    with reader(config) as reading:
        owner.ask("CLUSTER", "DELSLOTS", slot)
        said = {each.check: each for each in doctor.Checks(config, reading, "x")._cluster()}
    address = ":".join(map(str, owner.address))
    expected = {"cluster": ("error", address), "slots": ("warning", address)}
    assert {check: (each.level, each.server) for check, each in said.items()} == expected
    assert "for 1 slots, the first of them is 7" in said["slots"].text
    assert f"redis-cli --cluster check {address}" in said["slots"].advice


def test_doctor_when_a_master_is_dead(
    command: Commands, masters_only: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is an error, and all others are checked. `ls` says what it is, also if the others have no keys."""
    dead, *others = masters_only.masters()
    alive = {":".join(map(str, each.address)) for each in others}
    keys = [*names_on(masters_only, others[0], 9), *names_on(masters_only, dead, 1)]
    monkeypatch.setattr(doctor, "client_key", lambda _: keys.pop().encode())
    monkeypatch.setattr(doctor.Checks, "_wakes", lambda *_: 0.0)
    masters_only.kill(dead)
    ended = command("ls", "--url", masters_only.url)
    assert (ended.status, "nothing is held at" in ended.err, "incomplete: 127.0.0.1:" in ended.err) == (1, True, True)
    with reader(config := Config.of(masters_only.url)) as reading:
        said = [*doctor.Checks(config, reading, "x").all()]
    assert [each.server for each in said if each.check == "available"] == [":".join(map(str, dead.address))]
    for check in ("version", "latency", "pubsub"):
        assert {each.server for each in said if each.check == check} == alive
    # Nothing is tried on the dead one, which might hang.
    assert {each.check: each.level for each in said if each.check in ("announce", "rights", "keys")} == {
        "announce": "ok",
        "rights": "ok",
        "keys": "warning",
    }


def test_watch(servers: Servers) -> None:
    with servers.redis() as redis, watching(servers.url) as screen:
        hold(servers, *NAMES)
        # In the order of the names, of all masters: the last one comes after the others.
        screen.until(NAMES[-1])
        redis.delete(NAMES[-1])
        screen.until(NAMES[-2], without=NAMES[-1])


@pytest.mark.slow
def test_one_of_the_masters_hangs(command: Commands, own_cluster: Cluster, request: pytest.FixtureRequest) -> None:
    """`ls` and the dashboard show the others, and say that something may be missing."""
    # No replica takes over.
    own_cluster.set_node_timeout(NO_FAILOVER)
    names, more = ([f"{word}-{number}" for number in range(30)] for word in ("orders", "stock"))
    hold(own_cluster, *names)
    dashboard = Dashboard(own_cluster.url, "--allow-unlock")
    request.addfinalizer(dashboard.stop)

    def problems() -> Any:
        return dashboard.get("/api/locks").json["totals"]["problems"]

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
    ended = command("ls", "--json", "--url", own_cluster.url, "--timeout", "3")
    dashboard.until(lambda: any(address in each for each in problems()))
    assert dashboard.get("/api/locks").json["totals"]["away_since"] is None
    # What was known of it is still shown.
    assert (names[1] in dashboard.rows(), client in dashboard.rows("clients")) == (True, True)
    # And the others go on.
    hold(own_cluster, served)
    dashboard.until(lambda: served in dashboard.rows())
    own_cluster.resume(hanging)
    dashboard.until(lambda: problems() == [])
    assert sorted(dashboard.rows()) == sorted([*names[1:], served])
    assert ended.status == 1
    assert set(found(ended.out)) == {name for name in names[1:] if own_cluster.node_of_key(name) is not hanging}
    assert f"incomplete: {address} (" in ended.err
