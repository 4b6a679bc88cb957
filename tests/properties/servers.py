"""The servers of the state machines: one in memory on a virtual clock, and the same one beside a real server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test
from redis.exceptions import RedisError

from pyredisson._core import command
from pyredisson._protocol.scripts import script
from pyredisson.testing import Server as RealServer
from tests.logic.simulator.containers import readable
from tests.logic.simulator.keys import Hash, SortedSet, Value
from tests.logic.simulator.server import Server
from tests.lua.scripted import Call

Word = bytes | str | int
SETTINGS = settings(
    deadline=None,
    derandomize=True,
    print_blob=True,
    report_multiple_bugs=False,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)
"""The same examples every time. A failure is printed as the steps that lead to it."""
LONGER = 10_000
"""Milliseconds by which the keys on the real server live longer, so that none ends while a script runs."""
SOON = 5_000
"""Milliseconds: keys that end so soon may be gone on the real server when it is looked at."""

AT_THE_TIME = """
local real, left = redis, {}
local function at_the_time(call)
    return function(name, ...)
        if name == 'TIME' then
            return {'%d', '%d'}
        elseif name == 'PUBLISH' then
            return 1
        end
        local args, reply = {...}, call(name, ...)
        local known = left[args[1]]
        if name == 'PEXPIRE' then
            left[args[1]] = tonumber(args[2])
        elseif name == 'SET' then
            for i = 3, #args do
                left[args[1]] = args[i] == 'PX' and tonumber(args[i + 1]) or left[args[1]]
            end
        elseif name == 'PTTL' and reply >= 0 and known and math.abs(reply - known) <= 2 * %d then
            return known
        end
        return reply
    end
end
local redis = setmetatable({call = at_the_time(real.call), pcall = at_the_time(real.pcall)}, {__index = real})
"""
"""Stands before a script, which then sees that time, and the remaining time of keys as it was set. Each message has one
receiver, as in memory."""
LOOK = """
local found = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
    local kind = redis.call('TYPE', key).ok
    local value
    if kind == 'hash' then
        value = redis.call('HGETALL', key)
    elseif kind == 'list' then
        value = redis.call('LRANGE', key, 0, -1)
    elseif kind == 'zset' then
        value = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
    else
        value = redis.call('GET', key)
    end
    found[#found + 1] = {key, value, redis.call('PTTL', key)}
end
return found
"""


class Memory:
    """The simulator's server, whose time stands still but for `advance_time`."""

    def __init__(self, patches: Mapping[str, bytes] | None = None) -> None:
        self.now = 1_800_000_000_000
        """Milliseconds."""
        self.messages: list[tuple[bytes, bytes]] = []
        """What was published."""
        self.server = Server(self._clock, self._publish, dict(patches or {}))
        self.server.load_all()

    def script(self, name: str, *keys: Word, args: tuple[Word, ...] = ()) -> Any:
        """The reply to a script."""
        return self.command("EVALSHA", script(name, with_shebang=True).sha, len(keys), *keys, *args)

    def call(self, call: Call) -> Any:
        """The same."""
        return self.script(call.name, *call.keys, args=tuple(call.args))

    def command(self, *words: Word) -> Any:
        """The reply to a command, as another program would send it."""
        return self.execute(command(*[word.encode() if isinstance(word, str) else word for word in words]))

    def execute(self, payload: bytes) -> Any:
        """The reply to a command as it stands on the wire. An error is raised."""
        reply = self.server.execute(payload)
        if isinstance(reply, RedisError):
            raise reply
        return reply

    def keys(self) -> dict[bytes, tuple[Value, int]]:
        """The value of each key and its remaining time."""
        keyspace = self.server.keyspace
        values = {key: keyspace.value(key) for key in list(keyspace.values)}
        return {key: (value, keyspace.do_pttl(key)) for key, value in values.items() if value is not None}

    def advance_time(self, ms: int) -> None:
        """Lets so much time pass; the clock may be set back."""
        self.now += ms

    def _clock(self) -> float:
        # Half a millisecond on, so that no rounding leads to the one before.
        return (self.now + 0.5) / 1000

    def _publish(self, channel: bytes, payload: bytes) -> int:
        self.messages.append((channel, payload))
        return 1


class Beside(Memory):
    """Runs each script on a real server too, from the same state and at the same time: what it does must be equal."""

    def __init__(self, redis: Any) -> None:
        """`redis` has a single connection."""
        super().__init__()
        self._connection = redis.connection
        self.compared = 0

    def script(self, name: str, *keys: Word, args: tuple[Word, ...] = ()) -> Any:
        self._send("FLUSHALL")
        restored = "".join(self._restored())
        time = AT_THE_TIME % (self.now // 1000, self.now % 1000 * 1000 + 500, LONGER)
        text = script(name, with_shebang=False).text.decode()
        reply = super().script(name, *keys, args=args)
        real = self._send("EVAL", time + restored + text, len(keys), *keys, *args)
        assert real == reply, f"{name} {args} on {restored}"
        self._compare()
        self.compared += 1
        return reply

    def _compare(self) -> None:
        found = {key: (value, left) for key, value, left in self._send("EVAL", LOOK, 0)}
        for key, (value, left) in self.keys().items():
            if 0 <= left < SOON:
                found.pop(key, None)
                continue
            real, real_left = found.pop(key)
            assert real == _flat(value)
            assert abs(real_left - left) < LONGER + SOON
        assert not found

    def _restored(self) -> Iterator[str]:
        """Lua that makes the same keys. In the script itself, as time passes between two."""
        for key, (value, left) in self.keys().items():
            for words in _making(key, value):
                yield f"real.call({','.join(map(_quoted, words))})\n"
            if left >= 0:
                yield f"real.call('PEXPIRE',{_quoted(key)},{left + LONGER}) left[{_quoted(key)}] = {left}\n"

    def _send(self, *words: Word) -> Any:
        # Without the conversions of redis-py: a score and a status come as they are on the wire.
        self._connection.send_command(*words)
        return self._connection.read_response()


def play(machine: Callable[[], RuleBasedStateMachine], examples: int, steps: int, **more: Any) -> None:
    """Runs a state machine."""
    made: Any = machine
    run_state_machine_as_test(
        made, settings=settings(SETTINGS, max_examples=examples, stateful_step_count=steps, **more)
    )


@contextmanager
def beside(server: RealServer) -> Iterator[Any]:
    """A connection for `Beside`."""
    with server.redis(single_connection_client=True, protocol=2) as redis:
        yield redis


def _making(key: bytes, value: Value) -> Iterator[list[bytes]]:
    """The commands that make a key."""
    if isinstance(value, SortedSet):
        yield from ([b"ZADD", key, readable(score), member] for member, score in value.items())
    elif isinstance(value, bytes):
        yield [b"SET", key, value]
    else:
        yield [b"HSET" if isinstance(value, Hash) else b"RPUSH", key, *_flat(value)]


def _flat(value: Value) -> bytes | list[bytes]:
    """A value as the server lists it."""
    if isinstance(value, SortedSet):
        ordered = sorted(value.items(), key=lambda item: (item[1], item[0]))
        return [word for member, score in ordered for word in (member, readable(score))]
    return [word for pair in value.items() for word in pair] if isinstance(value, Hash) else value


def _quoted(word: bytes) -> str:
    return "'" + "".join(f"\\{byte:03d}" for byte in word) + "'"
