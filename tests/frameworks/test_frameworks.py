"""Celery, Django and FastAPI: workers, management commands and web services as processes."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Annotated, Any

import httpx2 as httpx
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from flask import Flask
from redis import Redis
from redis.exceptions import ConnectionError

import pyredisson
import pyredisson.fastapi
from pyredisson.celery import singleton_task
from pyredisson.testing import Proxy, Server
from tests.support.children import CHILD_LIMIT, Child, forked, processes

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
    # Killed at the end: a worker would wait for the task that hangs.
    with processes(cwd=tmp_path) as start:
        for name in ("one", "other"):
            start(sys.executable, "-m", "celery", "-A", "locked_tasks", "worker", *options, "-n", f"{name}@here")
        import locked_tasks  # type: ignore[import-not-found]

        yield locked_tasks
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

        @singleton_task(client, "hanging", at_most=0.2)
        def hang() -> bool:
            return other.get_lock("hanging").try_lock(CHILD_LIMIT)

        with pytest.raises(pyredisson.LockLostError):
            hang()
        with pytest.raises(ValueError, match="no parameter 'month'"):
            singleton_task(client, "report:{month}")(report)
        with pytest.raises(ValueError, match="busy must be"):
            singleton_task(client, "report", busy="wait")  # type: ignore[arg-type]


def test_a_flask_application_that_was_loaded_before_the_fork(server: Server) -> None:
    app = Flask(__name__)
    with pyredisson.connect(server.url) as client:

        @app.get("/")
        def view() -> str:
            with client.get_lock("page").hold(wait_time=0):
                return client.id

        def answer() -> str:
            return app.test_client().get("/").text

        with client.get_lock("of the parent"):
            assert answer() == client.id
            # The child doesn't hold what the parent holds, and is another client.
            parent = client.id
            assert forked(lambda: answer() != parent and not client.get_lock("of the parent").try_lock())
            assert answer() == parent


MANAGE = """
import os, sys
from django.conf import settings
from django.core.management import execute_from_command_line

settings.configure(
    INSTALLED_APPS=["pyredisson.django", "work"],
    ROOT_URLCONF="work.urls",
    LOCKS={"default": {"URL": os.environ["URL"], "NAME_MAPPER": "app:{}".format}},
)
execute_from_command_line(sys.argv)
"""
COMMAND = """
from django.core.management.base import BaseCommand
from pyredisson.django import client

class Command(BaseCommand):
    def add_arguments(self, parser):
        parser.add_argument("--text")

    def handle(self, *args, text, **options):
        print(text, client().get_lock("nightly").is_locked(), flush=True)
        input()
"""
URLS = """
from django.http import HttpResponse
from django.urls import path
from pyredisson.django import client

def pay(request, order):
    with client().get_lock(f"order:{order}").hold(wait_time=0) as lock:
        return HttpResponse(lock.is_held())

urlpatterns = [path("pay/<int:order>", pay)]
"""
TRIES = """
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.test import Client, override_settings

import pyredisson
from pyredisson.django import client

def error_of(wanted, function, *args):
    try:
        function(*args)
    except wanted as error:
        return error
    raise AssertionError(f"{args}: no error")

# A view.
assert client() is client()
assert Client().get("/pay/007").content == b"True"
with client().singleton("order:7"):
    error_of(pyredisson.LockTimeoutError, Client().get, "/pay/7")

# Checks.
assert run_checks() == []
down = {"URL": "redis://127.0.0.1:1", "RETRY_ATTEMPTS": 0}
wrong = {"a": {"UR": "x"}, "b": {"URL": "http://h"}, "c": {"PORT": "x"}, "down": down}
before = client()
with override_settings(LOCKS=wrong):
    found = {(each.id, each.msg.partition(":")[0]) for each in run_checks()}
    assert found == {
        ("pyredisson.E002", "LOCKS['a'] has unknown keys"), ("pyredisson.E003", "LOCKS['b']"),
        ("pyredisson.E003", "LOCKS['c']"), ("pyredisson.W001", "LOCKS has no entry 'default'"),
    }, found
    assert before.closed
    assert "no entry 'default'" in str(error_of(ImproperlyConfigured, client))
    assert "LOCKS['c']: port must" in str(error_of(ImproperlyConfigured, client, "c"))
    error = error_of(CommandError, call_command, "run_locked", "it", "--no-wait", "--locks", "down", "work")
    assert (error.returncode, "the server of the locks" in str(error)) == (69, True), error
with override_settings(LOCKS=[]):
    assert [each.id for each in run_checks()] == ["pyredisson.E001"]
error = error_of(CommandError, call_command, "run_locked", "it", "--at-least", "-1", "work")
assert (error.returncode, "at_least must" in str(error)) == (1, True), error
print("tried")
"""


@pytest.fixture
def manage(tmp_path: Path, server: Server) -> Iterator[Callable[..., Popen[str]]]:
    """Starts a management command of the project."""
    commands = tmp_path / "work" / "management" / "commands"
    commands.mkdir(parents=True)
    for folder in (commands, commands.parent, commands.parent.parent):
        (folder / "__init__.py").touch()
    (commands / "work.py").write_text(COMMAND)
    (tmp_path / "work" / "urls.py").write_text(URLS)
    (tmp_path / "manage.py").write_text(MANAGE)
    env = os.environ | {"URL": server.url}
    with processes(cwd=tmp_path, env=env, stdin=PIPE, stdout=PIPE, stderr=PIPE) as start:
        yield partial(start, sys.executable, "-W", "error", "manage.py")


def end(process: Popen[str], text: str = "") -> tuple[int, str, str]:
    out, err = process.communicate(text)
    return process.returncode, out, err


def test_run_locked(manage: Callable[..., Popen[str]], server: Server, admin: Redis) -> None:
    first = manage("run_locked", "nightly", "--at-least", "600", "--", "work", "--text", "first")
    assert first.stdout is not None
    assert first.stdout.readline() == "first True\n"
    waiting = manage("run_locked", "nightly", "--", "work", "--text", "second")

    status, out, err = end(manage("run_locked", "nightly", "--no-wait", "work"))
    assert (status, out) == (75, "")
    assert err.startswith("CommandError: lock 'app:nightly' is held by ")
    assert end(first, "\n")[0] == 0

    # At least so long, though the work is done; until then nobody else begins.
    assert 60 < admin.ttl("app:nightly") <= 600
    with pyredisson.connect(server.url) as client:
        client.get_lock("app:nightly").force_unlock()
    assert waiting.stdout is not None
    assert waiting.stdout.readline() == "second True\n"
    with pyredisson.connect(server.url) as client:
        client.get_lock("app:nightly").force_unlock()
    status, _, err = end(waiting, "\n")
    assert (status, "lost" in err) == (74, True), err

    hanging = manage("run_locked", "report", "--at-most", "0.2", "work")
    assert hanging.stdout is not None
    assert hanging.stdout.readline() == "None False\n"
    with pyredisson.connect(server.url) as client:
        assert client.get_lock("app:report").try_lock(CHILD_LIMIT)
        assert end(hanging, "\n")[0] == 74


def test_views_checks_and_errors(manage: Callable[..., Popen[str]], admin: Redis) -> None:
    status, out, err = end(manage("shell", "-v", "0", "-c", TRIES))
    assert (status, out) == (0, "tried\n"), err
    assert admin.keys() == []


APPLICATION = """
import asyncio, socket, sys
from contextlib import asynccontextmanager
from typing import Annotated

import redis.asyncio
import uvicorn
from fastapi import FastAPI, Query

from pyredisson.asyncio import FencedLock, Lock
from pyredisson.fastapi import Locks, locked, locks_lifespan

URL = sys.argv[1]

@asynccontextmanager
async def own_lifespan(app):
    async with redis.asyncio.Redis.from_url(URL) as app.state.redis:
        yield

app = FastAPI(
    lifespan=locks_lifespan(URL, lifespan=own_lifespan, lock_watchdog_timeout=3.0, name_mapper="shop:{}".format)
)

@app.post("/count/{order}")
async def count(order: int, lock: Annotated[Lock, locked("order:{order}", order=int, wait_time=20)]) -> str:
    found = int(await app.state.redis.get("count") or 0)
    await asyncio.sleep(0.01)
    await app.state.redis.set("count", found + 1)
    return lock.name

@app.post("/busy/{order}", dependencies=[locked("order:{order}", order=int, wait_time=0)])
def busy(order: int) -> str:
    return "done"

def name_of_user(user: Annotated[str, Query(min_length=2)]) -> str:
    return f"user:{user}"

@app.post("/named")
async def named(lock: Annotated[FencedLock, locked(name_of_user, kind="fenced")], locks: Locks) -> dict[str, object]:
    other = locks.get_lock(lock.name)
    return {"name": lock.name, "token": await lock.get_token(), "free": await other.try_lock()}

@app.post("/lost", dependencies=[locked("lost")])
async def lost() -> None:
    await app.state.redis.delete("shop:lost")
    await asyncio.sleep(60)

server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1])
uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[server])
"""


@pytest.fixture
def services(child: Callable[..., Child], server: Server) -> Iterator[list[httpx.Client]]:
    """Two processes of the application."""
    children = [child(APPLICATION, server.url) for _ in range(2)]
    clients = [httpx.Client(base_url=f"http://127.0.0.1:{each.receive(CHILD_LIMIT)}", timeout=40) for each in children]
    yield clients
    for each in clients:
        each.close()


def test_requests_of_two_processes(services: list[httpx.Client], server: Server, admin: Redis) -> None:
    one, other = services
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda number: services[number % 2].post("/count/7"), range(24)))
    assert {(answer.status_code, answer.json()) for answer in answers} == {(200, "order:7")}
    assert admin.get("count") == b"24"

    with pyredisson.connect(server.url) as client, client.get_lock("shop:order:7"):
        # The number is the same, however it is written.
        answer = one.post("/busy/007")
        assert (answer.status_code, answer.headers["Retry-After"]) == (423, "1")
        assert answer.json() == {"detail": "locked by another request"}
    # The lock is free before the response is sent.
    assert [one.post("/busy/7").status_code for _ in range(5)] == [200] * 5
    assert other.post("/busy/x").status_code == 422

    answer = other.post("/named?user=ann")
    assert answer.json() == {
        "name": "user:ann",
        "token": int(admin.get("redisson_lock_token:{shop:user:ann}") or b""),
        "free": False,
    }
    assert other.post("/named?user=a").status_code == 422
    answer = one.post("/lost")
    assert (answer.status_code, answer.json()) == (409, {"detail": "the lock of this request was lost"})
    assert admin.keys("*order*") == []


def test_no_redis() -> None:
    app = FastAPI(lifespan=pyredisson.fastapi.locks_lifespan("redis://127.0.0.1:1", retry_attempts=0))

    @app.get("/", dependencies=[pyredisson.fastapi.locked("it", wait_time=0.01)])
    def answer() -> None: ...

    with TestClient(app) as browser:
        assert browser.get("/").status_code == 503


def test_sides_limits_and_permits(server: Server, admin: Redis) -> None:
    app = FastAPI(lifespan=pyredisson.fastapi.locks_lifespan(server.url))
    locked, permit = pyredisson.fastapi.locked, pyredisson.fastapi.permit
    given: list[str] = []

    @app.get("/read", dependencies=[locked("report", kind="read", wait_time=0)])
    async def read() -> str:
        return "read"

    @app.get("/write", dependencies=[locked("report", kind="write", wait_time=0, busy=409, retry_after=7)])
    async def write() -> str:
        return "written"

    @app.get("/hang", dependencies=[locked("hanging", at_most=0.2)])
    async def hang() -> None:
        await asyncio.sleep(60)

    @app.get("/few/{size}")
    async def few(id_: Annotated[str, permit("size:{size}", 1, size=int, wait_time=0.01)]) -> str:
        given.append(id_)
        return "made"

    @app.get("/gone")
    async def gone(id_: Annotated[str, permit("gone", 1)]) -> None:
        admin.delete("{gone}:timeout")

    with TestClient(app) as browser, pyredisson.connect(server.url) as other:
        with other.get_read_write_lock("report").read_lock():
            answers = [browser.get(path) for path in ("/read", "/write")]
        assert [answer.status_code for answer in answers] == [200, 409]
        assert answers[1].headers["Retry-After"] == "7"
        assert browser.get("/write").json() == "written"
        assert browser.get("/hang").status_code == 409
        assert browser.get("/few/3").json() == "made"
        with other.get_permit_expirable_semaphore("size:3").permit() as id_:
            assert given != [id_]
            assert browser.get("/few/3").status_code == 429
        assert browser.get("/gone").status_code == 409
        assert other.get_permit_expirable_semaphore("size:3").available_permits() == 1


def test_an_answer_is_sent_though_the_release_finds_no_server(proxy: Proxy, caplog: pytest.LogCaptureFixture) -> None:
    app = FastAPI(lifespan=pyredisson.fastapi.locks_lifespan(proxy.url, retry_attempts=0))

    @app.post("/change", dependencies=[pyredisson.fastapi.locked("changing", wait_time=None)])
    async def change() -> str:
        proxy.refuse(True)
        proxy.cut()
        return "changed"

    @app.post("/fail", dependencies=[pyredisson.fastapi.locked("failing", wait_time=None)])
    async def fail() -> None:
        raise ConnectionError("of the function")

    with TestClient(app) as browser:
        answer = browser.post("/change")
        assert (answer.status_code, answer.json()) == (200, "changed")
        assert "lock 'changing' is not released yet" in caplog.text
        proxy.refuse(False)
        with pytest.raises(ConnectionError, match="of the function"):
            browser.post("/fail")


def test_wrong_arguments() -> None:
    locked = pyredisson.fastapi.locked
    with pytest.raises(TypeError, match="needs the type of each field"):
        locked("order:{order}")
    with pytest.raises(TypeError, match="as none"):
        locked("orders", order=int)
    with pytest.raises(ValueError, match=r"must be the name of a parameter, not 'order.id'"):
        locked("{order.id}", order=int)
    with pytest.raises(ValueError, match="must be lock, fair, fenced, read, write"):
        locked("orders", kind="spin")  # type: ignore[arg-type]
