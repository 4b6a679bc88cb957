"""The sources: imports go down one list of layers, extras are imported when needed, words are standard terms."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import pyredisson.observe
from pyredisson._diagnostics import installation_of
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
    {"_pytest"},
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


def at_run_time(node: ast.AST) -> Iterator[ast.AST]:
    """The node and everything in it, without what is for type checkers only."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from at_run_time(child)


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
    graph = {dotted(path): imported(at_run_time(tree(path))) & NAMES - {dotted(path)} for path in MODULES}
    # Raises CycleError, which names the modules.
    assert set(TopologicalSorter(graph).static_order()) >= NAMES


def test_every_layer_exists() -> None:
    parts = {path.relative_to(PACKAGE).with_suffix("").parts[0] for path in MODULES} - {"__init__"}
    assert set(LAYER_OF) == parts | {"_core", "lua"}


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
"""Words that readers stumbled over, and the field's own terms for what they meant.

A term that isn't general knowledge stands in the glossary of `docs/architecture.md`."""


@pytest.mark.parametrize("path", [*SOURCES, *PAGES], ids=lambda path: path.relative_to(ROOT).as_posix())
def test_words_and_sentences(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    # A comment or a paragraph as one line.
    line = re.sub(r"\s*\n\s*(?:#|--)?\s*", " ", text)
    found = [line[max(0, match.start() - 40) : match.end() + 40] for match in PRONOUN.finditer(line)]
    if path in SOURCES:
        # Identifiers count by their parts: `_settle_all` has the word `settle`.
        text = re.sub(r"_+", " ", text.lower())
        found += [f"{word!r}: say {INSTEAD[word]!r}" for word in INSTEAD if re.search(rf"\b{word}\b", text)]
    assert not found, "\n".join(found)


def test_a_folder_without_the_compiled_core(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "pyredisson", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    tried = subprocess.run(
        # Without site-packages: in an editable installation the core would be found there.
        [sys.executable, "-E", "-S", "-c", "import pyredisson"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert tried.returncode == 1
    last = tried.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: pyredisson is imported from")
    assert str(tmp_path) in last
    for way_out in ("make venv", "pip install -e .", "another directory"):
        assert way_out in last
    assert "No module named 'pyredisson._core'" in tried.stderr


PROGRAM = """
import importlib, sys
for name in ("prometheus_client", "opentelemetry", "celery", "django", "fastapi"):
    sys.modules[name] = None
import pyredisson.asyncio, pyredisson.observe
for path in sys.argv[1:]:
    module, _, name = path.partition(":")
    try:
        getattr(importlib.import_module(module), name)
    except ImportError as error:
        print(error)
"""
NEEDS = {
    "pyredisson.observe:PrometheusObserver": ("PrometheusObserver", "prometheus_client", "prometheus"),
    "pyredisson.observe:OpenTelemetryObserver": ("OpenTelemetryObserver", "opentelemetry", "opentelemetry"),
    **{f"pyredisson.{name}": (f"pyredisson.{name}", name, name) for name in ("celery", "django", "fastapi")},
}
"""What needs a library: its name, the library, and the extra that brings it."""


def test_libraries_that_are_missing() -> None:
    """They are not needed until something is imported that uses them."""
    program = [sys.executable, "-c", PROGRAM, *NEEDS]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for line, (name, library, extra) in zip(done.stdout.splitlines(), NEEDS.values(), strict=True):
        assert line.startswith(f"{name} needs {library}")
        assert line.endswith(f": {installation_of(extra)}")


def test_another_name() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'StatsdObserver'"):
        pyredisson.observe.StatsdObserver  # noqa: B018
