"""Training a model of relevance as a user does: from outcomes and gold passages to an arm that serves it."""

import asyncio
import json
from collections.abc import Sequence
from io import StringIO
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from sklearn.metrics import roc_auc_score
from typer.testing import CliRunner

from armwise.agent.cli.main import app
from armwise.agent.config import AppConfig, parse
from armwise.agent.lab.offline import (
    RelevanceTraining,
    Training,
    observe_features,
    read_labelled,
    read_questions,
    relevance_of_others,
    train_relevance,
    train_router,
)
from armwise.agent.lab.offline.relevance_training import ABOUT, auc
from armwise.agent.lab.routers import cross_validation
from armwise.agent.routers import RouterError, Stage, Trained, read_trained
from armwise.agent.routers.features import RELEVANCE, SUPPORT
from armwise.agent.serving.router_scores import RouterScorer
from armwise.arms.base import Query, Retrieval
from armwise.arms.corpus import ingest
from armwise.arms.indexes import PassageVectors
from armwise.arms.lab.portfolio import outcomes as portfolio_outcomes
from armwise.arms.models import Backbone, build_embedder
from armwise.arms.questions import Question
from armwise.arms.relevance import RelevanceModel, read_model
from armwise.arms.retrievers import ArmSpec, Resources, build_arm, prepare
from tests.agent.fakes import CONFIG
from tests.neighbours import SUBJECTS, write_corpus

QUICK = {"rounds": 20, "learning_rate": 0.3, "depth": 3}


def write(folder: Path, n: int = 60, gold: bool = True) -> dict[str, Any]:
    """Write questions and outcomes: of even ones `first` finds the gold passage, of odd ones `second`."""
    rows, questions = [], []
    for number in range(n):
        subject = SUBJECTS[number % 12]
        question = Question(f"q{number}", f"What stands beside the {subject} of tale {number}?")
        passages = [f"p{(number + step) % 12}" for step in range(5)]
        questions.append(
            {"id": question.id, "question": question.text, "answers": ["it"]}
            | ({"gold_ids": passages[:1]} if gold else {})
        )
        for arm, finds in (("first", number % 2 == 0), ("second", number % 2 == 1)):
            found = [passages[3], passages[0], passages[1]] if finds else [passages[2], passages[4]]
            right = {"em": float(finds), "f1": float(finds)}
            rows.append(portfolio_outcomes.Outcome(question, arm, tuple(found), SUBJECTS[number % 11], right))
        rows.append(portfolio_outcomes.Outcome(question, "none", (), "", {"em": 0.0, "f1": 0.1}))
    portfolio_outcomes.write_outcomes(folder / "outcomes.jsonl", rows)
    (folder / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in questions))
    return {"outcomes": [folder / "outcomes.jsonl"], "queries": folder / "queries.jsonl"}


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AppConfig:
    monkeypatch.delenv("ARMWISE_HOME", raising=False)
    source = write_corpus(tmp_path / "corpus.jsonl")
    return parse(
        {**CONFIG, "home": str(tmp_path / "home"), "corpus": {"name": "small", "source": str(source)}}
    )


def train(config: AppConfig, **fields: Any) -> tuple[RelevanceModel, str]:
    output = StringIO()
    given = {"config": config, "fitting": QUICK, "output": config.home_path / "relevance"}
    done = train_relevance(
        RelevanceTraining.model_validate(given | fields), Console(file=output, width=120), lambda *_: None
    )
    return done, output.getvalue()


def test_the_fused_list_finds_what_either_arm_does(config: AppConfig, tmp_path: Path) -> None:
    _, said = train(config, **write(tmp_path), folds=3)
    held_out = json.loads((config.home_path / "relevance" / ABOUT).read_bytes())["held_out"]
    assert (held_out["questions"], held_out["k"]) == (60, 3)
    recall = held_out["recall"]
    assert recall["first"] == recall["second"] == 0.5
    assert recall["best arm a question"] == recall["every passage found"] == 1.0
    assert recall["learned fusion"] > 0.95 > recall["rrf of all"]
    assert held_out["auc"] > 0.95
    assert "60 questions that were held out" in said
    assert "relevance on 60 questions and 3 arms" in said


def test_the_arm_that_it_prints_serves_the_model(config: AppConfig, tmp_path: Path) -> None:
    model, said = train(config, **write(tmp_path))
    assert "kind: learned_fusion, params: {arms: [first, second], model: " in said
    folder = str(config.home_path / "relevance")
    settled = config.resolve_places()
    corpus = ingest(settled.corpus.source, settled.corpus_sources[0].folder)
    words, params = ArmSpec(kind="bm25"), {"arms": ["first", "second"], "model": folder}
    specs = {"first": words, "second": words, "arm": ArmSpec(kind="learned_fusion", params=params)}
    resources = Resources(corpus, settled.indexes_path, {}, specs)
    prepare(resources)
    found = build_arm("arm", resources).search(Query("What stands beside the moon?"), 3).passages
    members = {name: build_arm(name, resources).search(Query("What stands beside the moon?"), 3).passages
               for name in ("first", "second")}  # fmt: skip
    relevance = model.relevance("What stands beside the moon?", members)
    assert {passage.id: passage.score for passage in found} == relevance
    assert read_model(Path(folder)).save() == model.save()


@pytest.mark.slow
def test_the_model_does_not_depend_on_what_is_held_out(config: AppConfig, tmp_path: Path) -> None:
    files = write(tmp_path)
    first, second, third = (train(config, **files, **fields)[0].save() for fields in (
        {}, {"folds": 4}, {"held_out": 0.0},
    ))  # fmt: skip
    assert first == second == third


# -- columns of a router ----------------------------------------------------------------------------------


def router(config: AppConfig, files: dict[str, Any], stage: str = "retrieved", **fields: Any) -> Trained:
    params = {"stage": stage, "dims": 0, "rounds": 60}
    given = {"config": config, "router": {"kind": "pointwise_xgboost", "params": params}, "relevance": True}
    given |= {"output": config.home_path / "router"}
    wanted = Training.model_validate(given | files | fields)
    return train_router(wanted, Console(file=StringIO()), lambda *_: None)


@pytest.mark.slow
def test_relevance_is_the_same_in_service_as_in_training(config: AppConfig, tmp_path: Path) -> None:
    files = write(tmp_path)
    trained, settled = router(config, files), config.resolve_places()
    assert trained.router.schema is not None
    assert set(RELEVANCE) < set(trained.router.schema.retrieved)
    read = read_trained(config.home_path / "router")
    corpus, backbone = (
        ingest(settled.corpus.source, settled.corpus_sources[0].folder),
        settled.backbones["tiny"],
    )

    async def vectors(_: str, ids: Sequence[str]) -> Any:
        return PassageVectors(corpus, settled.indexes_path, backbone).look_up(ids)

    scorer = RouterScorer(read, vectors, 5.0)
    asyncio.run(scorer.warm_up(embed_tiny(backbone)))
    observed = observe_features(
        read_labelled(files["outcomes"], read_questions(files["queries"])),
        settled,
        "tiny",
        Stage.RETRIEVED,
        lambda *_: None,
        read.relevance,
    )
    expected, arms = read.router.scores(observed.features), observed.features.arms
    for row in range(6):
        query = Query(observed.features.texts[row], {"tiny": observed.features.embedding[row]})
        found = dict(zip(arms, (Retrieval(tuple(one)) for one in observed.found[row]), strict=True))
        scores = asyncio.run(scorer.scores(query, arms, found))
        assert [scores[arm] for arm in arms] == pytest.approx(expected[row].tolist(), abs=1e-6)


def embed_tiny(backbone: Backbone) -> Any:
    async def embed(text: str, _: frozenset[str]) -> dict[str, Any]:
        return {"tiny": build_embedder(backbone).encode_queries([text])[0]}

    return embed


@pytest.mark.slow
def test_relevance_of_a_question_ignores_its_own_gold(config: AppConfig, tmp_path: Path) -> None:
    files = write(tmp_path)
    observed = observe_features(
        read_labelled(files["outcomes"], read_questions(files["queries"])),
        config.resolve_places(),
        "tiny",
        Stage.RETRIEVED,
        lambda *_: None,
    )
    texts, gold = observed.features.texts, [[f"p{number % 12}"] for number in range(60)]
    known, held_out = np.arange(12, 60), np.arange(12)

    def relevance(gold: list[list[str]]) -> list[Any]:
        examples = observed.examples(gold, lambda *_: None)
        return relevance_of_others(examples, texts, known, 0)[1]

    before = relevance(gold)
    unseen = relevance([["p5"]] * 12 + gold[12:])
    assert unseen == before, "gold passages of questions that are not known change nothing"
    fold = cross_validation.folds([texts[row] for row in known], 5, 0)[0][1]
    own = known[fold]
    changed = relevance([["p5"] if row in own else ids for row, ids in enumerate(gold)])
    assert [changed[row] for row in own] == [before[row] for row in own]
    assert [changed[row] for row in held_out] != [before[row] for row in held_out]


@pytest.mark.slow
def test_answers_are_compared_by_relevance_of_their_passages(config: AppConfig, tmp_path: Path) -> None:
    schema = router(config, write(tmp_path), "answered").router.schema
    assert schema is not None
    assert set(SUPPORT) < set(schema.answered)


@pytest.mark.slow
def test_a_router_without_its_model_of_relevance_is_refused(config: AppConfig, tmp_path: Path) -> None:
    router(config, write(tmp_path))
    folder = config.home_path / "router"
    train(config, **write(tmp_path), output=folder)
    with pytest.raises(RouterError, match="holds another model of relevance than its router was trained"):
        read_trained(folder)
    (folder / "relevance.model").unlink()
    with pytest.raises(RouterError, match="has no relevance model"):
        read_trained(folder)


def test_a_router_of_the_question_alone_has_no_relevance(config: AppConfig, tmp_path: Path) -> None:
    with pytest.raises(RouterError, match="needs a router that sees passages"):
        router(config, write(tmp_path), "question")
    with pytest.raises(RouterError, match="learned from the gold_ids of questions: give them with --queries"):
        router(config, write(tmp_path, gold=False))


# -- what is refused -------------------------------------------------------------------------------------


def test_questions_without_gold_passages_are_left_out(config: AppConfig, tmp_path: Path) -> None:
    files = write(tmp_path)
    lines = files["queries"].read_text().splitlines()
    some = [json.loads(line) for line in lines]
    for row in some[:20]:
        del row["gold_ids"]
    files["queries"].write_text("".join(json.dumps(row) + "\n" for row in some))
    assert train(config, **files)[0].header.questions == 40


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"queries": None}, "give them with --queries"),
        ({"arms": ("frist",)}, "no arm of the outcomes.*frist"),
        ({"arms": ("first",)}, r"passages of 1 arm \(first\)"),
        ({"folds": 99}, "60 questions are too few for 99 folds"),
    ],
)
def test_what_does_not_fit_is_named(
    config: AppConfig, tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        train(config, **(write(tmp_path) | fields))


def test_passages_of_another_corpus_alone_are_refused(config: AppConfig, tmp_path: Path) -> None:
    files = write(tmp_path)
    text = files["outcomes"][0].read_text()
    files["outcomes"][0].write_text(text.replace('"p11"', '"x11"'))
    assert "1 passages not of corpus 'small' count as not found" in train(config, **files)[1]
    files["outcomes"][0].write_text(text.replace('"p', '"x').replace('"xassages', '"passages'))
    with pytest.raises(RouterError, match=r"none of the 12 passages.*'x0'"):
        train(config, **files)


def test_the_command_line_refuses_what_only_a_router_has(tmp_path: Path) -> None:
    files = write(tmp_path)
    (tmp_path / "serve.yaml").write_text(
        json.dumps({"applications": [{"import_path": "armwise.agent.app:build", "args": CONFIG}]})
    )
    words = ["lab", "train", str(files["outcomes"][0]), "--model", "relevance", "-o", "x"]
    words += ["-c", str(tmp_path / "serve.yaml")]
    given = {
        "--router": "ltrr",
        "--stage": "question",
        "--spec": "x.yaml",
        "--measure": "em",
        "--prior": "0.5",
        "--cost-weight": "0.1",
        "--over": "a",
    }
    done = CliRunner().invoke(app, [*words, *chain.from_iterable(given.items()), "--minmax"])
    assert done.exit_code == 2
    assert f"{', '.join(given)}, --minmax: only a router has that, not --model relevance" in done.stderr


@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.booleans()), min_size=2, max_size=30
    ).filter(lambda pairs: len({gold for _, gold in pairs}) == 2)
)
def test_auc_is_that_of_scikit_learn(pairs: Sequence[tuple[float, bool]]) -> None:
    values, gold = np.array([value for value, _ in pairs]), np.array([one for _, one in pairs])
    assert auc(values, gold) == pytest.approx(roc_auc_score(gold, values))
