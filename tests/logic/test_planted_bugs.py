"""The simulator finds bugs: each of these bugs is planted, and must be found within some schedules."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from pkgutil import resolve_name
from textwrap import dedent
from typing import Any

import pytest
from redis.exceptions import RedisError

from pyredisson._protocol.replies import NoReply, Redirected
from pyredisson._protocol.scripts import script
from pyredisson.logic.groups.group import GroupLogic
from pyredisson.logic.locks.commands import renew_holds
from pyredisson.logic.permits.commands import SemaphoreCommands
from pyredisson.logic.waiting import LEFT, OFFERED

from .simulator import KINDS, Violation, run
from .simulator.moving import MovingRuntime

ENOUGH = 4000
ONCE = b"if last_number and last_number >= tonumber(ARGV[1]) then"
"""The line of `exactly_once.lua` by which a copy of a call is recognized."""
FAIR = "fair_acquire fair_release fair_force_release fair_leave fair_heartbeat"
PUBLISH, SILENCE = b"redis.pcall('PUBLISH'", b"tostring('PUBLISH'"
NEVER = b"if false then"
CLAIMS, LONG_CLAIMS = b"IN_A_ROW, TURN = 5000", b"IN_A_ROW, TURN = 500000"

IN_SCRIPTS = {
    "plain: an acquire adds": ("lock_acquire", b"HSET', KEYS[1], ARGV[1], ARGV[2]", b"HINCRBY', KEYS[1], ARGV[1], 1"),
    "plain: a release that publishes nothing": ("lock_release", PUBLISH, SILENCE),
    "plain: a release wakes no client of the list": ("lock_release", b"wake(KEYS[2]", b"tostring(KEYS[2]"),
    "handed_off: several adopt it": ("lock_move", b"if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then", NEVER),
    "handed_off_read_write 4409: an ended reader stays": ("read_move", b"'HDEL', lock, holder", b"'HLEN', lock"),
    "handed_off_read_write 1396: a reader that writes": ("read_move", b"~= 'read' then", b"== '' then"),
    "fair: dead heads stay": (FAIR, b"if not is_dead(head, score, asked_at, check_offer) then", b"if score then"),
    "read_write: writers hold back readers without end": ("write_acquire", CLAIMS, LONG_CLAIMS),
    "read_write 184: only readers of the same client hear of a release": ("write_let_readers_in", PUBLISH, SILENCE),
    "read_write: the last reader wakes nobody": ("read_release", b"pcall(wake_next", b"tostring(wake_next"),
    "read_write 99: a reader that was woken lets no other in": ("read_acquire", b"'phase') == 0", b"'phase') == 2"),
    "read_write: a writer that leaves keeps its claim": ("write_leave", b"if had_claim then", b"if false then"),
    "read_write 124: readers who are let in have no lease": ("write_let_readers_in", b"lease)\n        f", b"1)\nf"),
    "semaphore moving_semaphore: a release adds twice": ("semaphore_add", ONCE, NEVER),
    "semaphore: permits are claimed without end": ("semaphore_acquire", CLAIMS, LONG_CLAIMS),
    "semaphore: nobody of the list is woken": ("semaphore_add", b"pcall(wake_listed", b"tostring(wake_listed"),
    "permits: nobody of the list is woken": ("permit_release", b"pcall(wake_listed", b"tostring(wake_listed"),
    "crowded_semaphore 62: others are not listed": ("semaphore_acquire", b"list(following", b"tostring(following"),
    "crowded_semaphore 502: a client that left has its permits": ("semaphore_leave", b"announce(free)\nelse", b"else"),
    "permits: those that ended are lost": ("permit_acquire", b"'INCRBY', KEYS[1], #ended", b"'INCRBY', KEYS[1], 0"),
    "latch: it counts twice": ("latch_count_down", ONCE, NEVER),
    "latch: one that opens publishes nothing": ("latch_count_down", PUBLISH, SILENCE),
}
"""The kinds of schedules and the bug, the scripts, and what stands there instead of what.

A number: the seed of a schedule that finds it, where the search begins; without one it begins with seed 0. A change of
the logic may make that another schedule. Then the search goes on, and `--durations=5` shows whose number to renew.
"""


async def _post_without_redirects(runtime: MovingRuntime, payload: bytes) -> None:
    try:
        await runtime.send(payload)
    except Redirected:
        return
    except (NoReply, RedisError):
        runtime._repair(payload)


def nothing(*_: object) -> None: ...


def no_undo(_: object, call: Any) -> None:
    call.owner.new_epoch()


MULTI = "groups.multi_lock._Attempt"
IN_FUNCTIONS: dict[str, Sequence[tuple[Any, ...]]] = {
    "plain 754: a wakeup is not passed on": [("channels.ChannelRegistry.leave", "wakeup.is_set()", "False")],
    "plain: a waiter that has subscribed does not ask again": [
        ("channels.ChannelRegistry.join", "wakeup.set()", "wakeup.clear()"),
        ("channels.ChannelRegistry.on_subscribed", "channel.on_confirmation()", "pass"),
    ],
    "handed_off 255: waiters rely on the former owner": [("locks.moving.MovingLock.on_handed_off", nothing)],
    "handed_off: what fails is not put back": [("locks.moving.MovingLock._put_back", nothing)],
    "plain: no undo": [(".simulator.client.SimRuntime.post", nothing)],
    "plain: renewals that were refused are done": [("renewer.Renewer._apply", "known != 1", "False")],
    "plain 296: a command in doubt is sent only once in the background": [
        ("renewer.Renewer._renew_once", "self.keep_alive.clear()", "self.repairs.clear()")
    ],
    "plain 134: a hand-over in doubt is not undone": [("locks.rlock.LockLogic.undo_grant", no_undo)],
    "plain fair read_write: a waiter that was not entered goes on waiting": [
        ("locks.queued_wait.LockWaiter.refuse", lambda _: False)
    ],
    "plain fair read_write: a waiter that has left gets the lock": [
        ("locks.queued_wait.LockWaiter.give", lambda waiter: waiter.state in (OFFERED, LEFT))
    ],
    "plain: a release wakes no waiter of its own client": [("locks.hand_over.on_released", nothing)],
    "fair: a waiter that left stays in the queue": [
        ("locks.fair_lock.FairLockLogic._leave_queue", lambda _, ticket: ticket.owner.new_epoch())
    ],
    "read_write: only the lock is renewed": [("locks.read_write_lock.ReadCommands.renew", staticmethod(renew_holds))],
    "read_write: a reader that was let in in doubt stays": [("locks.read_write_lock.ReadLogic.undo_grant", no_undo)],
    "handed_off_read_write 12801: readers who are let in learn only when to look": [
        ("locks.side_wait.ReadWriteChannel._wake", "self.take_look(wakeup)", "pass")
    ],
    "semaphore: a cancelled waiter keeps its permits": [("permits.permit_wait.PermitWait.acquired", False)],
    "semaphore crowded_semaphore: a client that waits no longer stays in the list": [
        ("permits.permit_queue.PermitQueue.take_names", lambda *_: b"")
    ],
    "crowded_semaphore: a release that leaves its batch is forgotten": [
        ("permits.permit_hand_over.HandOverBatch._take_out", lambda batch, part: batch.parts.remove(part))
    ],
    "semaphore crowded_semaphore: an interrupted hand-over is a release that is sent again": [
        ("permits.commands.SemaphoreCommands.finish_hand_over", SemaphoreCommands.add)
    ],
    "multi: a failed group keeps members": [("groups.multi_lock.MultiLockLogic.releases_after_attempt", lambda *_: [])],
    "multi 1001546: a refused member is not the next first": [(f"{MULTI}.acquire_members", ") != same", ") is None")],
    "red: a minority is enough": [
        ("groups.red_lock.RedLockLogic.__init__", lambda group, members: GroupLogic.__init__(group, members, 1))
    ],
    # The release of a red lock doesn't wait for all of its members.
    "red 37: a hand-over is given up midway": [("locks.hand_over.abandon", "if releaser.hands_over", "if False")],
    "moving_plain 382: redirected undos are lost": [(".simulator.moving.MovingRuntime._post", _post_without_redirects)],
    "restarts 1011566: a hold counts as confirmed too late": [("holds.Hold.confirmed_at", "self.extended, ", "")],
    "shards: nothing is checked after a failover": [("watchdog.Watchdog.on_topology_change", nothing)],
    "shards: one renewer waits for the slowest server": [
        ("watchdog.Watchdog._renewer_of", "_renewers.get(shard)", "_renewers.get(shard := None)"),
        # It doesn't mind which server its holds are on.
        ("renewer.Renewer._keeps", lambda *_: True),
        ("renewer.Renewer._serves_command", lambda *_: True),
    ],
}
"""The kinds of schedules and the bug, and of some functions what runs instead, or what stands there instead of what."""


def changed(function: Any, right: str, wrong: str) -> Any:
    """A function with another text."""
    text = dedent(inspect.getsource(function))
    assert text.count(right) == 1
    made: dict[str, Any] = {}
    exec(text.replace(right, wrong), function.__globals__, made)
    return made[function.__name__]


def text_with(bug: str) -> dict[str, bytes]:
    """The scripts with a bug of `IN_SCRIPTS`, by name."""
    scripts, right, wrong = IN_SCRIPTS[bug]
    texts = {name: script(name, with_shebang=False).text for name in scripts.split()}
    assert all(text.count(right) == 1 for text in texts.values())
    return {name: text.replace(right, wrong) for name, text in texts.items()}


def _searches(bug: str) -> list[tuple[str, int]]:
    """The kinds of schedules, each with the seed at which the search begins. The sound code passes that schedule."""
    words = bug.partition(":")[0].split()
    first = int(words.pop()) if words[-1].isdigit() else 0
    for kind in words:
        run(first, KINDS[kind])
    return [(kind, first) for kind in words]


def _is_found(searches: Sequence[tuple[str, int]], patches: dict[str, bytes] | None = None) -> None:
    for kind, first in searches:
        logic = replace(KINDS[kind], patches=patches)
        with pytest.raises(Violation):
            for seed in range(first, first + ENOUGH):
                run(seed, logic)


@pytest.mark.parametrize("bug", IN_SCRIPTS)
def test_found_in_scripts(bug: str) -> None:
    _is_found(_searches(bug), text_with(bug))


@pytest.mark.parametrize("bug", IN_FUNCTIONS)
def test_found_in_functions(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    searches = _searches(bug)
    for name, *change in IN_FUNCTIONS[bug]:
        path = __package__ + name if name.startswith(".") else f"pyredisson.logic.{name}"
        monkeypatch.setattr(path, changed(resolve_name(path), *change) if len(change) == 2 else change[0])
    _is_found(searches)
