"""The public API for threads is generated from the one for asyncio, and says the same."""

from __future__ import annotations

import importlib.util
import inspect
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import pyredisson
import pyredisson.asyncio

ROOT = Path(__file__).parents[2]
SOURCE, TWIN = "pyredisson/_api/aio/locks.py", "pyredisson/_api/sync/locks.py"


def load_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("async_to_sync", ROOT / "tools/async_to_sync.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TOOL = load_tool()


def run_tool(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "tools/async_to_sync.py", *arguments]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), "utf-8")


class TestStaleTwins:
    @pytest.fixture
    def copy(self, tmp_path: Path) -> Path:
        """A copy of all that the tool reads."""
        for name in ("tools", "pyredisson/_api"):
            shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        # By these two ruff knows the line length, and which imports are the project's own.
        for name in ("pyproject.toml", "pyredisson/__init__.py"):
            shutil.copy(ROOT / name, tmp_path / name)
        return tmp_path

    def test_the_committed_files_are_not_stale(self) -> None:
        checked = run_tool(ROOT, "--check")
        assert (checked.returncode, checked.stderr) == (0, "")

    @pytest.mark.parametrize("edited", [SOURCE, TWIN])
    def test_an_edited_line_is_found(self, copy: Path, edited: str) -> None:
        edit(copy / edited, "deadline)", "None)")
        checked = run_tool(copy, "--check")
        said = f"{TWIN} isn't what {SOURCE} makes it\nedit the source in pyredisson/_api/aio, then run: make twins\n"
        assert (checked.returncode, checked.stderr) == (1, said)

    def test_missing_and_leftover_files_are_found_and_writing_makes_it_right(self, copy: Path) -> None:
        (copy / TWIN).unlink()
        (copy / "pyredisson/_api/sync/leftover.py").touch()
        (copy / "pyredisson/_api/aio/blocks.py").unlink()
        edit(copy / SOURCE, "A coroutine function runs on", "A coroutine function is run on")
        checked = run_tool(copy, "--check")
        assert checked.returncode == 1
        assert f"{TWIN} is missing" in checked.stderr
        assert "pyredisson/_api/sync/leftover.py has no source" in checked.stderr
        assert "pyredisson/_api/aio/blocks.py is missing" in checked.stderr
        assert "ASYNCIO_ONLY names a line that is in no source: A coroutine function" in checked.stderr
        edit(copy / SOURCE, "A coroutine function is run on", "A coroutine function runs on")
        run_tool(copy)
        assert (copy / TWIN).read_text("utf-8") == (ROOT / TWIN).read_text("utf-8")

    @pytest.mark.parametrize(
        ("method", "line", "message"),
        [
            ("def f(self) -> Awaitable[int]:\n    return self._logic.count()", 1, "Awaitable is translated only"),
            ("def f(self) -> Any:\n    return self._logic.count()", 2, "self._logic.count is neither awaited"),
            ("async def f(self) -> int:\n    c = self._logic.count()\n    return await c", 3, "can be awaited: c"),
            ("def f(self) -> None:\n    c = self._logic.count()", 2, "self._logic.count is neither awaited"),
            ("def f(self) -> None:\n    c = self._logic.count", 2, "self._logic.count is neither awaited"),
            ("def f(self) -> None:\n    inner = self._logic", 2, "self._logic has a name here"),
            ("def f(self) -> None:\n    inner, x = self._logic, 1", 2, "self._logic has a name here"),
            ("def f(self) -> None:\n    discard_result(self._logic.count)", 2, "discard_result is neither awaited"),
            ("async def f(self) -> None:\n    await discard_result(self.locked)", 2, "argument of discard_result"),
            ("async def f(self) -> None:\n    await asyncio.sleep(1)", 2, "can be awaited: asyncio.sleep(1)"),
            ("async def f(self) -> None:\n    await self._logic.count(a=1)", 2, "positional arguments only"),
            ("def f(self) -> Awaitable[int]:\n    return self.locked()", 1, "Awaitable is translated only"),
            ("def f(self) -> Coroutine[Any, Any, int]:\n    return self.c", 2, "must return the call"),
            ("async def f(self) -> None:\n    async with self:\n        pass", 2, "for the result of a method hold"),
            ("async def f(self) -> None:\n    async for _ in self:\n        pass", 2, "async for is not translated"),
            ("async def f(self) -> None:\n    [x async for x in self]", 2, "async for is not translated"),
            ("async def f(self, g: Callable[[], int]) -> None:\n    await g()", 2, "can be awaited: g()"),
            ("def f(self, g: Callable[[], Awaitable[int]]) -> None: ...", 1, "Awaitable is translated only"),
            ("def f(self, g: Callable[[Coroutine[Any, Any, int]], int]) -> None: ...", 1, "Coroutine is translated"),
            ("async def f(self) -> None:\n    x = = 1", 2, "invalid syntax"),
        ],
    )
    def test_what_has_no_correct_twin_is_refused(self, method: str, line: int, message: str) -> None:
        text = (ROOT / SOURCE).read_text("utf-8")
        added = "".join(f"    {each}\n" for each in method.splitlines())
        with pytest.raises(TOOL.SourceError) as refused:
            TOOL.Twin(SOURCE, f"{text}class Added:\n{added}").result()
        where, _, said = str(refused.value).partition(": ")
        assert (where, message in said) == (f"{SOURCE}:{len(text.splitlines()) + 1 + line}", True)

    def test_an_error_in_one_source_leaves_all_twins_as_they_are(self, copy: Path) -> None:
        # The first source comes before the wrong one, whose twin would have two arguments of the same name.
        for name, added in (("client", "ADDED = 1"), ("locks", "def f(task: int, thread: int) -> None: ...")):
            with (copy / f"pyredisson/_api/aio/{name}.py").open("a", encoding="utf-8") as source:
                source.write(f"\n\n{added}\n")
        twins = {twin: twin.read_bytes() for twin in (copy / "pyredisson/_api/sync").iterdir()}
        done = run_tool(copy)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
        assert done.stderr.startswith(f"{SOURCE}: the twin is not valid Python: duplicate argument")
        assert "def f(thread: int, thread: int)" in done.stderr
        assert {twin: twin.read_bytes() for twin in (copy / "pyredisson/_api/sync").iterdir()} == twins


RETURNED = {"Lost": "locks", "Holding": "blocks", "Permit": "semaphores"}
"""Classes that users don't name, and their modules: methods return them."""
PUBLIC = [*pyredisson.asyncio.__all__, *RETURNED]


def both_sides(name: str) -> tuple[Any, Any]:
    """What has that name for asyncio, and for threads."""
    if name in RETURNED:
        modules = (importlib.import_module(f"pyredisson._api.{side}.{RETURNED[name]}") for side in ("aio", "sync"))
        aio, sync = (getattr(module, name) for module in modules)
        return aio, sync
    return getattr(pyredisson.asyncio, name), getattr(pyredisson, name)


def with_members(name: str) -> Iterator[tuple[str, Any, Any]]:
    """A class or a function of both sides, and the public members of the class."""
    aio, sync = both_sides(name)
    yield name, aio, sync
    if isinstance(aio, type):
        assert public_members(aio) == public_members(sync)
        for member in public_members(aio):
            yield member, inspect.getattr_static(aio, member), inspect.getattr_static(sync, member)


def public_members(kind: type) -> list[str]:
    return [name for name in dir(kind) if not name.startswith("_")]


def documentation(thing: Any) -> str:
    text = TOOL.in_words_of_threads((inspect.getdoc(thing) or "") + "\n")
    return " ".join(text.split())


def test_both_sides_have_the_same_names() -> None:
    for_threads = {
        name
        for name in pyredisson.__all__
        if getattr(getattr(pyredisson, name), "__module__", "").startswith("pyredisson._api.sync.")
    }
    assert for_threads == set(pyredisson.asyncio.__all__)
    for package in (pyredisson, pyredisson.asyncio):
        assert package.RLock is package.Lock
        assert (package.Lock.__name__, {"Lock", "RLock"} <= set(package.__all__)) == ("Lock", True)


@pytest.mark.parametrize("public", PUBLIC)
def test_both_sides_say_take_and_return_the_same(public: str) -> None:
    for name, aio, sync in with_members(public):
        of_aio, of_sync = documentation(aio), documentation(sync)
        if name == "hold":
            # Only asyncio can cancel the body of a block whose hold is lost.
            of_aio, of_sync = (text.partition("When the hold is lost")[0] for text in (of_aio, of_sync))
        assert of_aio, f"{name} isn't documented"
        assert of_aio == of_sync, name
        if isinstance(aio, property):
            assert isinstance(sync, property), name
            aio, sync = aio.fget, sync.fget
        if inspect.isfunction(aio):
            compare_signatures(f"{public}.{name}", inspect.signature(aio), inspect.signature(sync))


def compare_signatures(name: str, of_aio: inspect.Signature, of_sync: inspect.Signature) -> None:
    parameters, of_threads = dict(of_aio.parameters), dict(of_sync.parameters)
    if name.endswith(".hold"):
        del parameters["cancel_on_lost"]
    if name == "Election.run":
        # What is called is a coroutine function in asyncio.
        del parameters["work"], of_threads["work"]
    assert parameters == of_threads, name
    result = re.sub(r"^Coroutine\[Any, Any, (.*)\]$", r"\1", of_aio.return_annotation)
    # A decorator takes and returns coroutine functions.
    result = re.sub(r"Callable\[P, Coroutine\[Any, Any, ([^][]*)\]\]", r"Callable[P, \1]", result)
    assert result == of_sync.return_annotation, name
