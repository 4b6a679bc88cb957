"""The site: its reference has every public name, its pictures and tables say what is so, and it fetches nothing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from xml.etree import ElementTree as ET

import pytest
import yaml

import pyredisson
import pyredisson.asyncio
import pyredisson.errors
import pyredisson.testing
from tools import benchmark_chart

# A build of the site uses much computing time, which other tests take from it.
pytestmark = pytest.mark.timeout(300)
ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LIST_ITEM = re.compile(r"( *)(?:-|\d+\.) ")
NOT_DOCUMENTED = {"RLock", "__version__", "asyncio"}
"""An alias, a text and a module, which have no entry of their own."""


def test_the_reference_has_every_public_name() -> None:
    documented: list[str] = []
    for page in sorted((DOCS / "reference").glob("*.md")):
        documented += re.findall(r"^::: pyredisson\.(\w+)$", page.read_text("utf-8"), re.MULTILINE)
    assert len(documented) == len(set(documented))
    assert set(documented) - {"fencing", "testing"} == set(pyredisson.__all__) - NOT_DOCUMENTED
    assert set(pyredisson.asyncio.__all__) <= {*documented, "RLock"}
    assert set(pyredisson.errors.__all__) <= set(documented)


@pytest.mark.parametrize("name", sorted({*pyredisson.__all__} - {"__version__", "asyncio"}))
def test_every_public_name_has_a_docstring(name: str) -> None:
    public = getattr(pyredisson, name)
    members = vars(public).items() if isinstance(public, type) else ()
    methods = [member for each, member in members if not each.startswith("_") and callable(member)]
    assert not [each for each in (public, *methods) if not each.__doc__]


def test_the_picture_names_the_primitives_that_exist() -> None:
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
        self.found: set[str] = set()
        self.tags: set[str] = set()
        self.classes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.add(tag)
        self.classes.update((given.get("class") or "").split())
        self.classes.add(given.get("data-md-component") or "")
        if tag == "link" and given.get("rel") not in {"canonical", "next", "prev"}:
            self.found.add(given.get("href") or "")
        self.found.update(given[each] or "" for each in ("src", "srcset", "poster", "data") if each in given)


def build(sources: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Runs the command of `make docs`."""
    pytest.importorskip("mkdocs", reason="`make docs` installs what the site needs")
    makefile = (ROOT / "Makefile").read_text("utf-8")
    (options,) = re.findall(r"-m mkdocs (build .*)$", makefile, re.MULTILINE)
    # A proxy that isn't there: what the build tries to fetch is an error.
    nowhere = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", *options.split(), "--site-dir", site],
        cwd=sources,
        env={**os.environ, **nowhere, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_link_that_leads_nowhere_is_an_error(tmp_path: Path) -> None:
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))
    del settings["nav"], settings["plugins"]
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump(settings), "utf-8")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("[one](other.md#nowhere) [two](gone.md)\n", "utf-8")
    (tmp_path / "docs" / "other.md").write_text("# Other\n", "utf-8")
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode == 1
    warnings = re.findall(r"^WARNING .*", done.stderr, re.MULTILINE)
    for warning in ("does not contain an anchor '#nowhere'", "the target is not found"):
        assert any(warning in each for each in warnings), done.stderr


def test_the_site_fetches_nothing_from_elsewhere_and_has_the_texts(tmp_path: Path) -> None:
    site = tmp_path / "site"
    done = build(ROOT, site)
    assert done.returncode == 0, done.stderr
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > len(list(DOCS.rglob("*.md"))) - 1
    for page in pages:
        parser = Fetched()
        parser.feed(page.read_text("utf-8"))
        for address in parser.found:
            parts = urlsplit(address)
            assert not parts.netloc, f"{page}: {address}"
            assert parts.scheme in {"", "data"}, f"{page}: {address}"
        assert not parser.tags & {"iframe", "object", "embed"}, page
        # For these the theme's script fetches a library, or asks the repository's host for its numbers.
        assert not parser.classes & {"mermaid", "source", "katex", "asciinema"}, page
    for sheet in site.rglob("*.css"):
        text = sheet.read_text("utf-8")
        assert "@import" not in text
        assert not re.findall(r"url\([\"']?(?:https?:)?//[^)]*", text), sheet
    text = (site / "reference" / "locks.html").read_text("utf-8")
    for anchor in ("Lock.try_lock", "Lock.unlock", "Lockable.on_lost", "FencedLock.lock_and_get_token"):
        assert f'id="pyredisson.{anchor}"' in text
    assert "waits at most <code>wait_time</code>" in text


ASSETS = ROOT / "docs" / "assets"
ROWS: list[dict[str, Any]] = json.loads((ASSETS / "benchmarks.json").read_text("utf-8"))["rows"]
PEERS = {"redis-py": "redis", "python-redis-lock": "python-redis-lock", "Redisson": "Redisson", "bare": "bare"}
"""How a column of a table begins, and how the baselines do whose figures it has."""


def svg_text(picture: Path, tag: str) -> str:
    found = ET.parse(picture).getroot().find(f"{{http://www.w3.org/2000/svg}}{tag}")
    assert found is not None
    return found.text or ""


def test_the_chart_shows_the_figures_of_the_benchmarks() -> None:
    assert svg_text(ASSETS / "benchmarks.svg", "desc") == benchmark_chart.describe({row["name"]: row for row in ROWS})


@pytest.mark.parametrize("picture", sorted(ASSETS.glob("*.svg")), ids=lambda path: path.name)
def test_a_picture_is_small_and_needs_no_script_and_nothing_from_elsewhere(picture: Path) -> None:
    assert picture.stat().st_size < 300_000
    for element in ET.parse(picture).getroot().iter():
        assert element.tag.rpartition("}")[2] not in {"script", "foreignObject", "image"}
        for name, value in element.attrib.items():
            assert not name.rpartition("}")[2].startswith("on"), name
            assert "href" not in name or value.startswith("#"), value
    assert svg_text(picture, "title")
    assert svg_text(picture, "desc")


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
        peer = next((prefix for name, prefix in PEERS.items() if column.startswith(name)), None)
        if peer is None:
            # What is in brackets is a baseline of ours.
            known = [each["ours"] for each in ROWS] + [value for each in ROWS for value in each["baselines"].values()]
        else:
            known = [value for each in ROWS for name, value in each["baselines"].items() if name.startswith(peer)]
        for written in re.findall(r"(?<![\w.])\d[\d,]*(?:\.\d+)?", cell):
            count += 1
            assert any(matches(written, measured) for measured in known), (row, column, written)
    assert count >= 15
