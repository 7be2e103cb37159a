"""The search API of another team: a small HTTP server over one corpus, whose index can become out of date."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

from armwise.arms.base import Arm, Query

OLD = "withdrawn/"
"""What the ids of passages of an index that is out of date begin with: they support no answer."""


@contextmanager
def team(arm: Arm, host: str, port: int) -> Iterator[Event]:
    """Serve the passages of an arm until the block is left.

    Args:
        arm: Searches.
        host: Where to listen.
        port: As well.

    Yields:
        An event; once it is set, passages are those of an edition that was withdrawn.
    """
    stale = Event()

    class Search(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parameters = parse_qs(urlsplit(self.path).query)
            retrieval = arm.search(Query(parameters["q"][0]), int(parameters["k"][0]))
            prefix = OLD if stale.is_set() else ""
            results = [
                {"id": f"{prefix}{passage.id}", "title": passage.title, "text": passage.text}
                for passage in retrieval.passages
            ]
            body = json.dumps({"results": results}).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer((host, port), Search)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield stale
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
