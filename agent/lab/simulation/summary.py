"""Summarize a simulated run: turns --summarise--> RunSummary --tables--> console.

A turn is a question answered by the policy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from rich.table import Table


@dataclass(frozen=True, slots=True)
class SimulatedTurn:
    """A question, as the policy answered it.

    Attributes:
        position: Index in the order of asking.
        id: Id of the question.
        group: Data set or type of the question.
        decision_id: Id of the decision in the log.
        drawn: The drawn arm.
        arm: The arm that served; it differs from `drawn` only if that failed.
        propensity: Probability with which `drawn` was drawn, in (0, 1].
        pmf: Probability of each arm.
        metrics: Values that were posted as feedback, by metric.
        cost: The cost vector of the reply and its priced `total`.
        reward: Reward by the service's declared rule; None: no metric applied.
        version: Version of the policy that decided.
        latency_s: Seconds from asking to the complete answer, including waits for a busy service.
    """

    position: int
    id: str
    group: str
    decision_id: str
    drawn: str
    arm: str
    propensity: float
    pmf: Mapping[str, float]
    metrics: Mapping[str, float]
    cost: Mapping[str, float]
    reward: float | None
    version: int | str
    latency_s: float


@dataclass(frozen=True, slots=True)
class Traffic:
    """Figures of a run besides its rewards.

    Attributes:
        duration_s: Seconds from the first question to the last feedback, positive.
        failed: Questions that the service could not answer.
        retries: Repeated requests, since the service was busy or unreachable.
        learned: Whether all feedback had been learned when the run ended; None: the run did not wait for it.
    """

    duration_s: float
    failed: int = 0
    retries: int = 0
    learned: bool | None = None


@dataclass(frozen=True, slots=True)
class Level:
    """A mean over the run, and over its last third."""

    overall: float
    last_third: float


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The figures of a run.

    Attributes:
        turns: Number of answered questions.
        scored: Number of turns with a reward.
        reward: Mean reward of those.
        shares: Share of the turns that each arm served, in the first and in the last third.
        groups: For each data set or type, `questions`, the mean of each metric, and `reward`.
        requests_per_s: Answered questions per second.
        latency_p50_s: Median seconds to an answer.
        latency_p99_s: Seconds within which 99 % of the answers came.
        versions: Policy version of the first and of the last turn.
        traffic: Figures besides rewards.
    """

    turns: int
    scored: int
    reward: Level
    shares: Mapping[str, tuple[float, float]]
    groups: Mapping[str, Mapping[str, float]]
    requests_per_s: float
    latency_p50_s: float
    latency_p99_s: float
    versions: tuple[int | str, int | str]
    traffic: Traffic


def summarise(turns: Sequence[SimulatedTurn], arms: Sequence[str], traffic: Traffic) -> RunSummary:
    """Return the figures of a run of at least one turn, in any order."""
    turns = sorted(turns, key=lambda turn: turn.position)
    third = max(1, len(turns) // 3)
    first, last = turns[:third], turns[-third:]
    earned = [turn.reward for turn in turns if turn.reward is not None]
    latency = np.quantile([turn.latency_s for turn in turns], [0.5, 0.99])
    return RunSummary(
        turns=len(turns),
        scored=len(earned),
        reward=Level(_mean(earned), _mean(earned[-max(1, len(earned) // 3) :])),
        shares={arm: (fmean(t.arm == arm for t in first), fmean(t.arm == arm for t in last)) for arm in arms},
        groups=_groups(turns),
        requests_per_s=len(turns) / traffic.duration_s,
        latency_p50_s=float(latency[0]),
        latency_p99_s=float(latency[1]),
        versions=(turns[0].version, turns[-1].version),
        traffic=traffic,
    )


def tables(summary: RunSummary) -> list[Table]:
    """Return the tables: the reward, shares, and a row per group."""
    rewards = _table(f"Mean reward over {summary.scored} questions", "choice", "whole run", "last third")
    rewards.add_row("policy", f"{summary.reward.overall:.4f}", f"{summary.reward.last_third:.4f}")
    shares = _table("Share of the questions served", "arm", "first third", "last third")
    for arm, thirds in summary.shares.items():
        shares.add_row(arm, *map("{:.1%}".format, thirds))
    columns = list(dict.fromkeys(column for row in summary.groups.values() for column in row))
    groups = _table("Means by group", "group", *columns)
    for group, row in summary.groups.items():
        means = (f"{row[column]:.3f}" if column in row else "" for column in columns[1:])
        groups.add_row(group, f"{row['questions']:.0f}", *means)
    return [rewards, shares, groups]


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left")
    return table


def _groups(turns: Sequence[SimulatedTurn]) -> dict[str, dict[str, float]]:
    groups: dict[str, dict[str, list[float]]] = {}
    for turn in sorted(turns, key=lambda turn: turn.group):
        reward = {} if turn.reward is None else {"reward": turn.reward}
        columns = groups.setdefault(turn.group, {"questions": []})
        for name, value in {"questions": 1.0, **turn.metrics, **reward}.items():
            columns.setdefault(name, []).append(value)
    return {
        group: {name: float(len(v)) if name == "questions" else fmean(v) for name, v in columns.items()}
        for group, columns in groups.items()
    }


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else float("nan")
