"""The verdict before a promotion: asked for once, waited for, and found again by whoever comes back."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent.config import parse
from agent.evaluation.gate import FRESH_S, verdict
from agent.evaluation.request import EvaluationRequest
from agent.jobs import UndecidedError
from agent.learning import Recipe, configuration_of, publish_candidate
from agent.policies import PolicySpec
from feedback.errors import QueueFullError
from feedback.log import Store
from feedback.ope import GateSpec
from feedback.registry import Evaluation, evaluations
from tests.agent.asking import refused
from tests.agent.fakes import CONFIG, Service
from tests.agent.judged import judged_log

NOW = 1000.0
OURS = "ours"
"""Digest of the configuration that judges."""

SAID = {"verdict": "hold", "promote": False, "reasons": ["Too little is known."], "figures": {"n": 7}}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(f"sqlite:///{tmp_path / 'log.db'}")
    yield store
    store.close()


def report(version: int) -> evaluations.Answer:
    """What an evaluation answers, as far as the gatekeeper looks at it."""
    judged = {"name": f"recipe:{version}", "verdict": SAID}
    return evaluations.Answer({"candidates": [{"name": "served", "verdict": None}, judged]}, "")


def answer(store: Store, version: int, at: float = NOW) -> int:
    """Be the worker: answer the oldest evaluation; return its number."""
    mine = evaluations.claim(store, OURS, "w", at)
    assert mine is not None
    evaluations.finish(store, mine, report(version), at)
    return mine.seq


@contextmanager
def working(store: Store, end: Callable[[Evaluation], None]) -> Iterator[None]:
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
    store: Store, version: int, now: float = NOW, wait_s: float = 0.0, since: float = 0.0, **others: Any
) -> dict[str, Any]:
    settings = {"wait_s": wait_s, "poll_s": 0.001, "clock": lambda: now, **others}
    return await verdict(store, OURS, version, since, **settings)


async def test_a_verdict_is_asked_for_and_waited_for(store: Store) -> None:
    with working(store, lambda mine: evaluations.finish(store, mine, report(3), NOW)):
        found = await asked(store, 3, wait_s=30.0)
    assert found == {**SAID, "evaluation": 1}
    (one,) = evaluations.page(store, 10)
    request = EvaluationRequest.model_validate(one.request)
    assert (request.candidates, request.baseline, request.gate) == (("recipe:3",), "served", True)


async def test_whoever_will_not_wait_is_told_the_evaluation_and_finds_it_again(store: Store) -> None:
    with pytest.raises(UndecidedError, match="evaluation 1, by which version 3 is judged, is queued"):
        await asked(store, 3)
    assert evaluations.claim(store, OURS, "w", NOW) is not None
    with pytest.raises(UndecidedError, match="evaluation 1, by which version 3 is judged, is running"):
        await asked(store, 3)
    assert answer(store, 3) == 1
    assert (await asked(store, 3, NOW + 1))["evaluation"] == 1
    assert len(evaluations.page(store, 10)) == 1


async def test_a_verdict_that_is_no_longer_fresh_is_asked_for_again(store: Store) -> None:
    with pytest.raises(UndecidedError):
        await asked(store, 3)
    answer(store, 3)
    assert (await asked(store, 3, NOW + FRESH_S))["evaluation"] == 1
    with pytest.raises(UndecidedError, match="evaluation 2"):
        await asked(store, 3, NOW + FRESH_S + 1)


async def test_a_verdict_from_before_the_last_word_compares_with_something_else(store: Store) -> None:
    with pytest.raises(UndecidedError):
        await asked(store, 3)
    answer(store, 3)
    assert (await asked(store, 3, NOW + 2, since=NOW))["evaluation"] == 1
    with pytest.raises(UndecidedError, match="evaluation 2"):
        await asked(store, 3, NOW + 2, since=NOW + 1)


async def test_a_verdict_of_another_configuration_is_none_of_this_one(store: Store) -> None:
    with pytest.raises(UndecidedError):
        await asked(store, 3)
    answer(store, 3)
    with pytest.raises(UndecidedError, match="evaluation 2"):
        await verdict(store, "theirs", 3, 0.0, wait_s=0.0, clock=lambda: NOW)


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


async def test_a_version_that_cannot_be_evaluated_is_held_and_tried_anew_the_next_time(store: Store) -> None:
    with pytest.raises(UndecidedError):
        await asked(store, 3)
    with working(store, lambda mine: evaluations.fail(store, mine, f"killed, the {mine.seq}. time", NOW)):
        for seq in (1, 2):
            assert await asked(store, 3, wait_s=30.0) == {
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
    assert all(one.status is evaluations.State.QUEUED for one in evaluations.page(store, 100))


async def test_a_promotion_waits_for_what_the_log_says_of_the_candidate(tmp_path: Path) -> None:
    judged_log(parse({**CONFIG, "log_url": f"sqlite:///{tmp_path / 'log.db'}"}), turns=1000)
    service = Service(tmp_path)
    service.config = service.config.model_copy(update={"gate": GateSpec(least_checked=0)})
    async with service.running():
        replica = service.replica
        ours = configuration_of(service.config)
        replica.gate = partial(verdict, replica.store, ours, wait_s=60.0, poll_s=0.01, clock=replica.clock)

        def candidate(arm: str) -> int:
            recipe = Recipe(PolicySpec(kind="fixed", params={"arm": arm}), service.config.reward)
            return publish_candidate(replica.store, recipe, list(service.config.arms)).version

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
