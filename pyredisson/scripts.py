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
    """Every script's head (and, where the number of keys varies, the script), for one kind of server."""

    def __init__(self, *, flags: bool) -> None:
        acquire = Script("lock_acquire", flags=flags)
        release = Script("lock_release", flags=flags)
        force_release = Script("lock_force_release", flags=flags)
        self.lock_renew = Script("lock_renew", flags=flags)
        self.lock_acquire = acquire.head(1, 3)
        self.lock_release = release.head(2, 2)
        self.lock_force_release = force_release.head(2, 0)
        self.all = (acquire, release, force_release, self.lock_renew)


PLAIN = ScriptSet(flags=False)
FLAGGED = ScriptSet(flags=True)

_NAME_OF = {
    script.sha: script.name for scripts in (PLAIN, FLAGGED) for script in scripts.all
}
_TEXT_OF = {
    flags: {script.name: script.text for script in scripts.all}
    for flags, scripts in ((False, PLAIN), (True, FLAGGED))
}
_EVALSHA = b"$7\r\nEVALSHA\r\n$40\r\n"


def as_eval(payload: bytes, *, flags: bool) -> bytes:
    """The same call as an EVAL that carries the text: what a NOSCRIPT is answered with."""
    count, found, rest = payload.partition(_EVALSHA)
    if not found:
        raise ValueError("not an EVALSHA command")
    text = _TEXT_OF[flags][_NAME_OF[rest[:40]]]
    return b"%s$4\r\nEVAL\r\n$%d\r\n%s%s" % (count, len(text), text, rest[40:])
