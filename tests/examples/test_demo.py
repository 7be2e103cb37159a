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
from typer.testing import CliRunner

from agent.cli.serve import LaunchError
from agent.client import AsyncClient, ClientError
from agent.config import ConfigError, load
from agent.simulation import load_questions
from agent.simulation.questions import QuestionsError
from examples.demo import __main__ as demo_command
from examples.demo import demonstrate as demo
from examples.demo import service as demo_service
from examples.demo.__main__ import app as command_line
from examples.demo.demonstrate import Demo, Split, lay_out, worlds, write_labels
from examples.demo.operator import Operator
from examples.demo.page import page, summary
from examples.demo.record import Chapter, Story
from examples.demo.service import Desk, serving
from examples.demo.story import Narrator, Plan
from examples.demo.traffic import Traffic, World
from tests.agent.canned import AGENT, COST, PASSAGE, POLICY, RECEIPT

EXAMPLE = Path("examples/demo.yaml")
ARMS = ("none", "words", "meaning")
FINDS = {"none": "", "words": "exact", "meaning": "paraphrase"}
"""The kind of question that an arm finds the passages of."""

PLAN = Plan(cold=20, again=10, attempts=2, warm=10, drift=50, settle=5, recovered=20, switched=5)
HELD = "The gain a decision is +0.0400 and at 95% at least -0.0100, which must be above +0.0000."


def write_questions(path: Path, n: int = 12, kinds: tuple[str, ...] = ("exact", "paraphrase")) -> Path:
    rows = [
        {"id": f"{kind}-{i}", "question": f"{kind} question {i}", "type": kind, "gold_ids": [f"{kind}:{i}"]}
        for kind in kinds
        for i in range(n)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


class ToyService:
    """Draws arms evenly, and says of candidates what it was told to.

    Attributes:
        verdicts: What the gate says, one evaluation after the other; the last one for ever.
        alarm_after: Feedback on paraphrases until an alarm; None for never.
        asked: Models that were asked for.
        judged: Decisions that feedback was sent for.
        said: Promotions and canaries, in order.
        refuse: Whether a promotion is refused.
    """

    def __init__(self, *verdicts: bool, alarm_after: int | None = 8) -> None:
        self.verdicts, self.alarm_after = list(verdicts) or [True], alarm_after
        self.asked: list[str] = []
        self.judged: list[str] = []
        self.said: list[tuple[str, Any]] = []
        self.refuse = False
        self.live: int | None = None
        self.kinds: dict[str, str] = {}
        self.runs: list[dict[str, Any]] = []
        self.evaluations: list[dict[str, Any]] = []
        self.rng, self.ids = np.random.default_rng(3), itertools.count(1)

    def app(self) -> FastAPI:
        app = FastAPI()
        for method, path, route in (
            ("GET", "/v1/arms", self.arms),
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
            ("POST", "/v1/policies/{version}/canary", self.canary),
        ):
            app.add_api_route(path, route, methods=[method], response_model=None)
        return app

    async def arms(self) -> dict[str, Any]:
        return {"arms": [{"name": arm, "enabled": True} for arm in ARMS]}

    @property
    def alarms(self) -> int:
        heard = sum(self.kinds[one] == "paraphrase" for one in self.judged)
        return int(self.alarm_after is not None and heard >= self.alarm_after)

    async def policy(self) -> dict[str, Any]:
        alarm = {"subject": "reward of words", "before": 0.9, "after": 0.25}
        last = {**alarm, "detector": "adwin", "example_seq": 1, "at": 0.0} if self.alarms else None
        seen = {"alarms": self.alarms, "last": last, "floor": 0.05, "warm_start_open": bool(self.alarms)}
        router = {"kind": "trees", "params": {}, "stage": "cold", "digest": f"of {self.live}", "arms": []}
        promotion = {"version": self.live, "since": 0.0, "reason": "better", "forced": False}
        return {
            **POLICY,
            "version": 1,
            "router": router if self.live else None,
            "promotion": {**promotion, "evaluation": None, "deciding": True} if self.live else None,
            "applied_seq": len(self.judged),
            "reward": {"metrics": {"recall": {}}, "cost_weight": 0.02, "cost": {"steps": 1.0}},
            "drift": {**seen, "until": None},
        }

    async def retrieve(self, request: Request) -> dict[str, Any]:
        body = await request.json()
        model = body.get("model", "auto")
        self.asked.append(model)
        arm = model.removeprefix("arm/") if model != "auto" else str(self.rng.choice(ARMS))
        kind, _, number = body["query"].split()
        decision = f"d{next(self.ids)}"
        self.kinds[decision] = kind
        found = f"{kind}:{number}" if FINDS[arm] == kind else "beside"
        agent = {
            **AGENT,
            "decision_id": decision,
            "policy_version": 1,
            "arm_drawn": arm,
            "propensity": 1 / 3,
            "pmf": dict.fromkeys(ARMS, 1 / 3),
            "cost": {**COST, "total": float(arm != "none")},
        }
        return {"passages": [{**PASSAGE, "id": found}], "agent": agent}

    async def feedback(self, request: Request) -> JSONResponse:
        items = (await request.json())["items"]
        self.judged += [item["decision_id"] for item in items]
        return JSONResponse({"items": [{**RECEIPT, "log_seq": len(self.judged)} for _ in items]}, 202)

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

    async def report(self, number: int) -> HTMLResponse:
        return HTMLResponse(f'<html><p class="x">evaluation {number}</p></html>')

    async def promote(self, version: int) -> JSONResponse:
        self.said.append(("promote", version))
        if self.refuse:
            error = {"code": "promotion_gate_failed", "message": "held", "reasons": [HELD]}
            return JSONResponse({"error": error}, 409)
        self.live = version
        return JSONResponse({"version": version, "promotion": {"version": version}, "canary": None})

    async def rollback(self, version: int) -> dict[str, Any]:
        self.said.append(("rollback", version))
        self.live = None
        return {"version": version, "promotion": None, "canary": None}

    async def canary(self, version: int, request: Request) -> dict[str, Any]:
        share = (await request.json())["share"]
        self.said.append(("canary", share))
        return {"version": 1, "canary": {"version": version, "share": share}}


async def lived(toy: ToyService, folder: Path, story: Story | None = None) -> Story:
    """Live through the story with a toy."""
    settings = Demo(config=EXAMPLE, questions=write_questions(folder / "questions.jsonl"), output=folder)
    before, after = worlds(settings)
    story = story or Story(config="arms: {}", command=settings.command)
    transport = httpx.ASGITransport(toy.app())
    async with httpx.AsyncClient(transport=transport, base_url="http://toy") as http:
        client = AsyncClient("http://service", http=http)
        traffic = Traffic(client, (await client.policy()).reward, 2, 2, np.random.default_rng(0))
        operator = Operator(Desk(http), story, patience_s=1.0, poll_s=0.001)
        labelled: dict[str, Split] = {split.world.name: split for split in (before, after)}

        def label(world: World) -> int:
            write_labels(folder / "labelled.jsonl", labelled[world.name].labelled)
            return len(labelled[world.name].labelled)

        tell = lambda *_: None  # noqa: E731
        return await Narrator(operator, traffic, before.world, after.world, label, PLAN, story, tell).live()


def chapter(story: Story, title: str) -> Chapter:
    (found,) = (one for one in story.chapters if one.title == title)
    return found


@pytest.fixture(scope="module")
def as_hoped(tmp_path_factory: pytest.TempPathFactory) -> tuple[ToyService, Story]:
    """A toy, and a story with it in which all comes about."""
    toy = ToyService(True, False, False, True)
    return toy, asyncio.run(lived(toy, tmp_path_factory.mktemp("demo")))


def test_the_story_goes_from_a_cold_service_to_recovery(as_hoped: tuple[ToyService, Story]) -> None:
    toy, story = as_hoped
    assert [mark.label for mark in story.marks] == [
        *("v101 promoted", "drift", "alarm", "canary v102", "v102 promoted"),
        *("back to v1", "v102 by hand"),
    ]
    assert toy.said == [("canary", 0.5), ("promote", 102), ("rollback", 1), ("promote", 102)]
    judged = [one["name"] for evaluation in toy.evaluations for one in evaluation["result"]["candidates"]]
    assert judged[-2:] == ["version:102", "version:102"], "the canary as it decides"
    told = " ".join(chapter(story, "A canary, and a promotion").paragraphs)
    assert "After 10 questions the gate says hold: The gain" in told
    assert "After 20 questions the gate says promote" in told
    assert len(story.turns) == story.chapters[-1].last
    assert all(turn.position == place for place, turn in enumerate(story.turns))


def test_what_every_arm_earns_is_asked_with_the_arm_forced_and_not_fed_back(
    as_hoped: tuple[ToyService, Story],
) -> None:
    toy, story = as_hoped
    forced = [model for model in toy.asked if model != "auto"]
    assert len(forced) == 2 * 6 * len(ARMS)
    assert len(toy.judged) == len(story.turns) + 1  # and the turn that is shown
    assert story.worth("exact") == pytest.approx({"words": 0.98, "none": 0.0, "meaning": -0.02})
    assert story.worth("paraphrase") == pytest.approx({"meaning": 0.98, "none": 0.0, "words": -0.02})
    assert story.oracle("exact") == pytest.approx(0.98)


async def test_a_candidate_that_stays_held_is_told_of_and_its_canary_ended(tmp_path: Path) -> None:
    toy = ToyService(False)
    story = await lived(toy, tmp_path)
    missed = {one.title for one in story.chapters if not one.succeeded}
    assert {"A warm start, and the gate", "A canary, and a promotion"} <= missed
    assert toy.said == [("canary", 0.5), ("canary", 0.0), ("promote", 103), ("rollback", 1)], (
        "by hand, and back"
    )
    assert len(toy.runs) == PLAN.attempts + 1
    assert f"0 of {len(story.trails)} candidates" in summary(story)
    assert "Not all came about: A warm start, and the gate" in summary(story)


async def test_a_drift_without_an_alarm_is_told_as_such(tmp_path: Path) -> None:
    story = await lived(ToyService(alarm_after=None), tmp_path)
    drift = chapter(story, "The traffic drifts")
    assert not drift.succeeded
    assert "No alarm was raised within 50 questions." in drift.paragraphs
    assert "As no alarm is open" in chapter(story, "Labels of the new questions").paragraphs[0]
    assert story.chapters[-1].title == "One promotion, one rollback"


async def test_a_refused_promotion_is_told_with_its_reasons(tmp_path: Path) -> None:
    toy = ToyService(True, False, True)
    toy.refuse = True
    story = await lived(toy, tmp_path)
    canary = chapter(story, "A canary, and a promotion")
    assert not canary.succeeded
    assert f"The promotion was refused: {HELD}" in canary.paragraphs
    assert any("promotion_gate_failed" in exchange.answer for exchange in canary.exchanges)


async def test_a_story_that_breaks_off_says_where(tmp_path: Path) -> None:
    toy, story = ToyService(), Story()
    toy.run = toy.broken  # type: ignore[method-assign]
    with pytest.raises(ClientError, match="POST /v1/warm-starts gave 409: another one is under way"):
        await lived(toy, tmp_path, story=story)
    assert [one.title for one in story.chapters] == ["A cold service", "A warm start, and the gate"]
    assert [one.succeeded for one in story.chapters] == [True, False]
    assert story.chapters[-1].paragraphs[-1] == "The demo was broken off here."


async def test_a_run_that_never_ends_is_given_up_with_a_word() -> None:
    toy = ToyService()
    transport = httpx.ASGITransport(toy.app())
    async with httpx.AsyncClient(transport=transport, base_url="http://toy") as http:
        toy.runs.append({"id": 1, "status": "running", "trigger": "schedule"})
        operator = Operator(Desk(http), Story(), patience_s=0.0, poll_s=0.001)
        with pytest.raises(ClientError, match="/v1/warm-starts was waited for in vain"):
            await operator.settled()


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
    assert "fixed:words" in html
    assert "People ask 6 questions of kind exact" in html


def test_the_page_of_a_story_that_broke_off_is_made_of_what_there_is(
    as_hoped: tuple[ToyService, Story],
) -> None:
    _, story = as_hoped
    html = page(Story(story.arms, story.worlds, story.truth, story.turns[:7], story.chapters[:1]))
    assert html.count("<svg") == 2
    assert "A cold service" in html
    assert "Recovery" not in html


def test_what_the_demo_writes_is_of_its_user_alone(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        refused = CliRunner().invoke(command_line, ["--config", str(tmp_path / "none.yaml")])
        assert (refused.exit_code, os.umask(before)) == (1, 0o077)
    finally:
        os.umask(before)


def test_labels_and_traffic_share_no_question_and_follow_from_the_seed(tmp_path: Path) -> None:
    questions = write_questions(tmp_path / "q.jsonl", kinds=("a", "b", "c"))
    settings = Demo(config=EXAMPLE, questions=questions, output=tmp_path)
    before, after = worlds(settings)
    assert (before.world.name, after.world.name) == ("a, b", "c")
    asked = {question.id for question in before.world.questions}
    labelled = {question.id for question in before.labelled}
    assert (len(asked), len(labelled), asked & labelled) == (12, 12, set())
    assert worlds(settings) == (before, after)
    assert worlds(settings.model_copy(update={"seed": 1}))[0] != before


def test_the_questions_that_come_with_it_are_asked_by_name_first() -> None:
    before, after = worlds(Demo(config=EXAMPLE, output=Path()))
    assert {question.type for question in before.world.questions} == {"exact", "two_facts"}
    assert {question.type for question in after.world.questions} == {"paraphrase"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"before": ("exakt",)}, "no questions of kind 'exakt' with gold_ids, but of: exact, paraphrase"),
        ({"before": ("exact",), "after": ("exact",)}, "a drift is a change of what is asked"),
        ({"before": ("exact", "paraphrase")}, r"kinds before .* and after \[\] must be some each"),
        ({"questions": "bare"}, "no question has gold_ids"),
        ({"labelled": 0.9}, "12 questions of exact cannot be split into 5 that are labelled"),
    ],
)
def test_questions_that_make_no_story_are_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    questions = write_questions(tmp_path / "q.jsonl")
    if "questions" in changes:
        questions.write_text('{"id": "1", "question": "why?"}\n')
        changes = {}
    settings = Demo.model_validate({"config": EXAMPLE, "questions": questions, "output": tmp_path, **changes})
    with pytest.raises(QuestionsError, match=message):
        worlds(settings)


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
    (source,) = load(config).warm_start.sources.values()  # type: ignore[union-attr]
    assert (source.path, source.measure) == (output / "labelled.jsonl", "R@3")


def test_a_home_that_no_demo_has_made_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "home" / "precious").mkdir(parents=True)
    settings = Demo(config=EXAMPLE, output=tmp_path)
    with pytest.raises(LaunchError, match="no demo has made it"):
        lay_out(settings, tmp_path, tmp_path / "shared")
    assert (tmp_path / "home" / "precious").is_dir()


@pytest.mark.parametrize("lacking", ["warm_start", "drift", "recall"])
def test_a_configuration_without_what_the_story_needs_is_refused(tmp_path: Path, lacking: str) -> None:
    document = yaml.safe_load(EXAMPLE.read_text())
    args = document["applications"][0]["args"]
    if lacking == "recall":
        args["reward"]["metrics"] = {"thumb": {}}
        args["warm_start"]["sources"]["labelled"]["metrics"] = {"thumb": "R@2"}
    else:
        args[lacking] = None
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        document["http_options"]["port"] = probe.getsockname()[1]
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(document))
    with pytest.raises(ConfigError, match="a demo needs `warm_start`, `drift` and a metric 'recall'"):
        demo.run(Demo(config=config, output=tmp_path / "out"), lambda *_: None)


def test_labels_are_questions_again(tmp_path: Path) -> None:
    questions = load_questions(write_questions(tmp_path / "q.jsonl"))
    write_labels(tmp_path / "labelled.jsonl", questions)
    assert load_questions(tmp_path / "labelled.jsonl") == questions


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
def test_the_service_is_gone_once_the_story_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    url, begun = stand_in(monkeypatch, CHILD)
    handler = signal.getsignal(signal.SIGTERM)

    def broken_off() -> None:
        with serving(EXAMPLE, tmp_path, tmp_path / "log", url):
            assert httpx.get(f"{url}/ready").is_success
            assert begun[0].poll() is None
            signal.raise_signal(number)

    with pytest.raises(KeyboardInterrupt):
        broken_off()
    assert begun[0].poll() is not None
    assert signal.getsignal(signal.SIGTERM) == handler
    assert "serving" in (tmp_path / "log").read_text()


def test_a_service_that_does_not_start_is_told_with_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, _ = stand_in(monkeypatch, "raise SystemExit(3)")
    with (
        pytest.raises(LaunchError, match=r"ended with status 3: .*see .*log"),
        serving(EXAMPLE, tmp_path, tmp_path / "log", url),
    ):
        raise AssertionError("it is never ready")


def test_the_verb_tells_of_questions_that_cannot_be_read(tmp_path: Path) -> None:
    words = ["--questions", str(tmp_path / "no.jsonl"), "--output", str(tmp_path / "out")]
    result = CliRunner().invoke(command_line, words)
    assert result.exit_code == 2
    assert "cannot read questions from" in result.output


def test_the_page_says_by_which_command_it_was_made(tmp_path: Path) -> None:
    settings = Demo(config=EXAMPLE, questions=tmp_path / "q.jsonl", before=("a b",), output=tmp_path, seed=3)
    assert settings.command == (
        f"python -m examples.demo --config examples/demo.yaml --output {tmp_path} "
        f"--questions {tmp_path}/q.jsonl --seed 3 --before 'a b'"
    )


@pytest.mark.parametrize(
    ("terminal", "desktop", "opened"), [(True, True, 1), (True, False, 0), (False, True, 0)]
)
def test_the_console_is_opened_for_somebody_at_a_desktop(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, desktop: bool, opened: int
) -> None:
    addresses: list[str] = []
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    if desktop:
        monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr(demo_command.console, "_force_terminal", terminal)
    monkeypatch.setattr(demo_command.webbrowser, "open", addresses.append)
    demo_command.show("http://127.0.0.1:8010/console")
    assert addresses == ["http://127.0.0.1:8010/console"] * opened
