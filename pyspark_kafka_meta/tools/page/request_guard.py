"""Refuses requests of other sites: any site can point a name in DNS at this machine (DNS rebinding), and open a
websocket to it."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketClose


def is_own_request(host: str | None, origin: str | None, named: str) -> bool:
    """Whether a request is for this page, and comes from it.

    Args:
        host, origin: the headers; a browser sends Origin with every request that another site could misuse.
        named: the host that the page listens on. IP addresses are accepted, too: they cannot be rebound.
    """
    try:
        name = urlsplit(f"//{host}").hostname
    except ValueError:
        return False
    if name is None or not (name in ("localhost", named.lower()) or _is_address(name)):
        return False
    return origin is None or origin in (f"http://{host}", f"https://{host}")


class RequestGuard:
    """Middleware that refuses requests of other sites, and framing by them (clickjacking)."""

    def __init__(self, app: ASGIApp, named: str) -> None:
        self._app = app
        self._named = named

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)

        async def send_unframed(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"content-security-policy", b"frame-ancestors 'none'")]
            await send(message)

        if is_own_request(headers.get("host"), headers.get("origin"), self._named):
            await self._app(scope, receive, send_unframed)
        elif scope["type"] == "websocket":
            await WebSocketClose()(scope, receive, send)
        else:
            refusal = "Refused: open this page at the address that kafkameta page printed.\n"
            await PlainTextResponse(refusal, 403)(scope, receive, send)


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
