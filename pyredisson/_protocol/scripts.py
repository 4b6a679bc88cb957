"""The scripts of `lua/`: for each its SHA1 and the constant beginning of the command that runs it."""

import re
from collections.abc import Hashable, Sequence
from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import TYPE_CHECKING

from pyredisson._core import command
from pyredisson._protocol.pubsub import PubSub
from pyredisson._protocol.replies import reader

_INCLUDE = re.compile(r"(?m)^ *-- include: (.*)\n")

_TABLE = """
client_announce *, exactly_once_delete *
fair_acquire 5 6, fair_delete 5 2, fair_force_release 5 2, fair_hand_over 5 5, fair_heartbeat *, fair_leave *
fair_release 5 4
fenced_acquire 5 5, fenced_delete 5 3, fenced_hand_over 4 4, fenced_write *
inspect_scan 0 2, inspect_state 16 5
latch_count_down 2 2, latch_set 2 3
lock_acquire 3 5, lock_force_release 3 3, lock_hand_over 2 4, lock_keep 3 6, lock_holder 1 0, lock_leave *
lock_move 1 3, lock_release 3 6, lock_renew *, lock_wake_waiters *
permit_acquire *, permit_count 5 1, permit_lease *, permit_release *, permit_renew *, permit_set 6 3
read_acquire 6 7, read_locked 1 0, read_move 2 3, read_release 6 5, read_renew *
read_write_force_release 4 4
semaphore_acquire 6 9, semaphore_add 5 5, semaphore_correct 5 4, semaphore_finish 5 4, semaphore_hand_over 5 6
semaphore_leave 4 3, semaphore_set 5 4
write_acquire 5 5, write_hand_over 5 7, write_leave 5 3, write_let_readers_in *, write_release 5 6
"""
"""Each script with its numbers of keys and of arguments. `*`: these vary from call to call."""
_SHAPES: dict[str, tuple[int, int] | None] = {
    name: (int(keys), int(args)) if keys else None
    for name, keys, args in re.findall(r"(\w+) (?:\*|(\d+) (\d+))", _TABLE)
}


class Script:
    """One file of `lua/`, in the form for one kind of server.

    Servers from 7.0 on get the text with its `#!lua` line, whose flags let a release run when the server is out of
    memory, and make a replica reply READONLY. Older servers would not compile it. A line `-- include: name` stands for
    the text of `name.lua`, and `-- include: publish` for the file for the flavours of messages.

    Each run of a script defines its functions anew, which costs as much as the commands of a free lock. So a script
    deals with its usual case, in which nobody waits, before it includes what only a list or a queue needs.
    """

    def __init__(self, name: str, *, with_shebang: bool, pubsub: PubSub = PubSub.PLAIN) -> None:
        text = _text(name, pubsub)
        if not with_shebang:
            shebang, _, text = text.partition("\n")
            if not shebang.startswith("#!lua"):
                raise AssertionError(f"{name}.lua doesn't begin with a #!lua line")
        self.name = name
        self.text = text.encode()
        self.sha = sha1(self.text, usedforsecurity=False).hexdigest().encode()

    def head(self, keys: int, args: int) -> bytes:
        """The part of the EVALSHA command before its first key."""
        return b"*%d\r\n$7\r\nEVALSHA\r\n$40\r\n%s\r\n$%d\r\n%d\r\n" % (3 + keys + args, self.sha, len(str(keys)), keys)


def _text(name: str, pubsub: PubSub) -> str:
    """The text of a file, with the texts of the files that it includes."""
    file = f"publish_{pubsub.value}" if name == "publish" else name
    text = files("pyredisson.lua").joinpath(f"{file}.lua").read_text("utf-8")
    return _INCLUDE.sub(lambda line: _text(line[1], pubsub), text)


class ScriptSet:
    """All scripts, as attributes with their names.

    The attribute of a script with a shape is its head, the beginning of a whole command: `pack(scripts.name, *keys,
    *args)`. For a script whose numbers of keys and arguments vary it is its SHA1, one word of the
    command: `command(b"EVALSHA", scripts.name, number_of_keys, *keys, *args)`.

    A client keeps one object for its whole life. `use` switches it to the kind of server that it is connected to. How
    the scripts publish never changes: it follows from the client's settings. So no script is sent, before the first
    connection is made, in a form that some listeners don't hear.
    """

    with_shebang: bool

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> bytes:
            """The head or the SHA1 of the script of that name."""

    def __init__(self, pubsub: PubSub = PubSub.PLAIN, *, shared: bool = False) -> None:
        """`shared`: the scripts are sent to several servers."""
        self.pubsub = pubsub
        self._shared = shared
        self.texts_on_way: set[tuple[Hashable, bytes] | None] = set()
        """The servers and the SHA1s of the scripts whose text was sent, while there is no reply."""
        self.use(with_shebang=True)

    def on_connected(self, *, with_shebang: bool) -> None:
        """A server was found out to know the `#!lua` line, or not to know it."""
        # Of several servers some may be older than others. All of them take scripts without the line.
        if self.with_shebang != with_shebang and not (self._shared and with_shebang):
            self.use(with_shebang=with_shebang)

    def use(self, *, with_shebang: bool) -> None:
        self.with_shebang = with_shebang
        scripts = _scripts(with_shebang, self.pubsub)
        for name, shape in _SHAPES.items():
            script = scripts[name]
            setattr(self, name, script.sha if shape is None else script.head(*shape))

    def as_eval(self, payload: bytes) -> bytes:
        """A call by EVALSHA as an EVAL with the script's text: it is sent after a NOSCRIPT reply."""
        _, sha, *rest = words_of(payload)
        name, pubsub = _KNOWN[sha]
        return command(b"EVAL", _scripts(self.with_shebang, pubsub)[name].text, *rest)


NAMES = tuple(_SHAPES)
_KNOWN: dict[bytes, tuple[str, PubSub]] = {}
"""The name and the form of each script that a client has used, by its SHA1 and by its text."""
_PUBLISHING_BOTH: dict[bytes, bytes] = {}
"""For each script of `PubSub.AUTO` that publishes, by its SHA1 and by its text, what `PubSub.BOTH` has instead."""
_VERBS = (b"EVALSHA", b"EVAL")


@cache
def _scripts(with_shebang: bool, pubsub: PubSub) -> dict[str, Script]:
    scripts = {name: Script(name, with_shebang=with_shebang, pubsub=pubsub) for name in NAMES}
    # A script that publishes nothing is the same in all forms, so its SHA1 may be known.
    _KNOWN.update((key, (name, pubsub)) for name, script in scripts.items() for key in (script.sha, script.text))
    if pubsub is PubSub.AUTO:
        for name, both in _scripts(with_shebang, PubSub.BOTH).items():
            if both.sha != scripts[name].sha:
                _PUBLISHING_BOTH.update({scripts[name].sha: both.sha, scripts[name].text: both.text})
    return scripts


def words_of(payload: bytes) -> list[bytes]:
    """The words of a packed command."""
    parser = reader()
    parser.feed(payload)
    words: list[bytes] = parser.gets()
    return words


def script_name(words: Sequence[bytes]) -> str:
    """The name of the script that a command runs, from the words of the command; empty: it runs none of these."""
    known = _KNOWN.get(words[1]) if words[0] in _VERBS else None
    return "" if known is None else known[0]


def as_publishing_both(payload: bytes) -> bytes:
    """The same call with the script of `PubSub.BOTH` instead of `PubSub.AUTO`. Any other command stays as it is."""
    words = words_of(payload)
    both = _PUBLISHING_BOTH.get(words[1]) if words[0] in _VERBS else None
    return payload if both is None else command(words[0], both, *words[2:])


def script(name: str, *, with_shebang: bool, pubsub: PubSub = PubSub.PLAIN) -> Script:
    """One script, for callers that run it through another client."""
    return _scripts(with_shebang, pubsub)[name]
