"""A TCP proxy in front of a server that loses, holds, delays and cuts what a test tells it to."""

import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Self, TypeVar

from pyredisson.testing.relay import Conditions, Fault, Hold, Relay, Tunnel, arguments

_CALL_SECONDS = 5.0
_F = TypeVar("_F", bound=Fault)


class Proxy:
    """Listens on a port of 127.0.0.1, in front of the server at `host` and `port`.

    A context manager; or call `start` and `close`. It reads RESP (both versions, pipelines, pushes), so that a fault
    strikes whole requests and replies. `match` is looked for in a request's raw bytes; ``b""`` is in all of them. A
    request meets the oldest fault that matches, and no other. Every method has taken effect when it returns. TLS does
    not get through. ``MONITOR`` and ``CLIENT REPLY`` break the count of the replies and are not supported.

    When a client leaves while a request of its own is held, the connection to the server stays open until the request
    is delivered or the proxy is closed: the network's late copy.

    Args:
        direct: the connections of clients that come from this address are passed on unchanged. No fault strikes them,
            and they are not counted. Meant for replicas, whose connections carry more than RESP.
    """

    def __init__(self, host: str, port: int, *, direct: str | None = None) -> None:
        self.host = "127.0.0.1"
        self.port = 0
        self._server = host, port
        self._direct = direct
        self._tunnels: list[Tunnel] = []
        self._conditions = Conditions()
        self._relays: list[Relay] = []
        self._refusing = False
        self._calls: deque[tuple[Callable[[], object], Future[None]]] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._running = False

    @property
    def url(self) -> str:
        """The address without credentials: pass those separately."""
        return f"redis://{self.host}:{self.port}/0"

    @property
    def connections(self) -> int:
        """How many clients are connected. A client that has closed its connection counts until the proxy notices it."""
        return sum(relay.client.open for relay in tuple(self._relays))

    @property
    def commands(self) -> list[tuple[bytes, ...]]:
        """The words of every request that has arrived from a client, in order."""
        return [arguments(frame) for frame in tuple(self._conditions.requests)]

    def seen(self, match: bytes) -> int:
        """Return how many requests containing `match` have arrived."""
        return sum(match in frame for frame in tuple(self._conditions.requests))

    def forget(self) -> None:
        """Empty `commands`, so that `seen` and `wait_for` count from here."""
        self._call(self._conditions.requests.clear)

    def wait_for(self, what: bytes | Callable[[], bool], timeout: float = 5.0) -> None:
        """Wait until a request containing the given bytes has arrived, or until the given function returns True, which
        is asked whenever anything has happened. `TimeoutError`: not within `timeout` seconds."""
        happened = what if callable(what) else lambda: self.seen(what) > 0
        with self._changed:
            if not self._changed.wait_for(happened, timeout):
                raise TimeoutError(f"not within {timeout:g} s: {what!r}; seen: {self.commands}")

    def drop_reply(self, match: bytes = b"", times: int = 1) -> Fault:
        """Let the server execute the request, and lose its reply and everything after it.

        From that reply on the connection is silent: the client gets nothing more on it, neither replies nor messages
        nor its end. It stays open, and further requests still reach the server; requests that match use up `times` too.
        """
        return self._add(Fault("drop_reply", match, times))

    def cut_reply(self, match: bytes = b"", times: int = 1) -> Fault:
        """Let the server execute the request, and cut the connection when its reply arrives."""
        return self._add(Fault("cut_reply", match, times))

    def cut_request(self, match: bytes = b"", times: int = 1) -> Fault:
        """Cut the connection before the request reaches the server."""
        return self._add(Fault("cut_request", match, times))

    def hold_request(self, match: bytes = b"") -> Hold:
        """Keep the request, and everything behind it on its connection, from the server until delivered."""
        return self._add(Hold("hold_request", match, self._deliver))

    def hold_reply(self, match: bytes = b"") -> Hold:
        """Keep the reply, and everything behind it on its connection, from the client until delivered."""
        return self._add(Hold("hold_reply", match, self._deliver))

    def cut(self, reset: bool = False) -> None:
        """Close all current connections, with FIN or with RST (`reset`)."""
        self._on_all(lambda relay: relay.cut(reset))

    def refuse(self, refusing: bool) -> None:
        """Accept new connections and close them at once, or serve them again."""
        self._refusing = refusing
        self._wait_for_round()

    def stall(self) -> None:
        """Pass nothing on, in both directions, on old and new connections; everything is kept for `resume`."""
        self._conditions.stalled = True
        self._wait_for_round()

    def resume(self) -> None:
        """Pass on what `stall` kept, and continue normally."""
        self._conditions.stalled = False
        self._wait_for_round()

    def blackhole(self) -> None:
        """Discard everything on the current connections from now on, in both directions, including their closing."""
        self._on_all(Relay.blackhole)

    def latency(self, seconds: float) -> None:
        """Delay everything that arrives from now on by `seconds`, in each direction."""
        self._conditions.latency = seconds
        self._wait_for_round()

    def start(self) -> Self:
        """Listen on a free port."""
        if self._thread is not None:
            raise RuntimeError("the proxy has been started already")
        self._listener = socket.create_server((self.host, 0))
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]
        self._wake, self._woken = socket.socketpair()
        self._woken.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._woken, selectors.EVENT_READ, lambda _: self._woken.recv(1 << 12))
        self._running = True
        self._thread = threading.Thread(target=self._run, name=f"proxy:{self.port}", daemon=True)
        self._thread.start()
        return self

    def close(self) -> None:
        """Close everything. Held and stalled data is lost. May be called twice."""
        if self._thread is None or not self._running:
            return
        self._call(self._stop)
        self._thread.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _stop(self) -> None:
        self._running = False

    def _add(self, fault: _F) -> _F:
        self._call(lambda: self._conditions.faults.append(fault))
        return fault

    def _deliver(self, hold: Hold) -> None:
        self._on_all(lambda relay: relay.deliver(hold))

    def _on_all(self, action: Callable[[Relay], object]) -> None:
        self._call(lambda: [action(relay) for relay in self._relays])

    def _wait_for_round(self) -> None:
        """Returns when the loop has begun a new iteration, in which it sees what the caller has just changed."""
        self._call(lambda: None)

    def _call(self, action: Callable[[], object]) -> None:
        """Let the loop run `action` between two iterations, so that its data needs no lock."""
        done: Future[None] = Future()
        with self._changed:
            if not self._running:
                raise RuntimeError("the proxy is not running")
            self._calls.append((action, done))
            self._wake.send(b"!")
        done.result(_CALL_SECONDS)

    def _run(self) -> None:
        try:
            while self._running:
                self._round()
        finally:
            self._running = False
            for relay in self._relays:
                relay.close()
            self._relays.clear()
            for tunnel in self._tunnels:
                tunnel.close()
            with self._changed:
                self._run_calls()
                self._selector.close()
                for each in (self._listener, self._wake, self._woken):
                    each.close()
                self._changed.notify_all()

    def _round(self) -> None:
        due = min((relay.next_due() for relay in self._relays), default=float("inf"))
        timeout = None if due == float("inf") else max(0.0, due - time.monotonic())
        for key, events in self._selector.select(timeout):
            key.data(events)
        now = time.monotonic()
        for relay in self._relays:
            relay.pump(now)
        self._run_calls()
        now = time.monotonic()
        for relay in self._relays:
            relay.pump(now)
        self._relays = [relay for relay in self._relays if not relay.finished]
        with self._changed:
            self._changed.notify_all()

    def _run_calls(self) -> None:
        while self._calls:
            action, done = self._calls.popleft()
            try:
                action()
            except ConnectionError as error:
                done.set_exception(error)
            else:
                done.set_result(None)

    def _accept(self, _: int) -> None:
        try:
            client, (origin, _) = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return  # the client has disconnected already
        if self._refusing and origin != self._direct:
            client.close()
            return
        try:
            server = socket.create_connection(self._server, timeout=_CALL_SECONDS)
        except OSError:
            client.close()  # the only way in which a proxy can show that the server isn't reachable
            return
        if origin == self._direct:
            self._tunnels = [tunnel for tunnel in self._tunnels if tunnel.open]
            self._tunnels.append(Tunnel(client, server, self._selector))
        else:
            self._relays.append(Relay(client, server, self._selector, self._conditions))
