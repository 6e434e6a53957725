"""Starts the page, on a cluster and a query of the demo's own or on the events of other queries, and serves it until
Ctrl-C or SIGTERM, to this machine alone unless set otherwise.
"""

from __future__ import annotations

import socket
import time
import webbrowser
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from ipaddress import ip_address
from typing import NamedTuple
from urllib.parse import urlsplit

import typer
import uvicorn
from fastapi import FastAPI
from nicegui import ui
from rich.console import Console
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from pyspark_kafka_meta.errors import OptionError
from pyspark_kafka_meta.options import DECISIONS_TOPIC, ClusterOptions
from pyspark_kafka_meta.tables.cluster_query import query_transactions
from pyspark_kafka_meta.tools.checkpoints import checkpoint_lag
from pyspark_kafka_meta.tools.cluster_state import topics_of
from pyspark_kafka_meta.tools.console import handle_signals, note, timeout_options
from pyspark_kafka_meta.tools.demo import DemoCluster
from pyspark_kafka_meta.tools.demo.runner import own_cluster, start_query
from pyspark_kafka_meta.tools.event_sources import StateReader, open_events
from pyspark_kafka_meta.tools.page.history import past_of
from pyspark_kafka_meta.tools.page.past_page import draw_past
from pyspark_kafka_meta.tools.page.state_poller import ClusterPolls, StatePoller
from pyspark_kafka_meta.tools.page.ui import ButtonActions, Page

TIMEOUT_MS = 5_000
"""For brokers to respond to a request for lag or transactions."""
LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")
ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><rect width="16" height="16" rx="4" fill="#1f56c3"/>'
    '<path d="M5 3v10M11 3 5.5 8l5.5 5" stroke="#fff" stroke-width="2" fill="none"/></svg>'
)
CLOSE_TIMEOUT_S = 2
RECONNECT_TIMEOUT_S = 30
"""A browser that is away for longer, asleep for example, reloads its page."""


class PageAddress(NamedTuple):
    """Where to serve the page, and whether to open a browser."""

    host: str
    port: int
    opens_browser: bool


def serve_demo(kind: DemoCluster | None, at: PageAddress) -> None:
    """Raises KafkaMetaError: the port is taken, or the demo cannot start."""
    handle_signals()
    console = Console(stderr=True)
    with ExitStack() as opened:
        listening = opened.enter_context(listen(at.host, at.port))
        cluster = opened.enter_context(own_cluster(kind, console))
        query = opened.enter_context(start_query(cluster, console, is_fed=True))
        polls = _polls(cluster.options, [str(query.checkpoint)], DECISIONS_TOPIC)
        poller = opened.enter_context(StatePoller(query.state_reader.read, True, polls))
        actions = ButtonActions(cluster, query.events, poller.dead)
        serve(listening, at, lambda: Page(poller, cluster.name, "Cluster now", actions))


def serve_events(
    events: Mapping[str, str],
    cluster: Mapping[str, str],
    checkpoints: Sequence[str],
    decisions_topic: str,
    at: PageAddress,
) -> None:
    """Args:
        events: options of the table `refresh_events`.
        cluster: `kafka.*` options of the cluster to show beside the events; empty for none.
        checkpoints: locations of checkpoints of queries that read from the cluster.
        decisions_topic: of the sinks in the cluster.

    Raises:
        KafkaMetaError: the port is taken, or an option is invalid.
    """
    handle_signals()
    with ExitStack() as opened:
        listening = opened.enter_context(listen(at.host, at.port))
        source = opened.enter_context(closing(open_events(events, must_exist=True)))
        state_reader = StateReader(source, cluster, topics_of, lambda: ({}, {}, 0.0))
        polls = _polls(cluster, checkpoints, decisions_topic) if cluster else None
        poller = opened.enter_context(StatePoller(state_reader.read, False, polls))
        leaders_title = "Cluster now" if cluster else "Newest known"
        serve(listening, at, lambda: Page(poller, f"Events of {source.name}", leaders_title, None))


def serve_past(events: Mapping[str, str], since_ms: int, until_ms: int, at: PageAddress) -> None:
    """The events of this moment: later ones are not shown.

    Args:
        events: options of the table `refresh_events`.
        since_ms: incidents that ended before are left out; ms since 1970 UTC.
        until_ms: events after this time are ignored.

    Raises:
        KafkaMetaError: the port is taken, an option is invalid, or the events cannot be read.
    """
    handle_signals()
    with ExitStack() as opened:
        listening = opened.enter_context(listen(at.host, at.port))
        source = opened.enter_context(closing(open_events(events, must_exist=True)))
        note(f"reading the events of {source.name}")
        events_until = (event for event in source.read() if event["time_ms"] <= until_ms)
        past = past_of(source.name, events_until, int(time.time() * 1000), since_ms)
        serve(listening, at, lambda at="", cluster="": draw_past(past, at, cluster))


def _polls(cluster: Mapping[str, str], checkpoints: Sequence[str], decisions_topic: str) -> ClusterPolls:
    options = {**cluster, **timeout_options(TIMEOUT_MS)}
    transactions = ClusterOptions.parse({**options, "decisionsTopic": decisions_topic})
    # The last part of a location alone: a URI may hold keys.
    lags = [
        (checkpoint.rstrip("/").rpartition("/")[2], partial(checkpoint_lag, checkpoint, options))
        for checkpoint in checkpoints
    ]
    return ClusterPolls(lags, partial(query_transactions, transactions))


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


def serve(listening: socket.socket, at: PageAddress, draw: Callable[..., object]) -> None:
    """Print the address, and serve.

    Args:
        draw: draws the page for each browser that opens it, with the query parameters of its arguments' names.
    """
    if at.host not in LOCAL_HOSTS:
        note(f"everybody who can reach {at.host} sees this page and can press its buttons: there is no login")
    typer.echo(address(listening))
    if at.opens_browser:
        webbrowser.open(address(listening))
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(RequestGuard, named=at.host)
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
