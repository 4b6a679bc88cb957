"""The runtime of the threads backend where there are several servers."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from pyredisson._backends.routed import Keeper, RoutedRuntime, Settable
from pyredisson._backends.threads.pool import Pool
from pyredisson._backends.threads.runtime import ThreadBackend
from pyredisson._backends.threads.wakeup import ThreadWakeup
from pyredisson._protocol.node import Node
from pyredisson._protocol.scripts import ScriptSet
from pyredisson._settings.config import Config
from pyredisson.logic.ports import Wakeup


class RoutedThreadRuntime(RoutedRuntime[Pool], ThreadBackend):
    """A `Runtime` over a pool of blocking connections for each server."""

    def __init__(
        self,
        config: Config,
        scripts: ScriptSet,
        keeper: Keeper,
        post: Callable[[bytes], None],
        size: int,
        *,
        timeout: float | None = None,
    ) -> None:
        """`size`: the largest number of connections to each server. `timeout`: of a reply, if shorter than the one
        in the settings."""
        super().__init__(config, scripts, keeper)
        self.post = post
        self._size = size
        self._timeout = timeout

    def _connections_to(self, node: Node) -> Pool:
        return Pool(node if self._timeout is None else node.with_timeout(self._timeout), self._size)

    def _end(self, connections: Pool) -> None:
        connections.close()

    def _on_any_thread(self, wakeup: Wakeup) -> Settable:
        assert isinstance(wakeup, ThreadWakeup)
        return wakeup

    async def _run_all(self, operations: Sequence[Coroutine[Any, Any, None]]) -> None:
        remaining = list(operations)
        try:
            while remaining:
                await remaining.pop(0)
        finally:
            # After an interrupt: a coroutine that was never awaited would be reported.
            for operation in remaining:
                operation.close()

    @property
    def calls_in_flight(self) -> int:
        return sum(pool.calls_in_flight for pool in list(self._connections.values())) + len(self._pauses)

    def abort_calls(self) -> None:
        for pool in list(self._connections.values()):
            pool.abort_calls()

    async def close(self) -> None:
        self._end_all()
