"""Nobody gets a passage, or what was written from it, that the groups of the key do not permit."""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_type_hints

import httpx
import orjson
import pytest

from armwise.agent.lab.routers.answer_selector import open_selector
from armwise.arms.base import ArmError, Passage, Query, Retrieval
from armwise.arms.corpus import ingest
from armwise.arms.llm import Chunk, Prompt, base, prompts
from armwise.arms.models import Backbone
from armwise.arms.retrievers import ArmSpec, Resources, build_arm, prepare
from armwise.arms.retrievers.kind import CascadeStep, DeciderSpec
from armwise.feedback.events import (
    QUOTES_PASSAGES,
    Context,
    Cost,
    Decision,
    Execution,
    Feedback,
    Observation,
    ObservationSource,
    Status,
)
from tests.agent.api.test_tenants import bearer
from tests.agent.asking import CHAT, QUESTION, refused
from tests.agent.fakes import DIM, FakeArms, Service
from tests.agent.gateways.test_mcp import call, connected, failure
from tests.agent.trained_routers import kept

ARMS: dict[str, Any] = {
    "bm25": {"kind": "bm25"},
    "short": {"kind": "bm25", "params": {"b": 0.1}},
    "rrf": {"kind": "rrf", "params": {"arms": ["bm25", "short"]}},
    "expand": {"kind": "expand", "params": {"arm": "bm25"}},
    "learned": {"kind": "learned_fusion", "params": {"arms": ["bm25", "short"]}},
    "selected": {
        "kind": "ensemble",
        "params": {
            "arms": ["bm25", "short", "rrf"],
            "select": "learned",
            "router": "ROUTER",
            "backbone": "tiny",
            "form": "short",
            "max_tokens": 32,
        },
    },
    "cascade": {
        "kind": "cascade",
        "params": {"stages": [["none"], ["bm25"], ["learned"]], "decider": "/deciders/any"},
    },
    "none": {"kind": "none", "action": False},
    "server": {"kind": "mcp", "params": {"url": "https://a.example", "tool": "find"}},
}

GROUPS = {"ACME": ["acme"], "ZETA": ["zeta"], "BOTH": ["acme", "zeta"], "NONE": []}

SECRET = "sekret"
"""What only texts of zeta say: they fit the question best."""


def line(name: str, n: int, text: str, **metadata: Any) -> dict[str, Any]:
    return {"id": f"{name}-{n}", "title": f"{text} {n}", "text": f"{text} {n}", "metadata": metadata}


LINES = [
    *(line("zeta", n, f"{QUESTION} {SECRET}", year=n, allowed_groups=["zeta"]) for n in range(8)),
    *(line("acme", n, "A river of acme", year=n, allowed_groups=["acme"]) for n in range(3)),
    *(line("all", n, "A river for all", year=n) for n in range(3)),
    *(line("other", n, "Something else") for n in range(9)),
]


class CorpusArms(FakeArms):
    """Real arms over a corpus on disk."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        source = folder / "source.jsonl"
        source.write_bytes(b"\n".join(map(orjson.dumps, LINES)))
        self.corpus = ingest(source, folder / "corpus")
        router = kept(
            folder / "router",
            "pointwise_xgboost",
            ("bm25", "short", "rrf"),
            writing=prompts.Writing(prompts.Form.SHORT, 400, 32),
            stage="answered",
            dims=0,
        )
        named = orjson.loads(orjson.dumps(ARMS).replace(b"ROUTER", str(router).encode()))
        specs = {name: ArmSpec.model_validate(spec) for name, spec in named.items() if name != "server"}
        self.prompts: list[str] = []
        have = Resources(
            self.corpus,
            folder / "indexes",
            {"tiny": Backbone(model=f"hashing:{DIM}")},
            specs,
            write=self.write,
            open_selector=self.opened,
        )
        prepare(have)
        self.built = {name: build_arm(name, have) for name in specs}
        self.decided: list[Passage] = []
        self.returned: Callable[[Passage], Passage] = lambda passage: passage

    def write(self, prompt: Prompt) -> tuple[str, Chunk]:
        self.prompts.append(" ".join(message["content"] for message in prompt.messages))
        return "42", Chunk("42")

    def opened(self, wanted: Any, /) -> Any:
        """Open a trained selector; a decider goes on to the last stage and remembers what it saw."""
        return self if isinstance(wanted, DeciderSpec) else open_selector(wanted)

    k = 6

    def decide(
        self, question: str, answers: Sequence[str | None], found: Sequence[Sequence[Passage]]
    ) -> CascadeStep:
        del question
        self.decided += [passage for passages in found for passage in passages]
        return CascadeStep(len(answers) - 1, 0.5, 1.0 if len(answers) < 3 else None, len(answers) < 3)

    failing: str | None = None

    async def search(self, arm: str, query: Query, k: int) -> Retrieval:
        if arm == self.failing:
            raise ArmError(f"the reranker refused {SECRET!r}")
        found = self.built[arm].search(query, k)
        return replace(found, passages=tuple(map(self.returned, found.passages)))

    async def passages(self, ids: Sequence[str]) -> list[Passage]:
        return self.corpus.passages(self.corpus.find_positions(ids).values())

    async def is_restricted(self) -> bool:
        return self.corpus.restricted


def echoing() -> base.ScriptedGenerator:
    """Return a model that writes all that it reads, and cites the first passage."""

    def reply(prompt: Prompt) -> str:
        return "[1] " + " ".join(message["content"] for message in prompt.messages)

    return base.ScriptedGenerator(reply)


def service_of(folder: Path, writer: base.ScriptedGenerator | None = None, **changes: Any) -> Service:
    settings = {"arms": ARMS, "answering": {"cite": True, "passages": 6, "max_tokens": 2000}} | changes
    limits = {"in_flight": 4, "completion_tokens": 4000}
    return Service(folder, writer or echoing(), searched=CorpusArms(folder), limits=limits, **settings)


@pytest.fixture
async def tenants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Service]:
    async with service_of(tmp_path, keys=keys(monkeypatch)).running() as service:
        yield service


async def post(service: Service, who: str, path: str, body: Any, **headers: str) -> httpx.Response:
    return await service.client.post(path, json=body, headers=bearer(who) | headers)


async def found(service: Service, who: str, **fields: Any) -> list[str]:
    body = {"query": QUESTION, "k": 30, "agent": fields.pop("agent", {}) | {"return": ["passages"]}} | fields
    response = await post(service, who, "/v1/retrieve", body)
    assert response.status_code == 200, response.text
    return sorted({one["id"].split("-")[0] for one in response.json()["passages"]} - {"other"})


@pytest.mark.parametrize("arm", ["bm25", "short", "rrf", "expand", "learned", "selected", "cascade"])
async def test_each_group_finds_its_own_passages_and_those_for_everybody(tenants: Service, arm: str) -> None:
    for _ in range(2):  # the second time from caches
        for who, expected in (
            ("acme", ["acme", "all"]),
            ("zeta", ["all", "zeta"]),
            ("none", ["all"]),
            ("both", ["acme", "all", "zeta"]),
        ):
            assert await found(tenants, who, model=f"arm/{arm}") == expected


@pytest.mark.parametrize("arm", ["selected", "cascade"])
async def test_what_is_trained_reads_nothing_that_is_not_permitted(tenants: Service, arm: str) -> None:
    arms = tenants.arms
    assert isinstance(arms, CorpusArms)
    for who, hidden in (("acme", True), ("none", True), ("zeta", False)):
        arms.prompts.clear()
        arms.decided.clear()
        await found(tenants, who, model=f"arm/{arm}")
        read = " ".join((*arms.prompts, *(one.text for one in arms.decided)))
        assert arms.prompts
        assert (SECRET not in read) == hidden


@pytest.mark.parametrize("arm", ["bm25", "rrf", "learned", "selected", "cascade"])
@pytest.mark.parametrize(
    "metadata", [{}, {"allowed_groups": ["acme"]}, {"allowed_groups": ["zeta", "acme"]}], ids=str
)
async def test_what_an_arm_returns_is_checked_by_the_corpus(
    tenants: Service, arm: str, metadata: Any
) -> None:
    """The arm finds passages of zeta for everybody, and says that they are for all, or for acme."""
    arms = tenants.arms
    assert isinstance(arms, CorpusArms)
    hidden = arms.corpus.passages(arms.corpus.find_positions(["zeta-0"]).values())[0]
    arms.returned = lambda passage: replace(passage, id=hidden.id, text=hidden.text, metadata=metadata)
    for who in ("acme", "none"):
        body = {"query": QUESTION, "model": f"arm/{arm}", "agent": {"return": ["passages"]}}
        response = await post(tenants, who, "/v1/retrieve", body)
        assert "does not permit" in refused(response, 502, "arm_failed")
        assert SECRET not in response.text
        answered = await post(tenants, who, "/v1/chat/completions", CHAT | {"model": f"arm/{arm}"})
        assert SECRET not in answered.text


@pytest.mark.slow
async def test_a_passage_outside_the_corpus_is_checked_by_its_words(tenants: Service) -> None:
    arms = tenants.arms
    assert isinstance(arms, CorpusArms)
    for groups, status in ((["zeta"], 502), (["acme"], 200)):
        arms.returned = lambda passage, groups=groups: replace(
            passage, id=f"elsewhere {passage.id}", metadata={"allowed_groups": groups}
        )
        response = await post(tenants, "acme", "/v1/retrieve", {"query": QUESTION, "model": "arm/bm25"})
        assert response.status_code == status, response.text


async def test_a_filter_is_checked_against_the_corpus_too(tenants: Service) -> None:
    arms = tenants.arms
    assert isinstance(arms, CorpusArms)
    (other,) = arms.corpus.passages(arms.corpus.find_positions(["all-2"]).values())
    arms.returned = lambda passage: replace(passage, id=other.id, metadata={"year": 0})
    agent = {"filters": {"type": "eq", "key": "year", "value": 0}}
    body = {"query": QUESTION, "model": "arm/bm25", "agent": agent}
    assert "does not permit" in refused(await post(tenants, "none", "/v1/retrieve", body), 502, "arm_failed")


@pytest.mark.slow
async def test_no_route_shows_what_is_not_permitted(tenants: Service) -> None:
    shown = {"return": ["passages", "decision"]}
    for who, hidden in (("zeta", False), ("acme", True), ("none", True)):
        replies = [
            await post(tenants, who, "/v1/chat/completions", CHAT | {"agent": shown}),
            await post(tenants, who, "/v1/chat/completions", CHAT | {"stream": True}),
            await post(tenants, who, "/v1/responses", {"input": QUESTION, "model": "auto"}),
            await post(tenants, who, "/v1/retrieve", {"query": QUESTION, "agent": shown}),
        ]
        for reply in replies:
            assert reply.status_code == 200, reply.text
            assert (SECRET in reply.text or "zeta-" in reply.text) != hidden, reply.text
            assert "allowed_groups" not in reply.text
        async with connected(tenants, who) as client:
            assert (SECRET in str(await call(client, "search", query=QUESTION))) != hidden
            assert (SECRET in str(await call(client, "ask", question=QUESTION))) != hidden
            fetched = await client.call_tool("fetch", {"id": "zeta-1"})
            if hidden:
                assert "no passage 'zeta-1'" in failure(fetched)
            else:
                assert SECRET in str(fetched.structured_content)


@pytest.mark.slow
async def test_a_decision_of_another_group_is_read_without_its_answer_and_passages(tenants: Service) -> None:
    made = (await post(tenants, "zeta", "/v1/chat/completions", CHAT)).json()["agent"]["decision_id"]
    path = f"/v1/decisions/{made}"
    pages = (path, f"/console/decisions/{made}", f"/console/decisions/{made}/passages")
    for who, hidden in (("zeta", False), ("both", False), ("acme", True), ("none", True)):
        record = (await tenants.client.get(path, headers=bearer(who))).json()
        assert (record["withheld"], record["answer"] is None) == (hidden, hidden)
        assert ("zeta-1" in record["passage_ids"]) != hidden
        for page in pages:
            text = (await tenants.client.get(page, headers=bearer(who))).text
            assert not (hidden and (SECRET in text or "zeta-" in text)), page
            assert page == path or "not shown" in text or not hidden


def refusing(prompt: Prompt) -> str:
    """Repeat the prompt in a refusal, as servers of models do."""
    raise base.GeneratorError(f"400: {' '.join(message['content'] for message in prompt.messages)}")


def keys(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    for name in GROUPS:
        monkeypatch.setenv(name, name.lower())
    scopes = ["decide", "read", "feedback"]
    return [{"env": name, "scopes": scopes, "groups": groups} for name, groups in GROUPS.items()]


async def records(service: Service, made: str) -> AsyncIterator[tuple[str, dict[str, Any], str]]:
    """Yield what each key reads of a decision: its record, and all that it gets."""
    for who in ("zeta", "both", "acme", "none"):
        paths = (f"/v1/decisions/{made}", f"/console/decisions/{made}")
        replies = [await service.client.get(path, headers=bearer(who)) for path in paths]
        yield who, replies[0].json(), "".join(reply.text for reply in replies)


async def test_an_error_that_repeats_the_prompt_is_not_shown_to_other_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = base.ScriptedGenerator(refusing)
    async with service_of(tmp_path, writer, keys=keys(monkeypatch)).running() as service:
        reply = await post(service, "zeta", "/v1/chat/completions", CHAT | {"model": "arm/bm25"})
        refused(reply, 502, "llm_failed")
        (listed,) = (await service.client.get("/v1/decisions", headers=bearer("zeta"))).json()["decisions"]
        async for who, record, text in records(service, listed["decision_id"]):
            hidden = who in ("acme", "none")
            assert (record["withheld"], SECRET in text) == (hidden, not hidden)
            assert record["error"].startswith("GeneratorError")


@pytest.mark.slow
async def test_an_error_of_what_did_not_answer_is_not_shown_by_the_passages_of_what_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An arm failed with what it had read, and returned nothing; the fallback found passages for all."""
    service = service_of(tmp_path, keys=keys(monkeypatch), fallback="bm25")
    arms = service.arms
    assert isinstance(arms, CorpusArms)
    arms.failing = "short"
    async with service.running():
        body = CHAT | {"agent": {"allowed_arms": ["short", "bm25"]}}
        fell_back = 0
        for _ in range(12):
            reply = (await post(service, "none", "/v1/chat/completions", body)).json()["agent"]
            if reply["arm_drawn"] != "short":
                continue
            fell_back += 1
            async for _, record, text in records(service, reply["decision_id"]):
                assert (record["status"], record["error"]) == ("fell_back", "ArmError")
                assert record["withheld"]
                assert SECRET not in text
        assert fell_back
        forced = await post(service, "none", "/v1/chat/completions", CHAT | {"model": "arm/short"})
        refused(forced, 502, "arm_failed")
        (listed, *_) = (await service.client.get("/v1/decisions", headers=bearer("none"))).json()["decisions"]
        async for _, record, text in records(service, listed["decision_id"]):
            assert (record["status"], record["error"], record["withheld"]) == ("arm_failed", "ArmError", True)
            assert SECRET not in text


def said(answer: str) -> dict[str, Any]:
    """Return a conversation that goes on after an answer."""
    return {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": QUESTION},
            {"role": "assistant", "content": answer},
            {"role": "user", "content": "In other words?"},
        ]
    }


NOTHING: dict[str, Any] = {"filters": {"type": "eq", "key": "year", "value": 99}}
"""No passage fulfils it, so that the model reads the messages alone."""


@pytest.mark.slow
async def test_an_answer_to_a_conversation_is_read_by_the_groups_of_who_led_it(tenants: Service) -> None:
    """The messages quote a passage that the decision itself has not found."""
    body = said(SECRET) | {"agent": NOTHING}
    for who, readers in (("zeta", {"zeta", "both"}), ("both", {"both"}), ("none", {*map(str.lower, GROUPS)})):
        reply = await post(tenants, who, "/v1/chat/completions", body)
        assert SECRET in reply.text
        async for reader, record, text in records(tenants, reply.json()["agent"]["decision_id"]):
            assert (SECRET in text) == (reader in readers)
            assert record["withheld"] == (reader not in readers)
            assert "groups" not in record["steps"], "they may be those of others"
    for first in (1, 2):  # also without what the answer was given to
        made = await post(
            tenants, "zeta", "/v1/chat/completions", body | {"messages": body["messages"][first:]}
        )
        async for reader, record, _ in records(tenants, made.json()["agent"]["decision_id"]):
            assert record["withheld"] == (reader in ("acme", "none"))
    reply = await post(tenants, "zeta", "/v1/chat/completions", body | {"agent": NOTHING | {"groups": []}})
    async for _, record, _ in records(tenants, reply.json()["agent"]["decision_id"]):
        assert not record["withheld"], "it was asked for callers without groups"


@pytest.mark.slow
async def test_a_turn_that_keeps_the_arm_of_its_conversation_is_read_by_the_same_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with service_of(tmp_path, keys=keys(monkeypatch), sticky="episode").running() as service:
        body = said(SECRET) | {"agent": NOTHING | {"episode_id": "talk"}}
        turns = [(await post(service, "zeta", "/v1/chat/completions", body)).json()["agent"] for _ in "ab"]
        assert [turn["mode"] for turn in turns] == ["explore", "continued"]
        for turn in turns:
            async for reader, record, text in records(service, turn["decision_id"]):
                assert record["withheld"] == (SECRET not in text) == (reader in ("acme", "none"))


async def test_a_first_question_over_open_passages_is_read_by_all(tenants: Service) -> None:
    instructed = [{"role": "system", "content": "Be brief."}, *CHAT["messages"]]
    body = CHAT | {"messages": instructed, "agent": NOTHING}
    reply = await post(tenants, "zeta", "/v1/chat/completions", body)
    async for _, record, text in records(tenants, reply.json()["agent"]["decision_id"]):
        assert (record["withheld"], "Be brief." in text) == (False, True)


CANNOT_QUOTE = {
    Context: {"question", "features", "arms"},  # of who asks, in numbers, and of the configuration
    Decision: {"id", "arms", "drawn", "policy", "masked", "steps", "trace"},
    Execution: {"decision_id", "served", "passages", "index_version", "tokens_by_model"}
    | {"finish_reason", "marks"},
    Observation: {"decision_id", "arm", "judge", "passages"},
    Feedback: {"id", "decision_id", "metric", "episode_id", "source", "key", "rater"},
}
"""Fields with texts, or names of texts, that nothing writes which has read passages: ids, arms, names."""

CANNOT_QUOTE[Decision] |= {
    "episode_id",
    "request_digest",
    "draw_id",
    "user_digest",
    "asked_by",
}


def quoting(kind: Any) -> set[str]:
    """Return the fields of a fact that may quote passages."""
    hints = get_type_hints(kind, include_extras=True)
    return {name for name, hint in hints.items() if QUOTES_PASSAGES in getattr(hint, "__metadata__", ())}


@pytest.mark.parametrize("kind", CANNOT_QUOTE, ids=lambda kind: kind.__name__)
def test_every_field_with_texts_says_whether_it_may_quote_passages(kind: Any) -> None:
    hints = {name: str(hint) for name, hint in get_type_hints(kind).items()}
    texts = {name for name, hint in hints.items() if "str" in hint.replace("StrEnum", "") or "object" in hint}
    assert texts == quoting(kind) | CANNOT_QUOTE[kind], "mark a new field with QUOTES_PASSAGES, or list it"
    assert not quoting(kind) & CANNOT_QUOTE[kind]


TEXTS: dict[str, Any] = {
    "answer": SECRET,
    "error": f"ValueError: {SECRET}",
    "stages": ({"queries": [SECRET]},),
    "tags": {"passage": SECRET},
    "content": {"comment": SECRET},
}
"""Restricted text in each field that may quote passages."""


async def test_no_field_that_may_quote_a_passage_is_shown_to_other_groups(tenants: Service) -> None:
    """Each kind of fact about a decision has the text in all such fields."""
    store, decide = tenants.replica.store, tenants.client.post
    reply = await decide("/v1/retrieve", json={"query": "A river", "k": 1}, headers=bearer("none"))
    copied = store.record(reply.json()["agent"]["decision_id"])
    assert copied is not None
    quoted = {kind: {name: TEXTS[name] for name in quoting(kind)} for kind in CANNOT_QUOTE}
    name = "d-restricted"
    run = Execution(name, "bm25", Status.LLM_FAILED, Cost(), ("zeta-1",), **quoted[Execution])
    second = Observation(
        name, ObservationSource.SHADOW, "bm25", 1.0, passages=("zeta-1",), **quoted[Observation]
    )
    item = Feedback("f-1", name, "thumb", 1.0, copied.decision.decided_at, **quoted[Feedback])
    store.append([replace(copied.decision, id=name), run, second, item])
    async for who, record, text in records(tenants, name):
        for fact in (record, record["observations"][0], record["feedback"][0]):
            for field in {"answer", "error", "stages", "tags", "content"} & fact.keys():
                assert (SECRET in str(fact[field])) == (who in ("zeta", "both")), (who, field)
        assert (SECRET in text) == (who in ("zeta", "both"))
        assert record["feedback"][0]["value"] == 1.0


async def test_a_repeated_request_of_another_group_does_not_get_the_answer(tenants: Service) -> None:
    once = {"idempotency-key": "d-1"}
    first = await post(tenants, "zeta", "/v1/chat/completions", CHAT, **once)
    assert SECRET in first.text
    again = await post(tenants, "zeta", "/v1/chat/completions", CHAT, **once)
    assert (
        again.json()["choices"][0]["message"]["content"] == first.json()["choices"][0]["message"]["content"]
    )
    for who in ("acme", "both", "none"):
        other = await post(tenants, who, "/v1/chat/completions", CHAT, **once)
        refused(other, 409, "idempotency_conflict", "Idempotency-Key")
        assert SECRET not in other.text


async def test_a_request_may_have_fewer_groups_than_its_key_and_no_more(tenants: Service) -> None:
    assert await found(tenants, "both", agent={"groups": ["acme"]}) == ["acme", "all"]
    assert await found(tenants, "both", agent={"groups": []}) == ["all"]
    body = {"query": QUESTION, "agent": {"groups": ["acme", "zeta"]}}
    message = refused(await post(tenants, "acme", "/v1/retrieve", body), 403, "forbidden", "agent.groups")
    assert message == "this key does not have the groups 'zeta': some of its own were expected"


async def test_a_filter_is_kept_to_by_every_route_that_has_one(tenants: Service) -> None:
    new = {"type": "and", "filters": [{"type": "gte", "key": "year", "value": 2}]}
    body = {"query": QUESTION, "agent": {"filters": new, "return": ["passages"]}}
    reply = await post(tenants, "acme", "/v1/retrieve", body)
    passages = {one["id"]: one["metadata"] for one in reply.json()["passages"]}
    assert passages == {"acme-2": {"year": 2}, "all-2": {"year": 2}}
    reply = await post(tenants, "acme", "/v1/chat/completions", CHAT | {"agent": {"filters": new}})
    assert "acme 2" in reply.text
    assert "acme 1" not in reply.text
    nothing = {"type": "eq", "key": "year", "value": 99}
    assert await found(tenants, "acme", agent={"filters": nothing}) == []


async def test_an_arm_that_cannot_filter_is_masked_or_refused(tenants: Service) -> None:
    reply = await post(tenants, "acme", "/v1/retrieve", {"query": QUESTION})
    made = reply.json()["agent"]["decision_id"]
    record = (await tenants.client.get(f"/v1/decisions/{made}", headers=bearer("acme"))).json()
    assert record["masked"] == {"server": "cannot_filter"}
    for fields in ({"model": "arm/server"}, {"agent": {"allowed_arms": ["server"]}}):
        reply = await post(tenants, "acme", "/v1/retrieve", {"query": QUESTION} | fields)
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "no_eligible_arm")
        assert "cannot" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("filters", "code"),
    [
        ({"type": "eq", "key": "allowed_groups", "value": "zeta"}, "invalid_value"),
        ({"type": "or", "filters": [{"type": "ne", "key": "allowed_groups", "value": "x"}]}, "invalid_value"),
        ({"type": "gt", "key": "year", "value": "2"}, "invalid_value"),
        ({"type": "near", "key": "year", "value": 2}, "invalid_value"),
        ({"type": "and", "filters": []}, "invalid_value"),
        ([1], "invalid_value"),
    ],
)
async def test_a_filter_that_is_none_is_refused(tenants: Service, filters: Any, code: str) -> None:
    reply = await post(tenants, "acme", "/v1/retrieve", {"query": QUESTION, "agent": {"filters": filters}})
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, code), reply.text
    assert "zeta" not in reply.json()["error"]["message"]


async def test_without_keys_only_passages_for_everybody_are_found(tmp_path: Path) -> None:
    async with service_of(tmp_path).running() as service:
        assert await found(service, "") == ["all"]


async def test_a_key_of_the_log_has_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADMIN", "admin")
    async with service_of(tmp_path, keys=[{"env": "ADMIN", "scopes": ["admin"]}]).running() as service:
        made = await post(service, "admin", "/v1/keys", {"name": "shop", "groups": ["zeta"]})
        assert made.json()["groups"] == ["zeta"]
        assert await found(service, made.json()["key"]) == ["all", "zeta"]
        assert await found(service, "admin") == ["all"], "whatever its scopes"
        listed = (await service.client.get("/v1/keys", headers=bearer("admin"))).json()["keys"]
        assert [one["groups"] for one in listed] == [[], ["zeta"]]
