"""The arguments of AUTH, from a client's settings."""

from __future__ import annotations

from collections.abc import Sequence

from pyredisson._settings.config import Config


def credentials(config: Config) -> Sequence[str]:
    """The arguments of AUTH; none without a password. A credential provider is called, and may block."""
    if config.credential_provider is not None:
        return [str(part) for part in config.credential_provider.get_credentials()]
    if config.password is None:
        return ()
    return (config.username, config.password) if config.username else (config.password,)


async def credentials_async(config: Config) -> Sequence[str]:
    """As `credentials`; a credential provider is awaited."""
    if config.credential_provider is not None:
        return [str(part) for part in await config.credential_provider.get_credentials_async()]
    return credentials(config)
