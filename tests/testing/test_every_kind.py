"""What all kinds of test servers do: they refuse what does not fit, and leave neither processes nor files behind."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pyredisson.testing import Cluster, Replicated, Sentinels, Server, ServerError
from pyredisson.testing.server import free_ports, lasting_ports
from tests.support.children import Child
from tests.support.programs import embedded


def nodes_of(servers: Any) -> Sequence[Server]:
    return [servers] if isinstance(servers, Server) else [*servers.nodes, *getattr(servers, "sentinels", ())]


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: Cluster(masters=0), ValueError, "at least one master"),
        (lambda: Cluster(proxied=True, tls=True), ValueError, "neither with tls=True nor"),
        (lambda: Replicated(replicas=-1), ValueError, "negative"),
        (lambda: Sentinels(sentinels=0), ValueError, "at least one sentinel"),
        (lambda: Sentinels(password="with space"), ValueError, "quote a password"),
        (lambda: Sentinels().fail_over(), ServerError, "no sentinel of"),
        (lambda: Server(executable=embedded(), tls=True).start(), ServerError, "built without TLS"),
        *((lambda kind=kind: kind(executable="no-such"), FileNotFoundError, "no-such") for kind in (Server, Cluster)),
    ],
)
def test_what_does_not_fit_is_refused(make: Callable[[], object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make()


@pytest.mark.parametrize("kind", [Server, Cluster])
def test_a_start_that_fails_says_why_and_leaves_nothing_behind(kind: Callable[..., Any]) -> None:
    servers = kind(config={"no-such-directive": "1"})
    with pytest.raises(ServerError, match="no-such-directive"):
        servers.start()
    with pytest.raises(RuntimeError, match="not been started"):
        nodes_of(servers)[0].path  # noqa: B018


@pytest.mark.parametrize(("kind", "status"), [(Server, 0), (Cluster, -signal.SIGKILL), (Sentinels, -signal.SIGKILL)])
@pytest.mark.parametrize("paused", [False, True])
def test_stop_ends_all_processes_and_removes_their_files(kind: Callable[..., Any], status: int, paused: bool) -> None:
    servers = kind().start()
    nodes = nodes_of(servers)
    directories = [Path(node.path).parent for node in nodes]
    processes = [node._process for node in nodes]
    if paused:
        nodes[-1].pause()
    for _ in range(2):
        servers.stop()
        assert [process and process.poll() for process in processes] == [status] * len(nodes)
        assert not any(directory.exists() for directory in directories)
    with pytest.raises(RuntimeError, match="not running"):
        nodes[0].kill()


def test_a_taken_port_is_replaced(own_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    free, for_cluster = free_ports(False), lasting_ports(1, bus=True)
    offers, cluster_offers = iter([(own_server.port, 0), free]), iter([[own_server.port], for_cluster])
    monkeypatch.setattr("pyredisson.testing.server.free_ports", lambda _cluster: next(offers))
    monkeypatch.setattr("pyredisson.testing.deployment.lasting_ports", lambda _count, **_bus: next(cluster_offers))
    with Server() as other, own_server.redis() as one, other.redis() as two:
        assert other.port == free[0]
        one.set("a", "1")
        assert two.get("a") is None
    with Cluster(masters=1, replicas=0) as cluster:
        assert [cluster.nodes[0].port] == for_cluster


def test_a_forgotten_server_ends_when_it_is_collected() -> None:
    server = Server().start()
    process = server._process
    assert process is not None
    del server
    assert process.wait(5) == 0


PROGRAM = """
import os, signal, sys
from pyredisson.testing import Cluster, Server
servers = {}.start()
nodes = getattr(servers, "nodes", [servers])
child = os.fork()
if child == 0:
    servers.stop()  # not the child's
    try:
        nodes[0].kill()
    except RuntimeError:
        sys.exit(7)  # runs the exit handlers, unlike os._exit
    sys.exit(8)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
for node in nodes:
    with node.redis() as client:
        assert client.ping()
    assert os.path.exists(node.path)
print(nodes[0].path, *(each for node in nodes for each in (node.pid, node._guard.pid)))
sys.stdin.readline()
{}
"""
KILLED = "os.kill(os.getpid(), signal.SIGKILL)"


@pytest.mark.parametrize(
    ("servers", "ending"),
    [
        *(("Server()", ending) for ending in ("raise SystemExit(3)", "os._exit(0)", KILLED)),
        ("Cluster(masters=1, replicas=1, proxied=True)", KILLED),
    ],
)
def test_no_server_outlives_its_process(child: Callable[..., Child], servers: str, ending: str) -> None:
    """A forked child of it leaves the servers alone."""
    process = child(PROGRAM.format(servers, ending))
    path, *pids = process.receive().split()
    fds = [os.pidfd_open(int(pid)) for pid in pids]
    try:
        # A pidfd becomes readable at the end of its process, reaped or not.
        assert fds
        assert not select.select(fds, [], [], 0.0)[0]
        process.send()
        process.wait()
        assert all(select.select([fd], [], [], 5.0)[0] for fd in fds)
    finally:
        for fd in fds:
            os.close(fd)
    assert not Path(path).parent.exists()
