"""The verdict before a promotion: asked for once, waited for, and found again by whoever comes back."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from armwise.agent.config import AppConfig, parse
from armwise.agent.evaluation import evaluation_task, promotion_verdict
from armwise.agent.evaluation.evaluation_request import EvaluationRequest
from armwise.agent.evaluation.promotion_verdict import (
    EvaluationFailedError,
    FinishedEvaluation,
    run_evaluation,
    verdict,
    verdict_on,
)
from armwise.agent.jobs import JobFailedError, ProgressCallback
from armwise.agent.learning import Recipe, digest_configuration, publish_candidate
from armwise.agent.policies import PolicySpec
from armwise.feedback.errors import QueueFullError, UndecidedError
from armwise.feedback.log import Store
from armwise.feedback.registry import ActivePolicy, EvaluationRow, evaluations
from armwise.feedback.registry.promotions import Action, Promotion
from tests.agent.asking import refused
from tests.agent.fakes import CONFIG, Service
from tests.agent.judged import judged_log

NOW = 1000.0
OURS = "ours"
"""Digest of the configuration that judges."""

UNTOUCHED = ActivePolicy("recipe")
"""Nothing was promoted yet."""

SAID = {"verdict": "hold", "promote": False, "reasons": ["Too little is known."], "figures": {"n": 7}}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(f"sqlite:///{tmp_path / 'log.db'}")
    yield store
    store.close()


def report(version: int, kind: str = "recipe") -> evaluations.StoredResult:
    """What an evaluation answers, as far as the gatekeeper looks at it."""
    judged = {"name": f"{kind}:{version}", "verdict": SAID}
    return evaluations.StoredResult({"candidates": [{"name": "served", "verdict": None}, judged]}, "")


def answer(store: Store, version: int, at: float = NOW) -> int:
    """Be the worker: answer the oldest evaluation; return its number."""
    mine = evaluations.claim(store, OURS, "w", at)
    assert mine is not None
    evaluations.finish(store, mine, report(version), at)
    return mine.seq


@contextmanager
def working(store: Store, end: Callable[[EvaluationRow], None]) -> Iterator[None]:
    """Claim what is asked for, in a thread, and end it so."""
    stop = threading.Event()

    def work() -> None:
        while not stop.wait(0.001):
            if (mine := evaluations.claim(store, OURS, "w", NOW)) is not None:
                end(mine)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


async def asked(
    store: Store,
    version: int,
    now: float = NOW,
    wait_s: float = 0.0,
    active: ActivePolicy = UNTOUCHED,
    **others: Any,
) -> dict[str, Any]:
    settings = {"wait_s": wait_s, "poll_s": 0.001, "clock": lambda: now, **others}
    return await verdict(store, OURS, version, active, **settings)


def promoted(at: float) -> ActivePolicy:
    """What is active after a promotion."""
    return ActivePolicy("recipe", newest=Promotion(1, 2, Action.PROMOTE, "better", at))


async def test_a_verdict_is_asked_for_and_waited_for(store: Store) -> None:
    with working(store, lambda mine: evaluations.finish(store, mine, report(3), NOW)):
        found = await asked(store, 3, wait_s=30.0)
    assert found == {**SAID, "evaluation": 1}
    (one,) = evaluations.page(store, 10)
    request = EvaluationRequest.model_validate(one.request)
    assert (request.candidates, request.baseline, request.gate) == (("recipe:3",), "served", True)


async def test_a_canary_is_judged_as_it_decides_and_any_other_version_as_its_recipe(store: Store) -> None:
    canary = Promotion(1, 3, Action.CANARY, "half of it", NOW - 1, share=0.5)
    active = ActivePolicy("recipe", canaries=(canary,), newest=canary)
    with working(store, lambda mine: evaluations.finish(store, mine, report(3, "canary"), NOW)):
        assert await asked(store, 3, wait_s=30.0, active=active) == {**SAID, "evaluation": 1}
    with working(store, lambda mine: evaluations.finish(store, mine, report(4), NOW)):
        assert await asked(store, 4, wait_s=30.0, active=active) == {**SAID, "evaluation": 2}
    requests = [EvaluationRequest.model_validate(one.request) for one in evaluations.page(store, 10)]
    assert [one.candidates for one in requests] == [("recipe:4",), ("canary:3",)]


async def test_whoever_will_not_wait_is_told_the_evaluation_and_finds_it_again(store: Store) -> None:
    with pytest.raises(UndecidedError, match="evaluation 1, which judges version 3, is queued"):
        await asked(store, 3)
    assert evaluations.claim(store, OURS, "w", NOW) is not None
    with pytest.raises(UndecidedError, match="evaluation 1, which judges version 3, is running"):
        await asked(store, 3)
    assert answer(store, 3) == 1
    assert (await asked(store, 3, NOW + 1))["evaluation"] == 1
    assert len(evaluations.page(store, 10)) == 1


async def test_a_verdict_that_is_no_longer_fresh_is_asked_for_again(store: Store) -> None:
    with pytest.raises(UndecidedError):
        await asked(store, 3)
    answer(store, 3)
    assert (await asked(store, 3, NOW + 60.0))["evaluation"] == 1
    with pytest.raises(UndecidedError, match="evaluation 2"):
        await asked(store, 3, NOW + 60.1)


async def test_a_verdict_from_before_the_last_word_compares_with_something_else(store: Store) -> None:
    with pytest.raises(UndecidedError):
        await asked(store, 3)
    answer(store, 3)
    assert (await asked(store, 3, NOW + 2, active=promoted(NOW)))["evaluation"] == 1
    with pytest.raises(UndecidedError, match="evaluation 2"):
        await asked(store, 3, NOW + 2, active=promoted(NOW + 1))


async def test_a_verdict_of_another_configuration_is_none_of_this_one(store: Store) -> None:
    with pytest.raises(UndecidedError):
        await asked(store, 3)
    answer(store, 3)
    with pytest.raises(UndecidedError, match="evaluation 2"):
        await verdict(store, "theirs", 3, UNTOUCHED, wait_s=0.0, clock=lambda: NOW)


async def test_who_forces_uses_a_verdict_that_is_there_and_asks_for_none(store: Store) -> None:
    with pytest.raises(UndecidedError, match="there is no verdict on version 3"):
        await asked(store, 3, wait_s=30.0, force=True)
    assert evaluations.page(store, 10) == []
    with pytest.raises(UndecidedError, match="evaluation 1"):
        await asked(store, 3)
    with pytest.raises(UndecidedError, match="there is no verdict on version 3"):
        await asked(store, 3, wait_s=30.0, force=True)
    answer(store, 3)
    assert (await asked(store, 3, force=True))["evaluation"] == 1


@pytest.mark.parametrize(
    "other",
    [
        EvaluationRequest(candidates=("recipe:4",), gate=True),
        EvaluationRequest(candidates=("recipe:3",)),
        EvaluationRequest(candidates=("recipe:3",), gate=True, cost_weight=0.0),
    ],
    ids=["another version", "no gate", "other prices"],
)
async def test_an_evaluation_of_something_else_is_no_verdict(store: Store, other: EvaluationRequest) -> None:
    evaluations.submit(store, OURS, other.model_dump(mode="json"), NOW)
    with pytest.raises(UndecidedError, match="evaluation 2"):
        await asked(store, 3)


async def test_a_version_that_cannot_be_evaluated_is_held_and_tried_anew_once_that_is_not_fresh(
    store: Store,
) -> None:
    with working(store, lambda mine: evaluations.fail(store, mine, f"killed, the {mine.seq}. time", NOW)):
        for at, seq in ((NOW, 1), (NOW + 60.0, 1), (NOW + 60.1, 2)):
            assert await asked(store, 3, at, wait_s=30.0) == {
                "verdict": "hold",
                "promote": False,
                "reasons": [f"Version 3 cannot be evaluated: killed, the {seq}. time"],
                "evaluation": seq,
            }


async def test_where_too_many_wait_already_none_is_asked_for(store: Store) -> None:
    for _ in range(evaluations.MAX_PENDING):
        evaluations.submit(store, OURS, {}, NOW)
    with pytest.raises(QueueFullError, match="20 evaluations are queued or running"):
        await asked(store, 3)
    assert all(one.status is evaluations.EvaluationStatus.QUEUED for one in evaluations.page(store, 100))


@pytest.mark.slow
async def test_a_promotion_waits_for_what_the_log_says_of_the_candidate(tmp_path: Path) -> None:
    judged_log(parse({**CONFIG, "log_url": f"sqlite:///{tmp_path / 'log.db'}"}), turns=1000)
    patient = partial(verdict, wait_s=60.0, poll_s=0.01)
    service = Service(tmp_path, promotion_gate=patient, gate={"least_checked": 0})
    async with service.running():

        def candidate(arm: str) -> int:
            recipe = Recipe(PolicySpec(kind="fixed", params={"arm": arm}), service.config.reward)
            return publish_candidate(service.replica.store, recipe, list(service.config.arms)).version

        async def promoted(version: int) -> httpx.Response:
            return await service.client.post(f"/v1/policies/{version}/promote", json={"reason": "better"})

        worse, better = candidate("none"), candidate("bm25")
        with service.working():
            message = refused(await promoted(worse), 409, "promotion_gate_failed", "version")
            answer = await promoted(better)
        assert "the candidate does not look better" in message
        assert answer.status_code == 200, answer.text
        (said,) = (await service.client.get("/v1/policies")).json()["promotions"]
        assert (said["version"], said["forced"], said["evaluation"]) == (better, False, 2)
        assert (await service.client.get("/v1/evaluations/2/report")).status_code == 200


REQUEST = EvaluationRequest(candidates=("recipe:3",), gate=True).model_dump(mode="json")

Progress = list[tuple[str, int, int | None]]


def run_here(store: Store, clock: Callable[[], float] = lambda: NOW) -> tuple[FinishedEvaluation, Progress]:
    """Run an evaluation of `REQUEST` as worker `here`; return the result and the reported progress."""
    progress: Progress = []
    found = run_evaluation(
        store, parse(CONFIG), REQUEST, "here", lambda *step: progress.append(step), clock=clock
    )
    return found, progress


def test_an_evaluation_has_configuration_and_request(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    given = []

    def evaluate(
        config: AppConfig, request: Mapping[str, Any], _: ProgressCallback
    ) -> evaluations.StoredResult:
        given.append((config, request))
        return report(3)

    monkeypatch.setattr(promotion_verdict, "evaluate_apart", evaluate)
    found, _ = run_here(store)
    assert given == [(parse(CONFIG), REQUEST)]
    assert found == FinishedEvaluation(1, report(3).report)
    (row,) = evaluations.page(store, 10)
    assert (row.configured, row.worker) == (digest_configuration(parse(CONFIG)), "here")
    assert (row.submitted_at, row.started_at, row.finished_at) == (NOW, NOW, NOW)


def test_progress_goes_to_caller_and_log(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    shares = []

    def evaluate(
        _: AppConfig, __: Mapping[str, Any], on_progress: ProgressCallback
    ) -> evaluations.StoredResult:
        for done in (0.25, 0.506):
            on_progress(done)
            shares.append(evaluations.page(store, 1)[0].done)
        return report(3)

    monkeypatch.setattr(evaluation_task, "BEAT_S", 0.0)
    monkeypatch.setattr(promotion_verdict, "evaluate_apart", evaluate)
    _, progress = run_here(store)
    assert progress == [("evaluating", 25, 100), ("evaluating", 51, 100)]
    assert shares == [0.25, 0.506]


def test_an_evaluation_runs_beside_a_full_queue(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    configured = digest_configuration(parse(CONFIG))
    for _ in range(evaluations.MAX_PENDING):
        evaluations.submit(store, configured, {}, NOW)
    monkeypatch.setattr(promotion_verdict, "evaluate_apart", lambda *_: report(3))
    found, _ = run_here(store)
    assert found.number == evaluations.MAX_PENDING + 1
    newest, *others = evaluations.page(store, 100)
    assert newest.status is evaluations.EvaluationStatus.DONE
    assert {one.status for one in others} == {evaluations.EvaluationStatus.QUEUED}


def test_a_failed_evaluation_has_its_reason(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def evaluate(*_: object) -> evaluations.StoredResult:
        raise JobFailedError("no such recipe")

    monkeypatch.setattr(promotion_verdict, "evaluate_apart", evaluate)
    with pytest.raises(EvaluationFailedError, match=r"^evaluation 1 failed: no such recipe$"):
        run_here(store)


def test_an_evaluation_elsewhere_is_waited_for(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    configured, waits = digest_configuration(parse(CONFIG)), []

    def claimed_elsewhere() -> float:
        """Return the time; as soon as there is an evaluation, another process claims it."""
        evaluations.claim(store, configured, "elsewhere", NOW)
        return NOW

    def finished_elsewhere(seconds: float) -> None:
        """Replace the second wait by the end of the evaluation."""
        waits.append(seconds)
        if len(waits) == 2:
            mine = evaluations.find(store, 1)
            assert mine is not None
            evaluations.finish(store, mine, report(3), NOW)

    monkeypatch.setattr("armwise.agent.evaluation.promotion_verdict.time.sleep", finished_elsewhere)
    found, progress = run_here(store, claimed_elsewhere)
    assert (found.number, found.report, progress) == (1, report(3).report, [])
    assert waits == [0.5] * 2


def test_the_verdict_on_a_candidate_is_found_by_its_name() -> None:
    candidates = [{"name": "recipe:2", "verdict": {"verdict": "promote"}}, *report(3).report["candidates"]]
    assert verdict_on({"candidates": candidates}, "recipe:3") == SAID
    assert verdict_on({"candidates": candidates}, "recipe:2") == {"verdict": "promote"}
