"""Shows with real processes and a real server what a lock does; exits with 0 only if everything was observed.

Every statement with a mark is checked: against the server's state, and against the times at which the
processes themselves say that something happened. Run by `make demo`.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from actors import JOB, LOCK, SHORT_LEASE, TURNS
from redis import Redis
from rich.live import Live
from rich.text import Text
from stage import PATIENCE, Actor, Missed, Screen

import pyredisson
from pyredisson.testing import Server

CHANNELS = f"pyredisson_wake:{{{LOCK}}}:*"
"""On which the clients that wait for the lock are woken, a channel for each."""
COLOURS = ("cyan", "magenta")
WIDTH = 64
BARS = "▁▂▃▄▅▆▇█"
RENEWAL = SHORT_LEASE / 3
SLACK = 0.4
"""Seconds that a busy machine may add before the demo reports that something was late."""


@dataclass
class Turn:
    """One process's hold of the lock, in the monotonic time that all processes share."""

    who: int
    asked: float
    start: float
    end: float


class Demo:
    """The five steps; each may raise `Missed`."""

    def __init__(self, server: Server, redis: Redis, screen: Screen) -> None:
        self.url = server.url
        self.redis: Any = redis
        self.screen = screen

    def contention(self) -> None:
        """Two processes, one lock, in turns."""
        scripts, messages = self._calls("evalsha"), self._calls("publish")
        looks: list[tuple[float, float, str]] = []
        with Actor("taking_turns", self.url) as a, Actor("taking_turns", self.url) as b:
            actors = (a, b)
            ids = [actor.expect("ready")["id"] for actor in actors]
            for actor in actors:
                actor.go()
            # Meanwhile asks the server who holds the lock, until nobody has held it for a while.
            free_since = time.monotonic() + PATIENCE
            with self.screen.console.status("two processes take turns"):
                while time.monotonic() < free_since + 0.3:
                    before = time.monotonic()
                    holder = self._holder()
                    looks.append((before, time.monotonic(), holder))
                    if holder:
                        free_since = before
                    time.sleep(0.01)
            turns = [turn for who, actor in enumerate(actors) for turn in _turns(who, actor)]
            for actor in actors:
                actor.finish()
        turns.sort(key=lambda turn: turn.start)
        self._draw(turns)
        pairs = list(pairwise(turns))
        overlaps = sum(second.start < first.end for first, second in pairs)
        seen = [
            (holder.startswith(ids[turn.who]))
            for before, after, holder in looks
            for turn in turns
            if turn.start <= before and after <= turn.end
        ]
        handed = [
            (second.start - first.end) * 1000
            for first, second in pairs
            if first.who != second.who and second.asked < first.end
        ]
        scripts = self._calls("evalsha") - scripts
        messages = self._calls("publish") - messages
        check = self.screen.check
        check(
            not overlaps and len(turns) == 2 * TURNS and bool(seen) and all(seen),
            f"{len(turns)} turns, {overlaps} overlaps; asked {len(seen)} times in between, "
            f"the server named the same holder {sum(seen)} times",
        )
        check(
            len(handed) >= TURNS and max(handed) < 1000 and messages >= len(turns) + len(handed),
            f"{len(handed)} hand-offs, each by a message: median {statistics.median(handed or [0]):.2f} ms, "
            f"longest {max(handed, default=0):.2f} ms; the lease had 30 s to go",
        )
        check(
            scripts <= 5 * len(turns),
            f"nobody polls: {scripts} script calls for {len(turns)} turns, waiting included",
        )

    def reentry(self) -> None:
        """A nested call acquires the same lock again."""
        counts: list[int] = []
        free: list[bool] = []
        with (
            Actor("nested", self.url) as actor,
            pyredisson.connect(self.url) as client,
        ):
            stranger = client.get_lock(LOCK)
            for event in ("outer", "inner", "outer"):
                actor.expect(event)
                counts += [int(count) for count in self.redis.hvals(LOCK)]
                free.append(stranger.try_lock())
                self.screen.line(
                    (f"{event:<6}", COLOURS[0]),
                    (f" holds on the server: {counts[-1]}, ", ""),
                    ("another process: " + ("gets it" if free[-1] else "has to wait"), "dim"),
                )
                actor.go()
            actor.expect("out")
            gone = not self.redis.exists(LOCK)
            actor.finish()
        self.screen.check(
            counts == [1, 2, 1] and not any(free) and gone,
            "holds go 1, 2, 1, none; only the outermost exit frees the lock",
        )

    def watchdog(self) -> None:
        """A job longer than the lease keeps its lock."""
        left: list[int] = []
        with Actor("long_job", self.url) as worker, Actor("next_one", self.url) as waiter:
            self._one_waits_for(worker, waiter)
            worker.go()
            with Live(console=self.screen.console, transient=True, auto_refresh=False) as live:
                until = time.monotonic() + JOB - 0.2
                while time.monotonic() < until:
                    left.append(self.redis.pttl(LOCK))
                    live.update(self._lease_line(left), refresh=True)
                    time.sleep(0.08)
            released = worker.expect("releasing")["at"]
            taken = waiter.expect("held")["at"]
            waiter.go()
            worker.finish()
            waiter.finish()
        self.screen.console.print(self._lease_line(left))
        renewals = sum(later > earlier for earlier, later in pairwise(left))
        self.screen.check(
            min(left) > 0 and renewals >= JOB / RENEWAL / 2,
            f"a job of {JOB:g} s under a lease of {SHORT_LEASE:g} s: renewed {renewals} times, never below "
            f"{min(left) / 1000:.2f} s",
        )
        self.screen.check(
            0 <= taken - released < SLACK,
            f"the waiter got the lock when the job was done, {(taken - released) * 1000:.2f} ms later",
        )

    def crash(self) -> None:
        """A holder is killed."""
        with Actor("long_job", self.url) as victim, Actor("next_one", self.url) as waiter:
            self._one_waits_for(victim, waiter)
            holder = self._holder()
            with self.screen.console.status("the holder is killed; its lease runs out"):
                # After some renewals, so that a renewed lease ends.
                time.sleep(3 * RENEWAL)
                status = victim.kill()
                killed = time.monotonic()
                left = self.redis.pttl(LOCK) / 1000
                still_there = self._holder() == holder
                taken = waiter.expect("held")["at"]
            another = self._holder() not in ("", holder)
            waiter.go()
            waiter.finish()
        self.screen.check(
            status == -9 and still_there,
            f"killed by SIGKILL while holding; its lease still had {left:.2f} s to go",
        )
        self.screen.check(
            another and -0.05 < taken - killed - left < SLACK,
            f"the next process had the lock {taken - killed:.2f} s after the kill, without any message",
        )

    def loss(self) -> None:
        """Somebody deletes the key of a held lock."""
        with (
            Actor("watching_thread", self.url) as thread,
            Actor("watching_task", self.url) as task,
        ):
            for actor in (thread, task):
                actor.expect("held")
            with self.screen.console.status("both hold; now their keys are deleted"):
                time.sleep(1.5 * RENEWAL)
                deleted = time.monotonic()
                removed = self.redis.delete(f"{LOCK}:threads", f"{LOCK}:asyncio")
                said = {actor: {event["event"]: event for event in _until_raised(actor)} for actor in (thread, task)}
            for actor in (thread, task):
                actor.finish()
        what = {
            thread: "threads: `lost` was set and on_lost called",
            task: "asyncio: the body was cancelled and on_lost called",
        }
        for actor, events in said.items():
            told = events["told"]["at"] - deleted
            self.screen.check(
                removed == 2 and "called back" in events and 0 <= told < RENEWAL + SLACK,
                f"{what[actor]} {told:.2f} s after the deletion, at the next renewal (every {RENEWAL:g} s)",
            )
        self.screen.line(("LockLostError: ", COLOURS[1]), (said[task]["raised"]["error"], "dim"))

    def _calls(self, command: str) -> int:
        """How often the server has run a command since it started."""
        stats = self.redis.info("commandstats")
        return int(stats.get(f"cmdstat_{command}", {"calls": 0})["calls"])

    def _holder(self) -> str:
        return b"".join(self.redis.hkeys(LOCK)).decode()

    def _one_waits_for(self, holder: Actor, waiter: Actor) -> None:
        """Returns when one process has the lock and the other has subscribed to its release."""
        holder.expect("held")
        waiter.go()
        deadline = time.monotonic() + PATIENCE
        while not self.redis.pubsub_channels(CHANNELS):
            if time.monotonic() > deadline:
                raise Missed("nobody waits for the lock")
            time.sleep(0.01)

    def _draw(self, turns: list[Turn]) -> None:
        first, last = turns[0].start, turns[-1].end
        for who, colour in enumerate(COLOURS):
            moments = [first + (last - first) * (i + 0.5) / WIDTH for i in range(WIDTH)]
            bar = "".join("█" if any(t.who == who and t.start <= at < t.end for t in turns) else "·" for at in moments)
            self.screen.line((f"process {'AB'[who]}  ", "dim"), (bar, colour))

    def _lease_line(self, left: list[int]) -> Text:
        top = len(BARS) - 1
        bar = "".join(BARS[max(0, min(top, round(ms / SHORT_LEASE / 1000 * top)))] for ms in left[-WIDTH:])
        return Text.assemble("   ", ("lease left ", "dim"), (bar, COLOURS[0]))


def _turns(who: int, actor: Actor) -> list[Turn]:
    return [Turn(who, *(actor.expect(event)["at"] for event in ("asked", "held", "releasing"))) for _ in range(TURNS)]


def _until_raised(actor: Actor) -> list[dict[str, Any]]:
    """`told`, `called back` and `raised`, in any order."""
    return [actor.expect("told", "called back", "raised") for _ in range(3)]


def main() -> int:
    """Runs every step; returns 0 if everything was observed."""
    screen = Screen()
    began = time.monotonic()
    with Server() as server, server.redis() as redis:
        version = ".".join(map(str, server.version))
        screen.title(
            "pyredisson: one lock, many processes",
            f"on a server of its own ({version}, {server.host}:{server.port})",
        )
        demo = Demo(server, redis, screen)
        steps: list[tuple[str, Callable[[], None]]] = [
            ("Two processes want one lock and take turns", demo.contention),
            ("A nested call takes the same lock again", demo.reentry),
            ("A job longer than the lease keeps its lock", demo.watchdog),
            ("A process is killed while it holds the lock", demo.crash),
            ("A holder whose key is deleted is told", demo.loss),
        ]
        for number, (text, step) in enumerate(steps, 1):
            screen.step(number, text)
            try:
                step()
            except Missed as missed:
                screen.check(False, str(missed))
    took = f"{time.monotonic() - began:.0f} s"
    if screen.failed:
        screen.console.print(f"\n[bold red]{screen.failed} not observed[/] [dim]({took})[/]\n")
    else:
        screen.console.print(f"\n[bold green]All of it was observed[/] [dim]({took})[/]\n")
    return 1 if screen.failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
