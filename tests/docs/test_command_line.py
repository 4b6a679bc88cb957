"""The fields of JSON that docs/command-line.md lists are those that the commands print."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from pyredisson.cli.findings import Finding, Level
from pyredisson.cli.words import as_json
from pyredisson.holder import Holder
from pyredisson.inspection.model import Companion, Owner, State, Waiter

PAGE = Path(__file__).parents[2] / "docs" / "command-line.md"
FULL = State(
    key=b"a",
    name="a",
    kind="lock",
    certain=True,
    why="",
    held=True,
    owners=(Owner("c:1", Holder()),),
    waiters=(Waiter(Owner("c:2", Holder()), 1, alive=True, place_lasts=None),),
    companions=(Companion(b"b", "string", 1.0, ""),),
)


def paths_of(value: dict[str, Any], path: str = "") -> set[str]:
    """The paths of all fields, as jq names them, but for those of an owner that stands elsewhere."""
    found = set()
    for name, each in value.items():
        here = f"{path}{name}"
        inner = each[0] if isinstance(each, list) else each
        if isinstance(inner, dict) and name != "owner":
            # An object by itself has no row: its fields say all.
            found |= {here} if isinstance(each, list) else set()
            found |= paths_of(inner, f"{here}[]." if isinstance(each, list) else f"{here}.")
        else:
            found.add(here)
    return found


def documented(section: str) -> list[set[str]]:
    """For each table what stands in its first column."""
    text = PAGE.read_text("utf-8").partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    tables = text.split("|---|---|\n")[1:]
    rows = [re.findall(r"^\| ([^|]*) \|", table, re.MULTILINE) for table in tables]
    return [{name for row in table for name in re.findall(r"`([^`]+)`", row)} for table in rows]


def test_each_field_of_json_has_a_row() -> None:
    of_objects, of_findings = documented("As JSON")
    assert of_objects == paths_of(json.loads(as_json(FULL)))
    assert of_findings == set(json.loads(as_json(Finding("a", Level.OK, "b"))))
