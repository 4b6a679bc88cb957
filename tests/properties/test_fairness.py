"""The fair lock serves waiters in order of arrival: random schedules on a server in memory, and on a real one."""

from __future__ import annotations

import pytest
from hypothesis import Phase
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from pyredisson._protocol.scripts import script
from pyredisson.testing import Server

from .fair_model import FairServer, Unfair
from .fair_queue import FairQueue
from .servers import Beside, Memory, beside, play

SCRIPTS = (
    "fair_acquire",
    "fair_delete",
    "fair_force_release",
    "fair_hand_over",
    "fair_leave",
    "fair_release",
    "fair_heartbeat",
)


class InMemory(FairQueue):
    """On a virtual clock."""

    def __init__(self, memory: Memory | None = None) -> None:
        self.memory = memory or Memory()
        self.server = FairServer(self.memory)
        super().__init__()

    @precondition(lambda machine: machine.forgetful)
    @rule(ms=st.sampled_from((1, 900, 3000, 40_000)))
    def clock_is_set_back(self, ms: int) -> None:
        self.memory.advance_time(-ms)
        self.set_back += ms
        self._see()


def test_in_memory() -> None:
    play(InMemory, examples=250, steps=50)


def test_on_a_real_server(server: Server) -> None:
    with beside(server) as redis:
        play(lambda: InMemory(Beside(redis)), examples=20, steps=30)


def test_a_waiter_that_left_the_middle_costs_no_other_its_place() -> None:
    """Java computes the score of a new waiter from that of the last one, also if the last one has left."""
    machine = InMemory()
    machine.all_arrive(order=["a1", "java1", "java2", "a2", "java3"])
    machine.give_up(who="a2", twice=False)
    machine.give_up(who="java3", twice=False)
    machine.all_arrive(order=["java3", "b1"])
    machine.release_all(who="a1", twice=False, late=False)
    for who in ("java1", "java2", "java3", "b1"):
        machine.ask_again(who=who)
        assert machine.holding() == [who]
        machine.release_all(who=who, twice=False, late=False)
    machine.teardown()


@pytest.mark.parametrize("seconds", [0, 60])
def test_a_waiter_killed_in_the_middle_does_not_delay_java(seconds: int) -> None:
    """No client of pyredisson remains that could drop it. It had waited for `seconds`."""
    machine = InMemory()
    machine.all_arrive(order=["a1", "java1", "b1", "java2"])
    machine.time_passes(steps=1 + int(seconds / 0.4))
    machine.die(who="b")
    machine.release_all(who="a1", twice=False, late=False)
    machine.ask_again(who="java1")
    assert machine.holding() == ["java1"]
    machine.release_all(who="java1", twice=False, late=False)
    machine.time_passes(steps=21)
    assert machine.holding() == ["java2"]
    machine.teardown()


PLANTED = {
    "a waiter enters at the wrong end of the queue": ("'RPUSH'", "'LPUSH'"),
    "dead heads are not dropped": ("if not is_dead(head, score, asked_at, check_offer) then", "if true then"),
    "a late copy of an acquire enters the queue": (
        "if asked_at and has_left(asked_at) then\n    -- A late",
        "if false then\n    -- A late",
    ),
    "the queue is not respected": ("if not head or head == owner then", "if true then"),
    "the lock is handed on past other waiters": ("if head == next_owner then", "if head then"),
    "a lock that was lost is handed on": (
        "        return 0\n    end\n    -- Written",
        "        levels = 1\n    end\n    -- Written",
    ),
    "a hand-over that isn't possible notifies nobody": ("    _, more = notify_head", "    _, more = tostring"),
    "nobody is notified": ("publish(ARGV[1] .. ':' .. head", "tostring(ARGV[1] .. ':' .. head"),
    "a waiter that left the middle stays in the queue": ("redis.call('HSET', KEYS[4], owner, 0)", "tostring(owner)"),
    "an offer does not end": (
        "offered + OFFER_LASTS <= now",
        "offered + 100 * OFFER_LASTS <= now",
    ),
    "living waiters count as dead": ("ALIVE = 1500", "ALIVE = 500"),
    "the keys of pyredisson do not expire": ("redis.call('PEXPIRE', KEYS[4]", "tostring(KEYS[4]"),
    "scores are not removed": ("    redis.call('ZREM', KEYS[3], owner)\n", ""),
}


@pytest.mark.slow
@pytest.mark.parametrize("bug", PLANTED)
def test_planted_bugs_are_found(bug: str) -> None:
    sound = {name: script(name, with_shebang=True).text for name in SCRIPTS}
    right, wrong = (text.encode() for text in PLANTED[bug])
    patches = {name: text.replace(right, wrong) for name, text in sound.items() if right in text}
    assert patches

    with pytest.raises(Unfair):
        play(lambda: InMemory(Memory(patches)), examples=2000, steps=50, phases=[Phase.generate])
