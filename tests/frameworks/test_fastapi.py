"""FastAPI: two processes of uvicorn with one application."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx2 as httpx
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from redis import Redis
from redis.exceptions import ConnectionError

import pyredisson
import pyredisson.fastapi
from pyredisson.testing import Proxy, Server
from tests.support.children import CHILD_LIMIT, Child

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
    with pytest.raises(ValueError, match="must be lock, fair or fenced"):
        locked("orders", kind="spin")  # type: ignore[arg-type]
