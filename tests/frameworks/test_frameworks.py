"""Django: commands and views as processes. FastAPI: what a request holds, its answer. The programs of `examples/`."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from subprocess import PIPE, STDOUT, Popen
from typing import Annotated, Any

import httpx2 as httpx
import pytest
from fastapi import FastAPI, Query
from fastapi.testclient import TestClient
from redis import ConnectionError, Redis

import pyredisson
from pyredisson.asyncio import FencedLock
from pyredisson.fastapi import Locks, locked, locks_lifespan, permit
from pyredisson.testing import Proxy, Server
from tests.interop.jvm import build, needed
from tests.support.children import CHILD_LIMIT, completed, end_of, line, processes

EXAMPLES = Path(__file__).parents[2] / "examples"
"""Each program there is started as its first lines say, and does its job; so is `demo/demo.py`."""
Start = Callable[..., Popen[str]]
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
    error = error_of(CommandError, call_command, "run_locked", "it", "--locks", "other", "work")
    assert "no entry 'other'" in str(error)
    error = error_of(CommandError, call_command, "run_locked", "it", "--locks", "down", "work")
    assert (error.returncode, "the server of the locks" in str(error)) == (69, True), error
with override_settings(LOCKS={"default": os.environ["URL"]}):
    assert "LOCKS['default'] must be a dict" in str(error_of(ImproperlyConfigured, client))
with override_settings(LOCKS=[]):
    assert [each.id for each in run_checks()] == ["pyredisson.E001"]
error = error_of(CommandError, call_command, "run_locked", "it", "--at-least", "-1", "work")
assert (error.returncode, "at_least must" in str(error)) == (1, True), error
print("tried")
"""


@pytest.fixture
def manage(tmp_path: Path, server: Server) -> Iterator[Start]:
    """Starts a management command of the project."""
    commands = tmp_path / "work" / "management" / "commands"
    commands.mkdir(parents=True)
    (commands / "work.py").write_text(COMMAND)
    (tmp_path / "work" / "urls.py").write_text(URLS)
    (tmp_path / "manage.py").write_text(MANAGE)
    env = os.environ | {"URL": server.url}
    with processes(cwd=tmp_path, env=env, stdin=PIPE, stdout=PIPE, stderr=PIPE) as start:
        yield partial(start, sys.executable, "-W", "error", "manage.py")


def test_views_checks_and_commands(manage: Start, client: pyredisson.Client, admin: Redis) -> None:
    status, out, err = end_of(manage("shell", "-v", "0", "-c", TRIES))
    assert (status, out, admin.keys()) == (0, "tried\n", []), err
    first = manage("run_locked", "nightly", "--at-least", "600", "--", "work", "--text", "first")
    assert line(first) == "first True"
    waiting = manage("run_locked", "nightly", "--", "work", "--text", "second")
    status, out, err = end_of(manage("run_locked", "nightly", "--no-wait", "work"))
    assert (status, out) == (75, "")
    assert err.startswith("CommandError: lock 'app:nightly' is held by ")
    assert end_of(first, "\n")[0] == 0
    # At least so long, though the work is done; until then nobody else begins.
    assert 60 < admin.ttl("app:nightly") <= 600
    client.get_lock("app:nightly").force_unlock()
    assert line(waiting) == "second True"
    client.get_lock("app:nightly").force_unlock()
    status, _, err = end_of(waiting, "\n")
    assert (status, "lost" in err) == (74, True), err
    hanging = manage("run_locked", "report", "--at-most", "0.2", "work")
    assert line(hanging) == "None False"
    assert client.get_lock("app:report").try_lock(CHILD_LIMIT)
    assert end_of(hanging, "\n")[0] == 74


def test_what_a_request_holds(server: Server, admin: Redis) -> None:
    """Locks of each kind, permits, limits; the answers if something is taken, or lost."""
    state: list[bool] = []

    @asynccontextmanager
    async def own_lifespan(app: FastAPI) -> AsyncIterator[None]:
        # The client is there before it and after it.
        state.append(app.state.locks.closed)
        yield
        state.append(app.state.locks.closed)

    app = FastAPI(lifespan=locks_lifespan(server.url, lifespan=own_lifespan, name_mapper="shop:{}".format))
    held_at_the_answer: list[bool] = []

    async def watched(scope: Any, receive: Any, send: Any) -> None:
        async def sent(message: Any) -> None:
            if message["type"] == "http.response.start":
                held_at_the_answer.append(bool(admin.exists("shop:order:7")))
            await send(message)

        await app(scope, receive, sent)

    @app.get("/orders/{order}", dependencies=[locked("order:{order}", order=int, wait_time=0)])
    def order(order: int) -> bool:
        return bool(admin.exists(f"shop:order:{order}"))

    def name_of_user(user: Annotated[str, Query(min_length=2)]) -> str:
        return f"user:{user}"

    @app.get("/named")
    async def named(lock: Annotated[FencedLock, locked(name_of_user, kind="fenced")], locks: Locks) -> list[object]:
        return [lock.name, await lock.get_token(), await locks.get_lock(lock.name).try_lock()]

    @app.get("/read", dependencies=[locked("report", kind="read", wait_time=0)])
    @app.get("/write", dependencies=[locked("report", kind="write", wait_time=0, busy=409, retry_after=7)])
    async def report() -> str:
        return "done"

    @app.get("/hang", dependencies=[locked("hanging", at_most=0.2)])
    async def hang() -> None:
        await asyncio.sleep(60)

    @app.get("/few/{size}")
    async def few(id_: Annotated[str, permit("size:{size}", 1, size=int, wait_time=0.01)]) -> str:
        return id_

    @app.get("/gone")
    async def gone(id_: Annotated[str, permit("gone", 1)]) -> None:
        admin.delete("{shop:gone}:timeout")

    with TestClient(watched) as browser, pyredisson.connect(server.url) as other:
        assert browser.get("/orders/7").json() is True
        assert held_at_the_answer == [False]
        assert [browser.get(path).status_code for path in ("/orders/x", "/named?user=a")] == [422, 422]
        name, token, acquired = browser.get("/named?user=ann").json()
        assert (name, acquired) == ("user:ann", False)
        assert token == int(admin.get("redisson_lock_token:{shop:user:ann}") or b"")
        with other.get_read_write_lock("shop:report").read_lock():
            answers = [browser.get(path) for path in ("/read", "/write")]
        assert [answer.status_code for answer in answers] == [200, 409]
        assert answers[1].headers["Retry-After"] == "7"
        assert browser.get("/write").json() == "done"
        answer = browser.get("/hang")
        assert (answer.status_code, answer.json()) == (409, {"detail": "the lock of this request was lost"})
        given = browser.get("/few/3").json()
        semaphore = other.get_permit_expirable_semaphore("shop:size:3")
        with semaphore.permit() as id_:
            assert (len(given), given != id_) == (32, True)
            assert browser.get("/few/3").status_code == 429
        assert browser.get("/gone").status_code == 409
        assert semaphore.available_permits() == 1
    assert state == [False, False]


def test_a_server_that_is_away(proxy: Proxy, caplog: pytest.LogCaptureFixture) -> None:
    """When the lock is released the answer is sent all the same."""
    app = FastAPI(lifespan=locks_lifespan(proxy.url, retry_attempts=0))

    @app.post("/change", dependencies=[locked("changing", wait_time=0.01)])
    async def change() -> str:
        proxy.refuse(True)
        proxy.cut()
        return "changed"

    @app.post("/fail", dependencies=[locked("failing", wait_time=None)])
    async def fail() -> None:
        raise ConnectionError("of the function")

    with TestClient(app) as browser:
        answer = browser.post("/change")
        assert (answer.status_code, answer.json()) == (200, "changed")
        assert "lock 'changing' is not released yet" in caplog.text
        assert browser.post("/change").status_code == 503
        proxy.refuse(False)
        with pytest.raises(ConnectionError, match="of the function"):
            browser.post("/fail")


@pytest.mark.parametrize(
    ("error", "message", "arguments"),
    [
        (TypeError, "needs the type of each field", {"name": "order:{order}"}),
        (TypeError, "as none", {"name": "orders", "order": int}),
        (ValueError, r"must be the name of a parameter, not 'order.id'", {"name": "{order.id}", "order": int}),
        (ValueError, "must be lock, fair, fenced, read, write", {"name": "orders", "kind": "spin"}),
    ],
)
def test_wrong_arguments(error: type[Exception], message: str, arguments: Any) -> None:
    with pytest.raises(error, match=message):
        locked(**arguments)


@pytest.fixture
def start(server: Server) -> Iterator[Start]:
    """Starts a program of a folder of the examples, and kills it with its children after the test."""
    env = {"PYREDISSON_URL": server.url, "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    with processes(stdout=PIPE, stderr=STDOUT) as start_process:
        yield lambda *command, folder=EXAMPLES: start_process(*command, cwd=folder, env=os.environ | env)


def said(process: Popen[str], pattern: str) -> re.Match[str]:
    """The next line of its output that contains the pattern."""
    seen = ""
    for each in process.stdout or ():
        seen += each
        if found := re.search(pattern, each):
            return found
    raise AssertionError(f"no {pattern!r} in:\n{seen}")


def test_fastapi_service(start: Start, admin: Redis) -> None:
    """As two processes, whose requests exclude each other."""
    services = [start(sys.executable, "-m", "uvicorn", "fastapi_service:app", "--port", "0") for _ in range(2)]
    urls = [said(service, r"running on (http://\S+)")[1] for service in services]
    with httpx.Client(timeout=40) as client, ThreadPoolExecutor(8) as pool:
        answers = pool.map(lambda at: client.post(f"{urls[at % 2]}/accounts/7/deposit?amount=10"), range(24))
        assert sorted(answer.json() for answer in answers) == list(range(10, 250, 10))
    assert admin.get("balance:7") == b"240"


def test_celery_worker(start: Start, server: Server) -> None:
    start(sys.executable, "-m", "celery", "-A", "celery_worker", "worker", "--concurrency", "2")
    with pyredisson.connect(server.url) as another_worker, another_worker.singleton("report:monday"):
        text = start(sys.executable, "celery_worker.py").communicate()[0]
    assert text.splitlines() == ["skipped: another worker writes that report"] * 2 + ["report of tuesday"]


def test_arq_worker(start: Start, server: Server) -> None:
    pytest.importorskip("arq", reason="arq wants redis below 6, so it is in no extra")
    with pyredisson.connect(server.url) as another_worker, another_worker.singleton("account:7"):
        sender = start(sys.executable, "arq_worker.py")
        worker = start(sys.executable, "-m", "arq", "arq_worker.WorkerSettings")
        said(worker, r"charge.* retrying job in 1")
    tries = re.findall(r"^charged 7 in try ([0-9]+)$", sender.communicate()[0], re.MULTILINE)
    assert (len(tries), max(map(int, tries)) > 1) == (2, True)


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
    token = int(said(first, "first leads, with token ([0-9]+)")[1])
    second = start(sys.executable, "leader.py", "second")
    said(second, "second is a candidate")
    first.terminate()
    assert int(said(second, "second leads, with token ([0-9]+)")[1]) > token
    assert first.wait() == -signal.SIGTERM


def test_java_and_python(start: Start, admin: Redis, tmp_path: Path) -> None:
    folder = EXAMPLES / "java_and_python"
    with needed():
        build(folder, f"-Doutput.directory={tmp_path}")
    admin.set("stock", 60)
    path = f"{tmp_path}/classes:{tmp_path}/dependency/*"
    java = start("java", "-Xmx256m", "-cp", path, "example.Shop", folder=folder)
    python = start(sys.executable, "worker.py", folder=folder)
    assert sum([int(said(java, "java sold ([0-9]+)")[1]), int(said(python, "python sold ([0-9]+)")[1])]) == 60
    assert admin.get("stock") == b"0"
    assert (java.wait(), python.wait()) == (0, 0)


def test_demo() -> None:
    done = completed(sys.executable, EXAMPLES.parent / "demo" / "demo.py", timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All of it was observed" in done.stdout
