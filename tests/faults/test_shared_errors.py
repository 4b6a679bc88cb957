"""One error that reaches many callers: each caller raises an exception object of its own."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import AuthenticationError, ConnectionError, NoPermissionError

from pyredisson._protocol.error_copies import copy_error
from pyredisson.testing import Proxy, Server
from tests.support.faults import ACQUIRE
from tests.support.raw_backends import RawBackend

DEEPEST = 40
"""Frames of a traceback, its causes not counted."""


async def errors_of(
    backend: RawBackend, call: Callable[[int], Coroutine[Any, Any, Any]], number: int
) -> list[BaseException]:
    """What so many owners at the same time get, all of them an error."""

    async def one(i: int) -> BaseException:
        try:
            await call(i)
        except Exception as error:  # noqa: BLE001 - it is what the test looks at
            return error
        raise AssertionError("it succeeded")

    outcomes = [backend.start(lambda i=i: one(i)) for i in range(number)]  # type: ignore[misc]
    return [await outcome.result(30) for outcome in outcomes]


def check(errors: list[BaseException], kind: type[Exception]) -> None:
    assert {type(error) for error in errors} == {kind}
    assert len({id(error) for error in errors}) == len(errors)
    for error in errors:
        link: BaseException | None = error
        while link is not None:
            assert len(list(traceback.walk_tb(link.__traceback__))) <= DEEPEST
            link = link.__cause__ or link.__context__


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("password", "kind", "number"), [(None, ConnectionError, 1000), ("wrong", AuthenticationError, 100)]
)
async def test_a_connection_that_many_tasks_need(
    tasks: RawBackend, server: Server, password: str | None, kind: type[Exception], number: int
) -> None:
    url = "redis://127.0.0.1:1" if password is None else server.url
    client = tasks.connect(url, password=password, retry_attempts=0)
    check(await errors_of(tasks, lambda i: client.get_lock(f"a{i}").try_lock(), number), kind)


@pytest.mark.asyncio
async def test_a_connection_of_many_tasks_is_cut(tasks: RawBackend, proxy: Proxy) -> None:
    client = tasks.connect(proxy.url, retry_attempts=0)
    await client.get_lock("a").is_locked()
    late = proxy.hold_reply(ACQUIRE)

    async def cut(i: int) -> None:
        if not i:
            await tasks.until(late.held.is_set)
            proxy.close()
        await client.get_lock(f"a{i}").try_lock()

    check(await errors_of(tasks, cut, 100), ConnectionError)


@pytest.mark.asyncio
async def test_a_channel_that_is_refused(backend: RawBackend, proxy: Proxy, admin: Redis) -> None:
    admin.acl_setuser("deaf", enabled=True, nopass=True, keys=["*"], categories=["+@all"], reset_channels=True)
    admin.hset("a", "another:1", 1)
    client = backend.connect(proxy.url, username="deaf", password="any")
    asking = proxy.hold_request(b"SUBSCRIBE")
    waiting = client._session.channels.waiting

    async def take(i: int) -> None:
        if i == 9:
            # The refusal comes when all others wait.
            await backend.until(asking.held.is_set)
            await backend.until(lambda: len(waiting) == 9)
            asking.deliver()
        await backend.do(client.get_lock("a").lock())

    errors = await errors_of(backend, take, 10)
    check(errors, NoPermissionError)
    admin.acl_deluser("deaf")


class Odd(Exception):
    """Takes other arguments than it gives to `Exception`."""

    def __init__(self, code: int, *, where: str) -> None:
        super().__init__(f"code {code}")
        self.where = where


class Picky(Exception):
    def __new__(cls, code: int, /, *, where: str) -> Picky:
        return super().__new__(cls, f"{where}: {code}")

    def __init__(self, code: int, *, where: str) -> None:
        super().__init__()


ERRORS = [
    Odd(3, where="there"),
    ConnectionError("gone"),
    OSError(2, "nothing there", "a file"),
    UnicodeDecodeError("ascii", b"\xff", 0, 1, "not ASCII"),
    ExceptionGroup("several", [ValueError("one"), KeyError("two")]),
    KeyError("key"),
    Exception(),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_copy_has_the_text_of_the_original(error: Exception) -> None:
    cause = ValueError("why")
    error.__cause__ = cause
    twin = copy_error(error)
    assert twin is not error
    assert type(twin) is type(error)
    assert (twin.args, str(twin), vars(twin)) == (error.args, str(error), vars(error))
    assert twin.__cause__ is cause
    with pytest.raises(type(error)):
        raise twin
    assert error.__traceback__ is None
    twin.add_note("for one caller only")
    assert not hasattr(error, "__notes__")


def test_what_cannot_be_copied_is_raised_itself() -> None:
    error = Picky(3, where="there")
    assert copy_error(error) is error
