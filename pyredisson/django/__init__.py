"""Django: clients from the setting `LOCKS`, system checks, and the management command `run_locked`.

`INSTALLED_APPS` gets `"pyredisson.django"`; `client()` works without it, too.
"""

from typing import Any

from pyredisson._api.sync.client import Client, connect
from pyredisson._diagnostics import naming_extra

with naming_extra("pyredisson.django", "django"):
    from django.conf import settings
    from django.core.exceptions import ImproperlyConfigured
    from django.core.signals import setting_changed

__all__ = ["client"]

_clients: dict[str, Client] = {}


def client(alias: str = "default") -> Client:
    """The client for threads of that entry of `LOCKS`: one for each process, made at the first call.

    It connects when a lock is first used, and works in each process of a server that forks. `ImproperlyConfigured`:
    there is no such entry, or it can't be used.
    """
    found = _clients.get(alias)
    if found is None:
        configured: dict[str, dict[str, Any]] = getattr(settings, "LOCKS", {})
        if alias not in configured:
            raise ImproperlyConfigured(f"the setting LOCKS has no entry {alias!r}")
        if not isinstance(configured[alias], dict):
            raise ImproperlyConfigured(f"LOCKS[{alias!r}] must be a dict, as {{'URL': 'redis://...'}}")
        address, fields = arguments_of(configured[alias])
        try:
            # Two threads that are here at the same time get the same client. The other one has never connected.
            found = _clients.setdefault(alias, connect(address, **fields))
        except (TypeError, ValueError) as error:
            raise ImproperlyConfigured(f"LOCKS[{alias!r}]: {error}") from error
    return found


def arguments_of(entry: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The arguments of `connect` for an entry of `LOCKS`: `URL`, and fields of `Config` in capitals."""
    fields = {key.lower(): value for key, value in entry.items() if key != "URL"}
    return entry.get("URL"), fields


def _on_setting_changed(*, setting: str, **_: object) -> None:
    """A test has changed the settings: its clients are other ones."""
    if setting == "LOCKS":
        while _clients:
            _clients.popitem()[1].close()


setting_changed.connect(_on_setting_changed)
