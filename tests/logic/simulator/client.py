"""A client in a schedule, with the real logic inside, and the runtime over which that runs."""

from collections.abc import Callable
from typing import Any

from redis.exceptions import RedisError

from pyredisson._backends.runtime import DirectRuntime
from pyredisson._client.lifecycle import registries
from pyredisson._protocol.replies import NoReply
from pyredisson._protocol.scripts import ScriptSet
from pyredisson._settings.config import Config
from pyredisson.logic.channels import ChannelRegistry
from pyredisson.logic.loops import Loop
from pyredisson.logic.ports import Operation, Wakeup
from pyredisson.logic.session import Resources, Session

from .network import Connections, Network, Node, Subscription
from .simulation import Flag, Park, Process, Simulation

OVERSHOOT = 5e-5
"""Seconds by which every timer is late, as real ones are: otherwise a loop that waits for nothing stops the clock."""
SERVER = Config()


class SimBackend:
    """The backend of a client's runtimes: waiting, and commands in the background."""

    blocking = False

    def __init__(self, process: Process, repair: Callable[[bytes], None], *rest: Any) -> None:
        super().__init__(*rest)
        self._process, self._simulation, self._repair = process, process.simulation, repair
        self.clock = self._simulation.clock
        self.jitter = self._simulation.random.random

    def _connections_for(self, payload: bytes) -> Connections | None:
        """Those over which a command would be sent now, if there are any."""
        raise NotImplementedError

    def post(self, payload: bytes) -> None:
        if self._process.alive:
            connections = self._connections_for(payload)
            if connections is None or connections.shared is None:
                self._repair(payload)
            else:
                self._process.spawn(self._post(payload))

    async def _post(self: Any, payload: bytes) -> None:
        try:
            await self.send(payload)
        except (NoReply, RedisError):
            self._repair(payload)

    def spawn(self, operation: Operation) -> None:
        if self._process.alive:
            self._process.spawn(operation())

    def spawner(self) -> Callable[[Operation], None]:
        return self.spawn

    def wakeup(self) -> Flag:
        return Flag(self._simulation)

    async def wait(self, signal: Wakeup, seconds: float) -> None:
        assert isinstance(signal, Flag)
        if not signal.is_set():
            signal.park = park = Park()
            self._simulation.after(seconds + OVERSHOOT, park.resolve)
            try:
                await park
            finally:
                signal.park = None


class SimRuntime(SimBackend, DirectRuntime):
    _connections: Connections

    def __init__(self, node: Node, repair: Callable[[bytes], None], *, pipelined: bool) -> None:
        super().__init__(node.process, repair, node, Connections(node, pipelined=pipelined))

    def _connections_for(self, _: bytes) -> Connections:
        return self._connections


class Client(Process):
    keeper: Any
    """Of a client of a cluster: what asks for the topology."""

    def __init__(self, simulation: Simulation, name: str, network: Network, config: Config) -> None:
        super().__init__(simulation, name)
        self.fault_plan, self._network = network.fault_plan, network
        self.session = Session(config, self)

    def open(self, post: Callable[[bytes], None]) -> Resources:
        self.scripts = ScriptSet()
        self.scripts.use(with_shebang=self.simulation.random.random() < 0.5)
        waiters = ChannelRegistry(self.simulation.clock)
        waiters.subscriber = self.subscription = Subscription(self, self._network, waiters)
        runtime, watchdog_runtime = self._runtimes(post)
        return Resources(self.name, runtime, watchdog_runtime, waiters, *registries())

    def _runtimes(self, post: Callable[[bytes], None]) -> tuple[Any, Any]:
        """For calls, and for the watchdog."""
        node = Node(self, self._network, self.scripts, SERVER)
        return SimRuntime(node, post, pipelined=self.fault_plan.pipelined), SimRuntime(node, post, pipelined=False)

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

    def expect_lease(self, _: int) -> None: ...

    def send_last(self, _: bytes, *, releases: bool = True) -> None:
        raise AssertionError("the client is never closed")
