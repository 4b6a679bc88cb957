"""Explicit owners: owners of holds that are neither the calling thread nor the calling task."""

import itertools
from hashlib import blake2b
from typing import NoReturn

FIRST_AUTOMATIC_ID = 2**32
"""The first id of a thread or task. Users may choose any id below it."""
FIRST_EXPLICIT_ID = 2**48
"""The first id of `new_owner()`."""
FIRST_TASK_ID = 2**61
"""The first id of owners that are tasks in a queue, see `pyredisson.celery`. The last one is 2**62 - 1."""
FIRST_NAMED_ID = 2**62
"""The first id of owners that are named by a `str`. The last one is 2**63 - 1."""

_ids = itertools.count(FIRST_EXPLICIT_ID)


class ExplicitOwner:
    """An owner of holds that is no thread and no task. `new_owner()` makes it. Two of them are never equal."""

    __slots__ = ("__weakref__", "_id")

    def __init__(self) -> None:
        self._id = next(_ids)

    @property
    def id(self) -> int:
        """The owner's id, the second part of its name on the server. A process uses no id twice."""
        return self._id

    def __reduce__(self) -> NoReturn:
        # In another process, an owner that was made there has the same id: both would hold one lock at a time.
        raise TypeError("an owner belongs to its process: it can't be pickled or copied")

    def __repr__(self) -> str:
        return f"<pyredisson.ExplicitOwner {self._id}>"


def new_owner() -> ExplicitOwner:
    """Makes a new owner, for `get_lock(name, owner=...)` and the other methods of a client that take `owner`.

    It serves work that runs in several threads or tasks, as a web request may: all of them acquire and release its
    locks as the same owner. It may be used with several clients, for threads and for asyncio.
    """
    return ExplicitOwner()


AnyOwner = ExplicitOwner | str | int
"""The types of `owner=`."""


def id_of_owner(owner: AnyOwner) -> int:
    """The id of an owner that a user passed. `TypeError` for another type; `ValueError` for no text, and below 0."""
    if isinstance(owner, ExplicitOwner):
        return owner.id
    if isinstance(owner, str):
        if not owner:
            raise ValueError("an owner's name must not be empty")
        # The id is computed from the text, so no table of names is needed. That two texts get the same id is as
        # unlikely as guessing 61 bits.
        digest = blake2b(owner.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        return FIRST_NAMED_ID + (int.from_bytes(digest) >> 2 & (FIRST_NAMED_ID - 1))
    if type(owner) is not int:
        raise TypeError(f"an owner is new_owner(), a str or an int, not {type(owner).__name__}")
    if owner < 0:
        raise ValueError(f"an owner's id must not be negative: {owner}")
    return owner
