"""A client in a schedule, with the real logic inside, and the runtime over which that runs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from redis.exceptions import RedisError

from pyredisson._backends.runtime import OneServer, ReplyApplier
from pyredisson._client.lifecycle import registries
from pyredisson._protocol.replies import NoReply, Redirected, Reply
from pyredisson._protocol.scripts import ScriptSet
from pyredisson._settings.config import Config
from pyredisson.logic.channels import ChannelRegistry
from pyredisson.logic.loops import Loop
from pyredisson.logic.ports import Operation, Wakeup
from pyredisson.logic.session import Resources, Session
from pyredisson.logic.watchdog import Watchdog

from .network import Connections, Network, Node, Subscription
from .simulation import Flag, Park, Process, Simulation

OVERSHOOT = 5e-5
"""Seconds by which every timer is late, as real ones are: otherwise a loop that waits for nothing stops the clock."""


class SimRuntime(ReplyApplier, OneServer):
    """A `Runtime` over this network."""

    blocking = False
    _node: Node

    def __init__(self, node: Node, repair: Callable[[bytes], None], *, pipelined: bool) -> None:
        self._node = node
        self._simulation = node.network.simulation
        self._connections = Connections(node, pipelined=pipelined)
        self._repair = repair
        self.scripts = node.scripts
        self.clock = self._simulation.clock

    async def send(self, payload: bytes, *, new_connection: bool = False) -> Reply:
        reply, _ = await self.send_identified(payload, new_connection=new_connection)
        if isinstance(reply, RedisError):
            raise reply
        return reply

    async def send_identified(self, payload: bytes, *, new_connection: bool = False) -> tuple[Reply, bytes | None]:
        (reply,), server = await self._exchange((payload,), new_connection=new_connection)
        return reply, server

    async def follow(
        self, redirect: Redirected, payload: bytes, *, new_connection: bool = False
    ) -> tuple[Reply, bytes | None]:
        raise AssertionError("a single server doesn't redirect")

    async def _exchange(self, payloads: Sequence[bytes], *, new_connection: bool) -> tuple[list[Reply], bytes | None]:
        return await self._connections.exchange(payloads, new_connection=new_connection)

    def continues(self, redirect: Redirected) -> bool:
        return redirect.is_ask

    def has_handed_over(self, server_id: bytes, payload: bytes) -> bool:
        return False

    def on_command_failed(self, payload: bytes, error: RedisError) -> None:
        pass

    def on_command_served(self, payload: bytes) -> None:
        pass

    async def send_all(self, payloads: Sequence[bytes], *, new_connection: bool = False) -> list[Reply]:
        replies, _ = await self._exchange(payloads, new_connection=new_connection)
        return replies

    def is_open(self) -> bool:
        return self._connections.is_open()

    def post(self, payload: bytes) -> None:
        process = self._node.process
        if not process.alive:
            return
        if self._connections.shared is None:
            self._repair(payload)
        else:
            process.spawn(self._post(payload))

    async def _post(self, payload: bytes) -> None:
        try:
            await self.send(payload)
        except (NoReply, RedisError):
            self._repair(payload)

    def spawn(self, operation: Operation) -> None:
        if self._node.process.alive:
            self._node.process.spawn(operation())

    def spawner(self) -> Callable[[Operation], None]:
        return self.spawn

    async def wait(self, signal: Wakeup, seconds: float) -> None:
        assert isinstance(signal, Flag)
        if signal.is_set():
            return
        signal.park = park = Park()
        self._simulation.after(seconds + OVERSHOOT, park.resolve)
        try:
            await park
        finally:
            signal.park = None

    async def sleep(self, seconds: float) -> None:
        park = Park()
        self._simulation.after(seconds + OVERSHOOT, park.resolve)
        await park

    async def pause(self, seconds: float, payload: bytes, shard: Hashable) -> None:
        await self.sleep(seconds)

    def wakeup(self) -> Flag:
        return Flag(self._simulation)

    def jitter(self) -> float:
        return self._simulation.random.random()

    async def close(self) -> None:
        raise AssertionError("no part of the logic closes a runtime")


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
        return Resources(self.name, runtime, self._watchdog_runtime, waiters, registries())

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
