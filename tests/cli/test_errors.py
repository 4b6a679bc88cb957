"""What all commands have in common: help, usage, options; what they say when they refuse, or can't do their work."""

import json
import os
import re
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, cast

import click
import pytest

from pyredisson._diagnostics import installation_of, printable
from pyredisson.cli import main
from pyredisson.cli.main import COMMANDS
from pyredisson.cli.options import Settings, common
from pyredisson.testing import Server
from pyredisson.version import VERSION
from tests.support.children import TIMEOUT, Commands, Ended, completed, output, pyredisson

from .conftest import FORKS, JAVA, Run, begin

pytestmark = FORKS
WITHOUT = "import sys; sys.modules['{}'] = None; from pyredisson.cli.entry import main; sys.exit(main())"
VARIABLES = {"PYREDISSON_URL": "redis://h:7", "PYREDISSON_PASSWORD": "secret", "NO_COLOR": "1"}
CALLS = [
    *(["ls"], ["inspect", "orders"], ["unlock", "orders", "--yes"], ["rm", "orders"], ["run", "orders", "--", "true"]),
    *(["permits", "orders", "--free", "2", "--yes"], ["doctor"], ["bench", "--seconds", "0.1"]),
]
"""The commands that ask a server, each with what it needs."""
GUESS = "a number: a semaphore or a latch, if it is one of ours"
HELD = ("HSET", "orders", f"{JAVA}:31", 1)
READERS = ("HSET", "orders", "mode", "read", f"{JAVA}:1", 1, f"{JAVA}:2", 1)
NUMBER = ("SET", "orders", 2)
SEMAPHORE = (NUMBER, ("SET", f"pyredisson_once:{{orders}}:{JAVA}:0:semaphore", "2 1", "PX", 60_000))
LATCH = (NUMBER, ("SET", f"pyredisson_once:{{orders}}:{JAVA}:0:latch", "2 1", "PX", 60_000))
PERMITS = ("ZADD", "{orders}:timeout", 9e15, "0123456789abcdef", 9e15, "0123456789abcdeg")
COUNTER = ("SET", "redisson_lock_token:{orders}", 5)
PLACE = ("RPUSH", "redisson_lock_queue:{orders}", f"{JAVA}:31")
SCORE = ("ZADD", "redisson_lock_timeout:{orders}", 9 * 10**12, f"{JAVA}:31")
SET = ("--free", "3", "--yes")


def one_line(ended: Ended, status: int, *texts: str) -> None:
    """All that it says is one line with these texts."""
    assert (ended.status, ended.out, ended.err.count("\n"), ended.err[-1:]) == (status, "", 1, "\n")
    assert (ended.err.startswith("pyredisson: "), ended.err.count("pyredisson: ")) == (True, 1)
    assert not [text for text in texts if text not in ended.err], ended.err


@pytest.fixture
def probe(command: Commands, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Commands:
    """A command line whose command `probe` prints its settings, beside a file of Redisson."""
    settings = "singleServerConfig:\n  address: redis://h:9\n  clientName: billing\n  timeout: 9000\n"
    (tmp_path / "redisson.yaml").write_text(settings)
    monkeypatch.chdir(tmp_path)

    @click.command()
    @common
    def probe(settings: Settings) -> None:
        config = settings.config
        times = config.timeout, config.connect_timeout
        click.echo(json.dumps([config.describe(), *times, settings.color, config.password, config.client_name]))

    monkeypatch.setitem(COMMANDS, "probe", ("reading", "Prints the settings."))
    monkeypatch.setattr(main.LazyGroup, "get_command", lambda *_: probe)
    return command


class TestProcess:
    def test_a_missing_extra_and_no_server(self) -> None:
        """Without rich only the commands that print tables are missing. No log of the library, no traceback at exit."""
        text = "no server at 127.0.0.1:1/0 (connection refused); say where it is with --url or PYREDISSON_URL"
        assert pyredisson("ls", env={"PYREDISSON_URL": "redis://127.0.0.1:1"}) == (69, "", f"pyredisson: {text}\n")
        assert pyredisson("--version", code=WITHOUT.format("rich")) == (0, f"pyredisson {VERSION}\n", "")
        text = f"pyredisson: click is missing, which this command needs: {installation_of('cli')}\n"
        assert pyredisson("--version", code=WITHOUT.format("click")) == (2, "", text)

    def test_the_reader_has_gone(self) -> None:
        """As in `pyredisson ... | head -1`: that is no error to write about."""
        reader, writer = os.pipe()
        os.close(reader)
        with begin("completion", "bash", stdout=writer) as process:
            os.close(writer)
            assert (process.wait(TIMEOUT), cast(IO[str], process.stderr).read()) == (1, "")


class TestUsage:
    def test_every_command_has_help_with_an_example(self, command: Commands) -> None:
        # Below each is tested: `watch` first looks for a terminal, and `dashboard` starts without a server.
        assert {call[0] for call in CALLS} == COMMANDS.keys() - {"completion", "watch", "dashboard"}
        overview = command("--help")
        assert overview == command()
        for name, (_, text) in COMMANDS.items():
            assert (f"  {name} " in overview.out, text in overview.out) == (True, True)
            shown = output(command(name, "--help"))
            assert f"pyredisson {name}" in shown.partition("Example")[2]
            assert not re.search(r"--[\w-]+ .*\b(RANGE|TEXT|FLOAT|INTEGER|NUMBER)\b", shown)

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            (["complet"], "no such command 'complet'; did you mean 'completion'?; see 'pyredisson --help'"),
            (["completion"], "missing argument '{bash|zsh|fish}'"),
            (["completion", "csh"], "invalid value for '{bash|zsh|fish}': 'csh' is not one of 'bash', 'zsh', 'fish'"),
            (["completion", "bash", "x"], "got unexpected extra argument"),
            (["--verion"], "no such option '--verion'"),
            (["run", "job"], "missing argument '-- COMMAND...'"),
            (["run", "", "--", "c"], "a name must not be empty"),
            (["run", "a", "--wait", "b", "--", "c"], "invalid value for '--wait': 'b' is not a valid number of sec"),
            (["run", "a", "--wait", "1", "--no-wait", "--", "c"], "--wait and --no-wait exclude each other"),
            (["run", "a", "--fair", "--semaphore", "2", "--", "c"], "--fair and --semaphore exclude each other"),
            (["run", "a", "--lease", "1", "--at-most", "1", "--", "c"], "--lease and --at-most exclude each other"),
            (["run", "a", "--lease", "1", "--ttl", "1", "--", "c"], "--lease and --ttl exclude each other"),
            (["run", "a", "--semaphore", "1", "--ttl", "1", "--", "c"], "--at-most and --ttl are for locks: use"),
            (["run", "a", "-q", "-v", "--", "c"], "--quiet and --verbose exclude each other"),
            (["run", "a", "--lease", "0", "--", "c"], "invalid value for '--lease'"),
            (["run", "a", "--semaphore", "0", "--", "c"], "invalid value for '--semaphore'"),
            (["run", "a", "--grace", "nan", "--", "c"], "invalid value for '--grace'"),
            (["bench", "--seconds", "31"], "invalid value for '--seconds'"),
            (["bench", "--threads", "65"], "invalid value for '--threads'"),
            (["bench", "--asyncio-tasks", "10001"], "invalid value for '--asyncio-tasks'"),
            (["dashboard", "--token", "short"], "--token must have"),
            *((["dashboard", "--token", no], "--token must be") for no in ("längeres", " begins with", "new\nline")),
        ],
    )
    def test_wrong_usage(self, command: Commands, arguments: list[str], text: str) -> None:
        one_line(command(*arguments), 2, f"pyredisson: {text}", "--help'\n")


class TestCommonOptions:
    @pytest.mark.parametrize(
        ("env", "arguments", "found"),
        [
            ({}, "probe", ["localhost:6379/0", 3.0, 3.0, True, None, None]),
            ({}, "--url redis://h:1/2 --timeout 0.5 --no-color probe", ["h:1/2", 0.5, 0.5, False, None, None]),
            ({}, "probe --url redis://h:1/2 --timeout .5 --no-color", ["h:1/2", 0.5, 0.5, False, None, None]),
            ({}, "--url redis://h:1 probe --url redis://h:2", ["h:2/0", 3.0, 3.0, True, None, None]),
            ({}, "probe --config redisson.yaml", ["h:9/0", 3.0, 3.0, True, None, None]),
            (VARIABLES, "probe", ["h:7/0", 3.0, 3.0, False, "secret", None]),
            (VARIABLES, "probe --url redis://h:8", ["h:8/0", 3.0, 3.0, False, "secret", None]),
            (VARIABLES, "probe --url redis://:other@h:8", ["h:8/0", 3.0, 3.0, False, "other", None]),
        ],
    )
    def test_where_they_may_be_given(
        self, probe: Commands, monkeypatch: pytest.MonkeyPatch, env: dict[str, str], arguments: str, found: list[object]
    ) -> None:
        """Before and after the command, in variables, and in a file of Redisson, of which the address counts."""
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        ended = probe(*arguments.split())
        assert (ended.status, json.loads(ended.out), ended.err) == (0, found, "")

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            (["--url", "http://h"], "the URL can't be read"),
            (["--url", "redis://:secret@h:99999"], "the URL can't be read"),
            (["--timeout", "0"], "invalid value for '--timeout': 0.0 is not in the range 0.001<=x<=3600"),
            (["--timeout", "nan"], "invalid value for '--timeout': 'nan' is not a time"),
            (["--timeout", "x"], "invalid value for '--timeout'"),
            (["--config", "absent.yaml"], "invalid value for '--config': file 'absent.yaml' does not exist"),
            (["--config", __file__, "--url", "redis://h"], "--url and --config each name a server"),
            (["--config", __file__], ""),
        ],
    )
    def test_values_that_cannot_be_used(self, probe: Commands, arguments: list[str], text: str) -> None:
        one_line(ended := probe("probe", *arguments), 2)
        assert ended.err.lower().startswith(f"pyredisson: {text.lower()}")
        assert "secret" not in ended.err

    def test_a_defect(self, probe: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
        def broken(*_: object) -> None:
            raise ZeroDivisionError("a defect")

        monkeypatch.setattr("pyredisson.cli.options.Settings", broken)
        ended = probe("probe")
        text = "unexpected error: ZeroDivisionError: a defect; PYREDISSON_DEBUG=1 shows the traceback"
        assert ended == (70, "", f"pyredisson: {text}\n")
        monkeypatch.setenv("PYREDISSON_DEBUG", "1")
        with pytest.raises(ZeroDivisionError):
            probe("probe")


def test_a_name_cannot_control_the_terminal() -> None:
    shown = {"\x1b[2J": "\\x1b[2J", "a\nb\x9b\x7f": "a\\nb\\x9b\\x7f", "\u202ecilbup": "\\u202ecilbup"}
    shown |= {name: name for name in ("cron: nightly", "größe 漢字")}
    assert {name: printable(name) for name in shown} == shown


def test_the_scripts_of_shells(command: Commands) -> None:
    """bash runs the one that it was given, with the script that the package installs."""
    for shell in ("bash", "zsh", "fish"):
        assert f"_PYREDISSON_COMPLETE={shell}_complete" in output(command("completion", shell))
    program = """
        PATH=$1:$PATH
        eval "$(pyredisson completion bash)"
        words() {
            COMP_WORDS=("$@")
            COMP_CWORD=$(($# - 1))
            COMPREPLY=()
            _pyredisson_completion pyredisson 2>/dev/null
            echo "${COMPREPLY[@]}"
        }
        words pyredisson compl
        words pyredisson completion f
        words pyredisson --ti
        pyredisson lss
    """
    done = completed("bash", "-c", program, "bash", Path(sys.executable).parent, timeout=TIMEOUT)
    assert (done.returncode, done.stdout) == (2, "completion\nfish\n--timeout\n")
    assert done.stderr.startswith("pyredisson: no such command 'lss'; ")


@pytest.fixture(scope="module")
def guarded() -> Iterator[str]:
    with Server(password="right") as server:
        yield f"127.0.0.1:{server.port}"


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call[0])
def test_no_server(command: Commands, call: list[str]) -> None:
    here = "127.0.0.1:1"
    of_many = (f"redis+cluster://{here},127.0.0.1:2", f"redis+sentinel://{here}/mymaster")
    for url in (f"redis://{here}", *of_many, "unix:///nowhere.sock"):
        # Refused at once. On a busy machine the thread that asks for the topology may begin late.
        one_line(command("--url", url, "--timeout", "3", *call), 69, "no server at ", "--url")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        for scheme, more in (("redis", ""), ("rediss", "; no TLS handshake")):
            ended = command("--url", f"{scheme}://127.0.0.1:{port}", "--timeout", "0.3", *call)
            one_line(ended, 69, f"no reply from 127.0.0.1:{port}/0 within 0.3 s{more}")


@pytest.mark.parametrize("call", [*CALLS, ["dashboard", "--port", "0"]], ids=lambda call: call[0])
def test_access(command: Commands, call: list[str], user: Callable[[str], str], guarded: str) -> None:
    one_line(command("--url", f"redis://{guarded}", *call), 77, "wants a password", "PYREDISSON_PASSWORD")
    ended = command("--url", f"redis://:secret@{guarded}", *call)
    one_line(ended, 77, "refuses the user name or the password")
    assert "secret" not in ended.err
    # The tests of these commands cover the rights.
    if call[0] not in ("doctor", "bench", "dashboard"):
        one_line(command("--url", user("~* +@connection"), *call), 77, "no permissions", "ACL SETUSER")


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("redis://nowhere.invalid", "no server at nowhere.invalid:6379/0 ("),
        ("redis://{}/99", "{}/99 replied with an error: ERR DB index is out of range"),
        ("redis+cluster://{}", "the server at {} is not a node of a cluster: a single server is addressed as redis://"),
        ("redis+sentinel://{}/mymaster", "is no Sentinel"),
    ],
)
def test_another_server_than_the_address_says(command: Commands, server: Server, url: str, text: str) -> None:
    address = f"{server.host}:{server.port}"
    one_line(command("ls", "--url", url.format(address)), 69, text.format(address))


@pytest.mark.parametrize(
    ("keys", "arguments", "status", "text"),
    [
        ((HELD,), ["unlock"], 2, "pyredisson: nobody can be asked here: give --yes; "),
        ((READERS,), ["unlock", "--yes"], 2, "pyredisson: lock 'orders' has 2 readers: --all-readers releases them; "),
        ((PERMITS,), ["unlock", "--yes"], 2, "--permit; 'inspect' lists them"),
        ((PERMITS,), ["unlock", "--yes", "--permit", "ab" * 16], 1, f"'orders' has no permit {'ab' * 16} in use\n"),
        (SEMAPHORE, ["unlock", "--yes"], 2, "of which no single hold can be released"),
        (LATCH, ["unlock", "--yes"], 2, "of which no single hold can be released"),
        ((NUMBER,), ["permits", *SET], 2, f"'orders' may be something else: --yes is refused ({GUESS})"),
        ((("SET", "orders", "x"),), ["permits", *SET], 1, "'orders' is no semaphore: a string that is no number"),
        ((HELD,), ["permits", *SET], 2, "'orders' is a lock, not a semaphore"),
        ((PERMITS,), ["permits", *SET], 2, "'unlock --permit' releases one"),
        ((("SET", "other", 2),), ["permits", *SET], 1, "'orders' is no semaphore: there is no such key"),
        (SEMAPHORE, ["permits", "--free", "3"], 2, "nobody can be asked here: give --yes"),
        ((COUNTER, HELD), ["rm"], 1, "lock 'orders' is held"),
        ((COUNTER, PLACE, SCORE), ["rm"], 1, "lock 'orders' is waited for"),
    ],
)
def test_what_is_refused(cli: Run, redis: Any, keys: Any, arguments: list[str], status: int, text: str) -> None:
    for key in keys:
        redis.execute_command(*key)
    before = {key: redis.dump(key) for key in redis.scan_iter()}
    ended = cli(arguments[0], "orders", *arguments[1:])
    assert ended.status == status
    assert text in ended.err
    assert {key: redis.dump(key) for key in redis.scan_iter()} == before
