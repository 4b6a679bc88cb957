"""A client in a schedule, with the real logic inside."""

from __future__ import annotations

from collections.abc import Callable

from pyredisson._protocol.scripts import ScriptSet
from pyredisson._settings.config import Config
from pyredisson.logic.channels import ChannelRegistry
from pyredisson.logic.loops import Loop
from pyredisson.logic.session import Resources, Session
from pyredisson.logic.watchdog import Watchdog

from .network import Network, Node
from .runtime import SimRuntime
from .simulation import Process, Simulation
from .subscription import Subscription


class Client(Process):
    """One client of one process."""

    def __init__(self, simulation: Simulation, name: str, network: Network, config: Config) -> None:
        super().__init__(simulation, name)
        self._weather = network.fault_plan
        self._network = network
        self.session = Session(config, self)
        self.session.watchdog = Watchdog(
            self.session.holds, self._watchdog_runtime, self.session.lease_ms, self.start_loop
        )

    def open(self, post: Callable[[bytes], None]) -> Resources:
        scripts = ScriptSet()
        scripts.use(with_shebang=self.simulation.random.random() < 0.5)
        self.node = Node(self, self._network, scripts)
        waiters = ChannelRegistry(self.simulation.clock)
        self.subscription = Subscription(self, self._network, waiters)
        waiters.attach(self.subscription)
        runtime = SimRuntime(self.node, post, pipelined=self._weather.pipelined)
        self._watchdog_runtime = SimRuntime(self.node, post, pipelined=False)
        return Resources(self.name, runtime, self._watchdog_runtime, waiters)

    def pause(self, seconds: float) -> None:
        """Nothing happens in it for so long."""
        self.simulation.log("%s: is paused for %.3f s", self.name, seconds)
        self.paused_until = max(self.paused_until, self.simulation.now + seconds)

    def kill(self) -> None:
        """Its process dies, without a message to others."""
        if self.alive:
            self.simulation.log("%s: dies", self.name)
            self.subscription.cut()
            self.die()

    def start_loop(self, loop: Loop) -> None:
        # Not at once: the caller is in the middle of an operation.
        self.simulation.after(0.0, self.deliver, self._begin, loop)

    def _begin(self, loop: Loop) -> None:
        self.spawn(loop())

    def run_callback(self, _: object) -> None:
        raise AssertionError("no callback was registered")

    def send_last(self, _: bytes) -> None:
        raise AssertionError("the client is never closed")
