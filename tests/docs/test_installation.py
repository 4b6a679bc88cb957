"""What documentation, errors and examples say of installing is one text; a page names the packages that it needs."""

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
