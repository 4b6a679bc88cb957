"""On a cluster, everything that a primitive names is in the slot of its own name: keys, channels, computed keys.

The test calls each method that makes a command, with arguments chosen by the names of its parameters. So a new method
is tested without a change here, and a new parameter needs a line in `_arguments`.
"""

import inspect
import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import pyredisson
from pyredisson._core import SlotMap, latch_channel, parts_on_cluster, slot
from pyredisson._protocol.scripts import NAMES, words_of
from pyredisson.inspection.raw import state_command
from pyredisson.logic.exactly_once import SessionSlot
from pyredisson.logic.holds import Hold, HoldState
from pyredisson.logic.locks.commands import LockCommands
from pyredisson.logic.locks.fair_lock import FairLockCommands
from pyredisson.logic.locks.fair_queue import QueueTicket
from pyredisson.logic.locks.keeping import KeepingCommands
from pyredisson.logic.locks.read_write_lock import SideCommands
from pyredisson.logic.permits.commands import LatchCommands, Listing, PermitCommands, PermitPoolCommands
from pyredisson.logic.session import Session

PERMIT = bytes(range(16))
CHANNELS = (b"redisson_", b"pyredisson_")
"""How a key or a channel among the arguments of a script begins."""

names = st.one_of(
    st.binary(min_size=1, max_size=30),
    st.lists(st.sampled_from([b"{", b"}", b"a", b"bc", b":", b"\r\n", b"\0"]), min_size=1, max_size=10).map(b"".join),
).filter(lambda name: not parts_on_cluster(name))

Commands = LockCommands | PermitPoolCommands | LatchCommands


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """The session of a client that never connects."""
    with pyredisson.Client(pyredisson.Config()) as client:
        # Releasing a permit whose acquire is in doubt takes one more key.
        client._session.permits.note_doubt(PERMIT, 0.0)
        yield client._session


def kinds(of: type[Any]) -> list[type[Any]]:
    """The class with all classes derived from it."""
    return [of, *(kind for child in of.__subclasses__() for kind in kinds(child))]


KINDS: list[type[Commands]] = [
    *(kind for kind in kinds(LockCommands) if kind is not SideCommands),
    *(kind for kind in kinds(PermitPoolCommands) if kind is not PermitPoolCommands),
    *kinds(LatchCommands),
]


def payloads(session: Session, commands: Commands) -> Iterator[tuple[str, bytes]]:
    """Each command of an object with the name of its method, with and without the arguments that have a default."""
    arguments = _arguments(session, commands)
    if isinstance(commands, KeepingCommands):
        # Its releases keep the lock.
        commands.keep_until = session.clock() + 30
    for name, method in inspect.getmembers(commands, inspect.isroutine):
        if name.startswith("_") or name == "channel_of":
            continue
        signature = inspect.signature(method)
        if not inspect.formatannotation(signature.return_annotation).strip("'").startswith("bytes"):
            continue
        parameters = signature.parameters.values()
        for wanted in (parameters, [parameter for parameter in parameters if parameter.default is parameter.empty]):
            payload = method(**{parameter.name: arguments[parameter.name] for parameter in wanted})
            if payload is not None:
                yield name, payload


def _arguments(session: Session, commands: Commands) -> dict[str, Any]:
    owner = session.owners.explicit(7)
    holder = PERMIT.hex().encode() if isinstance(commands, PermitCommands) else owner.name
    held: Any = commands  # a counter without holds has no method that takes one
    hold = Hold((commands.key, owner.id), held, holder, None, math.inf, HoldState.HELD)
    return {
        **dict.fromkeys(("all_or_none", "fixed", "in_doubt", "late", "waits"), True),
        **dict.fromkeys(("count", "free", "permits", "shown", "wanted"), 2),
        **dict.fromkeys(("owner", "next_owner"), owner.name),
        "claimant": b"claimant",
        "client": session.id.encode(),
        "hold": hold,
        "holds": [hold],
        "ids": [PERMIT],
        "lease": 30000,
        "listing": Listing(b"client:1:1", b"client:2:1", b"", b"client:3"),
        "member": f"{session.id}:1".encode(),
        "names": b"client:1:1",
        "only_existing": False,
        "owners": [owner.name],
        "permit": PERMIT,
        "readers": [(owner.name, 30000)],
        "scripts": session.runtime.scripts,
        "slot": SessionSlot(f":{session.id}:0".encode()),
        "ttl": 0,
        "waiters": [owner.name],
    }


def keys_and_channels(payload: bytes) -> tuple[list[bytes], list[bytes]]:
    """The keys of a command, and those of a script's other arguments that are keys or channels."""
    words = words_of(payload)
    if words[0] != b"EVALSHA":
        return [words[1]], []
    count = int(words[2])
    return words[3 : 3 + count], [word for word in words[3 + count :] if word.startswith(CHANNELS)]


def test_every_script_is_among_the_commands(session: Session) -> None:
    sent = b"".join(payload for kind in KINDS for _, payload in payloads(session, kind(session, b"foo")))
    scripts = session.runtime.scripts
    # The attribute of a script is its SHA1, or the beginning of a command that contains the SHA1.
    shas = {name: getattr(scripts, name).rsplit(b"$40\r\n")[-1][:40] for name in NAMES}
    unsent = {name for name, sha in shas.items() if sha not in sent}
    # Sent by the logic with a single key, by `pyredisson.fencing`, and by the inspection.
    assert unsent == {"client_announce", "lock_holder", "read_locked", "fenced_write", "inspect_scan", "inspect_state"}


@given(name=names)
@example(b"{t}foo")
@example(b"x}y{z}")
@example(b"{a{b}")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_all_keys_and_channels_of_a_primitive_share_a_slot(session: Session, kind: type[Commands], name: bytes) -> None:
    commands = kind(session, name)
    slots = SlotMap()
    slots.assign(slot(name), slot(name), "its node")
    parted = isinstance(commands, LatchCommands) and b"{" in name
    for _, payload in payloads(session, commands):
        keys, channels = keys_and_channels(payload)
        assert {slot(key) for key in keys} == {slot(name)}
        assert slots.node_for(payload) == "its node"
        if channels and not parted:
            assert {slot(channel) for channel in channels} == {slot(name)}
    if commands.channel and not parted:
        assert slot(commands.channel) == slot(name)


@given(name=names)
def test_what_is_computed_from_a_key_or_channel_is_in_the_same_slot(session: Session, name: bytes) -> None:
    owner = session.owners.explicit(7)
    waiter = FairLockCommands(session, name).channel_of(QueueTicket(owner, owner.name))
    assert waiter.endswith(owner.name)
    assert slot(waiter) == slot(name)
    for side in kinds(SideCommands)[1:]:
        keys, _ = keys_and_channels(dict(payloads(session, side(session, name)))["release"])
        # `read_leases.lua` appends this to the second key.
        assert slot(keys[1] + owner.name + b":rwlock_timeout:1") == slot(name)
    # What is read of an object.
    keys, channels = keys_and_channels(state_command(session.runtime.scripts, name, 100))
    assert {slot(key) for key in keys} == {slot(name)}
    # But for that of a latch, which is elsewhere if the name has a hash tag.
    assert {slot(channel) for channel in channels if channel != latch_channel(name)} == {slot(name)}
    # `inspect_state.lua` appends this to the last key.
    assert slot(keys[-1] + b"client:1:rwlock_timeout:1") == slot(name)
