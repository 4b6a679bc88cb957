"""Fixtures of the tests of the proxy."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from pyredisson.testing import Proxy
from tests.support.bare_connection import BareConnection, Dial


@pytest.fixture
def dial(proxy: Proxy) -> Iterator[Dial]:
    """Opens connections through the proxy; they are closed after the test."""
    with contextlib.ExitStack() as stack:

        def connect() -> BareConnection:
            connection = BareConnection(proxy)
            stack.callback(connection.socket.close)
            return connection

        yield connect
