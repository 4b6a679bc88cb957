"""The Sentinels that one client knows, and how they are asked."""

from __future__ import annotations

import random
from collections.abc import Sequence

from redis.exceptions import AuthenticationError, RedisError
from redis.sentinel import MasterNotFoundError

from pyredisson._client.topology.servers import Servers
from pyredisson._protocol.sentinel import SentinelAnswer, read_sentinel, sentinel_query
from pyredisson._settings.address import Address
from pyredisson._settings.config import Config
from pyredisson.errors import UnsupportedServerError


class Sentinels:
    """The Sentinels that the user has named, and others that they know. Used by one thread, apart from `close`."""

    def __init__(self, config: Config) -> None:
        assert config.master_name is not None
        self._config = config
        self._name = config.master_name
        self._query = sentinel_query(self._name)
        self._servers = Servers(config)
        self._order = random.sample(config.nodes, len(config.nodes))
        """The one that answered last is the first."""
        self._data_credentials = False
        """Whether they take the credentials of the servers that store the locks."""

    def in_turn(self) -> list[Address]:
        """All of them, in the order in which they should be asked."""
        return self._servers.sort(self._order, lambda _: False)

    def known(self) -> list[Address]:
        """All of them. Can be called on any thread."""
        return list(self._order)

    def is_silent(self, sentinel: Address) -> bool:
        """Whether it has not replied lately."""
        return self._servers.is_silent(sentinel)

    def prefer(self, sentinel: Address) -> None:
        """Has this one asked first from now on. Can be called on any thread."""
        self._order = [sentinel, *(other for other in self._order if other != sentinel)]

    def ask(self, sentinel: Address) -> SentinelAnswer:
        """What one of them says. Raises an error if it says nothing about this master."""
        try:
            replies = self._ask_with_credentials(sentinel)
            answer = read_sentinel(replies, sentinel)
        except RedisError as error:
            if str(error).startswith("ERR unknown command"):
                raise UnsupportedServerError(
                    f"the server at {sentinel} is no Sentinel: a single server is addressed as redis://host:port, a"
                    " cluster as redis+cluster://host:port"
                ) from error
            raise
        if answer is None:
            raise MasterNotFoundError(f"the Sentinel at {sentinel} knows no master named {self._name}")
        # Removed Sentinels are no longer asked, but all that the user has named are.
        present = dict.fromkeys((*self._config.nodes, sentinel, *map(self._config.map_address, answer.sentinels)))
        self._order = [other for other in self._order if other in present]
        self._order += [other for other in present if other not in self._order]
        return answer

    def config_of(self, sentinel: Address) -> Config:
        """The settings of a connection to one of them."""
        return self._config.at_sentinel(sentinel, data_credentials=self._data_credentials)

    def no_answer(self, failures: Sequence[RedisError]) -> RedisError:
        """What to raise if none of them has named a server that is the master."""
        return self._servers.no_answer(failures, f"no Sentinel of {self._name} has replied")

    def close(self) -> None:
        """Ends the question that is being asked. Can be called on any thread, takes no mutex."""
        self._servers.close()

    def _ask_with_credentials(self, sentinel: Address) -> list[object]:
        replies = self._servers.ask(self.config_of(sentinel), self._query)
        if not isinstance(replies[0], AuthenticationError) or self._config.sentinel_password is not None:
            return replies
        if self._data_credentials or (self._config.password is None and self._config.credential_provider is None):
            return replies
        # As Redisson does: without a password for the Sentinels, they may have the password of the servers.
        replies = self._servers.ask(self._config.at_sentinel(sentinel, data_credentials=True), self._query)
        self._data_credentials = True
        return replies
