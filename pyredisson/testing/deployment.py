"""Several server processes that belong together: started side by side, asked until they agree, ended together."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from pyredisson.testing.server import Server, ServerError, ServerOptions, lasting_ports, on_free_ports, quoted

_START_SECONDS = 20.0
_POLL_SECONDS = 0.02
_ANSWER_SECONDS = 2.0


class Node(Server):
    """One server of several. Its port and its configuration are kept from one start to the next, its data is not.

    `kill`, `pause`, `resume` and `start` return at once. The methods of the same names of a `Cluster`, `Sentinels` or
    `Replicated` wait until the other nodes have noticed.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.paused = False
        self._admin: Redis | None = None
        # How replicas reach their masters, and without the pauses that suit large data. After a sync without a file, a
        # master sends nothing more for up to a second: WAIT would confirm nothing meanwhile.
        settings = {"repl-diskless-sync": "no", "repl-ping-replica-period": "1"}
        if self.version >= (7,):
            settings["shutdown-timeout"] = "0"
        if self.password is not None:
            settings["masterauth"] = quoted(self.password)
        if self._tls:
            settings["tls-replication"] = "yes"
        self._config = settings | self._config

    @property
    def running(self) -> bool:
        """Whether there is a process, which may be paused or have ended by itself."""
        return self._process is not None

    @property
    def alive(self) -> bool:
        """Whether the process runs and isn't paused."""
        return self._process is not None and self._process.poll() is None and not self.paused

    @property
    def address(self) -> tuple[str, int]:
        """The host and port that clients are told."""
        return self.host, self.port

    @property
    def internal_port(self) -> int:
        """The port that the other nodes use, beside the bus of a cluster: the port of TLS if there is one."""
        return self.tls_port if self._tls else self.port

    def ask(self, *words: str | int | bytes) -> Any:
        """Run one command on this very node, over its unix socket, and return what redis-py makes of the reply. It
        raises an error reply, or its own error if there is no reply within 2 seconds."""
        if self._admin is None:
            self._admin = Redis(
                unix_socket_path=self.path,
                password=self.password,
                decode_responses=True,
                socket_timeout=_ANSWER_SECONDS,
                protocol=2,
                retry=Retry(NoBackoff(), 0),
            )
        return self._admin.execute_command(*words)  # type: ignore[no-untyped-call]

    def kill(self) -> None:
        super().kill()
        self._forget_process()

    def pause(self) -> None:
        super().pause()
        self.paused = True

    def resume(self) -> None:
        super().resume()
        self.paused = False

    def stop(self) -> None:
        """End the process with SIGKILL, as nothing is persisted, and remove its files. May be called twice."""
        if self._process is not None and os.getpid() == self._owner:
            self._process.kill()
        super().stop()
        self._forget_process()

    def _forget_process(self) -> None:
        self.paused = False
        if self._admin is not None:
            self._admin.close()
            self._admin = None

    def _spawn(self, *arguments: str) -> None:
        for file in Path(self.path).parent.glob("*.rdb"):
            file.unlink()  # from the connection of a replica; the server would load it
        super()._spawn(*arguments)

    def _write_configuration(self, file: Path) -> None:
        # A server may have rewritten its file since the first start, for instance when it became a replica.
        if not file.exists():
            super()._write_configuration(file)


N = TypeVar("N", bound=Node)
P = TypeVar("P", bound=Node)


class Deployment(Generic[N, P]):
    """What clusters, sentinels and replicated servers have in common. A context manager; or `start` and `stop`.

    `N` is the type of the nodes that have data, `P` the type of all processes, which may include sentinels.
    """

    nodes: tuple[N, ...]
    """All nodes, living or not, in the order in which they were made: first the original masters."""
    _servers: Sequence[P]
    """All processes."""

    def __init__(self, kind: type[N], count: int, options: ServerOptions, settings: dict[str, str]) -> None:
        """`options`: of each node, as for `Server`."""
        # Makes `count` nodes with data. `settings`: of their configuration, where the options don't say otherwise.
        self.password = options.get("password")
        self._tls = options.get("tls", False)
        self._running = False
        self._owner = os.getpid()
        options["config"] = settings | dict(options.get("config") or {})
        self.nodes = tuple(kind(**options) for _ in range(count))
        self.version = self.nodes[0].version

    def start(self) -> Self:
        """Start all processes. `ServerError`: one of them exited, or they didn't agree within 20 seconds."""
        if self._running:
            raise RuntimeError(f"{self!r} is already running")
        self._running, self._owner = True, os.getpid()
        try:
            on_free_ports(self._launch, self._end)
            self.wait_until_consistent(_START_SECONDS)
        except BaseException:
            # Also after Ctrl-C: the processes of a start that failed must not stay.
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End all processes and remove their files. May be called twice. Does nothing in a forked process."""
        if self._running and os.getpid() == self._owner:
            self._running = False
            self._end()

    def _end(self) -> None:
        for server in self._servers:
            server.stop()

    def kill(self, node: P) -> None:
        """End a node with SIGKILL; its data is gone. Returns at once: the others notice it later."""
        self._before_outage(self._known(node))
        node.kill()

    def pause(self, node: P) -> None:
        """Stop a node with SIGSTOP: its connections stay open, and nothing is answered. Returns at once."""
        self._before_outage(self._known(node))
        node.pause()

    def resume(self, node: P) -> None:
        """Continue a paused node, and return when it agrees with the others again. `ServerError`: not in 20 seconds."""
        self._known(node).resume()
        self.wait_until_consistent()

    def restart(self, node: P) -> None:
        """Start a node again on its port, without data; one that runs is killed first. Returns when all nodes agree."""
        if self._known(node).running:
            node.kill()
        node.start()
        self.wait_until_consistent()

    def wait_until_consistent(self, timeout: float = _START_SECONDS) -> None:
        """Return when all living nodes agree with each other, and their replicas are connected. The `ServerError` after
        `timeout` seconds says what was missing."""
        self._wait("all nodes agree", self._inconsistency, timeout)

    @property
    def ca_file(self) -> str:
        """The certificate authority that signed the certificates of all processes (`tls=True` only)."""
        return self.nodes[0].ca_file

    def flush_scripts(self) -> None:
        """Remove all scripts from every living node."""
        for node in self.living:
            node.ask("SCRIPT", "FLUSH")

    @property
    def living(self) -> tuple[N, ...]:
        """The nodes that run and aren't paused."""
        return tuple(node for node in self.nodes if node.alive)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {', '.join(f'{node.host}:{node.port}' for node in self.nodes)}>"

    def _configure(self) -> None:
        """Complete the configuration of each process, whose ports are chosen and whose directory exists."""
        raise NotImplementedError

    def _before_outage(self, node: P) -> None:
        """Note what the others won't tell any more when this node doesn't answer."""

    def _inconsistency(self) -> str | None:
        """What doesn't agree yet; None if all do."""
        raise NotImplementedError

    def _launch(self) -> None:
        count = len(self._servers) * (2 if self._tls else 1)
        ports = iter(lasting_ports(count, bus="cluster-enabled" in self.nodes[0]._config))
        for server in self._servers:
            server.port = next(ports)
            server.tls_port = next(ports) if self._tls else 0
            server._certificates = server._certificates or self.nodes[0]._certificates
            server._prepare()
        self._configure()
        deadline = time.monotonic() + _START_SECONDS
        for server in self._servers:
            server._spawn()
        for server in self._servers:
            server._await_answer(deadline)

    def _known(self, node: P) -> P:
        if node not in self._servers:
            raise ValueError(f"{node.host}:{node.port} is no node of {self!r}")
        return node

    def _wait(self, what: str, missing: Callable[[], str | None], timeout: float = _START_SECONDS) -> None:
        """Ask again and again until `missing` returns None. An error of a server counts as an answer, too."""
        end = time.monotonic() + timeout
        while True:
            try:
                answer = missing()
            except RedisError as error:
                answer = f"{type(error).__name__}: {error}"
            if answer is None:
                return
            if time.monotonic() >= end:
                raise ServerError(f"not within {timeout:g} s: {what}: {answer}")
            time.sleep(_POLL_SECONDS)
