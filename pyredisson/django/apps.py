"""The application for `INSTALLED_APPS`, and its system checks of the setting `LOCKS`."""

import dataclasses
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register

from pyredisson._settings.config import Config
from pyredisson.django import arguments_of

KEYS = {"URL", *(field.name.upper() for field in dataclasses.fields(Config))}


class LocksConfig(AppConfig):
    name = "pyredisson.django"
    label = "pyredisson"
    verbose_name = "pyredisson"

    def ready(self) -> None:
        register(check_locks)


def check_locks(app_configs: object, **options: object) -> list[CheckMessage]:
    """Finds unknown keys and values that can't be used. It connects to no server."""
    entries: Any = getattr(settings, "LOCKS", {})
    if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()):
        return [Error("LOCKS must be a dict of dicts", id="pyredisson.E001")]
    found: list[CheckMessage] = []
    for alias, entry in entries.items():
        if unknown := sorted(set(entry) - KEYS):
            text = f"LOCKS[{alias!r}] has unknown keys: {', '.join(map(str, unknown))}"
            hint = "The keys are URL and the fields of Config in capitals."
            found.append(Error(text, hint=hint, id="pyredisson.E002"))
            continue
        address, fields = arguments_of(entry)
        try:
            Config.of(address, **fields)
        except (TypeError, ValueError) as error:
            found.append(Error(f"LOCKS[{alias!r}]: {error}", id="pyredisson.E003"))
    if "default" not in entries:
        found.append(Warning("LOCKS has no entry 'default'", hint="client() uses it.", id="pyredisson.W001"))
    return found
