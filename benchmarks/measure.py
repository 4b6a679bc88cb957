"""How to measure so that figures repeat: pinning, interleaved rounds, medians, fresh processes."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from statistics import median
from time import perf_counter
from typing import ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")

WARM_UP = 2
"""Rounds that are not counted: connections are opened, scripts loaded and caches filled in them."""


class Samples:
    """The measurements of each contender in each round."""

    def __init__(self, rounds: list[dict[str, float]]) -> None:
        self._rounds = rounds

    def median(self, name: str) -> float:
        """The contender's median."""
        return median(round_[name] for round_ in self._rounds)

    def medians(self, *without: str) -> dict[str, float]:
        """The medians of all contenders except the named ones."""
        return {name: self.median(name) for name in self._rounds[0] if name not in without}

    def ratio(self, over: str, under: str) -> float:
        """The median of the ratios of all rounds: a round that is slow as a whole doesn't change its ratio."""
        return median(round_[over] / round_[under] for round_ in self._rounds)

    def difference(self, more: str, less: str) -> float:
        """The median of the differences of all rounds."""
        return median(round_[more] - round_[less] for round_ in self._rounds)


def interleave(contenders: Mapping[str, Callable[[], float]], rounds: int) -> Samples:
    """Lets the contenders take turns, every other round in reverse order."""
    names = list(contenders)
    taken = []
    for _ in range(WARM_UP + rounds):
        taken.append({name: contenders[name]() for name in names})
        names.reverse()
    first = taken[WARM_UP]
    order = {name: first[name] for name in contenders}
    return Samples([{name: round_[name] for name in order} for round_ in taken[WARM_UP:]])


def timed(step: Callable[[], object], count: int) -> Callable[[], float]:
    """A contender that returns the microseconds per step, over `count` steps."""

    def run() -> float:
        began = perf_counter()
        for _ in range(count):
            step()
        return (perf_counter() - began) / count * 1e6

    return run


@contextmanager
def one_core() -> Iterator[None]:
    """Pins the calling thread, and all threads and processes that it starts inside, to one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def in_fresh_process(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Calls a function of a module in a new process, in which nothing was imported, allocated or started before."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        return pool.submit(function, *args, **kwargs).result()
