"""What all commands have in common: help, usage, common options, and an extra that is missing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from pyredisson._diagnostics import installation_of
from pyredisson.cli import main
from pyredisson.cli.main import COMMANDS
from pyredisson.cli.options import Settings, common
from pyredisson.cli.output import readable
from pyredisson.version import VERSION
from tests.support.commands import Commands, pyredisson

WITHOUT = "import sys; sys.modules['{}'] = None; from pyredisson.cli.entry import main; sys.exit(main())"


@pytest.fixture
def probe(command: Commands, monkeypatch: pytest.MonkeyPatch) -> Commands:
    """A command line whose command `probe` prints its settings."""

    @click.command()
    @common
    def probe(settings: Settings) -> None:
        config = settings.config
        click.echo(json.dumps([config.describe(), config.timeout, config.connect_timeout, settings.color]))
        click.echo(json.dumps([config.password, config.client_name]))

    monkeypatch.setitem(COMMANDS, "probe", main.Subcommand("completion:completion", "Prints the settings."))
    monkeypatch.setattr(main.LazyGroup, "get_command", lambda *_: probe)
    return command


class TestProcess:
    def test_as_a_script(self) -> None:
        """The script that the package installs."""
        script = Path(sys.executable).parent / "pyredisson"
        done = subprocess.run([script, "lss"], capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("pyredisson: no such command 'lss'; ")

    @pytest.mark.parametrize("package", ["click", "rich"])
    def test_a_missing_extra(self, package: str) -> None:
        """Without rich only the commands that print tables are missing."""
        ended = pyredisson("--version", code=WITHOUT.format(package))
        if package == "rich":
            assert ended == (0, f"pyredisson {VERSION}\n", "")
        else:
            text = f"pyredisson: {package} is missing, which this command needs: {installation_of('cli')}\n"
            assert ended == (2, "", text)

    def test_the_reader_has_gone(self) -> None:
        """As in `pyredisson ... | head -1`: that is no error to write about."""
        reader, writer = os.pipe()
        os.close(reader)
        try:
            program = [sys.executable, "-m", "pyredisson", "completion", "bash"]
            done = subprocess.run(program, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
        finally:
            os.close(writer)
        assert (done.returncode, done.stderr) == (1, "")


class TestUsage:
    def test_without_a_command(self, command: Commands) -> None:
        ended = command()
        assert (ended.status, ended.err) == (0, "")
        assert ended == command("--help")
        for name, subcommand in COMMANDS.items():
            assert f"  {name} " in ended.out
            assert subcommand.help in ended.out

    @pytest.mark.parametrize("name", COMMANDS)
    def test_every_command_has_help_with_an_example(self, command: Commands, name: str) -> None:
        ended = command(name, "--help")
        assert (ended.status, ended.err) == (0, "")
        assert "Example" in ended.out
        assert f"pyredisson {name}" in ended.out.partition("Example")[2]
        assert not re.search(r"--[\w-]+ .*\b(RANGE|TEXT|FLOAT|INTEGER|NUMBER)\b", ended.out)

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            (["complet"], "no such command 'complet'; did you mean 'completion'?; see 'pyredisson --help'"),
            (["completion"], "missing argument '{bash|zsh|fish}'"),
            (["completion", "csh"], "invalid value for '{bash|zsh|fish}': 'csh' is not one of 'bash', 'zsh', 'fish'"),
            (["completion", "bash", "x"], "got unexpected extra argument"),
            (["--verion"], "no such option '--verion'"),
            (["run", "a", "--wait", "b", "--", "c"], "invalid value for '--wait': 'b' is not a valid number of sec"),
            (["bench", "--seconds", "31"], "invalid value for '--seconds'"),
            (["bench", "--threads", "65"], "invalid value for '--threads'"),
            (["bench", "--asyncio-tasks", "10001"], "invalid value for '--asyncio-tasks'"),
        ],
    )
    def test_wrong_usage(self, command: Commands, arguments: list[str], text: str) -> None:
        ended = command(*arguments)
        assert (ended.status, ended.out) == (2, "")
        assert ended.err.startswith(f"pyredisson: {text}")
        assert ended.err.endswith("--help'\n")
        assert ended.err.count("\n") == 1


class TestCommonOptions:
    @pytest.mark.parametrize(
        ("arguments", "out"),
        [
            ("probe", '["localhost:6379/0", 3.0, 3.0, true]\n[null, null]\n'),
            ("--url redis://h:1/2 --timeout 0.5 --no-color probe", '["h:1/2", 0.5, 0.5, false]\n[null, null]\n'),
            ("probe --url redis://h:1/2 --timeout .5 --no-color", '["h:1/2", 0.5, 0.5, false]\n[null, null]\n'),
            ("--url redis://h:1 probe --url redis://h:2", '["h:2/0", 3.0, 3.0, true]\n[null, null]\n'),
        ],
    )
    def test_before_and_after_the_command(self, probe: Commands, arguments: str, out: str) -> None:
        assert probe(*arguments.split()) == (0, out, "")

    def test_variables(self, probe: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PYREDISSON_URL", "redis://h:7")
        monkeypatch.setenv("NO_COLOR", "1")
        monkeypatch.setenv("PYREDISSON_PASSWORD", "secret")
        assert probe("probe").out == '["h:7/0", 3.0, 3.0, false]\n["secret", null]\n'
        assert '"h:8/0"' in probe("probe", "--url", "redis://h:8").out
        assert '["other"' in probe("probe", "--url", "redis://:other@h:8").out

    def test_a_file_of_redisson(self, probe: Commands, tmp_path: Path) -> None:
        file = tmp_path / "redisson.yaml"
        file.write_text("singleServerConfig:\n  address: redis://h:9\n  clientName: billing\n  timeout: 9000\n")
        assert probe("probe", "--config", str(file)).out == '["h:9/0", 3.0, 3.0, true]\n[null, null]\n'

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            (["--url", "http://h"], "the URL can't be read"),
            (["--url", "redis://:secret@h:99999"], "the URL can't be read"),
            (["--timeout", "0"], "--timeout must be from 0.001 to 3600 seconds"),
            (["--timeout", "nan"], "--timeout must be from 0.001 to 3600 seconds"),
            (["--timeout", "x"], "invalid value for '--timeout'"),
            (["--config", "absent.yaml"], "invalid value for '--config': file 'absent.yaml' does not exist"),
            (["--config", __file__, "--url", "redis://h"], "--url and --config each name a server"),
            (["--config", __file__], ""),
        ],
    )
    def test_values_that_cannot_be_used(self, probe: Commands, arguments: list[str], text: str) -> None:
        ended = probe("probe", *arguments)
        assert (ended.status, ended.out) == (2, "")
        assert ended.err.lower().startswith(f"pyredisson: {text.lower()}")
        assert ended.err.count("\n") == 1
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


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("cron: nightly", "cron: nightly"),
        ("größe 漢字", "größe 漢字"),
        ("\x1b[2J", "\\x1b[2J"),
        ("a\nb\x9b\x7f", "a\\nb\\x9b\\x7f"),
        ("\u202ecilbup", "\\u202ecilbup"),
    ],
)
def test_a_name_cannot_control_the_terminal(name: str, shown: str) -> None:
    assert readable(name) == shown


def test_the_scripts_of_shells(command: Commands) -> None:
    """bash runs the one that it was given."""
    for shell in ("bash", "zsh", "fish"):
        ended = command("completion", shell)
        assert (ended.status, ended.err) == (0, "")
        assert f"_PYREDISSON_COMPLETE={shell}_complete" in ended.out
    bin_ = Path(sys.executable).parent
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
    """
    done = subprocess.run(
        ["bash", "-c", program, "bash", str(bin_)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("completion\nfish\n--timeout\n", "")
