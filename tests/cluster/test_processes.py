"""Processes on a cluster: a forked child is a new client, and an exit or a signal releases on all nodes."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from pyredisson.testing import Cluster
from tests.support.children import Child

HOLD = """
import sys, pyredisson
client = pyredisson.connect(sys.argv[1])
for number in range(20):
    client.get_lock(f"a{number}").lock()
"""
PAUSE = """
print("held")
sys.stdin.readline()
"""


@pytest.fixture
def child(cluster: Cluster, child: Callable[..., Child]) -> Callable[[str], Child]:
    """Starts processes that get the URL of the cluster."""
    return lambda program: child(program, cluster.url)


def keys(cluster: Cluster) -> int:
    return sum(int(node.ask("DBSIZE")) for node in cluster.masters())


def test_an_exit_releases_on_all_nodes(cluster: Cluster, child: Callable[[str], Child]) -> None:
    process = child(HOLD + PAUSE)
    assert process.receive() == "held"
    assert keys(cluster) == 20
    process.send()
    assert process.wait() == 0
    assert keys(cluster) == 0


def test_a_dropped_client_sends_what_it_still_has_to_send(cluster: Cluster, child: Callable[[str], Child]) -> None:
    process = child(
        HOLD
        + """
import gc, threading
for number in range(20):
    client.get_lock(f"a{number}").unlock()
before = {thread.name for thread in threading.enumerate()}
assert "pyredisson-topology" in before
import warnings
warnings.simplefilter("ignore")
del client
gc.collect()
for thread in threading.enumerate():
    if thread is not threading.main_thread():
        thread.join(5)
print([thread.name for thread in threading.enumerate() if thread.name.startswith("pyredisson")])
"""
    )
    assert process.receive() == "[]"
    assert keys(cluster) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_releases_on_all_nodes(
    cluster: Cluster, child: Callable[[str], Child], number: signal.Signals
) -> None:
    process = child(
        "import pyredisson; pyredisson.release_on_signals()" + HOLD + "print('held')\nsys.stdin.readline()\n"
    )
    assert process.receive() == "held"
    process.signal(number)
    assert process.wait() != 0
    assert keys(cluster) == 0


def test_a_forked_child_is_a_client_of_its_own(cluster: Cluster, child: Callable[[str], Child]) -> None:
    process = child(
        HOLD
        + """
import os
parent = client.id
pid = os.fork()
if not pid:
    assert client.id != parent
    assert not client.get_lock("a1").is_held()
    assert not client.get_lock("a1").try_lock()
    for number in range(20):
        client.get_lock(f"b{number}").lock()
    client.close()
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
for number in range(20):
    assert client.get_lock(f"a{number}").is_held()
print("held")
sys.stdin.readline()
"""
    )
    assert process.receive() == "held"
    assert keys(cluster) == 20
    process.send()
    assert process.wait() == 0
    assert keys(cluster) == 0
