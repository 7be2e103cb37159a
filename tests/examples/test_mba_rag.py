"""MBA-RAG as configured: its three arms served, its reward, and the classifier that it is compared with."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

from armwise.agent.config import parse
from armwise.agent.lab.routers.neural.ltrr_training import top_one_losses
from armwise.agent.lab.routers.utilities import utilities
from armwise.agent.policies import (
    Exploration,
    NeuralGreedy,
    PolicySpec,
    build_policy,
    compute_served_distribution,
)
from armwise.agent.routers import RouterSpec, build_router
from armwise.agent.routers.utility import Utility
from armwise.arms.base import Passage, Query, Retrieval
from armwise.arms.lab.portfolio import Outcomes
from armwise.arms.questions import Question
from tests import contracts
from tests.agent.fakes import DIM, FakeArms, Service
from tests.pages import blocks_of

ROOT = Path(__file__).parents[2]
PAGE = "docs/papers/mba-rag.md"
ARMS = ("none", "single", "multi")


def example() -> dict[str, Any]:
    document = yaml.safe_load((ROOT / "examples/mba_rag.yaml").read_text(encoding="utf-8"))
    args: dict[str, Any] = document["applications"][0]["args"]
    return args


async def four_steps(_query: Query, _k: int) -> Retrieval:
    return Retrieval((Passage("p", "title", "text", 1.0),), steps=4)


@pytest.fixture
def service(tmp_path: Path) -> Service:
    """The example with a small encoder, arms of known steps, and a scripted model."""
    args = example()
    args["features"]["embedding"]["dims"] = DIM
    args["reward"]["correction_time"] = "PT0S"
    args |= {"backbones": {"minilm": {"model": f"hashing:{DIM}"}}, "llm": {"engine": "scripted"}}
    return Service(tmp_path, searched=FakeArms({"multi": four_steps}), **args)


async def test_the_example_is_served_and_pays_as_the_code_does(service: Service) -> None:
    paid = {"none": 1.0, "single": 0.9, "multi": 0.6}
    agent = {"return": ["decision"]}
    async with service.running():
        for turn in range(12):
            asked = {"query": f"question {turn}", "agent": agent}
            made = (await service.client.post("/v1/retrieve", json=asked)).json()["agent"]
            assert made["pmf"] == pytest.approx(dict.fromkeys(ARMS, 1 / 3))
            rating = {"decision_id": made["decision_id"], "metric_name": "correct", "value": turn % 2 == 0}
            (await service.client.post("/v1/feedback", json=rating)).raise_for_status()
            body = (await service.client.get(f"/v1/decisions/{made['decision_id']}")).json()
            assert body["reward"] == pytest.approx(paid[made["arm_served"]] if turn % 2 == 0 else 0.0)
        await service.learn()
        again = {"query": "question 0", "agent": agent}
        learned = (await service.client.post("/v1/retrieve", json=again)).json()["agent"]["pmf"]
    # Decision 13 explores with 1 / ln 13, and the floor is mixed in.
    epsilon, floor = 1 / math.log(13), example()["floor"]
    lowest = floor + (1 - 3 * floor) * epsilon / 3
    assert sorted(learned.values())[:2] == pytest.approx([lowest, lowest], rel=1e-6)


def test_both_rewards_of_mba_rag_can_be_configured() -> None:
    """The code pays nothing for a wrong answer, however many steps it took; the formula charges them."""
    args = example()
    as_coded = parse(args).reward
    as_written = parse({**args, "reward": {**args["reward"], "clip": [-1, 1]}}).reward
    for steps in range(11):
        for rule in (as_coded, as_written):
            assert rule.net(1.0, steps) == pytest.approx(1 - steps / 10)
        assert as_coded.net(0.0, steps) == 0.0
        assert as_written.net(0.0, steps) == pytest.approx(-steps / 10)


def test_the_papers_epsilon_is_the_exploration_of_the_service() -> None:
    """As the guide configures it: no epsilon of the policy, and `exploration: 0.1`."""
    without, paper = NeuralGreedy(epsilon=0.0), NeuralGreedy(epsilon=0.1)
    for row, reward in contracts.history(paper, 40, seed=3):
        without.learn(row, reward)
        paper.learn(row, reward)
    for seen in contracts.contexts(10, seed=4):
        served = compute_served_distribution(without, seen, contracts.ARMS, Exploration(0.1).among(3))
        assert served.tolist() == pytest.approx(paper.probabilities(seen, contracts.ARMS).tolist())


def test_the_policy_of_the_example_can_fine_tune_distilbert() -> None:
    params = {**example()["policy"]["params"], "encoder": "distilbert/distilbert-base-uncased"}
    del params["learning_rate"]  # that of the small network; without one it is the 5e-5 of the paper
    policy = build_policy(PolicySpec(kind="neural", params=params), ARMS)
    assert isinstance(policy, NeuralGreedy)
    assert policy.reads_question


def test_the_page_shows_the_example_and_routers_that_build() -> None:
    shown = {block.title: yaml.safe_load(block.text) for block in blocks_of(PAGE) if block.language == "yaml"}
    part = shown.pop("")
    assert {"arms", "policy", "reward", "features", "floor"} == part.keys()
    assert part == {key: example()[key] for key in part}
    assert {build_router(RouterSpec(**spec)).kind for spec in shown.values()} == {"listnet", "pointwise_ffn"}


labels = st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()).filter(any), min_size=1, max_size=8)


@given(labels, st.integers(2, 20), st.integers(0, 2**32 - 1))
def test_a_cold_listnet_is_the_classifier_of_adaptive_rag(
    known: list[tuple[bool, bool, bool]], multi_steps: int, seed: int
) -> None:
    """Its loss is the cross-entropy of one class, the cheapest correct arm, as PyTorch computes it."""
    block = next(one for one in blocks_of(PAGE) if one.title == "classifier.yaml")
    correct = np.array(known, dtype=np.float64)
    n = len(correct)
    questions = tuple(Question(str(row), f"question {row}") for row in range(n))
    nothing = ((None,) * 3,) * n
    steps = np.tile([0.0, 1.0, float(multi_steps)], (n, 1))
    outcomes = Outcomes(questions, ARMS, {"em": correct}, {"steps": steps}, nothing, nothing)
    utility = torch.tensor(utilities(outcomes, Utility(measures={"em": 1.0}, cost_weight=0.01)))
    logits = torch.tensor(np.random.default_rng(seed).normal(size=(n, 3)))
    target = torch.tensor([row.index(True) for row in known])
    temperature = yaml.safe_load(block.text)["params"]["temperature"]
    expected = torch.nn.functional.cross_entropy(logits, target, reduction="none").tolist()
    assert top_one_losses(logits, utility / temperature).tolist() == pytest.approx(expected, abs=1e-3)
