"""Imports go down one staircase: no module knows of one above it, or beside it unless it is named here."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "pyredisson"

FLOORS = [
    {"_core", "lua", "version"},
    {"errors", "fresh_error", "gevent_check", "holder", "misuse", "scripts", "durations", "backoff", "owners"}
    | {"addresses", "redisson_yaml", "config"},
    {"runtime", "signals", "thread_start"},
    {"logic"},
    {"wire"},
    {"threads", "aio", "callbacks", "farewell"},
    {"faces", "blocks", "engine", "groups"},
    {
        "at_signals",
        "client",
        "lock",
        "asyncio",
        "fair_lock",
        "fenced_lock",
        "fencing",
        "multi_lock",
        "non_reentrant_lock",
        "read_write_lock",
        "spin_lock",
    }
    | {"count_down_latch", "permit_expirable_semaphore", "semaphore"},
    {"cli", "testing", "metrics"},
]
FLOOR_OF = {name: height for height, names in enumerate(FLOORS) for name in names}

# Who may look sideways, and at whom.
BESIDE = {
    ("addresses", "errors"),
    ("redisson_yaml", "errors"),
    ("redisson_yaml", "addresses"),
    ("config", "errors"),
    ("errors", "holder"),
    ("holder", "owners"),
    ("gevent_check", "errors"),
    ("config", "durations"),
    ("config", "addresses"),
    ("config", "redisson_yaml"),
    ("scripts", "errors"),
    ("aio", "threads"),  # the watchdog of the asyncio world turns in a thread
    ("blocks", "faces"),
    ("engine", "faces"),
    ("farewell", "threads"),  # the clock
    ("asyncio", "client"),
    ("client", "count_down_latch"),
    ("client", "fair_lock"),
    ("client", "fenced_lock"),
    ("client", "lock"),
    ("client", "multi_lock"),
    ("client", "non_reentrant_lock"),
    ("client", "permit_expirable_semaphore"),
    ("client", "read_write_lock"),
    ("client", "semaphore"),
    ("client", "spin_lock"),
    ("fair_lock", "lock"),
    ("fenced_lock", "lock"),
    ("multi_lock", "lock"),
    ("non_reentrant_lock", "lock"),
    ("read_write_lock", "lock"),
    ("spin_lock", "lock"),
    ("backoff", "durations"),
}

MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).as_posix() != "__init__.py")


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imported(path: Path) -> set[str]:
    """The parts of the package that a module imports, wherever in its text it does."""
    parts: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: line {node.lineno}: imports here name the whole path"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            root, *rest = name.split(".")
            if root == "pyredisson":
                parts.add(rest[0] if rest else "")
    return parts


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_imports_go_down(path: Path) -> None:
    here = part_of(path)
    assert here in FLOOR_OF, f"{here} has no floor: give it one in this test and in docs/architecture.md"
    for part in imported(path):
        assert part in FLOOR_OF, f"pyredisson.{part or '__init__'} is above everything"
        if part != here and (here, part) not in BESIDE:
            assert FLOOR_OF[part] < FLOOR_OF[here], f"{here} (floor {FLOOR_OF[here]}) imports {part} ({FLOOR_OF[part]})"


def test_the_staircase_is_the_package() -> None:
    # The test above would pass with nothing to read.
    assert {"config", "logic", "wire", "client", "asyncio"} <= {part_of(path) for path in MODULES}
