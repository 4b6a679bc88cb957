"""Draws the chart of the README and of docs/comparison.md from the JSON that `make bench` writes.

python tools/benchmark_chart.py docs/assets/benchmarks.json docs/assets/benchmarks.svg
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

OURS, OTHERS, BARE = "#3f51b5", "#b0b7c3", "#e3e6eb"
LESS, MORE = "less is better", "more is better"


@dataclass(frozen=True)
class Panel:
    """One group of bars: a row of the benchmarks, and those of its baselines that a reader may use instead."""

    title: str
    better: str
    row: str
    names: dict[str, str]
    """From a baseline of the row to the word below its bar."""
    also: str = ""
    """A second row with the same figure of ours and another baseline."""


PANELS = (
    Panel(
        "lock() and unlock() of a free lock, µs",
        LESS,
        "sync, 1 thread *",
        {"bare loop": "bare sockets", "redis-py Lock": "redis-py", "python-redis-lock": "python-redis-lock"},
    ),
    Panel(
        "asyncio, 500 tasks on 500 locks, pairs/s",
        MORE,
        "asyncio, 500 tasks *",
        {"bare protocol": "bare protocol", "redis.asyncio Lock": "redis-py"},
        also="asyncio, 500 tasks, beside redis.asyncio *",
    ),
    Panel(
        "8 threads on 8 locks, pairs/s",
        MORE,
        "sync, 8 threads",
        {"bare loop": "bare sockets", "redis-py Lock": "redis-py", "python-redis-lock": "python-redis-lock"},
    ),
    Panel(
        "from unlock() to lock() in another process, ms",
        LESS,
        "hand-off",
        {"bare sockets": "bare sockets", "redis-py Lock": "redis-py"},
    ),
    Panel(
        "script calls to acquire a lock that 16 threads want",
        LESS,
        "2 processes of 8 threads, calls",
        {"bare sockets": "bare sockets", "redis-py Lock": "redis-py", "Redisson": "Redisson"},
    ),
    Panel(
        "pairs/s of these 16 threads in 2 processes",
        MORE,
        "2 processes of 8 threads",
        {"bare sockets": "bare sockets", "redis-py Lock": "redis-py", "Redisson": "Redisson"},
    ),
)


def figures(panel: Panel, rows: dict[str, Any]) -> dict[str, float]:
    """The bars of a panel. KeyError: the run has no such row or baseline."""
    row = rows[panel.row]
    baselines = dict(row["baselines"])
    if panel.also:
        baselines |= rows[panel.also]["baselines"]
    return {"pyredisson": row["ours"], **{word: baselines[name] for name, word in panel.names.items()}}


def readable(value: float) -> str:
    """Three digits at most, with commas."""
    return f"{float(f'{value:.3g}'):,.0f}" if value >= 100 else f"{value:.3g}"


def describe(rows: dict[str, Any]) -> str:
    """The figures of all panels as text."""
    return "; ".join(
        f"{panel.title}: " + ", ".join(f"{name} {readable(value)}" for name, value in figures(panel, rows).items())
        for panel in PANELS
    )


def draw(content: dict[str, Any]) -> Figure:
    """The chart."""
    rows = {row["name"]: row for row in content["rows"]}
    figure = Figure(figsize=(10.4, 5.6), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.1)  # type: ignore[union-attr, call-arg]
    for panel, axes in zip(PANELS, figure.subplots(3, 2).flat, strict=True):
        _bars(axes, panel, figures(panel, rows))
    figure.supxlabel(
        f"make bench: {content['server']}, Python {content['python']}, {content['cores']} cores. "
        "Bare sockets: the same scripts without a library.",
        fontsize=8.5,
        color="#555",
    )
    return figure


def _bars(axes: Axes, panel: Panel, values: dict[str, float]) -> None:
    colours = [
        OURS if name == "pyredisson" else BARE if name.startswith("bare") else OTHERS for name in reversed(values)
    ]
    bars = axes.barh(list(reversed(values)), list(reversed(values.values())), color=colours, height=0.7)
    axes.bar_label(bars, [readable(value) for value in reversed(values.values())], padding=4, fontsize=9)
    axes.set_title(f"{panel.title}  ({panel.better})", loc="left", fontsize=9.5)
    axes.set_xlim(0, 1.14 * max(values.values()))
    axes.set_xticks([])
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.tick_params(axis="y", length=0, labelsize=9)


def main(source: Path, out: Path) -> None:
    content = json.loads(source.read_text("utf-8"))
    # The same figures make the same file.
    mpl.rcParams.update({"svg.hashsalt": "pyredisson", "svg.fonttype": "path"})
    draw(content).savefig(out, metadata={"Date": None})
    text = describe({row["name"]: row for row in content["rows"]})
    picture = re.sub(r"<metadata>.*?</metadata>", "", out.read_text("utf-8"), count=1, flags=re.DOTALL)
    picture = re.sub(r"(<svg [^>]*>)", rf"\1\n<title>Benchmarks</title>\n<desc>{escape(text)}</desc>", picture, count=1)
    out.write_text(picture, "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
