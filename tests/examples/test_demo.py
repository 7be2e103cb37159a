"""The demo: what it asks, what it writes down, and the page that it leaves; against a toy of a service."""

import asyncio
import itertools
import json
import os
import signal
import socket
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import yaml
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from armwise.agent.cli.serve_config import LaunchError
from armwise.agent.client import AsyncClient, ClientError
from armwise.agent.config import ConfigError, load
from armwise.agent.lab.simulation.questions import QuestionsError
from armwise.arms.base import Passage, Query, Retrieval
from armwise.arms.retrievers.remote import RemoteArm, RemoteParams
from examples.demo import demonstrate as demo
from examples.demo import service as demo_service
from examples.demo.__main__ import app as command_line
from examples.demo.demonstrate import Demo, lay_out, worlds
from examples.demo.operator import Operator
from examples.demo.page import moving_average, page, summary
from examples.demo.record import Chapter, Story
from examples.demo.service import Desk, Patience, PatientTransport, serving
from examples.demo.story import Narrator, Plan
from examples.demo.team import team
from examples.demo.traffic import Traffic
from tests.agent.canned import AGENT, COST, PASSAGE, POLICY, RECEIPT

EXAMPLE = Path("examples/demo.yaml")
REQUEST: dict[str, Any] = {"q": "{question}", "k": "{k}"}
ARMS = ("library", "manual", "both")
FINDS = {
    "library": ("library",),
    "manual": ("language",),
    "both": ("library", "language"),
    "guides": ("guides",),
}
"""The kinds of questions that an arm finds the passages of."""

PLAN = Plan(rule=20, judged=20, again=10, warm=40, stale=120, missing=20, found=60, switched=5)
HELD = "The gain a decision is +0.0400 and at 95% at least -0.0100, which must be above +0.0000."


def write_questions(path: Path, kinds: tuple[str, ...] = ("library", "language", "guides")) -> Path:
    rows = [
        {
            "id": f"{kind}-{i}",
            "question": f"{kind} question {i}",
            "dataset": kind,
            "gold_ids": [f"{kind}:{i}"],
        }
        for kind in kinds
        for i in range(6)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


class ToyService:
    """Draws arms evenly until a candidate is live, and says of candidates what it was told to.

    Attributes:
        verdicts: What the gate says, one look at a candidate after the other; the last one for ever. None
            ends a canary.
        rows: Promotions and canaries, newest first.
        alarm: Whether feedback on a stale source raises an alarm, and the source is left.
        asked: Models that were asked for.
        judged: Decisions that feedback was sent for.
        seen: How many of them the gate has looked at.
        said: Promotions, canaries and arms, in order.
        refuse: Whether a promotion is refused.
    """

    def __init__(self, *verdicts: bool | None, alarm: bool = True) -> None:
        self.verdicts, self.alarm = list(verdicts) or [True], alarm
        self.rows: list[dict[str, Any]] = []
        self.names = list(ARMS)
        self.asked: list[str] = []
        self.judged: list[str] = []
        self.said: list[tuple[str, Any]] = []
        self.seen = 0
        self.refuse = False
        self.live: int | None = None
        self.spoiled_at: int | None = None
        self.runs: list[dict[str, Any]] = []
        self.evaluations: list[dict[str, Any]] = []
        self.rng, self.ids = np.random.default_rng(3), itertools.count(1)

    def spoil(self) -> None:
        self.spoiled_at = len(self.judged)

    def app(self) -> FastAPI:
        app = FastAPI()
        for method, path, route in (
            ("GET", "/v1/arms", self.arms),
            ("PUT", "/v1/arms", self.replace_arms),
            ("GET", "/v1/policy", self.policy),
            ("POST", "/v1/retrieve", self.retrieve),
            ("POST", "/v1/feedback", self.feedback),
            ("POST", "/v1/warm-starts", self.run),
            ("GET", "/v1/warm-starts", self.all_runs),
            ("GET", "/v1/warm-starts/{number}", self.one_run),
            ("POST", "/v1/evaluations", self.evaluate),
            ("GET", "/v1/evaluations/{number}", self.evaluation),
            ("GET", "/v1/evaluations/{number}/report", self.report),
            ("POST", "/v1/policies/{version}/promote", self.promote),
            ("POST", "/v1/policies/{version}/rollback", self.rollback),
            ("GET", "/v1/policies", self.policies),
            ("POST", "/v1/policies/{version}/canary", self.end_canary),
            ("GET", "/v1/evaluations", self.all_evaluations),
        ):
            app.add_api_route(path, route, methods=[method], response_model=None)
        return app

    async def arms(self) -> dict[str, Any]:
        described = {
            "kind": "bm25",
            "corpus": None,
            "params": {},
            "host": "Arms",
            "answering": {},
            "cache": False,
            "usd": 0.0,
        }
        arms = [{"name": arm, "enabled": True, **described} for arm in self.names]
        return {"arms": arms, "parts": {"part": {**described, "action": False}}, "arm_set": len(self.names)}

    async def replace_arms(self, request: Request) -> dict[str, Any]:
        arms = (await request.json())["arms"]
        self.said.append(("arms", sorted(arms)))
        self.names = list(arms)
        return await self.arms()

    @property
    def alarms(self) -> int:
        return int(self.alarm and self.spoiled_at is not None and len(self.judged) > self.spoiled_at + 8)

    def best(self, kind: str) -> str | None:
        """Return the arm that most questions of a kind go to."""
        right = {"library": "library", "language": "both" if self.alarms else "manual", "guides": "guides"}[
            kind
        ]
        return right if self.live and right in self.names else None

    async def policy(self) -> dict[str, Any]:
        alarm = {"subject": "reward of manual", "before": 0.9, "after": 0.25}
        last = {**alarm, "detector": "adwin", "example_seq": 1, "at": 0.0} if self.alarms else None
        seen = {"alarms": self.alarms, "last": last, "floor": 0.05, "warm_start_open": bool(self.alarms)}
        router = {"kind": "trees", "params": {}, "stage": "cold", "digest": f"of {self.live}", "arms": []}
        promotion = {"version": self.live, "since": 0.0, "reason": "better", "forced": False}
        return {
            **POLICY,
            "version": 1,
            "serving": {**POLICY["serving"], "version": 7},
            "router": router if self.live else None,
            "promotion": {**promotion, "evaluation": None, "deciding": True} if self.live else None,
            "applied_seq": len(self.judged),
            "canaries": self.canaries,
            "reward": {"metrics": {"recall": {}}, "cost_weight": 0.02, "cost": {"steps": 1.0}},
            "drift": {**seen, "until": None},
        }

    async def retrieve(self, request: Request) -> dict[str, Any]:
        body = await request.json()
        model = body.get("model", "auto")
        self.asked.append(model)
        kind, _, number = body["query"].split()
        best, n = self.best(kind), len(self.names)
        pmf = {arm: 1 / n if best is None else 0.8 * (arm == best) + 0.2 / n for arm in self.names}
        drawn = str(self.rng.choice(list(pmf), p=list(pmf.values())))
        arm = model.removeprefix("arm/") if model != "auto" else drawn
        decision = f"d{next(self.ids)}"
        right = kind in FINDS[arm] and not (arm == "manual" and self.spoiled_at is not None)
        found = f"{kind}:{number}" if right else "beside"
        agent = {
            **AGENT,
            "decision_id": decision,
            "policy_version": 1,
            "arm_drawn": arm,
            "propensity": pmf[arm],
            "pmf": pmf,
            "cost": {**COST, "total": 1.0},
        }
        return {"passages": [{**PASSAGE, "id": found}], "agent": agent}

    async def feedback(self, request: Request) -> JSONResponse:
        items = (await request.json())["items"]
        self.judged += [item["decision_id"] for item in items]
        return JSONResponse({"items": [{**RECEIPT, "log_seq": len(self.judged)} for _ in items]}, 202)

    async def end_canary(self, version: int, request: Request) -> dict[str, Any]:
        assert (await request.json())["share"] == 0.0
        self.said.append(("end", version))
        self.rows.insert(0, {**self.rows[0], "share": 0.0, "automatic": False})
        return {"version": 1, "canaries": self.canaries}

    @property
    def canaries(self) -> list[dict[str, Any]]:
        if not self.rows or self.rows[0]["action"] != "canary" or not self.rows[0]["share"]:
            return []
        shown = {name: self.rows[0][name] for name in ("version", "share", "reason", "automatic")}
        return [{**shown, "since": 0.0, "deciding": True}]

    async def policies(self) -> dict[str, Any]:
        for canary in self.canaries if len(self.judged) > self.seen else []:  # the gate looks at what is new
            self.seen = len(self.judged)
            evaluation = self._evaluated([f"canary:{canary['version']}"], gate=True)
            verdict = evaluation["result"]["candidates"][0]["verdict"]
            row = {**self.rows[0], "evaluation": evaluation["id"]}
            if verdict["promote"]:
                self.live = canary["version"]
                self.rows.insert(0, {**row, "action": "promote", "share": 0.0, "reason": "canary: it gains"})
            elif verdict["promote"] is None:
                self.rows.insert(0, {**row, "share": 0.0, "reason": "canary: it is worse"})
        return {"versions": [], "promotions": self.rows}

    def _verdict(self) -> dict[str, Any]:
        promote = self.verdicts.pop(0) if len(self.verdicts) > 1 else self.verdicts[0]
        return {
            "verdict": "promote" if promote else "hold",
            "promote": promote,
            "reasons": [] if promote else [HELD],
            "figures": {"margin": 0.0, "level": 0.95},
            "trail": [{"n": n, "gain": 0.04, "low": 0.04 - 1.0 / n} for n in (1, 10, 20)],
        }

    def _evaluated(self, names: list[str], *, gate: bool) -> dict[str, Any]:
        figure = {"value": 0.5, "low": 0.4, "high": 0.6, "kind": "normal"}
        estimate = {"estimator": "dr", "value": figure, "difference": figure, "effective_n": 25.0}
        judged = [
            {
                "name": name,
                "about": "A candidate.",
                "rows": 20,
                "estimates": [estimate],
                "verdict": self._verdict() if gate else None,
            }
            for name in names
        ]
        found = {"id": len(self.evaluations) + 1, "status": "done", "error": None}
        self.evaluations.append({**found, "result": {"rows": 20, "candidates": judged}})
        return self.evaluations[-1]

    async def run(self) -> JSONResponse:
        number = len(self.runs) + 1
        version = 100 + number
        evaluation = self._evaluated([f"recipe:{version}"], gate=True)
        verdict = evaluation["result"]["candidates"][0]["verdict"]
        decided = "promoted" if verdict["promote"] else "held"
        self.live = version if verdict["promote"] else self.live
        self.seen = len(self.judged)
        row = {"version": version, "automatic": True, "forced": False, "evaluation": evaluation["id"]}
        if verdict["promote"]:
            self.rows.insert(0, {**row, "action": "promote", "share": 0.0, "reason": "it passes"})
        else:
            self.rows.insert(0, {**row, "action": "canary", "share": 0.06, "reason": "canary: held"})
        self.runs.append(
            {
                "id": number,
                "trigger": "request",
                "status": decided,
                "candidate": version,
                "evaluation": evaluation["id"],
                "error": None,
                "steps": [{"name": "decide", "said": f"{decided}: because it was told so"}],
            }
        )
        return JSONResponse({"id": number, "status": "asked"}, 202)

    async def broken(self) -> JSONResponse:
        error = {"code": "under_way", "message": "another one is under way"}
        return JSONResponse({"error": error}, 409)

    async def all_runs(self) -> dict[str, Any]:
        return {"warm_starts": self.runs[::-1], "next": None}

    async def one_run(self, number: int) -> dict[str, Any]:
        return self.runs[number - 1]

    async def evaluate(self, request: Request) -> JSONResponse:
        body = await request.json()
        return JSONResponse(self._evaluated(body["candidates"], gate=body.get("gate", False)), 202)

    async def evaluation(self, number: int) -> dict[str, Any]:
        return self.evaluations[number - 1]

    async def all_evaluations(self) -> dict[str, Any]:
        return {"evaluations": self.evaluations[::-1]}

    async def report(self, number: int) -> HTMLResponse:
        return HTMLResponse(f'<html><p class="x">evaluation {number}</p></html>')

    async def promote(self, version: int) -> JSONResponse:
        self.said.append(("promote", version))
        if self.refuse:
            error = {"code": "promotion_gate_failed", "message": "held", "reasons": [HELD]}
            return JSONResponse({"error": error}, 409)
        self.live = version
        return JSONResponse({"version": version, "promotion": {"version": version}, "canaries": []})

    async def rollback(self, version: int) -> dict[str, Any]:
        self.said.append(("rollback", version))
        self.live = None
        return {"version": version, "promotion": None, "canaries": []}


async def lived(toy: ToyService, folder: Path, story: Story | None = None) -> Story:
    """Live through the story with a toy."""
    settings = Demo(config=EXAMPLE, output=folder)
    before, after = worlds(write_questions(folder / "questions.jsonl"))
    story = story or Story(config="arms: {}", command=settings.command)
    transport = httpx.ASGITransport(toy.app())
    async with httpx.AsyncClient(transport=transport, base_url="http://toy") as http:
        client = AsyncClient("http://service", http=http)
        traffic = Traffic(client, (await client.policy()).reward, 2, 2, np.random.default_rng(0))
        operator = Operator(Desk(http), story, patience_s=60.0, poll_s=0.001, look_s=0.0)
        tell = lambda *_: None  # noqa: E731
        return await Narrator(operator, traffic, before, after, toy.spoil, PLAN, story, tell).live()


def chapter(story: Story, title: str) -> Chapter:
    (found,) = (one for one in story.chapters if one.title == title)
    return found


@pytest.fixture(scope="module")
def as_hoped(tmp_path_factory: pytest.TempPathFactory) -> tuple[ToyService, Story]:
    """A toy, and a story with it in which all comes about."""
    toy = ToyService(False, False, True, False, True)
    return toy, asyncio.run(lived(toy, tmp_path_factory.mktemp("demo")))


@pytest.mark.slow
def test_the_story_goes_from_one_rule_to_a_source_that_is_added(as_hoped: tuple[ToyService, Story]) -> None:
    toy, story = as_hoped
    assert [mark.label for mark in story.marks] == [
        *("canary v101", "v101 promoted", "manual stale", "guides questions", "arm guides"),
        *("canary v102", "v102 promoted", "back to v1", "v102 by hand"),
    ]
    assert toy.said == [
        ("arms", ["both", "guides", "library", "manual"]),
        *(("rollback", 1), ("promote", 102)),
    ]
    assert [one.title for one in story.chapters if not one.succeeded] == []
    told = " ".join(chapter(story, "Made questions, and the gate").paragraphs)
    assert "version 101 takes 6% of each decision by itself" in told
    assert "After 20 questions it is promoted by the gate, which nobody asked: it gains." in told
    told = " ".join(chapter(story, "A source is added").paragraphs)
    assert "After 10 questions it is promoted by the gate" in told
    assert {number: trail.promote for number, trail in story.trails.items()} == {101: True, 102: True}
    assert len(story.turns) == story.chapters[-1].last
    assert all(turn.position == place for place, turn in enumerate(story.turns))


def test_what_every_arm_earns_is_asked_without_feedback(as_hoped: tuple[ToyService, Story]) -> None:
    toy, story = as_hoped
    forced = [model for model in toy.asked if model != "auto"]
    assert len(forced) == 12 * 3 + 18 * 4, "before the story, and once the source was added"
    assert len(toy.judged) == len(story.turns) + 1  # and the turn that is shown
    assert story.worth("at first", "language") == pytest.approx(
        {"manual": 0.98, "both": 0.98, "library": -0.02}
    )
    late = {"both": 0.98, "library": -0.02, "manual": -0.02, "guides": -0.02}
    assert story.worth("at the end", "language") == pytest.approx(late)
    assert story.oracle("at the end", "guides") == pytest.approx(0.98)


@pytest.mark.slow
async def test_the_canary_of_a_candidate_that_is_never_decided_is_ended_and_told_of(tmp_path: Path) -> None:
    toy = ToyService(False)
    story = await lived(toy, tmp_path)
    made = chapter(story, "Made questions, and the gate")
    assert made.paragraphs[-1].startswith(
        "After 20 questions nothing is decided, at a share of 6%: an operator"
    )
    assert [what for what in toy.said if what[0] == "end"] == [("end", 101), ("end", 102)]
    assert not chapter(story, "A source is added").succeeded, "nothing that knows it went live"
    assert toy.said[-2:] == [("promote", 102), ("rollback", 7)], "by hand, and back"
    assert len(toy.runs) == 2
    assert f"0 of {len(story.trails)} candidates" in summary(story)
    assert "Not all came about: A source becomes stale, A source is added" in summary(story)


@pytest.mark.slow
async def test_a_stale_source_that_is_not_left_is_told_as_such(tmp_path: Path) -> None:
    story = await lived(ToyService(alarm=False), tmp_path)
    stale = chapter(story, "A source becomes stale")
    assert not stale.succeeded
    assert "No alarm was raised within 120 questions." in stale.paragraphs
    assert story.chapters[-1].title == "One promotion, one rollback"


@pytest.mark.slow
async def test_a_refused_promotion_is_told_with_its_reasons(tmp_path: Path) -> None:
    toy = ToyService(False, True)
    toy.refuse = True
    story = await lived(toy, tmp_path)
    switch = chapter(story, "One promotion, one rollback")
    assert not switch.succeeded
    assert f"The promotion was refused: {HELD}" in switch.paragraphs
    assert any("promotion_gate_failed" in exchange.answer for exchange in switch.exchanges)


async def test_a_story_that_breaks_off_says_where(tmp_path: Path) -> None:
    toy, story = ToyService(), Story()
    toy.run = toy.broken  # type: ignore[method-assign]
    with pytest.raises(ClientError, match="POST /v1/warm-starts gave 409: another one is under way"):
        await lived(toy, tmp_path, story=story)
    assert [one.title for one in story.chapters] == [
        "One rule for all questions",
        "Made questions, and the gate",
    ]
    assert [one.succeeded for one in story.chapters] == [True, False]
    assert story.chapters[-1].paragraphs[-1] == "The demo was broken off here."


async def test_a_run_that_never_ends_is_given_up_with_a_word() -> None:
    toy = ToyService()
    transport = httpx.ASGITransport(toy.app())
    async with httpx.AsyncClient(transport=transport, base_url="http://toy") as http:
        toy.runs.append({"id": 1, "status": "running", "trigger": "schedule"})
        operator = Operator(Desk(http), Story(), patience_s=0.0, poll_s=0.001, look_s=0.0)
        with pytest.raises(ClientError, match="/v1/warm-starts was waited for in vain"):
            await operator.settled()


def test_what_goes_on_is_waited_for_however_long_it_takes() -> None:
    now = [0.0]
    patience = Patience(10.0, lambda: now[0])
    for step in range(100):
        now[0] += 9.0
        assert patience.lasts({"done": step}), "it went on within the time"
    now[0] += 9.9
    assert patience.lasts({"done": 99})
    now[0] += 0.1
    assert not patience.lasts({"done": 99}), "nothing has changed for 10 s"


async def test_what_is_learned_is_waited_for_while_learning_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    now, learned, rule = [0.0], [0], {"metrics": {"recall": {}}, "cost_weight": 0.0}
    patient = lambda limit_s: Patience(limit_s, lambda: now[0])  # noqa: E731
    monkeypatch.setattr("examples.demo.traffic.Patience", patient)
    monkeypatch.setattr("examples.demo.traffic.POLL_S", 0.0)

    def answer(_: httpx.Request) -> httpx.Response:
        now[0] += 9.0
        learned[0] = min(learned[0] + 1, 30)
        return httpx.Response(200, json={**POLICY, "canaries": [], "reward": rule, "applied_seq": learned[0]})

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
        client = AsyncClient("http://toy", http=http)
        traffic = Traffic(client, (await client.policy()).reward, 2, 2, np.random.default_rng(0))
        traffic.log_seq = 30
        await traffic.learned(10.0)
        assert learned == [30]
        traffic.log_seq = 40
        with pytest.raises(ClientError, match="position 30 of 40 is learned, and nothing more for 10 s"):
            await traffic.learned(10.0)


async def test_a_request_is_sent_again_while_the_service_is_busy() -> None:
    answers = [httpx.Response(503, headers={"retry-after": "0"}) for _ in range(50)]
    answers.append(httpx.Response(200, json={"object": "policy"}))
    transport = PatientTransport(httpx.MockTransport(lambda _: answers.pop(0)))
    async with httpx.AsyncClient(transport=transport, base_url="http://toy") as http:
        assert await Desk(http).get("/v1/policy") == {"object": "policy"}
    assert answers == []


async def test_a_service_that_is_busy_for_too_long_is_given_up_with_its_answer() -> None:
    busy = httpx.MockTransport(lambda _: httpx.Response(503, json={"error": "the log is away"}))
    async with httpx.AsyncClient(transport=PatientTransport(busy, 0.0), base_url="http://toy") as http:
        with pytest.raises(ClientError, match=r"GET /v1/policy gave 503: .*the log is away"):
            await Desk(http).get("/v1/policy")


class Links(HTMLParser):
    """Collects what a page refers to.

    Attributes:
        found: Values of attributes that a browser would fetch or go to.
        framed: What is inside frames.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.framed: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del tag
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "data", "action") and value is not None:
                self.found.append(value)
            if name == "srcdoc" and value is not None:
                self.framed.append(value)


@pytest.mark.slow
def test_the_page_needs_nothing_else_and_tells_all(as_hoped: tuple[ToyService, Story]) -> None:
    _, story = as_hoped
    html = page(story)
    links = Links()
    links.feed(html)
    assert all(link.startswith("#") for link in links.found), links.found
    assert links.framed == [story.report]
    assert "url(http" not in html
    assert "<script" not in html
    assert len(story.chapters) > 3
    assert [one.title for one in story.chapters if one.title not in html] == []
    assert html.count("<svg") == 3
    assert "curl -X POST http://toy/v1/policies/102/promote" in html
    assert f"{story.earned(0, 20):.3f}" in html
    assert "fixed:library" in html
    assert "share of the draws, first and last" in html
    assert "guides, at the end" in html


def test_what_the_demo_writes_is_of_its_user_alone(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        refused = CliRunner().invoke(command_line, ["--config", str(tmp_path / "none.yaml")])
        assert (refused.exit_code, os.umask(before)) == (2, 0o077)
    finally:
        os.umask(before)


def test_questions_of_the_added_source_are_asked_once_it_is_due(tmp_path: Path) -> None:
    before, after = worlds(write_questions(tmp_path / "q.jsonl"))
    assert {question.group for question in before.questions} == {"library", "language"}
    assert {question.group for question in after.questions} == {"library", "language", "guides"}
    assert (len(before.questions), len(after.questions)) == (12, 18)


@pytest.mark.parametrize("kinds", [("library", "language"), ("guides",)])
def test_questions_that_make_no_story_are_refused(tmp_path: Path, kinds: tuple[str, ...]) -> None:
    with pytest.raises(QuestionsError, match="questions of 'guides' and of other kinds were expected"):
        worlds(write_questions(tmp_path / "q.jsonl", kinds))


class Two:
    """An arm that finds two passages for any question."""

    name, backbones = "two", frozenset[str]()

    def search(self, query: Query, k: int) -> Retrieval:
        return Retrieval(tuple(Passage(f"{query.text}/{i}", "title", "text", 1.0) for i in range(k)))


@pytest.mark.slow
def test_the_search_of_the_other_team_finds_withdrawn_passages_once_it_is_stale() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arm = RemoteArm("manual", RemoteParams(url=f"http://127.0.0.1:{port}/search", request=REQUEST))
    with team(Two(), "127.0.0.1", port) as stale:
        fresh = arm.search(Query("what?"), 2)
        stale.set()
        old = arm.search(Query("what?"), 2)
    assert [passage.id for passage in fresh.passages] == ["what?/0", "what?/1"]
    assert [passage.id for passage in old.passages] == ["withdrawn/what?/0", "withdrawn/what?/1"]


def test_a_demo_is_laid_out_anew_and_leaves_shared_corpora_alone(tmp_path: Path) -> None:
    shared, output = tmp_path / "shared", tmp_path / "out"
    (shared / "corpora" / "stdlib").mkdir(parents=True)
    settings = Demo(config=EXAMPLE, output=output, k=3)
    lay_out(settings, output, shared)
    (output / "home" / "log.db").write_text("of an earlier demo")
    (output / "mine.txt").write_text("nothing of the demo's")
    config = lay_out(settings, output, shared)
    assert not (output / "home" / "log.db").exists()
    assert (output / "mine.txt").exists()
    assert (output / "home" / "corpora" / "stdlib").is_dir()
    read, copied = load(EXAMPLE).model_dump(exclude={"home"}), load(config).model_dump(exclude={"home"})
    assert {name: Path(each.pop("source")).resolve() for name, each in copied["corpora"].items()} == {
        name: Path(each.pop("source")).resolve() for name, each in read["corpora"].items()
    }
    assert copied == read


def test_a_home_that_no_demo_has_made_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "home" / "precious").mkdir(parents=True)
    settings = Demo(config=EXAMPLE, output=tmp_path)
    with pytest.raises(LaunchError, match="no demo has made it"):
        lay_out(settings, tmp_path, tmp_path / "shared")
    assert (tmp_path / "home" / "precious").is_dir()


@pytest.mark.parametrize("lacking", ["warm_start", "manual", "recall"])
def test_a_configuration_without_what_the_story_needs_is_refused(tmp_path: Path, lacking: str) -> None:
    document = yaml.safe_load(EXAMPLE.read_text())
    args = document["applications"][0]["args"]
    if lacking == "recall":
        args["reward"]["metrics"] = {"thumb": {}}
    elif lacking == "manual":
        args["arms"]["manual"] = {"kind": "none"}
    else:
        args[lacking] = None
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        document["http_options"]["port"] = probe.getsockname()[1]
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(document))
    with pytest.raises(ConfigError, match="a demo needs `warm_start`, an arm 'manual' of kind remote and"):
        demo.run(Demo(config=config, output=tmp_path / "out"), lambda *_: None)


def test_a_port_that_is_taken_is_told_before_anything_is_written(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        document = yaml.safe_load(EXAMPLE.read_text())
        document["http_options"]["port"] = taken.getsockname()[1]
        config = tmp_path / "config.yaml"
        config.write_text(yaml.safe_dump(document))
        with pytest.raises(LaunchError, match="cannot be used"):
            demo.run(Demo(config=config, output=tmp_path / "out"), lambda *_: None)
    assert not (tmp_path / "out").exists()


CHILD = """
import http.server, sys
class Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *_): pass
print("serving", flush=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Ready).serve_forever()
"""


def stand_in(monkeypatch: pytest.MonkeyPatch, code: str) -> tuple[str, list[Any]]:
    """Let a small program stand for `armwise serve`; return its address, and the processes to be begun."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    begun: list[Any] = []
    popen = demo_service.subprocess.Popen

    def keep(*words: Any, **options: Any) -> Any:
        begun.append(popen(*words, **options))
        return begun[-1]

    monkeypatch.setattr(demo_service, "armwise", lambda *_: [sys.executable, "-c", code, str(port)])
    monkeypatch.setattr(demo_service.subprocess, "Popen", keep)
    return f"http://127.0.0.1:{port}", begun


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.slow
def test_the_service_is_gone_once_the_story_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    url, begun = stand_in(monkeypatch, CHILD)
    handler = signal.getsignal(signal.SIGTERM)

    def broken_off() -> None:
        with serving(EXAMPLE, tmp_path, tmp_path / "log", url, "--ray"):
            assert httpx.get(f"{url}/ready").is_success
            assert begun[0].poll() is None
            signal.raise_signal(number)

    with pytest.raises(KeyboardInterrupt):
        broken_off()
    assert begun[0].poll() is not None
    assert signal.getsignal(signal.SIGTERM) == handler
    assert "serving" in (tmp_path / "log").read_text()


@pytest.mark.slow
def test_a_service_that_does_not_start_is_told_with_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, _ = stand_in(monkeypatch, "raise SystemExit(3)")
    with (
        pytest.raises(LaunchError, match=r"ended with status 3: .*see .*log"),
        serving(EXAMPLE, tmp_path, tmp_path / "log", url, "--ray"),
    ):
        raise AssertionError("it is never ready")


@given(
    values=st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=30),
    window=st.integers(1, 40),
    d=st.integers(1, 3),
)
def test_the_moving_average_is_the_mean_of_the_window(values: list[float], window: int, d: int) -> None:
    array = np.array(values)
    slow = [array[max(0, i + 1 - window) : i + 1].mean() for i in range(len(array))]
    np.testing.assert_allclose(moving_average(array, window), slow, atol=1e-9)
    stacked = np.stack([array] * d, axis=1)
    np.testing.assert_allclose(moving_average(stacked, window), np.stack([slow] * d, axis=1), atol=1e-9)
