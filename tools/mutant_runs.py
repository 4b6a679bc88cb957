"""A plugin of pytest that collects the tests once, and runs some of them with one mutant after another.

Each mutant is planted in a process of its own, a copy of the one that has collected the tests. `tools.mutants` writes
one job a line to the pipe in `MUTANTS_PIPES`: the file that was changed, its text before, and the tests in their order.
The answer is a line, too: the test that failed first, or what else ended the run; empty for a survivor.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NoReturn

import pytest

PIPES = "MUTANTS_PIPES"
FAILURE = "failure.txt"
"""Has the report of the latest test that has failed."""
ANEW = "in a new process"
"""The answer for a change that can't be planted into a process that has imported the module."""
FACTOR, MORE = 10, 40
"""A test with a mutant that takes ten times as long as without one, and 40 s more, counts as failed."""


class Runs:
    """Runs the jobs instead of all tests."""

    def __init__(self, jobs: int, answers: int) -> None:
        self._jobs, self._answers = jobs, answers

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            Path(FAILURE).write_text(report.longreprtext, encoding="utf-8")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        with open(self._jobs, encoding="utf-8") as jobs, open(self._answers, "w", encoding="utf-8") as answers:
            print("ready", file=answers, flush=True)
            for line in jobs:
                job = json.loads(line)
                print(run_beside(session, [items[test] for test in job["tests"]], job), file=answers, flush=True)
        return True


def pytest_configure(config: pytest.Config) -> None:
    if PIPES in os.environ:
        config.pluginmanager.register(Runs(*map(int, os.environ[PIPES].split())))


def run_beside(session: pytest.Session, items: list[pytest.Item], job: dict[str, Any]) -> str:
    """Runs the tests in a copy of this process, until one fails, or takes too long."""
    reports, reporting = os.pipe()
    if not (process := os.fork()):
        os.close(reports)
        run_here(session, items, job, reporting)
    os.close(reporting)
    try:
        for item in [None, *items]:
            limit = MORE + FACTOR * (job["seconds"][item.nodeid] if item else 0.0)
            report = read_line(reports, limit)
            if report != "passed":
                return report or (item.nodeid if item else "no start")
    finally:
        os.close(reports)
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    return ""


def read_line(pipe: int, seconds: float) -> str:
    """A line from the pipe; empty if there is none for so long, or the other process has ended."""
    deadline, line = time.monotonic() + seconds, b""
    while not line.endswith(b"\n"):
        if not select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return ""
        if not (byte := os.read(pipe, 1)):
            return "the process ended"
        line += byte
    return line.decode().strip()


def run_here(session: pytest.Session, items: list[pytest.Item], job: dict[str, Any], reporting: int) -> NoReturn:
    """In the copy of the process: plants the mutant, and runs the tests."""
    with open(reporting, "w", encoding="utf-8") as reports:
        path, sound = Path(job["path"]), job["sound"]
        planted = plant_script(path, sound) if path.suffix == ".lua" else plant_code(path, sound)
        print("passed" if planted else ANEW, file=reports, flush=True)
        if planted:
            for item, following in zip(items, [*items[1:], None], strict=True):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                print(item.nodeid if session.testsfailed else "passed", file=reports, flush=True)
                if session.testsfailed:
                    break
        # The other process ends this one.
        signal.pause()
    os._exit(0)


# Planting


def plant_code(path: Path, sound: str) -> bool:
    """Gives functions of the module the code of the changed file. False: the change is outside of functions."""
    file = str(path.absolute())
    before, after = compile(sound, file, "exec"), compile(path.read_text(encoding="utf-8"), file, "exec")
    changed = list(changed_functions(before, after))
    if None in changed:
        return False
    functions = [each for each in gc.get_objects() if isinstance(each, FunctionType)]
    for old, new in filter(None, changed):
        found = [each for each in functions if each.__code__ == old and each.__code__.co_filename.endswith(str(path))]
        if not found or old.co_freevars != new.co_freevars:
            return False
        for function in found:
            function.__code__ = new
    return True


OPTIMIZED = 1
"""The flag of the code of functions, which that of modules and classes lacks."""


def changed_functions(before: CodeType, after: CodeType) -> Iterator[tuple[CodeType, CodeType] | None]:
    """The outermost functions whose code has changed, old and new. None: that of a class or a module has."""
    if before == after:
        return
    if before.co_flags & OPTIMIZED:
        yield before, after
        return
    inner = [[each for each in code.co_consts if isinstance(each, CodeType)] for code in (before, after)]
    outer = [[each for each in code.co_consts if not isinstance(each, CodeType)] for code in (before, after)]
    if before.co_code != after.co_code or outer[0] != outer[1] or before.co_names != after.co_names:
        yield None
        return
    for old, new in zip(*inner, strict=True):
        yield from changed_functions(old, new)


def plant_script(path: Path, sound: str) -> bool:
    """Changes all scripts that were made from the file, and what the modules know of them.

    Not all that they may know: so `tools.mutants` repeats a test that has failed in a new process.
    """
    from pyredisson._protocol import scripts

    changed: dict[bytes, bytes] = {}
    folders = tuple(str(Path(name).absolute()) for name in ("tests", "pyredisson"))
    scripts._scripts.cache_clear()
    for script in [each for each in gc.get_objects() if isinstance(each, scripts.Script)]:
        new = scripts.Script(script.name, with_shebang=script.text.startswith(b"#!lua"))
        changed |= {script.text: new.text, script.sha: new.sha}
        script.text, script.sha = new.text, new.sha
    for module in list(sys.modules.values()):
        if (getattr(module, "__file__", None) or "").startswith(folders):
            for name, value in list(vars(module).items()):
                if isinstance(value, bytes) and value in changed:
                    setattr(module, name, changed[value])
                elif isinstance(value, dict):
                    known = [(key, changed[key]) for key in value if isinstance(key, bytes) and key in changed]
                    for old, key in known:
                        value[key] = value[old]
    return True
