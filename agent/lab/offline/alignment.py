"""Compare generated questions with real questions, and weight them by their similarity.

A classifier that distinguishes the two by words, form and length measures the difference: its
cross-validated AUC is .5 if they are alike and 1 if they never are. Its odds estimate the density ratio, by
which generated questions are weighted. Questions made by rules take their words from their passages, which
favours lexical arms; `balance` weights the questions so that the lexical and the dense arms of a score matrix
score the same on average, as they do over public collections.

Source: Sugiyama et al. 2012, Density Ratio Estimation in Machine Learning, chapter 4 (probabilistic
classification); for the tolerable share of wrong labels, arXiv:2604.02527; for equal means of lexical and
dense arms, Thakur et al. 2021, BEIR, arXiv:2104.08663.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator
from rich.console import Console
from rich.table import Table

from armwise.agent.config import AppConfig
from armwise.agent.config.warm_start import QUESTION_LINE
from armwise.agent.lab.simulation import SimulatedQuestion, load_questions
from armwise.agent.routers import features as router_features
from armwise.arms.base import Progress
from armwise.arms.lab.portfolio import ScoreMatrix, read_matrix
from armwise.arms.tokenizer import written_words
from armwise.feedback.events import LABELS, Mode
from armwise.feedback.log import Store
from armwise.feedback.training_log import read_examples

Floats = NDArray[np.float64]

FEWEST = 30
"""Fewest questions of either set for a comparison."""

LARGEST = 10.0
"""Upper limit of the weight of a generated question, before normalisation, so that none dominates."""

HELPS, HURTS = 0.3, 0.5
"""Shares of wrong labels up to which a warm start helps, and from which it hurts."""

FAMILIES = ("bm25", "dense")
"""Kinds of lexical and of dense arms."""

FOLDS = 5

SHOWN = 8
"""Most rows and words that are printed."""


class Comparing(BaseModel):
    """Settings of a comparison of generated questions."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    config: AppConfig = Field(description="Names the log.")
    made: Path = Field(description="Made questions, from `armwise synthesize`.")
    traffic: Path | None = Field(
        default=None, description=f"Real questions, which need no answers: JSON lines, each {QUESTION_LINE}."
    )
    from_log: bool = Field(default=False, description="Take the real questions from the log instead.")
    scores: Path | None = Field(
        default=None,
        description="Score matrix of the made questions; lexical and dense arms are brought on a par.",
    )
    output: Path | None = Field(
        default=None, description="File of the made questions to use: a sample by weight; must not exist."
    )
    seed: int = Field(
        default=0, ge=0, description="Seed that shuffles questions into folds and draws the sample."
    )

    @model_validator(mode="after")
    def _something(self) -> "Comparing":
        if self.traffic is not None and self.from_log:
            raise ValueError("either traffic or from_log names the real questions, not both")
        if self.traffic is None and not self.from_log and self.scores is None:
            raise ValueError("nothing to compare with: name traffic, from_log or scores")
        return self


@dataclass(frozen=True, slots=True)
class Alignment:
    """Similarity of generated and real questions.

    Attributes:
        auc: Cross-validated area under the ROC curve of the classifier; .5: they are alike.
        unlike: Estimated total variation distance of the two, at least 0: the share of the generated
            questions that are unlike any real question, a bound on the share of misleading labels.
        weights: Weights of the generated questions, mean 1, shape (n_made,).
        words: Words and word pairs most typical of generated questions, and of real questions.
    """

    auc: float
    unlike: float
    weights: Floats
    words: tuple[tuple[str, ...], tuple[str, ...]]

    @property
    def verdict(self) -> str:
        """Recommendation whether to use the labels, as text."""
        if self.unlike <= HELPS:
            return "the labels may be used as they are"
        if effective_size(self.weights) < FEWEST:
            return "do not use the labels: hardly a made question is like a real one"
        if self.unlike <= HURTS:
            return "use the labels with their weights"
        return "use the labels only with their weights, and as a start that feedback corrects"


def compare_questions(settings: Comparing, console: Console, on_progress: Progress) -> Floats:
    """Compare, print the report, write the sample, and return the weights, mean 1, shape (n_made,).

    Raises:
        ValueError: A file is unusable, the scores are of other questions or lack a lexical or a dense arm,
            or the output exists; subclasses distinguish these.
        StoreError: The log cannot be read.
    """
    if settings.output is not None and settings.output.exists():
        raise ValueError(f"{settings.output} exists: choose another output, or delete it")
    made = load_questions(settings.made)
    weights = np.ones(len(made))
    real = _real(settings, on_progress)
    if real is not None:
        weights *= _aligned(made, real, settings, console)
    if settings.scores is not None:
        families = _of_families(settings.scores, made)
        for lexical, dense in families.values():
            weights = balance(weights, lexical, dense)
        for corpus, (lexical, dense) in families.items():
            before, after = (round(float((w * (lexical - dense)).mean()), 3) + 0.0 for w in (1.0, weights))
            where = "" if corpus is None else f"in corpus {corpus}, "
            console.print(
                f"{where}lexical arms are {before:+.3f} above dense ones on the made questions; weighted "
                f"{after:+.3f}",
                highlight=False,
                soft_wrap=True,
            )
    size = effective_size(weights)
    console.print(f"effective size {size:,.0f} of {len(made):,} made questions", highlight=False)
    if settings.output is not None:
        kept = sample(weights, round(size), settings.seed)
        lines = [orjson.dumps(made[at].model_dump(exclude_none=True)) for at in kept.tolist()]
        settings.output.write_bytes(b"\n".join(lines) + b"\n")
        console.print(f"{len(kept):,} of them written to {settings.output}", markup=False, highlight=False)
    return weights


def align(made: Sequence[str], real: Sequence[str], seed: int = 0) -> Alignment:
    """Estimate the similarity of two sets of questions.

    Args:
        made: Generated questions, at least `FOLDS`.
        real: Real questions, at least `FOLDS`.
        seed: Seed that shuffles questions into folds.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline, make_union
    from sklearn.preprocessing import FunctionTransformer, StandardScaler

    texts = np.array([*made, *real], dtype=object)
    is_real = np.repeat([0, 1], [len(made), len(real)])
    by_words = TfidfVectorizer(
        analyzer=router_features.terms, min_df=2, max_features=20_000, sublinear_tf=True
    )
    by_form = make_pipeline(FunctionTransformer(router_features.question_table), StandardScaler())
    classifier = make_pipeline(
        make_union(by_words, by_form), LogisticRegression(max_iter=1000, class_weight="balanced")
    )
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    p = cross_val_predict(classifier, texts, is_real, cv=folds, method="predict_proba")[:, 1]
    recalls = [(p[is_real == 1] >= 0.5).mean(), (p[is_real == 0] < 0.5).mean()]
    odds = p / np.maximum(1.0 - p, 1e-9)  # balanced classes: the ratio of the densities
    weights = np.minimum(odds[is_real == 0], LARGEST)
    classifier.fit(texts, is_real)
    vocabulary = classifier[0].transformer_list[0][1].get_feature_names_out()
    order = np.argsort(classifier[1].coef_[0][: len(vocabulary)])
    return Alignment(
        auc=float(roc_auc_score(is_real, p)),
        unlike=float(max(0.0, sum(recalls) - 1.0)),
        weights=weights / weights.mean(),
        words=(tuple(vocabulary[order[:SHOWN]]), tuple(vocabulary[order[::-1][:SHOWN]])),
    )


def balance(weights: Floats, lexical: Floats, dense: Floats) -> Floats:
    """Return the weights nearest to the given weights under which two families score the same on average.

    Exponential tilting `w exp(-t d)` by the difference d has the least Kullback-Leibler divergence from w of
    all weights with that property. If one family is never better, w is returned.

    Args:
        weights: At least 0, shape (n,).
        lexical: Scores of the lexical family in [0, 1], shape (n,).
        dense: Scores of the dense family in [0, 1], shape (n,).

    >>> balance(np.ones(3), np.array([1.0, 1.0, 0.0]), np.array([0.0, 0.0, 1.0])).round(3).tolist()
    [0.75, 0.75, 1.5]
    """
    difference = lexical - dense
    compared = ~np.isnan(difference) & (weights > 0)
    if not ((difference[compared] > 0).any() and (difference[compared] < 0).any()):
        return weights
    d = np.where(compared, difference, 0.0)
    low, high = -50.0, 50.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if (weights * np.exp(-middle * d) * d).sum() > 0 else (low, middle)
    tilted: Floats = weights * np.exp(-low * d)
    tilted /= tilted.mean()
    return tilted


def on_par(matrix: ScoreMatrix, seed: int = 0) -> NDArray[np.intp]:
    """Return a sample of a matrix's questions on which lexical and dense arms score the same on average.

    If no corpus has arms of both families, all questions are returned.
    """
    weights = np.ones(len(matrix.questions))
    if not (families := _families(matrix)):
        return np.arange(len(matrix.questions))
    for lexical, dense in families.values():
        weights = balance(weights, lexical, dense)
    return sample(weights, int(weights.sum() / weights.max()), seed)  # a larger sample would cap weights


def effective_size(weights: Floats) -> float:
    """Return Kish's effective sample size.

    >>> effective_size(np.array([1.0, 1.0, 0.0, 0.0]))
    2.0
    """
    return float(weights.sum() ** 2 / (weights**2).sum())


def sample(weights: Floats, n: int, seed: int) -> NDArray[np.intp]:
    """Draw at most `n` distinct rows in proportion to their weights, by systematic sampling; in order.

    A row whose weight exceeds 1 / n of the sum is drawn once.

    >>> sample(np.array([0.0, 1.0, 1.0, 0.0]), 2, 0).tolist()
    [1, 2]
    """
    points = (np.arange(n) + np.random.default_rng(seed).random()) / n * weights.sum()
    return np.unique(np.searchsorted(np.cumsum(weights), points, side="right"))


def _real(settings: Comparing, on_progress: Progress) -> list[str] | None:
    """Return the distinct real questions; None: the settings name none."""
    if settings.traffic is not None:
        return list(dict.fromkeys(question.question for question in load_questions(settings.traffic)))
    if not settings.from_log:
        return None
    config = settings.config.settled()
    store = Store(config.database_url, config.reward.join, create=False)
    try:
        total = store.counts()["examples"]
        on_progress("reading the log", 0, total)
        examples = read_examples(store, config.reward.join, upto=total)
        decisions = [example.decision for example in examples if example.decision.mode is Mode.EXPLORE]
        questions = [decision.context.question for decision in decisions if decision.policy != LABELS]
    finally:
        store.close()
    on_progress("reading the log", total, total)
    return list(dict.fromkeys(questions))


def _aligned(
    made: Sequence[SimulatedQuestion], real: Sequence[str], settings: Comparing, console: Console
) -> Floats:
    """Print the comparison, and return the weights of the generated questions."""
    if min(len(real), len(made)) < FEWEST:
        console.print(
            f"{len(made):,} made and {len(real):,} real questions: {FEWEST} of each are needed to say how "
            "alike they are; all weights are 1",
            highlight=False,
            soft_wrap=True,
        )
        return np.ones(len(made))
    texts = [question.question for question in made]
    alignment = align(texts, real, settings.seed)
    names = router_features.QUESTION
    means = [router_features.question_table(some).mean(axis=0) for some in (texts, real)]
    spread = router_features.question_table([*texts, *real]).std(axis=0)
    table = Table("", "made", "real", title=f"{len(made):,} made and {len(real):,} real questions")
    table.add_row(
        "words", *(f"{np.mean([len(written_words(t)) for t in some]):.1f}" for some in (texts, real))
    )
    table.add_row(
        "in small letters", *(f"{np.mean([t == t.lower() for t in some]):.0%}" for some in (texts, real))
    )
    apart = np.abs(means[0] - means[1]) / np.where(spread > 0, spread, np.inf)
    for at in np.argsort(-apart)[:SHOWN].tolist():
        table.add_row(names[at], f"{means[0][at]:.2f}", f"{means[1][at]:.2f}")
    console.print(table)
    groups = sorted({question.group for question in made})
    of = np.array([question.group for question in made])
    shares = ", ".join(f"{group} {alignment.weights[of == group].mean():.2f}" for group in groups)
    for line in (
        f"mark of the made ones: {', '.join(alignment.words[0])}",
        f"mark of the real ones: {', '.join(alignment.words[1])}",
        f"mean weight by kind: {shares}",
        f"a classifier distinguishes them with AUC {alignment.auc:.3f} (.5: alike, 1: never alike); at most "
        f"{alignment.unlike:.0%} of the made questions are unlike any real one",
        alignment.verdict,
    ):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return alignment.weights


def _of_families(path: Path, made: Sequence[SimulatedQuestion]) -> dict[str | None, tuple[Floats, Floats]]:
    """Return `_families` of a score matrix on the made questions. Raises ValueError."""
    matrix = read_matrix(path)
    column = {question.id: at for at, question in enumerate(matrix.questions)}
    missing = [question.id for question in made if question.id not in column]
    if missing:
        raise ValueError(f"{path} has no score of question {missing[0]!r}: score the made questions")
    at = [column[question.id] for question in made]
    if not (families := _families(matrix)):
        kinds = {spec.kind for spec in matrix.table.specs.values()}
        lacking = next((f"arm of kind {kind}" for kind in FAMILIES if kind not in kinds), None)
        what = lacking or f"arms of kind {' and '.join(FAMILIES)} over the same corpus"
        raise ValueError(f"{path} has no {what}: there is nothing to bring on a par")
    return {corpus: (lexical[at], dense[at]) for corpus, (lexical, dense) in families.items()}


def _families(matrix: ScoreMatrix) -> dict[str | None, tuple[Floats, Floats]]:
    """Return the mean scores of lexical and of dense arms, for each corpus that has both.

    Arms of different corpora would differ by their passages, and not by lexical or dense search alone.
    """
    rows: dict[str | None, dict[str, list[int]]] = {}
    for row, spec in enumerate(matrix.table.specs.values()):
        if spec.kind in FAMILIES:
            rows.setdefault(spec.corpus, {}).setdefault(spec.kind, []).append(row)
    scores = matrix.scores.astype(np.float64)
    return {
        corpus: (scores[of[FAMILIES[0]]].mean(axis=0), scores[of[FAMILIES[1]]].mean(axis=0))
        for corpus, of in rows.items()
        if len(of) == len(FAMILIES)
    }
