"""Reads Redisson's YAML file of a single server as fields of a Config."""

from __future__ import annotations

import difflib
import os
import re
import ssl as tls
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import IO, Any, Literal

import yaml

from pyredisson._diagnostics import logger
from pyredisson._settings.addresses import settings_of_url, ssl_context
from pyredisson.errors import ConfigError

_Reader = Callable[[yaml.Node, str], Any]


def settings_of_file(source: str | os.PathLike[str] | IO[str], given: Collection[str]) -> dict[str, Any]:
    """The Config fields that a file sets: a path, an open text file, or text with a newline in it.

    `given` are the names of the fields that the caller sets itself. ConfigError: an unknown key, or a value that can't
    be used.
    """
    root = _mapping(_parse(_content(source)), "the file")
    for key in root:
        if key.endswith("ServersConfig"):
            raise ConfigError(f"{key} isn't available in this version, only singleServerConfig is")
    if "singleServerConfig" not in root:
        raise ConfigError("singleServerConfig is missing")
    server = _mapping(root.pop("singleServerConfig"), "singleServerConfig")
    shared = _SHARED_KEYS.keys() | _TLS_KEYS | _JAVA_CLASSES.keys() | _IGNORED_SHARED
    _refuse_unknown(root, shared | _ROOT_KEYS.keys() | _IGNORED_ROOT)
    _refuse_unknown(server, shared | _SERVER_KEYS.keys() | _IGNORED_SERVER | {"address"})

    nodes = {key: node for part in (root, server) for key, node in part.items() if node.tag != _NULL}
    ignored = sorted(nodes.keys() & (_IGNORED_ROOT | _IGNORED_SHARED | _IGNORED_SERVER))
    if ignored:
        logger.info("Redisson settings that have no meaning in Python: %s", ", ".join(ignored))
    _refuse_java_classes((root, server), given)

    settings = settings_of_url(_address(nodes))
    for key, (field, read) in (_ROOT_KEYS | _SHARED_KEYS | _SERVER_KEYS).items():
        if key in nodes:
            settings[field] = read(nodes[key], key)
    if str(settings.get("password")).startswith("{aes}"):
        raise ConfigError("password: encrypted by Redisson PRO, which can't be undone here")
    if settings.get("ssl"):
        settings["ssl_context"] = _redisson_ssl_context(nodes)
    return settings


def _parse(text: str) -> yaml.Node | None:
    text = _PLACEHOLDER.sub(lambda m: os.environ.get(m[1], m[0] if m[2] is None else m[2]), text)
    try:
        # Composed, not loaded: so Java's !<class> tags have no effect, and a password `0123` or `yes` stays text.
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"not valid YAML{where}") from None  # without the reason, which may quote a password


def _refuse_java_classes(parts: Sequence[Mapping[str, yaml.Node]], given: Collection[str]) -> None:
    for key, (default, field) in _JAVA_CLASSES.items():
        # At the root and beside the address: with a name mapper overlooked, Java and Python would lock different keys.
        tags = {part[key].tag for part in parts if key in part} - {_NULL}
        if field not in given and any(tag.rpartition(".")[2] != default for tag in tags):
            advice = f"; give {field}= beside the file" if field else ""
            raise ConfigError(f"{key}: a Java class can't be taken over{advice}")


def _content(source: str | os.PathLike[str] | IO[str]) -> str:
    # Text with a newline can't be a path. Opened as a path, FileNotFoundError would quote it with its password.
    if isinstance(source, str) and "\n" in source:
        return source
    if isinstance(source, (str, os.PathLike)):
        with open(source, encoding="utf-8") as file:
            return file.read()
    return source.read()


def _address(nodes: Mapping[str, yaml.Node]) -> str:
    if "address" not in nodes:
        raise ConfigError("singleServerConfig: address is missing")
    addresses = _texts(nodes["address"], "address")
    if len(addresses) != 1:
        raise ConfigError("singleServerConfig: address must be one address")
    return addresses[0]


def _redisson_ssl_context(nodes: Mapping[str, yaml.Node]) -> tls.SSLContext:
    options: dict[str, Any] = {}
    verification = "STRICT"
    endpoint = nodes.get("sslEnableEndpointIdentification")
    if endpoint is not None and not _flag(endpoint, "sslEnableEndpointIdentification"):
        verification = "NONE"  # as in Redisson, where the certificate isn't checked then, either
    if "sslVerificationMode" in nodes:
        verification = _text(nodes["sslVerificationMode"], "sslVerificationMode")
    if verification not in ("NONE", "CA_ONLY", "STRICT"):
        raise ConfigError("sslVerificationMode must be NONE, CA_ONLY or STRICT")
    options["ssl_cert_reqs"] = "none" if verification == "NONE" else "required"
    options["ssl_check_hostname"] = verification == "STRICT"
    if "sslKeystore" in nodes:
        options["ssl_certfile"] = _pem(nodes["sslKeystore"], "sslKeystore")
        if "sslKeystorePassword" in nodes:
            options["ssl_password"] = _text(nodes["sslKeystorePassword"], "sslKeystorePassword")
    if "sslProtocols" in nodes:
        protocols = _texts(nodes["sslProtocols"], "sslProtocols")
        try:
            options["ssl_min_version"] = min(tls.TLSVersion[name.replace(".", "_")] for name in protocols)
        except (KeyError, ValueError):
            raise ConfigError("sslProtocols must list some of TLSv1.3, TLSv1.2, TLSv1.1, TLSv1") from None
    if "sslCiphers" in nodes:
        options["ssl_ciphers"] = ":".join(_texts(nodes["sslCiphers"], "sslCiphers"))
    truststore = _pem(nodes["sslTruststore"], "sslTruststore") if "sslTruststore" in nodes else None
    return ssl_context(options, truststore=truststore)


def _pem(node: yaml.Node, key: str) -> str:
    """The path of a PEM file, from a path or a URL (file:...)."""
    path = re.sub(r"^file:(//(?=/))?", "", _text(node, key))
    try:
        with open(path, "rb") as file:
            is_pem = b"-----BEGIN " in file.read()
    except OSError as error:
        raise ConfigError(f"{key}: {error}") from error
    if not is_pem:
        raise ConfigError(f"{key}: Java's key stores can't be read here; convert {path} to PEM")
    return path


def _mapping(node: yaml.Node | None, where: str) -> dict[str, yaml.Node]:
    if node is None or _kind(node) != "mapping" or any(_kind(key) != "scalar" for key, _ in node.value):
        raise ConfigError(f"{where} must hold settings, each a name and a value")
    return {key.value: value for key, value in node.value}


def _kind(node: yaml.Node) -> Literal["scalar", "sequence", "mapping"]:
    return node.id  # type: ignore[attr-defined, no-any-return]  # in PyYAML, but not in its stubs


def _refuse_unknown(settings: Mapping[str, yaml.Node], known: Collection[str]) -> None:
    for key in settings:
        if key not in known:
            close = difflib.get_close_matches(key, sorted(known), 1)
            raise ConfigError(f"unknown setting {key}" + (f"; did you mean {close[0]}?" if close else ""))


def _text(node: yaml.Node, key: str) -> str:
    if _kind(node) != "scalar":
        raise ConfigError(f"{key} must be a single value")
    if match := _PLACEHOLDER.search(node.value):
        raise ConfigError(f"{key}: {match[1]} isn't set in the environment")
    return str(node.value)


def _texts(node: yaml.Node, key: str) -> list[str]:
    return [_text(item, key) for item in node.value] if _kind(node) == "sequence" else [_text(node, key)]


def _integer(node: yaml.Node, key: str) -> int:
    text = _text(node, key)
    if not re.fullmatch(r"[+-]?[0-9]{1,19}", text):  # 19 digits: Java's long
        raise ConfigError(f"{key} must be a whole number")
    return int(text)


def _milliseconds(node: yaml.Node, key: str) -> float:
    return _integer(node, key) / 1000


def _flag(node: yaml.Node, key: str) -> bool:
    text = _text(node, key).lower()
    if text not in ("true", "false"):
        raise ConfigError(f"{key} must be true or false")
    return text == "true"


_PLACEHOLDER = re.compile(r"\$\{([\w.]+)(?::-([^}]*))?\}")
_NULL = "tag:yaml.org,2002:null"

# Redisson's key: the field, and the function that reads its text. Shared keys are at the root or beside the address.
_ROOT_KEYS: dict[str, tuple[str, _Reader]] = {
    "lockWatchdogTimeout": ("lock_watchdog_timeout", _milliseconds),
    "fairLockWaitTimeout": ("fair_lock_wait_timeout", _milliseconds),
}
_SHARED_KEYS: dict[str, tuple[str, _Reader]] = {
    "username": ("username", _text),
    "password": ("password", _text),
    "tcpKeepAlive": ("socket_keepalive", _flag),
}
_SERVER_KEYS: dict[str, tuple[str, _Reader]] = {
    "database": ("database", _integer),
    "clientName": ("client_name", _text),
    "connectTimeout": ("connect_timeout", _milliseconds),
    "timeout": ("timeout", _milliseconds),
    "retryAttempts": ("retry_attempts", _integer),
    "connectionPoolSize": ("connection_pool_size", _integer),
    "pingConnectionInterval": ("ping_interval", _milliseconds),
    "keepAlive": ("socket_keepalive", _flag),
}
_TLS_KEYS = {
    "sslCiphers",
    "sslEnableEndpointIdentification",
    "sslKeystore",
    "sslKeystorePassword",
    "sslProtocols",
    "sslTruststore",
    "sslVerificationMode",
}
# The Java class that is accepted, and the field that replaces any other class.
_JAVA_CLASSES = {
    "commandMapper": ("DefaultCommandMapper", None),
    "credentialsResolver": ("DefaultCredentialsResolver", "credential_provider"),
    "nameMapper": ("DefaultNameMapper", "name_mapper"),
}
_IGNORED_ROOT = {
    "addressResolverGroupFactory",
    "checkLockSyncedSlaves",
    "cleanUpKeysAmount",
    "codec",
    "codecProvider",
    "connectionListener",
    "decodeInExecutor",
    "eventLoopGroup",
    "executor",
    "keepPubSubOrder",
    "lazyInitialization",
    "lockWatchdogBatchSize",
    "maxCleanUpDelay",
    "meterMode",
    "meterRegistryProvider",
    "minCleanUpDelay",
    "nettyExecutor",
    "nettyHook",
    "nettyThreads",
    "performanceMode",
    "protocol",
    "redissonReferenceEnabled",
    "referenceCodecProvider",
    "referenceEnabled",
    "registrationKey",
    "reliableTopicWatchdogTimeout",
    "resolverProvider",
    "slavesSyncTimeout",
    "threads",
    "transportMode",
    "useLinuxNativeEpoll",
    "useScriptCache",
    "useThreadClassLoader",
    "valkeyCapabilities",
}
_IGNORED_SHARED = {
    "secretKey",
    "sslKeyManagerFactory",
    "sslKeystoreType",
    "sslProvider",
    "sslTrustManagerFactory",
    "sslTruststorePassword",
    "tcpKeepAliveCount",
    "tcpKeepAliveIdle",
    "tcpKeepAliveInterval",
    "tcpNoDelay",
    "tcpUserTimeout",
}
_IGNORED_SERVER = {
    "connectionMinimumIdleSize",
    "credentialsReapplyInterval",
    "dnsMonitoring",
    "dnsMonitoringInterval",
    "failedAttempts",
    "idleConnectionTimeout",
    "pingTimeout",
    "reconnectionDelay",
    "reconnectionTimeout",
    "retryDelay",
    "retryInterval",
    "subscriptionConnectionMinimumIdleSize",
    "subscriptionConnectionPoolSize",
    "subscriptionTimeout",
    "subscriptionsPerConnection",
    "tlsVersion",
}
