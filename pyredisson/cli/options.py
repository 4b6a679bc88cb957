"""The options that every command has: which server, for how long it is waited for, and colours."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import click
from redis.exceptions import RedisError

from pyredisson._settings.config import Config
from pyredisson.cli.output import debugging, explained, fail
from pyredisson.errors import ConfigError

DEFAULT_TIMEOUT = 3.0
"""Seconds to connect, and to wait for a reply."""
LONGEST_TIMEOUT = 3600

C = TypeVar("C", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--url", metavar="URL", help="The server: redis://, redis+cluster://, redis+sentinel://, unix://..."),
    click.option(
        "--config", metavar="FILE", type=click.Path(exists=True, dir_okay=False), help="Redisson's YAML file, instead."
    ),
    click.option(
        "--timeout",
        metavar="SECONDS",
        type=float,
        help=f"To connect, and for a reply.  [default: {DEFAULT_TIMEOUT:g}]",
    ),
    click.option("--no-color", is_flag=True, default=None, help="No colors, as with the variable NO_COLOR."),
)
_NAMES = ("url", "config", "timeout", "no_color")


class Seconds(click.FloatRange):
    """A time in seconds. Not NaN, which no bound excludes."""

    name = "number of seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a time", param, ctx)
        return number


class Settings(NamedTuple):
    """What the common options say."""

    config: Config
    """Checked, with the timeouts of the command line, and with the connection's default name."""
    color: bool
    """Whether the user allows colours. Whether the output is a terminal is another question."""


def address_options(command: C) -> C:
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
    return _settings(**{name: before.get(name) if behind.get(name) is None else behind[name] for name in _NAMES})


def _settings(url: str | None, config: str | None, timeout: float | None, no_color: bool | None) -> Settings:
    """Raises `click.UsageError`."""
    timeout = DEFAULT_TIMEOUT if timeout is None else timeout
    if not 0.001 <= timeout <= LONGEST_TIMEOUT:
        raise click.UsageError(f"--timeout must be from 0.001 to {LONGEST_TIMEOUT} seconds")
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
