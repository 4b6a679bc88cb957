"""`manage.py run_locked NAME -- COMMAND`: another management command, of which one instance runs over all machines."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser
from redis.exceptions import ConnectionError, TimeoutError

from pyredisson._api.sync.locks import Lock
from pyredisson._client.process import release_on_signals
from pyredisson._diagnostics import readable
from pyredisson.django import client
from pyredisson.errors import LockLostError, LockTimeoutError

UNAVAILABLE = 69
LOST = 74
NOT_ACQUIRED = 75
"""The statuses of `pyredisson run`."""


class Command(BaseCommand):
    help = "Runs another management command while it holds a lock: one instance at a time over all machines."

    def add_arguments(self, parser: CommandParser) -> None:
        seconds: dict[str, Any] = {"type": float, "metavar": "SECONDS"}
        parser.add_argument("name", help="the name of the lock")
        parser.add_argument("--wait", **seconds, help="how long to wait for it (default: no limit)")
        parser.add_argument("--no-wait", action="store_const", const=0.0, dest="wait", help="don't wait")
        parser.add_argument("--at-least", **seconds, default=0.0, help="keep it locked for at least so long")
        parser.add_argument("--at-most", **seconds, help="the lock is lost after so long, also if the command hangs")
        parser.add_argument("--locks", default="default", metavar="ALIAS", help="the entry of the setting LOCKS")
        parser.add_argument("command", nargs="+", metavar="-- COMMAND", help="the command and its arguments")

    def run_from_argv(self, argv: list[str]) -> None:
        # Only as a program of its own: `call_command` must not change how the caller's process handles signals.
        release_on_signals()
        super().run_from_argv(argv)

    def handle(self, *args: Any, **options: Any) -> None:
        name, command = options["name"], options["command"]
        times = options["wait"], options["at_least"], options["at_most"]
        try:
            locks = client(options["locks"])
            single = locks.singleton(name, *times)
        except (ValueError, ImproperlyConfigured) as error:
            raise CommandError(str(error)) from error
        lock: Lock | None = None
        try:
            with ExitStack() as stack:
                try:
                    # A server that is away is an error at once. From now on an outage is survived.
                    locks.get_lock(name).is_locked()
                    lock = stack.enter_context(single)
                except LockTimeoutError as error:
                    raise CommandError(str(error), returncode=NOT_ACQUIRED) from error
                except (ConnectionError, TimeoutError) as error:
                    raise CommandError(f"the server of the locks: {error}", returncode=UNAVAILABLE) from error
                call_command(command[0], *command[1:])
        except LockLostError as error:
            # The error has the name on the server, after `name_mapper`.
            if lock is None or error.name != readable(lock._logic.key):
                raise
            raise CommandError(str(error), returncode=LOST) from error
