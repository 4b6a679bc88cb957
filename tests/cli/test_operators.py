"""Commands of operators: `unlock`, `permits` and `rm` change something; `doctor` and `bench` look at a server."""

import json
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import pyredisson
from pyredisson._protocol.scripts import script
from pyredisson.cli import INCOMPLETE, doctor, reading, unlock
from pyredisson.cli.findings import Finding, Level, buffers, cluster, memory, persistence, replication
from pyredisson.inspection.unlocking import correct_free
from pyredisson.testing import Proxy, Server
from tests.support.backends import TIME_LIMIT, eventually, waiters
from tests.support.children import TIMEOUT, Commands, output
from tests.support.inspecting import add_foreign_keys

from .conftest import JAVA, Run, announced, answered, interrupted, moment_of_announced
from .test_errors import GUESS

SILENT = "11111111-1111-4111-8111-111111111111"
ONE_REPLICA = {"connected_slaves": "1", "slave0": "ip=h,port=1,state=online,offset=5,lag=0"}
COPYING = {"slave0": "ip=h,port=1,state=wait_bgsave,offset=5,lag=0", "min_slaves_good_slaves": "1"}


class TestUnlock:
    """It says whose it is, asks, and releases what it has shown and nothing else."""

    def test_it_releases_what_it_shows(self, cli: Run, server: Server, client: pyredisson.Client, redis: Any) -> None:
        db = client.get_permit_expirable_semaphore("db")
        db.try_set_permits(3)
        permit, _ = db.acquire(), db.acquire()
        assert (cli("unlock", "db", "--yes", "--permit", permit).status, db.available_permits()) == (0, 2)
        with announced(server.url, redis, "cron:nightly"):
            ended = cli("unlock", "cron:nightly", "--yes")
            text = f"lock 'cron:nightly' is held by web-3 (pid 812) since {moment_of_announced()}.\n"
            assert ended == (0, f"{text}lock 'cron:nightly' is released.\n", "")
            assert not redis.exists("cron:nightly")

    def test_the_next_caller_of_the_holder_s_client(self, cli: Run, server: Server, client: pyredisson.Client) -> None:
        """It stands in no list on the server, as it relies on the holder. It is woken long before a renewal."""
        holder, waiter = (client.get_lock("orders", owner=number) for number in (1, 2))
        with pyredisson.connect(server.url) as other, ThreadPoolExecutor(1) as thread:
            with other.get_lock("orders"):
                held = thread.submit(holder.lock)
                eventually(lambda: waiters(client, "orders") == 1)
            held.result(TIME_LIMIT)
            acquired = thread.submit(waiter.lock)
            eventually(lambda: waiters(client, "orders") == 1)
            assert cli("unlock", "orders", "--yes").status == 0
            acquired.result(TIME_LIMIT / 2)

    @pytest.mark.parametrize(
        ("answer", "kept", "status"), [(b"y\n", "", 0), (b"y\n", ":kept", 0), (b"n\n", "", 1), (b"\x04", "", 130)]
    )
    def test_it_asks(self, server: Server, redis: Any, answer: bytes, kept: str, status: int) -> None:
        """Only a yes releases anything. Nobody works under a lock that is only kept."""
        redis.hset("orders", f"{JAVA}:31{kept}", 1)
        ended = answered(answer, "unlock", "orders", "--url", server.url)
        done = "; its work is done, and it is only kept" if kept else ""
        assert ended.out.startswith(f"lock 'orders' is held by Redisson 00000000:31{done}.\n")
        warning = "" if kept else " The holder finds out at its next renewal, and may still be working."
        assert f"Release it?{warning} [y/N]: " in ended.err
        assert (ended.status, redis.exists("orders")) == (status, int(status != 0))

    def test_more_readers_than_are_shown(self, cli: Run, redis: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """Only those that were shown are released, which is said."""
        monkeypatch.setattr(reading, "MOST_LISTED", 2)
        redis.hset("report", mapping={"mode": "read", f"{JAVA}:1": 1, f"{JAVA}:2": 1, f"{JAVA}:3": 1})
        for number in (1, 2, 3):
            redis.set(f"{{report}}:{JAVA}:{number}:rwlock_timeout:1", 1, px=60_000)
        redis.pexpire("report", 60_000)
        ended = cli("unlock", "report", "--yes", "--all-readers")
        assert (ended.status, "released.\n" in ended.out, ended.out.count("is held by")) == (1, False, 2)
        assert ("2 of 3 holders of " in ended.err, redis.hlen("report")) == (True, 2)
        ended = cli("unlock", "report", "--yes", "--all-readers")
        assert (ended.status, redis.exists("report")) == (0, 0)

    @pytest.mark.parametrize("option", [[], ["--all-readers"]])
    def test_a_writer_that_reads_as_well(self, cli: Run, redis: Any, option: list[str]) -> None:
        """It is one holder. Nothing of it is left when the lock is said to be released."""
        redis.hset("report", mapping={"mode": "write", f"{JAVA}:1:write": 1, f"{JAVA}:1": 1})
        redis.set(f"{{report}}:{JAVA}:1:rwlock_timeout:1", 1, px=60_000)
        redis.pexpire("report", 60_000)
        assert "  Redisson 00000000:1 " in cli("ls").out
        ended = cli("unlock", "report", "--yes", *option)
        assert (ended.status, "released.\n" in ended.out, redis.exists("report")) == (0, True, 0)

    def test_the_holder_changes_meanwhile(self, cli: Run, redis: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """The later holder keeps the lock."""
        redis.hset("orders", f"{JAVA}:31", 1)
        holder = unlock._holder

        def changes(owner: Any) -> str:
            redis.delete("orders")
            redis.hset("orders", f"{JAVA}:32", 1)
            return holder(owner)

        monkeypatch.setattr(unlock, "_holder", changes)
        said = "pyredisson: the holder of lock 'orders' has changed meanwhile: nothing was done\n"
        assert (cli("unlock", "orders", "--yes")[::2], redis.hkeys("orders")) == ((1, said), [f"{JAVA}:32".encode()])

    def test_the_reply_is_lost(self, command: Commands, server: Server, proxy: Proxy, redis: Any) -> None:
        """It isn't said that nothing was held, which a second copy of the command would report."""
        redis.hset("orders", f"{JAVA}:31", 1)
        fault = proxy.drop_reply(script("lock_release", with_shebang=server.version >= (7,)).sha)
        ended = command("unlock", "orders", "--yes", "--url", proxy.url, "--timeout", "1")
        assert (fault.left, ended.status) == (0, 69)
        assert "'pyredisson inspect' says whether lock 'orders' was released" in ended.err
        assert not redis.exists("orders")


class TestPermits:
    """It shows how many permits are free, and sets that number unless it has changed."""

    def test_a_change(self, cli: Run, client: pyredisson.Client, redis: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        client.get_semaphore("seats").try_set_permits(2)
        assert cli("permits", "seats") == (0, "semaphore 'seats' has 2 free permits.\n", "")

        async def late(*arguments: Any) -> bool:
            redis.incr("seats")
            return await correct_free(*arguments)

        monkeypatch.setattr(unlock, "correct_free", late)
        ended = cli("permits", "seats", "--free", "3", "--yes")
        assert (ended.status, redis.get("seats")) == (1, b"3")
        assert "of semaphore 'seats' has changed meanwhile: nothing was done" in ended.err

    @pytest.mark.parametrize(("answer", "status", "free"), [(b"y\n", 0, b"3"), (b"n\n", 1, b"2")])
    def test_it_asks(self, server: Server, redis: Any, answer: bytes, status: int, free: bytes) -> None:
        redis.set("seats", 2)
        ended = answered(answer, "permits", "seats", "--free", "3", "--url", server.url)
        # Nobody has used it lately.
        assert ended.out.startswith(f"semaphore 'seats' has 2 free permits (a guess: {GUESS}).\n")
        assert "Set it to 3 free permits? Those who have a permit now will add it when they release it." in ended.err
        assert (ended.status, redis.get("seats")) == (status, free)


def test_what_a_lock_has_left(cli: Run, client: pyredisson.Client, redis: Any) -> None:
    """`rm` removes it, and nothing that somebody uses. Names of which nothing is left are named."""
    with client.get_fenced_lock("orders"):
        pass
    redis.set("stock", 5)
    ended = cli("rm", "none", "orders", "stock")
    assert (ended.status, ended.out) == (1, "lock 'orders': removed counter of fencing tokens.\n")
    assert ended.err.splitlines()[0] == "pyredisson: nothing is left of lock 'none'"
    # It lasts for a day, in case that the server's clock is set back.
    assert sorted(redis.keys()) == [b"pyredisson_fenced_newest:{orders}", b"stock"]
    redis.flushall()
    # Waiters that are dead aren't shown as in use: one of a client that was killed, and one of Redisson whose place
    # has ended.
    for waiter in (f"{SILENT}:4294967296", f"{JAVA}:31"):
        redis.rpush("redisson_lock_queue:{orders}", waiter)
        redis.zadd("redisson_lock_timeout:{orders}", {waiter: 1})
    redis.hset("pyredisson_fair_waiters:{orders}", f"{SILENT}:4294967296", 1)
    redis.zadd("pyredisson_fair_clients:{orders}", {SILENT: 1})
    assert "nothing is held" in cli("ls").err
    [_, row] = cli("ls", "--all").out.splitlines()
    assert row.split() == ["orders", "fair", "-", "-", "-", "2", "silent"]
    redis.hset("orders", f"{JAVA}:5", 1)
    [_, row] = cli("ls").out.splitlines()
    assert row.split()[-2:] == ["2", "silent"]
    redis.delete("orders")
    ended = cli("rm", "orders")
    assert (ended.status, ended.err, "queue" in ended.out) == (0, "", True)
    assert redis.keys("redisson*") == []


def diagnosed(cli: Run, *arguments: str, status: int = 0) -> dict[str, Finding]:
    """The findings by their checks."""
    ended = cli("doctor", "--json", *arguments)
    assert (ended.status, ended.err) == (status, "")
    findings = [json.loads(line) for line in ended.out.splitlines()]
    assert all(each["advice"] for each in findings if each["level"] in ("warning", "error"))
    return {each["check"]: Finding(**each | {"server": ""}) for each in findings}


def test_what_leaks(cli: Run, redis: Any) -> None:
    add_foreign_keys(redis)
    redis.hset("orders", f"{JAVA}:31", 1)
    redis.rpush("redisson_lock_queue:{queue}", f"{JAVA}:2")
    redis.hset("pyredisson_fair_waiters:{queue}", f"{JAVA}:2", 5)
    redis.set("redisson_lock_token:{billing}", 7)
    for name, free in (("seats", 0), ("desks", 1)):
        redis.set(name, free)
        redis.set(f"pyredisson_once:{{{name}}}:{JAVA}:0:semaphore", "2 1", px=60_000)
    before = set(redis.keys("*"))
    found = diagnosed(cli)
    # What it has tried leaves nothing for ever.
    assert all(redis.pttl(key) >= 0 for key in set(redis.keys("*")) - before)
    assert (found["ttl"].level, "pyredisson_fair_waiters:{queue}" in found["ttl"].text) == ("warning", True)
    levels = {"leases": "warning", "queues": "note", "permits": "note", "tokens": "note"}
    assert {check: str(found[check].level) for check in levels} == levels
    assert [found[check].text.rpartition(": ")[2] for check in levels] == ["orders", "queue", "seats", "billing"]
    assert found["java"] == Finding("java", Level.NOTE, "1 clients of Redisson hold something")
    printed = output(cli("doctor"))
    warning = "warning  leases       1 locks have no lease, so nothing frees them if the holder is dead: orders\n"
    assert re.search(re.escape(warning) + r" +-> pyredisson inspect NAME, then pyredisson unlock NAME\n", printed)


def test_rights_and_messages(cli: Run, user: Any, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    found = diagnosed(cli, "--url", user("~* &* +@all -incrby -config -scan"))
    assert (found["rights"].level, "can't be used: " in found["rights"].text) == ("warning", True)
    assert "ACL SETUSER" in found["rights"].advice
    assert found["buffers"].text.startswith("can't be checked: CONFIG GET is refused")
    assert found["buffers"].advice == "grant +config|get to see it"
    assert found["keys"].text.startswith("the keys can't be looked at: ")
    # No lock can be used. Without a channel a waiter can't listen, so it is not woken.
    for rules in ("~* &* +@all -hset", "~* resetchannels +@all"):
        assert diagnosed(cli, "--url", user(rules), status=INCOMPLETE)["pubsub"].level == "error"
    # A user with rights to some names only.
    keys = "~*{orders* ~orders* %R~*" if server.version >= (7,) else "~*"
    found = diagnosed(cli, "--url", user(f"{keys} &* +@all"), "--name", "orders")
    assert (found["rights"].level, "orders:" in found["rights"].text) == ("ok", True)
    assert found["announce"].level == ("note" if server.version >= (7,) else "ok")
    monkeypatch.setattr(doctor.Checks, "_wakes", lambda *_: 1.0)
    found = diagnosed(cli, status=INCOMPLETE)
    assert found["pubsub"].text == "messages don't arrive: a waiter has the lock 1.0 s after its release"


@pytest.mark.parametrize(
    ("found", "levels"),
    [
        (replication(ONE_REPLICA, expects_replicas=True), ["min-replicas: warning", "replication: ok"]),
        (replication(ONE_REPLICA | COPYING, expects_replicas=True), ["min-replicas: ok", "replication: warning"]),
        (replication({}, expects_replicas=True), ["replication: warning"]),
        (replication({}, expects_replicas=False), []),
        (memory({"maxmemory": "1", "maxmemory_policy": "noeviction"}), ["eviction: ok"]),
        (memory({"maxmemory": "1", "maxmemory_policy": "allkeys-lru"}), ["eviction: error"]),
        (memory({"maxmemory": "1", "maxmemory_policy": "volatile-ttl"}), ["eviction: error"]),
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


@pytest.mark.parametrize(("options", "who"), [(["--threads", "3"], "3 threads"), (["--asyncio-tasks", "5"], "5 tasks")])
def test_it_measures(cli: Run, server: Server, redis: Any, options: list[str], who: str) -> None:
    first, pairs, times, trip = output(cli("bench", "--seconds", "1", *options)).splitlines()
    assert re.fullmatch(rf"{who} for [\d.]+ s, at {server.host}:{server.port}/0", first)
    assert int(pairs.partition(" ")[0].replace(",", "")) > 0
    assert (times.partition(" takes ")[0], trip.partition(" takes ")[0]) == ("a pair", "a round trip")
    assert redis.dbsize() == 0


@pytest.mark.parametrize("arguments", [[], ["--asyncio-tasks", "5"]])
def test_interrupted_and_without_rights(cli: Run, proxy: Proxy, redis: Any, user: Any, arguments: list[str]) -> None:
    """Ctrl-C ends it at once, says what was measured until then, and leaves no lock."""
    command = ["bench", "--seconds", "30", *arguments, "--url", proxy.url]
    ended = interrupted(lambda: proxy.wait_for(b"pyredisson:bench", TIMEOUT), *command)
    assert (ended.status, ended.err) == (130, "")
    assert (" for " in ended.out, redis.dbsize()) == (True, 0)
    ended = cli("bench", *arguments, "--url", user("~orders* &* +@all"))
    assert (ended.status, ended.err.count("\n")) == (77, 1)
