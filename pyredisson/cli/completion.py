"""`pyredisson completion`: the script by which a shell completes commands, options and names."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

VARIABLE = "_PYREDISSON_COMPLETE"
"""By this variable the script asks what there is to complete. click derives it from the name of the program."""


@click.command(
    epilog="""\b
Examples:
  pyredisson completion bash >> ~/.bash_completion
  eval "$(pyredisson completion zsh)"
  pyredisson completion fish > ~/.config/fish/completions/pyredisson.fish
"""
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print what a shell needs to complete commands, options and names of locks."""
    kind = get_completion_class(shell)
    assert kind is not None, "click knows these shells"
    group = click.get_current_context().find_root().command
    # Without a look at the shell itself: the script may be meant for another machine.
    script = kind(group, {}, "pyredisson", VARIABLE)
    click.echo(script.source_template % script.source_vars())
