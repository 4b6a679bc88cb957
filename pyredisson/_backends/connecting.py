"""What both backends do when they connect: credentials, and what a failed connection means for its callers."""

import builtins
import ssl
from collections.abc import Sequence

from redis.exceptions import ConnectionError, RedisError, TimeoutError

from pyredisson._core import Unsent
from pyredisson._diagnostics import with_notes
from pyredisson._protocol.node import Node
from pyredisson._protocol.replies import NoReply
from pyredisson._settings.config import Config
from pyredisson.errors import ClosedError

NO_TLS = "no TLS handshake: the server may not use TLS at this port"


def as_redis_error(error: OSError, node: Node, action: str) -> RedisError:
    """The exception that users of redis-py expect for `error`, with the action that failed and the address."""
    if isinstance(error, (BlockingIOError, builtins.TimeoutError)):
        return TimeoutError(with_notes(f"timeout {action} {node.address}", error))
    return ConnectionError(with_notes(f"error {action} {node.address}: {error}", error))


def note_tls(error: BaseException) -> None:
    """Adds a note to an error of a TLS handshake, or of connecting before it, that a server without TLS may cause: it
    waits for the end of what it takes for a command, replies in plain text, or closes the connection."""
    silence = isinstance(error, (builtins.TimeoutError, ConnectionResetError, ConnectionAbortedError, BrokenPipeError))
    if silence or (isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLCertVerificationError)):
        error.add_note(NO_TLS)


def check_in_use(node: Node, *, closed: bool, retired: bool) -> None:
    """Raises an error if the client is closed, or the node is retired: nobody would close a new connection to it."""
    if closed:
        raise ClosedError(f"client {node.client_id} is closed")
    if retired:
        # Stale: another server serves the command now, so it is sent again at once.
        raise NoReply(ConnectionError(f"{node.address} serves nothing any more"), may_have_run=False, stale=True)


def closed_by_server(node: Node) -> ConnectionError:
    return ConnectionError(f"{node.address} closed the connection")


def report_unreachable(error: BaseException, node: Node, began: float) -> None:
    """Reports a connection that could not be made to the node, and raises `NoReply` where another try may succeed, as
    no command was sent yet. Returns after an interrupt, a wrong password and the like, which the caller raises itself.

    The attempt began at `began`, on the clock `time.monotonic`.
    """
    node.on_unreachable(error, began)
    reason = error.args[0] if isinstance(error, Unsent) else error
    if isinstance(reason, ssl.SSLCertVerificationError):
        raise as_redis_error(reason, node, "connecting to") from error
    if isinstance(reason, OSError):
        raise NoReply(as_redis_error(reason, node, "connecting to"), may_have_run=False) from error
    # Not its subclasses: a wrong password is a ConnectionError to redis-py.
    if type(error) is ConnectionError:
        raise NoReply(error, may_have_run=False) from error


def credentials(config: Config) -> Sequence[str]:
    """The arguments of AUTH, as redis-py sends them: an empty text counts as none. A credential provider is called, and
    may block."""
    if config.credential_provider is not None:
        return [str(part) for part in config.credential_provider.get_credentials()]
    if config.username:
        return config.username, config.password or ""
    return (config.password,) if config.password else ()


async def credentials_async(config: Config) -> Sequence[str]:
    """As `credentials`; a credential provider is awaited."""
    if config.credential_provider is not None:
        return [str(part) for part in await config.credential_provider.get_credentials_async()]
    return credentials(config)
