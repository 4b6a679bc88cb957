"""`pyredisson doctor`: whether a server does what locks need, and what to do where it doesn't."""

from __future__ import annotations

import click

from pyredisson.cli.checks import Checks
from pyredisson.cli.exit_codes import INCOMPLETE
from pyredisson.cli.findings import Finding, Level
from pyredisson.cli.options import Settings, common
from pyredisson.cli.output import readable
from pyredisson.cli.reading import reader
from pyredisson.cli.words import as_json

COLORS = {Level.OK: "green", Level.NOTE: "cyan", Level.WARNING: "yellow", Level.ERROR: "red"}


@click.command(
    epilog="""\b
Examples:
  pyredisson doctor
  pyredisson doctor --name orders --url redis://app@redis-1
  pyredisson doctor --json | jq 'select(.level != "ok")'

It acquires and releases locks whose names begin with --name, which it deletes, and looks at all keys for at most 30 s.
The exit status is 1 if there is an error."""
)
@click.option("--name", metavar="PREFIX", default="pyredisson:doctor", help="How the names begin that it tries.")
@click.option("--json", "as_lines", is_flag=True, help="One JSON object a line.")
@common
def doctor(settings: Settings, name: str, as_lines: bool) -> int:
    """Check the servers: version, rights, eviction, replicas, clocks, messages, round trip, keys that leak."""
    worst = Level.OK
    order = list(Level)
    with reader(settings.config) as reading:
        checks = Checks(settings.config, reading, name)
        several = len(checks.masters) > 1
        for finding in checks.all():
            worst = max(worst, finding.level, key=order.index)
            if as_lines:
                click.echo(as_json(finding))
            else:
                _print(finding, several=several, color=settings.color)
    return INCOMPLETE if worst is Level.ERROR else 0


def _print(finding: Finding, *, several: bool, color: bool) -> None:
    level = click.style(f"{finding.level:8}", fg=COLORS[finding.level])
    where = f"{finding.server}: " if several and finding.server else ""
    click.echo(f"{level} {finding.check:12} {where}{readable(finding.text)}", color=None if color else False)
    if finding.advice:
        click.echo(f"{'':21} -> {readable(finding.advice)}")
