"""A service on this machine that answers as a test tells it to."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ANY = "any other"
"""The place in `Canned.replies` of what is answered to any other request."""


class Canned:
    """Answers requests, and keeps what was sent.

    Attributes:
        replies: Status and body by method and path, or by `ANY`. The policy is unknown unless it is given.
        port: Where it listens.
        url: The same, as an address.
        key: What a request has to show, or it is refused; empty for any.
        paths: The paths of the requests.
        asked: Their bodies, of those that have one.
        sent: Their headers, in lower case.
    """

    def __init__(self) -> None:
        self.replies: dict[str, tuple[int, bytes]] = {
            "GET /ready": (200, b"{}"),
            "GET /v1/policy": (404, b"{}"),
        }
        self.key = ""
        self.paths: list[str] = []
        self.asked: list[Any] = []
        self.sent: list[dict[str, str]] = []
        canned = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                canned.paths.append(self.path)
                canned.sent.append({name.lower(): value for name, value in self.headers.items()})
                if length := int(self.headers.get("content-length", 0)):
                    canned.asked.append(json.loads(self.rfile.read(length)))
                named = f"{self.command} {self.path}"
                status, body = canned.replies[named if named in canned.replies else ANY]
                refused = canned.key and canned.shown[-1] != f"Bearer {canned.key}"
                self.send_response(401 if refused else status)
                stream = body.startswith(b"data:")
                self.send_header("content-type", "text/event-stream" if stream else "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_PUT = do_GET  # noqa: N815 - the server looks for these names

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def shown(self) -> list[str | None]:
        """What each request had under `Authorization`."""
        return [headers.get("authorization") for headers in self.sent]

    def reply(self, request: str, body: object, status: int = 200) -> None:
        """Say what a request is answered: bytes, or what becomes JSON."""
        self.replies[request] = (status, body if isinstance(body, bytes) else json.dumps(body).encode())

    def has_models(self, *names: str) -> None:
        """Answer any other request as an endpoint that has these language models."""
        self.reply(ANY, {"data": [{"id": name} for name in names]})

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
