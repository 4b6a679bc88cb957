"""Which masters reply, asked once in each round."""

from __future__ import annotations

import asyncio
import time
from typing import NamedTuple

from redis.exceptions import RedisError

from pyredisson._core import command
from pyredisson._protocol.no_reply import NoReply
from pyredisson._protocol.node import Node
from pyredisson.dashboard.words import error_words
from pyredisson.logic.ports import Nodes

_PING = command(b"PING")


class Pings(NamedTuple):
    """The replies of all masters."""

    problems: tuple[str, ...]
    """Who doesn't reply, and why."""
    silent: frozenset[Node] = frozenset()
    """The masters that don't."""
    round_trip: float | None = None
    """Seconds; of several servers the slowest. None: no server replies."""


async def ping_all(nodes: Nodes, timeout: float) -> Pings:
    """Asks all masters at the same time. `timeout`: seconds."""
    try:
        async with asyncio.timeout(timeout):
            masters = await nodes.masters()
    except TimeoutError:
        return Pings(("no server replies",))
    except (NoReply, RedisError) as error:
        return Pings((error_words(error),))
    if not masters:
        return Pings(("no master is known",))
    results = await asyncio.gather(*(_ping(nodes, node, timeout) for node in masters))
    return Pings(
        tuple(result for result in results if isinstance(result, str)),
        frozenset(node for node, result in zip(masters, results, strict=True) if isinstance(result, str)),
        max((result for result in results if not isinstance(result, str)), default=None),
    )


async def _ping(nodes: Nodes, node: Node, timeout: float) -> float | str:
    """The seconds of a round trip, or why there is no reply."""
    began = time.monotonic()
    try:
        async with asyncio.timeout(timeout):
            [reply] = await nodes.ask(node, (_PING,))
    except TimeoutError:
        return f"{node.address} doesn't reply"
    except (NoReply, RedisError) as error:
        return f"{node.address}: {error_words(error)}"
    if isinstance(reply, RedisError):
        return f"{node.address}: {error_words(reply)}"
    return time.monotonic() - began
