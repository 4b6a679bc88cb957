"""The server of the state machines, in memory and on a virtual clock, and how a machine is run."""

from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test
from redis.exceptions import RedisError

from pyredisson._core import command
from pyredisson._protocol.scripts import script
from tests.logic.simulator.keys import Value
from tests.logic.simulator.server import Server
from tests.lua.scripted import Call

Word = bytes | str | int
SETTINGS = settings(
    deadline=None,
    derandomize=True,
    print_blob=True,
    report_multiple_bugs=False,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)
"""The same examples every time. A failure is printed as the steps that lead to it."""


class Memory:
    """The simulator's server, whose time stands still but for `advance_time`."""

    def __init__(self) -> None:
        self.now = 1_800_000_000_000
        """Milliseconds."""
        self.messages: list[tuple[bytes, bytes]] = []
        """What was published."""
        self.server = Server(self._clock, self._publish)
        self.server.load_all()

    def script(self, name: str, *keys: Word, args: tuple[Word, ...] = ()) -> Any:
        """The reply to a script."""
        return self.command("EVALSHA", script(name, with_shebang=True).sha, len(keys), *keys, *args)

    def call(self, call: Call) -> Any:
        """The same."""
        return self.script(call.name, *call.keys, args=tuple(call.args))

    def command(self, *words: Word) -> Any:
        """The reply to a command, as another program would send it. An error is raised."""
        reply = self.server.execute(command(*[word.encode() if isinstance(word, str) else word for word in words]))
        if isinstance(reply, RedisError):
            raise reply
        return reply

    def keys(self) -> dict[bytes, tuple[Value, int]]:
        """The value of each key and its remaining time."""
        keyspace = self.server.keyspace
        values = {key: keyspace.value(key) for key in list(keyspace.values)}
        return {key: (value, keyspace.do_pttl(key)) for key, value in values.items() if value is not None}

    def advance_time(self, ms: int) -> None:
        """Lets so much time pass; the clock may be set back."""
        self.now += ms

    def _clock(self) -> float:
        # Half a millisecond on, so that no rounding leads to the one before.
        return (self.now + 0.5) / 1000

    def _publish(self, channel: bytes, payload: bytes) -> int:
        self.messages.append((channel, payload))
        return 1


def play(machine: type[RuleBasedStateMachine], examples: int, steps: int = 40) -> None:
    """Runs a state machine."""
    run_state_machine_as_test(machine, settings=settings(SETTINGS, max_examples=examples, stateful_step_count=steps))
