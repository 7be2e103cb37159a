"""The threshold of a checked arm: estimated from decisions where a coin overruled the score."""

from collections.abc import AsyncGenerator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from armwise.agent.cli.main import app
from armwise.agent.config import ConfigError
from armwise.agent.lab.offline import CheckedAnswers, ThresholdError, fit_logged_threshold, fit_threshold
from armwise.agent.lab.offline.check_threshold import read_checked
from armwise.arms.llm import Chunk, Prompt
from armwise.arms.llm.base import ScriptedGenerator
from armwise.feedback.log import Store
from armwise.feedback.training_log import Joiner, take_epoch
from tests.agent.asking import tell
from tests.agent.fakes import CONFIG, Service

N = 20_000

DEAR = 0.3
"""What the second answer costs."""


def world(explore: float, present: float, seed: int = 7, n: int = N) -> tuple[CheckedAnswers, Any]:
    """Return decisions, and the true mean reward of a threshold: the first answer is as good as its score."""
    rng = np.random.default_rng(seed)
    score = rng.integers(0, 11, n) / 10
    first, second = rng.random(n) < score, rng.random(n) < 0.9
    fails = score < present
    overruled = rng.random(n) < explore / 2
    goes_on = fails ^ overruled
    p = np.where(overruled, explore / 2, 1 - explore / 2)
    reward = np.where(goes_on, second - DEAR, first)

    def truth(threshold: float) -> float:
        on = np.arange(11) / 10 < threshold
        return float(np.where(on, 0.9 - DEAR, np.arange(11) / 10).mean())

    return CheckedAnswers(score, goes_on, p, reward.astype(np.float64)), truth


def test_the_values_of_thresholds_are_those_of_the_world() -> None:
    answers, truth = world(explore=0.4, present=0.2)
    fit = fit_threshold("checked", answers, 0.2)
    assert fit.best.threshold in (0.6, 0.7), "there the first answer is worth what the second one is"
    assert fit.best.low > 0
    assert fit.chosen == fit.best.threshold
    assert "more than the present 0.2" in fit.summary
    for value in fit.values:
        gain = truth(value.threshold) - truth(0.2)
        assert value.low <= gain <= value.high
        assert abs(value.gain - gain) < 0.03
        assert abs(value.value - truth(value.threshold)) < 0.03
        assert value.goes_on == pytest.approx(np.mean(answers.score < value.threshold))
    assert [value.threshold for value in fit.values] == sorted({n / 10 for n in range(11)})


def test_the_intervals_hold_together_in_nearly_all_worlds() -> None:
    missed = 0
    for seed in range(100):
        answers, truth = world(explore=0.5, present=0.5, seed=seed, n=800)
        missed += any(
            not value.low <= truth(value.threshold) - truth(0.5) <= value.high
            for value in fit_threshold("checked", answers, 0.5).values
        )
    assert missed <= 12, "at most 5 in expectation"


@pytest.mark.slow
def test_the_intervals_hold_where_decisions_are_few() -> None:
    missed = 0
    for seed in range(200):
        answers, truth = world(explore=0.2, present=0.5, seed=seed, n=240)
        missed += any(
            not value.low <= truth(value.threshold) - truth(0.5) <= value.high
            for value in fit_threshold("checked", answers, 0.5).values
        )
    assert missed <= 30, "10 in expectation, were they normal"


def test_a_gain_that_may_be_chance_does_not_move_the_threshold() -> None:
    answers, _ = world(explore=0.2, present=0.5, n=60)
    fit = fit_threshold("checked", answers, 0.5)
    assert fit.best.low <= 0 < fit.best.gain
    assert fit.chosen == 0.5
    assert "the log does not separate them yet" in fit.summary


def test_the_present_threshold_gains_nothing_on_itself() -> None:
    answers, _ = world(explore=0.4, present=0.6)
    fit = fit_threshold("checked", answers, 0.6)
    (own,) = (value for value in fit.values if value.threshold == 0.6)
    assert (own.gain, own.low, own.high) == (0.0, 0.0, 0.0)


def test_of_many_scores_quantiles_are_compared() -> None:
    rng = np.random.default_rng(3)
    n = 1000
    score = rng.random(n)
    answers = CheckedAnswers(score, rng.random(n) < 0.5, np.full(n, 0.5), rng.random(n))
    fit = fit_threshold("checked", answers, 0.5)
    assert 20 <= len(fit.values) <= 23
    assert fit.values[0].threshold == 0.0
    assert fit.values[-1].threshold == score.max()


@pytest.mark.parametrize("n", [0, 29])
def test_too_few_decisions_are_refused(n: int) -> None:
    answers = CheckedAnswers(np.zeros(n), np.zeros(n, bool), np.full(n, 0.5), np.zeros(n))
    with pytest.raises(ThresholdError, match=f"{n} decisions with a score.*at least 30"):
        fit_threshold("checked", answers, 0.5)


class Grades(ScriptedGenerator):
    """Grades every other answer 9 and the others 2."""

    def __init__(self) -> None:
        super().__init__(lambda _: "")
        self.n = 0

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        del prompt
        self.n += 1
        yield Chunk(f'{{"score": {9 if self.n % 2 else 2}}}')
        yield Chunk(finish_reason="stop", prompt_tokens=1, completion_tokens=1)


LARGE = {"engine": "openai", "base_url": "http://127.0.0.1:9/v1", "model": "large"}


def settings(explore: float, **changes: Any) -> dict[str, Any]:
    params = {"first": "none", "then": "large", "check": {"by": "judge", "judge": "grader"}}
    return {
        "llms": {"large": LARGE, "grader": LARGE},
        "arms": {
            "none": {"kind": "none", "action": False},
            "large": {"kind": "none", "action": False, "answering": {"llm": "large"}},
            "checked": {"kind": "checked", "params": {**params, "threshold": 0.1, "explore": explore}},
        },
        "reward": {
            "metrics": {"thumb": {"range": [-1, 1]}},
            "correction_time": "PT0S",
            "cost_weight": 0.0,
        },
        "limits": {"in_flight": 64},
        **changes,
    }


async def serve(folder: Path, explore: float, n: int) -> Service:
    """Answer and rate questions: the second answer is always right, the first one where its grade is 9."""
    async with Service(folder, generators=models(), **settings(explore)).running() as service:
        for turn in range(n):
            body = {"model": "auto", "messages": [{"role": "user", "content": f"Which river, {turn}?"}]}
            answer = (await service.client.post("/v1/chat/completions", json=body)).json()
            said, good = answer["choices"][0]["message"]["content"], turn % 2 == 0
            decision = answer["agent"]["decision_id"]
            assert (
                await tell(service, decision, 1.0 if said == "large" or good else -1.0)
            ).status_code == 202
        await service.settle()
    return service


@pytest.mark.slow
async def test_a_threshold_is_fitted_to_the_log_of_a_service(tmp_path: Path) -> None:
    service = await serve(tmp_path, explore=0.8, n=60)
    fit = fit_logged_threshold(service.config, "checked")
    assert (fit.n, fit.present, dict(fit.left_out)) == (60, 0.1, {})
    assert [value.threshold for value in fit.values] == [0.0, 0.1, 0.2, 0.9]
    assert fit.best.threshold == 0.9
    assert fit.best.low > 0
    assert fit.values[0].gain == 0.0, "no score is below it, as below the present one"
    file = tmp_path / "config.yaml"
    document = {**CONFIG, **settings(0.8), "log_url": service.config.database_url, "home": str(tmp_path)}
    served = {"name": "armwise", "import_path": "armwise.agent.app:build", "args": document}
    file.write_text(yaml.safe_dump({"applications": [served]}))
    ran = CliRunner().invoke(app, ["lab", "threshold", "checked", "--config", str(file)])
    assert ran.exit_code == 0, ran.output
    assert "threshold 0.9 is estimated to be worth" in ran.output
    assert "60 decisions" in ran.output
    ran = CliRunner().invoke(app, ["lab", "threshold", "large", "--config", str(file)])
    assert ran.exit_code == 2
    assert "is of kind 'none': its answers are not checked" in ran.output
    with pytest.raises(ConfigError, match="unknown arm 'check'"):
        fit_logged_threshold(service.config, "check")


async def answer(service: Service, episode: str | None = None) -> str:
    agent = {} if episode is None else {"episode_id": episode}
    body = {"model": "auto", "messages": [{"role": "user", "content": "Which river?"}], "agent": agent}
    answered = await service.client.post("/v1/chat/completions", json=body)
    return str(answered.json()["agent"]["decision_id"])


def models() -> dict[str, Any]:
    said = {name: ScriptedGenerator({}, default=name) for name in ("default", "large")}
    return {**said, "grader": Grades()}


async def test_decisions_after_one_that_still_waits_are_left_out(tmp_path: Path) -> None:
    async with Service(tmp_path, generators=models(), **settings(0.8)).running() as service:
        for rated in (True, False, True, True):
            decision = await answer(service)
            if rated:
                await tell(service, decision)
        await service.learn()
        answers, left_out = read_checked(service.replica.store, service.config, "checked")
        assert (len(answers), dict(left_out)) == (0, {"still waiting for feedback": 3})


async def test_decisions_of_several_turns_are_left_out(tmp_path: Path) -> None:
    changes = settings(0.8, sticky="episode")
    async with Service(tmp_path, generators=models(), **changes).running() as service:
        for episode in ("one", "two", "two"):
            await tell(service, await answer(service, episode))
        later, config = service.clock() + 2 * service.config.reward.wait_s, service.config
    join = config.reward.join
    with closing(Store(config.database_url, join, clock=lambda: later)) as store:
        Joiner(store, config.reward, take_epoch(store, "test", 0.0)).advance(later)
        answers, left_out = read_checked(store, config, "checked")
    assert (len(answers), dict(left_out)) == (1, {"of a conversation of several turns": 1})


@pytest.mark.slow
async def test_a_log_without_a_coin_says_nothing_of_other_thresholds(tmp_path: Path) -> None:
    service = await serve(tmp_path, explore=0.0, n=4)
    with pytest.raises(ThresholdError, match="in none of 4 decisions could a coin overrule the score"):
        fit_logged_threshold(service.config, "checked")
