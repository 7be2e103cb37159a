"""What the sources of a warm start give: asked once, found again after a stop, new until it was judged."""

import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from rich.console import Console

from armwise.agent.config import AppConfig, parse
from armwise.agent.lab.offline import Labelling, Scoring
from armwise.agent.lab.simulation import load_questions
from armwise.agent.lab.warmstart import label_sources
from armwise.agent.lab.warmstart.label_sources import LabelSources, Lot, find_sample
from armwise.agent.lab.warmstart.labels import WarmStartError
from armwise.agent.routers import TooLittleError
from armwise.agent.routers.utility import R3AG
from armwise.arms.lab.portfolio import MatrixArms, outcomes, read_matrix, write_matrix
from armwise.arms.lab.portfolio.score_matrix import read_arms
from armwise.arms.questions import Question
from armwise.feedback.events import Feedback
from armwise.feedback.log import Store
from armwise.feedback.registry import Run, runs
from armwise.feedback.training_log import traffic
from tests.agent.asking import join
from tests.agent.evaluation.test_evaluate import ARMS, turn
from tests.agent.fakes import CONFIG

NOW = 10.0
"""The traffic was a few seconds ago."""


@dataclass
class World:
    """A log, a corpus, and jobs that do as they are told.

    Attributes:
        folder: Where they are.
        store: The log.
        labelled: What arms were asked to answer, in order.
        scored: What arms were asked to find, in order.
        broken: Whether the next jobs fail.
        scores: What arms find, shape (n_questions, n_arms); None: everything.
    """

    folder: Path
    store: Store
    labelled: list[Labelling] = field(default_factory=list)
    scored: list[Scoring] = field(default_factory=list)
    broken: bool = False
    scores: NDArray[np.float32] | None = None

    def config(self, **changes: Any) -> AppConfig:
        corpus = {"name": "small", "source": str(self.folder / "corpus.jsonl")}
        document = {**CONFIG, "home": str(self.folder / "home"), "corpus": corpus}
        document["log_url"] = f"sqlite:///{self.folder / 'log.db'}"
        return parse({**document, **changes}).resolve_places()

    def gathering(self, sources: Mapping[str, Any], *before: Run, **changes: Any) -> LabelSources:
        plan = {"warm_start": {"sources": sources, "portfolio": {"measure": "em"}}}
        config = self.config(**{**plan, **changes})
        assert config.warm_start is not None
        return LabelSources(config, config.warm_start, self.store, before, lambda: NOW)

    def label(self, settings: Labelling, *_: object) -> None:
        """Stand in for `armwise lab label`."""
        self._fail()
        self.labelled.append(settings)
        settings.output.mkdir()
        questions = [Question(one.id, one.question) for one in load_questions(settings.queries)]
        lines = [outcomes.Outcome(one, arm, scores={"em": 1.0}) for one in questions for arm in ARMS]
        outcomes.write_outcomes(settings.output / "outcomes.jsonl", lines)

    def score(self, settings: Scoring, *_: object) -> None:
        """Stand in for `armwise lab score`."""
        self._fail()
        self.scored.append(settings)
        table = MatrixArms(settings.config.arms, {}, {}, settings.measure, {})
        asked = [] if settings.queries is None else load_questions(settings.queries)
        questions = [Question(one.id, one.question) for one in asked] or [Question("q", "?")]
        scores = np.ones((len(questions), len(ARMS)), np.float32) if self.scores is None else self.scores
        write_matrix(settings.output, table, [(questions, scores)])

    def _fail(self) -> None:
        if self.broken:
            raise WarmStartError("the model is away")

    def ask(self, *numbers: int) -> None:
        """Have some traffic."""
        self.store.append([fact for number in numbers for fact in turn(number, "dense")])


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.delenv("ARMWISE_HOME", raising=False)
    lines = [{"id": f"p{i}", "title": f"River {i}", "text": f"River {i} meets the sea."} for i in range(12)]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    exam(tmp_path / "exam.jsonl", 5)
    with closing(Store(f"sqlite:///{tmp_path / 'log.db'}")) as store:
        world = World(tmp_path, store)
        monkeypatch.setattr("armwise.agent.lab.warmstart.label_sources.label_questions", world.label)
        monkeypatch.setattr("armwise.agent.lab.warmstart.label_sources.score_arms", world.score)
        yield world


def exam(path: Path, n: int) -> None:
    lines = [{"id": f"q{i}", "question": f"exam {i}", "answers": ["yes"]} for i in range(n)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def lots_of(gathering: LabelSources) -> list[Lot]:
    return gathering.lots(lambda *_: None)


def fetched(gathering: LabelSources) -> list[Lot]:
    lots = lots_of(gathering)
    for lot in lots:
        gathering.fetch(lot, Console(file=StringIO()), lambda *_: None)
        assert lot.path.exists()
    return lots


def judged(lots: list[Lot]) -> Run:
    """A run that took these lots and came to a verdict."""
    inputs = {"lots": [lot.document() for lot in lots]}
    return Run(
        seq=1,
        configured="ours",
        worker="here:1",
        submitted_at=0.0,
        started_at=0.0,
        alive_at=0.0,
        finished_at=0.0,
        error=None,
        trigger=runs.Trigger.SCHEDULE,
        status=runs.RunState.HELD,
        inputs=inputs,
        steps=[],
    )


def asked(world: World, metrics: Mapping[str, str] | None = None, **fields: Any) -> dict[str, Any]:
    source = {
        "kind": "questions",
        "path": str(world.folder / "exam.jsonl"),
        "metrics": metrics or {"right": "em"},
    }
    return {"exam": {**source, **fields}}


def test_live_arms_are_asked_questions_with_known_answers_once(world: World) -> None:
    (lot,) = fetched(world.gathering(asked(world, limit=3)))
    assert (lot.new, lot.metrics) == (True, {"right": "em"})
    (settings,) = world.labelled
    assert settings.output == lot.path
    assert (settings.measures, settings.limit, settings.workers) == (("em",), 3, 1)
    assert lot.path.is_relative_to(world.folder / "home" / "warm_starts" / "exam")
    fetched(world.gathering(asked(world, limit=3)))
    assert len(world.labelled) == 1, "it is there"


def test_the_quality_of_a_router_is_measured_with_its_utility(world: World) -> None:
    router = {"kind": "capability", "utility": R3AG.model_dump(mode="json")}
    plans = [{"sources": asked(world), "router": {**router, "quality": name}} for name in (None, "judge")]
    without, with_it = (fetched(world.gathering({}, warm_start=plan))[0] for plan in plans)
    assert [settings.measures for settings in world.labelled] == [("em", "f1"), ("em", "f1", "judge")]
    assert without.digest != with_it.digest, "labels without it are of no use to the router"


def test_what_was_judged_is_not_new_until_something_changes(world: World) -> None:
    before = judged(fetched(world.gathering(asked(world))))
    (same,) = lots_of(world.gathering(asked(world), before))
    assert not same.new
    other_arms = {**CONFIG["arms"], "far": {"kind": "bm25"}}
    other_corpus = {"name": "other", "source": str(world.folder / "other.jsonl")}
    (world.folder / "other.jsonl").write_text('{"id": "p", "text": "A lake."}\n')
    changes: list[dict[str, Any]] = [
        {"arms": other_arms},
        {"llm": {"engine": "scripted", "default": "no"}},
        {"llms": {"more": {"engine": "scripted"}}},
        {"prompts": {"brief": {"with_passages": "{passages}", "without_passages": "x"}}},
        {"answering": {"passages": 2}},
        {"answering": {"max_tokens": 7}},
        {"backbones": {"tiny": {"model": "hashing:8"}}},
        {"corpus": other_corpus},
        {"warm_start": {"sources": asked(world), "portfolio": {"measure": "f1"}}},
    ]
    found = [(change, lots_of(world.gathering(asked(world), before, **change))) for change in changes]
    fields: list[dict[str, Any]] = [
        {"measure": "R@4"}, {"limit": 4}, {"metrics": {"right": "f1"}},
    ]  # fmt: skip
    found += [(change, lots_of(world.gathering(asked(world, **change), before))) for change in fields]
    exam(world.folder / "exam.jsonl", 6)
    found.append(({"file": "other"}, lots_of(world.gathering(asked(world), before))))
    for change, (lot,) in found:
        assert lot.new, change
        assert lot.path != same.path, change
    assert len({lot.path for _, (lot,) in found}) == len(found) == 13


OUTCOMES = {"kind": "outcomes", "path": "labels", "metrics": {"right": "em"}}
MADE = {"kind": "synthetic", "questions": 20}
USERS = {"kind": "feedback"}


@pytest.mark.parametrize(
    ("source", "others"),
    [
        (OUTCOMES, [{"path": "more"}, {"metrics": {"right": "f1"}}]),
        (
            MADE,
            [{"questions": 21}, {"measure": "RR@4"}, {"balanced": False}],
        ),
        (USERS, [{"measure": "right"}]),
    ],
    ids=lambda one: one["kind"] if isinstance(one, dict) else "",
)
def test_labels_of_another_source_are_new(
    world: World, source: dict[str, Any], others: list[dict[str, Any]]
) -> None:
    world.ask(*range(4))
    join(world.store, world.config())
    for name in ("labels", "more"):
        (world.folder / name).write_text(f"outcomes of {name}")

    def lot_of(**change: Any) -> Lot:
        fields = {**source, **change}
        if "path" in fields:
            fields["path"] = str(world.folder / fields["path"])
        (lot,) = lots_of(world.gathering({"one": fields}, *before))
        return lot

    before: list[Run] = []
    before.append(judged([lot_of()]))
    assert not lot_of().new
    assert [lot_of(**change).new for change in others] == [True] * len(others)
    digests = [lot_of(**change).digest for change in others]
    assert len(set(digests)) == len(others)


def test_the_same_labels_of_another_source_are_new(world: World) -> None:
    (world.folder / "labels").write_text("outcomes")
    source = {**OUTCOMES, "path": str(world.folder / "labels")}
    before = judged(lots_of(world.gathering({"one": source})))
    assert [lot.new for lot in lots_of(world.gathering({"one": source, "two": source}, before))] == [
        False,
        True,
    ]


def test_passages_are_scored_where_a_measure_of_them_is_named(world: World) -> None:
    (lot,) = fetched(world.gathering(asked(world, {"right": "R@4"}, measure="R@4", limit=3)))
    (settings,) = world.scored
    assert (settings.measure, settings.output, settings.workers) == ("R@4", lot.path, 1)
    assert (settings.queries, settings.limit) == (world.folder / "exam.jsonl", 3)
    assert settings.timed == 0, "seconds cost nothing"


def test_searches_are_timed_where_seconds_have_a_price(world: World) -> None:
    priced = {**CONFIG["reward"], "cost": {"seconds": 0.01}}
    fetched(world.gathering(asked(world, {"right": "R@4"}, measure="R@4"), reward=priced))
    (settings,) = world.scored
    assert settings.timed == 4


def test_a_file_that_is_not_there_is_named(world: World) -> None:
    (world.folder / "exam.jsonl").unlink()
    with pytest.raises(WarmStartError, match=r"source 'exam': there is no .*exam\.jsonl"):
        lots_of(world.gathering(asked(world)))


def test_questions_are_made_from_the_corpus_once_and_the_live_arms_are_scored_on_them(world: World) -> None:
    made = {"made": {"kind": "synthetic", "questions": 20}}
    (lot,) = fetched(world.gathering(made))
    assert (lot.new, lot.metrics) == (True, {})
    (settings,) = world.scored
    assert settings.measure == "R@4"
    assert lot.path.is_dir()
    assert settings.queries is not None
    questions = settings.queries.read_bytes()
    assert len(load_questions(settings.queries)) == 20
    assert all(one.gold_ids for one in load_questions(settings.queries))
    (same,) = fetched(world.gathering(made, judged([lot])))
    assert not same.new
    assert len(world.scored) == 1, "it is there"
    (other,) = fetched(world.gathering({"made": {"kind": "synthetic", "questions": 21}}))
    assert other.path != lot.path
    assert find_sample(other.path).read_bytes() != questions, "their number makes other questions"
    world.broken = True
    with pytest.raises(WarmStartError):
        fetched(world.gathering({"made": {"kind": "synthetic", "questions": 20}}, answering={"passages": 2}))
    world.broken = False
    (again,) = fetched(
        world.gathering({"made": {"kind": "synthetic", "questions": 20}}, answering={"passages": 2})
    )
    kept = world.scored[-1].queries
    assert kept is not None
    assert kept.read_bytes() == questions, "what a run that failed had made is used"
    assert again.path != lot.path


def test_too_few_made_questions_teach_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("armwise.agent.lab.warmstart.label_sources.on_par", lambda *_: np.arange(1))
    made = world.gathering({"made": {"kind": "synthetic", "questions": 20}})
    with pytest.raises(TooLittleError, match=r"find equally much on 1 of 20 questions .*; 20 are needed"):
        fetched(made)


JUDGE = {"traffic": {"kind": "judge", "metrics": {"right": "judge"}, "questions": 3}}


def texts(lot: Lot) -> set[str]:
    return set(lot.questions)


def test_a_judge_is_asked_of_each_question_of_the_traffic_once(world: World) -> None:
    world.ask(*range(5))
    (first,) = fetched(world.gathering(JUDGE))
    assert len(first.questions) == 3
    assert world.scored[0].measure == "judge"
    old, second = fetched(world.gathering(JUDGE, judged([first])))
    assert (old.new, second.new) == (False, True)
    assert old.path == first.path, "what a run took before is there for the router"
    assert texts(first) | texts(second) == {f"question {number}" for number in range(5)}
    assert not texts(first) & texts(second)
    assert [lot.new for lot in lots_of(world.gathering(JUDGE, judged([first, second])))] == [False, False]
    world.ask(7)
    *_, third = lots_of(world.gathering(JUDGE, judged([first, second])))
    assert texts(third) == {"question 7"}


HINDSIGHT = {"confirmed": {"kind": "hindsight", "metric": "right"}}


def test_confirmed_answers_are_looked_for_in_the_passages_of_all_arms_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(label_sources, "CONFIRMED", 3)
    for number in range(6):
        decision, execution, _ = turn(number, "dense")
        right = Feedback(f"f-{number}", decision.id, "right", float(number < 4), 1.0)
        world.store.append([decision, replace(execution, answer="an answer"), right])
    join(world.store, world.config())
    (first,) = fetched(world.gathering(HINDSIGHT))
    assert (world.scored[0].measure, first.metrics) == ("contains", {}), "for proposals alone"
    (rows,) = [load_questions(one.queries) for one in world.scored if one.queries]
    assert {row.question: row.answers for row in rows} == dict.fromkeys(first.questions, ("an answer",))
    old, second = fetched(world.gathering(HINDSIGHT, judged([first])))
    assert (old.new, second.new) == (False, True)
    assert texts(first) | texts(second) == {f"question {number}" for number in range(4)}, "right ones"
    nothing = world.gathering(HINDSIGHT, judged([first, second]))
    assert [lot.new for lot in lots_of(nothing)] == [False, False]
    both = {**asked(world), **HINDSIGHT}
    assert [lot.source for lot in lots_of(world.gathering(both, warm_start={"sources": both}))] == ["exam"]


def confirm(world: World, *answers: str) -> None:
    """Have questions answered and rated right."""
    for number, answer in enumerate(answers):
        decision, execution, _ = turn(number, "dense")
        right = Feedback(f"f-{number}", decision.id, "right", 1.0, 1.0)
        world.store.append([decision, replace(execution, answer=answer), right])
    join(world.store, world.config())


def test_confirmed_answers_have_the_score_that_their_source_names(world: World) -> None:
    confirm(world, "an answer")
    (usual,) = fetched(world.gathering(HINDSIGHT))
    (named,) = fetched(world.gathering({"confirmed": {**HINDSIGHT["confirmed"], "measure": "R@4"}}))
    assert [read_arms(lot.path).measure for lot in (usual, named)] == ["contains", "R@4"]


def test_where_no_arm_finds_a_confirmed_answer_the_scores_are_unknown(world: World) -> None:
    confirm(world, "an answer", "in other words", "another answer")
    world.scores = np.array([[0, 1, 0], [0, 0, 0], [1, 0, 0]], np.float32)
    (lot,) = fetched(world.gathering(HINDSIGHT))
    known = {tuple(row) for row in read_matrix(lot.path).scores.T.tolist() if not np.isnan(row).any()}
    assert known == {(0.0, 1.0, 0.0), (1.0, 0.0, 0.0)}
    assert np.isnan(read_matrix(lot.path).scores).sum() == len(ARMS)


def test_a_quoted_answer_is_looked_for_without_its_source(world: World) -> None:
    confirm(world, "River 1 meets the sea.\n\n(Quoted from [1] River 1.)")
    fetched(world.gathering(HINDSIGHT))
    assert world.scored[0].queries is not None
    (asked,) = load_questions(world.scored[0].queries)
    assert asked.answers == ("River 1 meets the sea.",)


def test_a_value_in_the_better_half_of_its_range_confirms_an_answer(world: World) -> None:
    metrics = {"stars": {"range": [1, 5]}, "harm": {"range": [0, 4], "optimize": "min"}}
    reward = {**CONFIG["reward"], "metrics": metrics}
    for number, value in enumerate((1.0, 2.0, 3.0, 4.0)):
        decision, execution, _ = turn(number, "dense")
        rated = [Feedback(f"{name}-{number}", decision.id, name, value, 1.0) for name in metrics]
        world.store.append([decision, replace(execution, answer="an answer"), *rated])
    join(world.store, world.config(reward=reward))
    confirmed = {}
    for name in metrics:
        source = {name: {"kind": "hindsight", "metric": name}}
        (lot,) = fetched(world.gathering(source, reward=reward))
        confirmed[name] = texts(lot)
    assert confirmed == {"stars": {"question 3"}, "harm": {"question 0"}}


def test_earlier_labels_are_read_from_the_own_folder_alone(world: World, tmp_path: Path) -> None:
    """The run is a row of the log: its path must not lead to labels, or descriptions of arms, of others."""
    world.ask(*range(3))
    (first,) = fetched(world.gathering(JUDGE))
    elsewhere = tmp_path / "elsewhere"
    first.path.rename(elsewhere)
    find_sample(first.path).rename(find_sample(elsewhere))
    lots = lots_of(world.gathering(JUDGE, judged([replace(first, path=elsewhere)])))
    assert elsewhere not in [lot.path for lot in lots]


def test_a_judge_is_asked_of_questions_that_the_secret_of_the_log_draws(world: World) -> None:
    world.ask(*range(8))
    (lot,) = lots_of(world.gathering(JUDGE))
    asked, secret = traffic.list_asked_since(world.store, 0.0), world.store.draw_secret.secret
    assert list(lot.questions) == traffic.draw_in_turns(asked, 3, secret)


def test_a_judge_is_asked_of_no_question_that_any_of_three_runs_took(world: World) -> None:
    world.ask(*range(8))
    before: list[Run] = []
    taken: list[set[str]] = []
    for size in (3, 3, 2):
        *old, new = fetched(world.gathering(JUDGE, *before))
        assert [texts(lot) for lot in old] == [set()] * len(before)
        assert [lot.path for lot in old] == [Path(run.inputs["lots"][-1]["path"]) for run in before]
        assert (new.new, len(new.questions)) == (True, size)
        taken.append(texts(new))
        before.append(judged([*old, new]))
    assert set.union(*taken) == {f"question {number}" for number in range(8)}
    assert len(world.scored) == 3, "each sample is scored once"
    assert not any(lot.new for lot in lots_of(world.gathering(JUDGE, *before)))


def test_a_sample_that_was_cut_short_is_taken_again_whatever_was_asked_since(world: World) -> None:
    world.ask(*range(5))
    world.broken = True
    gathering = world.gathering(JUDGE)
    (lot,) = lots_of(gathering)
    with pytest.raises(WarmStartError):
        gathering.fetch(lot, Console(file=StringIO()), lambda *_: None)
    world.ask(*range(5, 40))
    (again,) = lots_of(world.gathering(JUDGE))
    assert again == lot
    other_arms = {**CONFIG["arms"], "far": {"kind": "bm25"}}
    (other,) = lots_of(world.gathering(JUDGE, arms=other_arms))
    assert other.path != lot.path, "what was asked of other arms is not part of it"


def test_old_questions_and_labels_are_not_sampled(world: World) -> None:
    world.ask(1, 2)
    config = world.config(warm_start={"sources": JUDGE})
    assert config.warm_start is not None
    for age, sampled in ((6.9, 2), (7.1, 0)):
        later = LabelSources(config, config.warm_start, world.store, [], lambda: 1.0 + age * 86400.0)  # noqa: B023
        assert sum(len(lot.questions) for lot in lots_of(later)) == sampled


def test_feedback_is_new_while_there_is_more_of_it(world: World) -> None:
    sources = {"users": {"kind": "feedback"}}
    assert lots_of(world.gathering(sources)) == [], "there is none"
    world.ask(*range(4))
    join(world.store, world.config())
    (lot,) = fetched(world.gathering(sources))
    assert (lot.new, lot.metrics) == (True, {})
    assert (world.scored[0].from_log, world.scored[0].measure) == (True, "reward")
    (same,) = lots_of(world.gathering(sources, judged([lot])))
    assert not same.new
    world.ask(9)
    join(world.store, world.config())
    (more,) = lots_of(world.gathering(sources, judged([lot])))
    assert more.new


@pytest.mark.parametrize(
    "change",
    [
        {"arms": {**CONFIG["arms"], "far": {"kind": "bm25"}}},
        {"reward": {**CONFIG["reward"], "cost_weight": 0.2}},
    ],
    ids=["arms", "reward"],
)
def test_feedback_is_new_under_other_arms_or_rewards(world: World, change: dict[str, Any]) -> None:
    world.ask(*range(4))
    join(world.store, world.config())
    (lot,) = lots_of(world.gathering({"users": USERS}))
    (other,) = lots_of(world.gathering({"users": USERS}, judged([lot]), **change))
    assert other.new
    assert other.path != lot.path


def test_feedback_needs_no_corpus(world: World) -> None:
    world.ask(*range(4))
    join(world.store, world.config())
    (world.folder / "corpus.jsonl").unlink()
    assert [lot.source for lot in lots_of(world.gathering({"users": USERS}))] == ["users"]


def test_feedback_is_for_proposals_alone(world: World) -> None:
    world.ask(*range(4))
    join(world.store, world.config())
    both = {**asked(world), "users": {"kind": "feedback"}}
    (lot,) = lots_of(world.gathering(both, warm_start={"sources": both}))
    assert lot.source == "exam"
