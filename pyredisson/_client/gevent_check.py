"""Refusing to work on what gevent has put in the place of sockets and threads."""

from __future__ import annotations

import sys

from pyredisson.errors import ConfigError

NEEDED = ("socket", "_thread", "threading")
"""What must be Python's own: calls use the descriptor of a blocking socket, renewals a thread that always runs."""


def check_not_patched() -> None:
    """Raises `ConfigError` where gevent has replaced them: every call would end in a timeout."""
    monkey = sys.modules.get("gevent.monkey")
    if monkey is None:
        return
    replaced = [name for name in NEEDED if monkey.is_module_patched(name)]
    if replaced:
        raise ConfigError(
            f"gevent.monkey has replaced these modules: {', '.join(replaced)}. pyredisson needs Python's own."
            " Call monkey.patch_all(socket=False, thread=False), or use the locks in a process without gevent"
        )
