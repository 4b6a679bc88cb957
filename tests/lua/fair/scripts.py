"""The fair lock's scripts on a server, and what a Java client does to the same keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.lua import locks
from tests.lua.locks import CHANNEL, WAIT
from tests.lua.scripted import Scripted
from tests.properties.servers import Memory

ME, YOU = "b983c153-7421-469a-addb-44fb92259a1b", "0d1f9d0c-2b3a-4b7e-8f64-9d2f0a6c3e55"
A, B, C, D = f"{ME}:1", f"{YOU}:7", f"{ME}:2:1", f"{YOU}:8"
JAVA, COFFEE = "5c0b9a4e-95f1-4b51-8a8f-3a1d1f3c2a77:31", "5c0b9a4e-95f1-4b51-8a8f-3a1d1f3c2a77:32"
LOCK, QUEUE, SCORES, WAITERS, CLIENTS = KEYS = locks.KEYS["fair"]
NEVER = 10**13
PLACES = 16
"""The number of first places whose scores the scripts adjust (FRONT_PLACES)."""
AGE = """
local by = tonumber(ARGV[1])
for _, key in ipairs(KEYS) do
    local left = redis.call('PTTL', key)
    if left >= 0 then
        redis.call('PEXPIRE', key, left - by)
    end
end
for _, key in ipairs({KEYS[3], KEYS[5]}) do
    for _, member in ipairs(redis.call('ZRANGE', key, 0, -1)) do
        redis.call('ZINCRBY', key, -by, member)
    end
end
local fields = redis.call('HGETALL', KEYS[4])
for i = 1, #fields, 2 do
    local at, rest = string.match(fields[i + 1], '^(%d+)(.*)$')
    if fields[i] == ':margin' then
        local ms, raised = string.match(fields[i + 1], '^(%d+) (%d+)$')
        redis.call('HSET', KEYS[4], fields[i], ms .. string.format(' %.0f', raised - by))
    elseif fields[i] ~= ':cursor' and at and at ~= '0' then
        redis.call('HSET', KEYS[4], fields[i], string.format('%.0f', at - by) .. rest)
    elseif not at then
        -- One that is gone, and until when.
        redis.call('HSET', KEYS[4], fields[i], string.format('%.0f', fields[i + 1] + by))
    end
end
"""
"""Makes all times that stand under the keys earlier by ARGV[1] ms: to the scripts it is as if these had passed."""


class Fair(Scripted):
    """A server and the fair lock's scripts, in the form for that server."""

    def fair(self, name: str, *args: str | int) -> Any:
        return self.run(name, KEYS, *map(str, args))

    def line(self, *waiters: str | Java) -> None:
        """The first one acquires the lock, the others wait for it."""
        for waiter in waiters:
            self.acquire(waiter) if isinstance(waiter, str) else waiter.acquire()

    def serve(self, *waiters: str | Java) -> None:
        """Each acquires the free lock in its turn, and releases it."""
        for waiter in waiters:
            assert (self.acquire(waiter) if isinstance(waiter, str) else waiter.acquire()) is None
            assert (self.release(waiter) if isinstance(waiter, str) else waiter.release()) == 1

    def acquire(self, owner: str, holds: int = 1, lease: int = 30_000, *, queue: bool = True) -> Any:
        return self.fair("fair_acquire", CHANNEL, owner, holds, lease, WAIT, int(queue))

    def release(self, owner: str, holds: int = 0) -> Any:
        return self.fair("fair_release", CHANNEL, owner, holds, WAIT)

    def hand_over(self, owner: str, next_owner: str, lease: int = 30_000) -> Any:
        return self.fair("fair_hand_over", CHANNEL, owner, WAIT, next_owner, lease)

    def wake_waiters(self) -> Any:
        """Returns the waiter that was notified; empty: none."""
        return self.heartbeat("")[2]

    def leave(self, *owners: str, doubt: bool = False) -> Any:
        return self.fair("fair_leave", CHANNEL, WAIT, int(doubt), *owners)

    def leave_in_doubt(self, *owners: str) -> Any:
        return self.leave(*owners, doubt=True)

    def heartbeat(self, client: str, *waiters: str) -> Any:
        """From its reply: the lock's PTTL, whether the client was known, and the waiter that was notified."""
        remaining, known, notified, *_ = self.fair("fair_heartbeat", CHANNEL, client, WAIT, *waiters)
        return remaining, known, notified.decode()

    def delete(self, notified: int = 100) -> Any:
        return self.fair("fair_delete", CHANNEL, notified)

    def command(self, *words: str | bytes | int) -> Any:
        return self.redis.execute_command(*words)

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

    def counted(self, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """The reply to a call of a script, which runs no more than 2,000 commands."""
        self.redis.config_resetstat()
        reply = method(*args, **options)
        assert sum(entry["calls"] for entry in self.redis.info("commandstats").values()) < 2_000
        return reply

    def notified(self) -> list[str]:
        """The waiters that were notified since the last call."""
        found = self.published_on()
        assert {message for _, message in found} <= {"0"}
        return [channel.removeprefix(f"{CHANNEL}:") for channel, _ in found]

    def keys(self) -> set[str]:
        return {key.decode() for key in self.redis.scan_iter()}


class Java:
    """What Redisson does for one waiter, in plain commands."""

    def __init__(self, server: Fair | Memory, owner: str | bytes, *, ahead: int = 0) -> None:
        """`ahead`: by how much its clock is ahead, ms."""
        self._do: Callable[..., Any] = server.command
        self.owner = owner.encode() if isinstance(owner, str) else owner
        self.ahead = ahead

    def drop_stale(self) -> int:
        """The beginning of each script: heads whose scores have run out lose their places. Returns the time."""
        seconds, micros = map(int, self._do("TIME"))
        now = seconds * 1000 + micros // 1000 + self.ahead
        while (head := self._do("LINDEX", QUEUE, 0)) is not None:
            score = self._do("ZSCORE", SCORES, head)
            if score is None or float(score) > now:
                break
            self._do("ZREM", SCORES, head)
            self._do("LPOP", QUEUE)
        return now

    def acquire(self, wait: int = WAIT, *, lease: int = 30_000, queues: bool = True) -> int | None:
        """None: acquired; else for how long to wait. `queues`: then it enters the queue."""
        do, owner, now = self._do, self.owner, self.drop_stale()
        if not do("EXISTS", LOCK) and do("LINDEX", QUEUE, 0) in (None, owner):
            do("LPOP", QUEUE)
            do("ZREM", SCORES, owner)
            for other in do("ZRANGE", SCORES, 0, -1):
                do("ZINCRBY", SCORES, -wait, other)
            do("HSET", LOCK, owner, 1)
            do("PEXPIRE", LOCK, lease)
            return None
        if do("HEXISTS", LOCK, owner):
            do("HINCRBY", LOCK, owner, 1)
            do("PEXPIRE", LOCK, lease)
            return None
        left = int(do("PTTL", LOCK))
        if not queues or do("ZSCORE", SCORES, owner) is not None:
            return max(0, left)
        last = do("LINDEX", QUEUE, -1)
        score = None if last in (None, owner) else do("ZSCORE", SCORES, last)
        if score is not None:
            left = int(float(score)) - now
        if do("ZADD", SCORES, left + wait + now, owner):
            do("RPUSH", QUEUE, owner)
        return left

    def release(self, lease: int = 30_000) -> int | None:
        """Releases one level. (A lock that doesn't exist isn't changed: see Redisson's quirk Q3.)"""
        self.drop_stale()
        if not self._do("HEXISTS", LOCK, self.owner):
            return None
        if self._do("HINCRBY", LOCK, self.owner, -1) > 0:
            self._do("PEXPIRE", LOCK, lease)
            return 0
        return self._free()

    def force_release(self) -> int:
        """Removes the lock, whoever holds it."""
        self.drop_stale()
        return self._free()

    def _free(self) -> int:
        freed: int = self._do("DEL", LOCK)
        if freed and (head := self._do("LINDEX", QUEUE, 0)) is not None:
            self._do("PUBLISH", f"{CHANNEL}:{head.decode()}", 0)
        return freed

    def give_up(self, wait: int = WAIT) -> None:
        """The step of a timed wait when its time is over."""
        queue = self._do("LRANGE", QUEUE, 0, -1)
        if self.owner in queue:
            for other in queue[queue.index(self.owner) + 1 :]:
                self._do("ZINCRBY", SCORES, -wait, other)
        self._do("ZREM", SCORES, self.owner)
        self._do("LREM", QUEUE, 0, self.owner)
