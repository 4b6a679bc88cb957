"""Which errors are transient, so that the same command may succeed later."""

from __future__ import annotations

from ssl import SSLCertVerificationError

from redis.exceptions import ConnectionError, RedisError, TimeoutError

REDIRECTS = frozenset({"MOVED", "ASK"})
"""Codes of a server that names another one, which serves the command. The command was not executed."""
NOT_MASTER = frozenset({"READONLY", "MASTERDOWN", "LOADING"})
"""Codes of a server that isn't the master, or isn't ready to be. A new connection may reach another server."""
TRANSIENT = frozenset({"BUSY", "CLUSTERDOWN", "NOREPLICAS", "TRYAGAIN"}) | NOT_MASTER
"""Codes of error replies whose cause ends without anybody's help. The command was not executed."""


def code_of(error: RedisError) -> str:
    """The first word of an error reply."""
    return str(error).partition(" ")[0]


def is_transient_reply(error: RedisError) -> bool:
    """Whether an error reply is one whose cause ends without anybody's help."""
    return code_of(error) in TRANSIENT


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
