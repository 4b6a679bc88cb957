"""A client's connections for threads: how they are made, and how `close` ends them. Written by hand."""

from __future__ import annotations

from collections.abc import Callable

from pyredisson._api.holds import AnyClient
from pyredisson._backends.runtime import clock
from pyredisson._backends.threads.callers import Callers
from pyredisson._backends.threads.listener import ThreadListener, ThreadListeners
from pyredisson._backends.threads.runtime import RoutedThreadRuntime, ThreadRuntime, run
from pyredisson._client.lifecycle import Made
from pyredisson._client.servers import Servers, SingleServer
from pyredisson.logic.channels import ChannelRegistry
from pyredisson.logic.routed_channels import RoutedChannels


class ClientConnections(AnyClient):
    """The connections of a client: a pool for commands, and one connection for messages while a thread waits."""

    _new_callers = Callers
    _runtime: ThreadRuntime | RoutedThreadRuntime
    _listener: ThreadListener | ThreadListeners

    def close(self) -> None:
        """Releases everything that is held, and closes the connections; takes about a second at most.

        Waiting threads get `ClosedError`. What could not be released is logged, and ends with its lease.
        """
        # Each step is taken even if a KeyboardInterrupt strikes in the step before it.
        try:
            self._lifecycle.end()
        finally:
            try:
                self._listener.drop()
            finally:
                try:
                    run(self._runtime.close)
                finally:
                    self._lifecycle.send_final_releases()

    def _connect(self, servers: Servers, post: Callable[[bytes], None]) -> Made:
        """Makes runtime, listener and channels. Called for a new client, and again in a forked child."""
        channels: ChannelRegistry
        size = self._config.connection_pool_size
        if isinstance(servers, SingleServer):
            self._runtime = ThreadRuntime(servers.node, post, size)
            channels = ChannelRegistry(clock)
            self._listener = ThreadListener(servers.node, channels)
            channels.subscriber = self._listener
        else:
            self._runtime = RoutedThreadRuntime(self._config, servers.scripts, servers.keeper, post, size)
            channels = RoutedChannels(clock, servers.table)
            self._listener = ThreadListeners(channels)
            channels.open(self._listener)
        self._runtime.callers = self._callers
        self._runtime.wait_for_message = self._listener.wait
        return self._runtime, self._listener.drop, channels
