"""Measures what the tests find: plants changes, drawn at random, into the library and the scripts, and runs the tests.

    python -m tools.mutants --seed 1 --count 300 --results build/mutants.json [--workers 2] [--show] [--only PATH]

It plants one change at a time, and runs what `make test` runs of the tests that call the library. A mutant is killed
by the first test that fails, or takes much too long, and that succeeds without the mutant, behind the same other tests.
Only tests run that reach the changed line, or use the script (found once with `coverage`): some of all of them first,
then the fastest ones, up to `MOST` seconds for each stage. A line that no test reaches is a survivor. So the number of
the killed ones is a lower bound. The tests are collected once, and each mutant is planted in a copy of that process
(`tools.mutant_runs`). The results of earlier calls are kept in the file and not measured again; beside it is what the
tests reach. `--table` prints what was found for each package.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import pytest

from tools.mutant_runs import ANEW, FAILURE, PIPES

ROOT = Path(__file__).parent.parent
PYTHON = ("pyredisson/logic", "pyredisson/_backends", "pyredisson/_protocol")
LUA = "lua"
VIRTUAL, REAL = "virtual", "deterministic"
FOLDERS = ("virtual", "logic", "core", "api", "cluster", "lua", "properties")
STAGES = {
    VIRTUAL: ["--virtual", "tests/api", "tests/faults"],
    REAL: [
        "-m",
        "not real",
        *(f"tests/{name}" for name in ("virtual", "logic", "core", "api", "cluster", "lua", "properties")),
    ],
}
"""What is run."""
PLANTED = "tests/logic/test_planted_bugs.py"
"""Left out: it plants bugs itself, and takes long."""
OPTIONS = ["-q", "-x", "-n", "0", "-p", "no:randomly", "-p", "no:cacheprovider", "--deselect", PLANTED]
TOO_LONG = 1800
"""Seconds after which a run with a mutant is ended: it counts as killed. All tests take much less, and each of them has
a timeout of its own."""
FIRST = 40
"""How many of the tests that reach a line run first, taken evenly from all; then the others, the fastest ones first."""
MOST = 60
"""No more tests run in a stage than took so many seconds without a mutant, under `coverage`."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A change of one file: the text from `begin` to `end`, in bytes, is replaced."""

    path: str
    line: int
    begin: int
    end: int
    old: str
    new: str

    @property
    def package(self) -> str:
        return LUA if self.path.startswith(LUA) else "/".join(Path(self.path).parts[:2])

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.begin} `{self.old}` -> `{self.new}`"


# Drawing


def draw(seed: int, count: int, only: str) -> list[Mutant]:
    """So many of all mutants, in a random order that depends on the seed and the sources only."""
    paths = sorted(path for package in PYTHON for path in (ROOT / package).rglob("*.py"))
    found = [mutant for path in paths for mutant in python_mutants(path)]
    found += [mutant for path in sorted((ROOT / LUA).glob("*.lua")) for mutant in lua_mutants(path)]
    return [mutant for mutant in random.Random(seed).sample(found, count) if mutant.path.startswith(only)]


COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
OPERATORS: dict[type[ast.operator], tuple[str, str]] = {ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/")}
LUA_TOKENS = re.compile(r"==|~=|<=|>=|<|>|\band\b|\bor\b|\bnot |\btrue\b|\bfalse\b|(?<![\w.'\[])\d+\b(?!\])| [+-] ")
LUA_REPLACED = {
    "==": "~=", "~=": "==", "<=": "<", ">=": ">", "<": "<=", ">": ">=", "and": "or", "or": "and", "not ": "",
    "true": "false", "false": "true", " + ": " - ", " - ": " + ",
}  # fmt: skip
LUA_STATEMENT = re.compile(r"^\s*((redis\.p?call|table\.\w+)\(.*\)|[\w.\[\]]+ = .*[^{(,])$")


class Sites(ast.NodeVisitor):
    """Collects the mutants of a module."""

    def __init__(self, path: str, text: bytes) -> None:
        self.path = path
        self.text = text
        self.starts = [0]
        for line in text.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.found: list[Mutant] = []

    def span(self, node: ast.AST) -> tuple[int, int]:
        node = cast(ast.expr, node)
        end_line, end_column = cast(int, node.end_lineno), cast(int, node.end_col_offset)
        return self.starts[node.lineno - 1] + node.col_offset, self.starts[end_line - 1] + end_column

    def add(self, node: ast.AST, begin: int, end: int, new: str) -> None:
        old = self.text[begin:end].decode()
        line: int = node.lineno  # type: ignore[attr-defined]
        self.found.append(Mutant(self.path, line, begin, end, old, new))

    def between(self, node: ast.AST, left: ast.AST, right: ast.AST, words: tuple[str, str]) -> None:
        begin, end = self.span(left)[1], self.span(right)[0]
        gap = self.text[begin:end].decode()
        if (at := gap.find(words[0])) >= 0:
            self.add(node, begin + at, begin + at + len(words[0]), words[1])

    def visit_Compare(self, node: ast.Compare) -> None:
        for left, operator, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
            self.between(node, left, right, COMPARISONS[type(operator)])
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        words = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            self.between(node, left, right, words)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in OPERATORS:
            self.between(node, node.left, node.right, OPERATORS[type(node.op)])
        self.generic_visit(node)

    def visit_If(self, node: ast.If | ast.IfExp) -> None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        begin, end = self.span(node.test)
        self.add(node.test, begin, end, f"not ({self.text[begin:end].decode()})")
        self.generic_visit(node)

    visit_IfExp = visit_If

    def visit_Constant(self, node: ast.Constant) -> None:
        begin, end = self.span(node)
        if isinstance(node.value, bool):
            self.add(node, begin, end, str(not node.value))
        elif isinstance(node.value, int):
            self.add(node, begin, end, str(node.value + 1))

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call | ast.Await):
            begin, end = self.span(node)
            if not self.text[begin:end].startswith((b"logger.", b"log_exception")):
                self.add(node, begin, end, "pass")
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None):
            self.add(node, *self.span(node), "return None")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if any(isinstance(target, ast.Attribute) for target in node.targets):
            self.add(node, *self.span(node), "pass")
        self.visit(node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for default in [*node.args.defaults, *node.args.kw_defaults]:
            if default is not None:
                self.visit(default)
        for statement in node.body:
            self.visit(statement)

    visit_AsyncFunctionDef = visit_FunctionDef


def python_mutants(path: Path) -> list[Mutant]:
    text = path.read_bytes()
    sites = Sites(str(path.relative_to(ROOT)), text)
    sites.visit(ast.parse(text))
    return sites.found


def lua_mutants(path: Path) -> Iterator[Mutant]:
    name, begin = str(path.relative_to(ROOT)), 0
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), 1):
        code = re.sub(r"'[^']*'", lambda text: "_" * len(text[0]), line.partition(b"--")[0].decode())
        for match in LUA_TOKENS.finditer(code) if not code.startswith("#!") else []:
            new = str(int(match[0]) + 1) if match[0].isdigit() else LUA_REPLACED[match[0]]
            yield Mutant(name, number, begin + match.start(), begin + match.end(), match[0], new)
        statement = LUA_STATEMENT.match(code.rstrip())
        if statement and code.count("(") == code.count(")"):
            yield Mutant(name, number, begin + statement.start(1), begin + statement.end(1), line.decode().strip(), "")
        begin += len(line)


# Running


class Workspace:
    """A copy of the tree in which a mutant is planted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._times = 1_000_000_000
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        extensions = [str(path.relative_to(ROOT)) for path in ROOT.glob("pyredisson/*.so")]
        for name in [*filter(None, listed.split("\0")), *extensions]:
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)
        # As `pyredisson.lua` is found in the installed tree.
        (folder / "pyredisson" / "lua").symlink_to("../lua")
        self._collected: dict[str, Collected] = {}

    def collect(self) -> None:
        """Has the tests of all stages collected, while no mutant is planted here."""
        self._collected = {stage: Collected(self, stage) for stage in STAGES}

    def write(self, path: str, text: bytes) -> None:
        """Gives the file a time of its own, so that no compiled form of another text is used."""
        (self.folder / path).write_bytes(text)
        self._times += 10
        os.utime(self.folder / path, (self._times, self._times))

    def start(self, *arguments: str, output: IO[str], **more: Any) -> subprocess.Popen[bytes]:
        """Starts pytest there."""
        command = [sys.executable, "-m", "pytest", *OPTIONS, *arguments]
        environment = os.environ | {"PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": ""} | more.pop("env", {})
        return subprocess.Popen(
            command, cwd=self.folder, env=environment, stdout=output, stderr=output, start_new_session=True, **more
        )

    def run(self, *arguments: str, seconds: float = TOO_LONG, **more: Any) -> tuple[int, str]:
        """Runs pytest there; its status (-1: it took too long) and the last lines of what it printed."""
        with tempfile.TemporaryFile("w+") as output:
            with self.start(*arguments, output=output, **more) as process:
                try:
                    status = process.wait(seconds)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    status = -1
            output.seek(0)
            return status, output.read()[-2000:]

    def killer(self, stage: str, mutant: Mutant, sound: str, tests: list[str], seconds: dict[str, float]) -> str:
        """The first of these tests that fails with the mutant that is planted here, or what else ended the run."""
        changed = (self.folder / mutant.path).read_bytes()
        collected, answer = self._collected[stage], ""
        while tests:
            answer = collected.run(mutant.path, sound, tests, seconds)
            if not answer or answer == ANEW:
                break
            if failed := self._without(mutant, sound, changed, tests, answer, stage, seconds):
                print("fails without a mutant:", failed, (self.folder / FAILURE).read_text()[-200:], flush=True)
            elif mutant.package == LUA and answer in tests and not self._anew(stage, [answer]):
                print("fails in a copied process only:", failed := answer, flush=True)
            else:
                break
            tests, answer = [test for test in tests if test != failed], ""
        return self._anew(stage, tests) if answer == ANEW else answer

    def _without(
        self,
        mutant: Mutant,
        sound: str,
        changed: bytes,
        tests: list[str],
        answer: str,
        stage: str,
        seconds: dict[str, float],
    ) -> str:
        """Which of the tests fails without the mutant, of the same ones that have run with it."""
        (self.folder / FAILURE).write_text("it took too long", encoding="utf-8")
        self.write(mutant.path, sound.encode())
        so_far = tests[: tests.index(answer) + 1] if answer in tests else tests
        failed = self._collected[stage].run(mutant.path, sound, so_far, seconds)
        self.write(mutant.path, changed)
        return failed

    def _anew(self, stage: str, tests: list[str]) -> str:
        """As `killer`, in a new process."""
        names = self.folder / "build-tests.txt"
        names.write_text("\n".join(tests), encoding="utf-8")
        arguments = STAGES[stage]
        options = arguments[: next(n for n, word in enumerate(arguments) if word.startswith("tests"))]
        status, output = self.run(*options, f"@{names}")
        found = re.findall(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
        return "" if status in (0, 5) else found[0] if found else f"status {status}"

    def close(self) -> None:
        """Ends the processes that have collected the tests."""
        for collected in self._collected.values():
            collected.close()


class Collected:
    """A process that has collected the tests of a stage, and runs some of them with a mutant (`tools.mutant_runs`)."""

    def __init__(self, workspace: Workspace, stage: str) -> None:
        jobs, self._jobs = os.pipe()
        self._answers, answers = os.pipe()
        environment = {PIPES: f"{jobs} {answers}", "TMPDIR": tempfile.mkdtemp(dir=workspace.folder)}
        with (workspace.folder / f"output-{stage}").open("w") as output:
            arguments = ("-p", "tools.mutant_runs", *STAGES[stage])
            self._process = workspace.start(*arguments, output=output, pass_fds=(jobs, answers), env=environment)
        os.close(jobs)
        os.close(answers)
        self._lines = os.fdopen(self._answers, encoding="utf-8")
        if self._lines.readline() != "ready\n":
            raise RuntimeError((workspace.folder / f"output-{stage}").read_text())

    def run(self, path: str, sound: str, tests: list[str], seconds: dict[str, float]) -> str:
        """Which of the tests fails first, if the file at `path` is what it is now instead of `sound`."""
        job = {"path": path, "sound": sound, "tests": tests, "seconds": {test: seconds[test] for test in tests}}
        line = json.dumps(job).encode() + b"\n"
        while line:
            line = line[os.write(self._jobs, line) :]
        if not (answer := self._lines.readline()):
            raise RuntimeError("the process that has collected the tests has ended")
        return answer.strip()

    def close(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@dataclass(frozen=True, slots=True)
class Reached:
    """What the tests of a stage reach without a mutant."""

    seconds: dict[str, float]
    """How long each test takes."""
    lines: dict[str, list[str]]
    """The tests that reach a line, by `path:line`."""
    scripts: dict[str, list[str]]
    """The scripts that a test uses."""

    def tests(self, mutant: Mutant) -> list[str]:
        """The tests that may find a mutant, in the order in which they run."""
        found = self._of_script(mutant.path) if mutant.package == LUA else self._of_line(mutant)
        first = self._naming(mutant.path, found) if mutant.package == LUA else []
        first = [*first, *spread(found, FIRST)]
        seconds = 0.0
        others = sorted(set(found).difference(first), key=lambda test: self.seconds[test])
        chosen: list[str] = []
        for test in dict.fromkeys([*sorted(first, key=lambda test: self.seconds[test]), *others]):
            seconds += self.seconds[test]
            if seconds > MOST and chosen:
                break
            chosen.append(test)
        # File by file, in the order in which they ran before: each server of a module or a parameter is started once.
        files = {file: number for number, file in enumerate(dict.fromkeys(map(_file, chosen)))}
        order = {test: number for number, test in enumerate(self.seconds)}
        return sorted(chosen, key=lambda test: (files[_file(test)], order[test]))

    def _of_line(self, mutant: Mutant) -> list[str]:
        sound = (ROOT / mutant.path).read_text(encoding="utf-8")
        function, statement = around(ast.parse(sound), mutant.line)
        if function:
            at_line = self.lines.get(f"{mutant.path}:{mutant.line}")
            return at_line or self.lines.get(f"{mutant.path}:{statement}", [])
        # It runs when the module is imported, or the class or the function is made.
        module = mutant.path + ":"
        return sorted({test for line, tests in self.lines.items() if line.startswith(module) for test in tests})

    def _naming(self, path: str, tests: list[str]) -> list[str]:
        """Of those tests the ones that name the script, or whose file does."""
        script = Path(path).stem
        files = {_file(test) for test in tests if test.startswith("tests/lua/")}
        naming = {file for file in files if script in (ROOT / file).read_text(encoding="utf-8")}
        return [test for test in tests if f"[{script}" in test or _file(test) in naming]

    def _of_script(self, path: str) -> list[str]:
        names = {Path(path).stem}
        texts = {file.stem: file.read_text(encoding="utf-8") for file in (ROOT / LUA).glob("*.lua")}
        while more := {
            name
            for name, text in texts.items()
            if name not in names and any(f"include: {one}\n" in text for one in names)
        }:
            names |= more
        # A test of scripts calls them by name, without a client.
        return [
            test
            for test in self.seconds
            if not names.isdisjoint(self.scripts.get(test, ())) or test.startswith(("tests/lua/", "tests/properties/"))
        ]


def _file(test: str) -> str:
    return test.partition("::")[0]


def around(tree: ast.Module, line: int) -> tuple[bool, int]:
    """Whether the line is in the body of a function, and where the statement begins that it is part of."""
    in_function, begin = False, line
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno):
            begin = node.lineno
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and line >= node.body[0].lineno:
                in_function = True
    return in_function, begin


def spread(tests: list[str], count: int) -> list[str]:
    """So many of the tests at most, taken evenly from all."""
    return [tests[number * len(tests) // count] for number in range(count)] if len(tests) > count else tests


def outcome_of(mutant: Mutant, workspace: Workspace, reached: dict[str, Reached]) -> dict[str, str]:
    """What has killed a mutant: the stage and the test; nothing for a survivor. A script has tests of its own, which
    run first."""
    text = (ROOT / mutant.path).read_bytes()
    workspace.write(mutant.path, text[: mutant.begin] + mutant.new.encode() + text[mutant.end :])
    try:
        for stage in reversed(STAGES) if mutant.package == LUA else STAGES:
            tests = reached[stage].tests(mutant)
            if tests and (by := workspace.killer(stage, mutant, text.decode(), tests, reached[stage].seconds)):
                return {"stage": stage, "by": by}
    finally:
        workspace.write(mutant.path, text)
    return {}


class Contexts:
    """A plugin of pytest: tells `coverage` which test runs, and notes how long it takes and which scripts it uses."""

    def __init__(self, file: str) -> None:
        import coverage

        self._coverage = coverage.Coverage(data_file=file, source=["pyredisson"])
        self._coverage.start()
        self._file = Path(file)
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._scripts: defaultdict[str, set[str]] = defaultdict(set)
        self._test = ""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self) -> None:
        from pyredisson._protocol.scripts import NAMES, ScriptSet

        def get(scripts: object, name: str) -> Any:
            if name in names:
                self._scripts[self._test].add(name)
            return object.__getattribute__(scripts, name)

        names = set(NAMES)
        ScriptSet.__getattribute__ = get  # type: ignore[method-assign]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self._test = item.nodeid
        self._coverage.switch_context(item.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration

    def pytest_unconfigure(self) -> None:
        self._coverage.stop()
        self._coverage.save()
        scripts = {test: sorted(names) for test, names in self._scripts.items()}
        self._file.with_suffix(".json").write_text(json.dumps({"seconds": self._seconds, "scripts": scripts}))


def pytest_configure(config: pytest.Config) -> None:
    if "MUTANTS_COVERAGE" in os.environ:
        config.pluginmanager.register(Contexts(os.environ["MUTANTS_COVERAGE"]))


def reached_by(stage: str, folder: Path, cached: Path) -> Reached:
    """What the tests of a stage reach: from an earlier call, or from a run with `coverage`."""
    import coverage

    file = cached.with_name(f"{cached.stem}-{stage}")
    if not file.with_suffix(".json").exists():
        workspace = Workspace(folder / f"reached-{stage}")
        status, output = workspace.run(
            "-p", "tools.mutants", *STAGES[stage], seconds=3600, env={"MUTANTS_COVERAGE": str(file.absolute())}
        )
        if status:
            raise SystemExit(f"the tests fail without a mutant:\n{output}")
    known = json.loads(file.with_suffix(".json").read_text())
    lines: dict[str, list[str]] = {}
    data = coverage.CoverageData(str(file))
    data.read()
    for name in data.measured_files():
        path = name[name.rindex("/pyredisson/") + 1 :]
        for line, tests in data.contexts_by_lineno(name).items():
            lines[f"{path}:{line}"] = sorted(filter(None, tests))
    return Reached(known["seconds"], lines, known["scripts"])


# Results


def measure(mutants: list[Mutant], results: Path, workers: int) -> None:
    known: dict[str, dict[str, str]] = json.loads(results.read_text()) if results.exists() else {}
    waiting = [mutant for mutant in reversed(mutants) if str(mutant) not in known]
    with tempfile.TemporaryDirectory() as folder:
        reached = {stage: reached_by(stage, Path(folder), results) for stage in STAGES}

        def work(number: int) -> None:
            workspace = Workspace(Path(folder, str(number)))
            try:
                workspace.collect()
                while waiting:
                    mutant = waiting.pop()
                    known[str(mutant)] = outcome_of(mutant, workspace, reached)
                    results.write_text(json.dumps(known, indent=1))
                    print(known[str(mutant)] or "SURVIVED", mutant, flush=True)
            finally:
                workspace.close()

        threads = [threading.Thread(target=work, args=(number,)) for number in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def print_table(mutants: list[Mutant], results: Path) -> None:
    known: dict[str, dict[str, str]] = json.loads(results.read_text())
    measured = [mutant for mutant in mutants if str(mutant) in known]
    all_of = Counter(mutant.package for mutant in measured)
    killed = Counter(mutant.package for mutant in measured if known[str(mutant)])
    print("| package | mutants | killed |", "|---|---|---|", sep="\n")
    for package in sorted(all_of):
        print(f"| `{package}` | {all_of[package]} | {killed[package]} ({killed[package] / all_of[package]:.0%}) |")
    print(f"| all | {len(measured)} | {killed.total()} ({killed.total() / max(1, len(measured)):.0%}) |\n")
    for mutant in measured:
        if not known[str(mutant)]:
            print("survived:", mutant)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--only", default="", metavar="PATH", help="only those of them that are below this path")
    parser.add_argument("--results", type=Path, default=ROOT / "build/mutants.json")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--show", action="store_true", help="only print the mutants that are drawn")
    parser.add_argument("--table", action="store_true", help="only print what was found")
    arguments = parser.parse_args()
    mutants = draw(arguments.seed, arguments.count, arguments.only)
    if arguments.show:
        print(*mutants, sep="\n")
        return
    if not arguments.table:
        arguments.results.parent.mkdir(parents=True, exist_ok=True)
        measure(mutants, arguments.results, arguments.workers)
    print_table(mutants, arguments.results)


if __name__ == "__main__":
    main()
