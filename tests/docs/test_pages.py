"""The pages: names, files, tables and pictures are about what there is; the site is whole and fetches nothing."""

import ast
import json
import os
import re
import sys
import uuid
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from html.parser import HTMLParser
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from xml.etree import ElementTree as ET

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import pyredisson
import pyredisson.errors
import pyredisson.testing
from pyredisson._diagnostics import REPOSITORY, installation_of
from pyredisson.cli.findings import Finding, Level
from pyredisson.cli.tables import as_json
from pyredisson.holder import Holder
from pyredisson.inspection.model import Companion, Owner, State, WaitingOwner
from pyredisson.inspection.raw import client_of, objects_of
from tests.docs.test_examples import BLOCKS, EXAMPLES, OPERATIONS, ROOT
from tests.packaging.test_sources import PROJECT, imported
from tests.support.children import completed
from tools import benchmark_chart
from tools.syntax import parse

DOCS = ROOT / "docs"
PAGES = [*EXAMPLES, ROOT / "CONTRIBUTING.md"]
FOLDERS = ("_core", "benchmarks", "demo", "examples", "lua", "pyredisson", "tests", "tools", ".ci", ".github")
FILES = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if "__pycache__" not in path.parts]
FILES += [ROOT / name for name in ("Makefile", "mkdocs.yml", "pyproject.toml", "pyredisson_pytest.py", "setup.py")]
FILES += [DOCS / "grafana.json", DOCS / "prometheus-rules.yml", *PAGES, ROOT / "CHANGELOG.md"]
PATHS = {path.relative_to(ROOT).as_posix() for path in FILES}
TEXT = {".lua", ".json", ".py", ".pyi", ".pyx", ".toml", ".yml", ".java", ".js", ".html", ".css", ".sh", ".xml"}
FOREIGN = {
    "APScheduler": "AsyncIOScheduler",
    "Airflow": "AirflowSkipException all_done execution_timeout max_active_runs retry_delay trigger_rule",
    "Celery": "acks_late solo",
    "Django": "ATOMIC_REQUESTS clearsessions",
    "Dragonfly": "default_lua_flags undeclared",
    "FastAPI": "APIRouter include_router mount",
    "Kubernetes": "Forbid activeDeadlineSeconds concurrencyPolicy preStop terminationGracePeriodSeconds",
    "Prometheus": "mark_process_dead",
    "Redis": "UNBLOCKED appendfsync connected_clients evicted_keys everysec rejected_connections",
    "Redisson": "RMap RedissonRedLock getNonReentrantFairLock getNonReentrantLock getRateLimiter ofSeconds",
    "SQLAlchemy": "driver_connection",
    "celery-once": "unlock_before_run",
    "gunicorn": "preload",
    "pip": "requirements",
    "python-redis-lock": "AlreadyAcquired NotAcquired auto_renewal get_owner_id",
    "redis-py": "LockError LockNotOwnedError blocking_timeout owned reacquire thread_local",
    "systemd": "KillMode",
    "the reader's program": "payment sales yours",
}
"""Names that are not ours, by whose they are."""
EXAMPLE = re.compile(r"pausable|PausableLock", re.ASCII)
"""What CONTRIBUTING.md has the reader write."""


def words(text: str) -> set[str]:
    return set(re.findall(r"\b[A-Za-z_]{2}\w*", text))


def spans(page: Path) -> list[str]:
    """What is in backticks, outside of blocks. The blocks are run, or compared, by other tests."""
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    return [span for span in re.findall(r"`([^`\n]+)`", text) if not EXAMPLE.search(span)]


@pytest.fixture(scope="module")
def known() -> set[str]:
    sources = [path for path in FILES if path.suffix in TEXT or path.name in {"Makefile", "run", "server", "browser"}]
    found = words("\n".join(PATHS))
    for path in sources:
        text = path.read_text("utf-8")
        # Of this file itself the names of tests only: it has texts that are wrong on purpose.
        found |= words(text) if path != Path(__file__) else {*re.findall(r"^def (test_\w+)", text, re.MULTILINE)}
    return found.union(*map(words, FOREIGN.values()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_each_name_and_each_file_exists(page: Path, known: set[str]) -> None:
    # The rights of an ACL are commands in small letters. Keys and metrics are named with their prefix or without it.
    missing = {
        word: span
        for span in spans(page)
        for word in words(span) - known
        if not {word.upper(), word.removeprefix("pyredisson_"), f"pyredisson_{word}"} & known
        and not (word.endswith("_") and any(each.startswith(word) for each in known))
    }
    assert not missing
    of_files = re.compile(r"(?:[\w.-]+/)*(?!pyredisson\.lua)[\w-]+\.(?:lua|py|pyi|pyx)")
    named = [span for span in spans(page) if of_files.fullmatch(span)]
    assert not [name for name in named if not any(f"/{path}".endswith(f"/{name}") for path in PATHS)]


def test_no_foreign_name_is_listed_for_nothing() -> None:
    assert words(" ".join(FOREIGN.values())) <= set().union(*(words(span) for page in PAGES for span in spans(page)))


FOR_DEVELOPERS = {"bench", "demo", "dev", "docs", "lint", "pictures", "test", "wheels"}
EXTRAS = {
    name: {canonicalize_name(Requirement(each).name) for each in needs} - {"pyredisson"}
    for name, needs in PROJECT["project"]["optional-dependencies"].items()
    if name not in FOR_DEVELOPERS
}
SOURCES = [path for folder in ("pyredisson", "examples") for path in (ROOT / folder).rglob("*") if path.is_file()]
PACKAGES = {"fastapi.testclient": "httpx2", "opentelemetry": "opentelemetry-sdk"}
"""What brings a module, where that is not the one package that has it."""


installed = cache(packages_distributions)


def package_of(module: str) -> str:
    for name in (module, module.partition(".")[0]):
        if name in PACKAGES:
            return PACKAGES[name]
    [package] = {*installed()[module.partition(".")[0]]}
    return canonicalize_name(package)


def test_pip_installs_from_the_repository_everywhere_and_the_table_has_the_extras() -> None:
    assert f"git+{PROJECT['project']['urls']['Source']}" == REPOSITORY
    found = [installation_of("cli")]
    for path in [*EXAMPLES, ROOT / "setup.py", *SOURCES]:
        if path.suffix not in (".so", ".pyc"):
            found += re.findall(r"pip install[^`\n]*?\bpyredisson\b[^`\n]*", path.read_text("utf-8"))
    found.remove("pip install 'pyredisson[{extra}] @ {REPOSITORY}'\"")  # the code of `installation_of`
    assert len(found) > 3
    for command in found:
        requirement = Requirement(command.removeprefix("pip install ").strip("'\""))
        assert requirement.url == REPOSITORY
        assert requirement.extras <= EXTRAS.keys()
    text = (DOCS / "installation.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)` \|.*\| ([^|]+) \|$", text, re.MULTILINE)
    assert {extra: set(re.findall(r"`([\w-]+)`", packages.lower())) for extra, packages in rows} == EXTRAS


@pytest.mark.parametrize("page", EXAMPLES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_names_what_its_examples_need(page: Path) -> None:
    text = page.read_text("utf-8").lower()
    blocks = [block for block in BLOCKS if ROOT / block.page == page]
    modules = imported(node for each in blocks if each.language == "python" for node in ast.walk(ast.parse(each.text)))
    known = {*sys.stdlib_module_names, "pyredisson", "redis"}
    needed = {package_of(module) for module in modules if module.partition(".")[0] not in known}
    if any(block.language == "console" and "$ pyredisson " in block.text for block in blocks):
        needed |= EXTRAS["cli"]
    named = {package for extra in EXTRAS if re.search(rf"extra\s+`{extra}`", text) for package in EXTRAS[extra]}
    assert {package for package in needed - named if f"`{package}`" not in text} == set()


COMMAND_LINE = (DOCS / "command-line.md").read_text("utf-8")
GUARANTEES = (DOCS / "guarantees.md").read_text("utf-8")
TRACK_RECORD = (DOCS / "track-record.md").read_text("utf-8")
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
HEAD = "| fault | may happen | never happens | test |"
LEVELS = {"warning": "warning", "exception": "error"}


def functions_of(tree: ast.AST) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def _logged() -> dict[str, str]:
    """Every text that the sources give to the logger, with dots in place of its arguments, and its level."""
    found: dict[str, str] = {}
    for path in (ROOT / "pyredisson").rglob("*.py"):
        for function in functions_of(parse(path.read_text("utf-8"))):
            texts = [each.value for each in ast.walk(function) if isinstance(each, ast.Constant)]
            for call in ast.walk(function):
                match call:
                    case ast.Call(func=ast.Attribute(value=ast.Name("logger"), attr=level)) if level in LEVELS:
                        for text in texts:
                            if isinstance(text, str):
                                found[re.sub(r"%[.\d]*[a-z]", "...", text)] = LEVELS[level]
                    case ast.Call(func=ast.Attribute(attr="logged"), args=[ast.Constant(str(text)), *_]):
                        found[re.sub(r"%[.\d]*[a-z]", "...", text)] = "error"
                    case ast.Call(func=ast.Name("log_exception"), args=[text]):
                        # An f-string, whose values are the dots.
                        parts = text.values if isinstance(text, ast.JoinedStr) else [text]
                        shown = [str(each.value) if isinstance(each, ast.Constant) else "..." for each in parts]
                        found["".join(shown)] = "error"
    return found


def test_each_log_in_the_table_exists() -> None:
    logged = _logged()
    table = OPERATIONS.partition("| log | level |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `([^`]+)` \| (\w+) \|", table, re.MULTILINE)
    assert len(rows) >= 8
    assert {*rows} <= logged.items()
    assert {*re.findall(r"`(the [^`]+)`", table)} <= logged.keys()


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


ID = uuid.UUID(int=1)
SAMPLES = {"ID": str(ID), "KIND": "latch", "NAME": "orders", "NUMBER": "1", "PERMIT": ID.hex}
CHANNELS = {"pyredisson_sc", "pyredisson_wake"}
"""The beginnings of the names of channels that only this library has."""


def test_the_lists_of_keys_are_complete() -> None:
    """In the table, in the rights, and known to the inspection, and so to `ls`, `doctor` and the dashboard."""
    table = OPERATIONS.partition("which Redisson doesn't know")[2].partition("| key |")[2].partition("\n\n")[0]
    keys = {key.partition(":")[0]: key for key in re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)}
    prefixes = _prefixes()
    assert prefixes >= CHANNELS
    assert set(keys) == prefixes - CHANNELS
    assert set(re.findall(r"&(pyredisson_\w+):\*", OPERATIONS)) == CHANNELS
    rights = [pattern.partition(":")[0] for pattern in re.findall(r"~(pyredisson_\S+?)(?=[ `])", OPERATIONS)]
    # The inspection doesn't look for keys beside data of the user.
    del keys["pyredisson_fencing"]
    for prefix, key in keys.items():
        assert any(fnmatchcase(prefix, pattern) for pattern in rights), prefix
        name = re.sub("|".join(SAMPLES), lambda match: SAMPLES[match[0]], key)
        assert client_of(name.encode()) or b"orders" in objects_of(name.encode())[0], name


OWNER = Owner("c:1", Holder())
WAITER = WaitingOwner(OWNER, 1, alive=True, place_lasts=None)
COMPANION = Companion(b"b", "string", 1.0, "")
FULL = State(b"a", "a", "lock", True, "", True, (OWNER,), waiters=(WAITER,), companions=(COMPANION,))


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
    rows = [re.findall(r"^\| ([^|]*) \|", table, re.MULTILINE) for table in text.split("|---|---|\n")[1:]]
    return [{name for row in table for name in re.findall(r"`([^`]+)`", row)} for table in rows]


def test_each_field_of_json_has_a_row() -> None:
    of_objects, of_findings = documented("As JSON")
    assert of_objects == paths_of(json.loads(as_json(FULL, deadlocks=[""])))
    assert of_findings == set(json.loads(as_json(Finding("a", Level.OK, "b"))))


PROMISES = [line for line in GUARANTEES.splitlines() if line.startswith("|") and line != HEAD and line[1] != "-"]


@cache
def decorators_in(path: str) -> dict[str, list[set[str]]]:
    """The tests of a file: the decorators of each one of that name."""
    found: dict[str, list[set[str]]] = {}
    for function in functions_of(parse((ROOT / path).read_text("utf-8"))):
        found.setdefault(function.name, []).append({ast.unparse(mark) for mark in function.decorator_list})
    return found


def check_tests(cell: str, *, always: bool = False) -> None:
    """The cell names tests, and nothing else, which exist. `always`: none of them is ever skipped."""
    named = TEST.findall(cell)
    assert named, "no test"
    assert not TEST.sub("", cell).strip(" ,"), "something that names no test"
    for path, name in named:
        found = decorators_in(path).get(name, [])
        assert len(found) == 1, f"{path} has {len(found)} tests {name}"
        assert not always or not any("skip" in mark or "xfail" in mark for mark in found[0]), name


@pytest.mark.parametrize("row", PROMISES, ids=lambda row: str(row[2:42]))
def test_each_guarantee_names_tests_that_exist(row: str) -> None:
    cells = row.strip("|").split("|")
    assert len(cells) == 4, row
    check_tests(cells[3], always=True)


def test_each_defect_names_tests_that_exist_or_says_why_not() -> None:
    rows = [line for line in TRACK_RECORD.splitlines() if line.startswith("| ") and not line.startswith("| what")]
    defects = [row.strip("|").split("|") for row in rows if not row.startswith("| [")]
    assert f"{len(defects)} of them" in TRACK_RECORD
    for _, _, cell in defects:
        if not cell.startswith(" none: "):
            check_tests(cell)


LIST_ITEM = re.compile(r"( *)(?:-|\d+\.) ")


def test_every_public_name_has_a_docstring_that_the_reference_shows() -> None:
    pages = [page.read_text("utf-8") for page in (DOCS / "reference").glob("*.md")]
    documented = re.findall(r"^::: pyredisson\.(\w+)$", "\n".join(pages), re.MULTILINE)
    assert len(documented) == len(set(documented))
    # An alias, a text and a module have no entry of their own.
    assert set(documented) - {"fencing", "testing"} == set(pyredisson.__all__) - {"RLock", "__version__", "asyncio"}
    for public in map(vars(pyredisson).get, {*pyredisson.__all__} - {"__version__", "asyncio"}):
        members = vars(public).items() if isinstance(public, type) else ()
        methods = [member for name, member in members if not name.startswith("_") and callable(member)]
        assert not [each for each in (public, *methods) if not each.__doc__]


def test_the_pictures_show_the_primitives_that_exist_and_the_figures_of_the_benchmarks() -> None:
    assert svg_text(ASSETS / "benchmarks.svg", "desc") == benchmark_chart.describe({row["name"]: row for row in ROWS})
    elements = ET.parse(DOCS / "assets" / "which-primitive.svg").iter()
    drawn = {"".join(element.itertext()) for element in elements if element.get("class") == "primitive"}
    made = {name.removeprefix("get_") for name in dir(pyredisson.Client) if name.startswith("get_")}
    classes = {"".join(word.capitalize() for word in name.split("_")) for name in made}
    assert drawn == classes - {"NonReentrantLock", "NonReentrantFairLock"}
    page = (DOCS / "primitives" / "index.md").read_text("utf-8")
    assert all(f"`{name}`" in page for name in classes)


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.relative_to(DOCS).as_posix())
def test_lists_are_lists_for_both_readers_of_markdown(page: Path) -> None:
    """Python-Markdown, unlike GitHub, wants a blank line before a list, and four spaces before an inner one."""
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    for paragraph in re.split(r"\n{2,}", text):
        lines = paragraph.strip("\n").splitlines()
        items = [(number, match) for number, line in enumerate(lines) if (match := LIST_ITEM.match(line))]
        assert not items or items[0][0] == 0, lines[0]
        assert all(len(match[1]) % 4 == 0 for _, match in items), lines[0]


class Fetched(HTMLParser):
    """Collects what a browser fetches for a page, which is not what a reader may click."""

    def __init__(self) -> None:
        super().__init__()
        self.found, self.tags, self.classes = set[str](), set[str](), set[str]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.add(tag)
        self.classes |= {*(given.get("class") or "").split(), given.get("data-md-component") or ""}
        if tag == "link" and given.get("rel") not in {"canonical", "next", "prev"}:
            self.found.add(given.get("href") or "")
        self.found.update(given[each] or "" for each in ("src", "srcset", "poster", "data") if each in given)


def test_the_site_fetches_nothing_from_elsewhere_and_has_the_texts(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="`make docs` installs what the site needs")
    (options,) = re.findall(r"-m mkdocs (build .*)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    # A proxy that isn't there: what the build tries to fetch is an error.
    nowhere = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    env, site = {**os.environ, **nowhere, "NO_MKDOCS_2_WARNING": "1"}, tmp_path / "site"
    done = completed(sys.executable, "-m", "mkdocs", *options.split(), "--site-dir", site, cwd=ROOT, env=env)
    assert done.returncode == 0, done.stderr
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > len(list(DOCS.rglob("*.md"))) - 1
    for page in pages:
        parser = Fetched()
        parser.feed(page.read_text("utf-8"))
        parts = {address: urlsplit(address) for address in parser.found}
        assert not [each for each in parts if parts[each].netloc or parts[each].scheme not in {"", "data"}], page
        assert not parser.tags & {"iframe", "object", "embed"}, page
        # For these the theme's script fetches a library, or asks the repository's host for its numbers.
        assert not parser.classes & {"mermaid", "source", "katex", "asciinema"}, page
    for sheet in site.rglob("*.css"):
        assert not re.findall(r"@import|url\([\"']?(?:https?:)?//[^)]*", sheet.read_text("utf-8")), sheet
    text = (site / "reference" / "locks.html").read_text("utf-8")
    for anchor in ("Lock.try_lock", "Lock.unlock", "Lockable.on_lost", "FencedLock.lock_and_get_token"):
        assert f'id="pyredisson.{anchor}"' in text
    assert "waits at most <code>wait_time</code>" in text


ASSETS = DOCS / "assets"
ROWS: list[dict[str, Any]] = json.loads((ASSETS / "benchmarks.json").read_text("utf-8"))["rows"]
PEERS = {"redis-py": "redis", "python-redis-lock": "python-redis-lock", "Redisson": "Redisson", "bare": "bare"}
"""How a column of a table begins, and how the baselines do whose figures it has."""


def svg_text(picture: Path, tag: str) -> str:
    found = ET.parse(picture).getroot().find(f"{{http://www.w3.org/2000/svg}}{tag}")
    assert found is not None
    return found.text or ""


@pytest.mark.parametrize("picture", sorted(ASSETS.glob("*.svg")), ids=lambda path: path.name)
def test_a_picture_is_small_and_needs_no_script_and_nothing_from_elsewhere(picture: Path) -> None:
    assert picture.stat().st_size < 300_000
    for element in ET.parse(picture).getroot().iter():
        assert element.tag.rpartition("}")[2] not in {"script", "foreignObject", "image"}
        for name, value in element.attrib.items():
            assert not name.rpartition("}")[2].startswith("on"), name
            assert "href" not in name or value.startswith("#"), value
    assert all(svg_text(picture, tag) for tag in ("title", "desc"))


def figures(page: str) -> Iterator[tuple[str, str, str]]:
    """The rows of tables whose columns are libraries: (row, column, cell)."""
    text = (ROOT / page).read_text("utf-8")
    head = "## Performance" if page == "README.md" else "## How fast they are"
    section = text.partition(head)[2].partition("\n## ")[0]
    for table in re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE):
        columns, _, *lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
        for row, *cells in lines:
            for column, cell in zip(columns[1:], cells, strict=True):
                if column:
                    yield row, column, cell


def matches(written: str, measured: float) -> bool:
    """Whether the figure is the measured one, rounded to the digits that are written."""
    digits = len(re.sub(r"^0\.0*|[.,]", "", written.rstrip("0") if "." not in written else written)) or 1
    return any(float(f"{measured:.{n}g}") == float(written.replace(",", "")) for n in (digits, digits + 1))


@pytest.mark.parametrize("page", ["README.md", "docs/comparison.md"])
def test_the_tables_have_figures_of_the_benchmarks(page: str) -> None:
    count = 0
    for row, column, cell in figures(page):
        peer = next((prefix for name, prefix in PEERS.items() if column.startswith(name)), "")
        known = [value for each in ROWS for name, value in each["baselines"].items() if name.startswith(peer)]
        # In a column of ours, what is in brackets is a baseline.
        known += [] if peer else [each["ours"] for each in ROWS]
        for written in re.findall(r"(?<![\w.])\d[\d,]*(?:\.\d+)?", cell):
            count += 1
            assert any(matches(written, measured) for measured in known), (row, column, written)
    assert count >= 15
