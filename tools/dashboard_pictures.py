"""Makes the pictures of the dashboard in docs/assets: `python -m tools.dashboard_pictures [SECONDS]`.

It runs a server, clients that use locks for so long (330 seconds fill the charts), and a dashboard, and opens that in
a headless Chromium (`sh .ci/browser`). What the clients announce is written here, so the machines are invented.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyredisson.asyncio
from pyredisson.asyncio import Client
from pyredisson.testing import Server
from tests.dashboard.conftest import Dashboard, start_browser

ASSETS = Path(__file__).parents[1] / "docs" / "assets"
LARGEST = 200_000
HOSTS = (("billing", "web-1", 812), ("billing", "web-2", 790), ("worker", "jobs-1", 2204), ("worker", "jobs-2", 2187))
PICTURES = (
    ("dashboard-locks", "#/locks", "light", 1180, 800),
    ("dashboard-lock", "#/lock?name=queue%3Amail", "dark", 1180, 1010),
    ("dashboard-clients", "#/clients", "light", 1180, 640),
)
JAVA = "b983c153-7421-469a-addb-44fb92259a1b:31"
LONG_HELD = (
    ("cron:nightly", "lock", 0, 417.0),
    ("leader:billing", "fenced", 1, 52_200.0),
    ("order:1042", "lock", 1, 14.0),
    ("order:1047", "lock", 0, 21.0),
    ("cache:warm-up", "spin", 2, 31.0),
)


class Scene:
    """Some clients, and what they hold."""

    def __init__(self, redis: Any, url: str) -> None:
        self.redis = redis
        self.clients = [pyredisson.asyncio.connect(url, announce=False) for _ in HOSTS]
        self.counts = [[0, 0.0, 0] for _ in HOSTS]
        self.holds: dict[str, tuple[int, str, float]] = {}
        """For each lock its client, its kind, and when it was acquired."""
        self.rounds = itertools.count(1)

    async def begin(self) -> None:
        """What is held for the whole time."""
        for name, kind, number, age in LONG_HELD:
            client = self.clients[number]
            match kind:
                case "fenced":
                    await client.get_fenced_lock(name).lock()
                case "spin":
                    await client.get_spin_lock(name).lock()
                case _:
                    await client.get_lock(name).lock()
            self.holds[name] = (number, kind, time.time() - age)
        mail = self.clients[2].get_fair_lock("queue:mail")
        await mail.lock()
        self.holds["queue:mail"] = (2, "fair", time.time() - 38)
        for number in (0, 2, 3):
            await self.clients[number].get_read_write_lock("config").read_lock().lock()
        self.redis.hset("report:weekly", JAVA, 1)
        tokens = self.clients[0].get_permit_expirable_semaphore("api:tokens")
        await tokens.try_set_permits(10)
        for _ in range(7):
            await tokens.acquire(3600)
        await self.clients[1].get_count_down_latch("deploy:ready").try_set_count(3)

    async def work(self, number: int, client: Client) -> None:
        """Short holds of one client, some of which have to wait."""
        while True:
            await asyncio.sleep(random.expovariate(1.2))
            lock = client.get_lock(f"order:{random.randint(1100, 1112)}", owner=pyredisson.new_owner())
            began = time.monotonic()
            if await lock.try_lock(wait_time=5):
                waited = time.monotonic() - began
                if waited > 0.01:
                    self.counts[number][0] += 1
                    self.counts[number][1] += waited
                await asyncio.sleep(random.uniform(0.1, 2.5))
                await lock.unlock()

    async def wait_for_mail(self, number: int) -> None:
        await self.clients[number].get_fair_lock("queue:mail", owner=pyredisson.new_owner()).lock()

    async def announce(self) -> None:
        """What clients announce every ten seconds."""
        while True:
            self._announce()
            await asyncio.sleep(10)

    def _announce(self) -> None:
        turn = next(self.rounds)
        if turn == 17:
            self.counts[3][2] += 1
        self.redis.pexpire("report:weekly", 30_000)
        for number, (client, (program, host, pid)) in enumerate(zip(self.clients, HOSTS, strict=True)):
            waits, waited, lost = self.counts[number]
            fields: dict[str, object] = {
                "n": turn,
                "name": f"{program}@{host}:{pid}",
                "host": host,
                "pid": pid,
                "program": program,
                "version": "0.1.0",
                "since": int((time.time() - 52_311 + 977 * number) * 1000),
                "lease": 30_000,
                "waits": waits,
                "waited": int(waited * 1000),
                "lost": lost,
            }
            for name, (holder, kind, since) in self.holds.items():
                if holder == number:
                    [owner] = [field.decode() for field in self.redis.hkeys(name)]
                    fields[f"h:{owner.partition(':')[2]} {name}"] = f"{int(since * 1000)} {kind}"
            key = f"pyredisson_client:{{{client.id}}}"
            self.redis.hset(key, mapping=fields)
            self.redis.pexpire(key, 60_000)


async def main(seconds: float) -> None:
    """Makes all pictures."""
    random.seed(12)
    with Server() as server, server.redis() as redis:
        scene = Scene(redis, server.url)
        await scene.begin()
        dashboard = await asyncio.to_thread(Dashboard, server.url, "--allow-unlock", "--interval", "1")
        work = [asyncio.create_task(scene.work(number, client)) for number, client in enumerate(scene.clients)]
        work += [asyncio.create_task(scene.wait_for_mail(number)) for number in (0, 1, 3, 0, 1)]
        work.append(asyncio.create_task(scene.announce()))
        try:
            await asyncio.to_thread(take_pictures, dashboard, seconds)
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
            dashboard.stop()
            for client in scene.clients:
                await client.close()


def take_pictures(dashboard: Dashboard, seconds: float) -> None:
    """Opens each page when the charts are full."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        driver = start_browser(Path(profile))
        try:
            # An open page keeps the dashboard from being idle.
            driver.get(f"{dashboard.origin}/")
            time.sleep(seconds)
            for name, fragment, theme, width, height in PICTURES:
                take_picture(driver, f"{dashboard.origin}/{fragment}", ASSETS / f"{name}.png", theme, width, height)
        finally:
            driver.quit()


def take_picture(driver: Any, url: str, path: Path, theme: str, width: int, height: int) -> None:
    """One page, in a window of that size."""
    features = [{"name": "prefers-color-scheme", "value": theme}]
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    driver.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
    driver.get("about:blank")
    driver.get(url)
    # The bars have drawn themselves, and a second snapshot has come.
    time.sleep(3)
    driver.save_screenshot(str(path))
    size = path.stat().st_size
    assert size < LARGEST, f"{path} has {size} bytes"
    print(f"{path.name}: {size:,} bytes")


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1]) if len(sys.argv) > 1 else 330.0))
