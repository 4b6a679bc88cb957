# ARQ jobs of which one at a time works on an account; a job that finds it locked is sent again a second later.
# Needs the package arq. In several terminals: python -m arq arq_worker.WorkerSettings
# python arq_worker.py sends two jobs and prints what became of them; PYREDISSON_URL names the Redis.

import asyncio
import os
from typing import Any

from arq import Retry, create_pool
from arq.connections import RedisSettings

import pyredisson.asyncio

URL = os.environ.get("PYREDISSON_URL", "redis://localhost:6379/0")
SETTINGS = RedisSettings.from_dsn(URL)


async def startup(context: dict[str, Any]) -> None:
    context["locks"] = pyredisson.asyncio.connect(URL)


async def shutdown(context: dict[str, Any]) -> None:
    await context["locks"].close()


async def charge(context: dict[str, Any], account: int) -> str:
    try:
        # If the lock is lost, the block is cancelled, and raises LockLostError.
        async with context["locks"].get_lock(f"account:{account}").hold(wait_time=0.1, at_most=300):
            await asyncio.sleep(0.5)
            return f"charged {account} in try {context['job_try']}"
    except pyredisson.LockTimeoutError:
        raise Retry(defer=1) from None


class WorkerSettings:
    functions = (charge,)
    on_startup = startup
    on_shutdown = shutdown
    redis_settings = SETTINGS
    max_tries = 100  # of which each refusal is one
    job_timeout = 300


async def main() -> None:
    pool = await create_pool(SETTINGS)
    jobs = [await pool.enqueue_job("charge", 7) for _ in range(2)]
    for job in jobs:
        print(await job.result(timeout=60, poll_delay=0.1), flush=True)
    await pool.aclose()


if __name__ == "__main__":
    asyncio.run(main())
