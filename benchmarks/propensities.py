"""Are arms drawn as often as the log says, over a million turns in which whatever can go wrong does?

    python -m benchmarks.propensities [--turns 1000000] [--seed 7]

Real turns, 24 at once, over arms that fail, time out, have outages and caps, and are switched off and on;
clients force arms, leave arms out, ask for the best one, and go away; a candidate takes a share of some
decisions. Every row is checked as it is logged: exactly the arms that could be drawn have a probability,
and the logged versions give the same distribution from the logged context, to the last bit. What is printed
is what can only be seen over many of them: how often each arm was drawn, beside the sum of its logged
probabilities, in standard deviations (z), and the chi-square of all arms together. Strata are of what was
known before the draw.
"""

import asyncio
import time
from collections import Counter, defaultdict
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tests.agent.draws import Verdict, verdicts
from tests.agent.traffic import MODES, STATUSES, Draws, Traffic

console = Console()


def by_category(verdict: Verdict, title: str) -> Table:
    """Show each category of a verdict."""
    table = Table(
        title=f"{title}: chi-square {verdict.chi_square:.2f}, df {verdict.df}, p {verdict.p_value:.3f}"
    )
    table.add_column(verdict.stratum)
    for name in ("expected", "observed", "z"):
        table.add_column(name, justify="right")
    for row in zip(verdict.names, verdict.expected, verdict.observed, verdict.z, strict=True):
        name, expected, observed, z = row
        table.add_row(name, f"{expected:,.1f}", f"{observed:,.0f}", f"{z:+.2f}")
    return table


def by_stratum(found: list[Verdict]) -> Table:
    """Show the worst of each kind of stratum."""
    kinds: dict[str, list[Verdict]] = defaultdict(list)
    for verdict in found:
        kinds[verdict.stratum.split()[0]].append(verdict)
    table = Table(
        title=f"{len(found)} strata, {sum(not verdict.holds for verdict in found)} of which do not hold"
    )
    for name in ("by", "strata", "largest |z|", "of", "smallest p"):
        table.add_column(name, justify="left" if name == "by" else "right")
    for kind, of in kinds.items():
        largest = max(np.abs(verdict.z).max() for verdict in of)
        cells = sum(int((verdict.z != 0.0).sum()) for verdict in of)
        table.add_row(kind, str(len(of)), f"{largest:.2f}", str(cells), f"{min(o.p_value for o in of):.4f}")
    return table


def counted(draws: Draws, traffic: Traffic) -> str:
    """Say what the turns were."""
    done = draws.of(draws.drawn >= 0)
    modes = Counter(MODES[i].value for i in done.mode.tolist())
    statuses = Counter(STATUSES[i].value for i in done.status.tolist())
    lines = {
        "decided": {**modes, "computed again, exactly equal": traffic.recomputed},
        "ended": statuses,
        "not decided": traffic.undecided,
        "most searches at once": traffic.most,
    }
    return "\n".join(
        f"{title}: " + ", ".join(f"{name} {n:,}" for name, n in counts.items())
        for title, counts in lines.items()
    )


def main(
    turns: Annotated[int, typer.Option(min=20_000, help="Questions that are asked.")] = 1_000_000,
    seed: Annotated[int, typer.Option(help="Of what is asked, and of the draws.")] = 7,
) -> None:
    """Serve the turns and print what the log says of them."""
    traffic = Traffic(turns, seed)
    columns = TextColumn("turns"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    started = time.perf_counter()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("turns", total=turns)
        draws = asyncio.run(traffic.run(lambda n: progress.advance(task, n)))
    took = time.perf_counter() - started
    strata_verdicts = list(verdicts(draws))
    whole = {verdict.stratum: verdict for verdict in strata_verdicts}
    console.print(by_category(whole["all"], "Arms"))
    console.print(by_category(whole["probability"], "Calibration"))
    console.print(by_category(whole["outcome"], "Arms and how they ended"))
    console.print(by_stratum(strata_verdicts))
    console.print(counted(draws, traffic))
    console.print(f"{turns:,} turns in {took:.0f} s: {took / turns * 1e6:.0f} us each, checks included")
    raise typer.Exit(0 if all(verdict.holds for verdict in strata_verdicts) else 1)


if __name__ == "__main__":
    typer.run(main)
