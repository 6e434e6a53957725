"""Serves the page, to this machine alone unless set otherwise, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import socket
from collections.abc import Callable

import uvicorn
from fastapi import FastAPI
from nicegui import ui

from pyspark_kafka_meta.errors import OptionError
from pyspark_kafka_meta.page.request_guard import Guard

ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><rect width="16" height="16" rx="4" fill="#1f56c3"/>'
    '<path d="M5 3v10M11 3 5.5 8l5.5 5" stroke="#fff" stroke-width="2" fill="none"/></svg>'
)
CLOSE_TIMEOUT_S = 2
RECONNECT_TIMEOUT_S = 30
"""How long a browser may be away, asleep for example, before its page reloads."""


def listen(host: str, port: int) -> socket.socket:
    """Raises OptionError: that address cannot be listened on."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        why = str(error.strerror).partition(" (while")[0]  # Python adds the address
        raise OptionError(
            f"cannot listen on {host}, port {port}: {why}. Give a --host of this machine and a --port, 0 for a free one"
        ) from None


def address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def serve(listening: socket.socket, host: str, draw: Callable[[], None]) -> None:
    """Args:
    host: that was asked for.
    draw: the page, for one browser.
    """
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(Guard, named=host)
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
