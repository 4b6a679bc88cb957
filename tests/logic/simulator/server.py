"""A server in memory: hashes that expire on a virtual clock, channels, and the real scripts run by Lua."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hiredis
from lupa import lua51
from redis.exceptions import NoScriptError, RedisError, ResponseError

from pyredisson.runtime import Reply
from pyredisson.scripts import NAMES, script
from pyredisson.wire.replies import as_error

WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"

Value = dict[bytes, bytes] | bytes


class Keyspace:
    """What one server holds, as the commands see it that the scripts and the logic use."""

    def __init__(self, clock: Callable[[], float], publish: Callable[[bytes, bytes], int]) -> None:
        self._clock = clock
        self._publish = publish
        self.values: dict[bytes, Value] = {}
        self.ends: dict[bytes, int] = {}
        self.freed: dict[bytes, tuple[float, bool]] = {}
        """When a key went last, and whether its time was over (no message tells of that)."""
        self.on_taken: Callable[[bytes], None] | None = None
        """Called when a key comes into being."""
        self._commands: dict[bytes, Callable[..., Reply]] = {
            b"DEL": self._del,
            b"EXISTS": self._exists,
            b"HEXISTS": self._hexists,
            b"HGET": self._hget,
            b"HINCRBY": self._hincrby,
            b"HKEYS": self._hkeys,
            b"HSET": self._hset,
            b"PEXPIRE": self._pexpire,
            b"PTTL": self._pttl,
            b"PUBLISH": publish,
            b"SET": self._set,
        }

    def call(self, name: bytes, *args: bytes) -> Reply:
        """One command. Lua gives its numbers as such; here only strings are used, as in the scripts."""
        return self._commands[name](*args)

    def value(self, key: bytes) -> Value | None:
        """What stands under the key, if its time isn't over."""
        ends = self.ends.get(key)
        if ends is not None and self._now() > ends:
            del self.values[key], self.ends[key]
            self.freed[key] = (ends / 1000, True)
        return self.values.get(key)

    def hash(self, key: bytes) -> dict[bytes, bytes]:
        """The key's fields; empty where there is no key."""
        value = self.value(key)
        if value is None:
            return {}
        if isinstance(value, bytes):
            raise ResponseError(WRONG_TYPE)
        return value

    def _now(self) -> int:
        return int(self._clock() * 1000)

    def _hexists(self, key: bytes, field: bytes) -> int:
        return int(field in self.hash(key))

    def _hget(self, key: bytes, field: bytes) -> bytes | None:
        return self.hash(key).get(field)

    def _hkeys(self, key: bytes) -> list[bytes]:
        return list(self.hash(key))

    def _hset(self, key: bytes, field: bytes, value: bytes) -> int:
        fields = self.hash(key)
        if not fields:
            if self.on_taken is not None:
                self.on_taken(key)
            self.values[key] = fields
        new = int(field not in fields)
        fields[field] = value
        return new

    def _hincrby(self, key: bytes, field: bytes, by: bytes) -> int:
        number = int(self.hash(key).get(field, b"0")) + int(by)
        self._hset(key, field, b"%d" % number)
        return number

    def _set(self, key: bytes, value: bytes) -> bytes:
        self.values[key] = value
        self.ends.pop(key, None)
        return b"OK"

    def _exists(self, key: bytes) -> int:
        return int(self.value(key) is not None)

    def _del(self, key: bytes) -> int:
        if self.value(key) is None:
            return 0
        del self.values[key]
        self.ends.pop(key, None)
        self.freed[key] = (self._clock(), False)
        return 1

    def _pexpire(self, key: bytes, lease: bytes) -> int:
        if self.value(key) is None:
            return 0
        self.ends[key] = self._now() + int(lease)
        return 1

    def _pttl(self, key: bytes) -> int:
        if self.value(key) is None:
            return -2
        ends = self.ends.get(key)
        return -1 if ends is None else ends - self._now()


class Server:
    """A keyspace behind commands as they stand on the wire. Every error is a reply, as on the wire."""

    def __init__(
        self,
        clock: Callable[[], float],
        publish: Callable[[bytes, bytes], int],
        patches: dict[str, bytes] | None = None,
    ) -> None:
        """`patches` are texts that run instead of a script's own, by its name: bugs to be found."""
        self.keyspace = Keyspace(clock, publish)
        self._patches = patches or {}
        self._loaded: dict[bytes, bytes] = {}
        self._reader = hiredis.Reader()

    def execute(self, payload: bytes) -> Reply:
        """The reply to a command."""
        self._reader.feed(payload)
        name, *args = self._reader.gets()
        try:
            if name == b"EVALSHA":
                return self._evaluate(args[0], args[1:])
            if name == b"EVAL":
                return self._evaluate(_SHA_OF[args[0]], args[1:], load=True)
            return self.keyspace.call(name, *args)
        except RedisError as error:
            return error

    def load_all(self) -> None:
        """As after a time in which every script was used."""
        for sha in _SCRIPT_OF:
            self._load(sha)

    def flush_scripts(self) -> None:
        """As after a restart, or SCRIPT FLUSH."""
        self._loaded.clear()

    def _load(self, sha: bytes) -> None:
        known = _SCRIPT_OF[sha]
        self._loaded[sha] = self._patches.get(known.name, known.text)

    def _evaluate(self, sha: bytes, args: list[bytes], *, load: bool = False) -> Reply:
        if load:
            self._load(sha)
        text = self._loaded.get(sha)
        if text is None:
            raise NoScriptError("NOSCRIPT No matching script. Please use EVAL.")
        function = _compiled.get(text)
        if function is None:
            function = _compiled[text] = _compile(text)
        return _converted(_run(function, self.keyspace.call, int(args[0]), *args[1:]))


_SCRIPTS = [script(name, flags=flags) for name in NAMES for flags in (False, True)]
_SCRIPT_OF = {known.sha: known for known in _SCRIPTS}
_SHA_OF = {known.text: known.sha for known in _SCRIPTS}

_compiled: dict[bytes, Any] = {}
_lua = lua51.LuaRuntime(encoding=None, register_eval=False, register_builtins=False)
_run = _lua.execute(
    b"""
    local call
    redis = {
        call = function(...) return call(...) end,
        pcall = function(...)
            local done, reply = pcall(call, ...)
            if done then return reply end
            return {err = tostring(reply)}
        end,
    }
    return function(script, command, count, ...)
        KEYS, ARGV = {}, {}
        for i = 1, select('#', ...) do
            local argument = select(i, ...)
            if i <= count then KEYS[i] = argument else ARGV[i - count] = argument end
        end
        call = function(...)
            local reply = command(...)
            if reply == nil then return false end
            return reply
        end
        return script()
    end
    """
)


def _compile(text: bytes) -> Any:
    if text.startswith(b"#!lua"):
        text = text.partition(b"\n")[2]
    return _lua.compile(text)


def _converted(result: Any) -> Reply:
    """A script's result as Redis converts it."""
    if result is None or result is False:
        return None
    if result is True:
        return 1
    if isinstance(result, float):
        return int(result)
    if isinstance(result, (int, bytes)):
        return result
    if result[b"err"] is not None:
        return as_error(result[b"err"].decode())
    if result[b"ok"] is not None:
        return result[b"ok"]
    return [_converted(result[i]) for i in range(1, len(result) + 1)]
