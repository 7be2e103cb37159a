"""Blocks that are replayed elsewhere, in any order: the document is the same to the last figure."""

import pickle
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from armwise.agent.cli.main import app
from armwise.agent.config import AppConfig, parse
from armwise.agent.evaluation import EvaluationRequest, MapBlocks, map_on_ray, replay
from armwise.agent.evaluation.blocks import LogBlock, ReplayedBlock
from armwise.agent.evaluation.candidate_names import CandidateError
from armwise.agent.policies import PolicySpec
from armwise.feedback.events import LABELS, Context, Cost, Decision, Execution, Feedback, Mode, Status
from armwise.feedback.log import Store
from armwise.feedback.sources import LogSource
from armwise.feedback.training_log import label_turns, read_examples
from tests.agent.asking import join
from tests.agent.evaluation.logged import quietly
from tests.agent.evaluation.test_candidates import published
from tests.agent.fakes import CONFIG

ARMS = tuple(CONFIG["arms"])
N, FIRST = 300, 120
"""Decisions, and those that the version has learned."""

CANDIDATES = ("uniform", "configured", "shadow", "version:{n}", "canary:{n}", "policy:{{kind: linucb}}")


def turn(number: int, rng: np.random.Generator) -> list[Any]:
    name, arms = f"d-{number}", ARMS if number % 5 else ARMS[:2]
    floor = float(rng.choice([0.001, 0.02, 0.1]))
    p = tuple((floor + (1.0 - floor * len(arms)) * rng.dirichlet(np.ones(len(arms)))).tolist())
    drawn = arms[int(rng.choice(len(arms), p=p))]
    steps: dict[str, Any] = {"floor": {"least": floor}}
    if number % 3 == 0:
        steps["canary"] = {"version": 1, "share": 0.1 + 0.2 * (number > N // 2)}
    if number % 4 == 0:
        steps["incumbent"] = {"shadow": dict(zip(arms, rng.dirichlet(np.ones(len(arms))), strict=True))}
    words = {f"{word}=true": 1.0 for word in rng.choice(["river", "sea", "hill"], 2)}
    context = Context(f"question {number % 50}", words, tuple(rng.normal(size=2)), {arm: {} for arm in arms})
    mode = Mode.FORCED if number % 29 == 0 else Mode.EXPLORE
    return [
        Decision(
            *(name, context, arms, p, drawn, "uniform", 1, mode, float(number), 1e3 + number), steps=steps
        ),
        Execution(name, drawn, Status.OK, Cost(steps=1)),
        Feedback(f"{name}:f", name, "thumb", float(rng.uniform(-1.0, 1.0)), float(number)),
    ]


@pytest.fixture
def logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[AppConfig, Store]]:
    """A log of many small blocks, with a label near its begin, and a version that has learned it."""
    monkeypatch.setattr("armwise.feedback.log_columns.CHUNK", 32)
    monkeypatch.setattr("armwise.agent.evaluation.blocks.BLOCK", 10)
    config, rng = parse({**CONFIG, "log_url": f"sqlite:///{tmp_path / 'log.db'}"}), np.random.default_rng(7)
    context = Context("question 7", {"sea=true": 1.0}, (0.1, 0.2), {arm: {} for arm in ARMS})
    label = Decision("l", context, ARMS, (1 / 3,) * 3, "dense", LABELS, 0, decided_at=220.0)
    told = (Feedback("l:f", "l", "thumb", 1.0, 220.0),)
    with closing(Store(config.database_url, config.reward.join)) as store:
        label_turns.insert(
            store, [label_turns.LabelTurn(label, Execution("l", "dense", Status.OK, Cost()), told)]
        )
        store.append([fact for number in range(1, N + 1) for fact in turn(number, rng)])
        join(store, config)
        first = [*read_examples(store, config.reward.join, 0, FIRST)]
        assert published(store, config, first, PolicySpec(kind="linucb")).version == 1
        yield config, store


def document(logged: tuple[AppConfig, Store], map_blocks: MapBlocks | None, **asked: Any) -> dict[str, Any]:
    config, store = logged
    candidates = [name.format(n=1) for name in CANDIDATES]
    request = EvaluationRequest(**{"candidates": candidates, "estimators": ("ips",), **asked})
    source = LogSource(store, config.reward)
    return {**replay(config, request, source, store, quietly, map_blocks), "made_at": 0.0}


def last_first(
    replay: Callable[[LogBlock], ReplayedBlock], parts: Iterable[LogBlock]
) -> Iterator[ReplayedBlock]:
    """Follow the blocks as another process would, the last one first."""
    replay, sent = pickle.loads(pickle.dumps(replay)), [pickle.dumps(part) for part in parts]
    assert len(sent) > 5
    found = [pickle.dumps(replay(pickle.loads(part))) for part in reversed(sent)]
    return map(pickle.loads, reversed(found))


ASKED = [
    {"gate": True},
    {"baseline": "version:1", "since": "1970-01-01T00:02:30", "features": {"sea": True}},
    {"candidates": ["canary:1"], "cost": {"steps": 0.5}, "gate": True},
    {"candidates": ["uniform"], "estimators": ("dr",)},
    {"candidates": ["version:1", "shadow"], "budget": {"usd_per_request": 0.001}},
]


@pytest.mark.parametrize("asked", ASKED, ids=str)
def test_what_others_decide_in_any_order_is_what_is_decided_here(
    logged: tuple[AppConfig, Store], asked: dict[str, Any]
) -> None:
    here = document(logged, None, **asked)
    assert any(each["value"] for one in here["candidates"][1:] for each in one["estimates"])
    assert document(logged, last_first, **asked) == here


def test_the_blocks_of_others_hold_what_labels_taught(logged: tuple[AppConfig, Store]) -> None:
    (version,) = (
        one
        for one in document(logged, last_first, candidates=["version:1"])["candidates"]
        if one["name"] == "version:1"
    )
    assert version["excluded"]["it may have learned from a label made of the decision"] > 0
    assert version["excluded"]["learned by version 1"] > 0


def test_the_share_of_a_canary_comes_back_from_others(logged: tuple[AppConfig, Store]) -> None:
    found = document(logged, last_first, candidates=["canary:1"], gate=True)["candidates"][-1]["verdict"]
    assert found["canary_share"] == pytest.approx(0.3)


def test_candidates_that_learn_are_never_mapped(logged: tuple[AppConfig, Store]) -> None:
    def never(*_: object) -> Iterator[ReplayedBlock]:
        raise AssertionError

    asked = {"candidates": ["configured", "recipe:1"], "estimators": ("ips",)}
    assert document(logged, never, **asked) == document(logged, None, **asked)


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_a_replay_on_ray_is_the_one_here(logged: tuple[AppConfig, Store]) -> None:
    with map_on_ray() as map_blocks:
        assert document(logged, map_blocks, gate=True) == document(logged, None, gate=True)


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_few_blocks_are_under_way_on_ray_and_an_error_there_is_raised_as_here() -> None:
    begun = 0

    def parts() -> Iterator[LogBlock]:
        nonlocal begun
        for number in range(20):
            begun += 1
            yield LogBlock(number, number, np.array([number]), (), labelled=False)

    with map_on_ray() as map_blocks:
        results = map_blocks(_echo, parts())
        assert next(results).was_read.tolist() == [True]
        assert begun <= 5
        with pytest.raises(CandidateError, match="not this one"):
            list(results)


def _echo(part: LogBlock) -> ReplayedBlock:
    if part.first == 7:
        raise CandidateError("not this one")
    return ReplayedBlock(part.seq == part.first, [])


def test_an_export_is_not_replayed_on_ray(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    done = CliRunner().invoke(app, ["replay", "--ray", str(path)])
    assert (done.exit_code, str(path) in done.output) == (2, True)
