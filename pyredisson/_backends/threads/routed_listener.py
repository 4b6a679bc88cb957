"""The subscriptions of the threads backend where there are several servers: a listener for each node with channels."""

from __future__ import annotations

from collections.abc import Callable

from pyredisson._backends.threads.listener import ThreadListener
from pyredisson._backends.threads.wakeup import ThreadWakeup
from pyredisson._protocol.node import Node
from pyredisson.logic.routed_channels import NodeChannels, RoutedChannels


class ThreadListeners:
    """The listeners of one client. A waiter reads the connection on which its message will arrive."""

    def __init__(self, channels: RoutedChannels) -> None:
        self._channels = channels
        self._listeners: dict[NodeChannels, ThreadListener] = {}
        """The listeners that run, or may be started again."""
        self._stopped = False

    def open(self, channels: NodeChannels, node: Node) -> ThreadListener:
        """With the registry's mutex held."""
        for earlier, listener in list(self._listeners.items()):
            # A node that is a master again later has a new listener. The others may be started again: then `close` has
            # to find them.
            if not listener.running and not self._channels.uses(earlier):
                self._listeners.pop(earlier, None)
        listener = self._listeners[channels] = ThreadListener(node, channels)
        if self._stopped:
            # Read after the listener was stored, as `close` sets it before it looks for listeners.
            listener.close()
        return listener

    def call(self, function: Callable[[], None]) -> None:
        """Any thread may set the wakeups of threads."""
        function()

    def wait(self, wakeup: ThreadWakeup, seconds: float) -> None:
        """Waits until the wakeup is set or the time is over. Before that, channels follow their slots."""
        channels = self._channels
        if channels.stale:
            channels.refresh()
        place = channels.place_of(wakeup)
        listener = None if place is None else self._listeners.get(place)
        if listener is None:
            wakeup.wait(seconds)
        else:
            listener.wait(wakeup, seconds)

    def close(self) -> None:
        """Ends all listeners. It can be called on any thread, and acquires no mutex."""
        self._stopped = True
        for listener in list(self._listeners.values()):
            listener.close()

    def drop(self) -> None:
        """As `close`."""
        self.close()
