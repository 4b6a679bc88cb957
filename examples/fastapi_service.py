# A web service: two requests never change the same account at the same time, in any number of processes and machines.
# Needs uvicorn and the extra fastapi (docs/installation.md). Start: uvicorn fastapi_service:app --port 8000 --workers 2
# curl -X POST 'http://127.0.0.1:8000/accounts/7/deposit?amount=10'; PYREDISSON_URL names the Redis.

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from redis.asyncio import Redis

from pyredisson.fastapi import locked, locks_lifespan

URL = os.environ.get("PYREDISSON_URL", "redis://localhost:6379/0")


@asynccontextmanager
async def storage(app: FastAPI) -> AsyncIterator[None]:
    async with Redis.from_url(URL) as app.state.storage:
        yield


app = FastAPI(lifespan=locks_lifespan(URL, lifespan=storage))


# The type makes /accounts/7 and /accounts/007 the same lock.
@app.post("/accounts/{account}/deposit", dependencies=[locked("account:{account}", account=int, wait_time=5)])
async def deposit(account: int, amount: int) -> int:
    balance = int(await app.state.storage.get(f"balance:{account}") or 0)
    balance += amount
    await app.state.storage.set(f"balance:{account}", balance)
    return balance
