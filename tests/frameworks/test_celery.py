"""Celery: two workers of two processes each, with messages in Redis and results in files."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest
from redis import Redis

import pyredisson
from pyredisson.celery import singleton_task
from pyredisson.testing import Server
from tests.support.children import CHILD_LIMIT

TASKS = """
import os
import time

import celery
import redis

import pyredisson
from pyredisson.celery import singleton_task

folder = os.environ["FOLDER"]
url = os.environ["URL"]
app = celery.Celery("tasks", broker=url, backend=f"file://{folder}/results")
app.conf.worker_prefetch_multiplier = 1
app.conf.broker_connection_retry_on_startup = True
# Before the worker forks, and used.
client = pyredisson.connect(url, lock_watchdog_timeout=3.0)
client.get_lock("at import").is_locked()
storage = redis.Redis.from_url(url)

@app.task
@singleton_task(client, "count:{name}", wait_time=None)
def count(name):
    found = int(storage.get("count") or 0)
    time.sleep(0.01)
    storage.set("count", found + 1)
    return os.getpid()

@app.task
@singleton_task(client, "report:{day}")
def report(day):
    return "written"

@app.task(max_retries=None)
@singleton_task(client, "report:{day}", busy="retry", countdown=0.1)
def again(day):
    return "written later"

@app.task
@singleton_task(client, "report:{day}", busy="raise")
def strict(day):
    return "written"

@app.task
@singleton_task(client, "killed")
def hangs():
    storage.rpush("pids", os.getpid())
    time.sleep(600)
"""


@pytest.fixture
def tasks(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module of the tasks, with two workers that run."""
    (tmp_path / "results").mkdir()
    (tmp_path / "locked_tasks.py").write_text(TASKS)
    monkeypatch.setenv("FOLDER", str(tmp_path))
    monkeypatch.setenv("URL", server.url)
    monkeypatch.syspath_prepend(tmp_path)
    options = ["--pool", "prefork", "--concurrency", "2", "--loglevel", "warning"]
    options += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    command = [sys.executable, "-m", "celery", "-A", "locked_tasks", "worker", *options, "-n"]
    workers = [Popen([*command, f"{name}@here"], cwd=tmp_path, start_new_session=True) for name in ("one", "other")]
    import locked_tasks  # type: ignore[import-not-found]

    yield locked_tasks
    for worker in workers:
        # With its children. It would wait for the task that hangs.
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()
    locked_tasks.app.close()
    locked_tasks.client.close()
    locked_tasks.storage.close()
    del sys.modules["locked_tasks"]


def test_tasks_of_two_workers(tasks: Any, server: Server, admin: Redis) -> None:
    pids = {result.get(CHILD_LIMIT) for result in [tasks.count.delay("a") for _ in range(20)]}
    assert admin.get("count") == b"20"
    assert os.getpid() not in pids

    with pyredisson.connect(server.url) as client:
        with client.get_lock("report:monday"):
            assert tasks.report.delay("monday").get(CHILD_LIMIT) is None
            assert tasks.report.delay("tuesday").get(CHILD_LIMIT) == "written"
            with pytest.raises(pyredisson.LockTimeoutError, match="lock 'report:monday' is held by"):
                tasks.strict.delay("monday").get(CHILD_LIMIT)
            later = tasks.again.delay("monday")
            while later.state != "RETRY":
                time.sleep(0.05)  # the state is in a file
        assert later.get(CHILD_LIMIT) == "written later"

    # A killed process keeps its lock until the lease ends.
    tasks.hangs.delay()
    popped = admin.blpop(["pids"], timeout=CHILD_LIMIT)
    assert popped is not None
    os.kill(int(popped[1]), signal.SIGKILL)
    with pyredisson.connect(server.url) as client:
        assert client.get_lock("killed").try_lock(CHILD_LIMIT)


def test_a_task_called_as_a_function(server: Server) -> None:
    with pyredisson.connect(server.url) as client, pyredisson.connect(server.url) as other:

        @singleton_task(client, "report:{day}", busy="retry")
        def report(day: str) -> str:
            return day

        assert report("monday") == "monday"
        with other.get_lock("report:monday"), pytest.raises(pyredisson.LockTimeoutError):
            report("monday")
        with pytest.raises(ValueError, match="no parameter 'month'"):
            singleton_task(client, "report:{month}")(report)
        with pytest.raises(ValueError, match="busy must be"):
            singleton_task(client, "report", busy="wait")  # type: ignore[arg-type]
