"""Summarize and draw a simulated run.

    turns + truth --summarise--> Summary --tables--> console
         `------------draw-----------------> curve.png

A turn is a question answered by the policy. The truth, if known, is the reward of every arm on the question:
the policy is compared with each arm, a random arm and the best arm.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from armwise.agent.reporting import GREY, INK, LEGEND, PALETTE, moving_average

Floats = NDArray[np.float64]

Truth = Mapping[str, Mapping[str, float]]
"""Question id to arm to reward; an arm that failed is absent."""


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
        compared: Number of turns in the means of `reward`: those with a reward and, with
            baselines, with the reward of every arm.
        reward: Mean reward of `policy` as it was served; with baselines also of
            `policy (expected)` under its distributions, `uniform`, each `arm/<name>`, and
            the `oracle` that takes the best arm each time.
        shares: Share of the turns that each arm served, in the first and in the last third.
        groups: For each data set or type, `questions`, the mean of each metric,
            `reward` and, with baselines, the mean reward of each `arm/<name>`.
        requests_per_s: Answered questions per second.
        latency_p50_s: Median seconds to an answer.
        latency_p99_s: Seconds within which 99 % of the answers came.
        versions: Policy version of the first and of the last turn.
        traffic: Figures besides rewards.
    """

    turns: int
    compared: int
    reward: Mapping[str, Level]
    shares: Mapping[str, tuple[float, float]]
    groups: Mapping[str, Mapping[str, float]]
    requests_per_s: float
    latency_p50_s: float
    latency_p99_s: float
    versions: tuple[int | str, int | str]
    traffic: Traffic


def rewards_by_choice(turns: Sequence[SimulatedTurn], arms: Sequence[str], truth: Truth) -> dict[str, Floats]:
    """Return the rewards of the policy and of each baseline, turn by turn.

    Args:
        turns: Turns in the order of asking; turns without a reward are left out.
        arms: All arms that could have been chosen.
        truth: The reward of every arm; empty: unknown, so that there are no baselines.

    Returns:
        Rewards by the names of `RunSummary.reward`, each of shape (n_compared,). Turns whose
        truth lacks an arm are left out of all.
    """
    scored = [turn for turn in turns if turn.reward is not None]
    if truth:
        scored = [turn for turn in scored if truth.get(turn.id, {}).keys() >= set(arms)]
    served = np.array([turn.reward for turn in scored], dtype=np.float64)
    if not truth:
        return {"policy": served}
    by_arm = np.array([[truth[turn.id][arm] for arm in arms] for turn in scored]).reshape(-1, len(arms))
    return {
        "policy": served,
        "policy (expected)": (_pmf(scored, arms) * by_arm).sum(axis=1),
        "uniform": by_arm.mean(axis=1),
        **{f"arm/{arm}": by_arm[:, i] for i, arm in enumerate(arms)},
        "oracle": by_arm.max(axis=1),
    }


def summarise(
    turns: Sequence[SimulatedTurn], arms: Sequence[str], truth: Truth, traffic: Traffic
) -> RunSummary:
    """Return the figures of a run of at least one turn, in any order; an empty `truth` is unknown."""
    turns = sorted(turns, key=lambda turn: turn.position)
    third = max(1, len(turns) // 3)
    first, last = turns[:third], turns[-third:]
    earned = rewards_by_choice(turns, arms, truth)
    latency = np.quantile([turn.latency_s for turn in turns], [0.5, 0.99])
    return RunSummary(
        turns=len(turns),
        compared=len(earned["policy"]),
        reward={name: Level(_mean(r), _mean(r[-max(1, len(r) // 3) :])) for name, r in earned.items()},
        shares={arm: (fmean(t.arm == arm for t in first), fmean(t.arm == arm for t in last)) for arm in arms},
        groups=_groups(turns, truth),
        requests_per_s=len(turns) / traffic.duration_s,
        latency_p50_s=float(latency[0]),
        latency_p99_s=float(latency[1]),
        versions=(turns[0].version, turns[-1].version),
        traffic=traffic,
    )


def draw(turns: Sequence[SimulatedTurn], arms: Sequence[str], truth: Truth, path: Path) -> None:
    """Draw the learning curve above the arms' shares, and write it as a PNG.

    Args:
        turns: At least one turn, in any order.
        arms: All arms that could have been chosen, in the order of the colours.
        truth: The reward of every arm; empty: unknown, so that the policy is drawn alone.
        path: Output file.
    """
    # here: the import takes a second, for which other commands should not wait
    from matplotlib.figure import Figure

    turns = sorted(turns, key=lambda turn: turn.position)
    window = max(1, len(turns) // 6)
    colours = {arm: PALETTE[i % len(PALETTE)] for i, arm in enumerate(arms)}
    figure = Figure(figsize=(10, 7.5), dpi=150, layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    for axes, title in ((above, "Learning curve"), (below, "Arm shares")):
        axes.set_title(title, loc="left", fontweight="bold", color=INK)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(colors=INK, labelsize=9)
    _draw_rewards(above, rewards_by_choice(turns, arms, truth), window, colours)
    _draw_shares(below, _pmf(turns, arms), window, colours)
    below.set_xlim(1, max(2, len(turns)))
    figure.savefig(path)


def _draw_rewards(axes: Any, earned: Mapping[str, Floats], window: int, colours: Mapping[str, str]) -> None:
    first = window // 4  # the mean of a few rewards is noise, and would stretch the axis
    drawn = [name for name in earned if name not in ("policy (expected)", "oracle")]
    for name in sorted(drawn, key=lambda name: _mean(earned[name]), reverse=True):
        arm = name.removeprefix("arm/")
        style = {"color": colours.get(arm, GREY), "linewidth": 1.1, "alpha": 0.75}
        if name == "policy":
            style = {"color": INK, "linewidth": 2.8, "zorder": 5}
        elif name == "uniform":
            style = {"color": GREY, "linewidth": 1.8, "linestyle": (0, (4, 2)), "zorder": 4}
        positions = np.arange(1, len(earned[name]) + 1)
        label = f"{arm}  {_mean(earned[name]):.3f}"
        axes.plot(positions[first:], moving_average(earned[name], window)[first:], label=label, **style)
    axes.set_ylabel(f"Reward, mean of the last {window}", color=INK)
    axes.grid(axis="y", color="#e6e8eb")
    axes.set_axisbelow(True)
    axes.legend(title="Mean reward", **LEGEND)


def _draw_shares(axes: Any, pmf: Floats, window: int, colours: Mapping[str, str]) -> None:
    share = moving_average(pmf, window)
    labels = [f"{arm}  {last:.0%}" for arm, last in zip(colours, share[-1], strict=True)]
    areas = axes.stackplot(np.arange(1, len(pmf) + 1), share.T, colors=list(colours.values()), linewidth=0)
    axes.set_ylim(0.0, 1.0)
    axes.yaxis.set_major_formatter("{x:.0%}")
    axes.set_ylabel("Probability of being drawn", color=INK)
    axes.set_xlabel("Questions answered", color=INK)
    axes.legend(areas[::-1], labels[::-1], title="At the end", **LEGEND)  # as stacked: the last on top


def tables(summary: RunSummary) -> list[Table]:
    """Return the tables: rewards, shares, and a row per group."""
    rewards = _table(f"Mean reward over {summary.compared} questions", "choice", "whole run", "last third")
    for name, level in sorted(summary.reward.items(), key=lambda item: -item[1].overall):
        style = "bold" if name == "policy" else ""
        rewards.add_row(name, f"{level.overall:.4f}", f"{level.last_third:.4f}", style=style)
    shares = _table("Share of the questions served", "arm", "first third", "last third")
    for arm, thirds in summary.shares.items():
        shares.add_row(arm, *map("{:.1%}".format, thirds))
    columns = list(dict.fromkeys(column for row in summary.groups.values() for column in row))
    groups = _table("Means by group: the policy, then each arm", "group", *columns)
    for group, row in summary.groups.items():
        means = (f"{row[column]:.3f}" if column in row else "" for column in columns[1:])
        groups.add_row(group, f"{row['questions']:.0f}", *means)
    return [rewards, shares, groups]


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left")
    return table


def _groups(turns: Sequence[SimulatedTurn], truth: Truth) -> dict[str, dict[str, float]]:
    groups: dict[str, dict[str, list[float]]] = {}
    for turn in sorted(turns, key=lambda turn: turn.group):
        reward = {} if turn.reward is None else {"reward": turn.reward}
        arms = {f"arm/{arm}": value for arm, value in truth.get(turn.id, {}).items()}
        columns = groups.setdefault(turn.group, {"questions": []})
        for name, value in {"questions": 1.0, **turn.metrics, **reward, **arms}.items():
            columns.setdefault(name, []).append(value)
    return {
        group: {name: float(len(v)) if name == "questions" else fmean(v) for name, v in columns.items()}
        for group, columns in groups.items()
    }


def _pmf(turns: Sequence[SimulatedTurn], arms: Sequence[str]) -> Floats:
    return np.array([[turn.pmf.get(arm, 0.0) for arm in arms] for turn in turns]).reshape(-1, len(arms))


def _mean(values: Floats) -> float:
    return float(values.mean()) if len(values) else float("nan")
