"""Messages while slots are being moved: a waiter may be subscribed on another node than the one that runs a script.

With `PubSub.AUTO` a script publishes a plain message only if somebody has subscribed to it on the node that runs the
script. A subscriber that is still on the former node would miss it. So for some time plain messages are not left out.

A release may follow ASK to the node that the slot is being moved to. Its script publishes there. A plain message
reaches the subscribers of all nodes, a sharded one doesn't. So the client repeats the sharded one on the node that has
sent ASK. For a lock whose clients wait in a list it has that node wake all clients that have subscribed there.
"""

import math
from collections.abc import Awaitable, Callable
from time import monotonic

from redis.exceptions import NoScriptError, RedisError, TryAgainError

from pyredisson._core import command, remove_value
from pyredisson._protocol.pubsub import PubSub
from pyredisson._protocol.replies import Reply
from pyredisson._protocol.scripts import ScriptSet, as_publishing_both, script, script_name, words_of


class Settling:
    """Has all scripts publish both flavours for some time after each change of the map from slots to nodes.

    Any thread may call any method. Each step is one operation on a dict: an interrupt may strike between any two lines.
    """

    def __init__(self, seconds: float = 0.0, clock: Callable[[], float] = monotonic) -> None:
        """`seconds`: how long after a change clients may be subscribed by the former map. 0: it does not matter."""
        self._seconds = seconds
        self._clock = clock
        self.changes: dict[str, float] = {}
        """When the time after the latest change is over, under the key "latest". Empty: `command` changes only commands
        that follow an ASK."""

    def on_change(self) -> None:
        """The map is about to change. No command may be sent by the new map before this has been called."""
        if self._seconds:
            self.changes["latest"] = self._clock() + self._seconds

    def command(self, payload: bytes, *, asking: bool = False) -> bytes:
        """A packed command, in the form in which it has to be sent now. To be called when its node has been chosen. If
        it is `asking` (it follows an ASK), its subscribers are on the node that still serves the slot."""
        if not asking and not self.changes:
            return payload
        end = self.changes.get("latest", math.inf)
        if end < self._clock():
            # Not the end of a later change, which another thread may have set meanwhile.
            remove_value(self.changes, "latest", end)
        return as_publishing_both(payload) if asking or self.changes else payload


_ALL_PERMITS = b"2147483647"
"""Wakes all waiters for permits. Each of them finds out how many permits there are."""
_PREFIXES = {
    "lock_release": 3,
    "lock_keep": 3,
    "lock_force_release": 1,
    "lock_wake_waiters": 2,
    "read_write_force_release": 2,
}
"""The scripts that publish, and that can run behind ASKING: they have one key, or all their keys exist. Their first
argument is Redisson's channel. The number says which argument begins the names of the channels of clients."""


_WITHOUT_LIST = {
    "lock_acquire": 1,
    "lock_force_release": 1,
    "lock_hand_over": 1,
    "lock_keep": 1,
    "lock_release": 1,
    "lock_wake_waiters": 1,
    "permit_count": 2,
    "permit_release": 2,
    "read_write_force_release": 1,
}
"""The scripts that can do without the list of clients that wait, and how many of their keys don't belong to it."""


def without_list(payload: bytes) -> bytes | None:
    """The same call without the keys of the list. None: it has none.

    A lock must not stand still while its slot is being moved: Redis runs a script with one key wherever the key is. The
    clients in the list are woken by `message_at_source`, or make attempts when their subscriptions move.
    """
    words = words_of(payload)
    kept, keys = _WITHOUT_LIST.get(script_name(words) or ""), int(words[2])
    # A release of permits may have further keys behind the list, without which it must not run.
    if kept is None or keys == kept or (kept == 2 and keys != kept + 3):
        return None
    return command(*words[:2], kept, *words[3 : 3 + kept], *words[3 + keys :])


async def send_other_forms(
    payloads: list[bytes],
    replies: list[Reply],
    scripts: ScriptSet,
    send: Callable[[list[bytes]], Awaitable[list[Reply]]],
) -> None:
    """Sends those commands again that have not run for their form: with the text of the script, or without the list.

    Changes both lists. `send` sends all in one write: as many round trips one after the other would take too long.
    """
    for all_texts in (False, True):
        forms: dict[int, bytes] = {}
        texts = set[bytes]()
        for i, (payload, reply) in enumerate(zip(payloads, replies, strict=True)):
            if isinstance(reply, NoScriptError):
                sha = words_of(payload)[1]
                # At first only the first command of a script gets its text, which makes the others behind it run as
                # they are: a thousand texts are megabytes.
                forms[i] = payload if sha in texts and not all_texts else scripts.as_eval(payload)
                texts.add(sha)
            elif isinstance(reply, TryAgainError) and (alone := without_list(payload)) is not None:
                forms[i] = alone
        if not forms:
            return
        for (i, form), reply in zip(forms.items(), await send(list(forms.values())), strict=True):
            payloads[i], replies[i] = form, reply


def message_at_source(payload: bytes, reply: Reply) -> bytes | None:
    """The command that repeats the message of a call which has followed ASK. None: it has published nothing."""
    if reply == 0 or isinstance(reply, RedisError):
        # 0: an inner level was released, or somebody holds the lock. A nil may be the reply to a copy which ran before.
        return None
    words = words_of(payload)
    name = script_name(words)
    if name not in _PREFIXES and name != "permit_release":
        return None
    channel, *arguments = words[3 + int(words[2]) :]
    if name == "permit_release":
        prefix, message = b"pyredisson_wake" + channel.removeprefix(b"redisson_sc") + b":", _ALL_PERMITS
    else:
        # A release of a writer, for readers and writers of Redisson.
        prefix, message = arguments[_PREFIXES[name] - 1], b"1" if name.startswith("read_write") else b"0"
    wake = script("lock_wake_waiters", with_shebang=False, pubsub=PubSub.BOTH).text
    return command(b"EVAL", wake, 0, channel, message, prefix, 0)
