"""The hashes, lists and sorted sets of a simulated server; an empty one is removed."""

import math
from collections.abc import Callable, Sequence

from redis.exceptions import ResponseError

from pyredisson._protocol.replies import Reply

from .keys import SYNTAX, Hash, Keys, List, SortedSet, integer

NO_FLOAT = "ERR value is not a valid float"
NO_BOUND = "ERR min or max is not a float"


class Hashes(Keys):
    """The commands for hashes."""

    def do_hexists(self, key: bytes, field: bytes) -> int:
        return int(field in (self.of(Hash, key) or ()))

    def do_hget(self, key: bytes, field: bytes) -> bytes | None:
        return (self.of(Hash, key) or Hash()).get(field)

    def do_hmget(self, key: bytes, *fields: bytes) -> list[bytes | None]:
        value = self.of(Hash, key) or Hash()
        return [value.get(field) for field in fields]

    def do_hkeys(self, key: bytes) -> list[bytes]:
        return list(self.of(Hash, key) or ())

    def do_hvals(self, key: bytes) -> list[bytes]:
        return list((self.of(Hash, key) or Hash()).values())

    def do_hgetall(self, key: bytes) -> list[bytes]:
        return [text for pair in (self.of(Hash, key) or Hash()).items() for text in pair]

    def do_hlen(self, key: bytes) -> int:
        return len(self.of(Hash, key) or ())

    def do_hrandfield(self, key: bytes) -> bytes | None:
        """The latest field: as good as any."""
        return next(reversed(self.of(Hash, key) or Hash()), None)

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

    def do_hdel(self, key: bytes, *fields: bytes) -> int:
        value = self.of(Hash, key)
        if value is None:
            return 0
        removed = sum(value.pop(field, None) is not None for field in fields)
        self.drop_if_empty(key)
        return removed


class Lists(Keys):
    """The commands for lists."""

    def do_llen(self, key: bytes) -> int:
        return len(self.of(List, key) or ())

    def do_lindex(self, key: bytes, index: bytes) -> bytes | None:
        value = self.of(List, key) or List()
        number = integer(index)
        return value[number] if -len(value) <= number < len(value) else None

    def do_lrange(self, key: bytes, first: bytes, last: bytes) -> list[bytes]:
        first_index, last_index = integer(first), integer(last)
        return _part(self.of(List, key) or List(), first_index, last_index)

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
        self.drop_if_empty(key)
        return item

    def do_rpop(self, key: bytes) -> bytes | None:
        return self.do_lpop(key, -1)

    def do_lrem(self, key: bytes, count: bytes, item: bytes) -> int:
        most = integer(count)
        value = self.of(List, key)
        if value is None:
            return 0
        places = [index for index, other in enumerate(value) if other == item]
        if most < 0:
            places.reverse()
        places = places[: abs(most)] if most else places
        for index in sorted(places, reverse=True):
            del value[index]
        self.drop_if_empty(key)
        return len(places)


class SortedSets(Keys):
    """The commands for sorted sets."""

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
        score = _float(by, NO_FLOAT) + (self.of(SortedSet, key) or SortedSet()).get(member, 0.0)
        self.do_zadd(key, readable(score), member)
        return readable(score)

    def do_zscore(self, key: bytes, member: bytes) -> bytes | None:
        score = (self.of(SortedSet, key) or SortedSet()).get(member)
        return None if score is None else readable(score)

    def do_zmscore(self, key: bytes, *members: bytes) -> list[bytes | None]:
        return [self.do_zscore(key, member) for member in members]

    def do_zrank(self, key: bytes, member: bytes) -> int | None:
        members = self._sorted(key)
        return members.index(member) if member in members else None

    def do_zcard(self, key: bytes) -> int:
        return len(self.of(SortedSet, key) or ())

    def do_zrem(self, key: bytes, *members: bytes) -> int:
        value = self.of(SortedSet, key)
        if value is None:
            return 0
        removed = sum(value.pop(member, None) is not None for member in members)
        self.drop_if_empty(key)
        return removed

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

    def _sorted(self, key: bytes) -> list[bytes]:
        scores = self.of(SortedSet, key) or SortedSet()
        return sorted(scores, key=lambda member: (scores[member], member))

    def _between(self, key: bytes, lowest: bytes, highest: bytes) -> list[bytes]:
        low, high = _bound(lowest, math.nextafter), _bound(highest, lambda end, _: math.nextafter(end, -math.inf))
        scores = self.of(SortedSet, key) or SortedSet()
        return [member for member in self._sorted(key) if low <= scores[member] <= high]

    def _listed(self, key: bytes, members: Sequence[bytes], *, scores: bool) -> list[bytes]:
        if not scores:
            return list(members)
        known = self.of(SortedSet, key) or SortedSet()
        return [text for member in members for text in (member, readable(known[member]))]


def readable(score: float) -> bytes:
    """A score as Redis writes it."""
    return b"%.17g" % score


def _bound(text: bytes, beyond: Callable[[float, float], float]) -> float:
    if text.startswith(b"("):
        return beyond(_float(text[1:], NO_BOUND), math.inf)
    return _float(text, NO_BOUND)


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
