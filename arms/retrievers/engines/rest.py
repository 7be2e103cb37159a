"""Requests to engines that have an API over HTTP and JSON."""

import asyncio
from collections.abc import Sequence
from typing import Any, Self

import httpx
import orjson
from pydantic import Field, model_validator

from arms.base import ArmError, QuestionRefusedError
from arms.retrievers.engines.collection import ServerParams
from arms.retrievers.remote import REFUSED, HttpArm, HttpParams, Reply

Json = dict[str, Any]


class SearchServerParams(ServerParams):
    """Parameters of an arm over an engine that is asked over HTTP."""

    url: str = Field(description="Address of the engine, such as https://search.example:9200.")
    key_env: str | None = Field(
        None,
        description="Variable of the environment that holds the whole header `Authorization`.",
    )

    @property
    def http(self) -> HttpParams:
        """How requests are sent."""
        headers = {} if self.key_env is None else {"Authorization": self.key_env}
        limits = {"timeout_s": self.timeout_s, "total_s": self.timeout_s}
        return HttpParams.model_validate({"url": self.url, "header_env": headers, **limits})

    @model_validator(mode="after")
    def _is_an_address(self) -> Self:
        if self.http.url != self.url or httpx.URL(self.url).query:
            raise ValueError(f"url {self.url!r} is not an address of an engine")
        return self


class Rest:
    """The requests of a collection.

    Args:
        params: Parameters of the arm.
        root: Path of all requests below the address, without a slash at either end.
    """

    def __init__(self, params: SearchServerParams, root: str) -> None:
        self._http = HttpArm("", params.http)
        self._http.label = params.url
        self._root = f"{params.url.rstrip('/')}/{root}"
        self._at_once = params.connections

    def call(self, method: str, path: str, body: Json | None = None, *, asked: bool = False) -> Json:
        """Return the reply to a request; `asked` where a refusal is of a question. Raises ArmError."""
        return self.read(self.send(method, path, None if body is None else orjson.dumps(body)), asked=asked)

    def send(
        self, method: str, path: str, content: bytes | None = None, kind: str = "application/json"
    ) -> Reply:
        """Return the response to a request, of any status below 500. Raises ArmError."""
        return self._http.connections.waiting.run(self._http.send(self._request(method, path, content, kind)))

    def send_all(self, method: str, parts: Sequence[tuple[str, Json | None]]) -> list[Reply]:
        """Return the responses to requests of paths and bodies, in order. Raises ArmError."""
        requests = [
            self._request(method, path, None if body is None else orjson.dumps(body), "application/json")
            for path, body in parts
        ]

        async def all_of_them() -> list[Reply]:
            free = asyncio.Semaphore(self._at_once)

            async def one(request: httpx.Request) -> Reply:
                async with free:
                    return await self._http.send(request)

            return await asyncio.gather(*map(one, requests))

        return self._http.connections.waiting.run(all_of_them())

    def read(self, reply: Reply, *, asked: bool = False) -> Json:
        """Return the body of a response; empty without one. Raises ArmError."""
        content = self.checked(reply, asked=asked).content
        found: Json = orjson.loads(content) if content else {}
        return found

    def checked(self, reply: Reply, *, asked: bool = False) -> Reply:
        """Return a response of success. Raises ArmError."""
        if not httpx.codes.is_success(reply.status):
            error = QuestionRefusedError if asked and reply.status in REFUSED else ArmError
            raise error(f"{self._http.label} returned {reply}")
        return reply

    def _request(self, method: str, path: str, content: bytes | None, kind: str) -> httpx.Request:
        http = self._http
        headers = {**http.headers, **({} if content is None else {"Content-Type": kind})}
        return http.connections.client.build_request(
            method, f"{self._root}{path}", headers=headers, content=content
        )
