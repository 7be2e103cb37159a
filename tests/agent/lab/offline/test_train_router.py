"""Training a router as a user does: from outcomes to a folder, with figures of what was held out."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from armwise.agent.cli.main import app
from armwise.agent.config import AppConfig, load, parse
from armwise.agent.lab.offline import (
    Training,
    join_outcomes,
    observe_features,
    read_labelled,
    router_spec,
    train_router,
)
from armwise.agent.lab.offline.labelled_data import find_writing
from armwise.agent.lab.routers import validation
from armwise.agent.routers import RouterError, Stage, Trained, build_router, read_trained
from armwise.agent.routers.utility import Utility
from armwise.agent.serving.router_scores import RouterScorer
from armwise.arms.base import Progress, Query, Retrieval
from armwise.arms.corpus import Corpus, ingest
from armwise.arms.indexes import PassageVectors
from armwise.arms.lab.portfolio import MatrixArms, Outcomes, write_matrix
from armwise.arms.lab.portfolio import outcomes as portfolio_outcomes
from armwise.arms.models import Backbone, build_embedder
from armwise.arms.questions import Question
from armwise.arms.retrievers import ArmSpec
from tests.agent.fakes import CONFIG
from tests.neighbours import SUBJECTS, write_corpus

ARMS = ("none", "bm25", "dense")
BEST = {"who": "none", "when": "bm25", "where": "dense"}
STEPS = {"none": 0.0, "bm25": 1.0, "dense": 2.0}
LEARNED: dict[str, Any] = {"kind": "pairwise_xgboost", "params": {"stage": "question", "dims": 0}}


def outcomes(n: int = 60, **changes: Any) -> list[portfolio_outcomes.Outcome]:
    """The first word of a question tells which arm answers it; each finds three passages."""
    rows = []
    for number in range(n):
        word = list(BEST)[number % 3]
        question = Question(f"q{number}", f"{word} saw the {SUBJECTS[number % 12]} {number}?")
        for arm in ARMS:
            right = float(BEST[word] == arm)
            found = (
                () if arm == "none" else tuple(f"p{(number + ARMS.index(arm) + i) % 12}" for i in range(3))
            )
            told: dict[str, Any] = {
                "passages": found,
                "answer": arm,
                "scores": {"em": right, "f1": 0.2 + 0.8 * right, "recall": float(arm != BEST[word])},
                "costs": {"steps": STEPS[arm]},
            }
            rows.append(portfolio_outcomes.Outcome(question, arm, **(told | changes)))
    return rows


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AppConfig:
    """A corpus of twelve passages and a backbone that hashes words; questions are read in blocks."""
    monkeypatch.delenv("ARMWISE_HOME", raising=False)
    monkeypatch.setattr("armwise.agent.lab.offline.router_features.BLOCK", 7)
    source = write_corpus(tmp_path / "corpus.jsonl")
    return parse(
        {**CONFIG, "home": str(tmp_path / "home"), "corpus": {"name": "small", "source": str(source)}}
    )


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    """A file of outcomes."""
    portfolio_outcomes.write_outcomes(tmp_path / "outcomes.jsonl", outcomes())
    return tmp_path / "outcomes.jsonl"


def train(config: AppConfig, *paths: Path, **fields: Any) -> tuple[Trained, str]:
    """Train, and return the router with what was printed."""
    output = StringIO()
    given = {"config": config, "outcomes": paths, "router": LEARNED, "output": config.home_path / "router"}
    on_progress: Progress = fields.pop("on_progress", lambda *_: None)
    done = train_router(Training.model_validate(given | fields), Console(file=output, width=120), on_progress)
    return done, output.getvalue()


# -- what comes of it ----------------------------------------------------------------------------------


def test_a_trained_router_chooses_well_on_held_out_questions(config: AppConfig, labelled: Path) -> None:
    made, said = train(config, labelled)
    held_out = made.about.held_out
    assert held_out is not None
    assert held_out["questions"] == 12
    assert held_out["gap"] > 0.9
    assert held_out["arms"].keys() == set(ARMS)
    assert "12 questions that were held out" in said
    assert f"the router closes {held_out['gap']:.1%} of the gap between {held_out['single']}" in said
    assert sum(held_out["picks"].values()) == pytest.approx(1.0)
    assert any("none" in line and f"{held_out['picks']['none']:.1%}" in line for line in said.splitlines())
    read = read_trained(config.home_path / "router")
    assert read.about == made.about
    best = read.router.scores(sight(config, outcomes(6)).features).argmax(axis=1)
    assert [ARMS[arm] for arm in best] == ["none", "bm25", "dense"] * 2
    settled = config.resolve_places().model_dump(mode="json")
    assert parse({**settled, "router": {"path": str(config.home_path / "router")}}).router is not None


def sight(
    config: AppConfig, rows: Sequence[portfolio_outcomes.Outcome], stage: Stage = Stage.QUESTION
) -> Any:
    path = config.home_path.parent / "seen.jsonl"
    portfolio_outcomes.write_outcomes(path, rows)
    return observe_features(read_labelled([path]), config.resolve_places(), "tiny", stage, lambda *_: None)


def test_what_is_kept_says_what_it_follows_from(config: AppConfig, labelled: Path) -> None:
    fields = {"measures": {"em": 1.0}, "cost_weight": 0.1, "over": "none", "scale": "minmax"}
    about = train(config, labelled, utility=fields)[0].about
    assert (about.kind, about.stage, about.arms) == ("pairwise_xgboost", "question", ARMS)
    assert (about.backbone, about.encoder, about.query_prefix) == ("tiny", "hashing-16-3", "")
    assert (about.k, about.corpus, about.questions) == (0, None, 60)
    assert about.utility == Utility.model_validate(fields).model_dump(mode="json")
    assert list(about.inputs) == [str(labelled)]
    before = about.inputs
    portfolio_outcomes.write_outcomes(labelled, outcomes(57))
    assert train(config, labelled)[0].about.inputs != before


def test_the_router_does_not_depend_on_what_is_held_out(config: AppConfig, labelled: Path) -> None:
    first, second, third = (
        train(config, labelled, **fields)[0] for fields in ({}, {"folds": 4}, {"held_out": 0.0})
    )
    assert first.about.digest == second.about.digest == third.about.digest
    assert second.about.held_out is not None
    assert second.about.held_out["questions"] == 60, "each is held out once"
    assert third.about.held_out is None


def test_what_was_retrieved_may_teach_a_router_too(config: AppConfig, labelled: Path) -> None:
    capability = {"kind": "capability"}
    without, with_it = (
        train(config, labelled, router=capability, quality=quality, held_out=0.0)[0]
        for quality in (None, "recall")
    )
    assert with_it.about.digest != without.about.digest


def test_questions_of_one_text_are_held_out_together(config: AppConfig, tmp_path: Path) -> None:
    twice = [
        replace(row, question=replace(row.question, id=f"{row.question.id}-{copy}"))
        for row in outcomes(15)
        for copy in "ab"
    ]
    portfolio_outcomes.write_outcomes(tmp_path / "twice.jsonl", twice)
    made, _ = train(config, tmp_path / "twice.jsonl", held_out=0.2)
    assert made.about.held_out is not None
    assert made.about.held_out["questions"] == 6


def test_each_question_may_be_a_fold_of_its_own(config: AppConfig, tmp_path: Path) -> None:
    portfolio_outcomes.write_outcomes(tmp_path / "few.jsonl", outcomes(6))
    made, _ = train(config, tmp_path / "few.jsonl", folds=6)
    assert made.about.held_out is not None
    assert made.about.held_out["questions"] == 6


def test_a_fit_reports_how_many_parts_of_all_are_done(config: AppConfig, labelled: Path) -> None:
    steps: list[tuple[str, int, int | None]] = []
    train(config, labelled, folds=3, on_progress=lambda *step: steps.append(step))
    assert [step for step in steps if step[0] == "fitting to a part"] == [
        ("fitting to a part", done, 3) for done in (1, 2, 3)
    ]


def test_an_arm_of_which_nothing_is_known_is_left_out_and_named(config: AppConfig, tmp_path: Path) -> None:
    rows = outcomes()
    rows += [portfolio_outcomes.Outcome(row.question, "away", error="it is away") for row in rows[::3]]
    portfolio_outcomes.write_outcomes(tmp_path / "rows.jsonl", rows)
    made, said = train(config, tmp_path / "rows.jsonl")
    assert made.about.arms == ARMS
    assert "left out, as their utility is unknown on every question: away" in said


def test_without_complete_questions_nothing_is_validated(config: AppConfig, tmp_path: Path) -> None:
    rows = outcomes(60)
    missing = {BEST["who"]: "bm25", BEST["when"]: "dense", BEST["where"]: "none"}
    best = [row.arm for row in rows if row.scores["em"] == 1.0]
    partly = [row for number, row in enumerate(rows) if row.arm != missing[best[number // 3]]]
    portfolio_outcomes.write_outcomes(tmp_path / "rows.jsonl", partly)
    made, said = train(config, tmp_path / "rows.jsonl")
    assert made.about.held_out is None
    assert "not validated: no held-out question has the outcomes of every arm" in said
    portfolio_outcomes.write_outcomes(tmp_path / "rows.jsonl", partly[:60] + rows[90:])
    made, _ = train(config, tmp_path / "rows.jsonl", folds=3)
    assert made.about.held_out is not None
    assert made.about.held_out["questions"] == 30, "those that are known for every arm"


# -- what a router is shown ----------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["question", "retrieved"])
def test_a_router_sees_in_service_what_it_learned(config: AppConfig, labelled: Path, stage: str) -> None:
    spec = {**LEARNED, "params": {**LEARNED["params"], "stage": stage}}
    made, _ = train(config, labelled, router=spec)
    rows = outcomes(9)
    shown = sight(config, rows, made.router.stage)
    expected = made.router.scores(shown.features)
    settled = config.resolve_places()

    async def look(_backbone: str, ids: Sequence[str]) -> Mapping[str, Any]:
        return PassageVectors(corpus, settled.indexes_path, settled.backbones["tiny"]).look_up(ids)

    corpus = ingest(settled.corpus.source, settled.corpus_sources[0].folder)
    scorer = RouterScorer(made, look, 1.0)
    embedder = build_embedder(config.backbones["tiny"])
    for number, scores in enumerate(expected):
        text = rows[3 * number].question.text
        query = Query(text, {"tiny": embedder.encode_queries([text])[0]})
        found = {
            row.arm: Retrieval(tuple(corpus.passages(corpus.positions(row.passages or ()))))
            for row in rows[3 * number : 3 * number + 3]
        }
        told = asyncio.run(scorer.scores(query, ARMS, found))
        assert [told[arm] for arm in ARMS] == pytest.approx(scores.tolist(), abs=1e-6)


def test_a_router_of_passages_is_charged_for_looking(config: AppConfig, labelled: Path) -> None:
    made, said = train(config, labelled, router={"kind": "max_sim"})
    assert made.about.k == 3
    assert made.about.corpus == Corpus.open(config.corpus_sources[0].folder).digest
    held_out = made.about.held_out
    assert held_out is not None
    assert held_out["router"]["steps"] == 3.0, "all arms search, whichever answers"
    assert held_out["oracle"]["steps"] < 3.0
    assert "all of them search before one is drawn" in said


def test_passages_that_are_not_of_the_corpus_count_as_not_found(config: AppConfig, tmp_path: Path) -> None:
    rows = [
        replace(row, passages=("web-1", *row.passages)) if row.arm == "dense" and row.passages else row
        for row in outcomes()
    ]
    portfolio_outcomes.write_outcomes(tmp_path / "rows.jsonl", rows)
    made, said = train(config, tmp_path / "rows.jsonl", router={"kind": "max_sim"})
    assert "1 passages not of corpus 'small' count as not found" in said
    own = sight(config, outcomes(), Stage.RETRIEVED).features.retrieved
    seen = sight(config, rows, Stage.RETRIEVED).features.retrieved
    np.testing.assert_array_equal(seen.values, own.values)
    assert made.about.k == 4


def test_a_router_that_compares_answers_is_served_in_an_arm(config: AppConfig, labelled: Path) -> None:
    spec = {**LEARNED, "params": {**LEARNED["params"], "stage": "answered"}}
    made, said = train(config, labelled, router=spec)
    assert made.about.stage == "answered"
    assert "serve it with" not in said
    assert "serve it as an arm   {kind: ensemble, params: {arms: [none, bm25, dense], select: learned" in said


def test_a_router_knows_only_the_arms_it_chooses_among(config: AppConfig, labelled: Path) -> None:
    two, _ = train(config, labelled, router={"kind": "max_sim"}, arms=["bm*", "dense"])
    assert two.about.arms == ("bm25", "dense")
    assert two.about.held_out is not None
    assert two.about.held_out["arms"].keys() == {"bm25", "dense"}
    assert two.about.held_out["router"]["steps"] == 3.0
    spec = {**LEARNED, "params": {**LEARNED["params"], "stage": "answered"}}
    alone, all_of_them = (
        train(config, labelled, router=spec, arms=arms)[0] for arms in (["bm25", "none"], ["*"])
    )
    assert alone.about.arms == ("none", "bm25"), "as they stand in the outcomes"
    (seen, whole) = (made.router.schema for made in (alone, all_of_them))
    assert seen is not None
    assert whole is not None
    assert set(whole.answered) - set(seen.answered) == {"same_as:dense"}


# -- figures -------------------------------------------------------------------------------------------


def known(em: Sequence[Sequence[float]], steps: Sequence[Sequence[float]]) -> Outcomes:
    n, arms = np.array(em).shape
    nothing = ((None,) * arms,) * n
    return Outcomes(
        tuple(Question(f"q{row}", f"{row}?") for row in range(n)),
        tuple("abcdef"[:arms]),
        {"em": np.array(em)},
        {"steps": np.array(steps)},
        nothing,
        nothing,
    )


EM = Utility(measures={"em": 1.0})


def test_the_figures_are_those_that_one_finds_by_hand() -> None:
    seen = known([[1, 0], [1, 0], [0, 1], [1, 1]], [[1, 2]] * 4)
    scores = np.array([[2.0, 1.0], [1.0, 2.0], [1.0, 2.0], [0.0, 0.0]])
    found = validation.validate_router(seen, scores, EM, Stage.QUESTION)
    assert found is not None
    assert (found.questions, found.single, found.gap) == (4, "a", 0.0)
    assert {arm: row.utility for arm, row in found.arms.items()} == {"a": 0.75, "b": 0.5}
    assert (found.router.utility, found.router.scores["em"]) == (0.75, 0.75)
    assert found.router.steps == pytest.approx((1 + 2 + 2 + 1.5) / 4), "ties are split"
    assert (found.oracle.utility, found.oracle.steps) == (1.0, pytest.approx((1 + 1 + 2 + 1.5) / 4))


def test_a_perfect_router_closes_the_gap_and_pays_for_looking() -> None:
    seen = known([[1, 0], [0, 1]], [[1, 2]] * 2)
    scores = seen.scores["em"]
    net = EM.model_copy(update={"cost_weight": 0.1})
    asked = validation.validate_router(seen, scores, net, Stage.QUESTION)
    looked = validation.validate_router(seen, scores, net, Stage.RETRIEVED)
    assert asked is not None
    assert looked is not None
    assert asked.gap == pytest.approx(1.0)
    assert asked.router.utility == pytest.approx(1.0 - 0.1 * 1.5)
    assert (looked.router.utility, looked.router.steps) == (pytest.approx(1.0 - 0.1 * 3), 3.0)
    assert looked.oracle == asked.oracle


def test_a_question_that_is_not_known_for_every_arm_does_not_count() -> None:
    seen = known([[1, 0], [np.nan, 1]], [[1, 1]] * 2)
    found = validation.validate_router(seen, seen.scores["em"], EM, Stage.QUESTION)
    assert found is not None
    assert found.questions == 1
    assert validation.validate_router(seen.only([1]), seen.scores["em"][1:], EM, Stage.QUESTION) is None


def test_where_the_cost_of_an_arm_is_not_known_that_of_looking_is_not() -> None:
    seen = known([[1, 0], [0, 1]], [[1, np.nan], [1, 2]])
    looked = validation.charge_stage(seen, Stage.RETRIEVED).costs["steps"]
    np.testing.assert_array_equal(looked, [[np.nan, np.nan], [3.0, 3.0]])
    paid = replace(seen, costs={"usd": np.array([[np.nan, 0.5], [np.nan, np.nan]])})
    money = validation.charge_stage(paid, Stage.ANSWERED).costs["usd"]
    np.testing.assert_array_equal(money, [[0.5, 0.5], [0.0, 0.0]], "who tells of no money charged none")


def test_what_a_search_alone_took_is_charged_or_said_not_to_be(config: AppConfig, tmp_path: Path) -> None:
    costs = {"steps": 1, "prompt_tokens": 90, "completion_tokens": 10, "retrieval_s": 0.5, "llm_s": 1.0}
    path = tmp_path / "costly.jsonl"
    portfolio_outcomes.write_outcomes(path, outcomes(costs=costs))
    prices = {"steps": 0.0, "kilotokens": 1.0, "seconds": 1.0}
    looking = {"kind": "pairwise_xgboost", "params": {"stage": "retrieved", "dims": 0, "rounds": 2}}
    net = {"cost_weight": 0.1, "cost": prices}
    line = "a turn pays the kilotokens of these searches"
    assert line in train(config, path, router=looking, utility=net)[1]
    assert line not in train(config, path, utility=net)[1], "a router of the question lets nobody search"
    assert line not in train(config, path, router=looking)[1], "nothing has a price"


def test_where_one_arm_is_always_best_there_is_no_gap() -> None:
    seen = known([[1, 0], [1, 1]], [[1, 1]] * 2)
    found = validation.validate_router(seen, np.zeros((2, 2)), EM, Stage.QUESTION)
    assert found is not None
    assert found.gap is None
    assert found.conclusion() == "no arm is better than a on any question"


@given(
    st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=3, max_size=3), min_size=1, max_size=8),
    st.integers(0, 2**32 - 1),
)
def test_a_router_earns_between_worst_arm_and_oracle(em: list[list[float]], seed: int) -> None:
    seen = known(em, [[0.0] * 3] * len(em))
    found = validation.validate_router(
        seen, np.random.default_rng(seed).normal(size=(len(em), 3)), EM, Stage.QUESTION
    )
    assert found is not None
    assert np.mean([min(row) for row in em]) - 1e-9 <= found.router.utility <= found.oracle.utility + 1e-9
    assert found.gap is None or found.gap <= 1.0 + 1e-9


# -- what it is trained on -----------------------------------------------------------------------------


def test_a_score_matrix_is_trained_on_by_its_measure(config: AppConfig, tmp_path: Path) -> None:
    specs = {arm: ArmSpec(kind="none") for arm in ARMS}
    costs = {"steps": dict.fromkeys(ARMS, 1.0)}
    table = MatrixArms(specs, {"tiny": Backbone(model="hashing:16")}, costs, "thumb of the log", {"a": "b"})
    rows = outcomes()
    questions = [row.question for row in rows[::3]]
    scores = np.array([row.scores["em"] for row in rows], dtype=np.float32).reshape(-1, 3)
    write_matrix(tmp_path / "scores", table, [(questions, scores)])
    made, _ = train(config, tmp_path / "scores", utility={"measures": {"thumb": 1.0}})
    assert made.about.held_out is not None
    assert made.about.held_out["gap"] > 0.9
    with pytest.raises(RouterError, match="no score 'f1' among the outcomes"):
        train(config, tmp_path / "scores")
    with pytest.raises(RouterError, match="the outcomes have no passages"):
        train(config, tmp_path / "scores", utility={"measures": {"thumb": 1.0}}, router={"kind": "moran"})


def test_outcomes_of_several_places_are_put_together(tmp_path: Path) -> None:
    rows = outcomes(6)
    parts = [rows[:9], [row for row in rows[9:] if row.arm != "dense"], [rows[11]]]
    paths = []
    for number, part in enumerate(parts):
        paths.append(tmp_path / f"{number}.jsonl")
        portfolio_outcomes.write_outcomes(paths[-1], part)
    portfolio_outcomes.write_outcomes(tmp_path / "all.jsonl", [row for part in parts for row in part])
    together, whole = read_labelled(paths), read_labelled([tmp_path / "all.jsonl"])
    assert (together.questions, together.arms) == (whole.questions, whole.arms)
    assert (together.passages, together.answers) == (whole.passages, whole.answers)
    assert together.passages[4][2] is None
    for name, values in {**whole.scores, **whole.costs}.items():
        np.testing.assert_array_equal({**together.scores, **together.costs}[name], values)


def test_places_may_have_other_arms_and_other_questions(tmp_path: Path) -> None:
    rows = outcomes(2)
    parts = [rows[0], rows[2]], [rows[4], rows[5]]
    for number, part in enumerate(parts):
        portfolio_outcomes.write_outcomes(tmp_path / f"{number}.jsonl", part)
    together = read_labelled([tmp_path / "0.jsonl", tmp_path / "1.jsonl"])
    assert together.arms == (rows[0].arm, rows[2].arm, rows[4].arm)
    assert [question.id for question in together.questions] == ["q0", "q1"]
    known = [[ids is not None for ids in row] for row in together.passages]
    assert known == [[True, True, False], [False, True, True]]
    assert together.scores["em"][1, 2] == rows[4].scores["em"]


def test_places_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    portfolio_outcomes.write_outcomes(tmp_path / "rows.jsonl", outcomes(2))
    one = read_labelled([tmp_path / "rows.jsonl"])
    with pytest.raises(RouterError, match="arm 'none' on question 'q0' stands in two places"):
        join_outcomes([one, one])
    other = replace(one, questions=(replace(one.questions[0], text="why?"), one.questions[1]))
    with pytest.raises(RouterError, match=r"'q0' is 'why\?' in one place, and 'who saw"):
        join_outcomes([one, other])


def test_missing_texts_come_from_the_questions(config: AppConfig, labelled: Path, tmp_path: Path) -> None:
    lines = [json.loads(line) for line in labelled.read_text().splitlines()]
    queries = {line["id"]: {"id": line["id"], "question": line.pop("question")} for line in lines}
    labelled.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(portfolio_outcomes.OutcomesError, match="question 'q0' has no text"):
        train(config, labelled)
    path = tmp_path / "queries.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in queries.values()))
    made, _ = train(config, labelled, queries=path)
    assert list(made.about.inputs) == [str(labelled), str(path)]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"backbone": "tinny"}, "backbone 'tinny' is not declared; did you mean 'tiny'"),
        ({"quality": "jdge"}, "no score 'jdge' among the outcomes"),
        ({"arms": ["none", "bm52"]}, "no arm of the outcomes is called 'bm52'; did you mean 'bm25'"),
        ({"arms": ["none"]}, r"labels of 1 arm \(none\); a choice needs at least two"),
        ({"router": {"kind": "max_sin"}}, "no router of kind 'max_sin'; did you mean 'max_sim'"),
        ({"utility": {"over": "nothing"}}, "'nothing' is unknown here"),
        ({"folds": 1000}, "60 questions are too few for 1000 folds"),
        ({"held_out": 0.001}, r"60 questions cannot be split so that 0\.001 of them is held out"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_kept(
    config: AppConfig, labelled: Path, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(RouterError, match=message):
        train(config, labelled, **fields)
    assert not (config.home_path / "router").exists()


def test_what_is_in_the_way_is_told_before_anything_is_embedded(
    config: AppConfig, labelled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(_: Backbone) -> None:
        raise AssertionError("nothing is to be embedded")

    monkeypatch.setattr("armwise.agent.lab.offline.router_features.build_embedder", never)
    for output in (labelled, labelled / "router"):
        with pytest.raises(RouterError, match=r"as .*outcomes\.jsonl is not a folder: choose another output"):
            train(config, labelled, output=output)
    portfolio_outcomes.write_outcomes(tmp_path / "rows.jsonl", outcomes(passages=None))
    with pytest.raises(RouterError, match="the outcomes have no passages"):
        train(config, tmp_path / "rows.jsonl", router={"kind": "max_sim"})


@pytest.mark.parametrize("manifest", ["{", "[]", '{"form": "short"}', '{"form": "loud"}', "1"])
def test_a_damaged_manifest_is_named(tmp_path: Path, manifest: str) -> None:
    (tmp_path / "manifest.json").write_text(manifest)
    with pytest.raises(RouterError, match=r"manifest\.json is damaged: "):
        find_writing([tmp_path])


def test_a_corpus_that_holds_none_of_the_passages_is_refused(config: AppConfig, tmp_path: Path) -> None:
    portfolio_outcomes.write_outcomes(tmp_path / "rows.jsonl", outcomes(passages=("web-1",)))
    with pytest.raises(
        RouterError, match="none of the 1 passages of the outcomes, such as 'web-1', is in corpus 'small'"
    ):
        train(config, tmp_path / "rows.jsonl", router={"kind": "max_sim"})


def test_without_a_backbone_there_is_no_router(config: AppConfig, labelled: Path) -> None:
    bare = parse({**config.model_dump(mode="json"), "backbones": {}, "arms": {"none": {"kind": "none"}}})
    with pytest.raises(RouterError, match="declare one in `backbones`"):
        train(bare, labelled)


def test_a_router_is_named_by_its_kind_or_by_a_file(tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text(yaml.safe_dump(LEARNED))
    assert router_spec(None, None, file).model_dump() == LEARNED
    assert router_spec("listnet", "answered", None).params == {"stage": "answered"}
    with pytest.raises(RouterError, match="its stage too: leave out 'answered'"):
        router_spec(None, "answered", file)
    assert router_spec("moran", None, None).kind == "moran"
    for kind, path in ((None, None), ("moran", file)):
        with pytest.raises(RouterError, match="either a kind or a file"):
            router_spec(kind, None, path)
    for text in ("kind: [", "params: {}", "[]"):
        file.write_text(text)
        with pytest.raises(RouterError, match=r"spec\.yaml describes no router"):
            router_spec(None, None, file)
    with pytest.raises(RouterError, match=r"none\.yaml describes no router"):
        router_spec(None, None, tmp_path / "none.yaml")


# -- the verb ------------------------------------------------------------------------------------------


def test_the_verb_trains_the_configured_router(config: AppConfig, labelled: Path, tmp_path: Path) -> None:
    target = tmp_path / "router"
    args = {**config.model_dump(mode="json"), "router": {"path": str(target)}}
    path, spec = tmp_path / "config.yaml", tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump({"applications": [{"args": args}]}))
    spec.write_text(yaml.safe_dump(LEARNED))
    words = ["lab", "train", labelled, "--spec", spec, "--measure", "em", "--measure", "f1=0.2"]
    words += ["--prior", "0.2"]
    words += ["--cost-weight", "0.1", "--over", "none", "--minmax", "--folds", "3", "-o", target, "-c", path]
    words += ["--arms", "none", "--arms", "bm*", "--arms", "dense"]
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    assert "60 questions that were held out" in result.output
    assert read_trained(target).about.arms == ARMS
    utility = read_trained(target).about.utility
    assert utility["measures"] == {"em": 1.0, "f1": 0.2}
    assert (utility["prior"], utility["cost_weight"], utility["over"]) == (0.2, 0.1, "none")
    assert (utility["scale"], utility["cost"]["steps"]) == ("minmax", 1.0)
    assert load(path).router is not None


def test_the_verb_says_in_a_line_what_is_wrong(config: AppConfig, labelled: Path, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({"applications": [{"args": config.model_dump(mode="json")}]}))
    target = tmp_path / "router"
    for words, told in (
        (["--router", "moran", "--measure", "em=high"], "--measure em=high: 'high' is not a number"),
        (["--router", "moran", "--measure", "em", "--measure", "em=2"], "--measure em is given twice: with"),
        (["--router", "moran", "--folds", "1"], "folds: Input should be greater than or equal to 2, got 1"),
        ([], "either a kind or a file must name the router"),
    ):
        command = ["lab", "train", str(labelled), *words, "-o", str(target), "-c", str(path)]
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 2
        assert told in result.output
    assert not target.exists()


@pytest.mark.parametrize("name", ["router_question", "router_answers"])
def test_an_example_describes_a_router(name: str) -> None:
    file = Path(__file__).parents[4] / "examples" / f"{name}.yaml"
    assert build_router(router_spec(None, None, file)).params["rounds" if "answers" in name else "router"]
