"""The application for `INSTALLED_APPS`."""

from __future__ import annotations

from django.apps import AppConfig
from django.core import checks


class LocksConfig(AppConfig):
    name = "pyredisson.django"
    label = "pyredisson"
    verbose_name = "pyredisson"

    def ready(self) -> None:
        from pyredisson.django.checks import check_locks

        checks.register(check_locks)
