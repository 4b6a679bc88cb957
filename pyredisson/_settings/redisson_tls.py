"""The TLS settings of Redisson's YAML file."""

from __future__ import annotations

import re
import ssl as tls
from collections.abc import Mapping
from typing import Any

import yaml

from pyredisson._settings.redis_options import ssl_context
from pyredisson._settings.yaml_nodes import as_flag, as_text, as_texts
from pyredisson.errors import ConfigError

TLS_KEYS = {
    "sslCiphers",
    "sslEnableEndpointIdentification",
    "sslKeystore",
    "sslKeystorePassword",
    "sslProtocols",
    "sslTruststore",
    "sslVerificationMode",
}


def redisson_ssl_context(nodes: Mapping[str, yaml.Node]) -> tls.SSLContext:
    """The TLS context for the settings in `nodes`. ConfigError: one of them can't be used."""
    options: dict[str, Any] = {}
    verification = "STRICT"
    endpoint = nodes.get("sslEnableEndpointIdentification")
    if endpoint is not None and not as_flag(endpoint, "sslEnableEndpointIdentification"):
        verification = "NONE"  # as in Redisson, where the certificate isn't checked then, either
    if "sslVerificationMode" in nodes:
        verification = as_text(nodes["sslVerificationMode"], "sslVerificationMode")
    if verification not in ("NONE", "CA_ONLY", "STRICT"):
        raise ConfigError("sslVerificationMode must be NONE, CA_ONLY or STRICT")
    options["ssl_cert_reqs"] = "none" if verification == "NONE" else "required"
    options["ssl_check_hostname"] = verification == "STRICT"
    if "sslKeystore" in nodes:
        options["ssl_certfile"] = _pem(nodes["sslKeystore"], "sslKeystore")
        if "sslKeystorePassword" in nodes:
            options["ssl_password"] = as_text(nodes["sslKeystorePassword"], "sslKeystorePassword")
    if "sslProtocols" in nodes:
        protocols = as_texts(nodes["sslProtocols"], "sslProtocols")
        try:
            options["ssl_min_version"] = min(tls.TLSVersion[name.replace(".", "_")] for name in protocols)
        except (KeyError, ValueError):
            raise ConfigError("sslProtocols must list some of TLSv1.3, TLSv1.2, TLSv1.1, TLSv1") from None
    if "sslCiphers" in nodes:
        options["ssl_ciphers"] = ":".join(as_texts(nodes["sslCiphers"], "sslCiphers"))
    truststore = _pem(nodes["sslTruststore"], "sslTruststore") if "sslTruststore" in nodes else None
    return ssl_context(options, truststore=truststore)


def _pem(node: yaml.Node, key: str) -> str:
    """The path of a PEM file, from a path or a URL (file:...)."""
    path = re.sub(r"^file:(//(?=/))?", "", as_text(node, key))
    try:
        with open(path, "rb") as file:
            is_pem = b"-----BEGIN " in file.read()
    except OSError as error:
        raise ConfigError(f"{key}: {error}") from error
    if not is_pem:
        raise ConfigError(f"{key}: Java's key stores can't be read here; convert {path} to PEM")
    return path
