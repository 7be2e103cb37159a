"""Requests to a running service, in the terms of its error envelope."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, Literal

import httpx

from agent.client import BUSY, ClientError, retry_after_s

ATTEMPTS = 3
"""Requests for an answer, where the service is busy."""

TIMEOUT_S = 600.0
"""Longest pause within an answer that is being streamed."""


def request(
    method: Literal["GET", "POST", "PUT"],
    url: str,
    path: str,
    key: str | None,
    body: Mapping[str, Any] | None = None,
    timeout_s: float = 30.0,
) -> dict[str, Any]:
    """Return the reply of the service.

    Raises:
        ClientError: It is out of reach, or refuses.
    """
    with _reached(url):
        response = httpx.request(method, url + path, json=body, headers=_headers(key), timeout=timeout_s)
    return _document(response, url + path)


def stream(url: str, path: str, key: str | None, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the server-sent events of a reply as they arrive.

    Raises:
        ClientError: The service is out of reach, refuses, or fails on the way.
    """
    with httpx.Client(timeout=httpx.Timeout(TIMEOUT_S, connect=10.0), headers=_headers(key)) as http:
        with _reached(url):
            response = _patient(http, http.build_request("POST", url + path, json=dict(body)))
        with closing(response), _reached(url):
            if response.is_error:
                response.read()
                _document(response, url + path)
            for line in response.iter_lines():
                data = line.removeprefix("data:").strip()
                if not line.startswith("data:") or data == "[DONE]":
                    continue
                event: dict[str, Any] = json.loads(data)
                if "error" in event:
                    raise ClientError(f"{event['error']['code']}: {event['error']['message']}")
                yield event


def _patient(http: httpx.Client, message: httpx.Request) -> httpx.Response:
    """Send a request, again where the service is busy."""
    for attempt in range(1, ATTEMPTS + 1):
        response = http.send(message, stream=True)
        if response.status_code not in BUSY or attempt == ATTEMPTS:
            break
        response.close()
        time.sleep(retry_after_s(response.headers.get("retry-after"), default=0.5 * attempt))
    return response


@contextmanager
def _reached(url: str) -> Iterator[None]:
    """Turn a failure of the connection into one that names the address. Raises ClientError."""
    try:
        yield
    except (httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
        raise ClientError(
            f"--url {url!r} is no address ({error}); one such as http://127.0.0.1:8000 was expected"
        ) from None
    except httpx.HTTPError as error:
        raise ClientError(
            f"no service answers at {url} ({error or type(error).__name__}); is it running there? Start it "
            "with `make serve` or `armwise serve`, or name another address with --url"
        ) from None


def _headers(key: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}


def _document(response: httpx.Response, address: str) -> dict[str, Any]:
    """Return the JSON of a reply. Raises ClientError where it is an error, or none."""
    try:
        document: dict[str, Any] = response.json()
    except ValueError:
        raise ClientError(f"{address} gave {response.status_code} and no JSON") from None
    if response.is_error:
        try:
            raise ClientError(f"{document['error']['code']}: {document['error']['message']}")
        except (KeyError, TypeError):  # the envelope of a proxy, or of another service
            raise ClientError(f"{address} gave {response.status_code}, {response.text[:200]}") from None
    return document
