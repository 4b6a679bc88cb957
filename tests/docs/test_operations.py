"""What docs/operations.md says to alarm on is what the sources log."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tools.syntax import parse

ROOT = Path(__file__).parents[2]
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
    page = (ROOT / "docs" / "operations.md").read_text("utf-8")
    table = page.partition("| log | level |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `([^`]+)` \| (\w+) \|", table, re.MULTILINE)
    assert len(rows) >= 8
    for text, level in rows:
        assert logged.get(text) == level, text
    for text in re.findall(r"`(the [^`]+)`", table):
        assert text in logged, text
