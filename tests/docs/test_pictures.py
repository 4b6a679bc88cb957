"""The figures in pictures and tables are those of the benchmarks, and the pictures move without scripts."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree as ET

import pytest

ROOT = Path(__file__).parents[2]
ASSETS = ROOT / "docs" / "assets"
ROWS: list[dict[str, Any]] = json.loads((ASSETS / "benchmarks.json").read_text("utf-8"))["rows"]
PEERS = {"redis-py": "redis", "python-redis-lock": "python-redis-lock", "Redisson": "Redisson", "bare": "bare"}
"""How a column of a table begins, and how the baselines do whose figures it has."""


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def svg_text(picture: Path, tag: str) -> str:
    found = ET.parse(picture).getroot().find(f"{{http://www.w3.org/2000/svg}}{tag}")
    assert found is not None
    return found.text or ""


def test_the_chart_shows_the_figures_of_the_benchmarks() -> None:
    chart = tool("benchmark_chart")
    assert svg_text(ASSETS / "benchmarks.svg", "desc") == chart.describe({row["name"]: row for row in ROWS})


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


def test_a_terminal_becomes_a_picture_that_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = tool("terminal_svg")
    monkeypatch.setattr(terminal, "STEP", 0.0)
    monkeypatch.setattr(
        terminal, "_outputs", lambda _: iter([b"one", b"", b"\r\033[2K\033[1;31mtwo & <three>\033[0m", b""])
    )
    shown, length = terminal.record([])
    texts = {"".join(run.text for run in each.line): each for each in shown}
    assert set(texts) == {"one", "two & <three>"}
    assert texts["one"].end == texts["two & <three>"].begin > 0
    assert texts["two & <three>"].end is None
    (run,) = texts["two & <three>"].line
    assert run.bold
    assert run.colour == terminal.COLOURS["red"]
    picture = tmp_path / "terminal.svg"
    picture.write_text(terminal.draw(shown, length, "a title", terminal.last_screen(shown)), "utf-8")
    assert svg_text(picture, "desc") == "two & <three>"
    drawn = ["".join(each.itertext()) for each in ET.parse(picture).getroot().iter() if each.tag.endswith("}tspan")]
    assert sorted(drawn) == ["one", "two & <three>"]


def test_a_program_runs_in_the_terminal() -> None:
    terminal = tool("terminal_svg")
    program = (
        "import sys; print('columns', __import__('os').get_terminal_size().columns, sys.stdin.isatty()); sys.exit({})"
    )
    shown, _ = terminal.record([sys.executable, "-c", program.format(0)])
    assert terminal.last_screen(shown) == f"columns {terminal.COLUMNS} True"
    with pytest.raises(subprocess.CalledProcessError):
        terminal.record([sys.executable, "-c", program.format(3)])


def figures(page: str) -> Iterator[tuple[str, str, str]]:
    """The rows of tables whose columns are libraries: (row, column, cell)."""
    text = (ROOT / page).read_text("utf-8")
    section = text.partition("## Performance" if page == "README.md" else "## How fast they are")[2].partition("\n## ")[
        0
    ]
    for table in re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE):
        head, _, *lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
        for row, *cells in lines:
            for column, cell in zip(head[1:], cells, strict=True):
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
