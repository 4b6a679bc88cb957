"""Reads Redisson's YAML file as fields of a Config."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import IO, Any

import yaml

from pyredisson._diagnostics import logger
from pyredisson._settings.address import REDIS_PORT, SENTINEL_PORT, Address
from pyredisson._settings.fields import refuse_unknown
from pyredisson._settings.redisson_keys import IGNORED, JAVA_CLASSES, MODES, ROOT, Mode
from pyredisson._settings.redisson_tls import redisson_ssl_context
from pyredisson._settings.urls import settings_of_url
from pyredisson._settings.yaml_nodes import NULL, as_mapping, as_texts, load
from pyredisson.errors import ConfigError


def settings_of_file(source: str | os.PathLike[str] | IO[str], given: Collection[str]) -> dict[str, Any]:
    """The Config fields that a file sets: a path, an open text file, or text with a newline in it.

    `given` are the names of the fields that the caller sets itself. ConfigError: an unknown key, or a value that can't
    be used.
    """
    root = as_mapping(load(source), "the file")
    section, mode = _section(root)
    servers = as_mapping(root.pop(section), section)
    refuse_unknown(root, ROOT)
    refuse_unknown(servers, mode.known())

    nodes = {key: node for part in (root, servers) for key, node in part.items() if node.tag != NULL}
    ignored = sorted(nodes.keys() & (IGNORED | mode.ignored))
    if ignored:
        logger.info("Redisson settings that have no meaning in Python: %s", ", ".join(ignored))
    _refuse_java_classes((root, servers), given)

    settings = _servers(section, mode, nodes)
    for key, (field, read) in mode.readable().items():
        # A Java class that the caller replaces may have settings that are unknown here.
        if key in nodes and not (key in JAVA_CLASSES and field in given):
            settings[field] = read(nodes[key], key)
    for name in ("password", "sentinel_password"):
        if str(settings.get(name)).startswith("{aes}"):
            raise ConfigError(f"{name}: encrypted by Redisson PRO, which can't be undone here")
    for name in ("ssl", "sentinel_ssl"):
        if settings.get(name):
            settings[f"{name}_context"] = redisson_ssl_context(nodes)
    return settings


def _section(root: Mapping[str, yaml.Node]) -> tuple[str, Mode]:
    """The section of the servers: its name, and what it may contain."""
    found = [key for key in root if key.endswith("ServersConfig") or key in MODES]
    for key in found:
        if key not in MODES:
            raise ConfigError(f"{key} isn't supported, only {', '.join(MODES)}")
    if len(found) != 1:
        raise ConfigError(f"the file needs one of {', '.join(MODES)}" + ", not several" * bool(found))
    return found[0], MODES[found[0]]


def _servers(section: str, mode: Mode, nodes: Mapping[str, yaml.Node]) -> dict[str, Any]:
    """The Config fields for the addresses of the servers."""
    if mode.addresses[0] not in nodes:
        raise ConfigError(f"{section}: {mode.addresses[0]} is missing")
    addresses = [url for key in mode.addresses if key in nodes for url in as_texts(nodes[key], key)]
    if mode.topology == "single":
        if len(addresses) != 1:
            raise ConfigError(f"{section}: address must be one address")
        return settings_of_url(addresses[0])
    port = SENTINEL_PORT if mode.topology == "sentinel" else REDIS_PORT
    servers = [settings_of_url(address) for address in addresses]
    if any(server.keys() & {"path", "topology"} or "host" not in server for server in servers):
        raise ConfigError(f"{section}: each address must be redis://host:port or rediss://host:port")
    found = [Address(server.pop("host"), server.pop("port", port)) for server in servers]
    for server in servers:
        server.pop("ssl_context", None)  # made from the keys of the file
    if any(server != servers[0] for server in servers):
        raise ConfigError(f"{section}: all addresses must have the same scheme, credentials and options")
    settings = dict(servers[0]) if servers else {}
    if mode.topology == "sentinel":
        # Redisson talks to the master over TLS if it does to the Sentinels.
        own = {name: settings.pop(name) for name in ("username", "password") if name in settings}
        settings |= {f"sentinel_{name}": value for name, value in own.items()}
        settings["sentinel_ssl"] = settings.get("ssl", False)
    return {**settings, "topology": mode.topology, "nodes": tuple(found)}


def _refuse_java_classes(parts: Sequence[Mapping[str, yaml.Node]], given: Collection[str]) -> None:
    for key, (accepted, field) in JAVA_CLASSES.items():
        # At the root and beside the address: with a name mapper overlooked, Java and Python would lock different keys.
        tags = {part[key].tag for part in parts if key in part} - {NULL}
        if field not in given and any(tag.rpartition(".")[2] not in accepted for tag in tags):
            advice = f"; give {field}= beside the file" if field else ""
            raise ConfigError(f"{key}: a Java class can't be taken over{advice}")
