"""A trained router in an ensemble arm: it picks in service what it would have picked in training."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from ray import cloudpickle

from armwise.agent.cli.preparation import prepare
from armwise.agent.config import AppConfig, parse
from armwise.agent.lab.offline import observe_features, read_labelled
from armwise.agent.lab.offline.labelled_data import find_writing
from armwise.agent.lab.routers.answer_selector import RouterRanker, open_selector
from armwise.agent.routers.dataset import RouterError, Stage
from armwise.agent.routers.features import compute_features
from armwise.agent.routers.saved import ABOUT, MODEL, Trained
from armwise.arms import manifest
from armwise.arms.base import ArmBuildError, ArmError, Passage, Query, Retrieval
from armwise.arms.corpus import Corpus
from armwise.arms.lab.jobs import LabelJob, answer_measures
from armwise.arms.lab.jobs.label_job import LabelWorker
from armwise.arms.lab.portfolio import outcomes
from armwise.arms.llm import Chunk, Prompt, catalog, prompts
from armwise.arms.models import Backbone, build_embedder
from armwise.arms.more.generative import ensemble
from armwise.arms.more.generative.ensemble import EnsembleArm, EnsembleParams
from armwise.arms.questions import Question
from armwise.arms.retrievers import ArmSpec, RankerSpec, Resources, SelectorSpec, build_arm
from armwise.feedback.answer_metrics import METRICS
from tests.agent.fakes import CONFIG, DIM
from tests.agent.lab.offline.test_train_router import train
from tests.agent.trained_routers import kept
from tests.neighbours import SUBJECTS, write_corpus

ARMS = ("none", "bm25", "dense")
MEMBERS = ("bm25", "dense")
BEST = {"who": "none", "when": "bm25", "where": "dense"}
ANSWERED: dict[str, Any] = {
    "kind": "pointwise_xgboost",
    "params": {"stage": "answered", "dims": 0},
}
SHORT = prompts.Writing(prompts.Form.SHORT, 400, 32)
TINY = Backbone(model=f"hashing:{DIM}")


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AppConfig:
    """A corpus of twelve passages and a backbone that hashes words."""
    monkeypatch.delenv("ARMWISE_HOME", raising=False)
    source = write_corpus(tmp_path / "corpus.jsonl")
    corpus = {"name": "small", "source": str(source)}
    return parse({**CONFIG, "home": str(tmp_path / "home"), "corpus": corpus}).resolve_places()


def ids_of(number: int, arm: str) -> tuple[str, ...]:
    """Name the three passages that an arm finds for a question."""
    first = number + ARMS.index(arm)
    return () if arm == "none" else tuple(f"p{(first + i) % 12}" for i in range(3))


def rows(n: int = 60) -> list[outcomes.Outcome]:
    """The first word of a question tells the best arm; what is answered is the title of a first passage."""
    told = []
    for number in range(n):
        word = list(BEST)[number % 3]
        question = Question(f"q{number}", f"{word} saw the {SUBJECTS[number % 12]} {number}?")
        for arm in ARMS:
            ids, right = ids_of(number, arm), float(BEST[word] == arm)
            answer = SUBJECTS[int(ids[0][1:])] if ids else "nothing"
            costs = {"steps": 1.0, "prompt_tokens": 10.0, "completion_tokens": 1.0}
            told.append(outcomes.Outcome(question, arm, ids, answer, {"em": right, "f1": right}, costs))
    return told


def job_folder(folder: Path, writing: prompts.Writing | None = SHORT) -> Path:
    """Keep outcomes as a labelling job does, which says how answers were written."""
    folder.mkdir()
    outcomes.write_outcomes(folder / outcomes.FILE, rows())
    manifest.write(folder, {"k": "3", **(writing.facts if writing else {})})
    return folder


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    return job_folder(tmp_path / "labels")


def trained(config: AppConfig, *places: Path) -> tuple[Trained, str]:
    """Train a router to compare the answers of two of the arms, and return what was printed, too."""
    return train(config, *places, router=ANSWERED, arms=MEMBERS)


# -- at work -------------------------------------------------------------------------------------------


class Found:
    """Finds what the outcomes say; fails where it is told to."""

    backbones: frozenset[str] = frozenset()

    def __init__(self, name: str, corpus: Corpus, *, fails: bool = False) -> None:
        self.name = name
        self._corpus = corpus
        self._fails = fails

    def search(self, query: Query, k: int) -> Retrieval:
        if self._fails:
            raise ArmError(f"{self.name} is away")
        number = int(query.text.removesuffix("?").rpartition(" ")[2])
        ids = ids_of(number, self.name)
        return Retrieval(tuple(self._corpus.passages(self._corpus.positions(ids)))[:k])


def first_title(prompt: Prompt) -> tuple[str, Chunk]:
    return prompt.messages[0]["content"].partition("[1] ")[2].partition("\n")[0], Chunk()


def learned_arm(config: AppConfig, *failing: str) -> EnsembleArm:
    """Return an ensemble of the two arms that the trained router picks from."""
    corpus = Corpus.open(config.corpus_sources[0].folder)
    have = Resources(
        corpus, config.indexes_path, config.backbones, {}, write=first_title, open_selector=open_selector
    )
    params = EnsembleParams(
        arms=MEMBERS[::-1],  # in another order than in training
        select="learned",
        router=str(config.home_path / "router"),
        backbone="tiny",
        form=prompts.Form.SHORT,
    )
    ensemble.EnsembleArm.prepare(params, have, None)
    members = {name: Found(name, corpus, fails=name in failing) for name in MEMBERS}
    arm = ensemble.EnsembleArm.build("all", params, have, members.__getitem__)
    assert isinstance(arm, EnsembleArm)
    return arm


def asked(number: int) -> Query:
    text = rows()[3 * number].question.text
    return Query(text, {"tiny": build_embedder(TINY).encode_queries([text])[0]})


def test_the_answer_with_the_highest_score_wins(config: AppConfig, labels: Path) -> None:
    made, _ = trained(config, labels)
    assert (made.about.arms, made.about.k, made.about.writing) == (MEMBERS, 3, SHORT)
    only = [row for row in rows() if row.arm in MEMBERS]
    outcomes.write_outcomes(labels / "two.jsonl", only)
    seen = observe_features(
        read_labelled([labels / "two.jsonl"]), config, "tiny", Stage.ANSWERED, lambda *_: None
    )
    best = made.router.scores(seen.features).argmax(axis=1).tolist()
    assert [MEMBERS[arm] for n, arm in enumerate(best) if n % 3] == [*MEMBERS] * 20, "it learned something"
    arm = learned_arm(config)
    won = [arm.search(asked(number), 2).passages[0].id for number in range(24)]
    assert won == [ids_of(number, MEMBERS[best[number]])[0] for number in range(24)]
    assert len(set(best[:24])) == 2


def test_what_a_trained_router_picks_from_costs_as_in_its_figures(config: AppConfig, labels: Path) -> None:
    made, _ = trained(config, labels)
    held_out = made.about.held_out
    assert held_out is not None
    assert held_out["router"]["steps"] == 2.0 == learned_arm(config).search(asked(0), 2).steps
    priced = {"cost_weight": 0.01, "cost": {"steps": 1.0, "kilotokens": 1000.0, "seconds": 0.0}}
    net = train(config, labels, router=ANSWERED, arms=MEMBERS, utility=priced)[0].about.held_out
    assert net is not None
    gross = held_out["router"]["utility"]
    assert net["router"]["utility"] == pytest.approx(gross - 0.01 * (2.0 + 2 * 11.0))


def test_where_a_member_is_away_the_vote_decides(config: AppConfig, labels: Path) -> None:
    trained(config, labels)
    arm = learned_arm(config, "bm25")
    assert [arm.search(asked(n), 2).passages[0].id for n in range(6)] == [
        ids_of(n, "dense")[0] for n in range(6)
    ]


def test_where_the_router_fails_the_vote_decides_as_the_answers_are_paid_for(
    config: AppConfig, labels: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trained(config, labels)
    arm = learned_arm(config)
    wrong = replace(asked(0), embeddings={"tiny": np.full(DIM, np.nan, dtype=np.float32)})
    found = arm.search(wrong, 2)
    assert found.passages[0].id == ids_of(0, MEMBERS[-1])[0], "of two answers that differ, the first"
    assert found.steps == 2
    assert "arm 'all' votes: the router cannot pick an answer: embedding number 0" in caplog.text


# -- what does not fit ---------------------------------------------------------------------------------


def wanted(folder: Path, **changes: Any) -> SelectorSpec:
    given: dict[str, Any] = {
        "router": folder,
        "arms": ARMS,
        "backbone": "tiny",
        "encoder": TINY,
        "writing": SHORT,
    }
    return SelectorSpec(**(given | changes))


def refused(spec: SelectorSpec) -> str:
    with pytest.raises(ArmBuildError) as raised:
        open_selector(spec)
    return str(raised.value)


def compares(folder: Path, writing: prompts.Writing | None = SHORT) -> Path:
    return kept(folder, "pointwise_xgboost", stage="answered", rounds=2, writing=writing)


def test_a_folder_that_holds_no_router_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    assert refused(wanted(tmp_path)).startswith(f"{tmp_path} holds no trained router: ")
    compares(tmp_path)
    assert open_selector(wanted(tmp_path)).k == 2
    (tmp_path / MODEL).write_bytes((tmp_path / MODEL).read_bytes()[:-1])
    assert "router.model is damaged: " in refused(wanted(tmp_path))


@pytest.mark.parametrize(
    ("kind", "stage"),
    [
        ({"kind": "max_sim"}, "retrieved"),
        ({"kind": "pointwise_xgboost", "stage": "question", "rounds": 2}, "question"),
    ],
)
def test_a_router_that_compares_no_answers_is_refused(
    tmp_path: Path, kind: Mapping[str, Any], stage: str
) -> None:
    kept(tmp_path, **kind)
    expected = f"router {tmp_path}: {kind['kind']!r} of stage {stage} compares no answers: train one of stage"
    assert refused(wanted(tmp_path)).startswith(expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"arms": ("none", "bm25")},
            "it compares the answers of none, bm25, dense, and the members are none, bm25: ",
        ),
        ({"arms": (*ARMS, "bm25")}, "and the members are none, bm25, dense, bm25: train one on just these"),
        ({"backbone": "teeny"}, "it was trained on backbone 'tiny', not on 'teeny'"),
        (
            {"encoder": Backbone(model="hashing:32")},
            "its model is 'hashing-32-3' here and was 'hashing-16-3'",
        ),
        (
            {"writing": replace(SHORT, form=prompts.Form.DIRECT)},
            "it learned from answers of form short, and the members' have direct",
        ),
        ({"writing": replace(SHORT, max_tokens=8)}, "answers of max tokens 32, and the members' have 8"),
    ],
)
def test_an_arm_that_differs_from_the_training_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    compares(tmp_path)
    told = refused(wanted(tmp_path, **changes))
    assert told.startswith(f"router {tmp_path}: ")
    assert message in told


def test_members_may_stand_in_any_order(
    tmp_path: Path,
) -> None:
    compares(tmp_path, None)
    assert "writing" in json.loads((tmp_path / ABOUT).read_text())
    selector = open_selector(
        wanted(tmp_path, arms=ARMS[::-1], writing=replace(SHORT, form=prompts.Form.REASONING))
    )
    vector = build_embedder(TINY).encode_queries(["who 3?"])[0]
    found = [(Passage("web", "", "Not of the corpus."),), (Passage("p1", "", "Here."),), ()]
    assert selector.select(Query("who 3?", {"tiny": vector}), ["a", "b", ""], found, {"p1": vector}) in range(
        3
    )


# -- how it comes there --------------------------------------------------------------------------------


def with_arm(config: AppConfig, spec: dict[str, Any]) -> AppConfig:
    document = config.model_dump(mode="json")
    return parse({**document, "arms": {**document["arms"], "all": spec}})


def test_the_arm_that_training_prints_can_be_served(config: AppConfig, labels: Path) -> None:
    _, said = trained(config, labels)
    line = next(line for line in said.splitlines() if line.startswith("serve it as an arm   "))
    spec = ArmSpec.model_validate(yaml.safe_load(line.removeprefix("serve it as an arm   ")))
    assert spec.params == {
        "arms": ["bm25", "dense"],
        "select": "learned",
        "router": str(config.home_path / "router"),
        "backbone": "tiny",
        "form": "short",
        "word_budget": 400,
        "max_tokens": 32,
    }
    served = with_arm(config, spec.model_dump())
    prepare(served, lambda *_: None)
    corpus = Corpus.open(served.corpus_sources[0].folder)
    have = Resources(
        corpus,
        served.indexes_path,
        served.backbones,
        served.arms,
        write=first_title,
        open_selector=open_selector,
    )
    arm = build_arm("all", have)
    assert arm.backbones == {"tiny"}
    assert len(arm.search(asked(1), 2).passages) == 2
    other = spec.model_dump() | {"params": {**spec.params, "arms": ["none", "dense"]}}
    with pytest.raises(ArmBuildError, match="the members are none, dense: train one on just these"):
        prepare(with_arm(config, other), lambda *_: None)


def test_outcomes_may_leave_the_writing_open(config: AppConfig, labels: Path, tmp_path: Path) -> None:
    made, said = trained(config, labels / outcomes.FILE)
    assert made.about.writing is None
    assert "form:" not in said
    assert find_writing([labels, job_folder(tmp_path / "silent", None)]) is None
    assert find_writing([labels, labels]) == SHORT


def test_answers_of_two_forms_are_refused(config: AppConfig, labels: Path, tmp_path: Path) -> None:
    other = job_folder(tmp_path / "other", replace(SHORT, form=prompts.Form.DIRECT))
    (other / outcomes.FILE).write_text((other / outcomes.FILE).read_text().replace('"id":"q', '"id":"r'))
    manifest.add(other, [outcomes.FILE])
    expected = r"labels .* form short, .*other .* form direct"
    with pytest.raises(RouterError, match=expected):
        trained(config, labels, other)
    assert train(config, labels, other)[0].about.writing is None, "who looks at no answer does not mind"


def test_a_job_asks_such_an_arm_in_its_workers(config: AppConfig, labels: Path) -> None:
    trained(config, labels)
    router = config.home_path / "router"
    learned = {
        "arms": list(MEMBERS),
        "select": "learned",
        "router": str(router),
        "backbone": "tiny",
        "form": "short",
    }
    specs = {
        "bm25": config.arms["bm25"],
        "dense": config.arms["dense"],
        "all": ArmSpec(kind="ensemble", params=learned),
    }
    questions = tuple(replace(row.question, answers=("city",)) for row in rows()[:6:3])
    job = LabelJob(
        questions=questions,
        corpus=Corpus.open(config.corpus_sources[0].folder),
        indexes=config.indexes_path,
        specs=specs,
        backbones=config.backbones,
        llm=catalog.ScriptedSpec(
            engine="scripted", replies={question.text: "city" for question in questions}
        ),
        open_selector=open_selector,
        arms=("bm25", "all"),
        form=prompts.Form.SHORT,
        of_answers=(answer_measures.by_words("em", METRICS["em"]),),
        max_tokens=32,
    ).validate()
    job.prepare(lambda *_: None)
    found = LabelWorker(cloudpickle.loads(cloudpickle.dumps(job))).block(0).outcomes
    assert [(row.arm, row.scores["em"], row.costs["steps"]) for row in found] == [
        ("bm25", 1.0, 1.0),
        ("all", 1.0, 2.0),
    ] * 2
    before = job.identity()
    train(config, labels, router={**ANSWERED, "params": {**ANSWERED["params"], "rounds": 5}}, arms=MEMBERS)
    after = job.identity()
    assert {fact for fact in before if before[fact] != after[fact]} == {f"weights of {router}"}


# -- a router that ranks the members -------------------------------------------------------------------


def ranking(folder: Path, **changes: Any) -> RankerSpec:
    given: dict[str, Any] = {"router": folder, "arms": ARMS, "backbone": "tiny", "encoder": TINY}
    return RankerSpec(**(given | changes))


def test_members_are_ranked_by_the_scores_of_the_router(config: AppConfig, labels: Path) -> None:
    made, _ = train(config, labels, router={"kind": "ridge", "params": {"sees": "words"}})
    folder = config.home_path / "router"
    ranker = open_selector(ranking(folder))
    for number in range(6):
        query = asked(number)
        expected = made.router.scores(compute_features(query.text, query.embeddings["tiny"], ARMS))[0]
        assert [*ranker.rank(query)] == np.argsort(-expected, kind="stable").tolist()
        assert ARMS[ranker.rank(query)[0]] == BEST[query.text.split()[0]], "it has learned the best arm"
    some = open_selector(ranking(folder, arms=("dense", "none")))
    assert [some.rank(asked(number))[0] for number in (0, 2)] == [1, 0], "of some arms, in another order"


def test_equal_scores_keep_the_order_of_the_members() -> None:
    router = SimpleNamespace(scores=lambda _: np.array([[0.5, 0.7, 0.5]]))
    fitted: Any = SimpleNamespace(about=SimpleNamespace(backbone="tiny"), router=router)
    assert [*RouterRanker(fitted, ARMS).rank(asked(0))] == [1, 0, 2]


def test_a_question_that_the_router_cannot_read_fails_the_arm(tmp_path: Path) -> None:
    kept(tmp_path, "ridge")
    wrong = replace(asked(0), embeddings={"tiny": np.full(DIM, np.nan, dtype=np.float32)})
    with pytest.raises(ArmError, match="the router cannot rank the members: embedding number 0"):
        open_selector(ranking(tmp_path)).rank(wrong)


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ({"kind": "max_sim"}, {}, "'max_sim' of stage retrieved ranks arms that have all searched"),
        (
            {"kind": "source_fit"},
            {},
            "reads how well a question fits each source, which an arm does not know",
        ),
        ({"kind": "ridge"}, {"arms": ("none", "bm26")}, "'bm26' is unknown here; did you mean 'bm25'"),
        (
            {"kind": "ridge"},
            {"arms": ("none", "none")},
            "ranks each member once, and the members are none, none",
        ),
        ({"kind": "ridge"}, {"backbone": "teeny"}, "it was trained on backbone 'tiny', not on 'teeny'"),
        ({"kind": "ridge"}, {"encoder": Backbone(model="hashing:32")}, "its model is 'hashing-32-3' here"),
    ],
)
def test_a_router_that_cannot_rank_the_members_is_refused(
    tmp_path: Path, kind: Mapping[str, Any], changes: dict[str, Any], message: str
) -> None:
    kept(tmp_path, **kind)
    with pytest.raises(ArmBuildError, match=f"router {tmp_path}: .*{message}"):
        open_selector(ranking(tmp_path, **changes))
