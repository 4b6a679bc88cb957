"""What the header of a script says: which keys it has, of which types, and a command line that runs it."""

import re
from dataclasses import dataclass
from functools import cache

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
    lines = []
    for line in Script(name, with_shebang=True).text.decode().splitlines()[1:]:
        if not line.startswith("--"):
            break
        lines.append(line.removeprefix("--").strip())
    command = lines[-1].split()
    assert command[:3] == ["redis-cli", "--eval", f"{name}.lua"]
    words = [word.strip("'") for word in command[3:]]
    comma = words.index(",")
    keys = words[:comma]
    described = re.findall(
        r"^KEYS\[(.+?)\](.*?)(?=^KEYS|^ARGV|^returns|\Z)", "\n".join(lines), re.MULTILINE | re.DOTALL
    )
    texts = [_description(described, number) for number in range(1, len(keys) + 1)]
    types = [next((kind for words, kind in _TYPES if words in text), "string") for text in texts]
    return Header(
        tuple(lines), tuple(keys), tuple(words[comma + 1 :]), tuple(types), tuple("prefix of" in text for text in texts)
    )


def _description(described: list[tuple[str, str]], number: int) -> str:
    """Of the key with that number. The names of others are `i`, `#KEYS` and their like: the first or the last line."""
    return dict(described).get(str(number), described[0 if number == 1 else -1][1])
