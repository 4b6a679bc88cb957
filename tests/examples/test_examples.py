"""Each program of `examples/` is started as its first lines say, and does its job; `make demo`."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

import httpx2 as httpx
import pytest
from redis import Redis

import pyredisson
from pyredisson.testing import Server
from tests.interop.maven import build, needed
from tests.support.children import processes

EXAMPLES = Path(__file__).parents[2] / "examples"
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(server: Server) -> Iterator[Start]:
    """Starts a program of a folder of the examples, and kills it with its children after the test."""
    env = {"PYREDISSON_URL": server.url, "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    with processes(stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as start_process:
        yield lambda *command, folder=EXAMPLES: start_process(*command, cwd=folder, env=os.environ | env)


def line(process: subprocess.Popen[str], pattern: str) -> re.Match[str]:
    """The next line of its output that contains the pattern."""
    output: IO[str] | None = process.stdout
    assert output is not None
    seen: list[str] = []
    for each in output:
        seen.append(each)
        if found := re.search(pattern, each):
            return found
    raise AssertionError(f"no {pattern!r} in:\n{''.join(seen)}")


def test_fastapi_service(start: Start, admin: Redis) -> None:
    """As two processes, whose requests exclude each other."""
    services = [start(sys.executable, "-m", "uvicorn", "fastapi_service:app", "--port", "0") for _ in range(2)]
    urls = [line(service, r"running on (http://\S+)")[1] for service in services]
    with httpx.Client(timeout=40) as client, ThreadPoolExecutor(8) as pool:
        answers = pool.map(lambda at: client.post(f"{urls[at % 2]}/accounts/7/deposit?amount=10"), range(24))
        assert sorted(answer.json() for answer in answers) == list(range(10, 250, 10))
    assert admin.get("balance:7") == b"240"


def test_celery_worker(start: Start, server: Server) -> None:
    start(sys.executable, "-m", "celery", "-A", "celery_worker", "worker", "--concurrency", "2")
    with pyredisson.connect(server.url) as another_worker, another_worker.singleton("report:monday"):
        sender = start(sys.executable, "celery_worker.py")
        text = sender.communicate()[0]
    skipped = "skipped: another worker writes that report"
    assert text.splitlines() == [skipped, skipped, "report of tuesday"]


def test_arq_worker(start: Start, server: Server) -> None:
    pytest.importorskip("arq", reason="arq wants redis below 6, so it is in no extra")
    with pyredisson.connect(server.url) as another_worker, another_worker.singleton("account:7"):
        sender = start(sys.executable, "arq_worker.py")
        worker = start(sys.executable, "-m", "arq", "arq_worker.WorkerSettings")
        line(worker, r"charge.* retrying job in 1")
    tries = re.findall(r"^charged 7 in try ([0-9]+)$", sender.communicate()[0], re.MULTILINE)
    assert len(tries) == 2
    assert max(map(int, tries)) > 1


def test_nightly(start: Start, admin: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    (entry,) = re.findall(r"^[0-9*].*$", (EXAMPLES / "nightly.crontab").read_text("utf-8"), re.MULTILINE)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    # What follows the five fields of the time is for a shell.
    machines = [start("sh", "-c", entry.split(maxsplit=5)[5]) for _ in range(2)]
    ended = sorted((machine.wait(), machine.communicate()[0]) for machine in machines)
    assert [status for status, _ in ended] == [0, 75], ended
    assert re.fullmatch(r"the nightly job is done under example:nightly, with fencing token [0-9]+\n", ended[0][1])
    assert admin.ttl("example:nightly") > 30


def test_leader(start: Start) -> None:
    first = start(sys.executable, "leader.py", "first")
    token = int(line(first, "first leads, with token ([0-9]+)")[1])
    second = start(sys.executable, "leader.py", "second")
    line(second, "second is a candidate")
    first.terminate()
    assert int(line(second, "second leads, with token ([0-9]+)")[1]) > token
    assert first.wait() == -signal.SIGTERM


def test_java_and_python(start: Start, admin: Redis, tmp_path: Path) -> None:
    with needed():
        build(EXAMPLES / "java_and_python", f"-Doutput.directory={tmp_path}")
    admin.set("stock", 60)
    folder = EXAMPLES / "java_and_python"
    java = start(
        "java", "-Xmx256m", "-cp", f"{tmp_path}/classes:{tmp_path}/dependency/*", "example.Shop", folder=folder
    )
    python = start(sys.executable, "worker.py", folder=folder)
    sold = [int(line(java, "java sold ([0-9]+)")[1]), int(line(python, "python sold ([0-9]+)")[1])]
    assert sum(sold) == 60
    assert admin.get("stock") == b"0"
    assert (java.wait(), python.wait()) == (0, 0)


def test_demo() -> None:
    """The README's first command shows what it says."""
    demo = EXAMPLES.parent / "demo" / "demo.py"
    done = subprocess.run([sys.executable, demo], capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All of it was observed" in done.stdout
