"""Every text that a caller can send is marked, and after an erasure no mark is left anywhere.

The fields come from the OpenAPI document: a new one is marked by itself. Bodies that it leaves open are
listed in `OPEN`.
"""

import json
import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from armwise.agent.api.schemas import FeedbackItem
from armwise.arms.base import Passage, Query, Retrieval
from armwise.feedback.log import Store, erasures
from armwise.feedback.log import tables as t
from tests.agent.fakes import CONFIG, FakeArms, Service
from tests.documents.texts import COLUMNS, Fate

CALLERS = {"decide", "feedback"}
"""Scopes of keys that are given to callers; what operators write is theirs."""

ITEM = {"decision_id": "q-1", "metric_name": "thumb", "value": 1, "feedback_id": "item-1"}

NOTE = {"decision_id": "q-1", "metric_name": "comment", "value": "a note"}

OTHERS: Mapping[str, list[Any]] = {
    "/v1/feedback": [NOTE, NOTE | {"metric_name": "demonstration"}],
    "/v1/responses": [{"model": "auto", "input": [{"role": "user", "content": "What is a heap?"}]}],
}
"""Further bodies by path, beside the example of the document."""

SAID = {"type": "object", "properties": {"content": {"type": "string"}, "name": {"type": "string"}}}

ASKED = {"role": "user", "content": "What is a heap?"}

ADA = {"model": "auto", "agent": {"user": "ada"}}

OPEN: Mapping[str, tuple[Any, Any, Any]] = {
    # path: the JSON schema of what the document leaves open, its example, and what is around it
    "/v1/chat/completions": (SAID, ASKED, lambda said: ADA | {"messages": [said]}),
    "/v1/messages": (SAID, ASKED, lambda said: ADA | {"max_tokens": 9, "messages": [said]}),
    "/v1/responses": (SAID, ASKED, lambda said: ADA | {"input": [said]}),
    "/v1/feedback": (FeedbackItem.model_json_schema(), ITEM, lambda item: {"items": [item]}),
}

DEEPEST = 5
"""Levels of a body: filters nest without an end."""


@dataclass
class Marks:
    """Marks that were sent, each one word that stands nowhere else.

    Attributes:
        sent: Where each stands: path and fields.
        accepted: Those in requests that were not refused.
    """

    sent: dict[str, str] = field(default_factory=dict)
    accepted: set[str] = field(default_factory=set)

    def new(self, where: str) -> str:
        """Return the next mark: a word, an identifier and a name of a field."""
        name = f"qzx{len(self.sent):04d}zxq"
        self.sent[name] = where
        return name

    def found_in(self, text: str | bytes) -> set[str]:
        """Return the marks in a text."""
        raw = text.encode() if isinstance(text, str) else text
        return {name for name in self.sent if name.encode() in raw}


def smallest(schema: Mapping[str, Any], known: Mapping[str, Any]) -> Any:
    """Return a value that fits a schema."""
    schema = resolved(schema, known)
    for name in ("const", "default"):
        if schema.get(name) is not None:
            return schema[name]
    if schema.get("enum"):
        return schema["enum"][0]
    for branch in branches(schema):
        return smallest(branch, known)
    match schema.get("type"):
        case "object":
            properties = schema.get("properties", {})
            return {name: smallest(properties.get(name, {}), known) for name in schema.get("required", ())}
        case "array":
            return [smallest(schema.get("items", {}), known)] * schema.get("minItems", 0)
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "boolean":
            return True
        case "null":
            return None
    return "a"


def resolved(schema: Any, known: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a schema without a reference at its top."""
    found = {} if isinstance(schema, bool) else schema
    while "$ref" in found:
        found = known[found["$ref"].rpartition("/")[2]]
    return dict(found)


def branches(schema: Mapping[str, Any]) -> list[Any]:
    """Return the alternatives of a schema."""
    return [one for name in ("anyOf", "oneOf", "allOf") for one in schema.get(name, ())]


def marked(
    schema: Any, base: Any, known: Mapping[str, Any], marks: Marks, where: str, depth: int = 0
) -> Iterator[tuple[str, Any]]:
    """Yield a mark and the body with it, for each text that a schema allows: names of fields, too."""
    schema = resolved(schema, known)
    if depth > DEEPEST or "const" in schema or "enum" in schema:
        return
    for branch in branches(schema):
        yield from marked(branch, base, known, marks, where, depth)
    match schema.get("type"):
        case "array":
            inner = base[0] if isinstance(base, list) and base else smallest(schema.get("items", {}), known)
            rest = base[1:] if isinstance(base, list) else []
            for mark, one in marked(schema.get("items", {}), inner, known, marks, f"{where}[]", depth + 1):
                yield mark, [one, *rest]
        case "object":
            around = base if isinstance(base, dict) else smallest({**schema, "default": None}, known)
            yield from in_fields(schema, around, known, marks, where, depth + 1)
        case "string":
            yield (mark := marks.new(where)), mark
        case None if not branches(schema):  # anything
            yield (mark := marks.new(where)), mark


def in_fields(
    schema: Any, around: Any, known: Mapping[str, Any], marks: Marks, where: str, depth: int
) -> Iterator[tuple[str, Any]]:
    """Yield what `marked` does, for the fields of an object and for names that it leaves open."""
    for name, one in schema.get("properties", {}).items():
        inner = around.get(name) if around.get(name) is not None else smallest(one, known)
        for mark, value in marked(one, inner, known, marks, f"{where}.{name}", depth):
            yield mark, {**around, name: value}
    if more := schema.get("additionalProperties"):
        mark = marks.new(f"{where}.<name>")
        yield mark, {**around, mark: smallest(more, known)}
        for mark, value in marked(more, None, known, marks, f"{where}.<value>", depth):
            yield mark, {**around, "k": value}


def requests(service: Service, marks: Marks) -> Iterator[tuple[str, str, Any]]:
    """Yield the mark, the path and the body of every request; those of decisions name the user `ada`."""
    document = service.app.openapi()
    known = document["components"]["schemas"]
    for path, operations in document["paths"].items():
        for operation in operations.values():
            if "requestBody" not in operation or not CALLERS & {*operation.get("x-scopes", ())}:
                continue
            content = operation["requestBody"]["content"]["application/json"]
            for base in (content["example"], *OTHERS.get(path, ())):
                for mark, body in marked(content["schema"], base, known, marks, path):
                    yield mark, path.replace("{store}", "corpus"), of_ada(body, content["schema"], known)
    for path, (schema, base, around) in OPEN.items():
        for mark, body in marked(schema, base, schema.get("$defs", {}), marks, path):
            yield mark, path, around(body)


def of_ada(body: Any, schema: Any, known: Mapping[str, Any]) -> Any:
    """Return a body with its end user, where it may name one and does not."""
    fields = resolved(schema, known).get("properties", {})
    if not isinstance(body, dict) or "user" in body:
        return body
    if "user" in fields:
        return {**body, "user": "ada"}
    if "agent" in fields and isinstance(body.get("agent", {}), dict):
        return {**body, "agent": {"user": "ada", **body.get("agent", {})}}
    return body


def feedback_on(body: Any, name: str, number: int) -> Any:
    """Return feedback on a decision, under an id of its own."""
    if isinstance(body, dict) and body.get("episode_id"):  # it stands instead of a decision
        body = {key: value for key, value in body.items() if key != "decision_id"}
    text = json.dumps(body).replace('"q-1"', json.dumps(name))
    for used in ("item-1", "q-1-thumb"):
        text = text.replace(f'"{used}"', json.dumps(f"{used}-{number}-{name}"))
    return json.loads(text)


async def send_all(service: Service, marks: Marks) -> set[str]:
    """Send every request, feedback on a decision that there is and on one that never comes; return its marks.

    Returns:
        The marks in requests whose user is `ada`.
    """
    headers = {"idempotency-key": "real-1"}
    await service.client.post(
        "/v1/retrieve", json={"query": "a question", "agent": {"user": "ada"}}, headers=headers
    )
    theirs = set()
    for number, (mark, path, body) in enumerate(requests(service, marks)):
        for name in ("q-1", "real-1") if '"q-1"' in json.dumps(body) else ("",):
            document = feedback_on(body, name, number) if name else body
            response = await service.client.post(path, json=document)
            assert response.status_code < 500, (path, document, response.text)
            if response.status_code < 300:
                marks.accepted.add(mark)
                if '"ada"' in json.dumps(document):
                    theirs.add(mark)
    return theirs


def columns(url: str) -> Iterator[tuple[str, str]]:
    """Yield what every column of a log holds, as text, by `table.column`."""
    with closing(Store(url)) as store, store.reading() as connection:
        for table in t.metadata.tables.values():
            for row in connection.execute(sa.select(table)).mappings():
                for name, value in row.items():
                    text = (
                        value.decode("latin-1")
                        if isinstance(value, bytes)
                        else json.dumps(value, default=str)
                    )
                    yield f"{table.name}.{name}", text


def in_log(service: Service, marks: Marks) -> dict[str, set[str]]:
    """Return the marks in the columns of the log."""
    found: dict[str, set[str]] = {}
    for name, text in columns(service.config.database_url):
        found.setdefault(name, set()).update(marks.found_in(text))
    return found


async def everywhere(service: Service, folder: Path, marks: Marks) -> dict[str, set[str]]:
    """Return the marks in all that the service has and gives, by where they are."""
    found = in_log(service, marks)
    async for where, shown in given(service):
        found.setdefault(where, set()).update(marks.found_in(shown))
    with closing(Store(service.config.database_url)) as store:
        for where, text in copies(store, folder / "backup", service.config.log_path is not None):
            found.setdefault(where, set()).update(marks.found_in(text))
    for path in sorted(service.folder.rglob("*")):
        if path.is_file() and folder not in path.parents:
            found.setdefault(path.name, set()).update(marks.found_in(path.read_bytes()))
    return found


async def given(service: Service) -> AsyncIterator[tuple[str, str]]:
    """Yield what exports and pages of the console have."""
    for form in ("jsonl", "dsjson", "feedback"):
        answer = await service.client.get("/v1/export", params={"format": form})
        yield f"export {form}", answer.text
    for page in ("", "/arms", "/decisions", "/policies", "/evaluations"):
        answer = await service.client.get(f"/console{page}")
        assert answer.status_code == 200, (page, answer.text)
        yield f"/console{page}", answer.text


def copies(store: Store, folder: Path, in_a_file: bool) -> Iterator[tuple[str, str | bytes]]:
    """Yield what a backup of a log has."""
    folder.mkdir()
    if in_a_file:
        store.backup(folder / "log.db")
        yield "backup", (folder / "log.db").read_bytes()


def ids_of(url: str) -> tuple[set[str], set[str]]:
    """Return the ids of decisions and of episodes that a log has anywhere."""
    with closing(Store(url)) as store, store.reading() as connection:
        d, f = t.decisions.c, t.feedback.c
        decisions = {*connection.scalars(sa.select(d.id)), *connection.scalars(sa.select(f.decision_id))}
        episodes = {
            *connection.scalars(sa.select(d.episode_id)),
            *connection.scalars(sa.select(f.episode_id)),
        }
    return decisions - {None}, episodes - {None}


async def erase_by_ids(service: Service, _: set[str], marks: Marks) -> set[str]:
    """Erase every decision and episode by its id, over HTTP; return the marks that must go."""
    decisions, episodes = ids_of(service.config.database_url)
    for kind, names in (("decisions", decisions), ("episodes", episodes)):
        for name in sorted(names):
            response = await service.client.delete(f"/v1/{kind}/{name}")
            assert response.status_code == 200, response.text
    return {*marks.sent}


async def erase_by_age(service: Service, _: set[str], marks: Marks) -> set[str]:
    """Erase all that there is, as too old; return the marks that must go."""
    with closing(Store(service.config.database_url)) as store:
        now = service.replica.clock() + 2 * erasures.DAY_S
        while erasures.erase_older(store, 1.0, now):
            pass
        store.forget()
    return {*marks.sent}


async def erase_by_user(service: Service, theirs: set[str], _: Marks) -> set[str]:
    """Erase the user that the requests of decisions name; return the marks that must go."""
    response = await service.client.delete("/v1/users/ada")
    assert response.status_code == 200, response.text
    assert response.json()["decisions"] > 20
    return theirs


IDS = {name for name, place in COLUMNS.items() if place.fate is Fate.KEPT and place.holds.startswith("an id")}

ID_FIELDS = {
    "/v1/chat/completions.agent.episode_id",
    *("/v1/responses.agent.episode_id", "/v1/retrieve.agent.episode_id"),
    "/v1/messages.agent.episode_id",
    "/v1/decisions.episode_id",
    *("/v1/feedback.decision_id", "/v1/feedback.episode_id"),
}
"""Fields that are an id of a decision or an episode: these stay, and are said to (`COLUMNS`)."""


async def found_or_filtered(query: Query, _: int) -> Retrieval:
    """Find a passage, unless there is a filter, which it would not fulfil."""
    return Retrieval() if query.where else Retrieval((Passage("p-1", "a title", "a text", 1.0),))


@pytest.mark.parametrize("erase", [erase_by_ids, erase_by_age, erase_by_user])
@pytest.mark.slow
async def test_no_text_of_a_request_outlives_an_erasure(
    erase: Any,
    tmp_path: Path,
    log_url: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    (folder := tmp_path / "copies").mkdir()
    limits = CONFIG["limits"] | {"body_bytes": 2**20}
    settings: dict[str, Any] = {"limits": limits}
    arms = FakeArms(dict.fromkeys(CONFIG["arms"], found_or_filtered))
    async with Service(tmp_path, log_url=log_url, searched=arms, **settings).running() as service:
        marks = Marks()
        theirs = await send_all(service, marks)
        await service.learn()
        before = in_log(service, marks)
        kept = set().union(*(before.get(name, set()) for name in IDS))
        assert {marks.sent[name] for name in kept} <= ID_FIELDS
        gone = await erase(service, theirs, marks) - kept
        least = 15 if erase is erase_by_user else 30
        assert len(gone & set().union(*before.values())) > least, "the marks were in the log"
        found = await everywhere(service, folder, marks)
        left = {where: sorted(marks.sent[name] for name in names & gone) for where, names in found.items()}
        assert {where: names for where, names in left.items() if names} == {}
    assert marks.found_in(caplog.text) - kept == set()
