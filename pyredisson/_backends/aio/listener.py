"""The subscription connection of the asyncio world: one task that keeps it alive."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from redis.exceptions import ConnectionError

from pyredisson._backends.aio.connection import Pipeline, call_in, connect, ended
from pyredisson._backends.aio.wakeup import AioWakeup
from pyredisson._diagnostics import logger
from pyredisson._protocol.no_reply import Reply
from pyredisson._protocol.node import Node
from pyredisson._protocol.subscription import Subscription, pause
from pyredisson.logic.channels import LINGER, ChannelRegistry


class AioListener:
    """Keeps a connection subscribed to what the registry's waiters wait for, for as long as the client lives."""

    def __init__(self, node: Node, channels: ChannelRegistry) -> None:
        self._node = node
        self._channels = channels
        self._pipeline: Pipeline | None = None
        self._subscription = Subscription(channels)
        self._loop: asyncio.AbstractEventLoop | None = None
        """In which the task runs, or is about to."""
        self._starting: asyncio.Handle | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    def subscribe(self, channels: Iterable[bytes]) -> None:
        """With the registry's lock held."""
        loop = asyncio.get_running_loop()
        if not self._stopped and not self._listens(loop):
            self._pipeline = None
            self._loop = loop
            # Not here: with an eager task factory the task would run at once, and ask for the lock that is held.
            self._starting = loop.call_soon(self._start, loop)
        if self._pipeline is not None:
            self._pipeline.write(self._subscription.ask(channels))

    def _listens(self, loop: asyncio.AbstractEventLoop) -> bool:
        if self._loop is not loop:
            return False
        return self._starting is not None or (self._task is not None and not self._task.done())

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._starting = None
        self._task = loop.create_task(self._run(), name="pyredisson-listener")

    def unsubscribe(self, channels: Iterable[bytes]) -> None:
        """With the registry's lock held."""
        if self._pipeline is not None:
            self._pipeline.write(self._subscription.drop(channels))

    def drop(self) -> None:
        """Has the task ended by its own event loop; on any thread, with no lock and no wait."""
        if self._loop is not None and not self._stopped:
            self._stopped = True
            call_in(self._loop, self.stop)

    def stop(self) -> list[asyncio.Future[Any]]:
        """Ends the task. Gives what is done when it has ended."""
        self._stopped = True
        starting, self._starting = self._starting, None
        if starting is not None:
            starting.cancel()
        task, self._task = self._task, None
        return [] if task is None else ended(task.get_loop(), task.cancel, task)

    async def _run(self) -> None:
        failures = 0
        with self._channels.mutex:
            # What was heard in another loop is heard no more.
            self._channels.on_disconnected()
        while True:
            try:
                pipeline = await connect(self._node)
                failures = 0
                await self._listen(pipeline)
            except Exception as error:  # noqa: BLE001
                # Whatever it was (a credential provider may raise anything): somebody waits to be woken.
                failures += 1
                # Not a warning: of a server that is away the node tells, once.
                logger.debug("subscription lost, it is made anew: %s", error)
            await asyncio.sleep(pause(failures))

    async def _listen(self, pipeline: Pipeline) -> None:
        node, channels = self._node, self._channels
        subscription = Subscription(channels)

        heard = AioWakeup()

        def hear(reply: Reply) -> None:
            heard.set()
            subscription.hear(reply)

        pipeline.hear = hear
        try:
            with channels.mutex:
                self._pipeline = pipeline
                self._subscription = subscription
                pipeline.write(subscription.ask(channels.names()))
            while True:
                heard.clear()
                await asyncio.wait([pipeline.lost], timeout=node.ping_interval or LINGER)
                if pipeline.lost.done():
                    raise pipeline.lost.result()
                channels.sweep()
                if not heard.is_set() and node.ping_interval:
                    pipeline.write(subscription.ping())
                    if not await heard.wait(node.timeout):
                        raise ConnectionError(f"{node.address} doesn't answer a PING")
        except GeneratorExit:
            # The garbage collector's, at any moment and on any thread: the loop was closed and forgotten, and whoever
            # listens now has nothing to do with it.
            raise
        except BaseException:
            with channels.mutex:
                if self._pipeline is pipeline:
                    self._pipeline = None
                    channels.on_disconnected()
            pipeline.close()
            raise
