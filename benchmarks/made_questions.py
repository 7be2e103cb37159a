"""What tells which source to ask before the first rating? Three sources and six corpora.

    python benchmarks/made_questions.py FOLDER [--made 1000] [--orders 3]

The three sources are those of `serve_config.yaml`, whose 144 real questions ship with the examples. FOLDER
holds `qa/`: real questions about six corpora, a sample of which is asked. `adaptive` starts from how well a
question fits each source, or from routers that are fitted to what was found for generated questions.

Cells are the share of questions whose source scores highest, the share of the draws of `adaptive` that go to
it before anything is learned, and the mean share of gold passages found in its first questions, at most 300,
while it learns. The row of inverted scores says what a router costs that misleads.
"""

import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import orjson
import sources
import typer
from numpy.typing import NDArray
from rich.box import MARKDOWN
from rich.console import Console
from rich.progress import track
from rich.table import Table
from routing_data import json_lines
from threadpoolctl import threadpool_limits

from armwise.agent.cli.console import progress
from armwise.agent.lab.routers.cross_validation import folds, out_of_fold_scores
from armwise.agent.policies import PolicySpec, build_policy, compute_served_distribution
from armwise.agent.routers import RoutingDataset, build_router
from armwise.agent.routers.catalog import RouterSpec
from armwise.arms.base import Query
from armwise.arms.corpus import CorpusSource, ingest_all
from armwise.arms.models import build_embedder
from armwise.arms.profile import ProfileSpec, measure_nearness, similarities
from armwise.arms.retrievers import ArmSpec, Resources, build_arm, prepare, prepare_profiles, read_profiles

ROOT = Path(__file__).parents[1]

ASKED, FIRST = 1000, 300
"""Real questions at most, and those during which the policy learns."""

EMBEDDING = {"kind": "ridge", "params": {"sees": "embedding"}}

CALIBRATED = "source fit, calibrated"

ROUTERS: Mapping[str, Mapping[str, Any]] = {
    "embedding": EMBEDDING,
    CALIBRATED: {"kind": "calibrated", "params": {"held_out": "kinds", "router": {"kind": "source_fit"}}},
}
"""Routers; the last one is that of `serve_config.yaml`."""

Floats = NDArray[np.float64]


class World:
    """Some corpora, an arm over each, and real questions.

    Args:
        corpora: What each corpus is read from.
        fused: Whether an arm fuses search by words and by vectors; otherwise it searches by words.
        passages: Passages in the profile of a source.
        real: The real questions, with `question` and `gold_ids`.
        home: Where corpora and indexes go.
    """

    def __init__(
        self,
        corpora: Mapping[str, str],
        *,
        fused: bool,
        passages: int,
        real: Sequence[Mapping[str, Any]],
        home: Path,
    ) -> None:
        self.names, self.corpora, self.home = tuple(corpora), corpora, home
        corpus = ingest_all(
            [CorpusSource(text, home / "corpora" / name, name) for name, text in corpora.items()]
        )
        specs: dict[str, ArmSpec] = {}
        for name in corpora:
            words, near = ArmSpec(kind="bm25", corpus=name), {"backbone": "minilm"}
            if fused:
                specs[f"{name}_words"] = words
                specs[f"{name}_near"] = ArmSpec(kind="dense", corpus=name, params=near)
                words = ArmSpec(kind="rrf", params={"arms": [f"{name}_words", f"{name}_near"]})
            specs[name] = words
        have = Resources(corpus, home / "indexes", {"minilm": sources.ENCODER}, specs)
        profile = ProfileSpec(backbone="minilm", passages=passages)
        with progress() as on_progress:
            prepare(have, progress=on_progress)
            prepare_profiles(self.names, profile, have, on_progress)
        self.arms = [build_arm(name, have) for name in self.names]
        self.profiles = read_profiles(self.names, profile, have)
        counted = profile.model_copy(update={"backbone": None})
        self.words = read_profiles(self.names, counted, have)
        self.embedder = build_embedder(sources.ENCODER)
        self.real = self.ask([row["question"] for row in real], [row["gold_ids"] for row in real])
        self.right = np.array([self.names.index(gold[0].partition("/")[0]) for gold in self.real.gold])

    def ask(self, texts: Sequence[str], gold: Sequence[Sequence[str]]) -> sources.Asked:
        """Search every source for some questions."""
        vectors = self.embedder.encode_queries(list(texts))
        near = np.array(
            [
                [*similarities(self.profiles, text, vector).values()]
                for text, vector in zip(texts, vectors, strict=True)
            ]
        )
        recall = []
        for text, vector, right in zip(track(texts, "searching"), vectors, gold, strict=True):
            found = [arm.search(Query(text, {"minilm": vector}), sources.K).passages for arm in self.arms]
            recall.append([sources.share_of_gold(passages, right) for passages in found])
        none = np.zeros(len(texts))
        return sources.Asked(
            tuple(texts), vectors, tuple(map(tuple, gold)), np.array(recall), near, none, none
        )

    def make(self, n: int) -> sources.Asked:
        """Generate questions, as many of each corpus, and search for them."""
        made = sources.generate(self.corpora, self.home, n, lambda *_: None)
        return self.ask([one.text for one in made], [one.gold_ids for one in made])

    def fit_by_part(self) -> Mapping[str, Floats]:
        """Return how well each real question fits each source by passages, by words, and by both."""
        every = [self.profiles[name][0] for name in self.names]
        near = np.array(
            [measure_nearness([one.cosines(vector) for one in every]) for vector in self.real.vectors]
        )
        by_words = [[*similarities(self.words, text).values()] for text in self.real.texts]
        return {
            "passages near it": near,
            "its words": np.array(by_words),
            "words and passages": self.real.similarity,
        }

    def learn_from_real(self) -> Floats:
        """Return scores of the real questions by routers that are fitted to labels of other real ones."""
        labels = RoutingDataset(sources.features_of(self.real, self.names), self.real.recall)
        return out_of_fold_scores(
            lambda: build_router(RouterSpec.model_validate(EMBEDDING)), labels, folds(self.real.texts)
        )

    def measure(self, scores: Floats, orders: int) -> tuple[float, float, float]:
        """Return how often the right source is the first, the share of draws for it, and the recall."""
        contexts = sources.contexts_of(self.real, self.names, scores)
        spec, least = {"kind": "adaptive"}, sources.EXPLORATION / len(self.names)
        policy = build_policy(PolicySpec.model_validate(spec), self.names)
        drawn = np.array([compute_served_distribution(policy, one, self.names, least) for one in contexts])
        learned = [
            sources.play(spec, contexts, self.real.recall, self.names, seed, FIRST) for seed in range(orders)
        ]
        first = scores.argmax(axis=1) == self.right
        of_right = drawn[np.arange(len(drawn)), self.right]
        return float(first.mean()), float(of_right.mean()), float(np.mean(learned))


def three(home: Path) -> World:
    """Return the world of `serve_config.yaml`."""
    corpora = {"library": "stdlib", "language": "language", "guides": str(ROOT / "docs" / "guide")}
    lines = (ROOT / "examples" / "questions.jsonl").read_bytes().splitlines()
    real = [orjson.loads(line) for line in lines]
    return World(corpora, fused=True, passages=2000, real=real, home=home)


def six(folder: Path, home: Path) -> World:
    """Return the world of six corpora."""
    names = sources.write_corpora(folder, home)
    rows = [row for row in json_lines(folder / "qa" / "queries.jsonl.gz") if row["gold_ids"]]
    drawn = np.random.default_rng(0).permutation(len(rows))[:ASKED]
    real = [rows[row] for row in drawn]
    corpora = {name: str(home / f"{name}.jsonl") for name in names}
    return World(corpora, fused=False, passages=700, real=real, home=home)


def main(
    folder: Annotated[Path, typer.Argument(help="Holds `qa/`.")],
    made: Annotated[list[int], typer.Option(min=60, help="Questions to generate.")] = [1000],  # noqa: B006
    orders: Annotated[int, typer.Option(min=1, help="Orders of the real questions.")] = 3,
    keep: Annotated[Path | None, typer.Option(help="Where corpora and indexes are kept.")] = None,
) -> None:
    """Fit the routers, and print the table."""
    threadpool_limits(1)  # matrices of a decision are small
    home = keep or Path(tempfile.mkdtemp(prefix="made-"))
    builders = {"three sources": three, "six corpora": partial(six, folder)}
    rows: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for title, build in builders.items():
        (place := home / title).mkdir(parents=True, exist_ok=True)
        world = build(place)
        for name, scores in world.fit_by_part().items():
            rows["none", name] += world.measure(scores, orders)
        for n in made:
            generated = world.make(n)
            for name, spec in ROUTERS.items():
                router = sources.fit(spec, generated, world)
                scores = router.scores(sources.features_of(world.real, world.names))
                rows[f"{n:,}", name] += world.measure(scores, orders)
        inverted = 2.0 * scores.mean(axis=1, keepdims=True) - scores
        rows["the same, with inverted scores", name] += world.measure(inverted, orders)
        rows["real ones with labels", "embedding"] += world.measure(world.learn_from_real(), orders)
        print(title, dict(rows))
    table = Table("generated questions", "known of a question", box=MARKDOWN)
    for title in builders:
        for what in ("first", "drawn", "found"):
            table.add_column(f"{title}: {what}")
    for row, cells in rows.items():
        table.add_row(*row, *(f"{value:.3f}" for value in cells))
    Console(width=160).print(table)


if __name__ == "__main__":
    typer.run(main)
