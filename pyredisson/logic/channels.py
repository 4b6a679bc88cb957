"""The waiters of each channel, and what wakes them.

A message wakes those waiters that it is meant for. The confirmation of the subscription, its loss, its refusal and the
closing of the client wake all. A waiter's own timer isn't here: see `logic.waiting`.
"""

import itertools
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Protocol

from redis.exceptions import RedisError

from pyredisson._core import ChannelFields, QueueFields, WaiterFields
from pyredisson._protocol.replies import public
from pyredisson.logic.ports import Wakeup

_event_numbers = itertools.count(1)

LINGER = 5.0
"""Seconds for which a channel without waiters stays subscribed: under contention the next waiter comes soon."""


class Subscriber(Protocol):
    """The subscription connection. The registry holds its mutex during these calls; they never block."""

    def subscribe(self, channels: Iterable[bytes]) -> None:
        """Subscribes to these channels. Makes sure, also when there are none, that the connection is being read."""

    def unsubscribe(self, channels: Iterable[bytes]) -> None: ...


class Channel(ChannelFields):
    """The waiters of one channel, in the order in which they joined. A subclass defines what its messages mean."""

    __slots__ = ()

    def __init__(self) -> None:
        self.waiters: dict[Wakeup, int] = {}
        """The need of each waiter: 1 for a lock, the number of permits for a semaphore. 0: it is set aside. A negative
        number: it is leaving."""
        self.confirmed = False
        """Whether the server has confirmed the subscription, so that messages arrive."""
        self.events = next(_event_numbers)
        """Another number after each message, and after each change of `confirmed`. No two channels have the same."""
        self.error: RedisError | None = None
        """Why the server refused the subscription."""
        self.idle_since = 0.0

    def on_message(self, payload: bytes) -> None:
        """A lock was released. `0`: one waiter may acquire it; `1`: all may. Redisson publishes the same values."""
        if payload == b"0":
            self.wake(1)
        elif payload == b"1":
            self.wake_all()

    def on_confirmation(self) -> None:
        """`confirmed` has changed: earlier messages are lost, or later ones will be."""
        self.wake_all()

    def take_look(self, wakeup: Wakeup) -> float | None:
        """In how many seconds that waiter has to make an attempt, if it was woken to learn that. Only once."""
        return None

    def on_leave(self, need: int) -> None:
        """A waiter left with a wakeup that it did not use: the wakeup goes to the next waiter."""
        self.wake(need)

    def wake(self, supply: int) -> None:
        """Wakes the first waiters whose needs together fit into the supply; skips waiters that are awake already."""
        for wakeup in list(self.waiters):
            need = self.waiters.get(wakeup, 0)
            if 0 < need <= supply and not wakeup.is_set() and wakeup.alive:
                wakeup.set()
                if wakeup not in self.waiters:
                    # A finalizer ran in this loop and the waiter left just before `set`: it did not use its wakeup,
                    # and it did not pass it on either.
                    continue
                supply -= need
                if not supply:
                    return

    def wake_all(self) -> None:
        for wakeup in list(self.waiters):
            self.take_look(wakeup)
            wakeup.set()


class RelayedChannel(Channel):
    """A channel whose waiters may listen to another one as well."""

    __slots__ = ("relay",)

    def __init__(self) -> None:
        super().__init__()
        self.relay: RelayChannel | None = None

    def on_relayed(self, payload: bytes) -> None:
        """A message on the other channel."""
        Channel.on_message(self, payload)

    def on_confirmation(self) -> None:
        # One attempt after the later one of the two confirmations is enough.
        if not self.confirmed or self.relay is None or self.relay.confirmed:
            self.wake(1)


class RelayChannel(Channel):
    """A channel that another one's waiters listen to as well. It exists as long as they do."""

    __slots__ = ("target",)

    def __init__(self, target: RelayedChannel) -> None:
        super().__init__()
        self.relay_to(target)

    def relay_to(self, target: RelayedChannel) -> None:
        self.target = target
        self.waiters = target.waiters
        target.relay = self

    def on_message(self, payload: bytes) -> None:
        self.target.on_relayed(payload)

    def on_confirmation(self) -> None:
        if not self.confirmed or self.target.confirmed:
            self.target.wake(1)

    def wake_all(self) -> None:
        if self.error is not None:
            self.target.error = self.error
        self.target.wake_all()


class CountedChannel(Channel):
    """A channel without messages. Scripts count who is subscribed to it, as long as the waiters of another one wait."""

    __slots__ = ()

    def __init__(self, target: RelayedChannel) -> None:
        super().__init__()
        self.waiters = target.waiters

    def on_confirmation(self) -> None:
        """Nobody relies on it."""

    def wake_all(self) -> None:
        """Without a right to subscribe to it, scripts publish messages that nobody needs."""


class ChannelRegistry:
    """All channels of one client, between the waiters and the one subscription connection.

    A garbage collection may run the `finally` of a waiter on any line, also on the thread that holds the mutex.
    Therefore the mutex is re-entrant, and every loop that runs with the mutex held iterates over a copy. The copy is
    made by one call that allocates nothing else meanwhile: `list` of a dict's keys, not of its items.
    """

    subscriber: Subscriber
    """The subscription connection, which itself refers to this registry. It is set before any call waits."""

    notes_places = False
    """Whether each waiter is noted with the node of its channel."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.mutex: AbstractContextManager[object] = threading.RLock()
        self._clock = clock
        self._next_sweep = 0.0
        self.waiting: set[Wakeup] = set()
        """The waiters of all channels; each waiter is in one channel."""
        self.client_waiting = self.waiting
        """All waiters of the client: the same ones, as there is one subscription connection."""
        self.by_name: dict[bytes, Channel] = {}
        """All channels. An attribute: each acquire looks whether there is any."""

    def confirmed_channel(self, name: bytes) -> Channel | None:
        """The channel, if its messages arrive already."""
        channel = self.by_name.get(name)
        return channel if channel is not None and channel.confirmed else None

    def events(self, name: bytes) -> int | None:
        """What `join` takes to find out whether an event was missed. None: messages don't arrive."""
        channel = self.confirmed_channel(name)
        return None if channel is None else channel.events

    def join(
        self,
        name: bytes,
        wakeup: Wakeup,
        channel_class: type[Channel] = Channel,
        need: int = 1,
        events: int | None = None,
    ) -> Channel:
        """Registers a waiter. It is woken as soon as the server has confirmed the subscription.

        `channel_class` defines what the messages of the channel mean. `need` is the amount that this waiter needs.
        `events` is what the method of that name returned before the caller's latest attempt: a waiter that has missed
        nothing since then needs no other attempt.
        """
        subscriber = self.subscriber
        with self.mutex:
            channel = self.by_name.get(name)
            if channel is None or channel.error is not None:
                if channel is not None:
                    # Its waiters are about to raise the error.
                    self.waiting.difference_update(channel.waiters)
                channel = self.by_name[name] = channel_class()
                subscriber.subscribe((name,))
            else:
                # Nobody may read the connection any more: the thread couldn't start, or its event loop has ended.
                subscriber.subscribe(())
            if wakeup not in channel.waiters:
                channel.waiters[wakeup] = need
                self.waiting.add(wakeup)
            if channel.confirmed and channel.events != events:
                # A message that arrived after the caller's last attempt and before this moment may have woken nobody.
                wakeup.set()
            self.on_joined(name, channel, wakeup)
        return channel

    def on_joined(self, name: bytes, channel: Channel, wakeup: Wakeup) -> None:
        """A waiter has joined. The caller holds the mutex."""

    def relay(self, name: bytes, target: RelayedChannel, *, anew: bool, counted: bytes = b"") -> bool:
        """Has the messages of another channel wake waiters of `target`, as long as that has waiters.

        `anew`: the caller has joined `target` after its latest attempt. Returns whether it may have missed a message.
        `counted`: a channel to subscribe to as well, which counts the clients that listen; empty: none.
        """
        subscriber = self.subscriber
        with self.mutex:
            channel = self.by_name.get(name)
            if not isinstance(channel, RelayChannel) or channel.error is not None:
                channel = self.by_name[name] = RelayChannel(target)
                subscriber.subscribe((name,))
            elif channel.target is not target:
                channel.relay_to(target)
                anew = True
            channel.idle_since = self._clock()
            if counted:
                counting = self.by_name.get(counted)
                if counting is None:
                    counting = self.by_name[counted] = CountedChannel(target)
                    subscriber.subscribe((counted,))
                counting.waiters = target.waiters
                counting.idle_since = channel.idle_since
            return anew and channel.confirmed

    def join_quietly(self, queue: QueueFields, waiter: WaiterFields, need: int, now: float, longest: float) -> bool:
        """As `join`, for a waiter of a queue whose other waiters listen to the same channel; see `QueueFields`."""
        return not self.notes_places and queue.join_quietly(waiter, need, self, now, longest)

    def leave_quietly(self, queue: QueueFields, waiter: WaiterFields) -> bool:
        """As `leave`, for a waiter of a queue that has got what it waits for; see `QueueFields`."""
        return not self.notes_places and queue.leave_quietly(waiter, self)

    def set_aside(self, name: bytes, *wakeups: Wakeup) -> int | None:
        """Messages go to other waiters. These keep their places until `take_back`. Returns the same as `events`."""
        with self.mutex:
            channel = self.by_name.get(name)
            if channel is None:
                return None
            # All of them before any wakeup is passed on: none of them is to get it.
            for need in set(map(channel.set_aside, wakeups)) - {0}:
                channel.on_leave(need)
            return channel.events if channel.confirmed else None

    def take_back(self, name: bytes, wakeup: Wakeup, need: int = 1) -> None:
        """Undoes `set_aside`. The waiter may have missed messages."""
        with self.mutex:
            channel = self.by_name.get(name)
            if channel is not None:
                channel.take_back(wakeup, need)

    def leave(self, name: bytes, wakeup: Wakeup) -> None:
        """Removes a waiter, and passes an unused wakeup on. Idempotent, also if an earlier call was interrupted."""
        with self.mutex:
            channel = self.by_name.get(name)
            if channel is None:
                return
            # In this order: the repetition of an interrupted call finds what is left.
            need = abs(channel.waiters.get(wakeup, 0))
            if need and wakeup.is_set():
                # The wakeup must not go to this waiter itself, nor may it count as one that takes permits.
                channel.waiters[wakeup] = -need
                channel.on_leave(need)
            channel.waiters.pop(wakeup, None)
            self.waiting.discard(wakeup)
            if not channel.waiters:
                channel.idle_since = self._clock()

    def deliver(self, name: bytes, payload: bytes) -> None:
        """Passes a message to its channel: one from the server, or one that a waiter of this client passes on."""
        with self.mutex:
            channel = self.by_name.get(name)
            if channel is not None:
                channel.events = next(_event_numbers)
                channel.on_message(payload)

    def on_missed(self, name: bytes) -> None:
        """A call that joins from now on makes another attempt if its latest one began before. With the mutex held."""
        channel = self.by_name.get(name)
        if channel is not None:
            channel.events = next(_event_numbers)

    def on_subscribed(self, name: bytes) -> None:
        """The server confirmed a subscription. Earlier messages are lost, so all waiters of the channel are woken."""
        with self.mutex:
            channel = self.by_name.get(name)
            if channel is not None:
                channel.confirmed = True
                channel.events = next(_event_numbers)
                channel.on_confirmation()
        if self._clock() >= self._next_sweep:
            self.sweep()

    def on_refused(self, name: bytes, error: RedisError) -> None:
        """The server refused a subscription. The waiters raise the error: they would never get a message."""
        with self.mutex:
            channel = self.by_name.get(name)
            if channel is not None:
                channel.error = public(error)
                channel.wake_all()

    def on_dropped(self, name: bytes) -> None:
        """The server ended a subscription by itself. The waiters are woken, and retry every second."""
        with self.mutex:
            self.unconfirm(self.by_name.get(name))

    def on_disconnected(self) -> None:
        """The connection broke. The waiters are woken, and retry every second. The caller holds the mutex."""
        for channel in list(self.by_name.values()):
            self.unconfirm(channel)

    def unconfirm(self, channel: Channel | None) -> None:
        """Messages don't arrive any more."""
        if channel is not None and channel.confirmed:
            channel.confirmed = False
            channel.events = next(_event_numbers)
            channel.on_confirmation()

    def names(self) -> list[bytes]:
        """The channels to subscribe to over a new connection. The caller holds the mutex."""
        channels = self.by_name
        names = (
            name for name in list(channels) if (channel := channels.get(name)) is not None and channel.error is None
        )
        # As in `sweep`, but the other way round.
        return sorted(names, reverse=True)

    def is_unused(self) -> bool:
        """False: the connection to a single server is kept, as there is only one."""
        return False

    def forget(self, name: bytes) -> None:
        """Nobody waits for messages of that channel any more. The caller holds the mutex."""
        channel = self.by_name.pop(name, None)
        if isinstance(channel, RelayChannel) and channel.target.relay is channel:
            channel.target.relay = None

    def sweep(self) -> None:
        """Unsubscribes from the channels that have had no waiter for `LINGER` seconds."""
        now = self._clock()
        self._next_sweep = now + LINGER
        with self.mutex:
            channels = self.by_name
            idle = [
                name
                for name in list(channels)
                if (channel := channels.get(name)) is not None
                and not channel.waiters
                and now - channel.idle_since >= LINGER
            ]
            # A channel that counts who listens to another one goes before that. Otherwise it would count one too many.
            idle.sort()
            for name in idle:
                self.forget(name)
            if idle:
                self.subscriber.unsubscribe(idle)

    def wake_all(self) -> None:
        """Wakes all waiters of the client: it was closed."""
        with self.mutex:
            for channel in list(self.by_name.values()):
                channel.wake_all()
