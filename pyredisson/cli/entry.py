"""Starts the command line, or says which extra is missing. Imports nothing that an extra brings."""

import sys

from pyredisson._diagnostics import installation_of
from pyredisson.cli import INTERRUPTED, USAGE

EXTRA_OF = {"click": "cli", "rich": "cli", "starlette": "dashboard", "uvicorn": "dashboard"}
"""Packages that may be missing, and the extra that brings each."""


def main() -> int:
    """Runs the command that `sys.argv` names. Returns the exit status."""
    try:
        # Imported here, as only the extra brings what it needs.
        from pyredisson.cli.main import start

        return start()
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRA_OF:
            raise
        print(
            f"pyredisson: {package} is missing, which this command needs: {installation_of(EXTRA_OF[package])}",
            file=sys.stderr,
        )
        return USAGE
    except KeyboardInterrupt:
        # During the imports.
        return INTERRUPTED
