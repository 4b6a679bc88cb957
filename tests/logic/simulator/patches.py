"""Scripts with a bug in them, for a server that is to run these in place of its own."""

from __future__ import annotations

from pyredisson._protocol.scripts import script

ONCE = b"if last_number and last_number >= tonumber(ARGV[1]) then"
"""The line of `exactly_once.lua` by which a copy of a call is recognized."""


def changed(names: str, old: bytes, new: bytes) -> dict[str, bytes]:
    """Scripts with something else in one place, which each of them must have."""
    texts = {name: script(name, with_shebang=False).text for name in names.split()}
    assert all(text.count(old) == 1 for text in texts.values())
    return {name: text.replace(old, new) for name, text in texts.items()}
