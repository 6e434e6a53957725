"""An OpenID Connect endpoint that gives every client the same response."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any


@contextmanager
def token_endpoint(
    status: int, response: dict[str, Any], location: str = "", context: ssl.SSLContext | None = None
) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Its URL and its requests: Authorization header and body. `location` is the target of a redirect, `context`
    makes it speak TLS."""
    requests = []

    class Endpoint(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            requests.append((self.headers["Authorization"], body))
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Location", location)
            self.end_headers()
            self.wfile.write(json.dumps(response).encode())

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Endpoint) as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"{'https' if context else 'http'}://127.0.0.1:{server.server_port}/token", requests
        finally:
            server.shutdown()
            thread.join()
