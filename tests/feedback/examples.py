"""Random training logs and rules, and a log in a database that has them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import sqlalchemy as sa

from armwise.feedback.decisions import EVERYTHING, ProgressCallback, Selection, tabulate
from armwise.feedback.events import (
    LABELS,
    Context,
    Cost,
    Decision,
    Example,
    Execution,
    Mode,
    ModelTokens,
    Status,
)
from armwise.feedback.log import Store, facts
from armwise.feedback.log import tables as t
from armwise.feedback.log.facts import list_texts
from armwise.feedback.logged_draws import LoggedDraws
from armwise.feedback.reward import Metric, Prices, RewardRule
from armwise.feedback.sources import LogSource, TrainingLog

ARMS = ("bm25", "dense", 'what, "else"%\n\'')
METRICS = ("right", "thumb", "late")
QUESTIONS = ("", "why?", 'say "yes",\r\nor \\.', "naïve")
FEATURES = ("w=why", 'q="x%"')
TOKENS: Mapping[str, ModelTokens] = {"large": (900, 80, 7), "small": (900, 80, 7, 0.25), "gone": (900, 80, 7)}


def example(
    seq: int = 1,
    probabilities: Sequence[float] = (0.25, 0.75),
    drawn: int | str = 0,
    metrics: dict[str, float] | None = None,
    *,
    cost: Cost = Cost(),  # noqa: B008 - it cannot change
    failed: bool = False,
    tokens: Mapping[str, ModelTokens] = {},
    **decision: object,
) -> Example:
    """Return an example between the first so many arms."""
    one = Decision(
        id=f"d{seq}",
        context=Context(f"what is {seq}?"),
        arms=ARMS[: len(probabilities)],
        probabilities=tuple(probabilities),
        drawn=drawn if isinstance(drawn, str) else ARMS[drawn],
        policy="greedy",
        version=1,
        decided_at=float(seq),
    )
    said = {"right": 1.0} if metrics is None else metrics
    made = replace(one, **decision)  # type: ignore[arg-type]
    return Example(seq, made, cost, said, failed, tokens_by_model=tokens)


def write(store: Store, join: str, examples: Sequence[Example]) -> None:
    """Make the training log of `join` in a database have these examples, and the database no others."""
    with store.writing() as connection:
        for table in (t.examples, t.executions, t.decisions, t.texts):
            connection.execute(sa.delete(table))
        if examples:
            connection.execute(
                sa.insert(t.decisions),
                [facts.decision_row(x.decision, x.seq, x.decision.decided_at) for x in examples],
            )
            documents = [{"seq": x.seq, "document": list_texts(x.decision), "salt": ""} for x in examples]
            connection.execute(sa.insert(t.texts), documents)
            executions = [
                Execution(
                    *(x.decision.id, None, Status.ARM_FAILED if x.failed else Status.OK, x.cost),
                    tokens_by_model=x.tokens_by_model,
                )
                for x in examples
            ]
            rows = [facts.execution_row(one, -x.seq) for one, x in zip(executions, examples, strict=True)]
            connection.execute(sa.insert(t.executions), rows)
            joined = [
                {
                    "join": join,
                    "seq": x.seq,
                    "decision_id": x.decision.id,
                    "metrics": dict(x.metrics),
                    "joined_by": 1,
                }
                for x in examples
            ]
            connection.execute(sa.insert(t.examples), joined)


def some_rule(rng: np.random.Generator) -> RewardRule:
    """Draw a rule of up to three metrics."""
    names = rng.permutation(METRICS)[: rng.integers(len(METRICS) + 1)]
    return RewardRule(
        metrics={
            str(name): Metric(
                range=(-float(rng.uniform(0.0, 9.0)), float(rng.uniform(0.1, 9.0))),
                optimize="max" if rng.random() < 0.5 else "min",
                weight=float(rng.uniform(0.1, 9.0)),
            )
            for name in names
        },
        cost_weight=float(rng.choice([0.0, 0.1, 2.0])),
        cost=Prices(
            **{name: float(rng.choice([0.0, rng.uniform(0.0, 3.0)])) for name in Prices.model_fields}
        ),
        token_prices=[{}, {"large": (0.5, 2.0, 0.25), "small": (0.125, 0.5, 0.125)}][rng.integers(2)],
        default=None if rng.random() < 0.5 else float(rng.uniform(-1.0, 1.0)),
        failed=None if rng.random() < 0.5 else float(rng.uniform(-1.0, 1.0)),
        clip=[(-1.0, 1.0), (-100.0, 100.0), (0.0, 0.5)][rng.integers(3)],
    )


def some_examples(rng: np.random.Generator, n: int) -> list[Example]:
    """Draw a training log, most of which can be evaluated."""
    return [_some_example(rng, seq) for seq in range(1, n + 1)]


def _some_example(rng: np.random.Generator, seq: int) -> Example:
    n_arms = int(rng.integers(1, len(ARMS) + 1))
    said = [str(name) for name in (*METRICS, "undeclared") if rng.random() < 0.5]
    features = {name: float(rng.choice([0.0, 1.0, 0.5])) for name in FEATURES if rng.random() < 0.7}
    return example(
        seq,
        probabilities=rng.dirichlet(np.ones(n_arms)).tolist(),
        drawn=int(rng.integers(n_arms)),
        metrics={name: float(rng.random()) for name in said},
        cost=Cost(*rng.integers(0, 9000, 3).tolist(), *rng.random(3).tolist()),
        failed=bool(rng.random() < 0.2),
        tokens={name: used for name, used in TOKENS.items() if rng.random() < 0.3},
        context=Context(QUESTIONS[rng.integers(len(QUESTIONS))], features),
        mode=[Mode.EXPLORE, Mode.EXPLORE, Mode.EXPLORE, Mode.GREEDY, Mode.FORCED][rng.integers(5)],
        policy=["greedy", "vowpal", "vowpal", LABELS][rng.integers(4)],
        version=int(rng.integers(4)),
        decided_at=float(rng.uniform(0.0, 9.0)),
        episode_id=[None, "e", "f"][rng.integers(3)],
    )


def log_of(
    source: TrainingLog,
    rule: RewardRule,
    selection: Selection = EVERYTHING,
    on_progress: ProgressCallback | None = None,
) -> LoggedDraws:
    """Return what can be evaluated of a training log."""
    blocks = source.blocks(rule, selection, on_progress)
    return LoggedDraws.from_decisions((decisions for decisions, _ in blocks), selection)


def log_of_examples(
    examples: Iterable[Example], rule: RewardRule, selection: Selection = EVERYTHING
) -> LoggedDraws:
    """Return what can be evaluated of examples."""
    return LoggedDraws.from_decisions(tabulate(examples, rule, selection), selection)


def read_log(store: Store, rule: RewardRule, *given: Any) -> LoggedDraws:
    """Return what can be evaluated of the training log of a rule."""
    return log_of(LogSource(store, rule), rule, *given)
