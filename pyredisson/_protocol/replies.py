"""Redis's error replies as the exceptions that redis-py's users know."""

from __future__ import annotations

from typing import Any

import hiredis
from redis import exceptions

from pyredisson._protocol.error_codes import NON_LOCAL_KEY, NonLocalKeyError
from pyredisson._protocol.redirects import Redirected

_BY_CODE: dict[str, type[exceptions.RedisError]] = {
    "ASK": Redirected,
    "CLUSTERDOWN": exceptions.ClusterDownError,
    "CROSSSLOT": exceptions.ClusterCrossSlotError,
    "LOADING": exceptions.BusyLoadingError,
    "MASTERDOWN": exceptions.MasterDownError,
    "MOVED": Redirected,
    "NOAUTH": exceptions.AuthenticationError,
    "NOPERM": exceptions.NoPermissionError,
    "NOSCRIPT": exceptions.NoScriptError,
    "OOM": exceptions.OutOfMemoryError,
    "READONLY": exceptions.ReadOnlyError,
    "TRYAGAIN": exceptions.TryAgainError,
    "WRONGPASS": exceptions.AuthenticationError,
}
_BY_TEXT: dict[str, type[exceptions.RedisError]] = {
    "ERR max number of clients reached": exceptions.ConnectionError,
    "ERR invalid password": exceptions.AuthenticationError,
    "ERR AUTH <password> called without any password configured for the default user."
    " Are you sure your configuration is correct?": exceptions.AuthenticationError,
}


def as_error(text: str) -> exceptions.RedisError:
    """The exception for an error reply, which is its message."""
    if text.startswith("ERR Error running script"):
        # Servers before 7.0 wrap the error of a command inside a script. READONLY must be recognized as such.
        text = text.partition(": -")[2] or text
    code = text.partition(" ")[0]
    kind = _BY_CODE.get(code) or _BY_TEXT.get(text) or exceptions.ResponseError
    if kind is exceptions.ResponseError and NON_LOCAL_KEY in text:
        kind = NonLocalKeyError
    return kind(text)


def public(error: exceptions.RedisError) -> exceptions.RedisError:
    """The same error for a user: of a class that a user knows. This library tells some errors apart by private ones."""
    for private, known in ((Redirected, exceptions.ResponseError), (NonLocalKeyError, exceptions.TryAgainError)):
        if type(error) is private:
            shown = known(*error.args)
            shown.__cause__ = error.__cause__
            return shown.with_traceback(error.__traceback__)
    return error


def reader() -> Any:
    """A reply parser whose error replies are `RedisError` objects; `False` means "not complete yet"."""
    return hiredis.Reader(replyError=as_error, protocolError=exceptions.InvalidResponse)
