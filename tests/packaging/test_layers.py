"""Imports go down one list of layers, and no two modules import each other, directly or through others."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tools.syntax import parse

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "pyredisson"

LAYERS = [
    {"_core", "lua", "version"},
    {"_diagnostics", "owners", "identity"},
    {"holder", "events"},
    {"errors"},
    {"_settings"},
    {"_protocol", "backoff"},
    {"logic"},
    {"inspection"},
    {"_backends"},
    {"_client"},
    {"_api"},
    {"asyncio", "fencing", "observe"},
    {"testing"},
    {"dashboard"},
    {"_frameworks", "_pytest"},
    {"celery", "cli", "django", "fastapi"},
    {"__main__"},
]
"""The lowest first. `docs/architecture.md` says what each is for."""
LAYER_OF = {name: height for height, names in enumerate(LAYERS) for name in names}

EXTRAS = {
    "celery": {"celery"},
    "click": {"cli"},
    "django": {"django"},
    "fastapi": {"fastapi"},
    "opentelemetry": {"observe"},
    "prometheus_client": {"observe"},
    "pytest": {"_pytest"},
    "rich": {"cli"},
    "starlette": {"dashboard"},
    "uvicorn": {"dashboard"},
}
"""What extras bring, and the packages that may import it."""
WITHOUT_EXTRAS = {
    "pyredisson.__main__",
    "pyredisson._diagnostics",
    "pyredisson.cli",
    "pyredisson.cli.entry",
    "pyredisson.cli.exit_codes",
    "pyredisson.observe",
}
"""What is imported before it is known whether the extra is there."""

MODULES = sorted(PACKAGE.rglob("*.py"))


def dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {dotted(path) for path in MODULES}


@cache
def tree(path: Path) -> ast.Module:
    return parse(path.read_text(encoding="utf-8"))


def imported(nodes: Iterable[ast.AST]) -> set[str]:
    """The whole names of the modules that these statements import."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports here name the whole path"
            whole = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= whole if whole <= NAMES else {node.module or ""} | whole & NAMES
    return found


def ours(path: Path) -> set[str]:
    """The modules of the package that a module imports, wherever in its text it does."""
    return {name for name in imported(ast.walk(tree(path))) if name.partition(".")[0] == "pyredisson"}


def layer_of(module: str) -> str:
    return module.split(".")[1]


@pytest.mark.parametrize("path", [path for path in MODULES if path != PACKAGE / "__init__.py"], ids=dotted)
def test_imports_go_down(path: Path) -> None:
    here = layer_of(dotted(path))
    assert here in LAYER_OF, f"{here} is in no layer: put it into one in this test and in docs/architecture.md"
    for module in ours(path):
        assert module != "pyredisson", "pyredisson itself is above everything"
        there = layer_of(module)
        assert there in LAYER_OF, f"{there} is in no layer"
        if there != here:
            message = f"{dotted(path)} imports {module}, which is above it or beside it"
            assert LAYER_OF[there] < LAYER_OF[here], message


@pytest.mark.parametrize("path", MODULES, ids=dotted)
def test_extras_are_imported_only_where_they_are_needed(path: Path) -> None:
    name = dotted(path)
    for package in {each.partition(".")[0] for each in imported(ast.walk(tree(path)))} & EXTRAS.keys():
        assert layer_of(f"{name}.") in EXTRAS[package], f"{name} imports {package}"
    if name in WITHOUT_EXTRAS:
        for module in imported(tree(path).body):
            package = module.partition(".")[0]
            assert package not in EXTRAS, f"{name} needs an extra"
            assert package != "pyredisson" or module in WITHOUT_EXTRAS, f"{name} imports {module}, which may need one"


@pytest.mark.parametrize(
    ("folder", "never"),
    [
        # What both of them need is in `_backends` itself.
        ("_backends/threads", "pyredisson._backends.aio"),
        ("_backends/aio", "pyredisson._backends.threads"),
        # The protocol does no input and no output.
        *(("_protocol", module) for module in ("socket", "select", "asyncio", "threading")),
    ],
)
def test_what_a_folder_never_imports(folder: str, never: str) -> None:
    for path in (PACKAGE / folder).glob("*.py"):
        wrong = [name for name in imported(ast.walk(tree(path))) if f"{name}.".startswith(f"{never}.")]
        assert not wrong, f"{dotted(path)} imports {wrong}"


def test_no_modules_import_each_other() -> None:
    graph = {dotted(path): ours(path) - {dotted(path)} for path in MODULES}
    # Raises CycleError, which names the modules.
    assert set(TopologicalSorter(graph).static_order()) >= NAMES


def test_every_layer_exists() -> None:
    parts = {path.relative_to(PACKAGE).with_suffix("").parts[0] for path in MODULES} - {"__init__"}
    assert set(LAYER_OF) == parts | {"_core", "lua"}
