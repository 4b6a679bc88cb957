"""The figures in pictures and tables are those of the benchmarks, and the pictures move without scripts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from tools import benchmark_chart

ROOT = Path(__file__).parents[2]
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
