"""The site: its reference has every public name, its pictures say what the tables say, and it fetches nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit
from xml.etree import ElementTree as ET

import pytest
import yaml

import pyredisson
import pyredisson.asyncio
import pyredisson.errors
import pyredisson.testing

# A build of the site uses much computing time, which other tests take from it.
pytestmark = pytest.mark.timeout(300)
ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PICTURE = DOCS / "assets" / "which-primitive.svg"
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
    assert public.__doc__
    if isinstance(public, type):
        methods = {each: member for each, member in vars(public).items() if not each.startswith("_")}
        missing = [each for each, member in methods.items() if callable(member) and not member.__doc__]
        assert not missing


def test_the_picture_names_the_primitives_that_exist() -> None:
    root = ET.parse(PICTURE).getroot()
    tags = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert {"title", "desc"} <= tags
    assert not tags & {"script", "image", "foreignObject", "use"}
    drawn = {"".join(element.itertext()) for element in root.iter() if element.get("class") == "primitive"}
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
