"""R3AG's router, with fine-tuned encoders and with frozen ones, against other ways to choose a retriever.

    python benchmarks/r3ag.py DATA [--seeds 5]

DATA holds `qa/`, as in `routing.py`. Each question is scored by a router that was fitted to questions about
other passages. The best retrievers are chosen on the questions that the routers are fitted to, too. No judge
has scored these passages, so the label of quality is the recall of the supporting passages, 0 for `none`.
Every seed of R3AG has other initial weights, batches and held-out questions. `gain` is the exact match of a
row less that of the best single retriever, question by question, a mean over seeds with its standard error
over seeds and questions; `over seeds` is the part of the seeds. The second table has the questions that
compare two things, such as "Who was born first?", for which no retrieval is often right.

Fine-tuning takes about five minutes of a core per fold and seed. The picks are kept in a folder, so that you
can stop it and go on; delete the folder when the router changes.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from routing_data import ENCODER, DataSet, Encoder, json_lines, qa_outcomes
from seed_errors import errors

from armwise.agent.lab.routers import cross_validation, utilities
from armwise.agent.lab.routers.cross_validation import Rows
from armwise.agent.lab.routers.r3ag import Capability
from armwise.agent.routers import RouterSpec, build_router
from armwise.agent.routers.utility import R3AG

FOLDS = 3
EPOCHS, BATCH = 3, 32
"""Of fine-tuning. The paper has 10 epochs in batches of 512, of many more questions."""

RATES = (2e-6, 2e-5, 1e-4)
"""Learning rates of fine-tuning that are tried; the first is the paper's, for many more steps."""

TRIED = 800
"""Questions that each rate is tried on, and questions that then choose the best."""


@dataclass(frozen=True)
class Way:
    """A router that is fitted.

    Attributes:
        name: As the table calls it.
        kind: Kind of the router.
        params: Its parameters.
        is_tuned: Whether its encoders are fine-tuned.
    """

    name: str
    kind: str = "capability"
    params: Mapping[str, Any] = field(default_factory=dict)
    is_tuned: bool = False


PUBLISHED = {"positives": "published"}
TUNED = Way("R3AG, fine-tuned, our labels", is_tuned=True)
WAYS = (
    Way("ridge", "ridge"),
    Way("nearest neighbours", "knn"),
    Way("R3AG, frozen, published labels", params=PUBLISHED),
    Way("R3AG, frozen, our labels"),
    *(
        Way(f"the same, without {part}", params={"without": part})
        for part in ("attention", "quality", "utility")
    ),
    TUNED,
)


class Study:
    """Fits routers to parts of the questions, and keeps what they pick.

    Args:
        data: The questions.
        kept: Folder of what was picked before.
        n_scored: Number of folds that are scored.
        seeds: Number of fits of each router that draws.
    """

    def __init__(self, data: DataSet, kept: Path, n_scored: int, seeds: int) -> None:
        self.data, self._kept, self._seeds = data, kept, seeds
        passages = [(question.gold_ids or (question.text,))[0] for question in data.outcomes.questions]
        self.folds = cross_validation.folds(passages, FOLDS)[:n_scored]
        self.is_scored = np.isin(np.arange(len(passages)), np.concatenate([rows for _, rows in self.folds]))

    def pick(self, way: Way, fit: Rows, scored: Rows, rate: float | None = None, seed: int = 0) -> Rows:
        """Return the column of the arm that a router picks on each scored question.

        Args:
            way: The router.
            fit: Questions to fit it to.
            scored: Questions to score.
            rate: Learning rate of fine-tuning, if not the best.
            seed: Draws initial weights, batches and held-out questions.
        """
        about = (
            repr((way, rate, EPOCHS, BATCH, seed)).encode()
            + fit.tobytes()
            + self.data.outcomes.scores["em"].tobytes()
        )
        path = self._kept / f"{hashlib.blake2b(about, digest_size=12).hexdigest()}.npy"
        if not path.exists():
            params = dict(way.params)
            if way.is_tuned:
                params |= {"encoder": ENCODER.model, "learning_rate": rate or self.rate()}
            training, asked = self.data.outcomes.only(fit), self.data.asked
            labels = utilities.routing_labels(asked.rows(fit), training, R3AG, training.scores["recall"])
            Capability.of_heads = replace(Capability.of_heads, seed=seed)
            Capability.of_models = replace(Capability.of_models, epochs=EPOCHS, batch_size=BATCH, seed=seed)
            router = build_router(RouterSpec(kind=way.kind, params=params)).fit(labels)
            self._kept.mkdir(parents=True, exist_ok=True)
            np.save(path, router.scores(asked.rows(scored)).argmax(axis=1))
        return np.asarray(np.load(path))

    def parts(self) -> tuple[Rows, Rows]:
        """Return the questions that a learning rate is tried on, and those that it is chosen by."""
        drawn = np.random.default_rng(0).permutation(self.folds[0][0])
        size = min(TRIED, len(drawn) // 2)
        return drawn[:size], drawn[-size:]

    def worths(self) -> dict[float, float]:
        """Return what each learning rate earns on a validation part."""
        tried, validated = self.parts()
        worth = utilities.utilities(self.data.outcomes, R3AG)[validated]
        at = np.arange(len(validated))
        return {rate: float(worth[at, self.pick(TUNED, tried, validated, rate)].mean()) for rate in RATES}

    def rate(self) -> float:
        """Return the learning rate that earns most."""
        worths = self.worths()
        return max(worths, key=worths.__getitem__)

    def picks(self, progress: Progress) -> dict[str, Rows]:
        """Return what each way picks on all questions, shape (seeds, n_questions)."""
        em = self.data.outcomes.scores["em"]
        n, sources = len(em), np.array([one.dataset for one in self.data.outcomes.questions])
        best, of_source = np.zeros(n, dtype=np.intp), np.zeros(n, dtype=np.intp)
        for fit, scored in self.folds:
            best[scored] = em[fit].mean(axis=0).argmax()
            for source in np.unique(sources):
                here = scored[sources[scored] == source]
                of_source[here] = em[fit[sources[fit] == source]].mean(axis=0).argmax()
        none = np.full(n, self.data.outcomes.arms.index("none"))
        found = {
            "no retrieval": none[None],
            "best single retriever": best[None],
            "best retriever of each source": of_source[None],
        }
        task = progress.add_task("fit", total=len(WAYS) * len(self.folds))
        for way in WAYS:
            seeds = self._seeds if way.kind == Capability.kind else 1
            found[way.name] = np.zeros((seeds, n), dtype=np.intp)
            for fit, scored in self.folds:
                for seed in range(seeds):
                    found[way.name][seed, scored] = self.pick(way, fit, scored, seed=seed)
                progress.advance(task)
        # of the best arms of a question, the one that is best on average
        return {**found, "oracle": (em + 1e-6 * em.mean(axis=0)).argmax(axis=1)[None]}

    def table(self, title: str, picks: Mapping[str, Rows], among: NDArray[np.bool_]) -> Table:
        """Return what the picks earn on some of the scored questions."""
        among = among & self.is_scored
        scores, arms = self.data.outcomes.scores, self.data.outcomes.arms
        table = Table(title=f"{title}: {among.sum():,} questions", title_justify="left", box=box.MARKDOWN)
        for column in ("method", "EM", "F1", "gain", "over seeds", "none", "the best single"):
            table.add_column(column, justify="left" if column == "method" else "right")
        at, best = np.flatnonzero(among), picks["best single retriever"][:, among]
        for name, every in picks.items():
            picked = every[:, among]
            gain = scores["em"][at, picked] - scores["em"][at, best]
            over_seeds, error = errors(gain)
            table.add_row(
                name,
                f"{scores['em'][at, picked].mean():.4f}",
                f"{scores['f1'][at, picked].mean():.4f}",
                f"{gain.mean():+.4f} ± {error:.4f}",
                f"{over_seeds:.4f}" if len(gain) > 1 else "",
                f"{(picked == arms.index('none')).mean():.1%}",
                f"{(picked == best).mean():.1%}",
            )
        return table


def main(
    folder: Annotated[Path, typer.Argument(help="Holds qa/.")],
    cache: Annotated[Path, typer.Option(help="Keeps vectors.")] = Path("~/.armwise/benchmarks"),
    kept: Annotated[Path, typer.Option(help="Keeps picks.")] = Path("~/.armwise/benchmarks/r3ag"),
    scored: Annotated[int, typer.Option(help="Folds to score.", min=1, max=FOLDS)] = FOLDS,
    seeds: Annotated[int, typer.Option(help="Fits of each R3AG.", min=1)] = 1,
) -> None:
    """Fit the router in every way, and print two tables."""
    torch.set_float32_matmul_precision("medium")  # bfloat16, which a third less time is spent with
    console, outcomes = Console(width=140), qa_outcomes(folder / "qa")
    kind_by_id = {told["id"]: told["type"] for told in json_lines(folder / "qa/queries.jsonl.gz")}
    compares = np.array([kind_by_id[one.id].endswith("comparison") for one in outcomes.questions])
    with Progress(console=console) as progress:
        encode = Encoder(cache.expanduser(), progress)
        vectors = encode("questions of qa", [question.text for question in outcomes.questions])
        study = Study(DataSet("qa", outcomes, vectors, {}, {}), kept.expanduser(), scored, seeds)
        picks = study.picks(progress)
    for title, among in {"all": np.ones_like(compares), "comparisons": compares}.items():
        if among.any():
            console.print(study.table(title, picks, among))
    tried = ", ".join(f"{rate:g}: {worth:.4f}" for rate, worth in study.worths().items())
    console.print(f"mean utility by learning rate on the validation part: {tried}")
    telling = utilities.routing_labels(study.data.asked, outcomes, R3AG).telling
    console.print(f"all arms have the same outcome on {1 - telling.mean():.1%} of the questions")


if __name__ == "__main__":
    typer.run(main)
