# Java and Python sell from one stock, under one lock: Redisson's and pyredisson's, which are the same keys.
# Start it beside the Java program (see pom.xml), after `redis-cli set stock 100`: python worker.py
# Both wait for each other at a latch; PYREDISSON_URL names the Redis.

import os
import time

import redis

import pyredisson

URL = os.environ.get("PYREDISSON_URL", "redis://localhost:6379/0")

with pyredisson.connect(URL) as client, redis.Redis.from_url(URL) as storage:
    opening = client.get_count_down_latch("opening")
    opening.try_set_count(2)  # whoever comes first sets it
    opening.count_down()
    opening.wait()
    sold = 0
    while True:
        with client.get_fair_lock("stock:lock"):
            left = int(storage.get("stock") or 0)
            if left == 0:
                break
            time.sleep(0.001)  # the work
            storage.set("stock", left - 1)
        sold += 1
    print(f"python sold {sold}", flush=True)
