"""`pyredisson doctor`: a server for each finding, and one on which all is well; `pyredisson bench`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import pytest

from pyredisson.cli import doctor
from pyredisson.cli.findings import Finding, buffers, cluster, memory, persistence, replication
from pyredisson.testing import Proxy, Server
from tests.support.commands import TIMEOUT, Commands

from .conftest import JAVA, Run, add_foreign_keys, interrupted


class Found(NamedTuple):
    level: str
    text: str
    advice: str


def diagnosed(command: Commands, *arguments: str, status: int = 0) -> dict[str, Found]:
    """The findings by their checks."""
    ended = command("doctor", "--json", *arguments)
    assert (ended.status, ended.err) == (status, "")
    findings = [json.loads(line) for line in ended.out.splitlines()]
    assert all(each["advice"] for each in findings if each["level"] in ("warning", "error"))
    return {each["check"]: Found(each["level"], each["text"], each["advice"]) for each in findings}


def test_all_is_well(command: Commands, server: Server, redis: Any) -> None:
    add_foreign_keys(redis)
    before = set(redis.keys("*"))
    found = diagnosed(command, "--url", server.url)
    assert {check: each.level for check, each in found.items()} == {
        "version": "ok" if server.version >= (7,) else "note",
        "eviction": "ok",
        "persistence": "note",
        "latency": "ok",
        "clock": "ok",
        "rights": "ok",
        "announce": "ok",
        "pubsub": "ok",
        "keys": "ok",
    }
    # Nothing stays for ever.
    assert all(redis.pttl(key) >= 0 for key in set(redis.keys("*")) - before)


def test_what_leaks(command: Commands, server: Server, redis: Any) -> None:
    redis.hset("orders", f"{JAVA}:31", 1)
    redis.rpush("redisson_lock_queue:{queue}", f"{JAVA}:2")
    redis.hset("pyredisson_fair_waiters:{queue}", f"{JAVA}:2", 5)
    redis.set("redisson_lock_token:{billing}", 7)
    for name, free in (("seats", 0), ("desks", 1)):
        redis.set(name, free)
        redis.set(f"pyredisson_once:{{{name}}}:{JAVA}:0:semaphore", "2 1", px=60_000)
    found = diagnosed(command, "--url", server.url)
    assert (found["leases"].level, found["leases"].text.endswith(": orders")) == ("warning", True)
    assert (found["ttl"].level, "pyredisson_fair_waiters:{queue}" in found["ttl"].text) == ("warning", True)
    assert (found["queues"].level, found["queues"].text.endswith(": queue")) == ("note", True)
    assert (found["permits"].level, found["permits"].text.endswith(": seats")) == ("note", True)
    assert (found["tokens"].level, found["tokens"].text.endswith(": billing")) == ("note", True)
    assert found["java"] == Found("note", "1 clients of Redisson hold something", "")
    ended = command("doctor", "--url", server.url)
    assert (ended.status, ended.err) == (0, "")
    warning = "warning  leases       1 locks have no lease, so nothing frees them if the holder is dead: orders\n"
    advice = r" +-> pyredisson inspect NAME, then pyredisson unlock NAME\n"
    assert re.search(re.escape(warning) + advice, ended.out)


def test_eviction(command: Commands, own_server: Server) -> None:
    with own_server.redis() as redis:
        redis.config_set("maxmemory", 100 << 20)
        redis.config_set("maxmemory-policy", "volatile-ttl")
    found = diagnosed(command, "--url", own_server.url, status=1)
    assert (found["eviction"].level, "volatile-ttl" in found["eviction"].text) == ("error", True)


class TestRights:
    @pytest.fixture
    def diagnosed_as(self, command: Commands, server: Server, redis: Any) -> Callable[..., dict[str, Found]]:

        def diagnose(rules: str, *arguments: str, status: int = 0) -> dict[str, Found]:
            redis.execute_command("ACL", "SETUSER", "app", "reset", "on", ">x", *rules.split())
            return diagnosed(command, "--url", f"redis://app:x@{server.host}:{server.port}", *arguments, status=status)

        return diagnose

    def test_some_are_missing(self, diagnosed_as: Callable[..., dict[str, Found]]) -> None:
        found = diagnosed_as("~* &* +@all -incrby -config -scan")
        assert found["rights"].level == "warning"
        assert "can't be used: " in found["rights"].text
        assert "ACL SETUSER" in found["rights"].advice
        assert found["buffers"].text.startswith("can't be checked: CONFIG GET is refused")
        assert found["buffers"].advice == "grant +config|get to see it"
        assert found["keys"].text.startswith("the keys can't be looked at: ")

    @pytest.mark.parametrize("rules", ["~* &* +@all -hset", "~* resetchannels +@all"])
    def test_no_lock_can_be_used(self, diagnosed_as: Callable[..., dict[str, Found]], rules: str) -> None:
        """Without a channel a waiter can't listen, so it is not woken."""
        assert diagnosed_as(rules, status=1)["pubsub"].level == "error"

    def test_other_names(self, diagnosed_as: Callable[..., dict[str, Found]], server: Server) -> None:
        """A user with rights to some names only."""
        keys = "~*{orders* ~orders* %R~*" if server.version >= (7,) else "~*"
        found = diagnosed_as(f"{keys} &* +@all", "--name", "orders")
        assert found["rights"].level == "ok"
        assert "orders:" in found["rights"].text
        assert found["announce"].level == ("note" if server.version >= (7,) else "ok")


def test_messages_that_do_not_arrive(command: Commands, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.Checks, "_wakes", lambda *_: 1.0)
    found = diagnosed(command, "--url", server.url, status=1)
    assert found["pubsub"].text == "messages don't arrive: a waiter has the lock 1.0 s after its release"


ONE_REPLICA = {"connected_slaves": "1", "slave0": "ip=h,port=1,state=online,offset=5,lag=0"}
COPYING = {"slave0": "ip=h,port=1,state=wait_bgsave,offset=5,lag=0", "min_slaves_good_slaves": "1"}


@pytest.mark.parametrize(
    ("found", "levels"),
    [
        (replication(ONE_REPLICA, expects_replicas=True), ["min-replicas: warning", "replication: ok"]),
        (replication(ONE_REPLICA | COPYING, expects_replicas=True), ["min-replicas: ok", "replication: warning"]),
        (replication({}, expects_replicas=True), ["replication: warning"]),
        (replication({}, expects_replicas=False), []),
        (memory({"maxmemory": "1", "maxmemory_policy": "noeviction"}), ["eviction: ok"]),
        (memory({"maxmemory": "1", "maxmemory_policy": "allkeys-lru"}), ["eviction: error"]),
        (persistence({"aof_enabled": "1"}), ["persistence: ok"]),
        (cluster({"cluster_state": "fail"}), ["cluster: error"]),
        (cluster({"cluster_state": "ok", "cluster_slots_assigned": "16384"}), []),
        (buffers("normal 0 0 0 pubsub 1000 1000 60"), ["buffers: warning"]),
        (buffers("normal 0 0 0 pubsub 33554432 8388608 60"), []),
    ],
)
def test_reports(found: Iterable[Finding], levels: list[str]) -> None:
    """What servers say of themselves, where a test with such a server would show no more."""
    assert [f"{each.check}: {each.level}" for each in found] == levels


@pytest.mark.parametrize(
    ("arguments", "who"), [([], "1 thread"), (["--threads", "3"], "3 threads"), (["--asyncio-tasks", "5"], "5 tasks")]
)
def test_it_measures(cli: Run, server: Server, redis: Any, arguments: list[str], who: str) -> None:
    ended = cli("bench", "--seconds", "1", *arguments)
    assert (ended.status, ended.err) == (0, "")
    first, pairs, times, trip = ended.out.splitlines()
    assert re.fullmatch(rf"{who} for [\d.]+ s, at {server.host}:{server.port}/0", first)
    assert int(pairs.partition(" ")[0].replace(",", "")) > 0
    assert times.startswith("a pair takes ")
    assert trip.startswith("a round trip takes ")
    assert redis.dbsize() == 0


@pytest.mark.parametrize("arguments", [[], ["--asyncio-tasks", "5"]])
def test_interrupted(proxy: Proxy, redis: Any, arguments: list[str]) -> None:
    """Ctrl-C ends it at once, says what was measured until then, and leaves no lock."""
    command = ["bench", "--seconds", "30", *arguments, "--url", proxy.url]
    ended = interrupted(lambda: proxy.wait_for(b"pyredisson:bench", TIMEOUT), *command)
    assert (ended.status, ended.err) == (130, "")
    assert " for " in ended.out
    assert redis.dbsize() == 0


def test_an_error(command: Commands, server: Server, redis: Any) -> None:
    redis.execute_command("ACL", "SETUSER", "app", "reset", "on", ">x", "~orders*", "&*", "+@all")
    url = f"redis://app:x@{server.host}:{server.port}"
    for arguments in ([], ["--asyncio-tasks", "2"]):
        ended = command("bench", *arguments, "--url", url)
        assert ended.status == 77
        assert ended.err.count("\n") == 1
