"""Names, packages and files that pages mention exist, or are foreign ones; installing is said in one text."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from pyredisson._diagnostics import REPOSITORY, installation_of
from tests.docs.test_examples import BLOCKS, EXAMPLES, ROOT, Block

PAGES = [*EXAMPLES, ROOT / "CONTRIBUTING.md"]
FOLDERS = ("_core", "benchmarks", "demo", "examples", "lua", "pyredisson", "tests", "tools", ".ci", ".github")
FILES = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if "__pycache__" not in path.parts]
FILES += [ROOT / name for name in ("Makefile", "mkdocs.yml", "pyproject.toml", "pyredisson_pytest.py", "setup.py")]
FILES += [ROOT / "docs" / "grafana.json", ROOT / "docs" / "prometheus-rules.yml", *PAGES, ROOT / "CHANGELOG.md"]
PATHS = {path.relative_to(ROOT).as_posix() for path in FILES}
TEXT = {".lua", ".json", ".py", ".pyi", ".pyx", ".toml", ".yml", ".java", ".js", ".html", ".css", ".sh", ".xml"}
FOREIGN = {
    "APScheduler": {"AsyncIOScheduler"},
    "Celery": {"acks_late", "solo"},
    "Django": {"ATOMIC_REQUESTS", "clearsessions"},
    "FastAPI": {"APIRouter", "include_router", "mount"},
    "Prometheus": {"mark_process_dead"},
    "Redis": {"UNBLOCKED", "appendfsync", "connected_clients", "evicted_keys", "everysec", "rejected_connections"},
    "Redisson": {
        "RMap",
        "RedissonRedLock",
        "getNonReentrantFairLock",
        "getNonReentrantLock",
        "getRateLimiter",
        "ofSeconds",
    },
    "pip": {"requirements"},
    "python-redis-lock": {"AlreadyAcquired", "NotAcquired", "auto_renewal", "get_owner_id"},
    "redis-py": {"LockError", "LockNotOwnedError", "blocking_timeout", "owned", "reacquire", "thread_local"},
    "systemd": {"KillMode"},
    "the reader's program": {"payment", "yours"},
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
        found |= words(path.read_text("utf-8")) if path != Path(__file__) else set()
    return found.union(*FOREIGN.values())


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
    named = set().union(*(words(span) for page in PAGES for span in spans(page)))
    assert set().union(*FOREIGN.values()) <= named


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
FOR_DEVELOPERS = {"bench", "demo", "dev", "docs", "lint", "pictures", "test", "wheels"}
EXTRAS = {
    name: {Requirement(each).name for each in needs} - {"pyredisson"}
    for name, needs in PROJECT["optional-dependencies"].items()
    if name not in FOR_DEVELOPERS
}
SOURCES = [path for folder in ("pyredisson", "examples") for path in (ROOT / folder).rglob("*") if path.is_file()]
PACKAGES = {
    "apscheduler": "apscheduler",
    "celery": "celery",
    "django": "Django",
    "fastapi": "fastapi",
    "fastapi.testclient": "httpx2",
    "opentelemetry.sdk": "opentelemetry-sdk",
    "prometheus_client": "prometheus-client",
    "pytest": "pytest",
    "redis_lock": "python-redis-lock",
}
"""What brings the modules that examples import, beyond those that come with pyredisson itself."""


def imports(block: Block) -> Iterator[str]:
    """The names of the modules that come neither with Python nor with pyredisson."""
    for node in ast.walk(ast.parse(block.text)):
        names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        for name in names:
            if name.partition(".")[0] not in {*sys.stdlib_module_names, "pyredisson", "redis"}:
                yield name


def test_pip_installs_from_the_repository_everywhere() -> None:
    assert f"git+{PROJECT['urls']['Source']}" == REPOSITORY
    found = [installation_of("cli")]
    for path in [*EXAMPLES, ROOT / "setup.py", *SOURCES]:
        if path.suffix != ".so":
            found += re.findall(r"pip install[^`\n]*?\bpyredisson\b[^`\n]*", path.read_text("utf-8"))
    found.remove("pip install 'pyredisson[{extra}] @ {REPOSITORY}'\"")  # the code of `installation_of`
    assert len(found) > 3
    for command in found:
        requirement = Requirement(command.removeprefix("pip install ").strip("'\""))
        assert requirement.url == REPOSITORY
        assert requirement.extras <= EXTRAS.keys()


def test_the_table_has_the_extras() -> None:
    text = (ROOT / "docs" / "installation.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)` \|.*\| ([^|]+) \|$", text, re.MULTILINE)
    assert {extra: set(re.findall(r"`([\w-]+)`", packages)) for extra, packages in rows} == EXTRAS


@pytest.mark.parametrize("page", EXAMPLES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_names_what_its_examples_need(page: Path) -> None:
    text = page.read_text("utf-8")
    needed = set()
    for block in BLOCKS:
        if ROOT / block.page != page:
            continue
        if block.language == "console" and "$ pyredisson " in block.text:
            needed |= EXTRAS["cli"]
        for name in imports(block) if block.language == "python" else ():
            needed.add(PACKAGES[max((prefix for prefix in PACKAGES if f"{name}.".startswith(f"{prefix}.")), key=len)])
    named = {package for extra in EXTRAS if re.search(rf"extra\s+`{extra}`", text) for package in EXTRAS[extra]}
    assert {package for package in needed - named if f"`{package}`" not in text} == set()
