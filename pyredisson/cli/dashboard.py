"""`pyredisson dashboard`: a page in the browser that shows all locks live."""

import asyncio
import logging
from typing import Any

import click
from redis.exceptions import RedisError

from pyredisson.cli import UNAVAILABLE
from pyredisson.cli.options import Seconds, Settings, common, explained, fail, say_error
from pyredisson.cli.reading import reader
from pyredisson.dashboard.app import serve
from pyredisson.errors import UnsupportedServerError

SHORTEST_TOKEN = 8


@click.command()
@click.option(
    "--host", metavar="ADDRESS", default="127.0.0.1", show_default=True, help="Where to listen; 0.0.0.0 is everywhere."
)
@click.option(
    "--port", metavar="PORT", default=8787, show_default=True, type=click.IntRange(0, 65535), help="0 is any free one."
)
@click.option(
    "--token",
    metavar="TOKEN",
    envvar="PYREDISSON_DASHBOARD_TOKEN",
    help="What a browser must know. Made and printed if others than this machine can ask.  "
    "[env: PYREDISSON_DASHBOARD_TOKEN]",
)
@click.option("--allow-host", "allowed_hosts", metavar="NAME", multiple=True, help="A further name to serve under.")
@click.option("--allow-unlock", is_flag=True, help="Let the page release holds by force, after a confirmation.")
@click.option(
    "--interval", metavar="SECONDS", default=1.0, show_default=True, type=Seconds(0.1, 60), help="Between two readings."
)
@common
def dashboard(settings: Settings, token: str | None, **options: Any) -> None:
    """Show all locks live, on a page in the browser.

    The page shows who holds each lock and since when, its queue in order, semaphores, latches, clients, and charts of
    the last minutes. Only programs on this machine can ask for it, unless you say otherwise with --host.

    \b
    Examples:
      pyredisson dashboard --url redis://redis-1:6379/0
      pyredisson dashboard --host 0.0.0.0 --allow-host locks.example.com
    """
    if token is not None and len(token) < SHORTEST_TOKEN:
        raise click.UsageError(f"--token must have {SHORTEST_TOKEN} characters at least")
    if token is not None and not (token.isascii() and token.isprintable() and token == token.strip()):
        # It is sent in a header.
        raise click.UsageError("--token must be of ASCII characters, without a space at its ends")
    # Each release by force is written to stderr.
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.getLogger("pyredisson.dashboard").addHandler(handler)
    try:
        with reader(settings.config):
            pass
    except RedisError as error:
        status, text = explained(error, settings.config)
        if status != UNAVAILABLE or isinstance(error, UnsupportedServerError):
            # Waiting can't mend it.
            raise
        say_error(f"{text}; the dashboard starts all the same, and tries again")

    def ready(url: str) -> None:
        click.echo(f"The dashboard of {settings.config.describe()} is at {url}\nCtrl-C stops it.")

    try:
        asyncio.run(serve(settings.config, ready, token=token, **options))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        where = f"{options['host']}, port {options['port']}"
        fail(UNAVAILABLE, f"can't listen at {where} ({reason}); give another --host or --port")
