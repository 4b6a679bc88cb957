"""Django: a project of one file, its management commands as processes, its views in Django's test client."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import PIPE, Popen

import pytest
from redis import Redis

import pyredisson
from pyredisson.testing import Server

MANAGE = """
import os, sys
from django.conf import settings
from django.core.management import execute_from_command_line

settings.configure(
    INSTALLED_APPS=["pyredisson.django", "work"],
    ROOT_URLCONF="work.urls",
    LOCKS={"default": {"URL": os.environ["URL"], "NAME_MAPPER": "app:{}".format}},
)
execute_from_command_line(sys.argv)
"""
COMMAND = """
from django.core.management.base import BaseCommand
from pyredisson.django import client

class Command(BaseCommand):
    def add_arguments(self, parser):
        parser.add_argument("--text")

    def handle(self, *args, text, **options):
        print(text, client().get_lock("nightly").is_locked(), flush=True)
        input()
"""
URLS = """
from django.http import HttpResponse
from django.urls import path
from pyredisson.django import client

def pay(request, order):
    with client().get_lock(f"order:{order}").hold(wait_time=0) as lock:
        return HttpResponse(lock.is_held())

urlpatterns = [path("pay/<int:order>", pay)]
"""
TRIES = """
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.test import Client, override_settings

import pyredisson
from pyredisson.django import client

def error_of(wanted, function, *args):
    try:
        function(*args)
    except wanted as error:
        return error
    raise AssertionError(f"{args}: no error")

# A view.
assert client() is client()
assert Client().get("/pay/007").content == b"True"
with client().singleton("order:7"):
    error_of(pyredisson.LockTimeoutError, Client().get, "/pay/7")

# Checks.
assert run_checks() == []
down = {"URL": "redis://127.0.0.1:1", "RETRY_ATTEMPTS": 0}
wrong = {"a": {"UR": "x"}, "b": {"URL": "http://h"}, "c": {"PORT": "x"}, "down": down}
before = client()
with override_settings(LOCKS=wrong):
    found = {(each.id, each.msg.partition(":")[0]) for each in run_checks()}
    assert found == {
        ("pyredisson.E002", "LOCKS['a'] has unknown keys"), ("pyredisson.E003", "LOCKS['b']"),
        ("pyredisson.E003", "LOCKS['c']"), ("pyredisson.W001", "LOCKS has no entry 'default'"),
    }, found
    assert before.closed
    assert "no entry 'default'" in str(error_of(ImproperlyConfigured, client))
    assert "LOCKS['c']: port must" in str(error_of(ImproperlyConfigured, client, "c"))
    error = error_of(CommandError, call_command, "run_locked", "it", "--no-wait", "--locks", "down", "work")
    assert (error.returncode, "the server of the locks" in str(error)) == (69, True), error
with override_settings(LOCKS=[]):
    assert [each.id for each in run_checks()] == ["pyredisson.E001"]
error = error_of(CommandError, call_command, "run_locked", "it", "--at-least", "-1", "work")
assert (error.returncode, "at_least must" in str(error)) == (1, True), error
print("tried")
"""


@pytest.fixture
def manage(tmp_path: Path, server: Server) -> Iterator[Callable[..., Popen[str]]]:
    """Starts a management command of the project."""
    commands = tmp_path / "work" / "management" / "commands"
    commands.mkdir(parents=True)
    for folder in (commands, commands.parent, commands.parent.parent):
        (folder / "__init__.py").touch()
    (commands / "work.py").write_text(COMMAND)
    (tmp_path / "work" / "urls.py").write_text(URLS)
    (tmp_path / "manage.py").write_text(MANAGE)

    started: list[Popen[str]] = []

    def start(*arguments: str) -> Popen[str]:
        command = [sys.executable, "-W", "error", "manage.py", *arguments]
        env = os.environ | {"URL": server.url}
        started.append(Popen(command, cwd=tmp_path, env=env, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True))
        return started[-1]

    yield start
    for each in started:
        each.kill()
        with each:
            pass


def end(process: Popen[str], text: str = "") -> tuple[int, str, str]:
    out, err = process.communicate(text)
    return process.returncode, out, err


def test_run_locked(manage: Callable[..., Popen[str]], server: Server, admin: Redis) -> None:
    first = manage("run_locked", "nightly", "--at-least", "600", "--", "work", "--text", "first")
    assert first.stdout is not None
    assert first.stdout.readline() == "first True\n"
    waiting = manage("run_locked", "nightly", "--", "work", "--text", "second")

    status, out, err = end(manage("run_locked", "nightly", "--no-wait", "work"))
    assert (status, out) == (75, "")
    assert err.startswith("CommandError: lock 'app:nightly' is held by ")
    assert end(first, "\n")[0] == 0

    # At least so long, though the work is done; until then nobody else begins.
    assert 60 < admin.ttl("app:nightly") <= 600
    with pyredisson.connect(server.url) as client:
        client.get_lock("app:nightly").force_unlock()
    assert waiting.stdout is not None
    assert waiting.stdout.readline() == "second True\n"
    with pyredisson.connect(server.url) as client:
        client.get_lock("app:nightly").force_unlock()
    status, _, err = end(waiting, "\n")
    assert (status, "lost" in err) == (74, True), err


def test_views_checks_and_errors(manage: Callable[..., Popen[str]], admin: Redis) -> None:
    status, out, err = end(manage("shell", "-v", "0", "-c", TRIES))
    assert (status, out) == (0, "tried\n"), err
    assert admin.keys() == []
