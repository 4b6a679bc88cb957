"""The commands of the simulated server reply as those of a real server, to a client and to a script."""

import re
from contextlib import closing
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from redis import Redis
from redis.exceptions import RedisError

from pyredisson._backends.threads.connection import Connection
from pyredisson._core import command
from pyredisson._protocol.node import Node
from pyredisson._protocol.replies import Reply
from pyredisson._protocol.scripts import script
from pyredisson._settings.config import Config
from pyredisson.testing import Server as RealServer
from tests.support.faults import from_7

from .simulator.keys import Hash, List, SortedSet, Value
from .simulator.server import Server

KEYS = (b"{k}1", b"{k}2", b"{k}3")
SLACK = 50_000
"""Milliseconds that a test may take; ends are further apart."""

TYPED = b"""
local function typed(value)
    if type(value) ~= 'table' then
        return type(value) .. ' ' .. tostring(value)
    elseif value.ok then
        return 'ok ' .. value.ok
    elseif value.err then
        return 'err ' .. string.match(value.err, '%S+')
    end
    local items = {}
    for i, item in ipairs(value) do items[i] = typed(item) end
    return '[' .. table.concat(items, ',') .. ']'
end
local arguments = {}
for i, argument in ipairs(ARGV) do
    -- As scripts do: numbers that they have computed.
    arguments[i] = i > 1 and string.match(argument, '^-?%d+$') and tonumber(argument) or argument
end
return typed(redis.pcall(unpack(arguments)))
"""
"""Runs a command and returns the type of its reply in Lua."""

keys = st.sampled_from(KEYS)
names = st.sampled_from((b"a", b"b", b"7", b"me:1"))
numbers = st.integers(-3, 5).map(b"%d".__mod__)
texts = st.one_of(names, numbers)
scores = st.one_of(numbers, st.sampled_from((b"1.5", b"inf", b"-inf", b"1763720000123", b"922337203685477", b"x")))
bounds = st.one_of(scores, scores.map(b"(".__add__))
counts = st.one_of(numbers, st.sampled_from((b"x", b"1.5", b"", b"01", b"9223372036854775807")))
leases = st.sampled_from((b"0", b"-1", b"100000", b"200000", b"x"))
spans = st.sampled_from((b"0", b"-1", b"100", b"200", b"x"))
patterns = st.sampled_from((b"*", b"{k}[12]", b"{k}[^12]", b"{k}?", b"{K}*", b"{k}3", b"\\{k}*", b"{k}[!1]", b""))
words = {
    "ZADD": st.sampled_from(([], [b"NX"], [b"xx"])),
    "SET": st.sampled_from(
        ([], [b"NX"], [b"xx"], [b"KEEPTTL"], [b"PX", b"100000"], [b"NX", b"PX", b"200000"], [b"PX", b"0"])
    ),
    "scores": st.sampled_from(([], [b"WITHSCORES"])),
    "limit": st.sampled_from(([], [b"LIMIT", b"0", b"1"], [b"LIMIT", b"1", b"-1"], [b"LIMIT", b"1", b"2"])),
}


Part = st.SearchStrategy[bytes] | st.SearchStrategy[list[bytes]]


def calls(name: str, *parts: Part) -> st.SearchStrategy[list[bytes]]:
    """A command whose arguments are drawn; a list stands for several."""

    def joined(drawn: tuple[bytes | list[bytes], ...]) -> list[bytes]:
        return [name.encode(), *(word for part in drawn for word in (part if isinstance(part, list) else [part]))]

    return st.tuples(*parts).map(joined)


def each(names: str, *parts: Part) -> list[st.SearchStrategy[list[bytes]]]:
    """Several commands that take the same."""
    return [calls(name, *parts) for name in names.split()]


def some(strategy: st.SearchStrategy[bytes]) -> st.SearchStrategy[list[bytes]]:
    return st.lists(strategy, min_size=1, max_size=3)


commands = st.one_of(
    *each("DEL EXISTS", some(keys)),
    *each("TYPE PERSIST PTTL TTL GET INCR DECR HKEYS HVALS HGETALL HLEN LLEN LPOP RPOP ZCARD", keys),
    calls("PEXPIRE", keys, leases),
    calls("EXPIRE", keys, spans),
    calls("RENAME", keys, keys),
    calls("KEYS", patterns),
    calls("SCAN", st.just(b"0"), st.just(b"COUNT"), st.just(b"100")),
    calls("PUBLISH", names, texts),
    *each("GETRANGE LRANGE", keys, numbers, numbers),
    calls("SET", keys, texts, words["SET"]),
    calls("APPEND", keys, texts),
    *each("INCRBY DECRBY", keys, counts),
    *each("HEXISTS HGET ZSCORE ZRANK", keys, names),
    *each("HMGET HDEL LPUSH RPUSH RPUSH ZMSCORE ZREM", keys, some(names)),
    calls("HSET", keys, names, texts, names, texts),
    calls("HSCAN", keys, st.just(b"0"), st.just(b"COUNT"), st.just(b"32")),
    calls("HINCRBY", keys, names, counts),
    calls("LINDEX", keys, numbers),
    calls("LREM", keys, numbers, names),
    calls("ZADD", keys, words["ZADD"], scores, names, scores, names),
    calls("ZINCRBY", keys, scores, names),
    *each("ZCOUNT ZREMRANGEBYSCORE", keys, bounds, bounds),
    calls("ZRANGE", keys, numbers, numbers, words["scores"]),
    calls("ZRANGEBYSCORE", keys, bounds, bounds, words["scores"], words["limit"]),
)


class Both:
    """A real server and one in memory, which get the same commands."""

    def __init__(self, server: RealServer, admin: Redis) -> None:
        admin.flushall()
        self._admin = admin
        self._real = Connection(Node(Config.of(server.url)))
        self._real.open()
        self.close = self._real.close
        self._model = Server(lambda: 1000.0, lambda *_: 0)
        self._model.load_all()

    def do(self, call: list[bytes], *, scripted: bool) -> None:
        model, real = self.replies(command(b"EVAL", TYPED, 0, *call) if scripted else command(*call))
        assert comparable(model, call) == comparable(real, call)
        for key in set(KEYS).intersection(call):
            value = self._model.keyspace.value(key)
            state = self._state(key, value)
            assert state == value
            assert not isinstance(value, Hash) or list(state) == list(value), "the order"
            assert abs(self._admin.pttl(key) - self._model.execute(command(b"PTTL", key))) < SLACK

    def replies(self, payload: bytes) -> tuple[Reply, Reply]:
        """Of the model and of the real server. An error is a reply."""
        model = self._model.execute(payload)
        try:
            return model, self._real.call(payload)
        except RedisError as error:
            return model, error

    def _state(self, key: bytes, value: Value | None) -> Any:
        if isinstance(value, Hash):
            return self._admin.hgetall(key)
        if isinstance(value, List):
            return self._admin.lrange(key, 0, -1)
        if isinstance(value, SortedSet):
            return dict(cast(Any, self._admin.zrange(key, 0, -1, withscores=True)))
        return self._admin.get(key)


def comparable(reply: Reply, call: list[bytes]) -> object:
    """The part of a reply that must be equal: of an error the first word, of a time a rounded value."""
    if isinstance(reply, RedisError):
        return type(reply), str(reply).partition(" ")[0]
    if call[0] in (b"PTTL", b"TTL"):
        number = int(reply.removeprefix(b"number ")) if isinstance(reply, bytes) else reply
        return type(reply), round(number * (1 if call[0] == b"PTTL" else 1000) / SLACK)
    if call[0] in (b"KEYS", b"SCAN"):
        return sorted_keys(reply)
    return type(reply), reply


def sorted_keys(reply: Reply) -> object:
    """Servers list their keys in any order."""
    if isinstance(reply, bytes):
        return sorted(re.findall(rb"\{k\}\d", reply)), re.sub(rb"\{k\}\d", b"", reply)
    if isinstance(reply, list):
        return [sorted_keys(part) for part in sorted(reply, key=repr)]
    return reply


@from_7  # older ones have other codes of errors
@settings(max_examples=150, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sequence=st.lists(st.tuples(commands, st.booleans()), min_size=10, max_size=60))
@example(sequence=[([b"ZADD", KEYS[0], b"922337203685477", b"a"], True), ([b"ZSCORE", KEYS[0], b"a"], True)])
@example(sequence=[([b"SET", KEYS[0], b"9223372036854775807"], False), ([b"INCR", KEYS[0]], True)])
def test_same_as_a_real_server(server: RealServer, admin: Redis, sequence: list[tuple[list[bytes], bool]]) -> None:
    with closing(Both(server, admin)) as both:
        for call, scripted in sequence:
            both.do(call, scripted=scripted)


def test_a_key_lives_through_the_whole_of_its_last_millisecond() -> None:
    now = 1000.0
    server = Server(lambda: now, lambda *_: 0)
    sha = server.load(script("lock_acquire", with_shebang=True).text)

    def acquire(owner: bytes) -> Reply:
        return server.execute(command(b"EVALSHA", sha, 3, b"a", b"list", b"woken", owner, 1, 250, owner, 0))

    assert acquire(b"me:1") is None
    now = 1000.25
    assert acquire(b"you:1") == 0
    now = 1000.251
    assert server.execute(command(b"PTTL", b"a")) == -2
    assert acquire(b"you:1") is None
    assert server.execute(command(b"HKEYS", b"a")) == [b"you:1"]


def test_the_time_is_the_simulated_one() -> None:
    server = Server(lambda: 1763720000.25, lambda *_: 0)
    assert server.execute(command(b"TIME")) == [b"1763720000", b"250000"]
    text = b"local now = redis.call('TIME') return string.format('%.0f', now[1] * 1000 + math.floor(now[2] / 1000))"
    assert server.execute(command(b"EVAL", text, 0)) == b"1763720000250"


@pytest.mark.parametrize(
    ("text", "reply"),
    [
        (b"return {ok = 'DONE'}", b"DONE"),
        (b"return redis.status_reply('DONE')", b"DONE"),
        (b"return {1, 'a', false, {2.9, true}}", [1, b"a", None, [2, 1]]),
        (b"return {1, nil, 2}", [1]),
        (b"return redis.call('ZSCORE', 'none', 'a')", None),
        (b"return redis.call('SET', 'x', 1)", b"OK"),
        (b"return -0.5", 0),
        (b"return redis.call('HMGET', 'none', 'a', 'b')", [None, None]),
    ],
)
def test_what_a_script_returns(server: RealServer, admin: Redis, text: bytes, reply: object) -> None:
    with closing(Both(server, admin)) as both:
        assert both.replies(command(b"EVAL", text, 0)) == (reply, reply)


@pytest.mark.parametrize(
    "text",
    [
        b"return redis.error_reply('OOPS it went wrong')",
        b"return {err = 'OOPS it went wrong'}",
        b"return redis.call('NOSUCH')",
        b"redis.call('SET', 'x', 'text') return redis.call('INCR', 'x')",
        None,
    ],
)
@from_7
def test_errors_of_a_script(server: RealServer, admin: Redis, text: bytes | None) -> None:
    with closing(Both(server, admin)) as both:
        model, real = both.replies(command(b"EVALSHA", b"0" * 40, 0) if text is None else command(b"EVAL", text, 0))
    assert isinstance(real, RedisError)
    assert comparable(model, [b""]) == comparable(real, [b""])
