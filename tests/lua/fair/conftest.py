"""The scripts of the fair lock instead of those of `tests/lua`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pyredisson.testing import Server

from .scripts import Fair


@pytest.fixture
def scripts(server: Server, admin: Any) -> Iterator[Fair]:
    found = Fair(server, admin)
    yield found
    found.listening.close()
