"""Explicit owners: who holds a lock where that is neither the calling thread nor the calling task."""

from __future__ import annotations

import itertools
from hashlib import blake2b

FIRST_AUTOMATIC_ID = 2**32
"""Ids of threads and tasks begin here; those below it are for the user to give."""
FIRST_EXPLICIT_ID = 2**48
"""Ids of `new_owner()` begin here."""
FIRST_NAMED_ID = 2**62
"""Ids of owners that are given as a `str` are from here to 2**63 - 1."""

_ids = itertools.count(FIRST_EXPLICIT_ID)


class ExplicitOwner:
    """An owner of locks that is no thread and no task; made by `new_owner()`. Two of them are never equal."""

    __slots__ = ("__weakref__", "_id")

    def __init__(self) -> None:
        self._id = next(_ids)

    @property
    def id(self) -> int:
        """Its id, the second part of its name on the server; never given twice in a process."""
        return self._id

    def __repr__(self) -> str:
        return f"<pyredisson.ExplicitOwner {self._id}>"


def new_owner() -> ExplicitOwner:
    """A fresh owner, for `get_lock(name, owner=...)` and its kin.

    For work that uses several threads or tasks, as a web request may: all of them enter and release its locks as
    one owner, whichever runs the code. It may be used with several clients, in threads and in asyncio.
    """
    return ExplicitOwner()


AnyOwner = ExplicitOwner | str | int
"""What `owner=` takes."""


def id_of_owner(owner: AnyOwner) -> int:
    """The id of an owner that a user named. `TypeError`; `ValueError` for an empty `str` or a negative number."""
    if isinstance(owner, ExplicitOwner):
        return owner.id
    if isinstance(owner, str):
        if not owner:
            raise ValueError("an owner's name must not be empty")
        # A function of the text alone, so nobody has to remember which id it was given; two texts with the same id are
        # as likely as guessing 61 bits.
        digest = blake2b(owner.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        return FIRST_NAMED_ID + (int.from_bytes(digest) >> 2 & (FIRST_NAMED_ID - 1))
    if type(owner) is not int:
        raise TypeError(f"an owner is new_owner(), a str or an int, not {type(owner).__name__}")
    if owner < 0:
        raise ValueError(f"an owner's id must not be negative: {owner}")
    return owner
