"""gevent: if it has replaced sockets or threads, no client is made, and the error explains what to do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from redis import Redis

from pyredisson.testing import Server
from tests.support.children import Child

CONNECT = """
import sys
from gevent import monkey
exec(sys.argv[2])
import pyredisson, pyredisson.asyncio
for connect in (pyredisson.connect, pyredisson.asyncio.connect):
    try:
        connect(sys.argv[1])
        print("made")
    except pyredisson.ConfigError as error:
        print(error)
"""

USE = """
lock = pyredisson.connect(sys.argv[1], lock_watchdog_timeout=1).get_lock("a")
other = pyredisson.connect(sys.argv[1]).get_lock("a")
with lock:
    print(other.try_lock(1.5), lock.lost.is_set())
"""


@pytest.mark.parametrize(
    ("patch", "replaced"),
    [
        ("monkey.patch_all()", "socket, _thread, threading."),
        ("monkey.patch_socket()", "socket."),
        ("monkey.patch_thread()", "_thread, threading."),
    ],
)
def test_replaced_modules_are_refused(server: Server, child: Callable[..., Child], patch: str, replaced: str) -> None:
    user = child(CONNECT, server.url, patch)
    for _ in ("threads", "asyncio"):
        printed = user.receive()
        assert f"replaced these modules: {replaced}" in printed
        assert "patch_all(socket=False, thread=False)" in printed
    assert user.wait() == 0


@pytest.mark.parametrize("patch", ["import gevent", "monkey.patch_all(socket=False, thread=False)"])
def test_what_the_message_recommends_works(
    server: Server, admin: Redis, child: Callable[..., Child], patch: str
) -> None:
    user = child(CONNECT + USE, server.url, patch)
    assert [user.receive(), user.receive()] == ["made", "made"]
    assert user.receive() == "False False"
    assert user.wait() == 0
    assert not admin.exists("a")
