"""The documentation: its examples run, its commands exist, and its links lead to existing targets."""

import os
import queue
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT
from typing import Any, NamedTuple

import pytest
from redis.exceptions import NoPermissionError

import pyredisson
from pyredisson import Client, Lock, PermitExpirableSemaphore, Semaphore
from pyredisson._client import servers
from pyredisson.testing import Cluster, ClusterNode, Server
from tests.support.backends import eventually, raises
from tests.support.children import CHILD_LIMIT, Program, completed
from tests.support.faults import from_7
from tests.support.kinds import KINDS, against

ROOT = Path(__file__).parents[2]
EXAMPLES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [*EXAMPLES, *(ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"))]
OPERATIONS = (ROOT / "docs" / "operations.md").read_text("utf-8")
REPOSITORY = "https://github.com/pyredisson/pyredisson/blob/main/"
"""What a page of the site says for a file that isn't part of the site."""
ADDRESS = "redis://localhost:6379"
"""How the examples spell the server, in place of which they get the test's own."""


class Block(NamedTuple):
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    text: str
    output: str | None
    """What the page says that it prints: the text block that follows at once."""


def _blocks(page: Path) -> list[Block]:
    text = page.read_text("utf-8")
    fences = re.finditer(r"^```(\w*)\n(.*?)^```$\n?(?:^```text\n(.*?)^```$\n?)?", text, re.MULTILINE | re.DOTALL)
    name = page.relative_to(ROOT).as_posix()
    return [Block(name, text.count("\n", 0, each.start()) + 1, *each.groups()) for each in fences]


BLOCKS = [block for page in EXAMPLES for block in _blocks(page)]


def _of_language(language: str) -> list[Block]:
    return [block for block in BLOCKS if block.language == language]


[RIGHTS] = [block.text.strip() for block in _of_language("acl")]


def _examples(language: str) -> list[Any]:
    """The pages say what a server prints that isn't older than 7.0."""
    newer = re.compile("WRONGTYPE|pyredisson doctor")
    marks = {block: [from_7] if newer.search(f"{block.text}{block.output}") else [] for block in _of_language(language)}
    return [pytest.param(block, id=f"{block.page}:{block.line}", marks=marks[block]) for block in marks]


INTERPRETER = """
import asyncio, gc, os, runpy, sys
import pyredisson

gc.freeze()
while program := sys.stdin.readline().rstrip():
    if child := os.fork():
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    sys.argv, sys.path[0] = [program], os.path.dirname(program)
    os.chdir(sys.path[0])
    for number, path in enumerate((os.devnull, program + ".out", program + ".err")):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), number)
    module = runpy.run_path(program, run_name="__main__")
    break
"""
"""Runs each program in a copy of itself, which has already imported what most of them use: that takes the most time. At
its end the copy doesn't look for garbage in all of that, of which the memory would be copied, too."""


@pytest.fixture(scope="module")
def run_example() -> Iterator[Callable[[Path], tuple[int, str, str]]]:
    """Runs a program: its status, what it prints, and its errors."""
    ended: queue.Queue[str] = queue.Queue()
    interpreter = Program([sys.executable, "-W", "error", "-c", INTERPRETER], ended.put, lambda: ended.put("ended"))

    def run(program: Path) -> tuple[int, str, str]:
        interpreter.send(str(program))
        status = int(ended.get(timeout=CHILD_LIMIT))
        printed, errors = (program.with_name(program.name + each).read_text("utf-8") for each in (".out", ".err"))
        return status, printed, errors

    yield run
    interpreter.close()


@pytest.mark.parametrize("block", _examples("python"))
def test_a_python_example_runs_and_prints_what_the_page_says(
    block: Block, server: Server, tmp_path: Path, run_example: Callable[[Path], tuple[int, str, str]]
) -> None:
    address = server.url.rpartition("/")[0]
    for settings in _of_language("yaml"):
        (tmp_path / "redisson.yaml").write_text(settings.text.replace(ADDRESS, address), "utf-8")
    program = tmp_path / "example.py"
    program.write_text(block.text.replace(ADDRESS, address), "utf-8")
    status, printed, errors = run_example(program)
    assert status == 0, errors
    assert "Traceback" not in errors
    if block.output is not None:
        assert re.fullmatch(".*".join(map(re.escape, block.output.split("..."))), printed), printed


MARK = "\n-- the next command --\n"


@pytest.mark.parametrize("block", _examples("console"))
def test_a_console_example_prints_what_the_page_says(block: Block, server: Server, tmp_path: Path) -> None:
    text = block.text.replace(ADDRESS, server.url.rpartition("/")[0])
    assert text.startswith("$ ")
    pairs = [part.partition("\n") for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]]
    # $? of a command is still there for the next one.
    between = f"status=$?; printf '{MARK}'; (exit $status)"
    program = "\n".join(part for command, _, _ in pairs for part in (command, between))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "PYREDISSON_URL": server.url, "COLUMNS": "120"}
    pipes: dict[str, Any] = {"stdin": DEVNULL, "capture_output": False, "stdout": PIPE, "stderr": STDOUT}
    printed = completed("sh", "-c", program, cwd=tmp_path, env=env, timeout=50, **pipes).stdout.split(MARK)[:-1]
    assert len(printed) == len(pairs), printed
    for (command, _, expected), actual in zip(pairs, printed, strict=True):
        pattern = ".*".join(map(re.escape, expected.strip().split("...")))
        assert re.fullmatch(pattern, actual.strip(), re.DOTALL), (command, actual)


def test_no_example_talks_to_a_server_of_its_own_finding() -> None:
    """Without an address it would be the user's server on this machine."""
    for block in _of_language("python"):
        where = f"{block.page}:{block.line}"
        assert not re.search(r"\bconnect\(\s*(\)|\w+=)", block.text), where
        assert all(url.startswith(ADDRESS) for url in re.findall(r"\w+://[^\"]*", block.text)), where


def test_every_make_target_that_a_page_names_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    text = "\n".join(page.read_text("utf-8") for page in PAGES)
    named = set(re.findall(r"(?:^|`)make ([a-z]+)", text, re.MULTILINE))
    assert {"demo", "test"} <= named <= targets


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_to_a_file_or_a_heading_leads_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text("utf-8")):
        path, _, anchor = link.partition("#")
        if path.startswith(REPOSITORY):
            target = ROOT / path.removeprefix(REPOSITORY)
        elif "://" in path:
            continue
        else:
            target = page.parent / path if path else page
        assert target.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.+)$", target.read_text("utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}, link


def address_for_app(server: Server | Cluster) -> str:
    return server.url.replace("//", "//app:secret@", 1)


def denied(server: Server | ClusterNode) -> set[str]:
    """What the server has refused."""
    with server.redis() as admin:
        return {str(entry["object"]) for entry in admin.acl_log()}


def _exclude(one: Lock, other: Lock) -> None:
    """A wait, and the plain commands of questions. `tests/lua/test_every_script.py` has the rights of each script."""
    with one:
        assert not other.try_lock(wait_time=0.05)
        assert one.get_hold_count() == 1
        assert one.is_locked()
        assert one.remain_time_to_live()
        raises(pyredisson.LockNotHeldError, other.unlock)
    assert not one.is_locked()


def _wait_for_permits(semaphore: Semaphore | PermitExpirableSemaphore) -> None:
    assert semaphore.available_permits() == 0
    assert not semaphore.try_acquire(wait_time=0.05)


def _wait_for_latch(one: Client, other: Client) -> None:
    assert one.get_count_down_latch("orders").try_set_count(2)
    assert not other.get_count_down_latch("orders").wait(0.05)
    assert one.get_count_down_latch("orders").get_count() == 2


KINDS_OF = {"Lock": ("lock",), "FairLock": ("fair",), "ReadWriteLock": ("read", "write"), "FencedLock": ("fenced",)}
"""The kinds of locks of each primitive."""
USES: dict[str, Callable[[Client, Client], object]] = {
    "FencedLock": lambda one, _: one.get_fenced_lock("orders").get_token(),
    "Semaphore": lambda one, _: _wait_for_permits(one.get_semaphore("orders")),
    "PermitExpirableSemaphore": lambda one, _: _wait_for_permits(one.get_permit_expirable_semaphore("orders")),
    "CountDownLatch": _wait_for_latch,
}
"""What is done with a primitive, besides what all locks do."""


@pytest.mark.parametrize("primitive", sorted(KINDS_OF.keys() | USES.keys()))
def test_the_rights_in_the_docs_are_enough_and_not_for_other_names(primitive: str) -> None:
    more = dict(re.findall(r"^\| `(\w+)` \| `(.*~.*)` \|$", OPERATIONS, re.MULTILINE)) | {"Lock": ""}
    with Server(users=[f"{RIGHTS} {more[primitive]}".strip()]) as server:
        url = address_for_app(server)
        with pyredisson.connect(url, lock_watchdog_timeout=3) as one, pyredisson.connect(url) as other:
            for kind in KINDS_OF.get(primitive, ()):
                _exclude(KINDS[kind](one, "orders"), against(kind, other, "orders"))
            if primitive in USES:
                USES[primitive](one, other)
            raises(NoPermissionError, lambda: one.get_lock("stock").lock())
        assert not [each for each in denied(server) if "stock" not in each]


@pytest.mark.parametrize("right", ["", "~pyredisson_client:*"])
def test_the_rights_to_announcements_may_be_left_out(right: str, announced: None) -> None:
    """Then locks work as before. With all of them nothing is denied."""
    assert not right or right in RIGHTS.split()
    with Server(users=[" ".join(word for word in RIGHTS.split() if word != right)]) as server:
        url = address_for_app(server)
        with pyredisson.connect(url, lock_watchdog_timeout=3) as one, pyredisson.connect(url) as other:
            for _ in range(2):
                with one.get_lock("orders"):
                    # A hold that is listed, and removed from the list.
                    announcement = one._session.announcement
                    assert announcement is not None
                    eventually(lambda found=announcement: right or found._listed)  # type: ignore[misc]
                    holder: Any = other.get_lock("orders").holder()
                    assert holder.client_id == one.id
            _exclude(one.get_lock("orders"), other.get_lock("orders"))
        assert right or not denied(server)


@from_7  # which have sharded messages
@pytest.mark.parametrize("useful", [True, False])
def test_the_rights_in_the_docs_are_enough_on_a_cluster(useful: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # At first every release publishes both kinds of messages, and needs no right to choose.
    monkeypatch.setattr(servers, "SHORTEST_SETTLING", 0.0)
    found = re.search(r"On a cluster these are needed in addition: `(.*)`\. `(.*)` and\n`(.*)` are of use", OPERATIONS)
    assert found is not None
    more = found[1].split() + ([found[2], found[3]] if useful else [])
    with Cluster(masters=3, replicas=0) as cluster:
        for node in cluster.nodes:
            node.ask("ACL", "SETUSER", *RIGHTS.split(), *more)
        url = address_for_app(cluster)
        with pyredisson.connect(url, topology_refresh_interval=0.01) as one, pyredisson.connect(url) as other:
            for number in range(6):
                _exclude(one.get_lock(f"orders:{number}"), other.get_lock(f"orders:{number}"))
        assert set().union(*map(denied, cluster.nodes)) == (set() if useful else {"cluster|info", "pubsub|numsub"})
