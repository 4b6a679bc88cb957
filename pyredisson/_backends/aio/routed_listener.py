"""The subscriptions of the asyncio backend where there are several servers: a listener for each node with channels."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from pyredisson._backends.aio.listener import AioListener
from pyredisson._backends.aio.loops import call_in
from pyredisson._protocol.node import Node
from pyredisson.logic.routed_channels import NodeChannels, RoutedChannels


class AioListeners:
    """The listeners of one client."""

    def __init__(self, channels: RoutedChannels) -> None:
        self._channels = channels
        self._listeners: dict[NodeChannels, AioListener] = {}
        """The listeners that run, or may be started again."""
        self._stopped = False

    def open(self, channels: NodeChannels, node: Node) -> AioListener:
        """With the registry's mutex held."""
        for earlier, listener in list(self._listeners.items()):
            # A node that is a master again later has a new listener. The others may be started again: then `stop` has
            # to find them.
            if not listener.running and not self._channels.uses(earlier):
                self._listeners.pop(earlier, None)
        listener = self._listeners[channels] = AioListener(node, channels)
        if self._stopped:
            # Read after the listener was stored, as `drop` sets it before it looks for listeners.
            listener.stop()
        return listener

    def call(self, function: Callable[[], None]) -> None:
        """Calls the function in the event loop. With several of them, whose waiters are woken in each."""
        for loop in {listener.loop for listener in list(self._listeners.values())}:
            if loop is not None:
                call_in(loop, function)

    def before_wait(self) -> None:
        """Channels follow their slots. Called in the event loop of a task that is about to wait."""
        if self._channels.stale:
            self._channels.refresh()

    def stop(self) -> list[asyncio.Future[Any]]:
        """Ends all tasks. Returns futures that are done when they have ended."""
        self._stopped = True
        return [ending for listener in list(self._listeners.values()) for ending in listener.stop()]

    def drop(self) -> None:
        """Has the event loop end the tasks. It can be called on any thread, acquires no mutex, doesn't wait."""
        self._stopped = True
        for listener in list(self._listeners.values()):
            listener.drop()
