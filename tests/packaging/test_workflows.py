"""The workflows for GitHub parse, call what exists, and have no more rights than they need."""

import os
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.children import completed

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PYTHONS = {"cp311", "cp312", "cp313", "cp314", "cp314t", "cp315"}


def load(name: str) -> Any:
    return yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text("utf-8"))


def steps(workflow: dict[Any, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def commands(workflow: dict[Any, Any]) -> list[str]:
    return [line for step in steps(workflow) for line in step.get("run", "").splitlines()]


def test_there_are_workflows() -> None:
    assert {path.name for path in WORKFLOWS} == {"ci.yml", "docs.yml", "wheels.yml"}
    assert ".ci/run" in commands(load("ci.yml"))
    assert set(load("ci.yml")[True]) == {"push", "pull_request"}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_is_bounded_may_only_read_and_calls_what_exists(path: Path) -> None:
    workflow = load(path.name)
    # YAML reads the key `on` as true.
    assert {"name", True, "permissions", "jobs"} <= set(workflow)
    assert workflow["permissions"]["contents"] == "read"
    for name, job in workflow["jobs"].items():
        assert job["timeout-minutes"] <= 90, name
    for step in steps(workflow):
        assert ("uses" in step) != ("run" in step), step
        assert "uses" not in step or re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|release/v\d+)", step["uses"]), step
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    for line in commands(workflow):
        program, _, rest = line.partition(" ")
        if program == "make":
            assert rest in targets, line
        elif "/" in program:
            assert os.access(ROOT / program, os.X_OK), line
        else:
            assert program in {"sudo", "python"}, line


def test_nothing_is_published_but_from_a_tag() -> None:
    workflow = load("wheels.yml")
    jobs = workflow["jobs"]
    [name] = [name for name in jobs if any("pypi-publish" in step.get("uses", "") for step in jobs[name]["steps"])]
    assert jobs[name]["if"] == "startsWith(github.ref, 'refs/tags/v')"
    assert set(jobs[name]["needs"]) == set(jobs) - {name}
    assert jobs[name]["permissions"] == {"id-token": "write"}
    assert "pull_request" not in workflow[True]


@pytest.mark.parametrize("machine", load("wheels.yml")["jobs"]["wheels"]["strategy"]["matrix"]["include"], ids=str)
def test_each_machine_builds_the_wheels_of_its_kind(machine: dict[str, str]) -> None:
    platform, arch = machine["platform"], machine["arch"]
    command = ["-m", "cibuildwheel", "--print-build-identifiers", "--platform", platform, "--archs", arch, "."]
    printed = completed(sys.executable, *command, cwd=ROOT, check=True).stdout
    systems = {"linux": ("manylinux", "musllinux"), "macos": ("macosx",)}[platform]
    assert set(printed.split()) == {f"{python}-{system}_{arch}" for python in PYTHONS for system in systems}


def test_the_interpreters_that_are_built_tested_and_named() -> None:
    classifiers = "\n".join(PROJECT["project"]["classifiers"])
    supported = re.findall(r"^Programming Language :: Python :: (3\.\d+)$", classifiers, re.MULTILINE)
    assert {f"cp{version.replace('.', '')}" for version in supported} == PYTHONS - {"cp314t"}
    oldest, *_, newest = supported
    unlocked = "3.14t"
    assert f"\noldest={oldest} newest={newest} unlocked={unlocked}\n" in (ROOT / ".ci" / "run").read_text("utf-8")
    (setup,) = [step for step in steps(load("ci.yml")) if step.get("uses", "").startswith("actions/setup-python")]
    assert setup["with"]["python-version"].split() == [unlocked, newest, oldest]
    assert f"CPython {oldest} and {newest}." in (ROOT / "README.md").read_text("utf-8")


def test_what_is_tested_on_each_interpreter_exists_and_has_what_it_needs() -> None:
    settings, project = PROJECT["tool"]["cibuildwheel"], PROJECT["project"]
    for tested in ((ROOT / ".ci" / "run").read_text("utf-8"), *settings["test-command"][:1]):
        paths = re.findall(r"tests/[\w/.]+", tested)
        assert paths
        assert all((ROOT / path).exists() for path in [*paths, *settings["test-sources"]]), tested
    plugins = {re.split("[>=]", each)[0] for each in settings["test-requires"]}
    assert plugins <= {re.split("[>=;]", each)[0] for each in project["optional-dependencies"]["test"]}
