"""Reads the connection options of redis-py, of a URL or of a client, as fields of a Config."""

from __future__ import annotations

import ssl as tls
from collections.abc import Mapping
from typing import Any

from pyredisson.errors import ConfigError


def settings_of_options(options: Mapping[str, Any], *, ssl: bool) -> dict[str, Any]:
    """Config fields from redis-py's connection options. None means no limit there; then the default is used."""
    settings: dict[str, Any] = {field: options[name] for name, field in _TAKEN.items() if options.get(name) is not None}
    if ssl:
        settings |= {"ssl": True, "ssl_context": ssl_context(options)}
    return settings


def ssl_context(options: Mapping[str, Any], *, truststore: str | None = None) -> tls.SSLContext:
    """The TLS context that redis-py would make of its ssl_* options. A truststore replaces the system's authorities."""
    if any(options.get(name) not in (None, False) for name in OCSP_OPTIONS):
        raise ConfigError("OCSP validation (ssl_validate_ocsp and its kin) isn't supported")
    verify = options.get("ssl_cert_reqs", "required")
    try:
        if not isinstance(verify, int):
            verify = tls.VerifyMode[f"CERT_{verify or 'none'}".upper()]
        context = tls.create_default_context(cafile=truststore)
        context.check_hostname = verify != tls.CERT_NONE and options.get("ssl_check_hostname") is not False
        context.verify_mode = tls.VerifyMode(verify)
        for flag in options.get("ssl_include_verify_flags") or ():
            context.verify_flags |= flag
        for flag in options.get("ssl_exclude_verify_flags") or ():
            context.verify_flags &= ~flag
        if certificate := options.get("ssl_certfile"):
            context.load_cert_chain(certificate, options.get("ssl_keyfile"), options.get("ssl_password"))
        elif options.get("ssl_keyfile"):
            raise ValueError("ssl_keyfile needs ssl_certfile")
        authorities = [options.get(name) for name in ("ssl_ca_certs", "ssl_ca_path", "ssl_ca_data")]
        if any(authorities):
            context.load_verify_locations(*authorities)
        if options.get("ssl_min_version") is not None:
            context.minimum_version = tls.TLSVersion(int(options["ssl_min_version"]))
        if options.get("ssl_ciphers"):
            context.set_ciphers(options["ssl_ciphers"])
    except (KeyError, OSError, TypeError, ValueError) as error:
        raise ConfigError(f"the TLS settings can't be used: {error}") from error
    return context


_TAKEN = {
    "host": "host",
    "port": "port",
    "path": "path",
    "db": "database",
    "username": "username",
    "password": "password",
    "credential_provider": "credential_provider",
    "client_name": "client_name",
    "socket_timeout": "timeout",
    "socket_connect_timeout": "connect_timeout",
    "socket_keepalive": "socket_keepalive",
    "max_connections": "connection_pool_size",
}
TLS_OPTIONS = {
    "ssl_keyfile",
    "ssl_certfile",
    "ssl_password",
    "ssl_cert_reqs",
    "ssl_include_verify_flags",
    "ssl_exclude_verify_flags",
    "ssl_ca_certs",
    "ssl_ca_path",
    "ssl_ca_data",
    "ssl_check_hostname",
    "ssl_min_version",
    "ssl_ciphers",
}
OCSP_OPTIONS = {
    "ssl_ocsp_context",
    "ssl_ocsp_expected_cert",
    "ssl_validate_ocsp",
    "ssl_validate_ocsp_stapled",
}
_IRRELEVANT_OPTIONS = {
    "decode_responses",
    "encoding",
    "encoding_errors",
    "health_check_interval",
    "legacy_responses",
    "lib_name",
    "lib_version",
    "protocol",
    "retry_on_error",
    "retry_on_timeout",
    "socket_read_size",
    "socket_type",
    "timeout",  # in redis-py the time to wait for a free connection, not for a reply
}
KNOWN_OPTIONS = _TAKEN.keys() | TLS_OPTIONS | OCSP_OPTIONS | _IRRELEVANT_OPTIONS
"""The options that redis-py knows. Options that are not taken have no meaning here."""
