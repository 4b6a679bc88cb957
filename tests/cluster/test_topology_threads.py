"""The threads that follow the topology end with their client."""

from __future__ import annotations

import gc
import socket
import subprocess
import sys
import threading
import time
import weakref

import pytest

import pyredisson
from pyredisson.testing import Cluster, Sentinels
from tests.support.waiting import eventually

FOLLOWING = ("pyredisson-topology", "pyredisson-sentinel")


def following() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name in FOLLOWING]


def use_and_drop(url: str, threads: int) -> None:
    # Those of the tests before end at about the same time as these tests.
    eventually(lambda: not following())
    client = pyredisson.connect(url)
    with client.get_lock("a"):
        eventually(lambda: len(following()) == threads)
    reference = weakref.ref(client._lifecycle)
    del client
    eventually(lambda: gc.collect() >= 0 and reference() is None)
    eventually(lambda: not following())


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_dropped_client_of_a_cluster(cluster: Cluster) -> None:
    use_and_drop(cluster.url, 1)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_dropped_client_of_sentinels(sentinels: Sentinels) -> None:
    use_and_drop(sentinels.url, 2)


def test_a_closed_client(sentinels: Sentinels) -> None:
    eventually(lambda: not following())
    with pyredisson.connect(sentinels.url) as client, client.get_lock("a"):
        assert len(following()) == 2
    eventually(lambda: not following())


@pytest.mark.parametrize("url", ["redis+cluster://127.0.0.1:{}", "redis+sentinel://127.0.0.1:{}/mymaster"])
def test_the_interpreter_exits_while_a_server_hangs(url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        program = f"""
import threading, pyredisson
client = pyredisson.connect({url.format(silent.getsockname()[1])!r})
started = threading.Event()
def call():
    started.set()
    client.get_lock("a").lock()
threading.Thread(target=call, daemon=True).start()
started.wait()
while not any(thread.name == "pyredisson-topology" for thread in threading.enumerate()):
    pass
"""
        began = time.monotonic()
        ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
        assert ended.returncode == 0, ended.stderr
        assert "Traceback" not in ended.stderr
        assert time.monotonic() - began < 6.0
