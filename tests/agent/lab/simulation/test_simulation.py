"""A whole simulation against a small service that speaks the contract and learns as a toy bandit."""

import itertools
from io import StringIO
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from armwise.agent.lab.simulation.simulation import Simulation, SimulationError, simulate
from armwise.agent.lab.simulation.summary import RunSummary
from armwise.agent.reporting import Terminal
from tests.agent.canned import AGENT, CHOICE, COST, PASSAGE, POLICY, RECEIPT

ARMS = ("good", "half", "bad")
FOUND = {"good": ["p1", "p2"], "half": ["p1", "x"], "bad": ["x", "y"]}
SAID = {"good": "It was Ada Lovelace.", "half": "Ada", "bad": "I do not know"}
STEPS = {"good": 2, "half": 1, "bad": 0}
COST_WEIGHT = 0.1


class ToyService:
    """Draws arms by how well they did, and learns feedback the moment it comes.

    Attributes:
        values: Sum of all values and their count, by arm.
        trouble: Statuses to answer the next questions with, before any is served.
        broken: Arms that always fail.
        fallen_back: Arms that fail, and the arm that answers in the place of each.
        behind: Feedback that the policy never catches up with.
        in_flight: Questions being answered, and the most there ever were.
    """

    def __init__(self) -> None:
        self.values = {arm: [0.5, 1.0] for arm in ARMS}
        self.decisions: dict[str, str] = {}
        self.feedback: dict[str, dict[str, Any]] = {}
        self.order: list[str] = []
        self.trouble: list[int] = []
        self.broken: set[str] = set()
        self.fallen_back: dict[str, str] = {}
        self.behind = 0
        self.refuse_after = 10**9
        self.in_flight, self.most_in_flight = 0, 0
        self.metrics: dict[str, dict[str, object]] = {"recall": {"weight": 3.0}, "right": {"type": "boolean"}}
        self.rng = np.random.default_rng(5)
        self.ids = itertools.count()

    def app(self) -> FastAPI:
        app = FastAPI()
        app.add_api_route("/v1/arms", self.arms)
        app.add_api_route("/v1/policy", self.policy)
        app.add_api_route("/v1/retrieve", self.answer, methods=["POST"])
        app.add_api_route("/v1/chat/completions", self.answer, methods=["POST"])
        app.add_api_route("/v1/feedback", self.learn, methods=["POST"], status_code=202)
        return app

    async def arms(self) -> dict[str, object]:
        listed = [{"name": arm, "kind": "toy", "enabled": True} for arm in ARMS]
        return {"arms": [*listed, {"name": "off", "kind": "toy", "enabled": False}]}

    async def policy(self) -> dict[str, object]:
        reward = {"cost_weight": COST_WEIGHT, "cost": {"steps": 1.0}, "metrics": self.metrics}
        applied = len(self.feedback) - self.behind
        return {
            **POLICY,
            "version": 1,
            "kind": "toy",
            "canaries": [],
            "log_seq": len(self.feedback),
            "applied_seq": applied,
            "reward": reward,
        }

    async def answer(self, request: Request) -> JSONResponse:
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            return self.served(orjson.loads(await request.body()))
        finally:
            self.in_flight -= 1

    def served(self, body: dict[str, Any]) -> JSONResponse:
        if self.trouble:
            status = self.trouble.pop()
            error = {"error": {"code": "overloaded", "message": "too many"}}
            return JSONResponse(error, status, headers={"retry-after": "0"})
        means = np.array([total / count for total, count in self.values.values()])
        p = 0.1 + 0.7 * (means == means.max()) / (means == means.max()).sum()
        self.order.append(body.get("query", ""))
        arm = ARMS[self.rng.choice(len(ARMS), p=p)]
        if arm in self.broken:
            return JSONResponse({"error": {"code": "arm_failed", "message": f"{arm} is down"}}, 502)
        decision = f"d{next(self.ids)}"
        self.decisions[decision] = arm
        agent = {
            **AGENT,
            "decision_id": decision,
            "policy_version": len(self.feedback),
            "arm_drawn": arm,
            "arm_served": self.fallen_back.get(arm, arm),
            "propensity": float(p[ARMS.index(arm)]),
            "pmf": dict(zip(ARMS, p.tolist(), strict=True)),
            "cost": {**COST, "total": float(STEPS[arm]), "steps": STEPS[arm], "retrieval_ms": 1.0},
        }
        passages = [{**PASSAGE, "id": id_} for id_ in FOUND[arm]]
        if "query" in body:
            return JSONResponse({"passages": passages[: body["k"]], "agent": agent})
        choices = [{**CHOICE, "message": {"role": "assistant", "content": SAID[arm]}}]
        return JSONResponse(
            {"model": f"arm/{arm}", "choices": choices, "agent": {**agent, "passages": passages}}
        )

    async def learn(self, batch: dict[str, list[dict[str, Any]]]) -> JSONResponse:
        if len(self.feedback) >= self.refuse_after:
            return JSONResponse({"error": {"code": "invalid_api_key", "message": "key expired"}}, 401)
        receipts = []
        for item in batch["items"]:
            arm = self.decisions[item["decision_id"]]
            name = f"{item['decision_id']}:{item['metric_name']}"
            if name not in self.feedback:
                self.feedback[name] = item
                self.values[arm][0] += item["value"]
                self.values[arm][1] += 1
            receipts.append({**RECEIPT, "log_seq": len(self.feedback)})
        return JSONResponse({"items": receipts}, 202)


@pytest.fixture
def service() -> ToyService:
    return ToyService()


@pytest.fixture
def settings(tmp_path: Path) -> Simulation:
    path = tmp_path / "questions.jsonl"
    lines = [
        {
            "id": f"q{i}",
            "question": f"Who wrote program {i}?",
            "answers": ["Ada Lovelace"],
            "gold_ids": ["p1", "p2"],
            "dataset": ("nq", "squad")[i % 2],
        }
        for i in range(60)
    ]
    path.write_bytes(b"\n".join(map(orjson.dumps, lines)))
    return Simulation(
        questions=path, endpoint="retrieve", metrics={"recall": "recall"}, k=2, output=tmp_path / "out"
    )


async def run(service: ToyService, settings: Simulation, **changes: object) -> tuple[RunSummary, str]:
    said = StringIO()
    settings = settings.model_copy(update=changes)
    transport = httpx.ASGITransport(app=service.app())
    summary = await simulate(settings, Terminal(file=said, width=160), transport)
    return summary, said.getvalue()


def rows(settings: Simulation) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in (settings.output / "turns.jsonl").read_bytes().splitlines()]


@pytest.mark.slow
async def test_each_question_is_asked_once_and_scored(service: ToyService, settings: Simulation) -> None:
    summary, _ = await run(service, settings)
    turns = rows(settings)
    assert sorted(turn["id"] for turn in turns) == sorted(f"q{i}" for i in range(60))
    for turn in turns:
        recall = len({"p1", "p2"} & set(FOUND[turn["arm"]])) / 2
        assert turn["metrics"] == {"recall": recall}
        assert turn["reward"] == pytest.approx(recall - COST_WEIGHT * STEPS[turn["arm"]])
        assert turn["propensity"] == turn["pmf"][turn["arm"]]
        assert turn["latency_s"] > 0
        assert service.feedback[f"{turn['decision_id']}:recall"]["value"] == recall
    assert len(service.feedback) == 60
    assert summary.reward.overall == pytest.approx(np.mean([turn["reward"] for turn in turns]))
    assert summary.traffic.learned is True


@pytest.mark.slow
async def test_a_learning_policy_ends_higher(service: ToyService, settings: Simulation) -> None:
    summary, said = await run(service, settings, concurrency=1)
    assert summary.reward.last_third > (0.8 + 0.4 + 0.0) / 3
    assert summary.shares["good"][1] > summary.shares["bad"][1]
    assert "policy" in said
    assert "squad" in said


@pytest.mark.slow
async def test_results_replace_those_of_an_earlier_run(service: ToyService, settings: Simulation) -> None:
    await run(service, settings, limit=6)
    await run(service, settings, limit=3)
    assert {path.name for path in settings.output.iterdir()} == {"turns.jsonl", "summary.json"}
    summary = orjson.loads((settings.output / "summary.json").read_bytes())
    assert summary["turns"] == len(rows(settings)) == 3


async def test_chat_scores_answers_and_passages(service: ToyService, settings: Simulation) -> None:
    metrics = {"recall": "recall", "right": "acc"}
    await run(service, settings, endpoint="chat", metrics=metrics, limit=20)
    for turn in rows(settings):
        right = float(turn["arm"] == "good")
        assert turn["metrics"]["right"] == right
        quality = (3 * turn["metrics"]["recall"] + right) / 4
        assert turn["reward"] == pytest.approx(quality - COST_WEIGHT * STEPS[turn["arm"]])
    assert len(service.feedback) == 40


@pytest.mark.slow
async def test_the_seed_fixes_the_order(service: ToyService, settings: Simulation) -> None:
    await run(service, settings, concurrency=1)
    whole, service.order = service.order, []
    await run(service, settings, concurrency=1, limit=5)
    assert service.order == whole[:5]
    service.order = []
    await run(service, settings, concurrency=1, limit=5, seed=1)
    assert service.order != whole[:5]


async def test_questions_in_flight_are_limited(service: ToyService, settings: Simulation) -> None:
    await run(service, settings, concurrency=3)
    assert 1 <= service.most_in_flight <= 3


@pytest.mark.slow
async def test_a_busy_service_is_waited_for(service: ToyService, settings: Simulation) -> None:
    service.trouble = [429, 503, 503]
    summary, _ = await run(service, settings, limit=5)
    assert summary.turns == 5
    assert summary.traffic.retries == 3


@pytest.mark.slow
async def test_a_failed_answer_costs_one_question(service: ToyService, settings: Simulation) -> None:
    service.broken = {"bad"}
    summary, _ = await run(service, settings)
    failed = [turn for turn in rows(settings) if "error" in turn]
    assert failed
    assert summary.traffic.failed == len(failed)
    assert summary.turns == 60 - len(failed)
    assert all("arm_failed: bad is down" in turn["error"] for turn in failed)


@pytest.mark.slow
async def test_a_turn_is_that_of_the_arm_that_answered_it(service: ToyService, settings: Simulation) -> None:
    service.fallen_back = dict.fromkeys(ARMS, "half")
    summary, _ = await run(service, settings, limit=9)
    assert {turn["arm"] for turn in rows(settings)} == {"half"}
    assert {turn["drawn"] for turn in rows(settings)} > {"half"}
    assert summary.shares["half"] == (1.0, 1.0)


async def test_an_answer_is_waited_for_as_long_as_the_settings_say(settings: Simulation) -> None:
    waited: list[float] = []

    def note(request: httpx.Request) -> httpx.Response:
        waited.append(request.extensions["timeout"]["read"])
        return httpx.Response(403, json={"error": {"code": "forbidden", "message": "no scope"}})

    hasty = settings.model_copy(update={"timeout_s": 7.5})
    with pytest.raises(SimulationError, match="403"):
        await simulate(hasty, Terminal(file=StringIO()), httpx.MockTransport(note))
    assert waited == [7.5]


async def test_a_run_without_any_answer_is_an_error(service: ToyService, settings: Simulation) -> None:
    service.broken = set(ARMS)
    with pytest.raises(SimulationError, match=r"none of 4 questions was answered; the last: .* is down"):
        await run(service, settings, limit=4)


async def test_a_broken_run_keeps_acknowledged_turns(service: ToyService, settings: Simulation) -> None:
    service.refuse_after = 7
    with pytest.raises(SimulationError, match=r"/v1/feedback gave 401, invalid_api_key: key expired"):
        await run(service, settings)
    kept = {f"{turn['decision_id']}:recall" for turn in rows(settings)}
    assert kept == service.feedback.keys()
    assert len(kept) == 7


@pytest.mark.slow
async def test_feedback_not_learned_in_time_is_told(service: ToyService, settings: Simulation) -> None:
    service.behind = 1
    summary, said = await run(service, settings, limit=3, learned_timeout_s=1e-9)
    assert summary.traffic.learned is False
    assert "\nnot all feedback was learned within 1e-09 s\n" in said
    summary, said = await run(service, settings, limit=3, learned_timeout_s=0.0)
    assert summary.traffic.learned is None
    assert "not all feedback" not in said


@pytest.mark.slow
async def test_a_question_without_a_metric_is_asked(service: ToyService, settings: Simulation) -> None:
    lines = settings.questions.read_text() + '\n{"id": "bare", "question": "Why?"}'
    settings.questions.write_text(lines)
    summary, said = await run(service, settings)
    bare = next(turn for turn in rows(settings) if turn["id"] == "bare")
    assert (bare["metrics"], bare["reward"]) == ({}, None)
    assert (summary.turns, summary.scored, len(service.feedback)) == (61, 60, 60)
    assert "\n1 not scored: no metric applied to them\n" in said


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metrics": {"thumb": "recall"}}, "metric 'thumb' is not declared; available: recall, right"),
        ({"metrics": {"right": "recall"}}, "metric 'right' is boolean and recall is a fraction"),
        (
            {"metrics": {"right": "f1"}, "endpoint": "chat"},
            "metric 'right' is boolean and f1 is a fraction; post em or acc",
        ),
        ({"metrics": {"recall": "em"}}, "retrieve gives no answer; use chat, or post recall"),
        ({"questions": Path("nowhere.jsonl")}, r"cannot read questions from nowhere\.jsonl"),
        ({"output": Path("/dev/null/out")}, "cannot write the results to /dev/null/out"),
    ],
)
async def test_what_cannot_work_is_refused_before_the_first_question(
    service: ToyService, settings: Simulation, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(SimulationError, match=message):
        await run(service, settings, **changes)
    assert not service.order


async def test_questions_lacking_what_metrics_need_fail(service: ToyService, settings: Simulation) -> None:
    settings.questions.write_text('{"id": "q", "question": "Who?", "answers": ["Ada"]}')
    with pytest.raises(SimulationError, match="is to get recall, but no question has gold_ids"):
        await run(service, settings)


async def test_a_service_out_of_reach_is_named(settings: Simulation) -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("connection refused", request=request)

    with pytest.raises(SimulationError, match=r"no service answers at http://127\.0\.0\.1:8000"):
        await simulate(settings, Terminal(file=StringIO()), httpx.MockTransport(refuse))


async def test_the_key_is_sent_and_never_shown(settings: Simulation) -> None:
    keyed = Simulation.model_validate({**settings.model_dump(), "api_key": "s3cret"})
    seen: list[str | None] = []

    def note(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers.get("authorization"))
        return httpx.Response(403, json={"error": {"code": "forbidden", "message": "no scope"}})

    with pytest.raises(SimulationError, match="403, forbidden: no scope"):
        await simulate(keyed, Terminal(file=StringIO()), httpx.MockTransport(note))
    assert seen == ["Bearer s3cret"]
    assert "s3cret" not in repr(keyed)
