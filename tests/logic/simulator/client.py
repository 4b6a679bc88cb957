"""A client in a schedule, with the real logic inside."""

from __future__ import annotations

from pyredisson._protocol.scripts import ScriptSet
from pyredisson._settings.config import Config
from pyredisson.logic.channels import ChannelRegistry
from pyredisson.logic.exactly_once import SessionSlots
from pyredisson.logic.session import Session
from pyredisson.logic.watchdog import Loop, Watchdog

from .simulation import Process, Simulation
from .wire import Network, Node, SimRuntime, Subscription


class Client(Process):
    """One client of one process."""

    def __init__(
        self,
        simulation: Simulation,
        name: str,
        network: Network,
        config: Config,
        channels: type[ChannelRegistry] = ChannelRegistry,
        watchdog: type[Watchdog] = Watchdog,
    ) -> None:
        """`channels` and `watchdog` are the real ones, or have a bug that is to be found."""
        super().__init__(simulation, name)
        weather = network.weather
        self.session = Session(config, self._start, _ignore, _ignore)
        scripts = ScriptSet()
        scripts.use(flags=simulation.random.random() < 0.5)
        self.node = Node(self, network, scripts)
        waiters = channels(simulation.clock)
        self.subscription = Subscription(self, network, waiters)
        waiters.attach(self.subscription)
        runtime = SimRuntime(self.node, self.session.repair, pipelined=weather.pipelined)
        renewer = SimRuntime(self.node, self.session.repair, pipelined=False)
        self.session.begin(runtime, renewer, waiters)
        self.session.slots = SessionSlots(name, runtime, self.session.attempts)
        self.session.watchdog = watchdog(self.session.holds, renewer, self.session.lease, self._start)
        self.session.id = name

    def pause(self, seconds: float) -> None:
        """Nothing happens in it for so long."""
        self.simulation.log("%s: is paused for %.3f s", self.name, seconds)
        self.paused_until = max(self.paused_until, self.simulation.now + seconds)

    def kill(self) -> None:
        """It ends without a word to anybody."""
        if self.alive:
            self.simulation.log("%s: dies", self.name)
            self.subscription.cut()
            self.die()

    def _start(self, loop: Loop) -> None:
        # Not at once: whoever starts it is in the middle of something.
        self.simulation.after(0.0, self.deliver, self._begin, loop)

    def _begin(self, loop: Loop) -> None:
        self.spawn(loop())


def _ignore(_: object) -> None:
    raise AssertionError("no callback was registered")
