"""Which objects one round of the dashboard reads: visible and new ones each time, all others in turn."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from pyredisson.inspection.model import Evidence

READ_EACH_ROUND = 500
"""Objects that one round reads, besides visible and new ones. Each takes a server about 0.07 ms."""
NEW_EACH_ROUND = 3_000
"""Objects that were never read, which one round reads."""
ROUNDS_FOR_ALL = 20
"""After so many rounds each object was read, however many there are."""


class Turns:
    """Goes through all names in their order, again and again."""

    def __init__(self) -> None:
        self._position = 0
        """Of the next object to be read."""

    def next(
        self, found: Mapping[bytes, Evidence], seen: Container[bytes], visible: Iterable[bytes]
    ) -> dict[bytes, Evidence]:
        """The names that the next round reads, of all that were found. `seen`: the names that were read before."""
        names = sorted(found)
        if self._position >= len(names):
            self._position = 0
        part = max(READ_EACH_ROUND, len(names) // ROUNDS_FOR_ALL)
        turn = names[self._position : self._position + part]
        self._position += part
        new = [name for name in names if is_new(name, found[name], seen)][:NEW_EACH_ROUND]
        chosen = [*visible, *turn, *new]
        # Two names with the same companion keys: only together it can be told which one exists.
        chosen += map(_double, chosen.copy())
        return {name: found[name] for name in chosen if name in found}


def is_new(name: bytes, evidence: Evidence, seen: Container[bytes]) -> bool:
    """Whether nothing is known of it. Of two names with the same companion keys only one is ever seen."""
    return name not in seen and (evidence is Evidence.HASH or _double(name) not in seen)


def _double(name: bytes) -> bytes:
    """The other name that has the same companion keys: `{orders}` for `orders`, and the other way round."""
    return name[1:-1] if name.startswith(b"{") and name.endswith(b"}") else b"{%b}" % name
