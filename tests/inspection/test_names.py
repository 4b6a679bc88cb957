"""From the name of an object to its companion keys, and back."""

from __future__ import annotations

import uuid
from binascii import hexlify

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyredisson._core import prefixed
from pyredisson.inspection.model import Evidence
from pyredisson.inspection.raw import client_of, companions_of, objects_of
from pyredisson.logic.announcement import client_key

NAMES = st.binary(max_size=12) | st.text("{}:ab", max_size=8).map(str.encode)
CLIENT = str(uuid.UUID(int=1)).encode()


@given(NAMES)
def test_a_companion_leads_back_to_its_object(name: bytes) -> None:
    for key, _ in companions_of(name).keys:
        names, _ = objects_of(key)
        assert name in names
        # The other one has the same companion key in Redisson, too.
        assert all(key in dict(companions_of(other).keys) for other in names)


@given(NAMES, st.integers(0, 99), st.binary(min_size=16, max_size=16))
def test_what_a_script_remembers_leads_back_to_its_object(name: bytes, slot: int, permit: bytes) -> None:
    """The reply of a call, by the kind of the object, and a permit that was withdrawn."""
    once = prefixed(b"pyredisson_once", name) + b":%b:%d" % (CLIENT, slot)
    keys = {
        once: Evidence.COUNTER,
        once + b":semaphore": Evidence.SEMAPHORE,
        once + b":permit": Evidence.PERMITS,
        once + b":latch": Evidence.LATCH,
        prefixed(b"pyredisson_permit_withdrawn", name) + b":" + hexlify(permit): Evidence.PERMITS,
    }
    for key, expected in keys.items():
        names, evidence = objects_of(key)
        assert name in names
        assert evidence is expected


@pytest.mark.parametrize(
    "key",
    [
        b"",
        b"orders",
        b"redisson_lock_queue",
        b"redisson_lock_queue:orders",
        b"redisson_unlock_latch:{orders}:00112233445566778899aabbccddeeff",
        b"pyredisson_fencing:{orders}",
        b"pyredisson_once:{orders}",
        b"orders:timeout",
        b"pyredisson_client",
        b"pyredisson_client:x",
    ],
)
def test_other_keys_belong_to_no_object_and_no_client(key: bytes) -> None:
    assert objects_of(key)[0] == ()
    assert client_of(key) is None


@given(st.uuids())
def test_the_key_of_a_client(client: uuid.UUID) -> None:
    key = client_key(str(client))
    assert (client_of(key), objects_of(key)[0]) == (str(client), ())
