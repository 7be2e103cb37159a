"""Is what `armwise prove` says true, however often one looks, and how much traffic does it take?

    python benchmarks/receipt.py [--runs 200] [--decisions 20000] [--plot receipt.png]
    python benchmarks/receipt.py --worlds [--runs 50] [--decisions 20000] [--only "prices change"]
    python benchmarks/receipt.py --write traffic.jsonl.gz [--decisions 100000]

Each run is a fortnight of traffic that is simulated: a policy answers most questions with a small arm where a
large one, the reference, is better, and draws a share of the arms at random. Questions get harder and easier
by the day, and the policy drifts from one arm to the other. A session goes on more often after a bad answer;
its decisions share how hard its user is to please. Feedback on bad answers comes later than that on good
ones, one answer of five gets none, and the rewards of the last twelve hours are not settled. Costs have long
tails. At midnight of each day one looks, with all that is settled.

False claims: the policy loses 2 points of quality on each decision. How many fortnights had a look at which
it was said to lose no more than 1? At most 5 % may have one.

Coverage: of how many fortnights did each interval hold the truth at every look? At least 95 %.

Power: the policy loses nothing. How much may be lost, as far as is said, after so many decisions, and after
how many is it said to be at most 2 points, in half of the runs?

With --worlds, one looks at each world of receipt_worlds.py instead. The sentences are read as a colleague
reads them (receipt_claims.py), and the script exits with 1 if those of one kind are false in more than 5 % of
the fortnights of a world.

With --write, one fortnight without a loss, 5 % of it drawn at random, is written for `armwise prove`.
"""

import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from math import inf, nan
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from matplotlib.figure import Figure
from rich.progress import track

sys.path.insert(0, str(Path(__file__).parents[1]))

from armwise.agent.proof import noninferiority
from armwise.agent.proof.noninferiority import ArmComparison, Ends, Sessions, Settlement
from armwise.feedback.arrays import Floats, Integers
from armwise.feedback.decisions import Categorical, Decisions, DrawKey
from armwise.feedback.events import Context, Cost, Decision, Example, Mode, Status
from armwise.feedback.jsonl import Header, appearing, write_export
from armwise.feedback.reward import Metric, RewardRule
from benchmarks.receipt_worlds import ARMS, DAY, DAYS, LARGE, WAIT_S, WORLDS

BEGIN = 1_790_812_800.0
"""Time of the first decision in a file, 2026-10-01."""

TRIED = (0.01, 0.02, 0.05)
"""Shares of the decisions that are drawn at random."""

LOSS, CLAIM, POWER_CLAIM = 0.02, 0.01, 0.02

SIZES = (10_000, 30_000, 100_000, 300_000, 1_000_000)
"""Decisions at which widths are measured."""

BETWEEN = 20
"""Further sizes, at which one looks whether a claim is made."""

LONGEST = 6
"""Most decisions of a session."""


@dataclass(frozen=True, slots=True, eq=False)
class World:
    """A fortnight of traffic.

    Attributes:
        decisions: All decisions, in the order in which they were made; `reward` is quality.
        lead: Expected quality of each as served, minus that of the large arm, shape (n,), by `seq`.
        alone: Expected dollars of the large arm, shape (n,), by `seq`.
    """

    decisions: Decisions
    lead: Floats
    alone: Floats


def simulate(n: int, share: float, loss: float, seed: int, *, days: float = DAYS) -> World:
    """Return a fortnight of traffic.

    Args:
        n: Number of decisions.
        share: Share of them that are drawn at random, in (0, 1].
        loss: Quality that a decision loses as served, on average over all.
        seed: Seed of the simulation.
        days: Length in days.
    """
    rng = np.random.default_rng(seed)
    course = np.arange(n) / n
    hard = np.clip(0.25 + 0.1 * np.sin(4.0 * np.pi * course) + 0.05 * rng.standard_normal(n), 0.1, 0.4)
    picks_small = rng.random(n) < 0.7 + 0.2 * course
    p_large = (1.0 - share) * ~picks_small + share / 2.0
    drew_large = rng.random(n) < p_large
    gap = loss / np.mean(1.0 - p_large)
    session, turn, quality = _converse(1.0 - hard - gap * ~drew_large, rng)
    at = days * DAY * session / (session[-1] + 1) + 30.0 * turn
    rated = rng.random(n) < 0.8
    tail = rng.lognormal(-0.18, 0.6, n)  # of mean 1
    dollars = np.where(drew_large, 0.02, 0.002) * (0.5 + 2.0 * hard) * tail
    order = np.argsort(at, kind="stable")
    codes = np.where(drew_large, 0, 1)
    keys = [DrawKey(Mode.EXPLORE, "simulated", ARMS, arm, Status.OK) for arm in ARMS]
    nothing, none = np.full(n, np.nan), np.zeros(n, dtype=np.int64)
    decisions = Decisions(
        seq=np.arange(1, n + 1),
        at=at,
        version=none,
        draw=Categorical(keys, codes),
        id=np.arange(n) + n,
        question=np.arange(n),
        episode=session,
        user=np.arange(n),
        propensity=np.where(drew_large, p_large, 1.0 - p_large),
        p=np.stack([p_large, 1.0 - p_large], axis=1).ravel(),
        n_p=none + 2,
        reward=np.where(rated, quality, np.nan),
        has_id=none == 0,
        features={},
        settled=none == 0,
        usd=dollars,
        seconds=nothing,
        floor=nothing,
    )
    lead = -gap * (1.0 - p_large)
    return World(decisions.take(order), lead, 0.02 * (0.5 + 2.0 * hard))


def _converse(right: Floats, rng: np.random.Generator) -> tuple[Integers, Integers, Floats]:
    """Return the session, the turn in it and the quality, 0 or 1, of each decision, shape (n,) each.

    A session goes on more often after a bad answer. How hard its user is to please moves the probabilities.

    Args:
        right: Probability of a good answer to a usual user, shape (n,).
        rng: Generator.
    """
    n = len(right)
    mood, luck, patience = rng.uniform(-0.05, 0.05, n), rng.random(n), rng.random(n)
    session, turn, quality = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64), np.empty(n)
    current, place = 0, 0
    for row in range(n):
        session[row], turn[row] = current, place
        quality[row] = luck[row] < right[row] + mood[current]
        place += 1
        if place == LONGEST or patience[row] > (0.3 if quality[row] else 0.7):
            current, place = current + 1, 0
    return session, turn, quality


def look(world: World, before: float) -> tuple[ArmComparison, float, float]:
    """Return what is said of the decisions settled before a time, and the truth of quality and savings.

    Raises:
        NothingComparableError: Nothing is said yet.
    """
    sessions = Sessions(world.decisions, Settlement.from_time(before, sessions=True))
    said, counted = noninferiority.compare(sessions, LARGE), noninferiority.count(sessions, LARGE)
    place = sessions.rows.seq[counted.row] - 1
    lead, alone = world.lead[place[counted.rated]], world.alone[place[counted.priced]]
    paid = sessions.usd[counted.row[counted.priced]]
    return said, float(lead.mean()), float((alone - paid).mean()) if said.saved else nan


@dataclass(frozen=True, slots=True)
class Watched:
    """What was said of a fortnight at the end of its days.

    Attributes:
        claimed: Whether a look said that less than `CLAIM` is lost.
        quality: Whether the interval of quality held the truth at every look.
        saved: Whether that of the savings did.
        last: What was said at the last look.
    """

    claimed: bool
    quality: bool
    saved: bool
    last: ArmComparison


def watch(world: World) -> Watched:
    """Look at a fortnight at the end of each day. Raises NothingComparableError if nothing is ever said."""
    looks = []
    for day in range(1, DAYS + 1):
        with suppress(noninferiority.NothingComparableError):
            looks.append(look(world, day * DAY - WAIT_S))
    if not looks:
        raise noninferiority.NothingComparableError("nothing was said in the fortnight")
    return Watched(
        any(said.quality is not None and said.quality[1] >= -CLAIM for said, *_ in looks),
        all(_holds(said.quality, lead) for said, lead, _ in looks),
        all(said.saved is None or said.saved[1] <= saved for said, _, saved in looks),
        looks[-1][0],
    )


def _holds(ends: Ends | None, truth: float) -> bool:
    """Return whether an interval holds the truth; one that is not there does."""
    return ends is None or ends[1] <= truth <= ends[2]


def main(
    runs: Annotated[int, typer.Option(help="Fortnights of each share.")] = 200,
    decisions: Annotated[int, typer.Option(help="Decisions of a fortnight.")] = 20_000,
    power_runs: Annotated[int, typer.Option(help="Runs of each share for the power.")] = 11,
    plot: Annotated[Path | None, typer.Option(help="File of the plot of widths.")] = None,
    write: Annotated[Path | None, typer.Option(help="Only write a fortnight to a file.")] = None,
    worlds: Annotated[bool, typer.Option("--worlds", help="Only look at simulated worlds.")] = False,
    only: Annotated[list[str] | None, typer.Option(help="Name of a world; repeat it for several.")] = None,
) -> None:
    """Print the tables, and draw the plot; or look at simulated worlds; or write a fortnight."""
    if worlds:
        from benchmarks.receipt_claims import print_worlds

        raise typer.Exit(print_worlds(only or list(WORLDS), runs, decisions))
    if write is not None:
        write_log(simulate(decisions, TRIED[-1], 0.0, seed=0).decisions, write)
        return
    print(f"{runs} fortnights of {decisions:,} decisions, {DAYS} looks each; the loss is {LOSS:g}\n")
    print(
        "| drawn at random | said to lose < .01 | quality held | savings held | width: quality | "
        "estimate - least saved |"
    )
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    for share in TRIED:
        found = [
            watch(simulate(decisions, share, LOSS, seed))
            for seed in track(range(runs), f"{share:.0%}", transient=True)
        ]
        said = [one.last for one in found]
        quality = np.median([one.quality[2] - one.quality[1] for one in said if one.quality is not None])
        saved = np.median([one.saved[0] - one.saved[1] for one in said if one.saved is not None])
        print(
            f"| {share:.0%} | {sum(one.claimed for one in found)} of {runs} | "
            f"{sum(one.quality for one in found)} of {runs} | {sum(one.saved for one in found)} of {runs} | "
            f"{quality:.3f} | ${1000.0 * saved:.2f} per 1,000 |"
        )
    print(f"\nno loss: median of {power_runs} runs\n")
    lines = {share: measure_power(share, power_runs) for share in TRIED}
    print("| drawn at random | " + " | ".join(f"{n:,}" for n in SIZES) + " | says < .02 lost after |")
    print("| ---: |" + " ---: |" * (len(SIZES) + 1))
    for share, (lost, soonest) in lines.items():
        cells = " | ".join("-" if np.isnan(value) else f"{value:.3f}" for value in lost)
        print(f"| {share:.0%} | {cells} | {'more' if soonest is None else f'{soonest:,}'} |")
    if plot is not None:
        draw({share: lost for share, (lost, _) in lines.items()}, plot)


def measure_power(share: float, runs: int) -> tuple[list[float], int | None]:
    """Return how much may be lost after each size, where nothing is, and when `POWER_CLAIM` is first said.

    Both are medians over runs; NaN: nothing is said yet; None: after more than the largest size.
    """
    between = np.geomspace(SIZES[0], SIZES[-1], BETWEEN)
    sizes = np.unique(np.concatenate([SIZES, between]).round(-3)).astype(int)
    lost = np.full((runs, len(sizes)), np.nan)
    for seed in track(range(runs), f"power at {share:.0%}", transient=True):
        world = simulate(int(sizes[-1] * 1.01), share, 0.0, 10_000 + seed)
        for column, n in enumerate(sizes.tolist()):
            sessions = Sessions(
                world.decisions, Settlement.from_time(float(world.decisions.at[n]), sessions=False)
            )
            with suppress(noninferiority.NothingComparableError):
                said = noninferiority.compare(sessions, LARGE)
                lost[seed, column] = nan if said.quality is None else -said.quality[1]
    said_first = [next(iter(sizes[row <= POWER_CLAIM]), inf) for row in lost]
    soonest = float(np.median(said_first))
    median = np.median(lost[:, np.searchsorted(sizes, SIZES)], axis=0)
    return median.tolist(), int(soonest) if soonest < inf else None


def write_log(decisions: Decisions, path: Path) -> None:
    """Write decisions as an export; those without feedback have none there."""
    rule = RewardRule(metrics={"right": Metric()})
    with appearing(path) as file:
        write_export(_examples(decisions), file, Header(written_at=BEGIN, arms=ARMS, reward=rule))


def _examples(decisions: Decisions) -> Iterator[Example]:
    p = decisions.p.reshape(-1, 2).tolist()
    rows = zip(
        *(decisions.at.tolist(), p, decisions.episode.tolist(), decisions.usd.tolist()),
        *(decisions.draw.codes.tolist(), decisions.reward.tolist()),
        strict=True,
    )
    for seq, (at, (large, small), session, usd, code, reward) in enumerate(rows, start=1):
        decision = Decision(
            f"d{seq}", Context(f"question {seq}"), ARMS, (large, small), ARMS[code], "simulated", 1,
            decided_at=BEGIN + at, episode_id=f"s{session}",
        )  # fmt: skip
        yield Example(seq, decision, Cost(usd=usd), {} if np.isnan(reward) else {"right": reward})


def draw(lines: dict[float, list[float]], path: Path) -> None:
    """Draw the most quality that may be lost over the number of decisions."""
    figure = Figure(figsize=(7.0, 3.6), layout="constrained")
    axes = figure.subplots()
    for share, lost in lines.items():
        axes.plot(SIZES, lost, marker="o", label=f"{share:.0%} drawn at random")
    axes.axhline(POWER_CLAIM, color="grey", linestyle="--", linewidth=1.0)
    axes.set(xscale="log", yscale="log", xlabel="decisions", ylabel="at most lost, where nothing is")
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    typer.run(main)
