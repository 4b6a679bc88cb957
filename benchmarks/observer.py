"""What an observer costs, and that its hooks cost nothing without one: processor time of lock() and unlock()."""

from __future__ import annotations

import ast
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from time import process_time, thread_time
from types import ModuleType
from typing import Any

from prometheus_client import CollectorRegistry

import pyredisson
from benchmarks import Row, Target
from benchmarks.measure import interleave, one_core
from pyredisson._api.sync.locks import Lock
from pyredisson._diagnostics import tracing
from pyredisson.events import METHODS, Event
from pyredisson.logic.locks import moving, releasing, rlock
from pyredisson.observe import PrometheusObserver
from pyredisson.testing import Server

PAIRS = 100
"""In each turn: short turns, so that what disturbs one turn disturbs both contenders."""


def rows(*, quick: bool) -> list[Row]:
    """Without an observer, beside the same code without its hooks. Then two observers, beside a client without."""
    return [_hooks(40 if quick else 600), *_observers(10 if quick else 60)]


def _hooks(rounds: int) -> Row:
    assert not tracing.on, "the flag is of the process, and stays set"
    with one_core(), Server() as server, pyredisson.connect(server.url) as client:
        contenders = {
            "pyredisson": _by_thread(client.get_lock("a")),
            "without hooks": _by_thread(client._lock(Lock, without_hooks(), "a")),
        }
        samples = interleave(contenders, rounds)
    return Row(
        name="no observer *",
        what="processor time of lock() + unlock() in a client without an observer, beside the same code without hooks",
        unit="us/pair",
        ours=samples.median("pyredisson"),
        baselines=samples.medians("pyredisson"),
        ratio=samples.ratio("pyredisson", "without hooks"),
        target=Target("ratio", "<=", 1.01),
    )


def _observers(rounds: int) -> list[Row]:
    class Empty:
        """Has all methods, which do nothing."""

        def ignore(self, event: Event) -> None:
            pass

    for method in METHODS:
        setattr(Empty, method, Empty.ignore)
    observers = {"none": None, "empty": Empty(), "Prometheus": PrometheusObserver(CollectorRegistry())}
    with one_core(), ExitStack() as stack:
        server = stack.enter_context(Server())
        contenders = {}
        for name, observer in observers.items():
            client = stack.enter_context(pyredisson.connect(server.url, observer=observer))
            contenders[name] = _by_process(client)
        samples = interleave(contenders, rounds)
    texts = {"empty": "an observer with empty methods", "Prometheus": "a PrometheusObserver"}
    return [
        Row(
            name=f"{text} *",
            what="processor time of lock() + unlock() and of delivering the two events, beside a client without one",
            unit="us/pair",
            ours=samples.median(name),
            baselines={"no observer": samples.median("none")},
            ratio=samples.ratio(name, "none"),
        )
        for name, text in texts.items()
    ]


def _by_thread(lock: Lock) -> Callable[[], float]:
    """A contender that returns the microseconds of processor time of this thread, for each pair."""

    def run() -> float:
        began = thread_time()
        for _ in range(PAIRS):
            lock.lock()
            lock.unlock()
        return (thread_time() - began) / PAIRS * 1e6

    return run


def _by_process(client: pyredisson.Client) -> Callable[[], float]:
    """The same, of all threads, until the observer was told of everything."""
    lock, delivery = client.get_lock("a"), client._lifecycle.delivery
    count = 10 * PAIRS

    def run() -> float:
        began = process_time()
        for _ in range(count):
            lock.lock()
            lock.unlock()
        if delivery is not None:
            assert delivery.drain(10)
        return (process_time() - began) / count * 1e6

    return run


class _Remover(ast.NodeTransformer):
    """Removes each `if` that asks whether somebody wants to be told."""

    def __init__(self) -> None:
        self.removed = 0

    def visit_If(self, node: ast.If) -> ast.AST | None:
        if "tracing." in ast.unparse(node.test) or ".observing" in ast.unparse(node.test):
            assert not node.orelse
            self.removed += 1
            return None
        return self.generic_visit(node)


def without_hooks() -> type[rlock.LockLogic]:
    """The logic of a lock, compiled from the same source without hooks."""
    names = _compiled(releasing, {})
    names = _compiled(moving, {"ReleasingLock": names["ReleasingLock"]})
    names = _compiled(rlock, {"MovingLock": names["MovingLock"]})
    logic: type[rlock.LockLogic] = names["LockLogic"]
    return logic


def _compiled(module: ModuleType, replaced: dict[str, Any]) -> dict[str, Any]:
    assert module.__file__ is not None
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    remover = _Remover()
    remover.visit(tree)
    assert remover.removed, f"{module.__name__} has no hooks"
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    # Only the classes: everything else is that of the module.
    names = {**vars(module), **replaced}
    code = compile(ast.fix_missing_locations(ast.Module(body=list(classes), type_ignores=[])), module.__file__, "exec")
    exec(code, names)
    return names
