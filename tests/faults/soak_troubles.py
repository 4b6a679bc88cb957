"""The faults of a soak: the network, processes that pause or die, servers that come back empty."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable
from random import Random

from pyredisson.testing import Hold, Proxy
from tests.support.children import Child

from .soak_worker import LEASE, clock

SCRIPT = b"EVALSHA"
"""What the faults strike."""


class Troubles:
    """Makes one after the other, chosen by `random`, and ends each of them in time."""

    def __init__(self, proxy: Proxy, children: list[Child], random: Random) -> None:
        self._proxy = proxy
        self._children = children
        self._random = random
        self._later: list[tuple[float, Callable[[], object]]] = []
        self._stopped: Child | None = None
        self.all: list[Callable[[], object]] = [
            self._drop,
            self._cut_replies,
            self._cut_requests,
            self._hold_requests,
            self._hold_replies,
            self._slow,
            self._cut,
            self._stall,
            self._blackhole,
            self._stop,
        ]

    def run(self, until: float) -> None:
        """Returns when `until` is over and nothing is wrong any more."""
        while clock() < until:
            self._random.choice(self.all)()
            self._wait(clock() + self._random.uniform(0.02, 0.3))
        for _, end in sorted(self._later, key=lambda each: each[0]):
            end()
        self._later.clear()

    def _wait(self, until: float) -> None:
        while (now := clock()) < until:
            for each in [each for each in self._later if each[0] <= now]:
                self._later.remove(each)
                each[1]()
            time.sleep(0.01)

    def _in(self, shortest: float, longest: float, end: Callable[[], object]) -> None:
        self._later.append((clock() + self._random.uniform(shortest, longest), end))

    def _drop(self) -> None:
        self._proxy.drop_reply(SCRIPT, self._random.randint(1, 3))

    def _cut_replies(self) -> None:
        self._proxy.cut_reply(SCRIPT, self._random.randint(1, 3))

    def _cut_requests(self) -> None:
        self._proxy.cut_request(SCRIPT, self._random.randint(1, 3))

    def _hold_requests(self) -> None:
        self._hold(self._proxy.hold_request)

    def _hold_replies(self) -> None:
        self._hold(self._proxy.hold_reply)

    def _hold(self, hold: Callable[[bytes], Hold]) -> None:
        fault = hold(SCRIPT)
        self._in(0.05, 1.5 * LEASE, lambda: deliver(fault))

    def _slow(self) -> None:
        self._proxy.latency(self._random.uniform(0, 0.05))
        self._in(0.1, 0.5, lambda: self._proxy.latency(0))

    def _cut(self) -> None:
        self._proxy.cut(reset=self._random.random() < 0.5)

    def _stall(self) -> None:
        self._proxy.stall()
        self._in(0.05, 1.3 * LEASE, self._proxy.resume)

    def _blackhole(self) -> None:
        self._proxy.blackhole()

    def _stop(self) -> None:
        """One process at a time, mostly beyond its lease."""
        if self._stopped is None:
            child = self._stopped = self._random.choice(self._children)
            child.signal(signal.SIGSTOP)
            self._in(0.2, 2 * LEASE, self._go_on)

    def _go_on(self) -> None:
        if self._stopped is not None:
            self._stopped.signal(signal.SIGCONT)
            self._stopped = None

    def is_stopped(self, child: Child) -> bool:
        return child is self._stopped


def deliver(hold: Hold) -> None:
    if hold.held.is_set():
        # Both mean that one of the two ends has given up the connection meanwhile.
        with contextlib.suppress(ConnectionError, TimeoutError):
            hold.deliver(0.2)
