"""Reports of a run: a table for the terminal, JSON for programs, and a chart."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from benchmarks import Row
from pyredisson.testing import Server

HEADER = ("benchmark", "ours", "unit", "ratio", "target", "met", "beside")
MET = {True: "yes", False: "MISSED", None: ""}
GOOD, BAD = "#3a7d5c", "#c0392b"


def table(rows: Sequence[Row]) -> str:
    """The rows, and which targets were missed."""
    lines = [HEADER, *map(_line, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    readable = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
    readable.insert(1, "  ".join("-" * width for width in widths))
    judged = [row for row in rows if row.target is not None]
    missed = [row.name for row in judged if not row.met]
    verdict = f"{len(judged) - len(missed)} of {len(judged)} targets met"
    return "\n".join(
        [
            *readable,
            "",
            "* everything pinned to one core; ratio: ours to the first one beside it",
            f"{verdict}; missed: {', '.join(missed)}" if missed else verdict,
        ]
    )


def write_json(rows: Sequence[Row], path: Path) -> None:
    """The rows, with the versions and the processor they were measured on."""
    server = Server()
    content = {
        "pyredisson": version("pyredisson"),
        "python": platform.python_version(),
        "server": f"{Path(server.executable).name} {'.'.join(map(str, server.version))}",
        "libraries": {name: version(name) for name in ("hiredis", "redis")},
        "cores": os.cpu_count(),
        "rows": [
            {
                "name": row.name,
                "what": row.what,
                "unit": row.unit,
                "ours": _rounded(row.ours),
                "baselines": {name: _rounded(value) for name, value in row.baselines.items()},
                "ratio": None if row.ratio is None else _rounded(row.ratio),
                "target": row.target_text or None,
                "met": row.met,
            }
            for row in rows
        ],
    }
    path.write_text(json.dumps(content, indent=2) + "\n")


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draws a bar for each target: the figure relative to its target."""
    # Imported here, because only full runs need matplotlib.
    from matplotlib.figure import Figure

    bars = [(row, row.used) for row in reversed(rows) if row.used is not None]
    figure = Figure(figsize=(10, 0.42 * len(bars) + 1.4), layout="constrained")
    axes = figure.subplots()
    axes.barh(
        [row.name for row, _ in bars],
        [used for _, used in bars],
        color=[GOOD if row.met else BAD for row, _ in bars],
        height=0.62,
    )
    for place, (row, _) in enumerate(bars):
        # In a column at the right: beside its bar the text would cross the line of the target.
        text = f"{_number(row.judged)} {row.judged_unit}   (target {row.target_text})"
        axes.annotate(text, (1.01, place), xycoords=("axes fraction", "data"), va="center", fontsize=9)
    axes.axvline(1, color="black", linewidth=1, linestyle="--")
    axes.set_xlim(0, 1.05 * max(1.0, *(used for _, used in bars)))
    axes.set_xlabel("share of what the target allows (left of the dashed line: met)")
    axes.set_title("pyredisson beside its baselines", loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    figure.savefig(path, dpi=120)


def _line(row: Row) -> tuple[str, ...]:
    beside = ", ".join(f"{name} {_number(value)}" for name, value in row.baselines.items())
    ratio = "" if row.ratio is None else f"{_number(row.ratio)} x"
    return (row.name, _number(row.ours), row.unit, ratio, row.target_text, MET[row.met], beside)


def _number(value: float) -> str:
    """Three significant digits, or all digits before the decimal point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
