"""What error replies mean for another try of the same command."""

from __future__ import annotations

from ssl import SSLCertVerificationError

from redis.exceptions import ConnectionError, RedisError, TimeoutError

NOT_MASTER = frozenset({"READONLY", "MASTERDOWN", "LOADING"})
"""Replies of a server that isn't the master, or not yet: a new connection may reach another one."""
TRANSIENT = frozenset({"BUSY", "CLUSTERDOWN", "NOREPLICAS", "TRYAGAIN"}) | NOT_MASTER
"""First words of error replies that pass by themselves; the command was not executed."""


def code_of(error: RedisError) -> str:
    return str(error).partition(" ")[0]


def is_transient_reply(error: RedisError) -> bool:
    """Whether an error reply is one that passes by itself."""
    return code_of(error) in TRANSIENT


def is_transient(error: Exception) -> bool:
    """Whether waiting may mend what a call has raised: the server is away, or doesn't serve at this moment."""
    if isinstance(error.__cause__, SSLCertVerificationError):
        return False
    # Not their subclasses: a wrong password is a ConnectionError to redis-py.
    return type(error) in (ConnectionError, TimeoutError) or (
        isinstance(error, RedisError) and is_transient_reply(error)
    )
