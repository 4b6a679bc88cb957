"""What tables of pages list is what there is: logs, keys, fields of JSON, and the tests of the guarantees."""

from __future__ import annotations

import ast
import json
import re
import uuid
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from pyredisson.cli.findings import Finding, Level
from pyredisson.cli.tables import as_json
from pyredisson.holder import Holder
from pyredisson.inspection.model import Companion, Owner, State, Waiter
from pyredisson.inspection.raw import client_of, objects_of
from tools.syntax import parse

ROOT = Path(__file__).parents[2]
OPERATIONS = (ROOT / "docs" / "operations.md").read_text("utf-8")
COMMAND_LINE = (ROOT / "docs" / "command-line.md").read_text("utf-8")
GUARANTEES = (ROOT / "docs" / "guarantees.md").read_text("utf-8")
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
HEAD = "| fault | may happen | never happens | test |"
LEVELS = {"warning": "warning", "exception": "error"}


def _logged() -> dict[str, str]:
    """Every text that the sources give to the logger, with dots in place of its arguments, and its level."""
    found: dict[str, str] = {}
    for path in (ROOT / "pyredisson").rglob("*.py"):
        for function in ast.walk(parse(path.read_text("utf-8"))):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            texts = [each.value for each in ast.walk(function) if isinstance(each, ast.Constant)]
            for call in ast.walk(function):
                match call:
                    case ast.Call(func=ast.Attribute(value=ast.Name("logger"), attr=level)) if level in LEVELS:
                        for text in texts:
                            if isinstance(text, str):
                                found[re.sub(r"%[.\d]*[a-z]", "...", text)] = LEVELS[level]
                    case ast.Call(func=ast.Name("log_exception"), args=[text]):
                        # An f-string, whose values are the dots.
                        parts = text.values if isinstance(text, ast.JoinedStr) else [text]
                        found[
                            "".join(str(each.value) if isinstance(each, ast.Constant) else "..." for each in parts)
                        ] = "error"
    return found


def test_each_log_in_the_table_exists() -> None:
    logged = _logged()
    table = OPERATIONS.partition("| log | level |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `([^`]+)` \| (\w+) \|", table, re.MULTILINE)
    assert len(rows) >= 8
    for text, level in rows:
        assert logged.get(text) == level, text
    for text in re.findall(r"`(the [^`]+)`", table):
        assert text in logged, text


def _prefixes() -> set[str]:
    """The beginnings of the names of keys that only this library has, as its sources write them."""
    found: set[str] = set()
    for path in [*(ROOT / "pyredisson" / "logic").rglob("*.py"), ROOT / "pyredisson" / "fencing.py"]:
        for each in ast.walk(parse(path.read_text("utf-8"))):
            if isinstance(each, ast.Constant) and isinstance(each.value, bytes):
                found.update(re.findall(r"\Apyredisson_\w+", each.value.decode("latin-1")))
    for path in (ROOT / "lua").glob("*.lua"):
        code = re.sub(r"--.*", "", path.read_text("utf-8"))
        found.update(re.findall(r"""['"](pyredisson_[a-z_]+[a-z])""", code))
    return found


SAMPLES = {
    "ID": str(uuid.UUID(int=1)),
    "KIND": "latch",
    "NAME": "orders",
    "NUMBER": "1",
    "PERMIT": uuid.UUID(int=1).hex,
}
NO_OBJECT = {"pyredisson_fencing"}
"""Keys beside data of the user, which the inspection doesn't look for."""
CHANNELS = {"pyredisson_sc", "pyredisson_wake"}
"""The beginnings of the names of channels that only this library has."""


def test_the_lists_of_keys_are_complete() -> None:
    """In the table, in the rights, and known to the inspection, and so to `ls`, `doctor` and the dashboard."""
    table = OPERATIONS.partition("| key | what is in it |")[2].partition("\n\n")[0]
    keys = {key.partition(":")[0]: key for key in re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)}
    prefixes = _prefixes()
    assert prefixes >= CHANNELS
    assert set(keys) == prefixes - CHANNELS
    assert set(re.findall(r"&(pyredisson_\w+):\*", OPERATIONS)) == CHANNELS
    rights = [pattern.partition(":")[0] for pattern in re.findall(r"~(pyredisson_\S+?)(?=[ `])", OPERATIONS)]
    for prefix, key in keys.items():
        if prefix in NO_OBJECT:
            continue
        assert any(fnmatchcase(prefix, pattern) for pattern in rights), prefix
        name = key
        for word, value in SAMPLES.items():
            name = name.replace(word, value)
        assert client_of(name.encode()) or b"orders" in objects_of(name.encode())[0], name


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
    text = COMMAND_LINE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    tables = text.split("|---|---|\n")[1:]
    rows = [re.findall(r"^\| ([^|]*) \|", table, re.MULTILINE) for table in tables]
    return [{name for row in table for name in re.findall(r"`([^`]+)`", row)} for table in rows]


def test_each_field_of_json_has_a_row() -> None:
    of_objects, of_findings = documented("As JSON")
    assert of_objects == paths_of(json.loads(as_json(FULL)))
    assert of_findings == set(json.loads(as_json(Finding("a", Level.OK, "b"))))


def guarantees() -> list[str]:
    lines = [line for line in GUARANTEES.splitlines() if line.startswith("|")]
    return [line for line in lines if line != HEAD and not line.startswith("|---")]


@pytest.mark.parametrize("row", guarantees(), ids=lambda row: str(row[2:42]))
def test_each_guarantee_names_tests_that_exist(row: str) -> None:
    cells = row.strip("|").split("|")
    assert len(cells) == 4, row
    named = TEST.findall(cells[3])
    assert named, "no test"
    assert not TEST.sub("", cells[3]).strip(" ,"), "something that names no test"
    for path, name in named:
        tree = parse((ROOT / path).read_text("utf-8"))
        found = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name
        ]
        assert len(found) == 1, f"{path} has {len(found)} tests {name}"
        marks = {ast.unparse(mark) for mark in found[0].decorator_list}
        assert not any("skip" in mark or "xfail" in mark for mark in marks), name
