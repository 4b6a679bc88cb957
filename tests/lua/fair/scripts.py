"""The fair lock's scripts on a server, and what a Java client does to the same keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from redis import Redis
from redis.client import PubSub

from pyredisson._protocol.scripts import Script
from pyredisson.testing import Server
from tests.support.fair_ageing import AGE

ME, YOU = "b983c153-7421-469a-addb-44fb92259a1b", "0d1f9d0c-2b3a-4b7e-8f64-9d2f0a6c3e55"
A, B, C, D = f"{ME}:1", f"{YOU}:7", f"{ME}:2:1", f"{YOU}:8"
JAVA, COFFEE = "5c0b9a4e-95f1-4b51-8a8f-3a1d1f3c2a77:31", "5c0b9a4e-95f1-4b51-8a8f-3a1d1f3c2a77:32"
LOCK = "orders"
QUEUE, SCORES = "redisson_lock_queue:{orders}", "redisson_lock_timeout:{orders}"
WAITERS, CLIENTS = "pyredisson_fair_waiters:{orders}", "pyredisson_fair_clients:{orders}"
KEYS = [LOCK, QUEUE, SCORES, WAITERS, CLIENTS]
CHANNEL = "redisson_lock__channel:{orders}"
WAIT = 300_000
NEVER = 10**13
PLACES = 16
"""The number of first places whose scores the scripts adjust (FRONT_PLACES)."""


class Fair:
    """A server and the fair lock's scripts, in the form for that server."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.redis: Any = server.redis()
        self.with_shebang = server.version >= (7,)

    def run(self, name: str, *args: str | int, redis: Any = None) -> Any:
        text = Script(name, with_shebang=self.with_shebang).text
        return (redis or self.redis).eval(text, len(KEYS), *KEYS, *map(str, args))

    def acquire(self, owner: str, holds: int = 1, lease: int = 30_000, *, queue: bool = True, redis: Any = None) -> Any:
        return self.run("fair_acquire", CHANNEL, owner, holds, lease, WAIT, int(queue), redis=redis)

    def release(self, owner: str, holds: int = 0, redis: Any = None) -> Any:
        return self.run("fair_release", CHANNEL, owner, holds, WAIT, redis=redis)

    def hand_over(self, owner: str, next_owner: str, lease: int = 30_000, redis: Any = None) -> Any:
        return self.run("fair_hand_over", CHANNEL, owner, WAIT, next_owner, lease, redis=redis)

    def force(self, redis: Any = None) -> Any:
        return self.run("fair_force_release", CHANNEL, WAIT, redis=redis)

    def wake_waiters(self, redis: Any = None) -> Any:
        return self.run("fair_wake_waiters", CHANNEL, WAIT, redis=redis)

    def leave(self, *owners: str, doubt: bool = False, redis: Any = None) -> Any:
        return self.run("fair_leave", CHANNEL, WAIT, int(doubt), *owners, redis=redis)

    def heartbeat(self, client: str, *waiters: str, redis: Any = None) -> Any:
        """From its reply: the lock's PTTL, whether the client was known, and the waiter that was notified."""
        remaining, known, notified, *_ = self.run("fair_heartbeat", CHANNEL, client, WAIT, *waiters, redis=redis)
        return remaining, known, notified.decode()

    def without_place(self, client: str, *waiters: str) -> list[str]:
        """The waiters of a client that have no place in the queue, from the reply to its heartbeat."""
        *_, without_place = self.run("fair_heartbeat", CHANNEL, client, WAIT, *waiters)
        return [owner.decode() for owner in without_place]

    def delete(self, notified: int = 100, redis: Any = None) -> Any:
        return self.run("fair_delete", CHANNEL, notified, redis=redis)

    def now(self) -> int:
        seconds, microseconds = self.redis.time()
        return int(seconds * 1000 + microseconds // 1000)

    def queue(self) -> list[str]:
        """The queue as Redisson reads it. The list and the scores must have the same owners."""
        owners = [owner.decode() for owner in self.redis.lrange(QUEUE, 0, -1)]
        assert sorted(owners) == sorted(owner.decode() for owner in self.redis.zrange(SCORES, 0, -1))
        return owners

    def score(self, owner: str) -> float:
        """Until when Redisson keeps the owner's place, seconds from now."""
        score = self.redis.zscore(SCORES, owner)
        # A fraction or an exponent would break Redisson's parser.
        assert score == int(score)
        return float(score - self.now()) / 1000

    def holds(self) -> dict[str, str]:
        return {owner.decode(): count.decode() for owner, count in self.redis.hgetall(LOCK).items()}

    def left(self) -> int:
        return int(self.redis.pttl(LOCK))

    def expire(self) -> None:
        """Removes the lock, as if its holder had died and its lease had ended."""
        self.redis.delete(LOCK)

    def asked_long_ago(self, *owners: str) -> None:
        """Makes it look as if these waiters had last asked for the lock ten seconds ago."""
        assert all(self.redis.hmget(WAITERS, owners))
        self.redis.hset(WAITERS, mapping=dict.fromkeys(owners, str(self.now() - 10_000)))

    def advance_time(self, ms: int) -> None:
        """Makes it look as if this much time had passed, or the clock had stepped forward."""
        self.redis.eval(AGE, len(KEYS), *KEYS, ms)

    def commands(self, work: Callable[[], Any]) -> int:
        """How many commands the scripts run during `work`."""
        self.redis.config_resetstat()
        work()
        return sum(entry["calls"] for entry in self.redis.info("commandstats").values())

    def keys(self) -> set[str]:
        return {key.decode() for key in self.redis.scan_iter()}


class Java:
    """What Redisson does for one waiter, in plain commands."""

    def __init__(self, scripts: Fair, owner: str, *, ahead: int = 0) -> None:
        """`ahead`: by how much its clock is ahead, ms."""
        self.scripts = scripts
        self.redis = scripts.redis
        self.owner = owner
        self.ahead = ahead

    def _prologue(self, now: int) -> None:
        while (head := self.redis.lindex(QUEUE, 0)) is not None:
            score = self.redis.zscore(SCORES, head)
            if score is None or score > now:
                return
            self.redis.zrem(SCORES, head)
            self.redis.lpop(QUEUE)

    def acquire(self, wait: int = WAIT) -> int | None:
        now = self.scripts.now() + self.ahead
        self._prologue(now)
        head = self.redis.lindex(QUEUE, 0)
        if not self.redis.exists(LOCK) and head in (None, self.owner.encode()):
            self.redis.lpop(QUEUE)
            self.redis.zrem(SCORES, self.owner)
            for member in self.redis.zrange(SCORES, 0, -1):
                self.redis.zincrby(SCORES, -wait, member)
            self.redis.hset(LOCK, self.owner, 1)
            self.redis.pexpire(LOCK, 30_000)
            return None
        if self.redis.zscore(SCORES, self.owner) is not None:
            return max(0, int(self.redis.pttl(LOCK)))
        last = self.redis.lindex(QUEUE, -1)
        score = self.redis.zscore(SCORES, last) if last else None
        ttl = int(self.redis.pttl(LOCK)) if score is None else int(score) - now
        if self.redis.zadd(SCORES, {self.owner: ttl + wait + now}):
            self.redis.rpush(QUEUE, self.owner)
        return ttl

    def release(self) -> int | None:
        self._prologue(self.scripts.now() + self.ahead)
        if not self.redis.hexists(LOCK, self.owner):
            return None
        self.redis.delete(LOCK)
        if (head := self.redis.lindex(QUEUE, 0)) is not None:
            self.redis.publish(f"{CHANNEL}:{head.decode()}", "0")
        return 1

    def give_up(self, wait: int = WAIT) -> None:
        owners = [owner.decode() for owner in self.redis.lrange(QUEUE, 0, -1)]
        for owner in owners[owners.index(self.owner) + 1 :]:
            self.redis.zincrby(SCORES, -wait, owner)
        self.redis.zrem(SCORES, self.owner)
        self.redis.lrem(QUEUE, 0, self.owner)


def published(subscription: PubSub) -> list[str]:
    """The waiters that were notified so far. A message of the test itself marks the end."""
    pool: Any = subscription.connection_pool
    Redis(connection_pool=pool).publish("end", "0")
    notified = []
    while (message := subscription.get_message(timeout=5)) is not None and message["channel"] != b"end":
        assert message["data"] == b"0"
        notified.append(message["channel"].decode().removeprefix(f"{CHANNEL}:"))
    assert message is not None
    return notified
