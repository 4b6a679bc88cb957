"""The keys of a simulated server, which expire on a virtual clock; commands for any key, and for strings."""

import re
from collections.abc import Callable
from typing import TypeVar

from redis.exceptions import ResponseError

from pyredisson._protocol.replies import Reply

WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"
NO_INTEGER = "ERR value is not an integer or out of range"
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


class Keys:
    """Values with their ends. A method `do_name` is the command NAME."""

    def __init__(self, clock: Callable[[], float], publish: Callable[[bytes, bytes], int]) -> None:
        self._clock = clock
        self.values: dict[bytes, Value] = {}
        self.valid_until: dict[bytes, int] = {}
        self.freed: dict[bytes, tuple[float, bool]] = {}
        """When a key was last removed, and whether it had expired (then no message is published)."""
        self.on_taken: Callable[[bytes], None] | None = None
        """Called when a key comes into being."""
        self.commands: dict[bytes, Callable[..., Reply]] = {
            name.removeprefix("do_").upper().encode(): getattr(self, name)
            for name in dir(self)
            if name.startswith("do_")
        }
        self.commands[b"PUBLISH"] = self.commands[b"SPUBLISH"] = publish

    def value(self, key: bytes) -> Value | None:
        """The value of the key, unless it has expired."""
        ends = self.valid_until.get(key)
        if ends is not None and self.now() > ends:
            del self.values[key], self.valid_until[key]
            self.freed[key] = (ends / 1000, True)
        return self.values.get(key)

    def of(self, kind: type[Kind], key: bytes) -> Kind | None:
        """The key's value, which must be one of that kind."""
        value = self.value(key)
        if value is None or isinstance(value, kind):
            return value
        raise ResponseError(WRONG_TYPE)

    def made(self, kind: type[Kind], key: bytes) -> Kind:
        """The same; an empty one is made where there is none."""
        value = self.of(kind, key)
        if value is None:
            value = kind()
            self.put(key, value)
        return value

    def put(self, key: bytes, value: Value) -> None:
        """Makes a key, or gives one another value; its end stays."""
        if self.on_taken is not None and self.value(key) is None:
            self.on_taken(key)
        self.values[key] = value

    def drop(self, key: bytes) -> None:
        """Removes a key that is there."""
        del self.values[key]
        self.valid_until.pop(key, None)
        self.freed[key] = (self._clock(), False)

    def drop_if_empty(self, key: bytes) -> None:
        if not self.values[key]:
            self.drop(key)

    def lose(self, key: bytes) -> None:
        """Removes a key as if it had expired: no message is published."""
        self.values.pop(key, None)
        self.valid_until.pop(key, None)
        self.freed[key] = (self._clock(), True)

    def now(self) -> int:
        """Milliseconds."""
        return int(self._clock() * 1000)

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
        self.drop(key)
        if self.value(name) is not None:
            self.drop(name)
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

    def do_dbsize(self) -> int:
        return len(self.do_keys(b"*"))

    def do_flushall(self) -> Status:
        for key in list(self.values):
            if self.value(key) is not None:
                self.drop(key)
        return OK

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
        value = (self.of(bytes, key) or b"") + text
        self.put(key, value)
        return len(value)

    def do_incrby(self, key: bytes, by: bytes) -> int:
        step = integer(by)
        number = integer(self.of(bytes, key) or b"0") + step
        if not -(2**63) <= number < 2**63:
            raise ResponseError("ERR increment or decrement would overflow")
        self.put(key, b"%d" % number)
        return number

    def do_incr(self, key: bytes) -> int:
        return self.do_incrby(key, b"1")

    def do_decrby(self, key: bytes, by: bytes) -> int:
        return self.do_incrby(key, b"%d" % -integer(by))

    def do_decr(self, key: bytes) -> int:
        return self.do_incrby(key, b"-1")


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
    try:
        number = int(text)
    except ValueError:
        raise ResponseError(NO_INTEGER) from None
    if b"%d" % number != text or not -(2**63) <= number < 2**63:
        raise ResponseError(NO_INTEGER)
    return number
