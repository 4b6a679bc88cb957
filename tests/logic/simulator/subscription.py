"""The subscription of a client: one connection over which it receives messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pyredisson.logic.channels import LINGER, ChannelRegistry

from .network import Network
from .simulation import Process


class Subscription:
    """A client's subscription: it connects when it is first needed, and again whenever it was cut."""

    def __init__(self, process: Process, network: Network, channels: ChannelRegistry) -> None:
        self._process = process
        self._network = network
        self.channels = channels
        self.subscriber: Subscriber | None = None
        self._connecting = False

    def subscribe(self, channels: Iterable[bytes]) -> None:
        if self.subscriber is not None:
            for channel in channels:
                self.subscriber.request(channel, wanted=True)
        elif not self._connecting:
            self._connecting = True
            self._connect()

    def unsubscribe(self, channels: Iterable[bytes]) -> None:
        if self.subscriber is not None:
            for channel in channels:
                self.subscriber.request(channel, wanted=False)

    def cut(self) -> None:
        """From now on the client misses all messages; it notices the broken connection after a while."""
        subscriber = self.subscriber
        if subscriber is not None and not subscriber.broken:
            simulation = self._network.simulation
            simulation.log("%s: receives no more messages", self._process.name)
            subscriber.broken = True
            self._network.subscribers.remove(subscriber)
            simulation.after(simulation.random.random() * 3, self._process.deliver, self._noticed)

    def _noticed(self) -> None:
        self.subscriber = None
        self._connecting = True
        self._network.simulation.log("%s: the subscription is over", self._process.name)
        with self.channels.mutex:
            self.channels.on_disconnected()
        self._network.simulation.after(0.05 + self._network.simulation.random.random() / 20, self._connect)

    def _connect(self) -> None:
        delay = self._network.fault_plan.delay
        self._network.simulation.after(delay() + delay(), self._process.deliver, self._connected)

    def _connected(self) -> None:
        self._connecting = False
        self.subscriber = subscriber = Subscriber(self, self._network, self._process)
        with self.channels.mutex:
            self.subscribe(self.channels.names())
        self._network.simulation.after(LINGER, self._process.deliver, self._sweep, subscriber)

    def _sweep(self, subscriber: Subscriber) -> None:
        if self.subscriber is subscriber:
            self.channels.sweep()
            self._network.simulation.after(LINGER, self._process.deliver, self._sweep, subscriber)


class Subscriber:
    """One subscription connection, as the server sees it."""

    def __init__(self, subscription: Subscription, network: Network, process: Process) -> None:
        self.subscription = subscription
        self.channels: dict[bytes, None] = {}
        self.broken = False
        self._network = network
        self._process = process
        self._last_request = 0.0
        self._last_sent = 0.0
        network.subscribers.append(self)

    def request(self, channel: bytes, *, wanted: bool) -> None:
        """Sends SUBSCRIBE or UNSUBSCRIBE."""
        self._last_request = max(self._last_request, self._network.simulation.now + self._network.fault_plan.delay())
        self._network.simulation.at(self._last_request, self._on_request, channel, wanted)

    def send(self, action: Callable[..., None], *args: bytes) -> None:
        """Sends the client a message, which `action` handles there."""
        self._last_sent = max(self._last_sent, self._network.simulation.now + self._network.fault_plan.delay())
        self._network.simulation.at(self._last_sent, self._process.deliver, self._deliver, action, args)

    def _deliver(self, action: Callable[..., None], args: tuple[bytes, ...]) -> None:
        if self.subscription.subscriber is self:
            action(*args)

    def _on_request(self, channel: bytes, wanted: bool) -> None:
        if self.broken:
            return
        if wanted:
            self.channels[channel] = None
            self.send(self.subscription.channels.on_subscribed, channel)
        else:
            self.channels.pop(channel, None)
