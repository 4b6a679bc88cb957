"""Runs of pytest of their own: the pytest plugin, and `make test-all`, which runs a failed test again."""

import os
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pyredisson._pytest import plans
from pyredisson.testing import Server, find_executable
from tests.run_all import MOST_UNSTABLE, Outcome
from tests.support.children import completed

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "pytest-plugin.md"
PLUGIN = "pyredisson_pytest"
LOOP_SCOPE = ("-o", "asyncio_default_fixture_loop_scope=function")
"""Without it pytest-asyncio warns."""
FAULTS = ("drop_reply", "cut_reply", "cut_request", "late_reply", "latency", "outage", "server_restart")
OUTCOME = re.compile(r"^(PASSED|FAILED|ERROR|SKIPPED) \S*?::(\S+)", re.MULTILINE)


class Run(NamedTuple):
    """What a run of pytest has printed."""

    status: int
    text: str
    tests: dict[str, str]
    """What became of each test, by its name with its parameters."""


def run_pytest(folder: Path, text: str, *arguments: str, plugins: tuple[str, ...], **env: str) -> Run:
    """Runs one file of tests with these plugins and no others; without any, with all that are installed."""
    (folder / "test_it.py").write_text(text, "utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n", "utf-8")
    command = [sys.executable, "-m", "pytest", "-rA", "--strict-markers", "-W", "error", "-p", "no:cacheprovider"]
    settings = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PYREDISSON_"))}
    settings["PYREDISSON_TEST_SERVER"] = find_executable()
    if plugins:
        settings["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        command += [f"-p{name}" for name in plugins]
    done = completed(*command, *arguments, cwd=folder, env=settings | env)
    text = done.stdout + done.stderr
    return Run(done.returncode, text, {name: outcome for outcome, name in OUTCOME.findall(text)})


def test_what_passes(tmp_path: Path) -> None:
    """With all plugins that are installed, and each warning an error. A variable without a value is as good as none."""
    under_faults = """
import pytest

@pytest.mark.pyredisson_faults()
def test_threads(pyredisson_client):
    with pyredisson_client.get_lock("orders").hold(wait_time=60):
        pass

@pytest.mark.pyredisson_faults("cut_reply", "latency", match=b"orders", times=2)
@pytest.mark.asyncio
async def test_asyncio(pyredisson_aclient, redis_proxy):
    async with pyredisson_aclient.get_lock("orders").hold(wait_time=60):
        pass
    assert redis_proxy.seen(b"orders") >= 2
"""
    examples = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    text = "\n".join([*examples, under_faults])
    run = run_pytest(tmp_path, text, *LOOP_SCOPE, plugins=(), PYREDISSON_TEST_URL="")
    assert (run.status, {*run.tests.values()}) == (0, {"PASSED"}), run.text
    ran = {fault: [test for test in run.tests if test.endswith(f"[{fault}]")] for fault in ("no-fault", *FAULTS)}
    for fault, tests in ran.items():
        assert f"test_threads[{fault}]" in tests
        assert (f"test_asyncio[{fault}]" in tests) is (fault in ("no-fault", "cut_reply", "latency"))
    for fault in ("no-fault", "drop_reply", "server_restart"):
        assert f"test_a_payment_is_made_once[{fault}]" in ran[fault]


def test_what_fails(tmp_path: Path) -> None:
    text = """
import pytest

@pytest.mark.pyredisson_faults("drop_reply", "latency", "outage", match=b"another name")
def test_no_such_request(pyredisson_client):
    with pyredisson_client.get_lock("orders"):
        pass

@pytest.mark.pyredisson_faults("drop_reply")
def test_that_fails_itself(pyredisson_client):
    assert not pyredisson_client

def test_left_held(pyredisson_client):
    pyredisson_client.get_lock("left").lock()

def test_the_next_one_begins_without_keys(pyredisson_client, empty_redis):
    with empty_redis.redis() as admin:
        assert admin.keys() == []

@pytest.mark.pyredisson_allow_held
def test_may_leave_it_held(pyredisson_client):
    pyredisson_client.get_lock("left").lock()

@pytest.mark.anyio
async def test_on_anyio(pyredisson_aclient, pyredisson_aconnect):
    other = pyredisson_aconnect(client_name="other")
    async with pyredisson_aclient.get_lock("orders"):
        assert not await other.get_lock("orders").try_lock()
    await other.get_lock("orders").lock()

@pytest.fixture
def anyio_backend():
    return "asyncio"
"""
    run = run_pytest(tmp_path, text, "-p", "no:asyncio", plugins=(PLUGIN, "anyio.pytest_plugin"))
    passed = ("no_such_request[no-fault]", "the_next_one_begins_without_keys", "may_leave_it_held")
    failed = [f"no_such_request[{fault}]" for fault in ("drop_reply", "latency", "outage")]
    failed += [f"that_fails_itself[{fault}]" for fault in ("no-fault", "drop_reply")]
    outcomes = {"PASSED": passed, "FAILED": failed, "ERROR": ("left_held", "on_anyio")}
    assert run.tests == {f"test_{name}": what for what, names in outcomes.items() for name in names}, run.text
    assert "the fault 'drop_reply' never happened: no request contained b'another name'" in run.text
    for name in ("left", "orders"):
        assert f"the test left held: lock '{name}'" in run.text


def test_a_wrong_marker_is_refused_at_collection(tmp_path: Path) -> None:
    wrong_fault = "import pytest\n@pytest.mark.pyredisson_faults('nonsense')\ndef test_it(redis_proxy): ..."
    run = run_pytest(tmp_path, wrong_fault, plugins=(PLUGIN,))
    assert "test_it.py::test_it: pyredisson_faults: there is no fault 'nonsense', only drop_reply" in run.text
    assert (run.status, "Traceback" in run.text) == (pytest.ExitCode.INTERRUPTED, False)
    arguments: list[dict[str, Any]] = [{"match": "orders"}, {"times": 0}, {"times": True}, {"unknown": 1}]
    for wrong in arguments:
        with pytest.raises((TypeError, ValueError)):
            plans("drop_reply", **wrong)


def test_a_server_that_runs_already_is_not_emptied(tmp_path: Path) -> None:
    text = """
import pytest

def test_prefix(pyredisson_client, pyredisson_connect, redis_server):
    mapped = pyredisson_connect(name_mapper="app:{}".format)
    with pyredisson_client.get_lock("orders"), mapped.get_lock("orders"), redis_server.redis() as admin:
        assert {key.partition(b":")[2] for key in admin.keys("test-*orders")} == {b"orders", b"app:orders"}
        assert admin.get("program") == b"data"

def test_through_a_proxy(pyredisson_client, redis_proxy):
    with pyredisson_client.get_lock("orders"):
        assert redis_proxy.seen(b"orders")

def test_needs_its_own(empty_redis): ...

@pytest.mark.pyredisson_faults("server_restart", "cut_request")
def test_faults(pyredisson_client):
    with pyredisson_client.get_lock("orders"):
        pass

def test_without_a_plugin_for_asyncio(pyredisson_aclient): ...
"""
    with Server(password="secret") as server, server.redis() as admin:
        admin.set("program", "data")
        url = server.url.replace("redis:", "valkey:")
        run = run_pytest(tmp_path, text, plugins=(PLUGIN,), PYREDISSON_TEST_URL=url)
        assert admin.get("program") == b"data"
    passed = {"test_prefix", "test_through_a_proxy", "test_faults[no-fault]", "test_faults[cut_request]"}
    assert {name for name, outcome in run.tests.items() if outcome == "PASSED"} == passed, run.text
    assert (run.text.count("SKIPPED [1]"), run.tests["test_without_a_plugin_for_asyncio"]) == (2, "ERROR")
    assert "fixtures for asyncio need pytest-asyncio, or anyio" in run.text
    needs_a_proxy, option = "def test_it(redis_proxy): ...", ("--pyredisson-url", "rediss://localhost")
    assert "SKIPPED [1]" in run_pytest(tmp_path, needs_a_proxy, *option, plugins=(PLUGIN,)).text


def test_no_server_program(tmp_path: Path) -> None:
    text = "def test_it(redis_server): ..."
    lacking = {"PYREDISSON_TEST_SERVER": str(tmp_path / "none")}
    assert "SKIPPED [1]" in run_pytest(tmp_path, text, plugins=(PLUGIN,), **lacking).text
    run = run_pytest(tmp_path, text, "--pyredisson-require", plugins=(PLUGIN,), **lacking)
    assert run.tests == {"test_it": "ERROR"}, run.text


def test_without_its_fixtures_the_plugin_does_not_import_the_package(tmp_path: Path) -> None:
    """With all plugins that are installed, each loaded by its entry point."""
    text = """
import sys
def test_it(pytestconfig):
    assert pytestconfig.pluginmanager.hasplugin("pyredisson")
    assert {"pyredisson_pytest", "pytest_asyncio"} <= set(sys.modules)
    assert "pyredisson" not in sys.modules
"""
    run = run_pytest(tmp_path, text, *LOOP_SCOPE, plugins=())
    assert run.tests == {"test_it": "PASSED"}, run.text


def test_what_is_run_again(tmp_path: Path) -> None:
    text = """
from pathlib import Path

import pytest

pytestmark = pytest.mark.real

def fails(name, times):
    runs = Path(__file__).with_name(name)
    before = len(runs.read_text()) if runs.exists() else 0
    runs.write_text("x" * (before + 1))
    assert before >= times, f"run {before + 1} of {name}"

@pytest.mark.parametrize("name", ["a::b [c]"])
@pytest.mark.xdist_group("some")
def test_once(name):
    fails("once", 1)

def test_the_second_time_too():
    fails("twice", 2)

@pytest.mark.heavy
def test_good():
    pass
"""
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    real\n    heavy\n", "utf-8")
    (tmp_path / "test_some.py").write_text(text, "utf-8")
    (tmp_path / "test_broken.py").write_text("import no_such_module", "utf-8")
    command = [sys.executable, "-m", "tests.run_all", "--jobs", "1", "--heavy-jobs", "1", str(tmp_path)]
    env = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "-p xdist.plugin"}
    done = completed(*command, cwd=ROOT, env=os.environ | env)
    summary = done.stdout.rpartition("== unstable: ")[2]
    assert done.returncode == 1, done.stdout + done.stderr
    assert "run 1 of once" in summary
    listed = {*re.findall(r"^(\w+): .*/(?:test_some.py::)?(test_\w+)", summary, re.MULTILINE)}
    assert listed == {("unstable", "test_once"), ("failed", "test_broken"), ("failed", "test_the_second_time_too")}
    assert len((tmp_path / "once").read_text()) == 3  # run again twice
    # Without the collection that failed, and without what was run again.
    assert re.fullmatch(r"2 failed, 1 passed in [\d.]+s", done.stdout.splitlines()[-1])


def test_how_many_may_be_unstable() -> None:
    for count, status in ((MOST_UNSTABLE, 0), (MOST_UNSTABLE + 1, 1)):
        assert Outcome(unstable={f"test_{number}": "" for number in range(count)}).status == status
    assert Outcome(failed=["test"]).status == 1
