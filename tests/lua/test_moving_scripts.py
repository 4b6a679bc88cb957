"""The scripts that move a hold to another owner: every branch, sent twice."""

from typing import Any

import pytest

from .read_write import LEASES, READERS, lease_key, reading, writing
from .scripted import ME, YOU, About, Call, Case, Scripted

MOST = 2**52


def move(lease: int, suffix: str = "") -> Call:
    return Call("lock_move", ["orders"], [ME + suffix, YOU + suffix, lease])


def move_read(lease: int) -> Call:
    return Call("read_move", ["orders", LEASES], [ME, YOU, lease])


def held(owner: str, lease: int | None, **more: Any) -> dict[str, Any]:
    return {"orders": ({owner: 1, **more}, lease)}


OTHER = {READERS[0]: [40_000]}
CASES = {
    "a shorter lease": Case(held(ME, 20_000), [(move(10_000), [About(20_000)])], held(YOU, 20_000)),
    "endless": Case({"orders": {ME: 1}}, [(move(0), [-1])], {"orders": {YOU: 1}}),
    "free": Case({}, [(move(30_000), None)]),
    "another owner's": Case(held("java:1", 20_000), [(move(30_000), None)]),
    "a writer": Case(writing(ME, 1, 20_000), [(move(30_000, ":write"), [30_000])], writing(YOU, 1, 30_000)),
    "a writer that reads": Case(writing(ME, 1, 20_000, {ME: [10_000]}), [(move(30_000, ":write"), -1)]),
    "a reader, what is left": Case(
        reading({ME: [20_000], **OTHER}), [(move_read(0), [About(20_000)])], reading({YOU: [20_000], **OTHER})
    ),
    "a reader that is there already": Case(
        reading({YOU: [10_000]}), [(move_read(30_000), [30_000])], reading({YOU: [30_000]})
    ),
    "a reader whose other level is in doubt": Case(
        reading({ME: [20_000, 30_000]}), [(move_read(0), [About(20_000)])], reading({YOU: [20_000]}, 30_000)
    ),
    "no reader": Case(reading(OTHER), [(move_read(30_000), None)]),
    "a reader whose lease has ended": Case(held(ME, 40_000, mode="read"), [(move_read(30_000), None)]),
    "a lock of another kind": Case({**held(ME, 40_000), lease_key(ME, 1): ("1", 20_000)}, [(move_read(30_000), -1)]),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_script(scripts: Scripted, case: Case) -> None:
    scripts.check(case)


def test_a_lease_beyond_what_is_exact(scripts: Scripted) -> None:
    """Somebody else has set it."""
    scripts.write(held(ME, 2**60))
    assert scripts.call(move(0)) == [MOST]
    assert 0 < scripts.redis.pttl("orders") <= MOST
