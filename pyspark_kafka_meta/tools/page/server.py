"""Serves the page, to this machine alone unless set otherwise, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import socket
from collections.abc import Callable
from ipaddress import ip_address
from urllib.parse import urlsplit

import uvicorn
from fastapi import FastAPI
from nicegui import ui
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from pyspark_kafka_meta.errors import OptionError


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
    """Middleware that refuses requests of other sites, and framing by them (clickjacking). Any site can point a name in
    DNS at this machine (DNS rebinding), and open a websocket to it."""

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


ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><rect width="16" height="16" rx="4" fill="#1f56c3"/>'
    '<path d="M5 3v10M11 3 5.5 8l5.5 5" stroke="#fff" stroke-width="2" fill="none"/></svg>'
)
CLOSE_TIMEOUT_S = 2
RECONNECT_TIMEOUT_S = 30
"""A browser that is away for longer, asleep for example, reloads its page."""


def listen(host: str, port: int) -> socket.socket:
    """Raises OptionError: the address cannot be used."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        reason = str(error.strerror).partition(" (while")[0]  # Python adds the address
        raise OptionError(
            f"cannot listen on {host}, port {port}: {reason}. Give a --host of this machine and a free --port, or 0"
        ) from None


def address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def serve(listening: socket.socket, host: str, draw: Callable[[], object]) -> None:
    """Args:
    host: as the user named it.
    draw: draws the page for each browser that opens it.
    """
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(RequestGuard, named=host)
    ui.run_with(
        app,
        root=draw,
        title="kafkameta",
        favicon=ICON,
        language="en-US",
        tailwind=False,
        reconnect_timeout=RECONNECT_TIMEOUT_S,
    )
    config = uvicorn.Config(app, log_level="error", ws="wsproto", timeout_graceful_shutdown=CLOSE_TIMEOUT_S)
    uvicorn.Server(config).run(sockets=[listening])
