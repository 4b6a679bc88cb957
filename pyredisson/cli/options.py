"""What all commands have in common: options such as the address of the server, and how they say what is wrong."""

import functools
import math
import os
import re
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import click
from redis.exceptions import AuthenticationError, ConnectionError, NoPermissionError, RedisError, TimeoutError

from pyredisson._backends.connecting import NO_TLS
from pyredisson._diagnostics import printable
from pyredisson._protocol.replies import is_transient_reply
from pyredisson._settings.config import Config
from pyredisson.cli import DEFECT, NO_PERMISSION, UNAVAILABLE
from pyredisson.errors import ConfigError, UnsupportedServerError
from pyredisson.inspection.announcements import with_missing_right

DEFAULT_TIMEOUT = 3.0
"""Seconds to connect, and to wait for a reply."""


class Seconds(click.FloatRange):
    """A time in seconds. Not NaN, which no bound excludes."""

    name = "number of seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a time", param, ctx)
        return number


_OPTIONS = (
    click.option("--url", metavar="URL", help="The server: redis://, redis+cluster://, redis+sentinel://, unix://..."),
    click.option(
        "--config", metavar="FILE", type=click.Path(exists=True, dir_okay=False), help="Redisson's YAML file, instead."
    ),
    click.option(
        "--timeout",
        metavar="SECONDS",
        type=Seconds(0.001, 3600),
        help=f"To connect, and for a reply.  [default: {DEFAULT_TIMEOUT:g}]",
    ),
    click.option("--no-color", is_flag=True, default=None, help="No colors, as with the variable NO_COLOR."),
)
_NAMES = ("url", "config", "timeout", "no_color")


class Settings(NamedTuple):
    config: Config
    """Checked, with the timeouts of the command line, and with the connection's default name."""
    color: bool
    """Whether the user allows colours. Whether the output is a terminal is another question."""


def address_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the common options. Without their meaning: the group has them as well, for all of its commands."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def common(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the common options. The command gets `settings`, and its errors become one line with what to do."""

    @functools.wraps(command)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        settings = settings_of(click.get_current_context())
        for name in _NAMES:
            del kwargs[name]
        try:
            return command(*args, settings=settings, **kwargs)
        except (RedisError, ConfigError) as error:
            if debugging():
                raise
            fail(*explained(error, settings.config))

    return address_options(wrapper)


def settings_of(context: click.Context) -> Settings:
    """What the common options say. Those behind the subcommand count more. Raises `click.UsageError`."""
    before, behind = context.find_root().params, context.params
    url, config, timeout, no_color = (before.get(name) if behind.get(name) is None else behind[name] for name in _NAMES)
    timeout = DEFAULT_TIMEOUT if timeout is None else timeout
    fields: dict[str, Any] = {"timeout": timeout, "connect_timeout": timeout, "client_name": None}
    if config is not None and url is not None:
        raise click.UsageError("--url and --config each name a server: give one of them")
    try:
        if config is not None:
            made = Config.from_yaml(config, **fields)
        else:
            made = Config.of(url or os.environ.get("PYREDISSON_URL") or None, **fields)
        password = os.environ.get("PYREDISSON_PASSWORD")
        if password and made.password is None and made.credential_provider is None:
            made = Config.of(made, password=password)
    except (ConfigError, OSError) as error:
        raise click.UsageError(str(error)) from error
    return Settings(made, not no_color and not os.environ.get("NO_COLOR"))


# --- What they say


def fail(status: int, text: str) -> NoReturn:
    """One line on stderr, `pyredisson: TEXT`; ends the process with that status."""
    say_error(text)
    raise click.exceptions.Exit(status)


def say_error(text: str) -> None:
    """One line on stderr, `pyredisson: TEXT`. Raises nothing if stderr can't be written: the exit status must stay."""
    flush_stdout()
    try:
        click.echo(f"pyredisson: {printable(text)}", err=True)
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
    return bool(os.environ.get("PYREDISSON_DEBUG"))


def explained(error: BaseException, config: Config) -> tuple[int, str]:
    """The status and the line for an error of Redis, of the network, or of a setting."""
    server = config.describe()
    if isinstance(error, RedisError):
        error = with_missing_right(error)
    text = str(error)
    # An error reply without what a line has no room for.
    short = text if len(text) <= 200 else text[:197] + "..."
    if isinstance(error, UnsupportedServerError):
        return UNAVAILABLE, f"{text}; give another --url"
    if isinstance(error, NoPermissionError):
        return NO_PERMISSION, f"{short}; an administrator grants rights by ACL SETUSER"
    if isinstance(error, AuthenticationError):
        if text.startswith("NOAUTH"):
            return NO_PERMISSION, f"{server} wants a password: give it in the URL, or in PYREDISSON_PASSWORD"
        return NO_PERMISSION, f"{server} refuses the user name or the password ({short})"
    if isinstance(error, TimeoutError):
        doubt = NO_TLS if NO_TLS in text else "is it the right --url?"
        return UNAVAILABLE, f"no reply from {server} within {config.timeout:g} s; {doubt}"
    if isinstance(error, RedisError) and is_transient_reply(error):
        return UNAVAILABLE, f"{server} doesn't serve at the moment ({short}); try again"
    if isinstance(error, ConnectionError):
        # What the system says of it.
        found = re.search(r"\[Errno -?\d+\] ([^;]+)", text)
        reason = found[1] if found else text
        reason = reason[:1].lower() + reason[1:]
        return UNAVAILABLE, f"no server at {server} ({reason}); say where it is with --url or PYREDISSON_URL"
    if isinstance(error, RedisError):
        return UNAVAILABLE, f"{server} replied with an error: {short}"
    return DEFECT, text
