"""A client's connections in asyncio: how they are made, and how `close` ends them. Written by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from pyredisson._api.holds import AnyClient
from pyredisson._backends.aio.callers import Callers
from pyredisson._backends.aio.listener import AioListener, AioListeners
from pyredisson._backends.aio.operations import run_in_thread
from pyredisson._backends.aio.runtime import AioRuntime, RoutedAioRuntime
from pyredisson._backends.runtime import clock
from pyredisson._client.lifecycle import CLOSE_TIMEOUT, Made
from pyredisson._client.servers import Servers, SingleServer
from pyredisson.logic.channels import ChannelRegistry
from pyredisson.logic.routed_channels import RoutedChannels


class ClientConnections(AnyClient):
    """The connections of a client: one for commands, and one for messages while a task waits."""

    _new_callers = Callers
    _runtime: AioRuntime | RoutedAioRuntime
    _listener: AioListener | AioListeners

    async def close(self) -> None:
        """Releases everything that is held, and closes the connections; takes about a second at most.

        Waiting tasks get `ClosedError`. What could not be released is logged, and ends with its lease.
        """
        # The futures of what ends a little later.
        ending: list[asyncio.Future[Any]] = []
        try:
            # Everything is stopped before the first `await`, at which this task may be cancelled.
            try:
                self._lifecycle.end()
            finally:
                try:
                    ending += self._listener.stop()
                finally:
                    ending += self._runtime.stop()
            if ending:
                # Calls under way end first: what they don't release themselves is part of the final release.
                await asyncio.wait(ending, timeout=CLOSE_TIMEOUT)
        finally:
            # It starts now, and goes on even if this task is cancelled.
            final_release = run_in_thread(self._lifecycle.send_final_releases, "pyredisson-final-release")
        await asyncio.wait([final_release], timeout=2 * CLOSE_TIMEOUT)
        if final_release.done():
            final_release.result()

    def _connect(self, servers: Servers, post: Callable[[bytes], None]) -> Made:
        """Makes runtime, listener and channels. Called for a new client, and again in a forked child."""
        channels: ChannelRegistry
        if isinstance(servers, SingleServer):
            self._runtime = AioRuntime(servers.node, post)
            channels = ChannelRegistry(clock)
            self._listener = AioListener(servers.node, channels)
            channels.subscriber = self._listener
        else:
            self._runtime = RoutedAioRuntime(self._config, servers.scripts, servers.keeper, post)
            channels = RoutedChannels(clock, servers.table)
            self._listener = AioListeners(channels)
            channels.open(self._listener)
            self._runtime.before_wait = self._listener.before_wait
        return self._runtime, self._listener.drop, channels
