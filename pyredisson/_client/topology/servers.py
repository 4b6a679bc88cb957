"""Servers that are asked one after the other, until one gives the answer that is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from time import monotonic

from redis.exceptions import ConnectionError, RedisError, TimeoutError

from pyredisson._client.topology.queries import Patience, Queries
from pyredisson._protocol.error_codes import is_transient
from pyredisson._protocol.no_reply import Reply
from pyredisson._settings.address import Address
from pyredisson._settings.config import Config

SILENCE_REMEMBERED = 30.0
"""Seconds for which a server that didn't reply is asked after the others."""


class Servers:
    """Asks servers, and remembers which of them have not replied lately. Used by one thread, apart from `close`."""

    def __init__(self, config: Config) -> None:
        self._queries = Queries()
        self._patience = Patience(config)
        self._silent: dict[Address, float] = {}
        """When a server has not replied last."""

    def ask(self, config: Config, commands: Sequence[bytes]) -> list[Reply]:
        """The replies of the server that `config` names; error replies are in the list."""
        address = Address(config.host, config.port)
        began = monotonic()
        try:
            replies = self._queries.ask(config, commands, self._patience.seconds)
        except (ConnectionError, TimeoutError):
            self._silent[address] = began
            raise
        self._patience.on_reply(monotonic() - began)
        self._silent.pop(address, None)
        return replies

    def is_silent(self, address: Address) -> bool:
        """Whether a server has not replied lately."""
        return address in self._silent

    def sort(self, addresses: Iterable[Address], is_failing: Callable[[Address], bool]) -> list[Address]:
        """The addresses in their order; at the end the servers that are likely not to reply."""
        recent = monotonic() - SILENCE_REMEMBERED
        self._silent = {address: when for address, when in self._silent.items() if when > recent}
        return sorted(addresses, key=lambda address: address in self._silent or is_failing(address))

    def no_answer(self, failures: Sequence[RedisError], message: str) -> RedisError:
        """What to raise if no server has given an answer: the last of the failures, or one with that message."""
        if any(isinstance(error, TimeoutError) for error in failures):
            self._patience.on_silence()
        # An error that doesn't pass by itself says most.
        lasting = [error for error in failures if not is_transient(error)]
        return (lasting or failures or [ConnectionError(message)])[-1]

    def close(self) -> None:
        """Ends the question that is being asked. Can be called on any thread, takes no mutex."""
        self._queries.close()
