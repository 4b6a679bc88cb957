"""The faults of the marker `pyredisson_faults`: each is armed at the test's proxy, and must strike."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from pyredisson._pytest.servers import AnyServer, GivenServer, load_scripts
from pyredisson.testing import Fault, Hold, Proxy

LATENCY = 0.05
"""Seconds in each direction."""
LATE = 1.0
"""Seconds for which a reply is late: by then a client of the fixtures has given it up (`FAULT_TIMEOUT`)."""
OUTAGE = 1.0
"""Seconds for which the server can't be reached."""

INJECTED = pytest.StashKey["Injection"]()


@dataclass(frozen=True)
class Plan:
    """One fault for one run of a test."""

    name: str
    match: bytes
    times: int


def plans(*names: str, match: bytes = b"EVALSHA", times: int = 1) -> list[Plan]:
    """The plans of a marker with these arguments. `ValueError`, `TypeError`: they can't be used."""
    for name in names:
        if name not in FAULTS:
            raise ValueError(f"there is no fault {name!r}, only {', '.join(FAULTS)}")
    if not isinstance(match, bytes):
        raise TypeError(f"match must be bytes, not {type(match).__name__}")
    if type(times) is not int or times < 1:
        raise ValueError(f"times must be an integer from 1, not {times!r}")
    return [Plan(name, match, times) for name in names or FAULTS]


class Injection:
    """One fault at the proxy of one test."""

    def __init__(self, plan: Plan, proxy: Proxy, server: AnyServer) -> None:
        self.plan = plan
        self._proxy = proxy
        self._server = server
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._hold: Hold | None = None
        """What the thread waits for."""
        self._error: Exception | None = None
        self._struck = FAULTS[plan.name](self)

    def check(self) -> None:
        """Fails the test if the fault has not struck."""
        if self._error is not None:
            raise self._error
        if not self._struck():
            message = f"the fault {self.plan.name!r} never happened: no request contained {self.plan.match!r}"
            pytest.fail(message, pytrace=False)

    def end(self) -> None:
        """Ends the thread that drives the fault."""
        self._ended.set()
        if self._thread is not None and self._hold is not None:
            self._hold.held.set()
            self._thread.join()

    # --- The faults. Each returns a function that says whether it has struck.

    def drop_reply(self) -> Callable[[], bool]:
        return self._strikes(self._proxy.drop_reply(self.plan.match, self.plan.times))

    def cut_reply(self) -> Callable[[], bool]:
        return self._strikes(self._proxy.cut_reply(self.plan.match, self.plan.times))

    def cut_request(self) -> Callable[[], bool]:
        return self._strikes(self._proxy.cut_request(self.plan.match, self.plan.times))

    def late_reply(self) -> Callable[[], bool]:
        hold = self._proxy.hold_reply(self.plan.match)

        def deliver() -> None:
            if not self._ended.wait(LATE):
                hold.deliver()

        return self._drive(hold, deliver)

    def latency(self) -> Callable[[], bool]:
        self._proxy.latency(LATENCY)
        return lambda: self._proxy.seen(self.plan.match) > 0

    def outage(self) -> Callable[[], bool]:
        def fail() -> None:
            # The held request is never delivered: it is lost with its connection.
            self._proxy.refuse(True)
            self._proxy.cut()
            self._ended.wait(OUTAGE)
            self._proxy.refuse(False)

        return self._drive(self._proxy.hold_request(self.plan.match), fail)

    def server_restart(self) -> Callable[[], bool]:
        server = self._server
        if isinstance(server, GivenServer):
            pytest.skip("server_restart needs a server of the test run's own, not the server of --pyredisson-url")
        # The request is held, so that it has certainly not run before the server lost its data.
        return self._drive(self._proxy.hold_request(self.plan.match), server.restart)

    def _strikes(self, fault: Fault) -> Callable[[], bool]:
        return fault.happened.is_set

    def _drive(self, hold: Hold, act: Callable[[], object]) -> Callable[[], bool]:
        """Has a thread call `act` once a request or a reply is held."""

        def run() -> None:
            hold.held.wait()
            if self._ended.is_set():
                return
            try:
                act()
            except Exception as error:  # noqa: BLE001 - the test's thread raises it
                self._error = error

        self._hold = hold
        self._thread = threading.Thread(target=run, name=f"pyredisson-{self.plan.name}", daemon=True)
        self._thread.start()
        return hold.held.is_set


FAULTS: dict[str, Callable[[Injection], Callable[[], bool]]] = {
    "drop_reply": Injection.drop_reply,
    "cut_reply": Injection.cut_reply,
    "cut_request": Injection.cut_request,
    "late_reply": Injection.late_reply,
    "latency": Injection.latency,
    "outage": Injection.outage,
    "server_restart": Injection.server_restart,
}


@contextmanager
def inject(plan: Plan | None, proxy: Proxy, server: AnyServer, item: Any) -> Iterator[None]:
    """Arms the fault for the time of a test."""
    if plan is None:
        yield
        return
    load_scripts(server)
    injection = item.stash[INJECTED] = Injection(plan, proxy, server)
    try:
        yield
    finally:
        injection.end()


def check(item: pytest.Item) -> None:
    """Called after a test that has passed: fails it if its fault has not struck."""
    if (injection := item.stash.get(INJECTED, None)) is not None:
        injection.check()
