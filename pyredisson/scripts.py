"""The scripts of `lua/`, each with its SHA1 and the constant part of the command that runs it."""

from __future__ import annotations

from hashlib import sha1
from importlib.resources import files


class Script:
    """One file of `lua/`, as one kind of server takes it.

    Servers from 7.0 on get the text with its `#!lua` line, whose flags let a release run when memory is
    out and make a replica answer READONLY; older servers would not compile that line.
    """

    __slots__ = ("name", "sha", "text")

    def __init__(self, name: str, *, flags: bool) -> None:
        text = files("pyredisson.lua").joinpath(f"{name}.lua").read_text("utf-8")
        if not flags:
            shebang, _, text = text.partition("\n")
            if not shebang.startswith("#!lua"):
                raise AssertionError(f"{name}.lua doesn't begin with a #!lua line")
        self.name = name
        self.text = text.encode()
        self.sha = sha1(self.text, usedforsecurity=False).hexdigest().encode()

    def head(self, keys: int, args: int) -> bytes:
        """Everything of the EVALSHA command that stands before its first key."""
        return b"*%d\r\n$7\r\nEVALSHA\r\n$40\r\n%s\r\n$%d\r\n%d\r\n" % (
            3 + keys + args,
            self.sha,
            len(str(keys)),
            keys,
        )


class ScriptSet:
    """What the logic needs of every script: its head or, where the number of keys varies, its digest.

    One object for the life of a client; `use` sets it to the kind of server at hand.
    """

    __slots__ = (
        "flags",
        "lock_acquire",
        "lock_force_release",
        "lock_release",
        "lock_renew",
    )

    def __init__(self) -> None:
        self.use(flags=True)

    def use(self, *, flags: bool) -> None:
        """From now on, scripts as servers take them that know flags, or don't."""
        script = _SCRIPTS[flags]
        self.flags = flags
        self.lock_acquire = script["lock_acquire"].head(1, 3)
        self.lock_release = script["lock_release"].head(1, 3)
        self.lock_force_release = script["lock_force_release"].head(1, 1)
        self.lock_renew = script["lock_renew"].sha


NAMES = ("lock_acquire", "lock_release", "lock_force_release", "lock_renew")
_SCRIPTS = {flags: {name: Script(name, flags=flags) for name in NAMES} for flags in (False, True)}
_NAME_OF = {script.sha: name for scripts in _SCRIPTS.values() for name, script in scripts.items()}
_EVALSHA = b"$7\r\nEVALSHA\r\n$40\r\n"


def as_eval(payload: bytes, *, flags: bool) -> bytes:
    """The same call as an EVAL that carries the text: what a NOSCRIPT is answered with."""
    count, found, rest = payload.partition(_EVALSHA)
    if not found:
        raise ValueError("not an EVALSHA command")
    text = _SCRIPTS[flags][_NAME_OF[rest[:40]]].text
    return b"%s$4\r\nEVAL\r\n$%d\r\n%s%s" % (count, len(text), text, rest[40:])


def script(name: str, *, flags: bool) -> Script:
    """One script, for tests and benchmarks."""
    return _SCRIPTS[flags][name]
