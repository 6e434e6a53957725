"""Serves the page, to this machine alone unless set otherwise, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import socket
from collections.abc import Callable

import uvicorn
from fastapi import FastAPI
from nicegui import ui

from pyspark_kafka_meta.errors import OptionError
from pyspark_kafka_meta.tools.page.request_guard import RequestGuard

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
