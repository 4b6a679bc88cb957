"""Who holds something, in the words of the dashboard."""

from __future__ import annotations

import os
import re

from redis.exceptions import NoPermissionError, RedisError

from pyredisson._protocol.no_reply import NoReply
from pyredisson.holder import Holder
from pyredisson.holder import who as named
from pyredisson.inspection.model import State

SHOWN_OF_ID = 8
"""Characters of a client's id that tell it from others."""


def who(holder: Holder) -> str:
    """`web-3 (pid 812)`, `billing on web-3 (pid 812)`, `Redisson b983c153, thread 31`, or the beginning of an id."""
    if holder.host is not None:
        return named(holder, b"")
    if holder.client_id is None:
        return "unknown"
    short = holder.client_id[:SHOWN_OF_ID]
    if holder.foreign is False:
        return f"client {short}"
    thread = "" if holder.owner_id is None else f", thread {holder.owner_id}"
    return f"Redisson {short}{thread}" if holder.foreign else f"client {short}{thread}"


def holder_words(state: State) -> str:
    """Who holds a lock; nothing for a free one, and for what has no holders."""
    if not state.owners:
        return ""
    first = state.owners[0]
    if state.kind == "read-write":
        # The writer comes first in words: it may be a reader besides.
        writer = next((owner for owner in state.owners if owner.side == "write"), None)
        if writer is not None:
            return f"{who(writer.holder)}, writes"
        if state.owner_count > 1:
            return f"{state.owner_count} readers"
        return f"{who(first.holder)}, reads"
    if state.owner_count > 1:
        return f"{state.owner_count} holders"
    return f"kept after a run on {who(first.holder)}" if first.kept else who(first.holder)


def error_words(error: NoReply | RedisError) -> str:
    """An error for a reader who knows the server, not this program."""
    cause = error.error if isinstance(error, NoReply) else error
    if isinstance(cause, NoPermissionError):
        return "this user lacks one of the rights +@read +eval +evalsha +time"
    text = str(cause) or type(cause).__name__
    # What the event loop says of a connection that can't be made has only the number of the reason.
    number = re.search(r"\[Errno (\d+)\] Connect call failed", text)
    return os.strerror(int(number[1])).lower() if number else text
