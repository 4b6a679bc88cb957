"""Replies that are errors: which of them are transient, which name another node, and what a caller gets."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from ssl import SSLCertVerificationError
from typing import TYPE_CHECKING, Any, TypeVar

from redis import exceptions
from redis.exceptions import ConnectionError, RedisError, ResponseError, TimeoutError, TryAgainError

from pyredisson._core import ReplyReader, command

if TYPE_CHECKING:
    from pyredisson._protocol.node import Node


REDIRECTS = frozenset({"MOVED", "ASK"})
"""Codes of a server that names another one, which serves the command. The command was not executed."""
NOT_MASTER = frozenset({"READONLY", "MASTERDOWN", "LOADING"})
"""Codes of a server that isn't the master, or isn't ready to be. A new connection may reach another server."""
TRANSIENT = frozenset({"BUSY", "CLUSTERDOWN", "NOREPLICAS", "TRYAGAIN"}) | NOT_MASTER
"""Codes of error replies whose cause ends without anybody's help. The command was not executed."""


NON_LOCAL_KEY = "access a non local key in a cluster node"
"""In the text of a `NonLocalKeyError`, whose code many errors have. Servers differ in the words around it."""


class NonLocalKeyError(TryAgainError):
    """A script has removed a key in a slot that is being moved, and then used the key again.

    The server looks for such a key at the node to which the slot moves, and ends the script in the middle. What it has
    written by then stays. So the command may have run, unlike after other error replies.
    """


def code_of(error: RedisError) -> str:
    """The first word of an error reply."""
    return str(error).partition(" ")[0]


def is_transient_reply(error: RedisError) -> bool:
    """Whether an error reply is one whose cause ends without anybody's help."""
    return code_of(error) in TRANSIENT or isinstance(error, NonLocalKeyError)


def is_transient(error: Exception) -> bool:
    """Whether a call that raised `error` may succeed later: the server is away, or doesn't serve at this moment."""
    if isinstance(error.__cause__, SSLCertVerificationError):
        return False
    # Not their subclasses: a wrong password is a ConnectionError to redis-py.
    return type(error) in (ConnectionError, TimeoutError) or (
        isinstance(error, RedisError) and is_transient_reply(error)
    )


def number_in(reply: Any) -> int | None:
    """The number that a key has, by the reply to GET. None: there is no such key. Raises what a script would raise if
    it is something else."""
    try:
        return None if reply is None else int(reply)
    except ValueError:
        raise ResponseError("ERR value is not an integer or out of range") from None


E = TypeVar("E", bound=BaseException)


def copy_error(error: E) -> E:
    """A copy to raise: the same type, arguments, attributes, notes, cause and traceback so far.

    An exception that is raised adds to its own traceback: raised by a thousand tasks, one object would end up with the
    frames of all of them. An exception that can't be copied is returned as it is.
    """
    makers: tuple[Callable[[E], E], ...] = (_copy_without_init, copy.copy)
    for make in makers:
        try:
            twin = make(error)
            alike = type(twin) is type(error) and twin.args == error.args and str(twin) == str(error)
        except Exception:  # noqa: BLE001 - the constructor of a foreign class may raise anything
            continue
        if alike and twin is not error:
            twin.__cause__ = error.__cause__
            twin.__context__ = error.__context__
            twin.__suppress_context__ = error.__suppress_context__
            if hasattr(error, "__notes__"):
                twin.__notes__ = list(error.__notes__)
            return twin.with_traceback(error.__traceback__)
    return error


def _copy_without_init(error: E) -> E:
    # A constructor may need other arguments than it passed to `Exception`, or may change them a second time. Where C
    # code keeps more than `args` (OSError, UnicodeError), the twin has another text, and the caller rejects it.
    twin: E = type(error).__new__(type(error), *error.args)
    twin.__dict__.update(error.__dict__)
    return twin


Reply = Any

Answer = tuple[Reply, bytes | None]
"""A reply, and the identity of the server's process that has sent it (None: unknown)."""

Answers = tuple[list[Reply], bytes | None]
"""As `Answer`, for commands that were sent in one write on one connection. Error replies are in the list."""


class NoReply(Exception):
    """A command got no reply: the connection failed, or the reply didn't come before the timeout.

    Users never see it. The logic (`logic.retry`) sends the command again, or raises `error`.
    """

    def __init__(
        self, error: RedisError, *, may_have_run: bool, stale: bool = False, server_id: bytes | None = None
    ) -> None:
        super().__init__(error)
        self.error = error
        self.may_have_run = may_have_run
        """Whether the server may have executed the command, or may still execute it."""
        self.stale = stale
        """The server had closed the connection before the command was sent: another one may serve at once."""
        self.server_id = server_id
        """The identity of the server to which the command was sent. None: unknown."""

    def copy(self) -> NoReply:
        """The same failure for another caller: each caller raises an `error` object of its own."""
        other = NoReply(
            copy_error(self.error), may_have_run=self.may_have_run, stale=self.stale, server_id=self.server_id
        )
        other.__cause__ = self.__cause__
        return other


ASKING = command(b"ASKING")
"""Has the server execute the next command of the connection, although the command's slot is still being moved to it."""


class Redirected(ResponseError):
    """MOVED: another node serves the slot. ASK: another node has this command's keys, as their slot is being moved.

    The command has not run. Who replied is set by the connection that received the reply.
    """

    asked: Node | None = None
    """The node that replied, and the identity of its process. A redirect without a host means the same host."""
    server_id: bytes | None = None

    @property
    def is_ask(self) -> bool:
        """Whether the redirect is for this command only, and the node still serves the slot."""
        return str(self).startswith("ASK ")


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


def info_fields(reply: Reply) -> dict[bytes, bytes]:
    """The fields of a reply to INFO or CLUSTER INFO. An error reply has none: a user may have no right to ask."""
    return dict(re.findall(rb"(?m)^(\w+):([^\r\n]*)", reply)) if isinstance(reply, bytes) else {}


def pairs(flat: Sequence[Any]) -> dict[Any, Any]:
    """A reply that has names and values in turn."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


def reader() -> ReplyReader:
    """A reply parser whose error replies are `RedisError` objects."""
    return ReplyReader(as_error, exceptions.InvalidResponse)
