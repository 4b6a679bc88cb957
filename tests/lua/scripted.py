"""A server with its scripts, the keys on it, and the steps of which tests of scripts consist."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from random import Random
from typing import Any, NamedTuple
from unittest import mock

from redis.exceptions import ResponseError

from pyredisson._protocol.scripts import Script
from pyredisson.testing import Server

ME, YOU = "b983c153-7421-469a-addb-44fb92259a1b:1", "0d1f9d0c-2b3a-4b7e-8f64-9d2f0a6c3e55:7"
ANYTHING: Any = mock.ANY
FOREVER = 922337203685477
"""The score of a permit without an end, as Redisson writes it."""
READ = {"hash": ("HGETALL",), "list": ("LRANGE", 0, -1), "zset": ("ZRANGE", 0, -1, "WITHSCORES"), "string": ("GET",)}

RESERVED = 21_000
"""Milliseconds for which a released lock is left to the client that was woken: longer than a slow test takes."""

State = Mapping[str, Any]
"""Keys and their values: a dict is a hash, a list is a list, `Ends` and `Came` are sorted sets, all others are strings.
A pair is a value and its TTL in ms."""


class Ends(dict[Any, Any]):
    """A sorted set of times: how many milliseconds from now; None: never."""


class Came(list[str]):
    """A list of waiting clients in their order: the first of them came a second ago, the next a millisecond later."""


@dataclass(frozen=True)
class About:
    """A time in ms that began in this test, so some of it may be over; negative: it is over for at least so long."""

    ms: int

    def __eq__(self, left: object) -> bool:
        if not isinstance(left, int):
            return NotImplemented
        over = min(5_000, self.ms // 2) if self.ms >= 2_000 else self.ms
        return left <= self.ms if self.ms < 0 else self.ms - over < left <= self.ms


@dataclass(frozen=True)
class Refused:
    """The reply to a caller that waits."""

    remaining: int
    place: int
    foreign: int = 0

    def __eq__(self, reply: object) -> bool:
        if not isinstance(reply, bytes):
            return NotImplemented
        remaining, place, foreign = map(int, reply.split())
        lasts = About(self.remaining) if self.remaining > 0 else self.remaining
        return (place, foreign) == (self.place, self.foreign) and lasts == remaining


class Call(NamedTuple):
    """A call of a script."""

    name: str
    keys: Sequence[str]
    args: Sequence[str | int | bytes]


class Case(NamedTuple):
    """Calls of scripts, the keys that they find, and what they leave behind."""

    before: State
    steps: Sequence[tuple[Any, ...]]
    """Each a call and its reply; a third item is the reply to a second copy, which otherwise is the same. Or the words
    of a plain command, which somebody else sends."""
    after: State | None = None
    """None: as before. There `ANYTHING` in a hash stands for 1."""
    messages: Sequence[str] = ()


class Scripted:
    """A server and its scripts, in the form for that server. `redis` of a method is another client that sends."""

    def __init__(self, server: Server, admin: Any) -> None:
        self.server = server
        self.redis: Any = admin
        self.with_shebang = server.version >= (7,)
        self.listening: Any = self.redis.pubsub()
        self.listening.psubscribe("*")
        assert self.listening.get_message(timeout=5) is not None

    def run(self, name: str, keys: Sequence[str], *args: str | int | bytes, redis: Any = None) -> Any:
        text = lasting(Script(name, with_shebang=self.with_shebang).text)
        return (redis or self.redis).eval(text, len(keys), *keys, *args)

    def call(self, call: Call, redis: Any = None) -> Any:
        return self.run(call.name, call.keys, *call.args, redis=redis)

    def check(self, *cases: Case) -> None:
        """Each call is sent twice, and the second copy changes nothing."""
        for case in cases:
            self.redis.flushall()
            before = {key: begun(value) for key, value in case.before.items()}
            self.write(before)
            after = before if case.after is None else case.after
            for number, (call, *replies) in enumerate(case.steps, 1):
                if not isinstance(call, Call):
                    self.redis.execute_command(call, *replies)
                    continue
                for reply in (replies[0], replies[-1]):
                    assert self.call(call) == reply, call
                    if number == len(case.steps):
                        assert self.contents() == expected(after)
            assert self.published() == list(case.messages)

    def write(self, state: State) -> None:
        """Writes all keys at one moment: the scripts compare their TTLs."""
        now = self.now()
        with self.redis.pipeline(transaction=True) as pipe:
            for key, value in state.items():
                value, ttl = value if isinstance(value, tuple) else (value, None)
                if isinstance(value, Ends):
                    pipe.zadd(key, {each: FOREVER if ms is None else now + ms for each, ms in value.items()})
                elif isinstance(value, Came):
                    came = (now - 1000) * 1000
                    pipe.zadd(key, {each: came + number * 1000 for number, each in enumerate(value)})
                elif isinstance(value, dict):
                    pipe.hset(key, mapping=value)
                elif isinstance(value, list):
                    pipe.rpush(key, *value)
                else:
                    pipe.set(key, value)
                if ttl is not None:
                    pipe.pexpire(key, ttl)
            pipe.execute()

    def contents(self, *, scores: bool = False) -> dict[str, Any]:
        """Of each key the value and the TTL. Of a sorted set the time from now until each score, or the scores.

        Of a list of waiting clients their order.
        """
        keys = self.redis.keys()
        with self.redis.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.type(key).pttl(key)
            replies = pipe.execute()
            kinds = [kind.decode() for kind in replies[::2]]
            for key, kind in zip(keys, kinds, strict=True):
                name, *rest = READ[kind]
                pipe.execute_command(name, key, *rest, **({"withscores": True} if kind == "zset" else {}))
            *values, (seconds, micros) = pipe.time().execute()
        now = seconds * 1000 + micros // 1000
        found = {}
        for key, kind, value, ttl in zip(keys, kinds, values, replies[1::2], strict=True):
            if kind == "zset" and not scores and key.startswith((b"pyredisson_waiting", b"pyredisson_woken")):
                value = readable([each for each, _ in value])
            elif kind == "zset" and not scores:
                value = {text(each): None if score == FOREVER else int(score) - now for each, score in value}
            elif kind == "zset":
                value = dict(value)
            else:
                value = readable(value)
            found[text(key)] = (value, None if ttl < 0 else ttl)
        return found

    def text(self, key: str) -> str | None:
        """A string, as Redisson reads it."""
        found = self.redis.get(key)
        return found if found is None else str(found.decode())

    def left(self, key: str = "orders") -> int:
        return int(self.redis.pttl(key))

    def now(self) -> int:
        seconds, micros = self.redis.time()
        return int(seconds * 1000 + micros // 1000)

    def published(self) -> list[str]:
        """All messages since the last call. A message of the test itself marks the end."""
        return [message for _, message in self.published_on()]

    def published_on(self) -> list[tuple[str, str]]:
        """The same, each with its channel."""
        self.redis.publish("end", "")
        messages = []
        while (message := self.listening.get_message(timeout=5)) is not None and message["channel"] != b"end":
            messages.append((text(message["channel"]), text(message["data"])))
        assert message is not None
        return messages

    @contextmanager
    def listener(self, *channels: str) -> Iterator[Any]:
        """Another client that listens on these channels."""
        with self.redis.pubsub() as listening:
            for channel in channels:
                listening.subscribe(channel)
                assert listening.get_message(timeout=5) is not None
            yield listening

    @contextmanager
    def user(self, *rights: str) -> Iterator[Any]:
        """A client of a user that has only these rights."""
        self.redis.execute_command("ACL", "LOG", "RESET")
        self.redis.execute_command("ACL", "SETUSER", "somebody", "on", ">x", *rights)
        try:
            with self.server.redis(username="somebody", password="x") as redis:
                yield redis
        finally:
            self.redis.execute_command("ACL", "DELUSER", "somebody")


def outcome(function: Callable[..., Any], *args: Any, **more: Any) -> Any:
    """What a call returns, or the error of the server that it raises."""
    try:
        return function(*args, **more)
    except ResponseError as error:
        return error


def lasting(script: bytes) -> bytes:
    """The same script with `RESERVED`."""
    return script.replace(b"local RESERVED = 250\n", b"local RESERVED = %d\n" % RESERVED)


def text(word: Any) -> Any:
    """As no text is compared that isn't ASCII, each byte of an id may be a character of its own."""
    if isinstance(word, bytes):
        return word.decode("latin-1")
    return word if word is ANYTHING else str(word)


def readable(value: Any) -> Any:
    """A value as the server stores it, and as a test expects it, in the same form."""
    if isinstance(value, Ends):
        return {text(each): None if ms is None else About(ms) for each, ms in value.items()}
    if isinstance(value, dict):
        return {text(field): text(each) for field, each in value.items()}
    return [text(each) for each in value] if isinstance(value, list) else text(value)


def begun(value: Any) -> Any:
    """A value before a case, with 1 in place of `ANYTHING`."""
    if isinstance(value, tuple):
        return begun(value[0]), value[1]
    if type(value) is dict:
        return {field: 1 if each is ANYTHING else each for field, each in value.items()}
    return value


def expected(state: State) -> dict[str, tuple[Any, Any]]:
    """These keys as `contents` should read them."""
    found = {}
    for key, value in state.items():
        value, ttl = value if isinstance(value, tuple) else (value, None)
        found[key] = (readable(value), None if ttl is None else About(ttl))
    return found


_TYPES = (("a hash", "hash"), ("a list", "list"), ("a sorted set", "zset"))


@dataclass(frozen=True)
class Header:
    """The lines at the beginning of a script, without the `#!lua` line."""

    lines: tuple[str, ...]
    keys: tuple[str, ...]
    """The keys of the command line."""
    args: tuple[str, ...]
    types: tuple[str, ...]
    """The type of each key; `string` where the header names no other."""
    prefixes: tuple[bool, ...]
    """Whether the key is only the prefix of the names of other keys."""


@cache
def header(name: str) -> Header:
    text = Script(name, with_shebang=True).text.decode().splitlines()[1:]
    lines = [line.removeprefix("--").strip() for line in takewhile(lambda line: line.startswith("--"), text)]
    command = lines[-1].split()
    assert command[:3] == ["redis-cli", "--eval", f"{name}.lua"]
    words = [word.strip("'") for word in command[3:]]
    comma = words.index(",")
    keys = words[:comma]
    described = re.findall(r"(?ms)^KEYS\[(.+?)\](.*?)(?=^KEYS|^ARGV|^returns|\Z)", "\n".join(lines))
    # The names of others are `i`, `#KEYS` and their like: described by the first or the last of these texts.
    texts = [dict(described).get(f"{i + 1}", described[0 if i == 0 else -1][1]) for i in range(len(keys))]
    types = tuple(next((kind for words, kind in _TYPES if words in text), "string") for text in texts)
    prefixes = tuple("prefix of" in text for text in texts)
    return Header(tuple(lines), tuple(keys), tuple(words[comma + 1 :]), types, prefixes)


# Damaged keys

NUMBERS = (
    *("0", "1", "2", "3", "5", "-1", "-5", "1000000000", "-1000000000", "1763720000123", "-1763720000123", "1.5"),
    *("1e9", "9007199254740993", "9223372036854775807", "-9223372036854775808", "9" * 30, "-" + "9" * 30, "9" * 400),
    *("nan", "-nan", "inf", "-inf", "0x10", "007", "-0", " 1", "+1", "", "text", "read", "write"),
    *("1 1", "5 1", "1 me:1", "5 -3", f"{'9' * 30} 1", f"5 {'9' * 30}", f"{'9' * 400} me:1", "-5 me:1", "5 nan"),
)
SCORES = (
    *("0", "1", "-1", "1.5", "inf", "-inf", "1e300", "-1e300"),
    *("1763720000123", "9007199254740993", "922337203685477"),
)
TTLS = (None, None, 100_000, 9_000_000_000_000_000_000)
NAMED_FIELDS = (
    *("me:1", "me", "me:1:kept"),
    *("mode", "n", ":offered", ":grace", ":margin", ":cursor", "rate", "", "you:7", "you:7:write"),
    *("member", "came", "exclusive"),
)
Key = tuple[str, str, Any, int | None]
"""Its name, its type, its value and its TTL in ms; None: it has none."""


def state(name: str, random: Random) -> list[Key]:
    """Keys, most of them of the type that the script expects. The others are missing, or of another type."""
    known = header(name)
    names = [*(word for word in known.args if ":" in word and "{" not in word), *NAMED_FIELDS]
    keys = dict(zip(known.keys, known.types, strict=True))
    for prefix, is_prefix in zip(known.keys, known.prefixes, strict=True):
        if is_prefix:
            keys |= {f"{prefix}{owner}:rwlock_timeout:{level}": "string" for owner in names[:2] for level in (1, 3)}
    made = []
    for key, expected in keys.items():
        if random.random() < 0.2:
            continue
        kind = random.choice(("hash", "list", "zset", "string")) if random.random() < 0.1 else expected
        some = random.sample(names, random.randint(1, 6))
        made.append((key, kind, value(kind, some, random), random.choice(TTLS)))
    return made


def value(kind: str, names: list[str], random: Random) -> Any:
    if kind == "string":
        return random.choice(NUMBERS)
    if kind == "list":
        return names
    return {name: random.choice(NUMBERS if kind == "hash" else SCORES) for name in names}


def commands(made: Collection[Key]) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for key, kind, value, ttl in made:
        if kind == "hash":
            found.append(("HSET", key, *[word for pair in value.items() for word in pair]))
        elif kind == "list":
            found.append(("RPUSH", key, *value))
        elif kind == "zset":
            found.append(("ZADD", key, *[word for member, score in value.items() for word in (score, member)]))
        else:
            found.append(("SET", key, value))
        if ttl is not None:
            found.append(("PEXPIRE", key, ttl))
    return found
