"""The portfolio of a run: chosen on questions that favour no family of arms."""

from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from armwise.agent.config import parse
from armwise.agent.config.warm_start import PortfolioPlan
from armwise.agent.lab.warmstart.journal import Step
from armwise.agent.lab.warmstart.label_sources import Lot
from armwise.agent.lab.warmstart.proposals import propose_portfolio
from armwise.arms.lab.portfolio import MatrixArms, write_matrix
from armwise.arms.questions import Question
from tests.agent.lab.warmstart.test_run import configured

ARMS: dict[str, Any] = {
    "words": {"kind": "bm25"},
    "near": {"kind": "dense", "params": {"backbone": "tiny"}},
    "both": {"kind": "rrf", "params": {"arms": ["words", "near"]}},
    "also": {"kind": "rrf", "params": {"arms": ["near", "words"]}},
}


def chosen(
    tmp_path: Path, kind: str, live: list[str], parts: int = 1, baseline: str | None = None
) -> list[str]:
    """Choose one arm by questions half of which only keyword search answers; `both` is best on the others."""
    config = parse({**configured(tmp_path).model_dump(mode="json"), "arms": ARMS, "baseline": baseline})
    n = 400
    rng, copied = np.random.default_rng(0), np.arange(n) < n // 2
    chance = [np.where(copied, *each) for each in ((0.95, 0.4), (0.0, 0.4), (0.3, 0.9))]
    scores = (rng.random((3, n)) < np.array(chance)).astype(np.float32)
    scores = np.vstack([scores, scores[2:]])  # `also` finds nearly what `both` finds
    scores[3, ::100] = 0.0
    questions = [Question(f"q{number}", f"question {number}") for number in range(n)]
    table = MatrixArms(config.arms, config.backbones, {}, "R@4", {})
    lots = []
    for part in range(parts):  # each with its share of both halves
        rows = range(part, n, parts)
        asked = [questions[row] for row in rows]
        write_matrix(tmp_path / f"labels{part}", table, [(asked, np.ascontiguousarray(scores[:, rows].T))])
        lots.append(Lot(f"made{part}", kind, "0", tmp_path / f"labels{part}", {}, new=True))
    plan, step = PortfolioPlan(measure="R@4", k=1, live=True), Step("portfolio", 0.0)
    console = Console(file=StringIO())
    found = propose_portfolio(plan, config, live, lots, tmp_path / "run", step, console)
    assert found is not None
    return list(found.actions)


@pytest.mark.parametrize("parts", [1, 2])
def test_made_questions_do_not_favour_the_arm_whose_words_they_share(tmp_path: Path, parts: int) -> None:
    assert chosen(tmp_path, "synthetic", [], parts) == ["both"]


def test_other_labels_count_as_they_are(tmp_path: Path) -> None:
    assert chosen(tmp_path, "outcomes", []) == ["words"]


@pytest.mark.parametrize(("live", "found"), [("near", "both"), ("both", "both"), ("also", "also")])
def test_a_live_arm_stays_unless_another_is_certainly_better(tmp_path: Path, live: str, found: str) -> None:
    assert chosen(tmp_path, "synthetic", [live]) == [found]


def test_the_baseline_stays_live_whatever_else_is_chosen(tmp_path: Path) -> None:
    assert chosen(tmp_path, "synthetic", [], baseline="near") == ["near", "both"]
