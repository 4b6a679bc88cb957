"""A server in memory: keys that expire on a virtual clock, channels, and the real scripts run by Lua."""

from collections.abc import Callable
from hashlib import sha1
from typing import Any

import pytest
from redis.exceptions import NoScriptError, RedisError

from pyredisson._protocol.replies import Reply, as_error
from pyredisson._protocol.scripts import NAMES, script, words_of

from .keys import Keyspace, Status

lua51 = pytest.importorskip("lupa.lua51", reason="lupa has no wheel for this Python; schedules are the same on each")


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

    def execute(self, payload: bytes) -> Reply:
        name, *args = words_of(payload)
        reply = self.run(name, args)
        return bytes(reply) if isinstance(reply, Status) else reply

    def run(self, name: bytes, args: list[bytes]) -> Reply:
        """The same, for a command in its parts; a simple string is a `Status`."""
        try:
            if name == b"EVALSHA":
                return self._evaluate(args[0], args[1:])
            if name == b"EVAL":
                return self._evaluate(self.load(args[0]), args[1:])
            return self.keyspace.call(name, *args)
        except RedisError as error:
            return error

    def load_all(self) -> None:
        """As after a time in which every script was used."""
        for known in _SCRIPTS:
            self.load(known.text)

    def flush_scripts(self) -> None:
        """As after a restart, or SCRIPT FLUSH."""
        self._loaded.clear()

    def knows(self, sha: bytes) -> bool:
        """Whether a script with that hash was loaded."""
        return sha in self._loaded

    def load(self, text: bytes) -> bytes:
        """Makes a script known; returns its hash."""
        known = _SCRIPT_OF.get(text)
        sha = sha1(text, usedforsecurity=False).hexdigest().encode() if known is None else known.sha
        self._loaded[sha] = text if known is None else self._patches.get(known.name, text)
        return sha

    def _evaluate(self, sha: bytes, args: list[bytes]) -> Reply:
        text = self._loaded.get(sha)
        if text is None:
            raise NoScriptError("NOSCRIPT No matching script. Please use EVAL.")
        function = _compiled.get(text)
        if function is None:
            function = _compiled[text] = _compile(text)
        keys, argv = args[1 : int(args[0]) + 1], args[int(args[0]) + 1 :]
        return _converted(_run(function, self._call, self._pcall, lua.table_from(keys), lua.table_from(argv)))

    def _call(self, name: bytes, *args: Any) -> Any:
        """A command in a script; its reply as Redis gives it to Lua."""
        return _to_lua(self.keyspace.call(name, *args))

    def _pcall(self, name: bytes, *args: Any) -> Any:
        """The same; an error is a table with `err` in it."""
        try:
            return self._call(name, *args)
        except RedisError as error:
            return lua.table_from({b"err": str(error).encode()})


_SCRIPTS = [script(name, with_shebang=flags) for name in NAMES for flags in (False, True)]
_SCRIPT_OF = {known.text: known for known in _SCRIPTS}
TEXTS = {known.sha: known.text for known in _SCRIPTS}
"""The scripts by their SHA1."""

_compiled: dict[bytes, Any] = {}
lua = lua51.LuaRuntime(encoding=None, register_eval=False, register_builtins=False)
_run = lua.execute(
    b"""
    redis = {
        error_reply = function(text) return {err = text} end,
        status_reply = function(text) return {ok = text} end,
    }
    return function(script, call, pcall, keys, argv)
        redis.call, redis.pcall, KEYS, ARGV = call, pcall, keys, argv
        return script()
    end
    """
)


def _compile(text: bytes) -> Any:
    if text.startswith(b"#!lua"):
        text = text.partition(b"\n")[2]
    return lua.compile(text)


def _to_lua(reply: Reply) -> Any:
    if reply is None:
        return False
    if isinstance(reply, Status):
        return lua.table_from({b"ok": bytes(reply)})
    if isinstance(reply, list):
        return lua.table_from([_to_lua(item) for item in reply])
    return reply


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
    items: list[Reply] = []
    # A list ends before its first nil.
    while (item := result[len(items) + 1]) is not None:
        items.append(_converted(item))
    return items
