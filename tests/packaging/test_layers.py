"""Imports go down one list of layers, and no two modules import each other, directly or through others."""

from __future__ import annotations

import ast
from collections.abc import Iterable
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


def imported(path: Path) -> set[str]:
    """The modules of the package that a module imports, wherever in its text it does."""
    found: set[str] = set()
    for node in ast.walk(parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: line {node.lineno}: imports here name the whole path"
            assert node.module is not None
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole in NAMES else node.module)
    return {name for name in found if name.partition(".")[0] == "pyredisson"}


def imported_at_once(tree: ast.Module) -> set[str]:
    """The modules of the package that are imported with a module, not in its functions."""
    froms = {node.module or "" for node in tree.body if isinstance(node, ast.ImportFrom)}
    return {name for name in froms if name.partition(".")[0] == "pyredisson"}


def layer_of(module: str) -> str:
    return module.split(".")[1]


@pytest.mark.parametrize("path", [path for path in MODULES if path != PACKAGE / "__init__.py"], ids=dotted)
def test_imports_go_down(path: Path) -> None:
    here = layer_of(dotted(path))
    assert here in LAYER_OF, f"{here} is in no layer: put it into one in this test and in docs/architecture.md"
    for module in imported(path):
        assert module != "pyredisson", "pyredisson itself is above everything"
        there = layer_of(module)
        assert there in LAYER_OF, f"{there} is in no layer"
        if there != here:
            message = f"{dotted(path)} imports {module}, which is above it or beside it"
            assert LAYER_OF[there] < LAYER_OF[here], message


def other_packages(nodes: Iterable[ast.AST]) -> set[str]:
    """The packages from elsewhere that these statements import."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found


@pytest.mark.parametrize("path", MODULES, ids=dotted)
def test_extras_are_imported_only_where_they_are_needed(path: Path) -> None:
    name = dotted(path)
    tree = parse(path.read_text(encoding="utf-8"))
    for package in other_packages(ast.walk(tree)) & EXTRAS.keys():
        assert layer_of(f"{name}.") in EXTRAS[package], f"{name} imports {package}"
    if name in WITHOUT_EXTRAS:
        assert not other_packages(tree.body) & EXTRAS.keys(), f"{name} needs an extra"
        for module in imported_at_once(tree):
            assert module in WITHOUT_EXTRAS, f"{name} imports {module}, which may need an extra"


@pytest.mark.parametrize(("backend", "other"), [("threads", "aio"), ("aio", "threads")])
def test_the_backends_do_not_import_each_other(backend: str, other: str) -> None:
    """What both of them need is in `_backends` itself."""
    for path in (PACKAGE / "_backends" / backend).glob("*.py"):
        wrong = [name for name in imported(path) if name.startswith(f"pyredisson._backends.{other}")]
        assert not wrong, f"{dotted(path)} imports {wrong}"


def test_the_protocol_does_no_io() -> None:
    for path in (PACKAGE / "_protocol").glob("*.py"):
        modules = {
            alias.name if isinstance(node, ast.Import) else node.module or ""
            for node in ast.walk(parse(path.read_text(encoding="utf-8")))
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for alias in node.names
        }
        assert not modules & {"socket", "select", "asyncio", "threading"}, f"{dotted(path)} imports {modules}"


def test_no_modules_import_each_other() -> None:
    graph = {dotted(path): imported(path) - {dotted(path)} for path in MODULES}
    # Raises CycleError, which names the modules.
    assert set(TopologicalSorter(graph).static_order()) >= NAMES


def test_every_layer_exists() -> None:
    parts = {path.relative_to(PACKAGE).with_suffix("").parts[0] for path in MODULES} - {"__init__"}
    assert set(LAYER_OF) == parts | {"_core", "lua"}
