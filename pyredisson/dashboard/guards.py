"""Who may ask the dashboard: checks of host, token and origin before each request."""

import hmac
import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

OWN_HEADER = "x-pyredisson"
"""A page of another site can't send it without asking first, and the answer to that question is no."""
_WITHOUT_TOKEN = frozenset({"/", "/healthz"})
_ASSETS = "/page/"
_OF_PROXIES = frozenset({"forwarded", "via", "x-real-ip"})
_SECURITY: dict[str, str] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def is_loopback(host: str) -> bool:
    """Whether only programs on this machine reach that address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class Guard:
    """Refuses requests before the application sees them, and adds the headers that guard the page.

    It is plain ASGI: a middleware of starlette would hold streams back.

    The token is sent in a header, by scripts and by the page, and is in no cookie: browsers send a cookie to all web
    servers of the same host name, whatever their ports, and any of them could use it here.
    """

    def __init__(self, app: ASGIApp, token: str | None, hosts: Collection[str]) -> None:
        """`token`: None: requests need none. `hosts`: the names under which it is asked, besides `localhost`."""
        self._app = app
        self._token = token
        self._hosts = {"localhost", *(host.lower() for host in hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_SECURITY)
            await send(message)

        refusal = (404, "there are no websockets here") if scope["type"] != "http" else self._refusal(scope)
        answer = self._app if refusal is None else PlainTextResponse(f"{refusal[1]}\n", refusal[0])
        await answer(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        """The status and the text for a request that isn't allowed."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not host:
            return 400, "the request has no Host"
        if not self._allows(host):
            text = (
                f"this dashboard doesn't serve as {host!r}; if it should, start it with --allow-host {_name_of(host)}"
            )
            return 421, text
        if self._token is None and _came_through_proxy(scope, headers):
            return 403, "behind a proxy the dashboard needs a token: start it with --token or --allow-host"
        path = scope["path"]
        guarded = path not in _WITHOUT_TOKEN and not path.startswith(_ASSETS)
        # `none`: a person has typed the address.
        from_elsewhere = headers.get("sec-fetch-site", "none") not in ("same-origin", "none")
        if from_elsewhere and (guarded or scope["method"] != "GET"):
            return 403, "the request comes from a page of another site"
        if scope["method"] not in ("GET", "HEAD") and not _is_own_post(headers, host):
            return 403, f"send application/json with the header {OWN_HEADER}: 1, from the page of the dashboard itself"
        if guarded and not self._has_token(headers):
            return 401, "the token is missing or wrong"
        return None

    def _has_token(self, headers: Headers) -> bool:
        """Whether a request has the token, if one is needed. The time that this takes tells nothing of the token."""
        if self._token is None:
            return True
        kind, _, token = headers.get("authorization", "").partition(" ")
        return kind.lower() == "bearer" and hmac.compare_digest(token.strip().encode(), self._token.encode())

    def _allows(self, host: str) -> bool:
        """Whether the page may be asked for under this name.

        A page of an attacker whose name is made to lead here (DNS rebinding) is asked for under that name. An address
        isn't found by a name, so it is always allowed.
        """
        name = _name_of(host)
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in self._hosts
        return True


def _came_through_proxy(scope: Scope, headers: Headers) -> bool:
    """Whether others than the programs of this machine may have sent the request, although its Host says otherwise.

    nginx asks with the address of the dashboard as Host and, if nothing else is configured, in HTTP/1.0.
    """
    named = any(name in _OF_PROXIES or name.startswith("x-forwarded-") for name in headers)
    return named or scope["http_version"] == "1.0"


def _is_own_post(headers: Headers, host: str) -> bool:
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    origin = headers.get("origin")
    same_origin = origin is None or urlsplit(origin).netloc.lower() == host.lower()
    return kind == "application/json" and headers.get(OWN_HEADER) == "1" and same_origin


def _name_of(host: str) -> str:
    """The name or address in a Host header, without the port."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""
