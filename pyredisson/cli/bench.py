"""`pyredisson bench`: how many pairs of lock and unlock this machine gets from the user's own server."""

import asyncio
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import click

from pyredisson._api.aio.client import Client as AioClient
from pyredisson._settings.config import Config
from pyredisson.cli import INTERRUPTED
from pyredisson.cli.options import Seconds, Settings, common
from pyredisson.cli.reading import Reader, reader

PINGS = 200
LONGEST = 30.0
PREFIX = "pyredisson:bench"


@click.command(
    epilog="""\b
Examples:
  pyredisson bench
  pyredisson bench --threads 8 --seconds 10
  pyredisson bench --asyncio-tasks 100

Each thread or task acquires and releases a lock of its own, which nobody else wants; no key is left. It loads the
server for the given time. What a contended lock costs is another question."""
)
@click.option(
    "--seconds", metavar="SECONDS", type=Seconds(0.1, LONGEST), default=3.0, help="For how long.  [default: 3]"
)
@click.option("--threads", metavar="N", type=click.IntRange(1, 64), default=1, help="How many threads.  [default: 1]")
@click.option(
    "--asyncio-tasks", "tasks", metavar="N", type=click.IntRange(1, 10_000), help="Tasks of an event loop, instead."
)
@common
def bench(settings: Settings, seconds: float, threads: int, tasks: int | None) -> int:
    """Measure: pairs of lock and unlock a second, how long a pair takes, and the round trip.

    It writes to the server, so it is bounded: 30 s, 64 threads, 10,000 tasks.
    """
    with reader(settings.config) as reading:
        ping = median(reading.round_trips(reading.run(reading.runtime.masters)[0], PINGS))
        run, status = _Run(seconds), 0
        try:
            if tasks is None:
                run.in_threads(reading, threads)
            else:
                asyncio.run(run.in_tasks(settings.config, tasks))
        except KeyboardInterrupt:
            status = INTERRUPTED
        lasted = time.perf_counter() - run.began
        who = f"{threads} thread{'s' if threads > 1 else ''}" if tasks is None else f"{tasks} tasks"
        click.echo(f"{who} for {lasted:.1f} s, at {settings.config.describe()}")
        pairs = sorted(run.pairs)
        if not pairs:
            click.echo("no pair of lock and unlock was completed")
            return status
        p50, p95, p99 = (pairs[min(len(pairs) - 1, int(len(pairs) * part))] * 1000 for part in (0.5, 0.95, 0.99))
        click.echo(f"{len(pairs) / lasted:,.0f} pairs of lock and unlock a second")
        click.echo(f"a pair takes {p50:.2f} ms; 95 % at most {p95:.2f} ms, 99 % at most {p99:.2f} ms")
        click.echo(f"a round trip takes {ping * 1000:.2f} ms, of which a pair needs two")
    return status


class _Run:
    """The pairs of one measurement. The names are spread over the servers of a cluster, as any names are."""

    def __init__(self, seconds: float) -> None:
        self.pairs: list[float] = []
        """How long each took, in seconds."""
        self.began = time.perf_counter()
        self._end = self.began + seconds
        self._prefix = f"{PREFIX}:{uuid.uuid4().hex[:8]}"

    def in_threads(self, reading: Reader, count: int) -> None:
        """Raises the first error of a thread."""
        with ThreadPoolExecutor(count) as pool:
            try:
                for ended in [pool.submit(self._thread, reading, number) for number in range(count)]:
                    ended.result()
            finally:
                self._end = 0.0

    def _thread(self, reading: Reader, number: int) -> None:
        lock = reading.client.get_lock(f"{self._prefix}:{number}")
        while (now := time.perf_counter()) < self._end:
            with lock:
                pass
            self.pairs.append(time.perf_counter() - now)

    async def in_tasks(self, config: Config, count: int) -> None:
        """Raises the first error of a task."""
        try:
            async with AioClient(Config.of(config, announce=False)) as client, asyncio.TaskGroup() as group:
                for number in range(count):
                    group.create_task(self._task(client, number))
        except BaseExceptionGroup as several:
            raise several.exceptions[0] from None

    async def _task(self, client: AioClient, number: int) -> None:
        lock = client.get_lock(f"{self._prefix}:{number}")
        while (now := time.perf_counter()) < self._end:
            async with lock:
                pass
            self.pairs.append(time.perf_counter() - now)
