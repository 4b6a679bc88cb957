"""For each script that is registered: keys on which the command line of its header has an effect."""

from typing import NamedTuple

from .locks import COUNTER, QUEUE, SCORES, waiting, woken
from .scripted import RESERVED, Ends, State

LEASE = "{orders}:me:1:rwlock_timeout:1"
ID = "0123456789abcdef"


class Prepared(NamedTuple):
    """What the script finds, and the message that it then publishes, if any."""

    before: State
    message: str | None = None
    again: str | None = None
    """What a second copy of the call publishes."""
    args: tuple[str, ...] = ()
    """In place of the arguments of the command line."""
    told: tuple[tuple[str, str], ...] = ()
    """The clients that are told something behind the message, and what."""
    told_again: str | None = None
    """What a second copy tells those of them that have subscribed to their channels."""


HELD: State = {"orders": ({"me:1": 1}, 20_000)}
WAITING: State = {QUEUE: ["java:1"], SCORES: Ends({"java:1": 300_000})}
WRITING: State = {"orders": ({"mode": "write", "me:1:write": 1}, 20_000)}
READING: State = {"orders": ({"mode": "read", "me:1": 1}, 20_000), LEASE: ("1", 20_000)}
LISTED, OTHERS = waiting("me you they"), waiting("you they")
ME_WOKEN = woken("me:2", came=1)
NEXT = (("you", "you:1"), ("they", f"look:{RESERVED}"))
"""To `OTHERS` by a release."""
READERS = waiting("you:r they:r")
NEXT_READERS = (("you", "you:1:r"), ("they", f"look:{RESERVED}:r"))
"""To `READERS`."""
TOKEN: State = {COUNTER: 2**51}
WRITER = "pyredisson_rwlock_writer:{orders}"
ONCE, CLAIM = "pyredisson_once:{stock}:me:1", "pyredisson_semaphore_claim:{stock}"
USED, PERMIT_CLAIM = "{p}:timeout", "pyredisson_semaphore_claim:{p}"

PREPARED = {
    "client_announce": Prepared({"pyredisson_client:{me}": ({"n": 0}, 10_000)}),
    "exactly_once_delete": Prepared({"stock": 1}, "1"),
    "fair_acquire": Prepared({QUEUE: ["gone:1", "java:1"], SCORES: Ends({"gone:1": -1_000, "java:1": 300_000})}, "0"),
    "fair_delete": Prepared({**HELD, **WAITING}, "0"),
    "fair_force_release": Prepared({**HELD, **WAITING}, "0"),
    "fair_hand_over": Prepared({**HELD, **WAITING}, "0"),
    "fair_heartbeat": Prepared(WAITING, "0", "0"),
    "fair_leave": Prepared({**HELD, **WAITING}, "0", None, ("redisson_lock__channel:{orders}", "300000", "1", "me:1")),
    "fair_release": Prepared({**HELD, **WAITING}, "0"),
    "fair_wake_waiters": Prepared(WAITING, "0", "0"),
    "fenced_acquire": Prepared({**LISTED, **ME_WOKEN, **TOKEN}),
    "fenced_delete": Prepared({**HELD, **OTHERS, **TOKEN}, "0", told=(("me", "0"), *NEXT)),
    "fenced_hand_over": Prepared({**HELD, **LISTED, **TOKEN}),
    "fenced_write": Prepared({"pyredisson_fencing:{report}": (6, 10_000)}),
    "inspect_scan": Prepared(HELD),
    "inspect_state": Prepared({**HELD, **WAITING, **TOKEN}),
    "latch_count_down": Prepared({"done": 1}, "0"),
    "latch_set": Prepared({}, "1"),
    "lock_acquire": Prepared({**LISTED, **ME_WOKEN}),
    "lock_force_release": Prepared({**HELD, **OTHERS}, "0", told=(("me", "0"), *NEXT)),
    "lock_hand_over": Prepared({**HELD, **LISTED}),
    "lock_holder": Prepared(HELD),
    "lock_keep": Prepared({**HELD, **OTHERS}, "0", told=NEXT),
    "lock_leave": Prepared({**HELD, **LISTED}, told=(("they", "look:0"),)),
    "lock_move": Prepared(HELD),
    "lock_release": Prepared({**HELD, **OTHERS}, "0", told=NEXT),
    "lock_renew": Prepared(HELD),
    "lock_wake_waiters": Prepared(waiting("you"), "0", "0", told=(("you", "you:1"),), told_again="0"),
    "permit_acquire": Prepared(
        {"p": 1, USED: Ends({"ended": -1_000}), PERMIT_CLAIM: ("2 you:1", 2_000)},
        "2",
        None,
        ("redisson_sc:{p}", "30000", "5000", "", "", "", "60000", "", ID, "fedcba9876543210"),
    ),
    "permit_count": Prepared({"p": 1, USED: Ends({"ended": -1_000})}, "2"),
    "permit_lease": Prepared({USED: Ends({ID: 10_000})}),
    "permit_release": Prepared({"p": 1, USED: Ends({ID: 10_000})}, "2"),
    "permit_renew": Prepared({USED: Ends({ID: 10_000})}),
    "permit_set": Prepared({}, "5"),
    "read_acquire": Prepared(waiting("me:r you:r"), told=(("you", "r"),)),
    "read_locked": Prepared(READING),
    "read_move": Prepared(READING),
    "read_release": Prepared({**READING, **READERS}, "0", told=NEXT_READERS),
    "read_renew": Prepared(READING),
    "read_write_force_release": Prepared({**WRITING, **OTHERS}, "1", told=(("me", "0"), *NEXT)),
    "semaphore_acquire": Prepared(
        {"stock": 6, CLAIM: ("4 me:1", 2_000)},
        "2",
        None,
        ("2", "4", "redisson_sc:{stock}", "5000", "me:1:4", "me:2:4", "", "60000", "me:1"),
    ),
    "semaphore_add": Prepared({}, "1"),
    "semaphore_correct": Prepared({"stock": 17}, "20"),
    "semaphore_finish": Prepared({"stock": 1}, "2"),
    "semaphore_hand_over": Prepared({}, "1", None, ("2", "2", "1", "redisson_sc:{stock}", "0", "")),
    "semaphore_leave": Prepared({"stock": 5, CLAIM: ("4 me:1", 2_000)}, "5"),
    "semaphore_set": Prepared({}, "5"),
    "semaphore_undo": Prepared({"stock": 0, ONCE: "2 4"}, "4"),
    "write_acquire": Prepared({**LISTED, **ME_WOKEN}),
    "write_hand_over": Prepared(
        {"orders": ({**WRITING["orders"][0], "me:1": 1}, 20_000), LEASE: ("1", 20_000), **READERS},
        "1",
        told=NEXT_READERS,
    ),
    "write_leave": Prepared({**READING, **OTHERS, WRITER: ("me", 2_000)}, told=(("you", "you:1"),)),
    "write_let_readers_in": Prepared({**WRITING, **READERS}, "1", told=NEXT_READERS),
    "write_release": Prepared({**WRITING, **OTHERS}, "1", told=NEXT),
}
