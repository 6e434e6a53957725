"""Lets none but the page itself talk to the page: a name in DNS can be pointed at this machine by any site (DNS
rebinding), and any site can open a websocket to it."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketClose


def is_ours(host: str | None, origin: str | None, named: str) -> bool:
    """Whether a request is for this page, and from it.

    Args:
        host, origin: the headers; a browser sends the second with all that another site could misuse.
        named: what the page listens on. Addresses go through, too: they cannot be rebound.
    """
    try:
        name = urlsplit(f"//{host}").hostname
    except ValueError:
        return False
    if name is None or not (name in ("localhost", named.lower()) or _is_address(name)):
        return False
    return origin is None or origin in (f"http://{host}", f"https://{host}")


class Guard:
    """Middleware that refuses what is not ours, and framing by other sites (clickjacking)."""

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

        if is_ours(headers.get("host"), headers.get("origin"), self._named):
            await self._app(scope, receive, send_unframed)
        elif scope["type"] == "websocket":
            await WebSocketClose()(scope, receive, send)
        else:
            refusal = "Refused: open this page by the address that kafkameta page printed.\n"
            await PlainTextResponse(refusal, 403)(scope, receive, send)


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
