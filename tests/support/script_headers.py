"""What the header of a script says: its keys, and a command line. Keys as somebody else may have written them."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from random import Random
from typing import Any

from pyredisson._protocol.scripts import Script

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
