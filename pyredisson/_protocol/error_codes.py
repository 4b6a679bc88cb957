"""Which errors are transient, so that the same command may succeed later."""

from __future__ import annotations

from ssl import SSLCertVerificationError

from redis.exceptions import ConnectionError, RedisError, TimeoutError, TryAgainError

REDIRECTS = frozenset({"MOVED", "ASK"})
"""Codes of a server that names another one, which serves the command. The command was not executed."""
NOT_MASTER = frozenset({"READONLY", "MASTERDOWN", "LOADING"})
"""Codes of a server that isn't the master, or isn't ready to be. A new connection may reach another server."""
TRANSIENT = frozenset({"BUSY", "CLUSTERDOWN", "NOREPLICAS", "TRYAGAIN"}) | NOT_MASTER
"""Codes of error replies whose cause ends without anybody's help. The command was not executed; `NonLocalKeyError` is
another such error, after which it may have been."""


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


def is_not_master(error: RedisError) -> bool:
    """Whether an error reply came from a server that isn't the master, or isn't ready to be."""
    return code_of(error) in NOT_MASTER
