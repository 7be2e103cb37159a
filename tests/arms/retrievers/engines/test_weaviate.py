"""Requests to Weaviate: how a collection is made, the size of a request, and what is refused."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from arms.base import ArmError, Passage, Query
from arms.retrievers.engines.collection import Row
from arms.retrievers.engines.weaviate import Objects, WeaviateParams
from tests.arms.retrievers.engines.double import running
from tests.arms.retrievers.engines.weaviate_server import WeaviateServer


@pytest.fixture
def server() -> Iterator[WeaviateServer]:
    with running(WeaviateServer()) as double:
        yield double


@pytest.fixture
def objects(server: WeaviateServer) -> Objects:
    return Objects(WeaviateParams(url=server.url, collection="passages"))


def rows(names: Sequence[str]) -> list[Row]:
    return [Row(Passage(name, "", "word"), "", None) for name in names]


def test_the_reason_of_a_refused_question_is_said(objects: Objects) -> None:
    with pytest.raises(ArmError, match=r"Weaviate has refused: Cannot query field \"Passages\""):
        objects.lexical(Query("river"), 3)


def test_what_no_search_reads_is_not_indexed(server: WeaviateServer, objects: Objects) -> None:
    objects.create(None)
    made = {one["name"]: one for one in server.schema["Passages"]["properties"]}
    indexes = ("indexFilterable", "indexSearchable")
    assert [
        [made[name].get(index, True) for index in indexes] for name in ("passage", "metadata", "digest")
    ] == [[False, False]] * 3
    assert [made["facts"].get(index, True) for index in indexes] == [True, False]


def test_fifty_objects_are_written_at_a_time_and_each_once(
    server: WeaviateServer, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, written = server._put, list[str]()  # noqa: SLF001
    sizes: list[int] = []
    send = objects._rest.send  # noqa: SLF001

    def sent(method: str, path: str, content: bytes | None = None) -> Any:
        before = len(written)
        reply = send(method, path, content)
        sizes.append(len(written) - before)
        return reply

    objects.create(None)
    monkeypatch.setattr(server, "_put", lambda one: written.append(one["id"]) or put(one))
    monkeypatch.setattr(objects._rest, "send", sent)  # noqa: SLF001
    objects.write(rows([f"p{n}" for n in range(101)]))
    assert sizes == [50, 50, 1]
    assert objects.count() == 101


def test_a_refused_passage_is_named_wherever_it_is_in_its_request(
    server: WeaviateServer, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects.create(None)
    put = server._put  # noqa: SLF001

    def refuse(one: dict[str, Any]) -> dict[str, Any]:
        if one["properties"]["passage"] != "b":
            return put(one)
        return {**one, "result": {"status": "FAILED", "errors": {"error": [{"message": "too long"}]}}}

    monkeypatch.setattr(server, "_put", refuse)
    with pytest.raises(ArmError, match="1 passages are refused, such as 'b': too long"):
        objects.write(rows(["a", "b", "c"]))
