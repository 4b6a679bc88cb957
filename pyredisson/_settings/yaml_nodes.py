"""Reads YAML as nodes, not as values: Java's tags have no effect then, and a password `0123` or `yes` stays text."""

from __future__ import annotations

import os
import re
from typing import IO, Literal

import yaml

from pyredisson.errors import ConfigError

NULL = "tag:yaml.org,2002:null"


def load(source: str | os.PathLike[str] | IO[str]) -> yaml.Node | None:
    """The root node of a file: a path, an open text file, or text with a newline. None: it is empty.

    `${NAME}` and `${NAME:-default}` are replaced from the environment. ConfigError: it isn't YAML.
    """
    text = _PLACEHOLDER.sub(lambda m: os.environ.get(m[1], m[0] if m[2] is None else m[2]), _content(source))
    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"not valid YAML{where}") from None  # without the reason, which may quote a password


def as_mapping(node: yaml.Node | None, where: str) -> dict[str, yaml.Node]:
    """The entries of a mapping. `where` names it, for the message; in the functions below `key` does."""
    if node is None or _kind(node) != "mapping" or any(_kind(key) != "scalar" for key, _ in node.value):
        raise ConfigError(f"{where} must hold settings, each a name and a value")
    return {key.value: value for key, value in node.value}


def as_text(node: yaml.Node, key: str) -> str:
    if _kind(node) != "scalar":
        raise ConfigError(f"{key} must be a single value")
    if match := _PLACEHOLDER.search(node.value):
        raise ConfigError(f"{key}: {match[1]} isn't set in the environment")
    return str(node.value)


def as_texts(node: yaml.Node, key: str) -> list[str]:
    """The texts of a sequence, or a single text as a list of one."""
    return [as_text(item, key) for item in node.value] if _kind(node) == "sequence" else [as_text(node, key)]


def as_text_mapping(node: yaml.Node, key: str) -> dict[str, str]:
    return {name: as_text(value, key) for name, value in as_mapping(node, key).items() if value.tag != NULL}


def as_integer(node: yaml.Node, key: str) -> int:
    text = as_text(node, key)
    if not re.fullmatch(r"[+-]?[0-9]{1,19}", text):  # 19 digits: Java's long
        raise ConfigError(f"{key} must be a whole number")
    return int(text)


def as_seconds(node: yaml.Node, key: str) -> float:
    """Seconds, from milliseconds."""
    return as_integer(node, key) / 1000


def as_flag(node: yaml.Node, key: str) -> bool:
    text = as_text(node, key).lower()
    if text not in ("true", "false"):
        raise ConfigError(f"{key} must be true or false")
    return text == "true"


def _content(source: str | os.PathLike[str] | IO[str]) -> str:
    # Text with a newline can't be a path. Opened as a path, FileNotFoundError would quote it with its password.
    if isinstance(source, str) and "\n" in source:
        return source
    if isinstance(source, (str, os.PathLike)):
        with open(source, encoding="utf-8") as file:
            return file.read()
    return source.read()


def _kind(node: yaml.Node) -> Literal["scalar", "sequence", "mapping"]:
    return node.id  # type: ignore[attr-defined, no-any-return]  # in PyYAML, but not in its stubs


_PLACEHOLDER = re.compile(r"\$\{([\w.]+)(?::-([^}]*))?\}")
