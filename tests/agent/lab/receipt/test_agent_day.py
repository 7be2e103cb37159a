"""A day of a coding agent through the door of Anthropic's protocol: what is charged, learned and stated."""

import asyncio
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa
import yaml
from typer.testing import CliRunner

from armwise.agent.cli.main import app
from armwise.agent.config import AppConfig
from armwise.agent.lab.receipt import read_store, write_sentence
from armwise.feedback.log import Store
from armwise.feedback.log import tables as t
from benchmarks.agent_day import (
    LARGE,
    PRICES,
    SMALL,
    Day,
    Drawn,
    Proof,
    Task,
    count_held,
    describe,
    make_task,
    prove,
    spend,
)
from tests.agent.cli.test_cli import said

SESSIONS, SEED, SHARE = 125, 3, 0.5


def task(**right: float) -> Task:
    usage = {SMALL: [(2000, 1000, 100), (3000, 2000, 0)], LARGE: [(2000, 1000, 100)]}
    return Task(0, 0, 0, "Task 0: x", right, usage, (0.0, 0.0, 0.0), 0.0)


def test_the_truth_is_what_each_arm_would_have_earned_and_cost() -> None:
    one = task(small=0.5, large=0.9)
    read, written, kept = PRICES[SMALL]
    assert one.dollars(SMALL) == pytest.approx(2 * read + 3 * kept + 0.1 * written)
    assert one.dollars(LARGE) == pytest.approx(0.003 + 0.0003 + 0.0015)
    drawn = Drawn(one, p=0.25)
    assert drawn.lead == pytest.approx(0.75 * -0.4)
    assert drawn.saved == pytest.approx(0.75 * (one.dollars(LARGE) - one.dollars(SMALL)))


def test_tasks_are_those_of_the_seed_and_read_what_they_read_before_from_the_cache() -> None:
    made = [make_task(1, n, n, 0) for n in range(200)]
    assert made == [make_task(1, n, n, 0) for n in range(200)]
    assert made[:5] != [make_task(2, n, n, 0) for n in range(5)]
    for one in made:
        for usage in one.usage.values():
            assert all(cached == before[0] for before, (_, cached, _) in pairwise(usage))
            assert all(0 < cached < read for read, cached, _ in usage)
    means = {arm: np.mean([one.right[arm] for one in made]) for arm in (SMALL, LARGE)}
    assert 0.05 < means[LARGE] - means[SMALL] < 0.2


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> tuple[AppConfig, Day]:
    return asyncio.run(spend(tmp_path_factory.mktemp("day"), SESSIONS, SEED, SHARE))


@pytest.fixture(scope="module")
def proof(lived: tuple[AppConfig, Day]) -> Proof:
    return prove(*lived)


@pytest.mark.slow
def test_a_draw_is_charged_for_tool_rounds_and_cached_tokens(
    lived: tuple[AppConfig, Day],
) -> None:
    config, day = lived
    with closing(Store(config.database_url, config.reward.join)) as store:
        traffic = read_store(store, config, lambda *_: None)
        with store.reading() as connection:
            ids = dict(connection.execute(sa.select(t.decisions.c.seq, t.decisions.c.id)).all())
    assert len(traffic.decisions) == day.requests > len(day.draws)
    assert traffic.decisions.usd.sum() == pytest.approx(day.dollars)
    sessions = traffic.sessions(traffic.settlement)
    rows = sessions.rows
    assert len(rows) == len(day.draws)
    drew_large, rated = sessions.drew(LARGE), 0
    for row, seq in enumerate(rows.seq.tolist()):
        drawn = day.draws[ids[seq]]
        arm = LARGE if drew_large[row] else SMALL
        assert sessions.usd[row] == pytest.approx(drawn.task.dollars(arm))
        assert rows.propensity[row] == pytest.approx(drawn.p if arm == LARGE else 1.0 - drawn.p)
        if drawn.task.luck[1] < 0.9:
            assert rows.reward[row] == float(drawn.task.luck[0] < drawn.task.right[arm])
            rated += 1
        else:
            assert np.isnan(rows.reward[row])
    assert 0.8 * len(rows) < rated < len(rows)


@pytest.mark.slow
def test_the_receipt_of_the_day_holds_the_truth(lived: tuple[AppConfig, Day], proof: Proof) -> None:
    _, day = lived
    receipt = proof.receipt
    assert receipt.figures.reference == LARGE
    assert receipt.rows == len(day.draws)
    assert proof.holds == (True, True)
    assert receipt.outcomes is not None
    outcomes = receipt.outcomes
    assert (outcomes.sessions, outcomes.retried) == (SESSIONS, 0), "results of tools ask nothing again"
    assert (outcomes.escalated, outcomes.abandoned) == (0, 0)
    assert receipt.figures.saved is not None
    assert proof.saved == pytest.approx(np.mean([one.saved for one in day.draws.values()]), rel=0.3)
    assert f"{day.requests:,} requests, {len(day.draws):,} decisions" in describe(day, proof)


@pytest.mark.slow
def test_the_policy_learns_during_the_day(lived: tuple[AppConfig, Day]) -> None:
    p = [drawn.p for drawn in lived[1].draws.values()]
    assert p[0] == 0.5
    assert min(p) == pytest.approx(SHARE / 2.0)
    assert max(p) == pytest.approx(1.0 - SHARE / 2.0)


@pytest.mark.slow
def test_armwise_prove_says_the_same_of_the_log(
    lived: tuple[AppConfig, Day], proof: Proof, tmp_path: Path
) -> None:
    config = tmp_path / "config.yaml"
    application = {"name": "armwise", "import_path": "armwise.agent.app:build"}
    document = {"applications": [application | {"args": lived[0].model_dump(mode="json")}]}
    config.write_text(yaml.safe_dump(document))
    printed = said(CliRunner().invoke(app, ["prove", "-c", str(config)]), 0)
    assert " ".join(write_sentence(proof.receipt).split()) in " ".join(printed.split())


@pytest.mark.slow
def test_days_in_which_an_end_fails_are_not_counted(proof: Proof) -> None:
    saved, quality = proof.receipt.comparison.saved, proof.receipt.comparison.quality
    assert saved is not None
    assert quality is not None
    ends = [replace(proof, saved=saved[1]), replace(proof, saved=saved[2] + 1e-9)]
    ends += [replace(proof, lead=quality[2]), replace(proof, lead=quality[1] - 1e-9)]
    assert [one.holds for one in ends] == [(True, True), (False, True), (True, True), (True, False)]
    assert "4 days of 200 sessions: savings held in 3, quality in 3" in count_held(ends)
