"""The sources: layers of imports, extras, terms, the API for threads, which is generated; the workflows for GitHub."""

import ast
import importlib
import inspect
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import pytest
import yaml

import pyredisson
import pyredisson.asyncio
import pyredisson.observe
from pyredisson._diagnostics import installation_of
from tests.support.children import completed
from tools import async_to_sync as tool
from tools.syntax import parse

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "pyredisson"

EXTRAS = {name: name for name in ("celery", "django", "fastapi")} | {"click": "cli", "rich": "cli", "pytest": "_pytest"}
EXTRAS |= dict.fromkeys(("opentelemetry", "prometheus_client"), "observe")
EXTRAS |= dict.fromkeys(("starlette", "uvicorn"), "dashboard")
"""What extras bring, and the package that may import it."""
WITHOUT_EXTRAS = {f"pyredisson.{name}" for name in ("__main__", "_diagnostics", "cli", "cli.entry", "observe")}
"""What is imported before it is known whether the extra is there."""

MODULES = sorted(PACKAGE.rglob("*.py"))
PARTS = {path.relative_to(PACKAGE).with_suffix("").parts[0] for path in MODULES} - {"__init__"} | {"_core", "lua"}


def layers() -> dict[str, int]:
    """The height of each part of the package, by the table of the layers. A module inside of a part comes later."""
    found: dict[str, int] = {}
    table = (ROOT / "docs" / "architecture.md").read_text("utf-8").partition("| layer | module |")[2]
    for number, names in re.findall(r"^\| ?(\d*) \| ([^|]+) \|", table.partition("\n\n")[0], re.MULTILINE):
        height = int(number or max(found.values()))
        for name in re.findall(r"`(\w+)/?`", names):
            found.setdefault(name, height)
    return {name: height for name, height in found.items() if name in PARTS}


LAYER_OF = layers()


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


def at_run_time(node: ast.AST) -> Iterator[ast.AST]:
    """The node and everything in it, without what is for type checkers only."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from at_run_time(child)


@pytest.mark.parametrize("path", [path for path in MODULES if path != PACKAGE / "__init__.py"], ids=dotted)
def test_imports_go_down(path: Path) -> None:
    here = dotted(path).split(".")[1]
    assert here in LAYER_OF, f"{here} is in no layer: put it into one in docs/architecture.md"
    for module in {name for name in imported(ast.walk(tree(path))) if name.partition(".")[0] == "pyredisson"}:
        assert module != "pyredisson", "pyredisson itself is above everything"
        there = module.split(".")[1]
        if there != here:
            assert LAYER_OF[there] < LAYER_OF[here], f"{dotted(path)} imports {module}, which is above it or beside it"


@pytest.mark.parametrize("path", MODULES, ids=dotted)
def test_extras_are_imported_only_where_they_are_needed(path: Path) -> None:
    name = dotted(path)
    for package in {each.partition(".")[0] for each in imported(ast.walk(tree(path)))} & EXTRAS.keys():
        assert f"{name}.".split(".")[1] == EXTRAS[package], f"{name} imports {package}"
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


FILES = [path for folder in ("pyredisson", "_core", "lua") for path in (ROOT / folder).rglob("*")]
SOURCES = sorted(path for path in FILES if path.suffix in {".py", ".pyi", ".pyx", ".lua"})

PAGES = [*(ROOT / "docs").rglob("*.md"), *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md"))]
PRONOUN = re.compile(r"\bthat of\b|\bthose (?:of|that|which)\b", re.IGNORECASE)
"""In place of a noun, which the reader has to find in the sentence before."""

INSTEAD = dict(
    pair.split(": ")
    for pair in """gate: turn; overlap: owner calls; settled?: release in background; lanes?: session slot
party: group owner; buried: lost below; visited: needs renewal; proven: valid, confirmed; stranger: not held
chair: reader; relief: wakeup of the listener; farewell: final release; faces?: API; worlds?: backend
hub: channel registry; hurried: with timeout; who waits: the waiter; is had: is acquired
gives? back|given back|giving (it )?back: release""".replace("\n", "; ").split("; ")
)
"""Words that readers stumbled over, as patterns, and the field's own terms for what they meant.

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
        found += [f"{word!r}: say {INSTEAD[word]!r}" for word in INSTEAD if re.search(rf"\b({word})\b", text)]
    assert not found, "\n".join(found)


def test_a_folder_without_the_compiled_core(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "pyredisson", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    # Without site-packages: in an editable installation the core would be found there.
    tried = completed(sys.executable, "-E", "-S", "-c", "import pyredisson", cwd=tmp_path)
    last = tried.stderr.strip().splitlines()[-1]
    assert (tried.returncode, last.startswith("ImportError: pyredisson is imported from")) == (1, True)
    assert all(each in last for each in (str(tmp_path), "make venv", "pip install -e .", "another directory"))
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
    done = completed(sys.executable, "-c", PROGRAM, *NEEDS)
    assert done.returncode == 0, done.stderr
    for line, (name, library, extra) in zip(done.stdout.splitlines(), NEEDS.values(), strict=True):
        assert line.startswith(f"{name} needs {library}")
        assert line.endswith(f": {installation_of(extra)}")
    with pytest.raises(AttributeError, match="has no attribute 'StatsdObserver'"):
        pyredisson.observe.StatsdObserver  # noqa: B018


SOURCE, TWIN = "pyredisson/_api/aio/locks.py", "pyredisson/_api/sync/locks.py"


def run_tool(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return completed(sys.executable, "tools/async_to_sync.py", *arguments, cwd=root)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), "utf-8")


class TestStaleTwins:
    @pytest.fixture
    def copy(self, tmp_path: Path) -> Path:
        """A copy of all that the tool reads."""
        for name in ("tools", "pyredisson/_api"):
            shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        # By these two ruff knows the line length, and which imports are the project's own.
        for name in ("pyproject.toml", "pyredisson/__init__.py"):
            shutil.copy(ROOT / name, tmp_path / name)
        return tmp_path

    def test_what_is_stale_missing_or_left_over_is_found_and_writing_makes_it_right(self, copy: Path) -> None:
        said = f"{TWIN} isn't what {SOURCE} makes it\nedit the source in pyredisson/_api/aio, then run: make twins\n"
        for edited in (SOURCE, TWIN):
            text = (copy / edited).read_text("utf-8")
            edit(copy / edited, "deadline)", "None)")
            checked = run_tool(copy, "--check")
            assert (checked.returncode, checked.stderr) == (1, said)
            (copy / edited).write_text(text, "utf-8")
        (copy / TWIN).unlink()
        (copy / "pyredisson/_api/sync/leftover.py").touch()
        (copy / "pyredisson/_api/aio/blocks.py").unlink()
        edit(copy / SOURCE, "The owner stays the same", "The owner remains the same")
        checked = run_tool(copy, "--check")
        assert checked.returncode == 1
        assert f"{TWIN} is missing" in checked.stderr
        assert "pyredisson/_api/sync/leftover.py has no source" in checked.stderr
        assert "pyredisson/_api/aio/blocks.py is missing" in checked.stderr
        assert "ASYNCIO_ONLY names a line that is in no source: The owner" in checked.stderr
        edit(copy / SOURCE, "The owner remains the same", "The owner stays the same")
        run_tool(copy)
        assert (copy / TWIN).read_text("utf-8") == (ROOT / TWIN).read_text("utf-8")

    @pytest.mark.parametrize(
        ("method", "line", "message"),
        [
            ("def f(self) -> Awaitable[int]:\n    return self._logic.count()", 1, "Awaitable is translated only"),
            ("def f(self) -> Any:\n    return self._logic.count()", 2, "self._logic.count is neither awaited"),
            ("async def f(self) -> int:\n    c = self._logic.count()\n    return await c", 3, "can be awaited: c"),
            ("def f(self) -> None:\n    c = self._logic.count", 2, "self._logic.count is neither awaited"),
            ("def f(self) -> None:\n    inner = self._logic", 2, "self._logic has a name here"),
            ("def f(self) -> None:\n    inner, x = self._logic, 1", 2, "self._logic has a name here"),
            ("async def f(self) -> None:\n    await asyncio.sleep(1)", 2, "can be awaited: asyncio.sleep(1)"),
            ("async def f(self) -> None:\n    await self._logic.count(a=1)", 2, "positional arguments only"),
            ("def f(self) -> Coroutine[Any, Any, int]:\n    return self.c", 2, "must return the call"),
            ("async def f(self) -> None:\n    async with self:\n        pass", 2, "for the result of a method hold"),
            ("async def f(self) -> None:\n    async for _ in self:\n        pass", 2, "async for is not translated"),
            ("async def f(self) -> None:\n    [x async for x in self]", 2, "async for is not translated"),
            ("async def f(self, g: Callable[[], int]) -> None:\n    await g()", 2, "can be awaited: g()"),
            ("def f(self, g: Callable[[], Awaitable[int]]) -> None: ...", 1, "Awaitable is translated only"),
            ("def f(self, g: Callable[[Coroutine[Any, Any, int]], int]) -> None: ...", 1, "Coroutine is translated"),
            ("async def f(self) -> None:\n    x = = 1", 2, "invalid syntax"),
        ],
    )
    def test_what_has_no_correct_twin_is_refused(self, method: str, line: int, message: str) -> None:
        text = (ROOT / SOURCE).read_text("utf-8")
        added = "".join(f"    {each}\n" for each in method.splitlines())
        with pytest.raises(tool.SourceError) as refused:
            tool.Twin(SOURCE, f"{text}class Added:\n{added}").result()
        where, _, said = str(refused.value).partition(": ")
        assert (where, message in said) == (f"{SOURCE}:{len(text.splitlines()) + 1 + line}", True)

    def test_an_error_in_one_source_leaves_all_twins_as_they_are(self, copy: Path) -> None:
        # The first source comes before the wrong one, whose twin would have two arguments of the same name.
        for name, added in (("client", "ADDED = 1"), ("locks", "def f(task: int, thread: int) -> None: ...")):
            with (copy / f"pyredisson/_api/aio/{name}.py").open("a", encoding="utf-8") as source:
                source.write(f"\n\n{added}\n")
        twins = {twin: twin.read_bytes() for twin in (copy / "pyredisson/_api/sync").iterdir()}
        done = run_tool(copy)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
        assert done.stderr.startswith(f"{SOURCE}: the twin is not valid Python: duplicate argument")
        assert "def f(thread: int, thread: int)" in done.stderr
        assert {twin: twin.read_bytes() for twin in (copy / "pyredisson/_api/sync").iterdir()} == twins


RETURNED = {"Lost": "locks", "Holding": "blocks", "Permit": "semaphores"}
"""Classes that users don't name, and their modules: methods return them."""


def with_members(name: str) -> Iterator[tuple[str, Any, Any]]:
    """A class or a function for asyncio and for threads, and the public members of the class."""
    modules = ["pyredisson.asyncio", "pyredisson"]
    if name in RETURNED:
        modules = [f"pyredisson._api.{side}.{RETURNED[name]}" for side in ("aio", "sync")]
    aio, sync = (getattr(importlib.import_module(module), name) for module in modules)
    yield name, aio, sync
    if isinstance(aio, type):
        assert public_members(aio) == public_members(sync)
        for member in public_members(aio):
            yield member, inspect.getattr_static(aio, member), inspect.getattr_static(sync, member)


def public_members(kind: type) -> list[str]:
    return [name for name in dir(kind) if not name.startswith("_")]


def documentation(thing: Any) -> str:
    return " ".join(tool.in_words_of_threads((inspect.getdoc(thing) or "") + "\n").split())


def test_both_sides_have_the_same_names() -> None:
    modules = {name: getattr(getattr(pyredisson, name), "__module__", "") for name in pyredisson.__all__}
    for_threads = {name for name, module in modules.items() if module.startswith("pyredisson._api.sync.")}
    assert for_threads == set(pyredisson.asyncio.__all__)
    for package in (pyredisson, pyredisson.asyncio):
        assert package.RLock is package.Lock
        assert (package.Lock.__name__, {"Lock", "RLock"} <= set(package.__all__)) == ("Lock", True)


@pytest.mark.parametrize("public", [*pyredisson.asyncio.__all__, *RETURNED])
def test_both_sides_say_take_and_return_the_same(public: str) -> None:
    for name, aio, sync in with_members(public):
        of_aio, of_sync = documentation(aio), documentation(sync)
        if name == "hold":
            # Only asyncio can cancel the body of a block whose hold is lost.
            of_aio, of_sync = (text.partition("When the hold is lost")[0] for text in (of_aio, of_sync))
        assert of_aio, f"{name} isn't documented"
        assert of_aio == of_sync, name
        if isinstance(aio, property):
            assert isinstance(sync, property), name
            aio, sync = aio.fget, sync.fget
        if inspect.isfunction(aio):
            compare_signatures(f"{public}.{name}", inspect.signature(aio), inspect.signature(sync))


def as_written(annotation: object) -> str:
    """An annotation that is postponed in one module may be an object in the other one."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"\w+\.|[~+]", "", text)


def compare_signatures(name: str, of_aio: inspect.Signature, of_sync: inspect.Signature) -> None:
    parameters, of_threads = (
        {each.name: each.replace(annotation=as_written(each.annotation)) for each in signature.parameters.values()}
        for signature in (of_aio, of_sync)
    )
    if name.endswith(".hold"):
        del parameters["cancel_on_lost"]
    if name == "Election.run":
        # What is called is a coroutine function in asyncio.
        del parameters["work"], of_threads["work"]
    assert parameters == of_threads, name
    result = re.sub(r"^Coroutine\[Any, Any, (.*)\]$", r"\1", as_written(of_aio.return_annotation))
    # A decorator takes and returns coroutine functions.
    result = re.sub(r"Callable\[P, Coroutine\[Any, Any, ([^][]*)\]\]", r"Callable[P, \1]", result)
    assert result == as_written(of_sync.return_annotation), name


# The workflows for GitHub parse, call what exists, and have no more rights than they need.


WORKFLOWS = {path.name: yaml.safe_load(path.read_text("utf-8")) for path in (ROOT / ".github/workflows").glob("*.yml")}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PYTHONS = {"cp311", "cp312", "cp313", "cp314", "cp314t", "cp315"}


def steps(workflow: dict[Any, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def commands(workflow: dict[Any, Any]) -> list[str]:
    return [line for step in steps(workflow) for line in step.get("run", "").splitlines()]


@pytest.mark.parametrize("workflow", WORKFLOWS.values(), ids=WORKFLOWS)
def test_a_workflow_is_bounded_may_only_read_and_calls_what_exists(workflow: Any) -> None:
    # YAML reads the key `on` as true.
    assert {"name", True, "permissions", "jobs"} <= set(workflow)
    assert workflow["permissions"]["contents"] == "read"
    for name, job in workflow["jobs"].items():
        assert job["timeout-minutes"] <= 90, name
    for step in steps(workflow):
        assert ("uses" in step) != ("run" in step), step
        assert "uses" not in step or re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|release/v\d+)", step["uses"]), step
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    for line in commands(workflow):
        program, _, rest = line.partition(" ")
        if program == "make":
            assert rest in targets, line
        elif "/" in program:
            assert os.access(ROOT / program, os.X_OK), line
        else:
            assert program in {"sudo", "python"}, line


def test_there_are_workflows_and_nothing_is_published_but_from_a_tag() -> None:
    assert WORKFLOWS.keys() == {"campaign.yml", "ci.yml", "docs.yml", "wheels.yml"}
    assert ".ci/run" in commands(WORKFLOWS["ci.yml"])
    assert set(WORKFLOWS["ci.yml"][True]) == {"push", "pull_request"}
    jobs = WORKFLOWS["wheels.yml"]["jobs"]
    [name] = [name for name in jobs if any("pypi-publish" in step.get("uses", "") for step in jobs[name]["steps"])]
    assert jobs[name]["if"] == "startsWith(github.ref, 'refs/tags/v')"
    assert set(jobs[name]["needs"]) == set(jobs) - {name}
    assert jobs[name]["permissions"] == {"id-token": "write"}
    assert "pull_request" not in WORKFLOWS["wheels.yml"][True]


@pytest.mark.parametrize("machine", WORKFLOWS["wheels.yml"]["jobs"]["wheels"]["strategy"]["matrix"]["include"], ids=str)
def test_each_machine_builds_the_wheels_of_its_kind(machine: dict[str, str]) -> None:
    platform, arch = machine["platform"], machine["arch"]
    command = ["-m", "cibuildwheel", "--print-build-identifiers", "--platform", platform, "--archs", arch, "."]
    printed = completed(sys.executable, *command, cwd=ROOT, check=True).stdout
    systems = {"linux": ("manylinux", "musllinux"), "macos": ("macosx",)}[platform]
    assert set(printed.split()) == {f"{python}-{system}_{arch}" for python in PYTHONS for system in systems}


def test_the_interpreters_that_are_built_tested_and_named() -> None:
    classifiers = "\n".join(PROJECT["project"]["classifiers"])
    supported = re.findall(r"^Programming Language :: Python :: (3\.\d+)$", classifiers, re.MULTILINE)
    assert {f"cp{version.replace('.', '')}" for version in supported} == PYTHONS - {"cp314t"}
    oldest, *_, newest = supported
    assert f"\noldest={oldest} newest={newest} unlocked=3.14t\n" in (ROOT / ".ci" / "run").read_text("utf-8")
    (setup,) = [step for step in steps(WORKFLOWS["ci.yml"]) if step.get("uses", "").startswith("actions/setup-python")]
    assert setup["with"]["python-version"].split() == ["3.14t", newest, oldest]
    assert f"CPython {oldest} and {newest}." in (ROOT / "README.md").read_text("utf-8")
    # What is tested on each exists, and has what it needs.
    settings, project = PROJECT["tool"]["cibuildwheel"], PROJECT["project"]
    for tested in ((ROOT / ".ci" / "run").read_text("utf-8"), *settings["test-command"][:1]):
        paths = re.findall(r"tests/[\w/.]+", tested)
        assert paths
        assert all((ROOT / path).exists() for path in [*paths, *settings["test-sources"]]), tested
    plugins = {re.split("[>=]", each)[0] for each in settings["test-requires"]}
    assert plugins <= {re.split("[>=;]", each)[0] for each in project["optional-dependencies"]["test"]}
