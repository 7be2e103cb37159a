"""What other policies would have earned: the log of a service, replayed."""

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from agent.config import AppConfig
from agent.policies.catalog import build_policy
from agent.policy import served_distribution
from arms.corpus import Progress
from feedback.database import shown
from feedback.estimators import Estimate, NeverDrawnError
from feedback.events import LABELS, Context, Example, Mode
from feedback.joins import read_examples
from feedback.replay import ESTIMATORS, Log, evaluate, fit_reward_model, fixed, target, uniform
from feedback.store import Store

NEVER_DRAWN = "never drawn"
"""What is said of a candidate none of whose arms the log drew."""


class EvaluationError(ValueError):
    """Nothing can be evaluated; the message says why."""


@dataclass(frozen=True, slots=True)
class Report:
    """Estimates for each candidate, beside what was earned.

    Attributes:
        earned: Mean reward of the decisions that were replayed.
        n: How many they are.
        n_questions: How many different questions they ask.
        excluded: Decisions that were left out, by reason, most frequent first.
        candidates: Estimates by candidate; none for one that was never drawn.
    """

    earned: float
    n: int
    n_questions: int
    excluded: dict[str, int]
    candidates: dict[str, list[Estimate]]

    def table(self) -> Table:
        """Return the estimates as a table."""
        table = Table(title=f"value of a policy on {self.n:,} logged decisions (earned: {self.earned:+.4f})")
        for column in ("policy", "estimator", "value", "95 % interval", "decisions", "effective n"):
            table.add_column(column, justify="left" if column in ("policy", "estimator") else "right")
        for name, estimates in self.candidates.items():
            if not estimates:
                table.add_row(name, NEVER_DRAWN, "n/a", "n/a", "0", "0")
            for row, estimate in enumerate(estimates):
                interval = f"[{estimate.low:+.4f}, {estimate.high:+.4f}]"
                label = name if row == 0 else ""
                table.add_row(
                    label,
                    estimate.estimator,
                    f"{estimate.value:+.4f}",
                    interval,
                    f"{estimate.n:,}",
                    f"{estimate.effective_n:,.0f}",
                )
            table.add_section()
        return table

    def footnote(self) -> str:
        """Say what was left out, what is assumed of it, and how the configured policy was treated."""
        left_out = ", ".join(f"{n:,} {reason}" for reason, n in self.excluded.items()) or "none"
        without_dr = (
            " dr is left out: it needs two different questions or more." if self.n_questions < 2 else ""
        )
        return (
            f"Left out: {left_out}. Values are of explored turns that succeeded and were judged; the others "
            f"are assumed to be missing at random.{without_dr} The configured policy is learned from the log "
            "as it is replayed: each decision is scored before it is learned from, labels only teach. "
            "A fixed arm is evaluated on the decisions for which it could have been drawn."
        )

    def as_json(self) -> dict[str, Any]:
        """Return the report as a document; what is not known is null, and a `note` says why."""
        unknown = {"estimator": None, "value": None, "low": None, "high": None}
        missing = [{**unknown, "n": self.n, "effective_n": 0.0, "note": NEVER_DRAWN}]
        rows = {
            name: [{**asdict(estimate), "note": ""} for estimate in estimates] or missing
            for name, estimates in self.candidates.items()
        }
        return {**asdict(self), "candidates": rows}


def evaluate_log(
    config: AppConfig, names: Sequence[str] | None, rng: np.random.Generator, progress: Progress
) -> Report:
    """Read the training log of a configuration and evaluate policies on it.

    Args:
        config: Names the log, the reward and the configured policy.
        names: `uniform`, `fixed:<arm>` or `configured`; None for all of them.
        rng: Source of the folds of the reward model.
        progress: Told how far it is.

    Raises:
        EvaluationError: The log holds nothing to replay, or a name is unknown.
    """
    with closing(Store(config.database_url, config.reward.join)) as store:
        total, unlearned = store.counts()["examples"], store.unlearned()
        examples = list(_counted(read_examples(store, config.reward.join), total, progress))
    if not examples:
        raise EvaluationError(
            f"the log {shown(config.database_url)} has learned from nothing yet: "
            "ask, send feedback, then replay"
        )
    log = Log.from_examples(examples, config.reward.reward_of)
    candidates = list(names or ["uniform", *(f"fixed:{arm}" for arm in log.arms), "configured"])
    excluded = Counter(log.excluded) + Counter(unlearned)
    predictable = log.n_questions > 1
    q_hat = fit_reward_model(log, rng) if predictable else None
    estimators = [name for name in ESTIMATORS if predictable or name != "dr"]
    estimates: dict[str, list[Estimate]] = {}
    for done, name in enumerate(candidates, start=1):
        kept = _rows(log, name)
        part = log if kept.all() else log.where(kept)
        p_target = _target(config, part, name, examples)
        predicted = None if q_hat is None else q_hat[kept]
        try:
            estimates[name] = evaluate(part, p_target, rng, estimators, q_hat=predicted)
        except NeverDrawnError:
            estimates[name] = []
        progress("evaluating policies", done, len(candidates))
    return Report(
        float(log.reward.mean()), len(log), log.n_questions, dict(excluded.most_common()), estimates
    )


def _counted(examples: Iterable[Example], total: int, progress: Progress) -> Iterable[Example]:
    for done, example in enumerate(examples, start=1):
        if done % 1000 == 0 or done == total:
            progress("reading the log", done, total)
        yield example


def _rows(log: Log, name: str) -> NDArray[np.bool_]:
    """Return the rows that a candidate is evaluated on: those in which a fixed arm could have been drawn."""
    kind, _, arm = name.partition(":")
    return log.eligible(arm) if kind == "fixed" and arm else np.ones(len(log), dtype=np.bool_)


def _target(config: AppConfig, log: Log, name: str, examples: Iterable[Example]) -> NDArray[np.float64]:
    """Return what a candidate would have drawn from in each row, shape (n, n_arms)."""
    kind, _, arm = name.partition(":")
    if kind == "fixed" and arm:
        return fixed(log, arm)
    if name == "uniform":
        return uniform(log)
    if name == "configured":
        return _progressive(config, log, examples)
    raise EvaluationError(f"policy {name!r} is none of: uniform, fixed:<arm>, configured")


def _progressive(config: AppConfig, log: Log, examples: Iterable[Example]) -> NDArray[np.float64]:
    """Let the configured policy decide each row before it learns from it; labels it only learns from."""
    policy = build_policy(config.policy, list(config.actions))
    lessons = (
        (example.decision, reward)
        for example in examples
        if example.decision.mode is Mode.EXPLORE and (reward := config.reward.reward_of(example)) is not None
    )

    def probabilities(context: Context, arms: Sequence[str]) -> NDArray[np.float64]:
        decision, reward = next(lessons)
        while decision.policy == LABELS:
            policy.learn(decision, reward)
            decision, reward = next(lessons)
        p = served_distribution(policy, context, arms, config.floor)
        policy.learn(decision, reward)
        return p

    return target(log, probabilities)
