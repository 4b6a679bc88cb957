"""The subscriptions of the asyncio backend: one task that keeps a connection."""

import asyncio
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from redis.exceptions import ConnectionError

from pyredisson._backends.aio.connection import Pipeline, connect
from pyredisson._backends.aio.operations import call_in, end_in
from pyredisson._backends.aio.wakeup import AioWakeup
from pyredisson._backends.routed import NodeListeners
from pyredisson._diagnostics import logger
from pyredisson._protocol.node import Node
from pyredisson._protocol.pubsub import Subscription, pause
from pyredisson._protocol.replies import Reply
from pyredisson.logic.channels import LINGER
from pyredisson.logic.routed_channels import ListenedChannels


class AioListener:
    """Keeps a connection subscribed to the channels of the registry, for as long as the registry wants one."""

    def __init__(self, node: Node, channels: ListenedChannels) -> None:
        self._node = node
        self._channels = channels
        self._pipeline: Pipeline | None = None
        self._subscription = Subscription(channels, node.scripts.pubsub)
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop in which the task runs, or will start. None: there has never been one."""
        self._starting: asyncio.Handle | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    def subscribe(self, channels: Iterable[bytes]) -> None:
        """With the registry's mutex held. Starts the task if it doesn't run, also for no channels."""
        loop = asyncio.get_running_loop()
        if not self._stopped and not (self.loop is loop and self.running):
            self._pipeline = None
            self.loop = loop
            # Not created here: an eager task factory would run the task at once. It needs the mutex that is held here.
            self._starting = loop.call_soon(self._start, loop)
        if self._pipeline is not None and (commands := self._subscription.subscribe_commands(channels)):
            self._pipeline.write(commands)

    def unsubscribe(self, channels: Iterable[bytes], *, moved: bool = False) -> None:
        """With the registry's mutex held. `moved`: the slots of these channels have left the node."""
        # The connection of another event loop is used in that loop only, and gets no message any more if it has ended.
        if self._pipeline is not None and self.loop is asyncio.get_running_loop():
            self._pipeline.write(self._subscription.unsubscribe_commands(channels, moved=moved))

    def reconnect(self) -> None:
        """Replaces the connection. To be called in the event loop of the task."""
        if self._pipeline is not None:
            self._pipeline.close()

    @property
    def running(self) -> bool:
        """Whether the task runs, or is about to start."""
        return self._starting is not None or ((task := self._task) is not None and not task.done())

    def stop(self) -> list[asyncio.Future[Any]]:
        """Ends the task. Returns a future that is done when it has ended."""
        self._stopped = True
        starting, self._starting = self._starting, None
        if starting is not None:
            starting.cancel()
        task, self._task = self._task, None
        return [] if task is None else end_in(task.get_loop(), task.cancel, task)

    def drop(self) -> None:
        """Has the task's event loop end it. It can be called on any thread, acquires no mutex, doesn't wait."""
        if not self._stopped:
            self._stopped = True
            if self.loop is not None:
                call_in(self.loop, self.stop)

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._starting = None
        self._task = loop.create_task(self._run(), name="pyredisson-listener")

    async def _run(self) -> None:
        failures = 0
        with self._channels.mutex:
            # A subscription of an earlier event loop gets no more messages.
            self._channels.on_disconnected()
        while not self._ends():
            try:
                pipeline = await connect(self._node)
                failures = 0
                await self._serve(pipeline)
            except Exception as error:  # noqa: BLE001
                # Any exception, as a credential provider may raise anything: waiters rely on this task.
                failures += 1
                # Not a warning: the node warns once of a server that is away.
                logger.debug("subscription lost, it is made anew: %s", error)
            # Nobody else does it without a connection. Channels without waiters must not keep this task connecting.
            self._channels.sweep()
            await asyncio.sleep(pause(failures))

    def _ends(self) -> bool:
        """Whether the task ends now, because there are no channels. The next `subscribe` starts another one."""
        with self._channels.mutex:
            if not self._channels.is_unused():
                return False
            if self._task is asyncio.current_task():
                self._task = None
            return True

    async def _serve(self, pipeline: Pipeline) -> None:
        """Passes on messages until the connection fails, or there are no channels."""
        channels = self._channels
        subscription = Subscription(channels, self._node.scripts.pubsub)
        received, doubted = AioWakeup(), AioWakeup()
        # `check` keeps no forgotten event loop alive.
        reference = weakref.ref(pipeline)

        def on_reply(reply: Reply) -> None:
            received.set()
            subscription.on_reply(reply)
            if subscription.batch_begun:
                # Called after the tasks that were woken, and before more is received.
                pipeline.loop.call_soon(subscription.end_batch)

        def on_failed(_: object) -> None:
            doubted.set()

        def check() -> None:
            if (living := reference()) is not None:
                call_in(living.loop, living.on_doubt)

        pipeline.on_reply = on_reply
        pipeline.failed.add_done_callback(on_failed)
        pipeline.on_doubt = doubted.set
        self._node.silence_checks[check] = None
        try:
            with channels.mutex:
                self._pipeline = pipeline
                self._subscription = subscription
                pipeline.write(subscription.subscribe_commands(channels.names()))
            await self._watch(pipeline, subscription, received, doubted)
        except GeneratorExit:
            # The garbage collector closes this coroutine, at any moment and on any thread. Its loop was closed and
            # forgotten, and a listener of another loop may use this object by now.
            raise
        except BaseException:
            self._disconnect(pipeline)
            raise
        finally:
            self._node.silence_checks.pop(check, None)
            pipeline.failed.remove_done_callback(on_failed)
        self._disconnect(pipeline)

    def _disconnect(self, pipeline: Pipeline) -> None:
        with self._channels.mutex:
            if self._pipeline is pipeline:
                self._pipeline = None
                self._channels.on_disconnected()
        pipeline.close()

    async def _watch(
        self, pipeline: Pipeline, subscription: Subscription, received: AioWakeup, doubted: AioWakeup
    ) -> None:
        """Raises the error by which the connection fails. `doubted`: it has failed, or a PING is to be sent at once."""
        node = self._node
        while not self._channels.is_unused():
            received.clear()
            doubted.clear()
            if not pipeline.failed.done():
                await doubted.wait(node.ping_interval or LINGER)
            if pipeline.failed.done():
                raise pipeline.failed.result()
            self._channels.sweep()
            if node.ping_interval and (doubted.is_set() or not received.is_set()):
                received.clear()
                pipeline.write(subscription.ping_command())
                if not await received.wait(node.timeout):
                    node.on_failure()
                    raise ConnectionError(f"{node.address} doesn't answer a PING")


class AioListeners(NodeListeners):
    """The listeners of one client: one for each node with channels."""

    _make = AioListener

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
