"""What every script that is registered must do, on servers old and new: with its keys as in `PREPARED`, or damaged.

On keys that somebody else has written it ends soon, and raises nothing of its own.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
from redis.exceptions import ResponseError

from pyredisson._protocol.scripts import NAMES, Script, ScriptSet
from pyredisson.testing import Server
from tests.properties.servers import Memory
from tests.support.backends import eventually

from .locks import COUNTER, QUEUE, SCORES, waiting, woken
from .scripted import RESERVED, Call, Ends, Header, Scripted, State, commands, expected, header, outcome, state

LEASE = "{orders}:me:1:rwlock_timeout:1"
ID = "0123456789abcdef"


class Prepared(NamedTuple):
    """What the script finds, and the message that it then publishes, if any."""

    before: State
    message: str | None = None
    again: str | None = None
    """What a second copy of the call publishes."""
    args: tuple[str, ...] = ()
    """In place of the arguments of the command line."""
    told: tuple[tuple[str, str], ...] = ()
    """The clients that are told something behind the message, and what."""
    told_again: str | None = None
    """What a second copy tells those of them that have subscribed to their channels."""


HELD: State = {"orders": ({"me:1": 1}, 20_000)}
WAITING: State = {QUEUE: ["java:1"], SCORES: Ends({"java:1": 300_000})}
WRITING: State = {"orders": ({"mode": "write", "me:1:write": 1}, 20_000)}
READING: State = {"orders": ({"mode": "read", "me:1": 1}, 20_000), LEASE: ("1", 20_000)}
LISTED, OTHERS = waiting("me you they"), waiting("you they")
ME_WOKEN = woken("me:2", came=1)
NEXT = (("you", "you:1"), ("they", f"look:{RESERVED}"))
"""To `OTHERS` by a release."""
LISTED_READERS = waiting("you:r they:r")
NEXT_READERS = (("you", "you:1:r"), ("they", f"look:{RESERVED}:r"))
"""To `LISTED_READERS`."""
TOKEN: State = {COUNTER: 2**51}
WRITER = "pyredisson_rwlock_writer:{orders}"
CLAIM = "pyredisson_semaphore_claim:{stock}"
USED, PERMIT_CLAIM = "{p}:timeout", "pyredisson_semaphore_claim:{p}"

PREPARED = {
    "client_announce": Prepared({"pyredisson_client:{me}": ({"n": 0}, 10_000)}),
    "exactly_once_delete": Prepared({"stock": 1}, "1"),
    "fair_acquire": Prepared({QUEUE: ["gone:1", "java:1"], SCORES: Ends({"gone:1": -1_000, "java:1": 300_000})}, "0"),
    "fair_delete": Prepared({**HELD, **WAITING}, "0"),
    "fair_force_release": Prepared({**HELD, **WAITING}, "0"),
    "fair_hand_over": Prepared({**HELD, **WAITING}, "0"),
    "fair_heartbeat": Prepared(WAITING, "0", "0"),
    "fair_leave": Prepared({**HELD, **WAITING}, "0", None, ("redisson_lock__channel:{orders}", "300000", "1", "me:1")),
    "fair_release": Prepared({**HELD, **WAITING}, "0"),
    "fenced_acquire": Prepared({**LISTED, **ME_WOKEN, **TOKEN}),
    "fenced_delete": Prepared({**HELD, **OTHERS, **TOKEN}, "0", told=(("me", "0"), *NEXT)),
    "fenced_hand_over": Prepared({**HELD, **LISTED, **TOKEN}),
    "fenced_write": Prepared({"pyredisson_fencing:{report}": (6, 10_000)}),
    "inspect_scan": Prepared(HELD),
    "inspect_state": Prepared({**HELD, **WAITING, **TOKEN}),
    "latch_count_down": Prepared({"done": 1}, "0"),
    "latch_set": Prepared({}, "1"),
    "lock_acquire": Prepared({**LISTED, **ME_WOKEN}),
    "lock_force_release": Prepared({**HELD, **OTHERS}, "0", told=(("me", "0"), *NEXT)),
    "lock_hand_over": Prepared({**HELD, **LISTED}),
    "lock_holder": Prepared(HELD),
    "lock_keep": Prepared({**HELD, **OTHERS}, "0", told=NEXT),
    "lock_leave": Prepared({**HELD, **LISTED}, told=(("they", "look:0"),)),
    "lock_move": Prepared(HELD),
    "lock_release": Prepared({**HELD, **OTHERS}, "0", told=NEXT),
    "lock_renew": Prepared(HELD),
    "lock_wake_waiters": Prepared(waiting("you"), "0", "0", told=(("you", "you:1"),), told_again="0"),
    "permit_acquire": Prepared(
        {"p": 1, USED: Ends({"ended": -1_000}), PERMIT_CLAIM: ("2 you:1", 2_000)},
        "2",
        None,
        ("redisson_sc:{p}", "30000", "5000", "", "", "", "60000", "", ID, "fedcba9876543210"),
    ),
    "permit_count": Prepared({"p": 1, USED: Ends({"ended": -1_000})}, "2"),
    "permit_lease": Prepared({USED: Ends({ID: 10_000})}),
    "permit_release": Prepared({"p": 1, USED: Ends({ID: 10_000})}, "2"),
    "permit_renew": Prepared({USED: Ends({ID: 10_000})}),
    "permit_set": Prepared({}, "5"),
    "read_acquire": Prepared(waiting("me:r you:r"), told=(("me", "r"), ("you", "r"))),
    "read_locked": Prepared(READING),
    "read_move": Prepared(READING),
    "read_release": Prepared({**READING, **LISTED_READERS}, "0", told=NEXT_READERS),
    "read_renew": Prepared(READING),
    "read_write_force_release": Prepared({**WRITING, **OTHERS}, "1", told=(("me", "0"), *NEXT)),
    "semaphore_acquire": Prepared(
        {"stock": 6, CLAIM: ("4 me:1", 2_000)},
        "2",
        None,
        ("2", "4", "redisson_sc:{stock}", "5000", "me:1:4", "me:2:4", "", "60000", "me:1"),
    ),
    "semaphore_add": Prepared({}, "1"),
    "semaphore_correct": Prepared({"stock": 17}, "20"),
    "semaphore_finish": Prepared({"stock": 1}, "2"),
    "semaphore_hand_over": Prepared({}, "1", None, ("2", "2", "1", "redisson_sc:{stock}", "0", "")),
    "semaphore_leave": Prepared({"stock": 5, CLAIM: ("4 me:1", 2_000)}, "5"),
    "semaphore_set": Prepared({}, "5"),
    "write_acquire": Prepared({**LISTED, **ME_WOKEN}),
    "write_hand_over": Prepared(
        {"orders": ({**WRITING["orders"][0], "me:1": 1}, 20_000), LEASE: ("1", 20_000), **LISTED_READERS},
        "1",
        told=NEXT_READERS,
    ),
    "write_leave": Prepared({**READING, **OTHERS, WRITER: ("me:1", 2_000)}, told=(("you", "you:1"),)),
    "write_let_readers_in": Prepared({**WRITING, **LISTED_READERS}, "1", told=NEXT_READERS),
    "write_release": Prepared({**WRITING, **OTHERS}, "1", told=NEXT),
}
"""For each script that is registered: keys on which the command line of its header has an effect."""
READERS = {"inspect_scan", "inspect_state", "lock_holder", "read_locked"}
"""Scripts that change no key."""
ONCE = [name for name in NAMES if any("pyredisson_once" in key for key in header(name).keys)]
"""Scripts whose calls have numbers: a call that arrives twice, or behind a newer one, has no effect."""
NEED_MEMORY_ON_OLD_SERVERS = {"fenced_hand_over", "read_move", *ONCE}
"""These servers don't know the flag of a script whose writes free more memory than they take."""
KEYS_OF_ANY_TYPE = """
client_announce=1 exactly_once_delete=1 fair_force_release=1 fair_heartbeat=1 fenced_write=1
lock_leave=1 lock_wake_waiters=1 lock_renew=12 permit_renew=12 read_renew=12 lock_force_release=123 semaphore_leave=1234
semaphore_set=1234 write_leave=124 lock_hand_over=2 read_move=2 lock_keep=23 lock_release=23 semaphore_hand_over=23
write_acquire=23 permit_set=234 read_acquire=234 read_write_force_release=234 semaphore_add=234 semaphore_correct=234
semaphore_finish=234 write_hand_over=2345 write_let_readers_in=2345 write_release=2345
read_release=23456 fenced_acquire=3 fenced_hand_over=34 permit_count=345 permit_release=345 permit_acquire=357
semaphore_acquire=5 fair_delete=* fenced_delete=* inspect_state=*
"""
"""The numbers of keys (*: all) that a script replaces, removes, or passes over whatever they are: a batch goes on, and
what is sent again until it has run must not fail. By all others it raises WRONGTYPE."""
DOCS = Path(__file__).parents[2] / "docs" / "operations.md"
PRIMITIVES = {
    "fair": "FairLock",
    "fenced": "FencedLock",
    "permit": "PermitExpirableSemaphore",
    "latch": "CountDownLatch",
    **dict.fromkeys(("read", "write"), "ReadWriteLock"),
    **dict.fromkeys(("semaphore", "exactly"), "Semaphore"),
}
"""Whose rights a script has in addition to a lock's, by the first word of its name."""


def of_header(name: str) -> Call:
    known = header(name)
    return Call(name, known.keys, PREPARED[name].args or known.args)


def flags(name: str) -> str:
    return Script(name, with_shebang=True).text.partition(b"\n")[0].decode()


def rights(name: str, key: str) -> list[str]:
    """The rights that the docs name, for that key."""
    docs = DOCS.read_text()
    [found] = re.findall(r"```acl\napp on >secret (.*)\n```", docs)
    if (primitive := PRIMITIVES.get(name.partition("_")[0])) is not None:
        found += " " + dict(re.findall(r"^\| `(\w+)` \| `(.*~.*)` \|$", docs, re.MULTILINE))[primitive]
    return str(found).replace("orders", key).split()


def masked(contents: dict[str, tuple[Any, Any]]) -> Any:
    """Without what differs from run to run: a few seconds, and tokens and other texts that are times."""
    return {key: (masked_value(value), ttl and round(ttl, -4)) for key, (value, ttl) in contents.items()}


def masked_value(value: Any) -> Any:
    if isinstance(value, dict):
        return {field: masked_value(each) for field, each in value.items()}
    return round(value, -4) if isinstance(value, int) else re.sub(r"\d{13,}", "TIME", str(value))


def of_reply(reply: Any) -> Any:
    return re.sub(r"\d{3,}", "TIME", repr(reply))


@pytest.fixture(scope="module")
def replica(server: Server) -> Iterator[Any]:
    """A client of a replica that has all data of the server."""
    config = {"replicaof": f"{server.host} {server.port}"}
    with Server(executable=server.executable, config=config) as running, running.redis() as redis:
        eventually(lambda: redis.info("replication")["master_link_status"] == "up", 60)
        yield redis


@pytest.fixture
def after(scripts: Scripted, name: str) -> tuple[Any, Any, list[str]]:
    """The reply, the keys and the messages after a call, as it should be. Then the keys are as before again."""
    scripts.write(PREPARED[name].before)
    reply = of_reply(scripts.call(of_header(name)))
    found = reply, masked(scripts.contents()), scripts.published()
    again(scripts, name)
    return found


def again(scripts: Scripted, name: str) -> None:
    scripts.redis.flushall()
    scripts.write(PREPARED[name].before)


@pytest.mark.parametrize("name", NAMES)
class TestEveryScript:
    def test_its_header_is_complete(self, name: str) -> None:
        lines = header(name).lines
        script = Script(name, with_shebang=True).text.decode()
        assert re.match(r"#!lua( flags=[a-z,-]+)?\n", script)
        assert lines[0].endswith(".")
        text = "\n".join(lines)
        documented = re.findall(r"^((?:KEYS|ARGV)\[[^]]+\])", text, re.MULTILINE)
        body = "\n".join(script.splitlines()[1 + len(lines) :])
        assert set(re.findall(r"(?:KEYS|ARGV)\[[0-9]+\]", body)) <= set(documented)
        assert documented
        assert re.search(r"^returns ", text, re.MULTILINE)
        head = getattr(ScriptSet(), name)
        if head.startswith(b"*"):
            numbered = [each[:4] for each in documented if each[5].isdigit()]
            assert head.startswith(b"*%d\r\n" % (3 + len(numbered)))
            assert head.endswith(b"\r\n%d\r\n" % numbered.count("KEYS"))

    def test_it_is_sent_twice(self, scripts: Scripted, name: str, after: Any) -> None:
        prepared = PREPARED[name]
        assert (masked(scripts.contents()) != after[1]) == (name not in READERS)
        assert after[2] == [each for each in (prepared.message, *dict(prepared.told).values()) if each is not None]
        for _ in range(2):
            scripts.call(of_header(name))
            assert masked(scripts.contents()) == after[1]
        assert scripts.published() == [*after[2], *([] if prepared.again is None else [prepared.again])]

    def test_a_user_that_has_the_rights_of_the_docs(self, scripts: Scripted, name: str, after: Any) -> None:
        if name.startswith(("inspect_", "fenced_write")):
            return  # Tools and the user's own commands need more.
        keys = of_header(name).keys
        granted = rights(name, keys[0].strip("{}").partition(":")[0])
        text = Script(name, with_shebang=True).text.decode()
        # On each of its branches. The holders of a lock that has one are not counted.
        used = {command.lower() for command in re.findall(r"\bp?call\('([A-Z]+)'", text)}
        used -= {"hlen"} if name in ("lock_acquire", "fenced_acquire") else set()
        assert used <= {right[1:].partition("|")[0] for right in granted if right[0] == "+"}
        with scripts.user("~stock*", *granted) as redis:
            reply = of_reply(scripts.call(of_header(name), redis))
        assert (reply, masked(scripts.contents()), scripts.published()) == after
        assert not scripts.redis.execute_command("ACL", "LOG")

    def test_a_user_that_may_not_publish(self, scripts: Scripted, name: str, after: Any) -> None:
        with scripts.user("~*", "+@all", "resetchannels") as deaf:
            reply = of_reply(scripts.call(of_header(name), deaf))
        assert (masked(scripts.contents()), scripts.published()) == (after[1], [])
        # 3: who has heard of it isn't known.
        assert reply in (after[0], "3")

    def test_out_of_memory(self, scripts: Scripted, name: str, after: Any) -> None:
        works = "allow-oom" in flags(name) or "no-writes" in flags(name)
        scripts.redis.config_set("maxmemory", 1)
        reply = outcome(scripts.call, of_header(name))
        scripts.redis.config_set("maxmemory", 0)
        if isinstance(reply, ResponseError):
            assert "maxmemory" in str(reply)
            assert not works or (not scripts.with_shebang and name in NEED_MEMORY_ON_OLD_SERVERS)
            assert scripts.contents() == expected(PREPARED[name].before)
        else:
            # Older servers let a script go on that has written before, if only by a DEL.
            assert works or not scripts.with_shebang
            assert (of_reply(reply), masked(scripts.contents())) == after[:2]

    def test_a_replica(self, scripts: Scripted, replica: Any, name: str, after: Any) -> None:
        scripts.redis.wait(1, 10_000)
        call = of_header(name)
        if "no-writes" in flags(name) or (name in READERS and not scripts.with_shebang):
            assert of_reply(scripts.call(call, replica)) == after[0]
        else:
            with pytest.raises(ResponseError, match="read only"):
                scripts.call(call, replica)

    def test_keys_of_another_type(self, scripts: Scripted, name: str) -> None:
        known, refused = header(name), []
        [any_type] = re.findall(rf"\b{name}=(\S+)", KEYS_OF_ANY_TYPE) or [""]
        for number, (key, kind) in enumerate(zip(known.keys, known.types, strict=True), 1):
            again(scripts, name)
            scripts.redis.delete(key)
            scripts.write({key: {"x": "1"} if kind == "string" else "text"})
            before = masked(scripts.contents())
            reply = outcome(scripts.call, of_header(name))
            if isinstance(reply, ResponseError):
                assert "WRONGTYPE" in str(reply)
                assert masked(scripts.contents()) == before
                refused.append(number)
        numbers = range(1, len(known.keys) + 1)
        assert refused == [number for number in numbers if any_type != "*" and str(number) not in any_type]


@pytest.mark.parametrize("name", ONCE)
class TestOnce:
    def test_it_is_late(self, scripts: Scripted, name: str) -> None:
        """Behind a newer call, whose reply it gets."""
        [slot] = [key for key in header(name).keys if "pyredisson_once" in key]
        before = {**PREPARED[name].before, slot: ("4 7", 660_000)}
        scripts.write(before)
        for _ in range(2):
            assert scripts.call(of_header(name)) == 7
            assert scripts.contents() == expected(before)
        assert scripts.published() == []

    def test_what_can_not_be_remembered_is_not_done(self, scripts: Scripted, name: str) -> None:
        """A repeated call would do it twice."""
        scripts.write(PREPARED[name].before)
        with scripts.user("~*", "&*", "+@all", "-set") as forgetful:
            for _ in range(2):
                with pytest.raises(ResponseError, match=r"permission|can't run"):
                    scripts.call(of_header(name), forgetful)
        assert scripts.contents() == expected(PREPARED[name].before)
        assert scripts.published() == []


EXAMPLES = 40
"""States of the keys that each script meets: the same ones each time."""
MOST_CALLS = 30_000
"""Commands in one call of a script. No state of a few fields needs more than a third of them."""
COUNTED = b"""local redis = (function(server)
    local calls = 0
    local function counted(name)
        return function(...)
            calls = calls + 1
            if calls > %d then error('ENDLESS', 0) end
            return server[name](...)
        end
    end
    return setmetatable({call = counted('call'), pcall = counted('pcall')}, {__index = server})
end)(redis)
"""
"""Put before a script: it raises an error instead of running on."""
ALLOWED = re.compile("WRONGTYPE|value is not an integer or out of range|increment or decrement would over|beyond 2.53")
"""What is said of a key that is of another type, or a number as a whole that can't be counted."""


def values(contents: dict[str, tuple[Any, Any]]) -> dict[str, Any]:
    return {key: value for key, (value, _) in contents.items()}


def numbers_in(reply: Any) -> list[int]:
    if isinstance(reply, list):
        return [number for item in reply for number in numbers_in(item)]
    return [reply] if isinstance(reply, int) else []


def may_stay(key: str, known: Header) -> bool:
    """Whether Redisson defines this key without a TTL."""
    is_number = key == known.keys[0] and known.types[0] == "string"
    return is_number or key.startswith("redisson_lock_") or key.endswith(":timeout")


@pytest.mark.parametrize("name", NAMES)
def test_it_ends_and_raises_nothing_of_its_own(scripts: Scripted, name: str) -> None:
    known = header(name)
    text = Script(name, with_shebang=scripts.with_shebang).text
    shebang, body = text.split(b"\n", 1) if scripts.with_shebang else (b"", text)
    counted = shebang + b"\n" + COUNTED % MOST_CALLS + body
    for seed in range(EXAMPLES):
        made = state(name, Random(f"{name} {seed}"))
        with scripts.redis.pipeline(transaction=False) as pipe:
            pipe.flushall()
            for words in commands(made):
                pipe.execute_command(*words)
            pipe.execute()
        before = after = scripts.contents(scores=True)
        # A second copy comes to what the first one has left.
        for _ in range(2):
            found = values(after)
            reply = outcome(scripts.redis.eval, counted, len(known.keys), *known.keys, *known.args)
            after = scripts.contents(scores=True)
            if isinstance(reply, ResponseError):
                assert ALLOWED.search(str(reply)), (reply, made)
                assert values(after) == found, made
            # What Lua makes of an infinite number, or of none, is the least integer.
            assert min(numbers_in(reply), default=0) > -(2**62), made
        for key, (value, ttl) in after.items():
            value_before, ttl_before = before.get(key, ({}, 0))
            assert ttl is not None or ttl_before is None or may_stay(key, known), (key, made)
            scores_before = value_before.items() if isinstance(value_before, dict) else ()
            for member, score in value.items() if isinstance(value, dict) else ():
                if isinstance(score, float) and (member, score) not in scores_before:
                    # Redisson reads no fraction and no infinite score.
                    assert score == int(score), (member, made)
                    assert abs(score) <= 2**53, (member, made)


STEP = 1_000
"""Milliseconds between two calls. A heartbeat of the fair lock is sent as often."""
STEPS = 2_000
"""A dead waiter of Redisson keeps its turn for 300 s."""
KEPT_OUT = ("pyredisson_once:", "pyredisson_permit_withdrawn:")
"""These keys say what became of one call, so they have no other content that a later call could meet."""


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith("_acquire")])
def test_it_is_acquired(name: str) -> None:
    """Whatever somebody else has written into the companions of a free lock, whoever keeps asking acquires it."""
    lock, is_number = header(name).keys[0], header(name).types[0] == "string"
    for seed in range(EXAMPLES // 2):
        memory = Memory()
        for words in commands(state(name, Random(f"{name} {seed}"))):
            if words[1] != lock and not str(words[1]).startswith(KEPT_OUT):
                memory.command(*words)
        if is_number:
            memory.command("SET", lock, 5)
        for _ in range(STEPS):
            for script in (*(["fair_heartbeat"] if name.startswith("fair") else []), name):
                reply = outcome(memory.script, script, *header(script).keys, args=header(script).args)
            # A list is a token. An error: a companion is of another type, or a counter isn't one, so nobody waits.
            acquired = (isinstance(reply, int) and reply > 0) if is_number else isinstance(reply, list)
            if acquired or reply is None or isinstance(reply, ResponseError):
                break
            memory.advance_time(STEP)
        else:
            pytest.fail(f"never acquired: {seed}")
