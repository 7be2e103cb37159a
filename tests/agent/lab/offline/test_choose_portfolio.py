"""A portfolio is chosen on some questions, judged on others, and written as configuration."""

from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import yaml
from matplotlib.image import imread
from numpy.typing import NDArray
from pydantic import ValidationError
from rich.console import Console

from armwise.agent.lab.offline import PortfolioSelection, select_portfolio
from armwise.agent.lab.offline.choose_portfolio import Pool
from armwise.agent.lab.offline.portfolio_report import ComparedScores, PortfolioReport
from armwise.arms.lab.portfolio import MatrixArms, ScoreMatrix, read_matrix, selection, write_matrix
from armwise.arms.models import Backbone
from armwise.arms.questions import Question
from armwise.arms.retrievers import ArmGraph, ArmSpec

Scores = NDArray[np.float32]

SPECS = {
    "words": ArmSpec(kind="bm25"),
    "mini": ArmSpec(kind="dense", params={"backbone": "mini"}),
    "large": ArmSpec(kind="dense", params={"backbone": "large"}),
    "fused": ArmSpec(kind="rrf", params={"arms": ["words", "mini"]}),
    "none": ArmSpec(kind="none"),
}
SECONDS = {"words": 0.1, "mini": 0.2, "large": 0.4, "fused": 0.3, "none": 0.0}
NQ, SQUAD = "nq", "squad"


def world(n: int = 400) -> Scores:
    """Of two arms each is good where the other is not; the next best by its mean is so where the best is."""
    rng = np.random.default_rng(0)
    first = np.arange(n) < n // 2
    by_half = ((0.95, 0.35), (0.1, 0.9), (0.5, 0.45), (0.7, 0.4), (0.0, 0.0))
    chance = np.array([np.where(first, *chances) for chances in by_half])
    return (rng.random((5, n)) < chance).astype(np.float32)


def keep(folder: Path, scores: Scores, **fields: Any) -> Path:
    n = scores.shape[1]
    questions = [Question(f"q{i}", "?", dataset=NQ if i < n // 2 else SQUAD) for i in range(n)]
    given: dict[str, Any] = {
        "backbones": {
            name: Backbone(model=f"hashing:{n}") for n, name in enumerate(("mini", "large", "idle"), 8)
        },
        "costs": {"steps": {**dict.fromkeys(SPECS, 1.0), "none": 0.0}, "seconds": SECONDS},
        "measure": "R@4",
        "manifest": {"corpus": "c0ffee"},
        **fields,
    }
    write_matrix(folder / "scores", MatrixArms(SPECS, **given), [(questions, scores.T)])
    return folder / "scores"


def choose(folder: Path, scores: Path, **settings: Any) -> tuple[PortfolioReport, str]:
    console = Console(file=StringIO(), width=200)
    report = select_portfolio(
        PortfolioSelection.model_validate({"scores": scores, "output": folder / "out", "k": 2, **settings}),
        console,
    )
    assert isinstance(console.file, StringIO)
    return report, console.file.getvalue()


def test_of_two_arms_that_find_the_same_the_cheaper_one_is_chosen_and_keeps_its_price(tmp_path: Path) -> None:
    same = world()
    same[1] = same[0]
    specs = {
        **SPECS,
        "words": SPECS["words"].model_copy(update={"usd": 0.002}),
        "mini": SPECS["mini"].model_copy(update={"usd": 0.001}),
    }
    dollars = {name: ArmGraph(specs).estimate_usd(name) for name in specs}
    questions = [Question(f"q{i}", "?") for i in range(same.shape[1])]
    backbones = {name: Backbone(model="hashing:8") for name in ("mini", "large")}
    table = MatrixArms(specs, backbones, {"usd": {**dollars, "large": 0.01}}, "R@4", {})
    write_matrix(tmp_path / "scores", table, [(questions, same.T)])
    report, _ = choose(tmp_path, tmp_path / "scores", budget=0.002, cost="usd")
    assert (report.arms, report.spent) == (("mini",), 0.001)
    portfolio = yaml.safe_load((tmp_path / "out" / "portfolio.yaml").read_text())
    assert portfolio["arms"]["mini"]["usd"] == 0.001


@pytest.mark.slow
def test_arms_that_complement_each_other_are_chosen_and_judged_on_other_questions(tmp_path: Path) -> None:
    report, _ = choose(tmp_path, keep(tmp_path, world()))
    assert report.arms == ("words", "mini")
    assert report.average == ("words", "fused")
    assert report.algorithm == "greedy"
    assert report.pool == 5
    assert report.chosen.questions + report.held_out.questions == 400
    held_out = report.held_out
    assert held_out.portfolio[1] > held_out.average[1] > held_out.single
    assert held_out.oracle > held_out.portfolio[1]
    assert held_out.lead is not None
    low, high = held_out.lead[1]
    assert 0.0 < low < held_out.difference < high
    assert held_out.lead[0][0] <= held_out.portfolio[0] - held_out.average[0] <= held_out.lead[0][1]
    assert report.splits == (held_out,)


def halves(*arms: tuple[float, float], n: int = 100) -> Scores:
    """Give each arm one score on all questions of the first data set, and one on those of the second."""
    first = np.arange(n) < n // 2
    rows = [np.where(first, *arm) for arm in (*arms, *[(0.0, 0.0)] * (len(SPECS) - len(arms)))]
    return np.array(rows, dtype=np.float32)


def test_the_figures_can_be_worked_out_in_the_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both parts hold as many questions of each data set, and so show the same values."""
    monkeypatch.setattr("armwise.agent.lab.offline.choose_portfolio.BUDGETS", 2)
    scores = keep(tmp_path, halves((1.0, 0.0), (0.0, 0.5), (0.5, 0.25)))
    report, said = choose(tmp_path, scores, k=3, cost="steps")
    assert report.arms == ("words", "mini")  # large adds nothing to these
    assert report.average == ("words", "large", "mini")
    for part in (report.chosen, report.held_out):
        assert part.questions == 50
        assert part.portfolio == (0.5, 0.75, 0.75)
        assert part.average == (0.5, 0.625, 0.75)
        missed = 1.0 - 0.025 ** (1 / 50)  # other arms that score alike on 50 questions may differ on others
        assert part.lead == (
            (0.0, 0.0),
            pytest.approx((0.125, 0.125), abs=0.06),
            pytest.approx((-missed, missed)),
        )
        assert (part.single, part.oracle, part.difference) == (0.5, 0.75, 0.0)
    assert {name: part.portfolio for name, part in report.datasets.items()} == {
        NQ: (1.0, 1.0, 1.0),
        SQUAD: (0.0, 0.5, 0.5),
    }
    assert report.datasets[SQUAD].average == (0.0, 0.25, 0.5)
    assert (report.cost, report.spent) == ("steps", 2.0)
    assert [(row.budget, row.arms) for row in report.budgets] == [(1.0, ("words",)), (2.0, ("words", "mini"))]
    assert [(row.chosen, row.held_out, row.average) for row in report.budgets] == [
        (0.5, 0.5, 0.5),
        (0.75, 0.75, 0.625),
    ]
    assert report.known is None
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in said.splitlines() if "│" in line]
    assert [row[:4] for row in rows if row[0] in ("1", "2", "3")] == [
        ["1", "words", "0.500", "0.500"],
        ["2", "mini", "0.750", "0.625"],
        ["3", "", "0.750", "0.750"],
        ["1", "1", "0.500", "0.500"],  # the budgets
        ["2", "2", "0.750", "0.750"],
    ]
    for shown in (
        "R@4",
        "best single arm",
        "oracle of all 5",
        "0.750",
        "+0.125",
        NQ,
        SQUAD,
        "by budget in steps",
    ):
        assert shown in said
    assert report.bound is not None
    assert f"less {report.bound.error:.3f}: it was chosen on 50 questions" in said


def test_the_configuration_has_all_that_the_arms_need_and_no_more(tmp_path: Path) -> None:
    scores = keep(tmp_path, halves((0.0, 0.0), (0.0, 0.5), (0.0, 0.0), (1.0, 0.0)))
    choose(tmp_path, scores)
    text = (tmp_path / "out" / "portfolio.yaml").read_text()
    document = yaml.safe_load(text)
    assert document == {
        "arms": {
            "fused": {"kind": "rrf", "params": {"arms": ["words", "mini"]}},
            "words": {"kind": "bm25", "action": False},
            "mini": {"kind": "dense", "params": {"backbone": "mini"}},
        },
        "backbones": {"mini": {"model": "hashing:8"}},
    }
    specs = {name: ArmSpec.model_validate(spec) for name, spec in document["arms"].items()}
    ArmGraph(specs).validate(document["backbones"])
    header = [line for line in text.splitlines() if line.startswith("#")]
    assert "2 of 5 arms, chosen by greedy for R@4 on 50 questions" in header[0]
    assert "parts of arms that were: words" in header[-1]
    assert "# corpus: c0ffee" in header


@pytest.mark.slow
def test_all_results_are_written_and_earlier_ones_replaced(tmp_path: Path) -> None:
    scores = keep(tmp_path, world())
    choose(tmp_path, scores, k=1)
    report, _ = choose(tmp_path, scores, k=3)
    out = tmp_path / "out"
    assert sorted(path.name for path in out.iterdir()) == [
        "portfolio.json",
        "portfolio.png",
        "portfolio.yaml",
    ]
    figures = orjson.loads((out / "portfolio.json").read_bytes())
    assert tuple(figures["arms"]) == report.arms
    assert figures["held_out"]["portfolio"] == list(report.held_out.portfolio)
    assert report.bound is not None
    assert figures["bound"]["needed"] == report.bound.needed
    height, width, _ = imread(out / "portfolio.png").shape
    assert width > 2 * height > 1000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "scores"]


def test_nothing_is_written_when_an_arm_cannot_be_described(tmp_path: Path) -> None:
    specs = {"alone": ArmSpec(kind="rrf", params={"arms": ["a", "b"]})}
    table = MatrixArms(specs, {}, {}, "R@4", {})
    blocks = [([Question(f"q{i}", "?") for i in range(4)], np.ones((4, 1), np.float32))]
    write_matrix(tmp_path / "scores", table, blocks)
    with pytest.raises(ValueError, match="unknown arm 'a'"):
        choose(tmp_path, tmp_path / "scores", k=1)
    assert [path.name for path in tmp_path.iterdir()] == ["scores"]


@pytest.mark.slow
def test_a_failed_write_leaves_earlier_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = keep(tmp_path, world())
    choose(tmp_path, scores, k=1)
    before = {path: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    (tmp_path / "empty").mkdir()
    write_bytes = Path.write_bytes

    def full(path: Path, content: bytes) -> int:
        if path.suffix == ".yaml":
            raise error
        return write_bytes(path, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    error: BaseException = OSError("no space left on device")
    for name in ("out", "new/deeper", "empty"):
        with pytest.raises(OSError, match="no space left"):
            choose(tmp_path, scores, k=2, output=tmp_path / name)
    error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        choose(tmp_path, scores, k=2, output=tmp_path / "interrupted")
    assert {path: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "out", "scores"]
    assert list((tmp_path / "empty").iterdir()) == []


@pytest.mark.slow
def test_a_choice_can_be_made_again(tmp_path: Path) -> None:
    scores = keep(tmp_path, world())
    assert choose(tmp_path, scores, seed=3)[0] == choose(tmp_path, scores, seed=3)[0]
    assert choose(tmp_path, scores, seed=3)[0].held_out != choose(tmp_path, scores, seed=4)[0].held_out


@pytest.mark.slow
def test_several_splits_tell_how_much_the_figures_move_and_leave_the_choice_as_it_was(tmp_path: Path) -> None:
    scores = keep(tmp_path, world())
    one, _ = choose(tmp_path, scores)
    several, said = choose(tmp_path, scores, splits=4)
    assert several.splits[0] == several.held_out == one.held_out
    assert (several.arms, several.chosen) == (one.arms, one.chosen)
    assert len({split.portfolio for split in several.splits}) == 4
    assert "over 4 splits" in said
    spread = float(np.std([split.difference for split in several.splits]))
    assert f"{np.mean([split.difference for split in several.splits]):.3f}" in said
    assert f"{spread:.3f}" in said


@pytest.mark.slow
def test_a_budget_buys_what_is_worth_its_price(tmp_path: Path) -> None:
    report, said = choose(tmp_path, keep(tmp_path, world()), budget=0.3)
    assert report.algorithm == "knapsack"
    assert set(report.arms) == {"words", "mini"}
    assert report.cost == "seconds"
    assert report.spent == pytest.approx(0.3)
    assert report.average == ("words", "mini", "none")
    assert report.bound is not None
    assert report.bound.factor == selection.KNAPSACK
    assert report.bound.error == selection.sample_error(
        200, k=3, n_arms=5, delta=0.05, factor=selection.KNAPSACK
    ), "3 cost 0.3"
    assert report.bound.needed == selection.sample_size(
        0.05, k=3, n_arms=5, delta=0.05, factor=selection.KNAPSACK
    )
    assert report.budgets[-1].budget == pytest.approx(0.3)
    assert report.budgets[-1].arms == report.arms
    assert [row.chosen for row in report.budgets] == sorted(row.chosen for row in report.budgets)
    assert "by budget in seconds" in said


@pytest.mark.slow
def test_the_best_single_arm_is_that_of_all_whatever_it_costs(tmp_path: Path) -> None:
    scores = keep(tmp_path, halves((0.25, 0.5), (0.25, 0.25), (1.0, 0.75)))
    report, _ = choose(tmp_path, scores, budget=0.3)
    assert report.average == ("words", "mini", "none"), "large costs more"
    assert (report.chosen.single, report.held_out.single) == (0.875, 0.875)
    assert {name: part.single for name, part in report.datasets.items()} == {NQ: 1.0, SQUAD: 0.75}


def test_a_log_that_knows_one_arm_a_question_is_enough(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    whole = world(2000)
    log = np.full(whole.shape, np.nan, dtype=np.float32)
    drawn, asked = rng.integers(0, 4, 2000), np.arange(2000)
    log[drawn, asked] = whole[drawn, asked]
    log[:, 7] = np.nan
    report, said = choose(tmp_path, keep(tmp_path, log), splits=2)
    assert set(report.arms) == {"words", "mini"}
    known = report.known
    assert known is not None
    assert known.share == pytest.approx(0.25)
    assert known.arms_left_out == ("none",)
    assert known.questions_left_out == 1
    assert sum(known.support) == pytest.approx(500, abs=60)
    assert known.low < report.held_out.portfolio[-1] < known.high
    assert report.bound is None
    parts = (report.chosen, report.held_out, *report.datasets.values(), *report.splits)
    assert [part.lead for part in parts] == [None] * 6
    figures = orjson.loads((tmp_path / "out" / "portfolio.json").read_bytes())
    assert (figures["bound"], figures["held_out"]["lead"]) == (None, None)
    assert "With probability" not in said
    assert "so there are no intervals, and nothing is proved of new questions" in said
    assert "95 %" not in said
    assert f"{report.held_out.difference:+.3f}" in said
    assert "25.0% of the scores are known" in said
    assert "1 questions without any known score are left out" in said
    assert "Arms without any known score are left out: none" in said


def test_what_is_left_out_whole_takes_nothing_from_what_is_proved_of_the_rest(tmp_path: Path) -> None:
    scores = world()
    scores[2] = np.nan
    scores[:, 7] = np.nan
    report, said = choose(tmp_path, keep(tmp_path, scores))
    assert report.bound is not None
    assert report.held_out.lead is not None
    assert report.known is not None
    assert (report.known.share, report.known.arms_left_out) == (1.0, ("large",))
    assert "With probability 0.95" in said
    assert "1 questions without any known score are left out" in said
    assert "Arms without any known score are left out: large" in said
    assert "of the scores are known" not in said


def test_an_arm_that_is_only_known_on_questions_held_out_is_not_chosen(tmp_path: Path) -> None:
    scores = world()
    matrix = read_matrix(keep(tmp_path, scores))
    pool = Pool.from_matrix(matrix, None)
    cut = pool.split(0.5, np.random.default_rng(0))
    pool.scores[0, :cut] = np.nan
    chosen, held_out = pool.halves(cut)
    assert not chosen[0].any()
    assert held_out[0].any()


def test_a_split_keeps_scores_and_questions_together_and_every_data_set_in_proportion() -> None:
    n = 90
    scores = np.zeros((5, n), dtype=np.float32)
    scores[0] = np.arange(n) / n
    sizes = {"a": 60, "b": 27, "c": 3}
    questions = [
        Question(f"{name}{i}", "?", dataset=name) for name, size in sizes.items() for i in range(size)
    ]
    table = MatrixArms(SPECS, {}, {}, "R@4", {})
    pool = Pool.from_matrix(ScoreMatrix(tuple(questions), table, scores), None)
    assert (pool.cost, pool.costs, pool.datasets) == (None, None, ("a", "b", "c"))
    seen = set()
    for seed in range(5):
        cut = pool.split(1 / 3, np.random.default_rng(seed))
        was = np.round(pool.scores[0] * n).astype(int)
        assert sorted(was) == list(range(n))
        assert [questions[i].dataset for i in was] == [pool.datasets[group] for group in pool.groups]
        held_out = np.bincount(pool.groups[cut:], minlength=3)
        assert np.abs(held_out - [20, 9, 1]).max() <= 1
        seen.add(tuple(was[cut:]))
    assert len(seen) == 5


@pytest.mark.parametrize(
    ("n", "fields", "settings", "message"),
    [
        (400, {}, {"k": 6}, "k is 6; it must be from 1 to the number of arms, 5"),
        (400, {}, {"budget": 0.05}, "budget 0.05 is too small.* costs 0.1"),
        (400, {}, {"budget": 1.0, "cost": "euros"}, "no cost 'euros'"),
        (400, {"costs": {}}, {"budget": 1.0}, "a budget needs costs"),
        (1, {}, {}, "1 questions cannot be split"),
    ],
)
def test_settings_that_do_not_fit_the_matrix_are_refused(
    tmp_path: Path, n: int, fields: dict[str, Any], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        choose(tmp_path, keep(tmp_path, world(n), **fields), **settings)
    assert not (tmp_path / "out").exists()


def test_without_costs_there_are_no_budgets(tmp_path: Path) -> None:
    assert choose(tmp_path, keep(tmp_path, world(), costs={}))[0].budgets == ()


@pytest.mark.parametrize("bad", [{"k": 0}, {"held_out": 1.0}, {"budget": -1}, {"splits": 0}, {"x": 1}])
def test_settings_out_of_their_range_are_refused(tmp_path: Path, bad: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(bad))):
        PortfolioSelection.model_validate({"scores": tmp_path, "output": tmp_path, **bad})


def test_the_smaller_of_two_sets_stands_for_its_larger_ones() -> None:
    scores = np.eye(3, dtype=np.float32)
    outcomes = ComparedScores.from_picks(scores, (2,), (0, 1), 1)
    assert outcomes.portfolio.tolist() == [[0, 0, 1], [0, 0, 1]]
    assert outcomes.average.tolist() == [[1, 0, 0], [1, 1, 0]]
    assert outcomes.single.tolist() == [0, 1, 0]
    assert outcomes.oracle.tolist() == [1, 1, 1]


def test_the_chances_of_scores_stay_with_their_questions() -> None:
    rng = np.random.default_rng(0)
    known = rng.random((5, 40), dtype=np.float32)
    scores = np.where(rng.random(known.shape) < 0.5, known, np.float32(np.nan))
    scores[4] = np.nan
    scores[:, 7] = np.nan
    questions = tuple(Question(f"q{i}", "?", dataset=(NQ, SQUAD)[i % 2]) for i in range(40))
    backbones = {name: Backbone(model=f"hashing:{n}") for n, name in enumerate(("mini", "large"), 8)}
    table = MatrixArms(SPECS, backbones, {}, "thumb", {})
    pool = Pool.from_matrix(ScoreMatrix(questions, table, scores, known), None)
    pool.split(0.5, rng)
    assert pool.chances is not None
    assert pool.chances.shape == pool.scores.shape < (5, 40)
    some = ~np.isnan(pool.scores)
    np.testing.assert_array_equal(pool.chances[some], pool.scores[some])


def test_a_portfolio_of_a_log_goes_by_the_chances_of_its_scores() -> None:
    rng, n = np.random.default_rng(0), 8000
    kind = rng.integers(3, size=n)
    worth = np.array([[0.9, 0.3, 0.3], [0.3, 0.9, 0.3], [0.6, 0.6, 0.6]])[:, kind]
    chances = np.array([[0.8, 0.1, 0.3], [0.1, 0.8, 0.3], [0.1, 0.1, 0.4]], dtype=np.float32)[:, kind]
    drawn = (rng.random(n) > chances.cumsum(axis=0)).sum(axis=0).clip(max=2)
    log, asked = np.full(worth.shape, np.nan, dtype=np.float32), np.arange(n)
    log[drawn, asked] = rng.random(n) < worth[drawn, asked]
    table = MatrixArms(
        {name: SPECS[name] for name in ("words", "none")} | {"other": SPECS["words"]}, {}, {}, "thumb", {}
    )
    questions = tuple(Question(f"q{i}", "?") for i in range(n))
    best = []
    for known in (chances, None):
        pool = Pool.from_matrix(
            ScoreMatrix(questions, table, log.copy(), None if known is None else known.copy()), None
        )
        chosen, held_out = pool.halves(pool.split(0.5, np.random.default_rng(1)))
        best.append([int(part.mean(axis=1).argmax()) for part in (chosen, held_out)])
    assert best[0] == [2, 2]
    assert 2 not in best[1]


# -- arms that stay -----------------------------------------------------------------------------------------


def near_tie(n: int = 400) -> Scores:
    """`large` finds what `mini` finds, but for one question in a hundred."""
    scores = world(n)
    scores[2] = scores[1]
    scores[2, ::100] = 0.0
    return scores


def test_arms_stay_unless_others_are_certainly_better(tmp_path: Path) -> None:
    scores = keep(tmp_path, near_tie())
    free, _ = choose(tmp_path, scores)
    assert set(free.arms) == {"words", "mini"}
    assert free.rejected is None
    report, printed = choose(tmp_path, scores, keep=("words", "large"))
    assert set(report.arms) == {"words", "large"}
    assert report.average == free.average, "the best by their means, as many as stay"
    assert report.rejected is not None
    assert set(report.rejected.arms) == {"words", "mini"}
    assert report.rejected.interval[0] <= 0.0 <= report.rejected.lead < 0.05
    assert "words, large stay: " in printed
    assert set(yaml.safe_load((tmp_path / "out" / "portfolio.yaml").read_text())["arms"]) == {
        "words",
        "large",
    }


def test_arms_that_are_certainly_worse_are_replaced(tmp_path: Path) -> None:
    report, _ = choose(tmp_path, keep(tmp_path, world()), keep=("words", "large"))
    assert (set(report.arms), report.rejected) == ({"words", "mini"}, None)


@pytest.mark.parametrize(
    "settings",
    [
        {"keep": ("words", "large", "fused")},
        {"keep": ("words", "gone")},
        {"keep": ("mini", "words")},
        {"keep": ("words", "large"), "k": 2, "budget": 0.35, "cost": "seconds"},
    ],
    ids=["more than k", "not scored", "the same", "above the budget"],
)
def test_arms_that_cannot_stay_bind_no_choice(tmp_path: Path, settings: dict[str, Any]) -> None:
    report, _ = choose(tmp_path, keep(tmp_path, near_tie()), **settings)
    assert (set(report.arms), report.rejected) == ({"words", "mini"}, None)


def test_without_all_scores_no_arm_stays(tmp_path: Path) -> None:
    scores = near_tie()
    scores[4, 0] = np.nan
    report, _ = choose(tmp_path, keep(tmp_path, scores), keep=("words", "large"))
    assert (set(report.arms), report.rejected) == ({"words", "mini"}, None)
