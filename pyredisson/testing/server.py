"""A real Redis or Valkey server process that lives as long as a test or a demo needs it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from redis import Redis

from pyredisson.testing.process import (
    HOST,
    ServerError,
    answers,
    credentials,
    end,
    find_executable,
    free_ports,
    make_certificates,
    quoted,
    read_version,
)

__all__ = ["Server"]

_START_SECONDS = 10.0
_PORT_TRIES = 10


class Server:
    """A server on 127.0.0.1 that begins without data, persists nothing, and ends together with this process.

    Use it as a context manager, or call `start` and `stop`. `kill` and `start` may follow each other: the
    port stays the same and the data is empty again.

    Args:
        executable: the program to run; without it `find_executable` looks for one.
        password: of the default user.
        users: ACL lines without the leading word ``user``, for instance ``"alice on >secret ~* &* +@all"``.
        tls: also listen on a TLS port, with a certificate made for this server (needs ``openssl``).
        config: further lines of the configuration file, for instance ``{"maxmemory": "1mb"}``.

    Raises:
        FileNotFoundError: there is no such program, or none was found.
    """

    host = HOST

    def __init__(
        self,
        *,
        executable: str | os.PathLike[str] | None = None,
        password: str | None = None,
        users: Sequence[str] = (),
        tls: bool = False,
        config: Mapping[str, str] | None = None,
    ) -> None:
        self.executable = find_executable(executable)
        self.password = password
        self.port = 0
        self.tls_port = 0
        self._users = tuple(users)
        self._tls = tls
        self._config = dict(config or {})
        self._directory: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._cleanup: weakref.finalize[..., Any] | None = None
        self._owner = os.getpid()

    def start(self) -> Self:
        """Start the process and return once it answers.

        Raises:
            ServerError: it exited early, or did not answer within 10 seconds.
        """
        self._prepare()
        fixed = self.port != 0
        deadline = time.monotonic() + _START_SECONDS
        for attempt in range(_PORT_TRIES):
            if not fixed:
                self.port, self.tls_port = free_ports("cluster-enabled" in self._config)
            self._spawn()
            try:
                self._await_answer(deadline)
            except ServerError as error:
                taken = "Address already in use" in str(error)
                self._reap()
                if not taken or attempt == _PORT_TRIES - 1:
                    self.stop()
                    raise
                continue
            return self
        raise AssertionError("unreachable")

    def stop(self) -> None:
        """End the process (SIGTERM, after 5 seconds SIGKILL) and remove its files. May be called twice.

        In a process forked from the one that started the server this does nothing: the server isn't its own.
        """
        if os.getpid() != self._owner:
            return
        if self._cleanup is not None:
            self._cleanup()
        self._cleanup = self._process = self._guard = self._directory = None

    def kill(self) -> None:
        """End the process with SIGKILL and wait until it is gone; `start` brings it back on the same port."""
        self._running().kill()
        self._reap()

    def pause(self) -> None:
        """Stop the process with SIGSTOP: connections stay open, new ones are accepted, and nothing is answered."""
        self._running().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue a paused process."""
        self._running().send_signal(signal.SIGCONT)

    def restart(self) -> None:
        """Kill the process and start it again on the same port, with empty data and no scripts."""
        self.kill()
        self.start()

    def redis(self, **options: Any) -> Redis:
        """Return a new redis-py client for this server; `options` override the arguments of `redis.Redis`."""
        defaults: dict[str, Any] = {"host": self.host, "port": self.port, "password": self.password}
        return Redis(**(defaults | options))

    @property
    def path(self) -> str:
        """The unix socket's path."""
        if self._directory is None:
            raise RuntimeError("the server has not been started")
        return str(self._directory / "socket")

    @property
    def url(self) -> str:
        return f"redis://{self._credentials}{self.host}:{self.port}/0"

    @property
    def unix_url(self) -> str:
        return f"unix://{self._credentials}{self.path}"

    @property
    def tls_url(self) -> str:
        """The address for TLS. The certificates are signed by `ca_file`, which a client needs beside this address."""
        return f"rediss://{self._credentials}{self.host}:{self.tls_port}/0"

    @property
    def ca_file(self) -> str:
        """The certificate authority that signed the server's certificate (`tls=True` only)."""
        if self._directory is None or not self._tls:
            raise RuntimeError("the server has not been started with tls=True")
        return str(self._directory / "ca.pem")

    @property
    def pid(self) -> int:
        return self._running().pid

    @cached_property
    def version(self) -> tuple[int, int, int]:
        """The version of the program: of a Valkey server, Valkey's version, not the Redis version that it reports."""
        return read_version(self.executable)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def _credentials(self) -> str:
        return credentials(self.password)

    def _running(self) -> subprocess.Popen[bytes]:
        if os.getpid() != self._owner:
            raise RuntimeError(f"the server belongs to process {self._owner}")
        if self._process is None:
            raise RuntimeError("the server is not running")
        return self._process

    def _prepare(self) -> Path:
        """Make the directory of this server, unless there is one already from an earlier start."""
        if self._process is not None:
            raise RuntimeError("the server is already running")
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="pyredisson-"))
            self._cleanup = weakref.finalize(self, end, None, None, self._directory, os.getpid())
            self._owner = os.getpid()
            if self._tls:
                self._provide_certificates(self._directory)
        return self._directory

    def _provide_certificates(self, directory: Path) -> None:
        make_certificates(directory)

    def _write_configuration(self, file: Path) -> None:
        # Not on the command line, where everybody could read the password.
        file.touch(mode=0o600)
        file.write_text(self._configuration(file.parent))

    def _spawn(self, *arguments: str) -> None:
        directory = self._directory
        assert directory is not None
        file = directory / "server.conf"
        self._write_configuration(file)
        with (directory / "log").open("wb") as log:
            process = subprocess.Popen(
                [self.executable, str(file), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=directory,
                start_new_session=True,  # Ctrl-C is for this process, which stops the server itself
            )
        # If this process is killed it runs no exit handler. Then the guard notices the end of its pipe, and cleans up.
        guard = subprocess.Popen(
            [
                "/bin/sh",
                "-c",
                'read -r _; kill -9 "$1"; rm -rf "$2"',
                "sh",
                str(process.pid),
                str(directory),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._process, self._guard = process, guard
        if self._cleanup is not None:
            self._cleanup.detach()
        self._cleanup = weakref.finalize(self, end, process, guard, directory, os.getpid())

    def _configuration(self, directory: Path) -> str:
        settings = {
            "bind": self.host,
            "port": str(self.port),
            "unixsocket": str(directory / "socket"),
            "dir": str(directory),
            "daemonize": "no",
            "save": "",
            "appendonly": "no",
        }
        if self.password is not None:
            settings["requirepass"] = quoted(self.password)
        if self._tls:
            settings |= {
                "tls-port": str(self.tls_port),
                "tls-cert-file": str(directory / "server.pem"),
                "tls-key-file": str(directory / "server.key"),
                "tls-ca-cert-file": str(directory / "ca.pem"),
                "tls-auth-clients": "no",
            }
        lines = [f"{name} {value or quoted('')}" for name, value in (settings | self._config).items()]
        lines += [f"user {line}" for line in self._users]
        return "\n".join(lines) + "\n"

    def _await_answer(self, deadline: float) -> None:
        process = self._running()
        delay = 0.002
        while time.monotonic() < deadline:
            # Nobody else uses the path of this socket; on the port, another server may answer.
            if answers(self.path):
                return
            try:
                process.wait(delay)
            except subprocess.TimeoutExpired:
                delay = min(delay * 1.5, 0.05)
                continue
            raise ServerError(f"{self.executable} exited with status {process.returncode}:\n{self._log_tail()}")
        raise ServerError(f"{self.executable} did not answer within {_START_SECONDS:g} s:\n{self._log_tail()}")

    def _log_tail(self) -> str:
        assert self._directory is not None
        text = (self._directory / "log").read_text(errors="replace")
        if self._tls and re.search(r"tls-\S+.*\n.*Bad directive", text):
            text += "\nThis server was built without TLS."
        return "\n".join(text.splitlines()[-20:])

    def _reap(self) -> None:
        if self._process is not None:
            end(self._process, self._guard, None, self._owner)
            self._process = self._guard = None
