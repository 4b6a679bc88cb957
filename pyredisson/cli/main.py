"""The group of all subcommands, and what its errors say."""

import difflib
import importlib
import io
import logging
import os
import sys

import click

from pyredisson.cli import DEFECT, INTERRUPTED, USAGE
from pyredisson.cli.options import address_options, debugging, flush_stdout, say_error
from pyredisson.version import VERSION

COMMANDS = {
    "run": ("run", "Run a command while holding a lock."),
    "ls": ("ls", "List what is held: name, kind, holder, since when, TTL, waiters."),
    "inspect": ("ls", "Show all of one object: holders, queue, permits, token, its keys."),
    "watch": ("watch", "Show what is held, live, like 'top'."),
    "unlock": ("unlock", "Release a lock in the place of its holder."),
    "rm": ("unlock", "Remove what is left of locks that nobody uses: counters of tokens, dead queues."),
    "permits": ("unlock", "Show how many permits of a semaphore are free, and set that number."),
    "doctor": ("doctor", "Check the servers: version, rights, eviction, clocks, messages, leaks."),
    "bench": ("bench", "Measure pairs of lock and unlock a second, against your own server."),
    "dashboard": ("dashboard", "Show all locks live, on a page in the browser."),
    "completion": ("reading", "Print what a shell needs to complete commands and names."),
}
"""All subcommands in the order of the help: the module of each in this package, where it has its name, and its help."""


class LazyGroup(click.Group):
    """Imports a subcommand only if it is called: what one of them needs may be missing, or slow to import."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(f"pyredisson.cli.{module}"), cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not ctx.resilient_parsing and not name.startswith("-"):
            similar = difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0.5)
            hint = f"did you mean '{similar[0]}'?" if similar else f"there are: {', '.join(COMMANDS)}"
            raise click.UsageError(f"no such command '{name}'; {hint}", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        result = super().invoke(ctx)
        # In here, where click ends the program in silence if the reader has gone, as in `pyredisson ls | head`.
        flush_stdout()
        return result

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Without --url and PYREDISSON_URL the server is redis://localhost:6379/0. PYREDISSON_PASSWORD is the "
    "password if the URL has none.",
)
@address_options
@click.version_option(VERSION, message="pyredisson %(version)s")
@click.pass_context
def group(context: click.Context, /, **_: object) -> None:
    """Locks, semaphores and latches on a Redis or Valkey server, as pyredisson and Java's Redisson keep them."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def start(arguments: list[str] | None = None) -> int:
    """Runs a command and returns the exit status. Every error becomes one line, unless PYREDISSON_DEBUG is set."""
    # What goes wrong is said by the commands. The library's warnings would come in between.
    logging.getLogger("pyredisson").addHandler(logging.NullHandler())
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            # It was closed before the start, as by `2>&-`.
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A name may have characters that the terminal's encoding has not.
            stream.reconfigure(errors="backslashreplace")
    try:
        status = group.main(arguments, prog_name="pyredisson", standalone_mode=False)
        return status if isinstance(status, int) else 0
    except click.ClickException as error:
        # One line, as for every error.
        text = " ".join(error.format_message().split()).rstrip(".")
        context = getattr(error, "ctx", None)
        see = "" if context is None else f"; see '{context.command_path} --help'"
        say_error(f"{text[:1].lower()}{text[1:]}{see}")
        return USAGE
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except Exception as error:
        # An extra may be missing, which `entry` says.
        if debugging() or isinstance(error, ModuleNotFoundError):
            raise
        say_error(f"unexpected error: {type(error).__name__}: {error}; PYREDISSON_DEBUG=1 shows the traceback")
        return DEFECT
