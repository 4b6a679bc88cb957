"""FastAPI: a client for the time that the application runs; dependencies that hold a lock or a permit for a request."""

import inspect
import string
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from typing import Annotated, Any, Literal, Unpack, get_args

from redis.exceptions import ConnectionError, RedisError, TimeoutError

from pyredisson._api.aio.client import LOCKS, Client, connect
from pyredisson._api.aio.locks import Lock
from pyredisson._api.aio.semaphores import PermitExpirableSemaphore
from pyredisson._api.holds import warn_not_released
from pyredisson._diagnostics import naming_extra, readable
from pyredisson._settings.durations import Duration
from pyredisson._settings.fields import ConfigFields
from pyredisson.errors import LockLostError, LockTimeoutError, PermitNotHeldError
from pyredisson.owners import new_owner

with naming_extra("pyredisson.fastapi", "fastapi"):
    from fastapi import Depends, HTTPException
    from fastapi.requests import HTTPConnection

__all__ = ["Locks", "locked", "locks_lifespan", "permit"]

Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]
Kind = Literal["lock", "fair", "fenced", "read", "write"]
Scope = Literal["function", "request"]

_LOST = 409
_NO_REDIS = 503


def locks_lifespan(
    address: object = None, *, lifespan: Lifespan | None = None, **fields: Unpack[ConfigFields]
) -> Lifespan:
    """`FastAPI(lifespan=locks_lifespan(URL))`: a client of `pyredisson.asyncio` while the application runs.

    It is `app.state.locks`. `address` and `fields` as for `pyredisson.asyncio.connect`; `lifespan` is the application's
    own, which begins after it and ends before it.
    """

    @asynccontextmanager
    async def run(app: Any) -> AsyncIterator[Any]:
        async with connect(address, **fields) as client:
            app.state.locks = client
            async with nullcontext() if lifespan is None else lifespan(app) as state:
                yield state

    return run


def _client_of(connection: HTTPConnection) -> Client:
    client: Client | None = getattr(connection.app.state, "locks", None)
    if client is None:
        raise RuntimeError("the application has no client: make it as FastAPI(lifespan=locks_lifespan(URL))")
    return client


Locks = Annotated[Client, Depends(_client_of)]
"""The type of a parameter that gets the client of `locks_lifespan`."""


def locked(
    name: str | Callable[..., str],
    *,
    wait_time: Duration | None = 2.0,
    lease_time: Duration | None = None,
    at_most: Duration | None = None,
    kind: Kind = "lock",
    busy: int = 423,
    retry_after: int = 1,
    scope: Scope = "function",
    **types: Any,
) -> Any:
    """A dependency that holds a lock while the function of a request runs; its value is the lock.

    `async def change(order_id: int, lock: Annotated[Lock, locked("order:{order_id}", order_id=int)])`, or without the
    value `dependencies=[locked(...)]`. The fields of `name` are parameters of the path or of the query, and `types` are
    their types: with `int`, `/orders/7` and `/orders/007` are the same lock. In place of the text, `name` may be a
    function with any parameters of a dependency, which returns it.

    `wait_time` (None: no limit), `lease_time` and `at_most` as for `hold`. `kind`: `read` and `write` are the sides of
    a read-write lock. Each request is an owner of its own. With `scope="request"` the lock is held until the response
    has been sent.

    A request is answered by `busy` (423) and `Retry-After: retry_after` if it did not get the lock in time, by 503 if
    Redis can't be reached, and by 409 if the lock was lost; then a function that is a coroutine is cancelled at that
    moment. If Redis can't be reached only when the function has ended, its answer is sent all the same.

    Raises `TypeError` if a field has no type or a type has no field, `ValueError` for another kind or a bad text.
    """
    if kind not in get_args(Kind):
        raise ValueError(f"kind must be {', '.join(get_args(Kind))}, not {kind!r}")
    name_of = _from_template(name, types) if isinstance(name, str) else name

    async def hold(connection: HTTPConnection, name: str = Depends(name_of)) -> AsyncIterator[Lock]:
        lock = _client_of(connection)._lock(*LOCKS[kind], name, owner=new_owner())
        async with _held(lock, lock.hold(wait_time, lease_time, at_most=at_most), busy, retry_after):
            yield lock

    return Depends(hold, scope=scope)


def permit(
    name: str | Callable[..., str],
    permits: int,
    *,
    wait_time: Duration | None = 2.0,
    busy: int = 429,
    retry_after: int = 1,
    scope: Scope = "function",
    **types: Any,
) -> Any:
    """A dependency that lets at most `permits` requests run at a time, in all processes; its value is the permit's id.

    It is a permit of the `PermitExpirableSemaphore` of that name, and is renewed while the request runs. If that exists
    with another number of permits, that number counts. Other arguments, answers and errors as for `locked`.
    """
    name_of = _from_template(name, types) if isinstance(name, str) else name

    async def hold(connection: HTTPConnection, name: str = Depends(name_of)) -> AsyncIterator[str]:
        semaphore = _client_of(connection).get_permit_expirable_semaphore(name)
        async with _held(semaphore, _permit(semaphore, permits, wait_time), busy, retry_after) as id_:
            yield id_

    return Depends(hold, scope=scope)


@asynccontextmanager
async def _permit(semaphore: PermitExpirableSemaphore, permits: int, wait: Duration | None) -> AsyncIterator[str]:
    await semaphore.try_set_permits(permits)
    async with semaphore.permit(wait, renew=True) as id_:
        yield id_


@asynccontextmanager
async def _held(
    held: Lock | PermitExpirableSemaphore, holding: AbstractAsyncContextManager[Any], busy: int, retry_after: int
) -> AsyncIterator[Any]:
    """Holds the lock or a permit. Raises its errors as the answers that FastAPI sends for them."""
    headers = {"Retry-After": str(retry_after)}
    done = False
    try:
        async with AsyncExitStack() as stack:
            try:
                entered = await stack.enter_async_context(holding)
            except LockTimeoutError:
                # Without the error's text: the holder's host and process are nothing for a client.
                raise HTTPException(busy, "locked by another request", headers) from None
            except (ConnectionError, TimeoutError) as error:
                raise HTTPException(_NO_REDIS, "the server of the locks can't be reached", headers) from error
            yield entered
            done = True
    except PermitNotHeldError as error:
        if not done:
            raise
        raise HTTPException(_LOST, "the permit of this request was lost") from error
    except LockLostError as error:
        # Another lock of the function may have been lost. The error has the name on the server, after `name_mapper`.
        if error.name != readable(held._logic.key):
            raise
        raise HTTPException(_LOST, "the lock of this request was lost") from error
    except RedisError as error:
        # An answer with an error would say that what the request has changed is not done.
        if not done:
            raise
        name = readable(held._logic.key)
        warn_not_released(f"lock {name!r}" if isinstance(held, Lock) else f"a permit of semaphore {name!r}", error)


def _from_template(template: str, types: dict[str, Any]) -> Callable[..., str]:
    """A function with the template's fields as its parameters: FastAPI takes them from the request."""
    fields = {field for _, field, _, _ in string.Formatter().parse(template) if field is not None}
    for field in fields:
        if not field.isidentifier():
            raise ValueError(f"a field must be the name of a parameter, not {field!r}, in {template!r}")
    if fields != set(types):
        wanted = ", ".join(f"{field}=..." for field in sorted(fields)) or "none"
        raise TypeError(f"locked({template!r}) needs the type of each field, as {wanted}; it got {sorted(types)}")

    def name(**values: Any) -> str:
        return template.format(**values)

    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter(field, kind, annotation=types[field]) for field in sorted(fields)]
    name.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return name
