"""Schedules in which slots move between two nodes, also between a command whose reply is lost and its repeat."""

from __future__ import annotations

from dataclasses import replace

import pytest
from redis.exceptions import RedisError

from pyredisson._protocol.no_reply import NoReply
from pyredisson._protocol.redirects import Redirected

from .simulator import KINDS, Logic, Violation, run
from .simulator.moving import MovingRuntime
from .simulator.patches import ONCE, changed

KINDS_ON_A_CLUSTER = ("plain", "fenced", "fair", "read_write", "semaphore", "latch")
"""Not permits with ids: a release whose reply is lost, and whose slot moves to a node without any slot in the latest
view, isn't known to be done."""
MOVES = 6.0
SCHEDULES = 80
ENOUGH = 3000


@pytest.mark.parametrize("kind", KINDS_ON_A_CLUSTER)
def test_schedules(kind: str) -> None:
    logic = replace(KINDS[kind], moves=MOVES)
    for seed in range(SCHEDULES):
        try:
            run(seed, logic)
        except Violation as violation:
            trace: list[str] = []
            with pytest.raises(Violation):
                run(seed, logic, trace)
            pytest.fail("\n".join([f"{kind}, seed {seed}: {violation}", *trace[-40:]]), pytrace=False)


def test_schedules_are_worth_something() -> None:
    """Commands are refused for each reason, and locks are acquired all the same."""
    trace: list[str] = []
    for kind in ("plain", "semaphore"):
        reports = [run(seed, replace(KINDS[kind], moves=MOVES), trace) for seed in range(50)]
        assert sum(report.acquired for report in reports) > 100
    for refusal in ("MOVED", "ASK", "TRYAGAIN"):
        assert sum(f"-> {refusal}" in line for line in trace) > 20


class RedirectedUndoIsDropped(MovingRuntime):
    """A command in the background is given up when it is redirected."""

    async def _post(self, payload: bytes) -> None:
        try:
            await self.send(payload)
        except Redirected:
            return
        except (NoReply, RedisError):
            self._repair(payload)


PLANTED = {
    "a redirected undo is dropped": Logic(runtime=RedirectedUndoIsDropped),
    "a release adds twice": replace(KINDS["semaphore"], patches=changed("semaphore_add", ONCE, b"if false then")),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_found(bug: str) -> None:
    with pytest.raises(Violation):
        for seed in range(ENOUGH):
            run(seed, replace(PLANTED[bug], moves=MOVES))
