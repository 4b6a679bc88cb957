"""Code and pages speak in the field's terms, and say the noun: words of a private dialect must not come back.

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

PAGES = [*(ROOT / "docs").rglob("*.md"), *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md"))]
PRONOUN = re.compile(r"\bthat of\b|\bthose (?:of|that|which)\b", re.IGNORECASE)
"""In place of a noun, which the reader has to find in the sentence before."""

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


@pytest.mark.parametrize("path", [*SOURCES, *PAGES], ids=lambda path: path.relative_to(ROOT).as_posix())
def test_sentences_say_the_noun(path: Path) -> None:
    # A comment or a paragraph as one line.
    text = re.sub(r"\s*\n\s*(?:#|--)?\s*", " ", path.read_text(encoding="utf-8"))
    found = [text[max(0, match.start() - 40) : match.end() + 40] for match in PRONOUN.finditer(text)]
    assert not found, "\n".join(found)
