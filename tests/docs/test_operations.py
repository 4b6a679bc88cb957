"""What docs/operations.md says to alarm on is what the sources log, and its keys are those that the sources use."""

from __future__ import annotations

import ast
import re
import uuid
from fnmatch import fnmatchcase
from pathlib import Path

from pyredisson.inspection.names import client_of, objects_of
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


def test_the_lists_of_keys_are_complete() -> None:
    """In the table, in the rights, and known to the inspection, and so to `ls`, `doctor` and the dashboard."""
    page = (ROOT / "docs" / "operations.md").read_text("utf-8")
    table = page.partition("| key | what is in it |")[2].partition("\n\n")[0]
    keys = {key.partition(":")[0]: key for key in re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)}
    assert set(keys) == _prefixes()
    rights = [pattern.partition(":")[0] for pattern in re.findall(r"~(pyredisson_\S+?)(?=[ `])", page)]
    for prefix, key in keys.items():
        if prefix in NO_OBJECT:
            continue
        assert any(fnmatchcase(prefix, pattern) for pattern in rights), prefix
        name = key
        for word, value in SAMPLES.items():
            name = name.replace(word, value)
        assert client_of(name.encode()) or b"orders" in objects_of(name.encode())[0], name
