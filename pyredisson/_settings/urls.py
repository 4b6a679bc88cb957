"""Reads URLs as fields of a Config: of one server as redis-py does, and of several servers."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote, unquote_plus, urlsplit

import redis.connection

from pyredisson._settings.address import REDIS_PORT, SENTINEL_PORT, Address
from pyredisson._settings.redis_options import KNOWN_OPTIONS, TLS_OPTIONS, settings_of_options
from pyredisson.errors import ConfigError


def settings_of_url(url: str) -> dict[str, Any]:
    """The Config fields for a URL. The message of a ConfigError never contains the URL's password."""
    url = re.sub(r"^valkey(s?)(?=://|\+)", r"redis\1", url)  # Redisson's names of the same schemes
    if match := re.match(r"(rediss?)\+(cluster|sentinel|replicated)://", url):
        return _of_several_servers(match[1], match[2], url[match.end() :])
    # Not with an @ after the comma: then the text before it is the beginning of a password, not a list of hosts.
    if re.match(r"rediss?://([^/?#]*@)?[^/?#@]*,[^@]*$", url):
        raise ConfigError(
            f"{url.partition(':')[0]}:// takes one host: a cluster's nodes are redis+cluster://host:port,host:port,"
            " Sentinels are redis+sentinel://host:port,host:port/master"
        )
    # Without details or a cause: for `redis://:pa#ss@host` they would quote `pa` as the port.
    unreadable = ConfigError(
        "the URL can't be read: redis:// or rediss://user:password@host:port/database, or"
        " unix://user:password@/path, with redis-py's options; / ? # @ in a password are percent-encoded"
    )
    try:
        options: dict[str, Any] = redis.connection.parse_url(url)  # type: ignore[no-untyped-call]
        parts = urlsplit(url)
        if parts.scheme == "unix":
            readable = bool(parts.path) and not parts.hostname  # unix://run/x means /x on a host named run
        else:  # redis-py reads any other path as database 0, and port 0 as 6379
            readable = re.fullmatch(r"/?\d*/?", parts.path) is not None and parts.port != 0
    except ValueError:
        raise unreadable from None
    if not readable or parts.fragment or not all("=" in option for option in parts.query.split("&") if option):
        raise unreadable
    options.pop("connection_class", None)
    unknown = options.keys() - KNOWN_OPTIONS
    if unknown and "@" in parts.query:  # for `redis://:1?pass=word@host` the option is part of a password
        raise unreadable
    if unknown:
        raise ConfigError(f"unknown URL options: {', '.join(sorted(unknown))}")
    return settings_of_options(options, ssl=parts.scheme == "rediss")


def _of_several_servers(scheme: str, topology: str, rest: str) -> dict[str, Any]:
    """The Config fields for a URL of several servers; `rest` is what follows its `://`."""
    try:
        form = _match(_FORM, rest)
        path = _match(_PATHS[topology], form["path"] or "")
        default_port = SENTINEL_PORT if topology == "sentinel" else REDIS_PORT
        nodes = tuple(Address.parse(unquote(host), default_port) for host in form["hosts"].split(","))
    except ValueError:
        # Without details or a cause, which could quote a part of a password.
        raise ConfigError(
            f"the URL can't be read: {scheme}+{topology}://user:password@{_USAGE[topology]}, with redis-py's options;"
            " / ? # @ in a user name or a password are percent-encoded"
        ) from None
    settings: dict[str, Any] = {"topology": topology, "nodes": nodes}
    options = [option for option in (form["query"] or "").split("&") if option]
    if topology == "sentinel":
        settings["master_name"] = unquote(path["name"])
        settings |= _sentinel_settings(options)
        options = [option for option in options if not _is_for_sentinels(option)]
    if {_name(option) for option in options} & {"host", "port", "path"}:
        raise ConfigError("the options host, port and path aren't for a URL of several servers")
    # User name, password, database and options are read as for one server, whose name doesn't matter.
    user = "" if form["user"] is None else f"{form['user']}@"
    one = settings_of_url(f"{scheme}://{user}host/{path['database'] or ''}?{'&'.join(options)}")
    del one["host"]
    return one | settings


def _sentinel_settings(options: list[str]) -> dict[str, Any]:
    """The Config fields for the options of Sentinels."""
    given = {_name(option): unquote_plus(option.partition("=")[2]) for option in options if _is_for_sentinels(option)}
    settings: dict[str, Any] = {name: given.pop(name) for name in _SENTINEL_CREDENTIALS if name in given}
    ssl = given.pop("sentinel_ssl", "false").lower()
    if ssl not in ("true", "false", "yes", "no", "1", "0"):
        raise ConfigError("the option sentinel_ssl must be true or false")
    if ssl in ("true", "yes", "1"):
        # redis-py takes the first one of a name, so the options of the Sentinels precede the options of the servers.
        tls = [option.removeprefix("sentinel_") for option in options if _name(option) in _SENTINEL_TLS_OPTIONS]
        tls += [option for option in options if _name(option) in TLS_OPTIONS]
        context = settings_of_url(f"rediss://host?{'&'.join(tls)}")["ssl_context"]
        settings |= {"sentinel_ssl": True, "sentinel_ssl_context": context}
    elif given:
        raise ConfigError(f"{', '.join(sorted(given))}: needs sentinel_ssl=true")
    return settings


def _is_for_sentinels(option: str) -> bool:
    return _name(option) in {"sentinel_ssl", *_SENTINEL_CREDENTIALS, *_SENTINEL_TLS_OPTIONS}


def _name(option: str) -> str:
    return option.partition("=")[0]


def _match(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    """The match of the whole text. ValueError: there is none."""
    match = pattern.fullmatch(text)
    if match is None:
        raise ValueError
    return match


_SENTINEL_CREDENTIALS = ("sentinel_username", "sentinel_password")
_SENTINEL_TLS_OPTIONS = {f"sentinel_{name}" for name in TLS_OPTIONS}
# None of the parts contains an @ that isn't percent-encoded, but the options: else a part of a password could be taken
# for a host, or for a path.
_FORM = re.compile(r"(?:(?P<user>[^@/?#]*)@)?(?P<hosts>[^@/?#]+)(?P<path>/[^@?#]*)?(?:\?(?P<query>[^#]*))?")
_PATHS = {
    "cluster": re.compile(r"/?(?P<database>\d*)/?"),
    "replicated": re.compile(r"/?(?P<database>\d*)/?"),
    "sentinel": re.compile(r"/(?P<name>[^/]+)(?:/(?P<database>\d*))?/?"),
}
_USAGE = {
    "cluster": "host:port,host:port",
    "replicated": "host:port,host:port/database",
    "sentinel": "host:port,host:port/master/database",
}
