"""Every name that a page puts in backticks exists, in the sources, the tests or the settings, or is a foreign one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.test_examples import EXAMPLES, ROOT

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
def test_each_name_exists(page: Path, known: set[str]) -> None:
    # The rights of an ACL are commands in small letters. Keys and metrics are named with their prefix or without it.
    missing = {
        word: span
        for span in spans(page)
        for word in words(span) - known
        if not {word.upper(), word.removeprefix("pyredisson_"), f"pyredisson_{word}"} & known
        and not (word.endswith("_") and any(each.startswith(word) for each in known))
    }
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_each_file_exists(page: Path) -> None:
    named = [
        span
        for span in spans(page)
        if re.fullmatch(r"(?:[\w.-]+/)*(?!pyredisson\.lua)[\w-]+\.(?:lua|py|pyi|pyx)", span)
    ]
    missing = [name for name in named if not any(f"/{path}".endswith(f"/{name}") for path in PATHS)]
    assert not missing


def test_no_foreign_name_is_listed_for_nothing() -> None:
    named = set().union(*(words(span) for page in PAGES for span in spans(page)))
    assert set().union(*FOREIGN.values()) <= named
