"""A service in a thread that a browser can reach, and some traffic for it."""

import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
import numpy as np
import uvicorn

from tests.agent.asking import CHAT
from tests.agent.fakes import Service

PATIENCE_S = 30.0


@contextmanager
def listening(service: Service, root_path: str = "") -> Iterator[str]:
    """Serve at a free port of this machine with a version to decide with; yield the address."""
    service.learner.step()

    async def prefixed(scope: Any, receive: Any, send: Any) -> None:
        await service.app({**scope, "root_path": root_path}, receive, send)

    server = uvicorn.Server(uvicorn.Config(prefixed, log_level="error", timeout_graceful_shutdown=1))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        base = f"http://127.0.0.1:{listener.getsockname()[1]}{root_path}"
        try:
            deadline = time.monotonic() + PATIENCE_S
            while not (server.started and httpx.get(f"{base}/ready").is_success):
                assert time.monotonic() < deadline
            yield base
        finally:
            server.should_exit = True
            thread.join()
            service.close()


def traffic(
    base: str, questions: Sequence[str], seed: int = 0, labelled: float = 0.8, **headers: str
) -> list[str]:
    """Ask questions and label a share of the answers; return the ids of the decisions."""
    rng, ids = np.random.default_rng(seed), []
    with httpx.Client(base_url=base, headers=headers, timeout=PATIENCE_S) as client:
        for question in questions:
            body: dict[str, Any] = CHAT | {"messages": [{"role": "user", "content": question}]}
            answer = client.post("/v1/chat/completions", json=body)
            found = answer.raise_for_status().json()["agent"]
            ids.append(found["decision_id"])
            if rng.random() < labelled:
                right = bool(rng.random() < {"none": 0.2, "bm25": 0.5}.get(found["arm_served"], 0.8))
                item = {"decision_id": ids[-1], "metric_name": "right", "value": right}
                client.post("/v1/feedback", json=item).raise_for_status()
    return ids


CHROMIUM = "chromium"
"""Debian's."""

Visit = Callable[[int, str], Any]
"""Opens a page of a width in a colour scheme, the last one being closed."""


@contextmanager
def browsing() -> Iterator[Visit]:
    """Start a browser; the errors of each page are raised when it is closed."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which(CHROMIUM), args=["--no-sandbox"])
        opened: list[tuple[Any, list[str]]] = []

        def visit(width: int, scheme: str) -> Any:
            close()
            page, errors = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme), []
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.on(
                "console",
                lambda message: errors.append(message.text) if message.type in ("error", "warning") else None,
            )
            opened.append((page, errors))
            return page

        def close() -> None:
            while opened:
                page, errors = opened.pop()
                page.close()
                # a browser reports the status of a page that says what is wrong
                status = "Failed to load resource: the server responded with a status of"
                assert [one for one in errors if not one.startswith(status)] == []

        yield visit
        close()
        browser.close()


__all__ = ["Visit", "browsing", "listening", "traffic"]
