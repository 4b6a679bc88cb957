"""The code speaks in the field's terms: words of a private dialect must not come back.

A term that isn't general knowledge stands in the glossary of `docs/architecture.md`.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    path
    for folder in ("pyredisson", "_core", "lua")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in {".py", ".pyi", ".pyx", ".lua"}
)

INSTEAD = {
    "gate": "turn",
    "overlap": "owner calls",
    "settle": "release in background",
    "settled": "background release",
    "lane": "session slot",
    "lanes": "session slots",
    "party": "group owner",
    "buried": "lost below",
    "visited": "needs renewal",
    "proven": "valid, confirmed",
    "stranger": "not held",
    "chair": "reader",
    "relief": "wakeup of the listener",
    "farewell": "final release",
    "face": "API",
    "faces": "APIs",
    "world": "backend",
    "worlds": "backends",
    "hub": "channel registry",
    "hurried": "with timeout",
    "who waits": "the waiter",
    "is had": "is acquired",
    "gives back": "releases",
    "give back": "release",
    "given back": "released",
    "giving back": "releasing",
    "giving it back": "releasing it",
}
"""Words that readers stumbled over, and the field's own terms for what they meant."""


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_code_uses_standard_terms(path: Path) -> None:
    # Identifiers count by their parts: `_settle_all` has the word `settle`.
    text = re.sub(r"_+", " ", path.read_text(encoding="utf-8").lower())
    found = [f"{word!r}: say {INSTEAD[word]!r}" for word in INSTEAD if re.search(rf"\b{word}\b", text)]
    assert not found, "\n".join(found)
