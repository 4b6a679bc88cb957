"""A check that gevent has not replaced sockets and threads."""

from __future__ import annotations

import sys

from pyredisson.errors import ConfigError

NEEDED = ("socket", "_thread", "threading")
"""Modules that must be Python's own: calls use the descriptor of a blocking socket, renewals need a real thread."""


def check_not_patched() -> None:
    """Raises `ConfigError` if gevent has replaced one of them: every call would time out."""
    monkey = sys.modules.get("gevent.monkey")
    if monkey is None:
        return
    replaced = [name for name in NEEDED if monkey.is_module_patched(name)]
    if replaced:
        raise ConfigError(
            f"gevent.monkey has replaced these modules: {', '.join(replaced)}. pyredisson needs Python's own."
            " Call monkey.patch_all(socket=False, thread=False), or use the locks in a process without gevent"
        )
