"""The members of a group are told apart by the servers that their clients lead to. No server is needed."""

from __future__ import annotations

import pytest

import pyredisson


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("redis+cluster://h1:1,h2:1", "redis+cluster://h3:1,h2:1", True),
        ("redis+cluster://h1:1", "redis+cluster://h2:1", False),
        ("redis+cluster://h1:1", "redis://h1:1", False),
        ("redis+sentinel://h1:1,h2:1/one", "redis+sentinel://h2:1/one", True),
        ("redis+sentinel://h1:1/one", "redis+sentinel://h1:1/other", False),
        ("redis+replicated://h1:1,h2:1", "redis+replicated://h2:1", True),
        ("redis://h1:1", "redis://h1:1/0", True),
        ("redis://h1:1", "redis://h1:1/1", False),
    ],
)
def test_a_lock_that_two_clients_have_by_other_addresses(one: str, other: str, same: bool) -> None:
    """A red lock would count it twice."""
    with pyredisson.connect(one) as first, pyredisson.connect(other) as second:
        locks = first.get_lock("a"), second.get_lock("a")
        if same:
            with pytest.raises(ValueError, match="twice"):
                first.get_red_lock(*locks)
        else:
            first.get_red_lock(*locks)
