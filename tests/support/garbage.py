"""Garbage collections at a chosen line: a finalizer may run on any of them, on the thread that runs the collection."""

import gc
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

from pyredisson._backends.runtime import clock
from pyredisson._backends.threads.wakeup import ThreadWakeup
from pyredisson.logic.channels import Channel, ChannelRegistry

TIME_LIMIT = 5.0


@contextmanager
def only_collections_asked_for() -> Iterator[None]:
    """No other collection, and those that are asked for, and all later ones, look at nothing that exists already."""
    gc.collect()
    gc.disable()
    gc.freeze()
    yield
    gc.enable()


class Garbage:
    """A cycle that only the garbage collector can find, with a finalizer."""

    def __init__(self, finalizer: Callable[[], object]) -> None:
        self._finalizer = finalizer
        self._me = self

    def __del__(self) -> None:
        self._finalizer()


DuringCall = tuple[Callable[[], object], Callable[[], object]]
"""What is done, and the finalizer that runs meanwhile."""


def collect_at_each_line(functions: Iterable[Any], scenario: Callable[[], DuringCall]) -> int:
    """Runs a scenario for each line of the functions, with a collection there. Returns how many lines there were."""
    codes = {function.__code__ for function in functions}
    steps = 1
    while _with_collection(codes, steps, *scenario()):
        steps += 1
    assert steps > 1, "no line of the functions was run"
    return steps - 1


def _with_collection(codes: set[CodeType], step: int, act: Callable[[], Any], finalizer: Callable[[], Any]) -> bool:
    errors: list[BaseException] = []
    left = step

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if frame.f_code not in codes:
            return None
        left -= event == "line"
        if event == "line" and not left:
            Garbage(finalizer)
            gc.collect()
        return trace

    def run() -> None:
        sys.settrace(trace)
        try:
            act()
            if left > 0:
                # There was no such line.
                finalizer()
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)
        finally:
            sys.settrace(None)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(TIME_LIMIT)
    assert not thread.is_alive(), f"it waits for itself, from line event {step} on"
    for error in errors:
        raise error
    return left <= 0


class Nobody:
    """A subscriber that has nothing to do."""

    def subscribe(self, channels: Iterable[bytes]) -> None: ...
    def unsubscribe(self, channels: Iterable[bytes]) -> None: ...


def registry_with(kind: type[Channel], *needs: int) -> tuple[ChannelRegistry, list[ThreadWakeup]]:
    channels = ChannelRegistry(clock)
    channels.subscriber = Nobody()
    signals = [ThreadWakeup() for _ in needs]
    for signal, need in zip(signals, needs, strict=True):
        channels.join(b"a", signal, kind, need)
    return channels, signals
