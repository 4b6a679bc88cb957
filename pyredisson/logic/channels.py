"""Who waits for which channel: a message wakes one waiter of this client, a confirmation wakes all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Protocol

from redis.exceptions import RedisError

from pyredisson.logic.ports import Wakeup

LINGER = 5.0
"""Seconds for which a channel that nobody waits for stays subscribed: contention comes back at once."""


class Subscriber(Protocol):
    """The connection that listens. Its methods are called with the registry's mutex held and never block."""

    def subscribe(self, channels: Iterable[bytes]) -> None:
        """Asks for these channels; also with none, sees to it that somebody listens."""

    def unsubscribe(self, channels: Iterable[bytes]) -> None: ...


class Channel:
    """The waiters of one channel, in the order in which they came."""

    __slots__ = ("confirmed", "error", "idle_since", "leader", "waiters")

    def __init__(self) -> None:
        self.waiters: dict[Wakeup, int] = {}
        """What each of them needs: one lock, so many permits."""
        self.confirmed = False
        self.error: RedisError | None = None
        self.idle_since = 0.0
        self.leader: Wakeup | None = None
        """The waiter that is woken before all others, if there is enough for it."""

    def heard(self, payload: bytes) -> None:
        """A release of a lock (`0`: one may come; `1`: all may), as Redisson spells it; anything else is ignored."""
        if payload == b"0":
            self.wake(1)
        elif payload == b"1":
            self.wake_all()

    def left(self, need: int) -> None:
        """A waiter went with a wake-up that it didn't use: it goes to the next."""
        self.wake(need)

    def wake(self, supply: int) -> None:
        """Those who come first and can have, of so much, what they need; who is awake already needs nothing."""
        leader = self.leader
        # The leader first.
        for signal in [*((leader,) if leader is not None else ()), *list(self.waiters)]:
            need = self.waiters.get(signal, 0)
            if 0 < need <= supply and not signal.is_set():
                signal.set()
                if signal not in self.waiters:
                    # It left just before, by a finalizer that ran in here: nobody got this wake-up.
                    continue
                supply -= need
                if not supply:
                    return

    def wake_all(self) -> None:
        for signal in list(self.waiters):
            signal.set()

    def next_leader(self) -> None:
        """The leader left: wakes the waiter that may lead next."""


class ChannelRegistry:
    """Local bookkeeping between waiters and one subscription connection.

    A garbage collection may run the `finally` of a waiter on any line, also on the thread that has the mutex: the mutex
    is re-entrant, and whatever is iterated over while the mutex is held is a copy, made by a call that allocates
    nothing on the way (`list` of a dict's keys, not of its items).
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.mutex = threading.RLock()
        self._clock = clock
        self._next_sweep = 0.0
        self.waiting: set[Wakeup] = set()
        """Who waits, each for one channel."""
        self._channels: dict[bytes, Channel] = {}
        self._subscriber: Subscriber | None = None

    def attach(self, subscriber: Subscriber) -> None:
        """Names the connection that listens from now on."""
        self._subscriber = subscriber

    def listening(self, name: bytes) -> Channel | None:
        """The channel, if its messages arrive already."""
        channel = self._channels.get(name)
        return channel if channel is not None and channel.confirmed else None

    def join(self, name: bytes, signal: Wakeup, kind: type[Channel] = Channel, need: int = 1) -> Channel:
        """Registers a waiter, which is told to look again as soon as messages are known to arrive.

        `kind` says what the messages of that channel mean, `need` how much this waiter wants.
        """
        subscriber = self._subscriber
        if subscriber is None:
            raise AssertionError("the channels has no subscriber")
        with self.mutex:
            channel = self._channels.get(name)
            if channel is None or channel.error is not None:
                if channel is not None:
                    # Its waiters are on their way out with the error.
                    self.waiting.difference_update(channel.waiters)
                channel = self._channels[name] = kind()
                subscriber.subscribe((name,))
            else:
                # Whoever listened may have ended, with a thread that couldn't start or with another event loop.
                subscriber.subscribe(())
            if signal not in channel.waiters:
                channel.waiters[signal] = need
                self.waiting.add(signal)
            if channel.confirmed:
                # What was published between the caller's try and this moment went to nobody.
                signal.set()
        return channel

    def leave(self, name: bytes, signal: Wakeup) -> None:
        """A waiter goes, whatever the reason; a wake-up that it didn't use goes to the next. Idempotent."""
        with self.mutex:
            channel = self._channels.get(name)
            if channel is None:
                return
            need = channel.waiters.pop(signal, 0)
            if channel.leader is signal:
                channel.leader = None
                channel.next_leader()
            if need:
                self.waiting.discard(signal)
                if signal.is_set():
                    channel.left(need)
            if not channel.waiters:
                channel.idle_since = self._clock()

    def lead(self, name: bytes, signal: Wakeup) -> bool:
        """Makes a waiter the leader of its channel, unless another one is; is it the leader."""
        with self.mutex:
            channel = self._channels.get(name)
            if channel is None or signal not in channel.waiters:
                return False
            if channel.leader is None:
                channel.leader = signal
            return channel.leader is signal

    def message(self, name: bytes, payload: bytes) -> None:
        """What a message means is the channel's to say."""
        with self.mutex:
            channel = self._channels.get(name)
            if channel is not None:
                channel.heard(payload)

    def subscribed(self, name: bytes) -> None:
        """The server confirmed: messages arrive from now on, what came before is unknown. All look again."""
        with self.mutex:
            channel = self._channels.get(name)
            if channel is not None:
                channel.confirmed = True
                channel.wake_all()
        if self._clock() >= self._next_sweep:
            self.sweep()

    def refused(self, name: bytes, error: RedisError) -> None:
        """The server won't let this client listen: the waiters get the error instead of waiting unheard."""
        with self.mutex:
            channel = self._channels.get(name)
            if channel is not None:
                channel.error = error
                channel.wake_all()

    def disconnected(self) -> None:
        """Nothing arrives until the next confirmation: who waits looks now, and then often. With the lock held."""
        for channel in list(self._channels.values()):
            if channel.confirmed:
                channel.confirmed = False
                channel.wake_all()

    def names(self) -> list[bytes]:
        """The channels to subscribe to; called with the lock held."""
        channels = self._channels
        return [
            name for name in list(channels) if (channel := channels.get(name)) is not None and channel.error is None
        ]

    def sweep(self) -> None:
        """Unsubscribes from what nobody has waited for since `LINGER` seconds."""
        now = self._clock()
        self._next_sweep = now + LINGER
        with self.mutex:
            channels = self._channels
            idle = [
                name
                for name in list(channels)
                if (channel := channels.get(name)) is not None
                and not channel.waiters
                and now - channel.idle_since >= LINGER
            ]
            for name in idle:
                channels.pop(name, None)
            if idle and self._subscriber is not None:
                self._subscriber.unsubscribe(idle)

    def wake_all(self) -> None:
        """Every waiter looks again: the client was closed."""
        with self.mutex:
            for channel in list(self._channels.values()):
                channel.wake_all()
