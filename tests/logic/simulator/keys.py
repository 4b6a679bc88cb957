"""The keys of a simulated server, which expire on a virtual clock, and its commands."""

import math
import re
from collections.abc import Callable, Sequence
from functools import partialmethod
from typing import Any, TypeVar

from redis.exceptions import ResponseError

from pyredisson._protocol.replies import Reply

INTEGER = re.compile(rb"0|-?[1-9]\d{0,18}")
NO_INTEGER = "ERR value is not an integer or out of range"
NO_FLOAT = "ERR value is not a valid float"
NO_BOUND = "ERR min or max is not a float"
SYNTAX = "ERR syntax error"


class Hash(dict[bytes, bytes]):
    """Fields, in the order in which they came."""


class List(list[bytes]):
    """From the head to the tail."""


class SortedSet(dict[bytes, float]):
    """Members and their scores."""


Value = bytes | Hash | List | SortedSet
Kind = TypeVar("Kind", bytes, Hash, List, SortedSet)


class Status(bytes):
    """A simple string: to a client it is one like all others, to a script a table with `ok` in it."""


OK = Status(b"OK")


class Keyspace:
    """What one server holds: values with their ends. A method `do_name` is the command NAME."""

    def __init__(self, clock: Callable[[], float], publish: Callable[[bytes, bytes], int]) -> None:
        self._clock = clock
        self.values: dict[bytes, Value] = {}
        self.valid_until: dict[bytes, int] = {}
        self.freed: dict[bytes, tuple[float, bool]] = {}
        """When a key was last removed, and whether it had expired (then no message is published)."""
        self.on_taken: Callable[[bytes], None] | None = None
        """Called when a key comes into being."""
        self.commands: dict[bytes, Callable[..., Reply]] = {
            name.removeprefix("do_").upper().encode(): getattr(self, name) for name in COMMANDS
        }
        self.commands[b"PUBLISH"] = self.commands[b"SPUBLISH"] = publish

    def call(self, name: bytes, *args: Any) -> Reply:
        """One command. Numbers come from Lua."""
        command = self.commands.get(name) or self.commands.get(name.upper())
        if command is None:
            raise ResponseError(f"ERR unknown command {name!r}")
        return command(*[arg if arg.__class__ is bytes else _argument(arg) for arg in args])

    def value(self, key: bytes) -> Value | None:
        """The value of the key, unless it has expired."""
        ends = self.valid_until.get(key)
        if ends is not None and int(self._clock() * 1000) > ends:
            del self.values[key], self.valid_until[key]
            self.freed[key] = (ends / 1000, True)
        return self.values.get(key)

    def of(self, kind: type[Kind], key: bytes) -> Kind | None:
        """The key's value, which must be one of that kind."""
        value = self.value(key)
        if value is None or isinstance(value, kind):
            return value
        raise ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value")

    def hash(self, key: bytes) -> Hash:
        """The key's fields; empty where there is no key."""
        return self.of(Hash, key) or Hash()

    def made(self, kind: type[Kind], key: bytes) -> Kind:
        """The same; an empty one is made where there is none."""
        if (value := self.of(kind, key)) is None:
            self.put(key, value := kind())
        return value

    def put(self, key: bytes, value: Value) -> None:
        """Makes a key, or gives one another value; its end stays."""
        if self.on_taken is not None and self.value(key) is None:
            self.on_taken(key)
        self.values[key] = value

    def drop(self, key: bytes, *, lost: bool = False) -> None:
        """Removes a key. `lost`: as if it had expired, so no message is published."""
        self.values.pop(key, None)
        self.valid_until.pop(key, None)
        self.freed[key] = (self._clock(), lost)

    def now(self) -> int:
        """Milliseconds."""
        return int(self._clock() * 1000)

    # Any key

    def do_del(self, *keys: bytes) -> int:
        there = [key for key in dict.fromkeys(keys) if self.value(key) is not None]
        for key in there:
            self.drop(key)
        return len(there)

    def do_rename(self, key: bytes, name: bytes) -> Status:
        value = self.value(key)
        if value is None:
            raise ResponseError("ERR no such key")
        ends = self.valid_until.get(key)
        self.do_del(key, name)
        self.put(name, value)
        if ends is not None:
            self.valid_until[name] = ends
        return OK

    def do_exists(self, *keys: bytes) -> int:
        return sum(self.value(key) is not None for key in keys)

    def do_type(self, key: bytes) -> Status:
        names: dict[type, bytes] = {bytes: b"string", Hash: b"hash", List: b"list", SortedSet: b"zset"}
        return Status(names.get(type(self.value(key)), b"none"))

    def do_pexpire(self, key: bytes, lease: bytes) -> int:
        ends = self.now() + integer(lease)
        if self.value(key) is None:
            return 0
        if ends <= self.now():
            self.drop(key)
        else:
            self.valid_until[key] = ends
        return 1

    def do_persist(self, key: bytes) -> int:
        return int(self.value(key) is not None and self.valid_until.pop(key, None) is not None)

    def do_pttl(self, key: bytes) -> int:
        if self.value(key) is None:
            return -2
        ends = self.valid_until.get(key)
        return -1 if ends is None else ends - self.now()

    def do_ttl(self, key: bytes) -> int:
        left = self.do_pttl(key)
        return left if left < 0 else (left + 500) // 1000

    def do_expire(self, key: bytes, lease: bytes) -> int:
        return self.do_pexpire(key, b"%d" % (integer(lease) * 1000))

    def do_time(self) -> list[bytes]:
        micros = int(self._clock() * 1e6)
        return [b"%d" % (micros // 1_000_000), b"%d" % (micros % 1_000_000)]

    def do_keys(self, pattern: bytes) -> list[bytes]:
        return [key for key in list(self.values) if self.value(key) is not None and matches(key, pattern)]

    def do_scan(self, cursor: bytes, *_: bytes) -> list[Reply]:
        """All at once, as a server may do."""
        integer(cursor)
        return [b"0", list(self.do_keys(b"*"))]

    def do_flushall(self) -> Status:
        self.do_del(*self.values)
        return OK

    # Strings

    def do_get(self, key: bytes) -> bytes | None:
        return self.of(bytes, key)

    def do_getrange(self, key: bytes, first: bytes, last: bytes) -> bytes:
        text, first_index, last_index = self.of(bytes, key) or b"", integer(first), integer(last)
        if last_index < first_index < 0:
            return b""
        begin, end = (at if at >= 0 else max(at + len(text), 0) for at in (first_index, last_index))
        return text[begin : end + 1]

    def do_set(self, key: bytes, value: bytes, *options: bytes) -> Reply:
        ends = None
        words = iter(option.upper() for option in options)
        flags = set()
        for word in words:
            if word in (b"PX", b"EX"):
                span = integer(next(words)) * (1 if word == b"PX" else 1000)
                if span <= 0:
                    raise ResponseError("ERR invalid expire time in 'set' command")
                ends = self.now() + span
            elif word in (b"NX", b"XX", b"KEEPTTL"):
                flags.add(word)
            else:
                raise ResponseError(SYNTAX)
        if b"XX" in flags if self.value(key) is None else b"NX" in flags:
            return None
        self.put(key, value)
        if b"KEEPTTL" not in flags:
            self.valid_until.pop(key, None)
        if ends is not None:
            self.valid_until[key] = ends
        return OK

    def do_append(self, key: bytes, text: bytes) -> int:
        self.put(key, value := (self.of(bytes, key) or b"") + text)
        return len(value)

    def do_incrby(self, key: bytes, by: bytes) -> int:
        step = integer(by)
        number = integer(self.of(bytes, key) or b"0") + step
        if not -(2**63) <= number < 2**63:
            raise ResponseError("ERR increment or decrement would overflow")
        self.put(key, b"%d" % number)
        return number

    do_incr = partialmethod(do_incrby, by=b"1")
    do_decr = partialmethod(do_incrby, by=b"-1")

    def do_decrby(self, key: bytes, by: bytes) -> int:
        return self.do_incrby(key, b"%d" % -integer(by))

    # Hashes, lists and sorted sets: an empty one is removed

    def _size(self, kind: type[Any], key: bytes) -> int:
        return len(self.of(kind, key) or ())

    do_hlen, do_llen, do_zcard = partialmethod(_size, Hash), partialmethod(_size, List), partialmethod(_size, SortedSet)

    def _remove(self, kind: type[Any], key: bytes, *names: bytes) -> int:
        value = self.of(kind, key)
        if value is None:
            return 0
        removed = sum(value.pop(name, None) is not None for name in names)
        self._drop_if_empty(key)
        return removed

    do_hdel, do_zrem = partialmethod(_remove, Hash), partialmethod(_remove, SortedSet)

    def _drop_if_empty(self, key: bytes) -> None:
        if not self.values[key]:
            self.drop(key)

    def do_hexists(self, key: bytes, field: bytes) -> int:
        return int(field in self.hash(key))

    def do_hget(self, key: bytes, field: bytes) -> bytes | None:
        return self.hash(key).get(field)

    def do_hmget(self, key: bytes, *fields: bytes) -> list[bytes | None]:
        return list(map(self.hash(key).get, fields))

    def do_hkeys(self, key: bytes) -> list[bytes]:
        return list(self.hash(key))

    def do_hvals(self, key: bytes) -> list[bytes]:
        return list(self.hash(key).values())

    def do_hgetall(self, key: bytes) -> list[bytes]:
        return [text for pair in self.hash(key).items() for text in pair]

    def do_hrandfield(self, key: bytes) -> bytes | None:
        """The latest field: as good as any."""
        return next(reversed(self.hash(key)), None)

    def do_hscan(self, key: bytes, cursor: bytes, *options: bytes) -> list[Reply]:
        """All at once, as a server does with a small hash."""
        integer(cursor)
        return [b"0", self.do_hgetall(key)]

    def do_hset(self, key: bytes, *pairs: bytes) -> int:
        fields = self.made(Hash, key)
        before = len(fields)
        fields.update(zip(pairs[::2], pairs[1::2], strict=True))
        return len(fields) - before

    def do_hincrby(self, key: bytes, field: bytes, by: bytes) -> int:
        step = integer(by)
        number = integer(self.do_hget(key, field) or b"0") + step
        self.do_hset(key, field, b"%d" % number)
        return number

    def do_lindex(self, key: bytes, index: bytes) -> bytes | None:
        value, number = self.of(List, key) or List(), integer(index)
        return value[number] if -len(value) <= number < len(value) else None

    def do_lrange(self, key: bytes, first: bytes, last: bytes) -> list[bytes]:
        return _part(self.of(List, key) or List(), integer(first), integer(last))

    def do_rpush(self, key: bytes, *items: bytes) -> int:
        value = self.made(List, key)
        value.extend(items)
        return len(value)

    def do_lpush(self, key: bytes, *items: bytes) -> int:
        value = self.made(List, key)
        value[:0] = reversed(items)
        return len(value)

    def do_lpop(self, key: bytes, place: int = 0) -> bytes | None:
        value = self.of(List, key)
        if value is None:
            return None
        item = value.pop(place)
        self._drop_if_empty(key)
        return item

    do_rpop = partialmethod(do_lpop, place=-1)

    def do_lrem(self, key: bytes, count: bytes, item: bytes) -> int:
        most, value = integer(count), self.of(List, key)
        if value is None:
            return 0
        places = [index for index, other in enumerate(value) if other == item]
        places = places[most:] if most < 0 else places[: most or None]
        for index in reversed(places):
            del value[index]
        self._drop_if_empty(key)
        return len(places)

    def do_zadd(self, key: bytes, *args: bytes) -> int:
        """Of its options NX and XX."""
        flag = args[0].upper()
        pairs = args[1:] if flag in (b"NX", b"XX") else args
        if len(pairs) % 2 or not pairs:
            raise ResponseError(SYNTAX)
        scores = [_float(text, NO_FLOAT) for text in pairs[::2]]
        value = self.of(SortedSet, key)
        members = SortedSet() if value is None else value
        before = len(members)
        for score, member in zip(scores, pairs[1::2], strict=True):
            if flag not in (b"NX", b"XX") or (member in members) is (flag == b"XX"):
                members[member] = score
        if value is None and members:
            self.put(key, members)
        return len(members) - before

    def do_zincrby(self, key: bytes, by: bytes, member: bytes) -> bytes:
        score = _float(by, NO_FLOAT) + self._scores(key).get(member, 0.0)
        self.do_zadd(key, readable(score), member)
        return readable(score)

    def do_zscore(self, key: bytes, member: bytes) -> bytes | None:
        score = self._scores(key).get(member)
        return None if score is None else readable(score)

    def do_zmscore(self, key: bytes, *members: bytes) -> list[bytes | None]:
        return [self.do_zscore(key, member) for member in members]

    def do_zrank(self, key: bytes, member: bytes) -> int | None:
        members = self._sorted(key)
        return members.index(member) if member in members else None

    def do_zcount(self, key: bytes, lowest: bytes, highest: bytes) -> int:
        return len(self._between(key, lowest, highest))

    def do_zremrangebyscore(self, key: bytes, lowest: bytes, highest: bytes) -> int:
        members = self._between(key, lowest, highest)
        return self.do_zrem(key, *members) if members else 0

    def do_zrangebyscore(self, key: bytes, lowest: bytes, highest: bytes, *options: bytes) -> list[bytes]:
        words = [word.upper() for word in options]
        members = self._between(key, lowest, highest)
        if b"LIMIT" in words:
            at = words.index(b"LIMIT")
            first, count = integer(words[at + 1]), integer(words[at + 2])
            members = members[first:] if count < 0 else members[first : first + count]
        return self._listed(key, members, scores=b"WITHSCORES" in words)

    def do_zrange(self, key: bytes, first: bytes, last: bytes, *options: bytes) -> list[bytes]:
        members = _part(self._sorted(key), integer(first), integer(last))
        return self._listed(key, members, scores=b"WITHSCORES" in [word.upper() for word in options])

    def _scores(self, key: bytes) -> SortedSet:
        return self.of(SortedSet, key) or SortedSet()

    def _sorted(self, key: bytes) -> list[bytes]:
        scores = self._scores(key)
        return sorted(scores, key=lambda member: (scores[member], member))

    def _between(self, key: bytes, lowest: bytes, highest: bytes) -> list[bytes]:
        low, high = _bound(lowest, math.inf), _bound(highest, -math.inf)
        scores = self._scores(key)
        return [member for member in self._sorted(key) if low <= scores[member] <= high]

    def _listed(self, key: bytes, members: Sequence[bytes], *, scores: bool) -> list[bytes]:
        if not scores:
            return list(members)
        known = self._scores(key)
        return [text for member in members for text in (member, readable(known[member]))]


COMMANDS = [name for name in vars(Keyspace) if name.startswith("do_")]


def matches(text: bytes, pattern: bytes) -> bool:
    """Whether a text is like a pattern, by Redis's rules for `*`, `?`, `[...]` and a backslash."""
    return re.fullmatch(b"".join(map(_as_expression, _PARTS.findall(pattern))), text, re.DOTALL) is not None


_PARTS = re.compile(rb"\[(?:\\.|[^\]\\])*\]|\\.|.", re.DOTALL)


def _as_expression(part: bytes) -> bytes:
    """A part of a pattern as a regular expression: a class, an escaped character, or one character."""
    if part in (b"*", b"?"):
        return part.replace(b"?", b".").replace(b"*", b".*")
    if len(part) < 2:
        return re.escape(part)
    if part[:1] == b"\\":
        return re.escape(part[1:])
    # Python's classes are the same, apart from an empty one.
    return {b"[]": b"(?!)", b"[^]": b"."}.get(part, part)


def integer(text: bytes) -> int:
    """A number as Redis takes it: no sign but a minus, no blanks, no leading zeros, 64 bits."""
    if INTEGER.fullmatch(text) and -(2**63) <= (number := int(text)) < 2**63:
        return number
    raise ResponseError(NO_INTEGER)


def readable(score: float) -> bytes:
    """A score as Redis writes it."""
    return b"%.17g" % score


def _bound(text: bytes, beyond: float) -> float:
    return math.nextafter(_float(text[1:], NO_BOUND), beyond) if text.startswith(b"(") else _float(text, NO_BOUND)


def _float(text: bytes, otherwise: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ResponseError(otherwise) from None
    if math.isnan(number):
        raise ResponseError(otherwise)
    return number


def _part(items: Sequence[bytes], first: int, last: int) -> list[bytes]:
    start = max(0, first + len(items) if first < 0 else first)
    stop = last + len(items) if last < 0 else last
    return list(items[start : stop + 1])


def _argument(value: object) -> bytes:
    """What a script hands over as a command's argument."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return b"%.17g" % value
    if isinstance(value, bytes):
        return value
    raise ResponseError("ERR Lua redis lib command arguments must be strings or integers")
