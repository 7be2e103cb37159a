"""Labels beside a router: they tell what the service would have been told, had nobody labelled them."""

from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from rich.console import Console

from armwise.agent.config import AppConfig, parse
from armwise.agent.lab.offline import (
    Training,
    observe_features,
    read_labelled,
    sample_profiles,
    train_router,
)
from armwise.agent.lab.warmstart import InsertSettings, make_contexts
from armwise.agent.lab.warmstart import insert_labels as enter_labels
from armwise.agent.lab.warmstart.labels import RouterScores, charge_searches, score_labelled
from armwise.agent.routers import RouterError, Stage, Trained, out_of_fold, read_trained
from armwise.arms import manifest
from armwise.arms.lab.portfolio import Outcomes
from armwise.arms.lab.portfolio import outcomes as portfolio_outcomes
from armwise.arms.models.embedding import HashingEmbedder
from armwise.arms.profile import similarities
from armwise.arms.questions import Question
from armwise.feedback.events import LABELS, Example
from armwise.feedback.log import Store
from armwise.feedback.reward import Prices
from armwise.feedback.training_log import Joiner, read_examples, take_epoch
from tests.agent.asking import look_up
from tests.agent.fakes import CONFIG, DIM, Service
from tests.agent.trained_routers import TEXTS, kept
from tests.neighbours import SUBJECTS, write_corpus

ARMS = ("none", "bm25", "dense")
STEPS = {"none": 0.0, "bm25": 1.0, "dense": 2.0}
TREES: dict[str, Any] = {
    "kind": "pointwise_xgboost",
    "params": {"stage": "question", "dims": 0, "rounds": 60},
}
LOOKING: dict[str, Any] = {"kind": "max_sim", "params": {}}


def silent(*_: object) -> None:
    """Tell of no progress."""


def rows(n: int, seed: int, failing: Sequence[tuple[int, str]] = ()) -> list[portfolio_outcomes.Outcome]:
    """Return what arms did on questions: any of them is right by chance, whatever the question."""
    right = np.random.default_rng(seed).integers(2, size=(n, len(ARMS))).tolist()
    found = []
    for row in range(n):
        question = Question(f"q{seed}-{row}", f"who saw the {SUBJECTS[row % 12]} {seed}-{row}?")
        for column, arm in enumerate(ARMS):
            passages = () if arm == "none" else tuple(f"p{(row + column + i) % 12}" for i in range(3))
            told: dict[str, Any] = {"error": "down"}
            if (row, arm) not in failing:
                told = {"scores": {"em": float(right[row][column])}, "costs": {"steps": STEPS[arm]}}
                told |= {"passages": passages, "answer": arm}
            found.append(portfolio_outcomes.Outcome(question, arm, **told))
    return found


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AppConfig:
    """A corpus of twelve passages, three arms, a backbone that hashes words, and no router."""
    monkeypatch.delenv("ARMWISE_HOME", raising=False)
    source = {"name": "small", "source": str(write_corpus(tmp_path / "corpus.jsonl"))}
    return parse({**CONFIG, "home": str(tmp_path / "home"), "corpus": source}).resolve_places()


def trained(config: AppConfig, router: dict[str, Any], outcomes: Path, **fields: Any) -> AppConfig:
    """Train a router, and return the configuration with it."""
    folder = config.home_path / "router"
    given = {"config": config, "outcomes": [outcomes], "router": router, "output": folder}
    given["utility"] = {"measures": {"em": 1.0}}
    train_router(Training.model_validate(given | fields), Console(file=StringIO()), silent)
    return parse({**config.model_dump(mode="json"), "router": {"path": str(folder)}})


def file_of(folder: Path, outcomes: Sequence[portfolio_outcomes.Outcome], name: str = "outcomes") -> Path:
    portfolio_outcomes.write_outcomes(folder / f"{name}.jsonl", outcomes)
    return folder / f"{name}.jsonl"


def asked(config: AppConfig, path: Path) -> tuple[RouterScores, Outcomes, Trained]:
    """Ask the router of a configuration of the questions of a file."""
    assert config.router is not None
    outcomes = read_labelled([path])
    return score_labelled(outcomes, config, silent), outcomes, read_trained(config.router.path)


def table(advice: RouterScores) -> NDArray[np.float64]:
    return np.array([[told[arm] for arm in ARMS] for told in advice.scores])


def warmed(config: AppConfig, path: Path, **fields: Any) -> str:
    """Enter labels into the log, and return what was said."""
    said = StringIO()
    given = {"config": config, "outcomes": path, "metrics": {"right": "em"}}
    enter_labels(InsertSettings.model_validate(given | fields), Console(file=said, width=150), silent)
    return said.getvalue()


def entered(config: AppConfig) -> list[Example]:
    """Return the labels of the log, as a learner reads them."""
    store = Store(config.database_url)
    Joiner(store, config.reward, take_epoch(store, "test", 0.0)).advance(1e12)
    found = list(read_examples(store, config.reward.join))
    store.close()
    return found


# -- what sources are about ----------------------------------------------------------------------------


def test_labels_and_routers_see_the_profile_of_each_source(config: AppConfig, tmp_path: Path) -> None:
    features = {"similarity": {"backbone": "tiny", "passages": 5}}
    config = parse({**config.model_dump(mode="json"), "features": features})
    profiles = sample_profiles(config, silent)
    assert profiles.keys() == config.arms.keys() - {"none"}
    assert {one.vectors.shape for every in profiles.values() for one in every if one.vectors is not None} == {
        (5, DIM)
    }
    (context,) = make_contexts(config, ["Which river?"], silent, None, profiles)
    vector = HashingEmbedder(DIM).encode_queries(["Which river?"])[0]
    near = similarities(profiles, "Which river?", vector)
    assert near.keys() == profiles.keys()
    assert {name: own["similarity"] for name, own in context.arms.items() if name in near} == near
    assert "similarity" not in context.arms["none"]
    outcomes = read_labelled([file_of(tmp_path, rows(6, seed=1))])
    seen = observe_features(outcomes, config, "tiny", Stage.QUESTION, silent).features
    assert seen.fit is not None
    for text, row in zip(seen.texts, seen.fit, strict=True):
        vector = HashingEmbedder(DIM).encode_queries([text])[0]
        fit = similarities({arm: profiles[arm] for arm in seen.arms if arm in profiles}, text, vector)
        total = sum(fit.values())
        assert row.tolist() == pytest.approx([fit.get(arm, 0.0) / total for arm in seen.arms])
    other = parse({**config.model_dump(mode="json"), "features": {}})
    assert sample_profiles(other, silent) == {}
    assert observe_features(outcomes, other, "tiny", Stage.QUESTION, silent).features.fit is None


# -- whose scores they are ---------------------------------------------------------------------------


async def test_a_label_tells_of_a_new_question_what_the_service_would_be_told(tmp_path: Path) -> None:
    folder = kept(tmp_path / "router", rounds=20, stage="question", kind="pointwise_xgboost")
    out_of_fold.write_out_of_fold(folder, read_trained(folder).about, TEXTS, np.full((len(TEXTS), 3), np.nan))
    embedding = {"embedding": {"backbone": "tiny", "dims": 4}}
    async with Service(tmp_path, router={"path": str(folder)}, features=embedding).running() as service:
        reply = await look_up(service, model="auto")
        record = service.replica.store.record(reply.json()["agent"]["decision_id"])
    assert record is not None
    live = record.decision.context
    outcomes = read_labelled(
        [file_of(tmp_path, [portfolio_outcomes.Outcome(Question("q", live.question), "bm25", ())])]
    )
    advice = score_labelled(outcomes, service.config, silent)
    (context,) = make_contexts(service.config, [live.question], silent, advice)
    assert {arm: told.keys() for arm, told in context.arms.items()} == {
        arm: told.keys() for arm, told in live.arms.items()
    }
    for arm, told in live.arms.items():
        assert context.arms[arm] == pytest.approx(told, abs=1e-6)
    assert (context.features, context.embedding) == (live.features, live.embedding)


def test_a_label_does_not_tell_what_the_router_knows_from_it(config: AppConfig, tmp_path: Path) -> None:
    """Rewards are chance here: a score that follows them is of a router that was fitted to them."""
    path = file_of(tmp_path, rows(120, seed=1))
    by_heart = {**TREES, "params": {**TREES["params"], "dims": 8, "rounds": 300}}
    config = trained(config, by_heart, path, folds=4)
    advice, outcomes, router = asked(config, path)
    fitted = router.router.scores(observe_features(outcomes, config, "tiny", Stage.QUESTION, silent).features)
    right = outcomes.scores["em"]
    assert advice.out_of_fold == 120
    assert np.corrcoef(fitted.ravel(), right.ravel())[0, 1] > 0.4
    assert abs(np.corrcoef(table(advice).ravel(), right.ravel())[0, 1]) < 0.2


def test_training_questions_have_out_of_fold_scores(config: AppConfig, tmp_path: Path) -> None:
    first, second = rows(24, seed=1), rows(6, seed=2)
    config = trained(config, TREES, file_of(tmp_path, first, "first"), folds=3)
    advice, outcomes, router = asked(config, file_of(tmp_path, [*second, *first], "both"))
    assert advice.out_of_fold == 24
    assert advice.summary() == (
        "the router scores 6 questions as in service, and 24 that it was trained on as routers that were not"
    )
    plain = router.router.scores(observe_features(outcomes, config, "tiny", Stage.QUESTION, silent).features)
    np.testing.assert_allclose(table(advice)[:6], plain[:6])
    assert config.router is not None
    unseen = out_of_fold.read_out_of_fold(config.router.path, router.about)
    texts = [question.text for question in outcomes.questions]
    trained_on, said = unseen.look_up(texts, len(ARMS))
    assert trained_on.tolist() == [False] * 6 + [True] * 24
    np.testing.assert_array_equal(table(advice)[6:], said[6:])
    assert not np.allclose(table(advice)[6:], plain[6:])


def test_only_live_arms_that_the_router_knows_have_scores(config: AppConfig, tmp_path: Path) -> None:
    path = file_of(tmp_path, rows(24, seed=1))
    config = trained(config, TREES, path, folds=3)
    arms = {"dense": CONFIG["arms"]["dense"], "words": {"kind": "bm25"}, "bm25": {"kind": "bm25"}}
    advice, outcomes, router = asked(parse({**config.model_dump(mode="json"), "arms": arms}), path)
    assert {tuple(told) for told in advice.scores} == {("dense", "bm25")}
    assert config.router is not None
    _, said = out_of_fold.read_out_of_fold(config.router.path, router.about).look_up(
        [outcomes.questions[5].text], 3
    )
    assert list(advice.scores[5].values()) == said[0, [2, 1]].tolist()


def test_a_router_that_reads_the_fit_of_sources_scores_the_live_arms_by_theirs(
    config: AppConfig, tmp_path: Path
) -> None:
    new = file_of(tmp_path, rows(6, seed=2), "new")
    config = parse({**config.model_dump(mode="json"), "features": {"similarity": {}}})
    config = trained(config, {"kind": "source_fit"}, file_of(tmp_path, rows(24, seed=1)), folds=3)
    live = {arm: CONFIG["arms"][arm] for arm in reversed(ARMS)}
    advice, _, _ = asked(parse({**config.model_dump(mode="json"), "arms": live}), new)
    for scores in advice.scores:
        assert [*scores] == [*live]
        assert scores == pytest.approx({"none": 0.0, "bm25": 0.5, "dense": 0.5}), "both search one source"


def test_an_arm_outside_the_configuration_fits_as_well_as_others(config: AppConfig, tmp_path: Path) -> None:
    config = parse({**config.model_dump(mode="json"), "features": {"similarity": {}}})
    others = [replace(row, arm="gone") if row.arm == "dense" else row for row in rows(6, seed=1)]
    outcomes = read_labelled([file_of(tmp_path, others)])
    seen = observe_features(outcomes, config, "tiny", Stage.QUESTION, silent).features
    assert seen.fit is not None
    at = [seen.arms.index(arm) for arm in ("none", "bm25", "gone")]
    np.testing.assert_allclose(seen.fit[:, at], [[0.0, 0.5, 0.5]] * 6)


# -- what is kept of training ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "known"), [({"folds": 4}, 20), ({"held_out": 0.25}, 5), ({"held_out": 0}, 0)]
)
def test_what_was_said_of_held_out_questions_is_kept(
    config: AppConfig, tmp_path: Path, fields: dict[str, Any], known: int
) -> None:
    path = file_of(tmp_path, rows(20, seed=1))
    config = trained(config, TREES, path, **fields)
    assert config.router is not None
    texts = [question.text for question in read_labelled([path]).questions]
    unseen = out_of_fold.read_out_of_fold(config.router.path, read_trained(config.router.path).about)
    trained_on, said = unseen.look_up([*texts, "another?"], 3)
    assert trained_on.tolist() == [True] * 20 + [False]
    assert (~np.isnan(said)).all(axis=1).sum() == known


def test_labels_of_which_the_router_knows_too_much_are_refused(config: AppConfig, tmp_path: Path) -> None:
    path = file_of(tmp_path, rows(20, seed=1))
    with pytest.raises(RouterError, match=r"trained on 15 of these 20 questions .* train it with --folds 5"):
        asked(trained(config, TREES, path, held_out=0.25), path)


def test_what_is_missing_damaged_or_of_another_router_is_refused(config: AppConfig, tmp_path: Path) -> None:
    path = file_of(tmp_path, rows(20, seed=1))
    config = trained(config, TREES, path, folds=2)
    assert config.router is not None
    file = config.router.path / out_of_fold.FILE
    line, *others = file.read_text().splitlines(keepends=True)
    for content, told in (
        ("".join([line.replace('"router":"', '"router":"x'), *others]), "is of router 'x"),
        (line + "{", "is damaged"),
        ("", "is damaged"),
        ("[]", "is damaged"),
    ):
        file.write_text(content)
        manifest.add(file.parent, [file.name])  # as the file was meant to be: what it says is looked at
        with pytest.raises(RouterError, match=told):
            asked(config, path)
    file.write_text("changed")
    with pytest.raises(RouterError, match=r"is damaged: 7 bytes instead of 2; train it again"):
        asked(config, path)
    file.unlink()
    with pytest.raises(RouterError, match=r"it is unknown what .* was trained on: .* train it again"):
        asked(config, path)


# -- a router that looks at what was retrieved ----------------------------------------------------------


def test_a_router_of_passages_sees_those_of_the_labels(config: AppConfig, tmp_path: Path) -> None:
    new = file_of(tmp_path, rows(6, seed=2, failing=[(3, "dense")]), "new")
    config = trained(config, LOOKING, file_of(tmp_path, rows(20, seed=1)), folds=2)
    advice, outcomes, router = asked(config, new)
    expected = router.router.scores(
        observe_features(outcomes, config, "tiny", Stage.RETRIEVED, silent).features
    )
    for row, told in enumerate(advice.scores):
        known = [arm for arm in ARMS if (row, arm) != (3, "dense")]
        assert list(told) == known, "an arm that failed was not scored"
        assert list(told.values()) == pytest.approx([expected[row, ARMS.index(arm)] for arm in known])


def test_a_label_costs_what_a_turn_does_in_which_all_arms_search_first() -> None:
    nothing: Any = None
    outcomes = Outcomes(
        (Question("q", "?"), Question("r", "??")),
        ("a", "b", "c", "new"),
        {"em": np.zeros((2, 4))},
        {"steps": np.array([[1.0, 2.0, 4.0, 8.0], [1.0, np.nan, 4.0, np.nan]]), "usd": np.ones((2, 4))},
        (((),) * 4, ((), nothing, (), ())),
        ((nothing,) * 4,) * 2,
    )
    costs = charge_searches(outcomes, ["c", "a", "b"]).costs
    np.testing.assert_array_equal(costs["steps"], [[7.0, 7.0, 7.0, 15.0], [5.0, np.nan, 5.0, np.nan]])
    np.testing.assert_array_equal(costs["usd"], 1.0)


def test_a_label_costs_the_priced_searches_of_all_arms_that_search_first() -> None:
    nothing: Any = None
    outcomes = Outcomes(
        (Question("q", "?"), Question("r", "??")),
        ("a", "b", "new"),
        {"em": np.zeros((2, 3))},
        {
            "usd": np.array([[3.0, 5.0, 9.0], [3.0, np.nan, 9.0]]),
            "search_usd": np.array([[1.0, 4.0, 2.0], [1.0, np.nan, 2.0]]),
        },
        (((),) * 3, ((), nothing, ())),
        ((nothing,) * 3,) * 2,
    )
    costs = charge_searches(outcomes, ["b", "a"]).costs
    assert costs["usd"].tolist() == [[7.0, 6.0, 14.0], [3.0, 1.0, 10.0]]


def test_an_arm_that_answered_at_unknown_cost_makes_the_cost_of_all_unknown() -> None:
    nothing: Any = None
    outcomes = Outcomes(
        (Question("q", "?"),),
        ("a", "b"),
        {"em": np.zeros((1, 2))},
        {"steps": np.array([[1.0, np.nan]])},
        (((), ()),),
        ((nothing, nothing),),
    )
    assert np.isnan(charge_searches(outcomes, ["a", "b"]).costs["steps"]).all()


def test_labels_are_entered_at_the_cost_of_all_searches(config: AppConfig, tmp_path: Path) -> None:
    config = trained(config, LOOKING, file_of(tmp_path, rows(20, seed=1)), folds=2)
    warmed(config, file_of(tmp_path, rows(4, seed=2), "new"))
    assert {example.cost.steps for example in entered(config)} == {3}


def test_what_searches_cost_that_nobody_tells_apart_is_said(config: AppConfig, tmp_path: Path) -> None:
    served = trained(config, LOOKING, file_of(tmp_path, rows(20, 1)))
    tokens = {"steps": 1.0, "prompt_tokens": 90.0, "completion_tokens": 10.0}
    path = file_of(tmp_path, [replace(row, costs=tokens) for row in rows(6, 2)], "new")
    line = "a turn pays the kilotokens of these searches"
    assert line not in warmed(served, path, dry_run=True), "they have no price"
    reward = served.reward.model_copy(
        update={"cost_weight": 0.1, "cost": Prices(steps=1.0, kilotokens=1.0, seconds=0.0)}
    )
    assert line in warmed(served.model_copy(update={"reward": reward}), path, dry_run=True)
    free = reward.model_copy(update={"cost_weight": 0.0})
    assert line not in warmed(served.model_copy(update={"reward": free}), path, dry_run=True)


def test_outcomes_that_do_not_tell_of_every_arm_are_refused(config: AppConfig, tmp_path: Path) -> None:
    config = trained(config, LOOKING, file_of(tmp_path, rows(20, seed=1)), folds=2)
    partly = file_of(tmp_path, [row for row in rows(4, seed=2) if row.arm != "dense"], "partly")
    with pytest.raises(RouterError, match="there are no outcomes of dense: label these arms, too"):
        asked(config, partly)


# -- into the log ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_another_router_makes_new_labels(config: AppConfig, tmp_path: Path) -> None:
    path = file_of(tmp_path, rows(20, seed=1))
    assert "60 new, 0 in the log before" in warmed(config, path)
    for router in (TREES, {**TREES, "params": {**TREES["params"], "rounds": 5}}):
        beside = trained(config, router, path, folds=4)
        said = warmed(beside, path)
        assert "60 new, 0 in the log before" in said
        assert "the router scores 0 questions as in service, and 20 that it was trained on as" in said
        assert "0 new, 60 in the log before" in warmed(beside, path)
    assert "0 new, 60 in the log before" in warmed(config, path)
    told = [example.decision for example in entered(config)]
    assert {decision.policy for decision in told} == {LABELS}
    with_scores = [decision for decision in told if "router" in decision.context.arms["bm25"]]
    assert (len(told), len(with_scores)) == (180, 120)
