"""The servers of the fairness machine: a real one whose keys are aged, and one in memory."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from redis import Redis
from redis.exceptions import RedisError

from pyredisson._core import command, prefixed
from pyredisson._protocol.scripts import script
from pyredisson.testing import Server as RealServer
from tests.logic.simulator.server import Server
from tests.support.fair_ageing import AGE

LOCK = b"fair"
QUEUE = prefixed(b"redisson_lock_queue", LOCK)
SCORES = prefixed(b"redisson_lock_timeout", LOCK)
WAITERS = prefixed(b"pyredisson_fair_waiters", LOCK)
CLIENTS = prefixed(b"pyredisson_fair_clients", LOCK)
KEYS = (LOCK, QUEUE, SCORES, WAITERS, CLIENTS)
CHANNEL = prefixed(b"redisson_lock__channel", LOCK)

SNAPSHOT = """
local time = redis.call('TIME')
local left = {}
for i, key in ipairs(KEYS) do
    left[i] = redis.call('PTTL', key)
end
return {
    string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000)),
    redis.call('HGETALL', KEYS[1]),
    redis.call('LRANGE', KEYS[2], 0, -1),
    redis.call('ZRANGE', KEYS[3], 0, -1, 'WITHSCORES'),
    redis.call('HGETALL', KEYS[4]),
    left,
}
"""
"""The values of all keys at one moment."""


@dataclass(frozen=True)
class State:
    """The values of the lock's keys. Scores are times of the test's clock, ms."""

    holders: dict[bytes, int]
    queue: list[bytes]
    scores: dict[bytes, float]
    waiters: dict[bytes, bytes]
    left_of: dict[bytes, int]
    """The remaining time of each key."""


class FairServer(Protocol):
    """A server with one fair lock. A step reads the server's time at its beginning and at its end."""

    before: int
    """ms at the beginning of the last step, by the test's clock: the server's time plus the added time."""
    after: int
    """ms at its end."""
    grace: int
    """Until when no waiter counts as dead, because all clients were silent; ms."""
    messages: list[tuple[bytes, bytes]]
    """What was published in the last step."""

    def begin(self) -> None: ...

    def end(self) -> State: ...

    def script(self, name: str, *args: bytes | int) -> Any:
        """Runs one of the fair lock's scripts, which all take the same keys; or `lock_renew`, which takes the lock."""

    def command(self, *args: bytes | str | int) -> Any:
        """Runs a plain command, as a foreign client would."""

    def now(self) -> int:
        """The server's own clock."""

    def advance_time(self, ms: int) -> None:
        """Lets this much time pass without any event."""

    def close(self) -> None: ...


class Memory:
    """The simulator's server on a virtual clock: to the millisecond, and it can be set back."""

    def __init__(self, patches: Mapping[str, bytes]) -> None:
        self._ms = 1_800_000_000_000
        self.before = self.after = self._ms
        self.grace = 0
        self.messages: list[tuple[bytes, bytes]] = []
        self._server = Server(self._clock, self._publish, dict(patches))
        self._server.load_all()

    def begin(self) -> None:
        self.messages = []
        self.before = self._ms

    def end(self) -> State:
        return _state(self, 0)

    def script(self, name: str, *args: bytes | int) -> Any:
        keys = _keys(name)
        return self._reply(command(b"EVALSHA", script(name, with_shebang=True).sha, len(keys), *keys, *args))

    def command(self, *args: bytes | str | int) -> Any:
        return self._reply(command(*[word.encode() if isinstance(word, str) else word for word in args]))

    def now(self) -> int:
        return self._ms

    def advance_time(self, ms: int) -> None:
        self._ms += ms

    def set_back(self, ms: int) -> None:
        """The server's clock is set back."""
        self._ms -= ms

    def close(self) -> None:
        pass

    def _reply(self, payload: bytes) -> Any:
        reply = self._server.execute(payload)
        if isinstance(reply, RedisError):
            raise reply
        return reply

    def _clock(self) -> float:
        # Half a millisecond on, so that no rounding leads to the one before.
        return (self._ms + 0.5) / 1000

    def _publish(self, channel: bytes, payload: bytes) -> int:
        self.messages.append((channel, payload))
        return 1


class Real:
    """A real server. Time passes by making all times in the lock's keys older."""

    def __init__(self, server: RealServer, redis: Redis) -> None:
        """`redis` has a single connection."""
        self._redis: Any = redis
        self._flags = server.version >= (7,)
        self._aged = 0
        self.messages: list[tuple[bytes, bytes]] = []
        redis.flushall()
        self._ear: Any = redis.pubsub()  # type: ignore[no-untyped-call]
        self._ear.psubscribe(CHANNEL + b"*")
        self._next()
        self.before = self.after = self.now()
        self.grace = 0

    def begin(self) -> None:
        self.before = self.now() + self._aged

    def end(self) -> State:
        self._redis.publish(CHANNEL, b"end")
        self.messages = []
        while (message := self._next())["data"] != b"end":
            self.messages.append((message["channel"], message["data"]))
        return _state(self, self._aged)

    def script(self, name: str, *args: bytes | int) -> Any:
        keys = _keys(name)
        text = script(name, with_shebang=self._flags).text
        return self._redis.eval(text, len(keys), *keys, *args)

    def command(self, *args: bytes | str | int) -> Any:
        # Without the conversions of redis-py: a score and a status come as they are on the wire.
        connection = self._redis.connection
        connection.send_command(*args)
        return connection.read_response()

    def now(self) -> int:
        seconds, micros = self.command("TIME")
        return int(seconds) * 1000 + int(micros) // 1000

    def advance_time(self, ms: int) -> None:
        self._redis.eval(AGE, len(KEYS), *KEYS, ms)
        self._aged += ms

    def close(self) -> None:
        self._ear.close()

    def _next(self) -> Any:
        deadline = time.monotonic() + 5
        while (message := self._ear.get_message(timeout=5)) is None:
            assert time.monotonic() < deadline
        return message


def _state(server: FairServer, aged: int) -> State:
    now, lock, queue, scores, waiters, left = server.command("EVAL", SNAPSHOT, len(KEYS), *KEYS)
    server.after = int(now) + aged
    server.grace = int(_pairs(waiters).get(b":grace", b"0")) + aged
    return State(
        holders={owner: int(count) for owner, count in _pairs(lock).items()},
        queue=queue,
        scores={owner: float(score) + aged for owner, score in _pairs(scores).items()},
        waiters=_pairs(waiters),
        left_of={key: ms for key, ms in zip(KEYS, left, strict=True) if ms != -2},
    )


def _keys(script: str) -> tuple[bytes, ...]:
    return (LOCK,) if script == "lock_renew" else KEYS


def _pairs(flat: list[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))
