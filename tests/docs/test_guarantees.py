"""The tests that docs/guarantees.md names exist, and each of its rows names one."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tools.syntax import parse

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guarantees.md"
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
HEAD = "| fault | may happen | never happens | test |"


def rows() -> list[str]:
    lines = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("|")]
    return [line for line in lines if line != HEAD and not line.startswith("|---")]


@pytest.mark.parametrize("row", rows(), ids=lambda row: str(row[2:42]))
def test_each_row_names_tests_that_exist(row: str) -> None:
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


def test_the_tables_have_rows() -> None:
    assert len(rows()) > 15
