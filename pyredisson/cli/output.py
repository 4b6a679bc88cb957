"""What commands say: errors as one line, and names that can't control a terminal."""

from __future__ import annotations

import os
import re
import sys
from typing import NoReturn

import click
from redis.exceptions import AuthenticationError, ConnectionError, NoPermissionError, RedisError, TimeoutError

from pyredisson._backends.failures import NO_TLS
from pyredisson._protocol.error_codes import is_transient_reply
from pyredisson._settings.config import Config
from pyredisson.cli.exit_codes import DEFECT, NO_PERMISSION, UNAVAILABLE
from pyredisson.errors import UnsupportedServerError
from pyredisson.inspection.asking import with_missing_right


def fail(status: int, text: str) -> NoReturn:
    """One line on stderr, `pyredisson: TEXT`; ends the process with that status."""
    say_error(text)
    raise click.exceptions.Exit(status)


def say_error(text: str) -> None:
    """One line on stderr, `pyredisson: TEXT`. Raises nothing if stderr can't be written: the exit status must stay."""
    flush_stdout()
    try:
        click.echo(f"pyredisson: {readable(text)}", err=True)
    except OSError:
        # The reader has gone, the terminal has hung up, or the disk is full. At its end Python would try again to write
        # what it has kept, and change the exit status to 120.
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stderr.fileno())
        os.close(null)


def flush_stdout() -> None:
    """Writes what was printed, so that it comes before what stderr gets, also in a file."""
    # None: the process was started with a closed stdout (`>&-`).
    if sys.stdout is not None:
        sys.stdout.flush()


def debugging() -> bool:
    """Whether the user wants tracebacks."""
    return bool(os.environ.get("PYREDISSON_DEBUG"))


def readable(name: str) -> str:
    """A name for a terminal: what can't be printed is escaped, as a name must not control the terminal."""
    if name.isprintable():
        return name
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in name)


def explained(error: BaseException, config: Config) -> tuple[int, str]:
    """The status and the line for an error of Redis, of the network, or of a setting."""
    server = config.describe()
    if isinstance(error, RedisError):
        error = with_missing_right(error)
    text = str(error)
    if isinstance(error, UnsupportedServerError):
        return UNAVAILABLE, f"{text}; give another --url"
    if isinstance(error, NoPermissionError):
        return (
            NO_PERMISSION,
            f"{_short(text)}; an administrator grants rights by ACL SETUSER",
        )
    if isinstance(error, AuthenticationError):
        if text.startswith("NOAUTH"):
            return NO_PERMISSION, f"{server} wants a password: give it in the URL, or in PYREDISSON_PASSWORD"
        return NO_PERMISSION, f"{server} refuses the user name or the password ({_short(text)})"
    if isinstance(error, TimeoutError):
        doubt = NO_TLS if NO_TLS in text else "is it the right --url?"
        return UNAVAILABLE, f"no reply from {server} within {config.timeout:g} s; {doubt}"
    if isinstance(error, RedisError) and is_transient_reply(error):
        return UNAVAILABLE, f"{server} doesn't serve at the moment ({_short(text)}); try again"
    if isinstance(error, ConnectionError):
        return UNAVAILABLE, f"no server at {server} ({_reason(text)}); say where it is with --url or PYREDISSON_URL"
    if isinstance(error, RedisError):
        return UNAVAILABLE, f"{server} replied with an error: {_short(text)}"
    return DEFECT, text


def _reason(text: str) -> str:
    """What the system says of a connection that can't be made."""
    found = re.search(r"\[Errno -?\d+\] ([^;]+)", text)
    reason = found[1] if found else text
    return reason[:1].lower() + reason[1:]


def _short(text: str) -> str:
    """An error reply without what a line has no room for."""
    return text if len(text) <= 200 else text[:197] + "..."
