"""Every router and policy on outcomes of real language models, beside the single arms and the oracle.

    python benchmarks/routing.py DATA                      # tables and plots of all data sets, in `routing/`
    python benchmarks/routing.py DATA --only qa --no-offline
    python benchmarks/routing.py DATA --only qa --further FOLDER   # fit on DATA, score FOLDER
    python benchmarks/routing.py DATA --only mba --folds           # five folds, not the published split

DATA holds `qa/`, `mba_outcomes/` and `router_outcomes/`. Routers are fitted and scored on five folds of the
questions or, where a split was published, fitted with five seeds. Policies learn online, in one pass, from
the one arm that they draw, in five orders; what stands there is the mean of what they would draw,
exploration included. `gap` is the share of the way in exact match from the best single arm to the oracle.
What a router looks at is charged: one that looks at what was retrieved pays the searches of all arms, one
that looks at answers pays those too. `p` is that of Wilcoxon's signed-rank test against the best single arm,
question by question, times the number of rows that are compared (Bonferroni).
"""

import os
from collections.abc import Collection, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated

import numpy as np
import orjson
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TimeElapsedColumn
from rich.table import Table
from routing_data import FILES, DataSet, Encoder, mba, qa, routers
from routing_offline import (
    LIMIT,
    REPEATS,
    Played,
    adopt,
    baselines,
    compute_reward,
    fit_and_score,
    gap,
    in_all_orders,
    nanmean,
    tokens_of,
)
from routing_online import Curve, players
from routing_plots import BOUNDS, draw_costs, draw_curves
from routing_rows import rows_of
from scipy.stats import wilcoxon

Floats = NDArray[np.float64]


def table_of(data: DataSet, results: dict[str, Played]) -> tuple[Table, list[dict[str, object]]]:
    """Lay out the results: as a table, and as rows of a document."""
    best = max(
        (name for name in results if name.startswith("always")),
        key=lambda name: np.nanmean(results[name].values["em"]),
    )
    compared = [name for name in results if not name.startswith("always") and name not in BOUNDS]
    table = Table(
        title=f"{data.name}: best single arm is {best.removeprefix('always ')}", title_justify="left"
    )
    cost = data.cost[0]
    for column in ("", "looks at", "EM", "F1", cost, "tokens", "reward", "gap", "+-", "p", "fit s"):
        table.add_column(column, justify="left" if column in ("", "looks at") else "right")
    document: list[dict[str, object]] = []
    for name, result in results.items():
        means = {key: float(np.nanmean(column)) for key, column in result.values.items()}
        share = gap(result.values["em"], data)
        p = None
        if name in compared:
            p = min(1.0, len(compared) * unlike(result, results[best].values["em"]))
        spread = float(np.std(result.gaps)) if result.gaps else None
        document.append(
            {
                "row": name,
                "looks at": result.sees,
                **means,
                "gap": share,
                "spread": spread,
                "p": p,
                "fit_s": result.fit_s,
            }
        )
        table.add_row(
            name,
            result.sees,
            f"{means['em']:.4f}",
            f"{means['f1']:.4f}" if "f1" in means else "",
            f"{means['cost']:.4g}" if "cost" in means else "",
            f"{means['tokens']:,.0f}" if "tokens" in means else "",
            f"{means['reward']:+.4f}",
            f"{share:+.1%}",
            "" if spread is None else f"{spread:.1%}",
            "" if p is None else f"{p:.2g}",
            f"{result.fit_s:.1f}" if result.fit_s else "",
        )
    return table, document


def unlike(one: Played, best: Floats) -> float:
    """Return how probable such differences to the best single arm are if there were none."""
    em = one.values["em"] if one.realised is None else one.realised
    differences = em - best
    differences = differences[~np.isnan(differences)]
    if not len(differences):
        raise ValueError("a row has no question in common with the best single arm")
    return float(wilcoxon(differences).pvalue) if differences.any() else 1.0


def online_rows(curves: dict[str, list[Curve]], data: DataSet) -> Iterator[tuple[str, Played]]:
    """Yield what each policy is expected to draw, mean over the orders."""
    outcomes, n = data.outcomes, len(data.outcomes.questions)
    measures = {
        **{name: outcomes.scores[name] for name in ("em", "f1") if name in outcomes.scores},
        "reward": compute_reward(data),
        "cost": outcomes.costs.get(data.cost[0]),
        "tokens": tokens_of(outcomes),
    }
    columns = {name: column for name, column in measures.items() if column is not None}
    for policy, orders in curves.items():
        told: list[dict[str, Floats]] = []
        right = []
        for curve in orders:
            values = {name: np.full(n, np.nan) for name in (*columns, "realised")}
            for name, column in columns.items():
                values[name][curve.asked] = (curve.probabilities * column[curve.asked]).sum(axis=1)
            values["realised"][curve.asked] = outcomes.scores["em"][curve.asked, curve.drawn]
            right.append(values.pop("realised"))
            told.append(values)
        result = Played({name: nanmean([figures[name] for figures in told]) for name in columns}, "online")
        result.gaps = [gap(figures["em"], data) for figures in told]
        result.realised = nanmean(right)
        yield f"policy {policy}", result


def tell_online(data: DataSet, curves: dict[str, list[Curve]]) -> Table:
    """Lay out what policies earned beside the best fixed arm, at the start, over all and at the end."""
    reward = compute_reward(data)
    title = f"{data.name}: reward less that of the best fixed arm, in {REPEATS} orders"
    table = Table(title=title, title_justify="left")
    headings = (
        "policy",
        "first 300",
        "from 300 on",
        "last third",
        "of an order",
        "orders above",
        "us a turn",
    )
    for column in headings:
        table.add_column(column, justify="left" if column == "policy" else "right")
    for name, orders in curves.items():
        leads = [curve.lead(reward) for curve in orders]
        late = [lead[-(len(lead) // 3) :].mean() for lead in leads]
        after = [lead[300:].mean() for lead in leads]
        table.add_row(
            name,
            f"{np.mean([lead[:300].mean() for lead in leads]):+.4f}",
            f"{np.mean(after):+.4f}",
            f"{np.mean(late):+.4f}",
            f"+- {np.std(late):.4f}",
            f"{sum(lead > 0 for lead in after)} of {len(after)}",
            f"{1e6 * sum(curve.seconds for curve in orders) / sum(map(len, leads)):.0f}",
        )
    return table


def main(
    folder: Annotated[Path, typer.Argument(help="Holds qa/, mba_outcomes/ and router_outcomes/.")],
    output: Annotated[Path, typer.Option("--output", "-o")] = Path("routing"),
    cache: Annotated[Path, typer.Option(help="Keeps vectors.")] = Path("~/.armwise/benchmarks"),
    further: Annotated[Path | None, typer.Option(help="A folder like qa/: score its questions.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Data sets; repeatable.")] = None,
    offline: Annotated[bool, typer.Option(help="Fit and score routers.")] = True,
    online: Annotated[bool, typer.Option(help="Let policies learn.")] = True,
    *,
    row: Annotated[list[str] | None, typer.Option(help="Routers and policies by name; repeatable.")] = None,
    folds: Annotated[bool, typer.Option(help="Score five folds, even where a split was published.")] = False,
) -> None:
    """Print a table of every router and policy for each data set; write them and plots to a folder."""
    os.environ["OMP_NUM_THREADS"] = "1"  # for workers, one a core
    console = Console(width=150)
    output.mkdir(parents=True, exist_ok=True)
    columns = (SpinnerColumn(), *Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        encode = Encoder(cache.expanduser(), progress)
        sets: list[DataSet] = []
        for name in only or ("qa", "mba", *FILES):
            match name:
                case "qa":
                    sets.append(qa(folder / "qa", encode, further))
                case "mba":
                    sets.append(mba(folder, encode))
                case _ if name in FILES:
                    sets.append(routers(folder, name, encode, LIMIT))
                case _:
                    raise typer.BadParameter(f"no data set {name!r}; there are qa, mba, {', '.join(FILES)}")
        for data in (replace(data_set, fit=None, note="") for data_set in sets) if folds else sets:
            # each worker computes on one core; not forked, as torch has threads by now
            with ProcessPoolExecutor(
                len(os.sched_getaffinity(0)), get_context("spawn"), initializer=adopt, initargs=(data,)
            ) as pool:
                run(data, pool, output, console, progress, row, offline=offline, online=online)


def run(
    data: DataSet,
    pool: ProcessPoolExecutor,
    output: Path,
    console: Console,
    progress: Progress,
    only: Collection[str] | None,
    *,
    offline: bool,
    online: bool,
) -> None:
    """Play a data set, print its tables, and write them with plots."""
    results = dict(baselines(data))
    oracle = results.pop("oracle")
    if offline:
        rows = [row for row in rows_of(data) if only is None or row.name in only]
        task = progress.add_task(f"{data.name}: routers", total=len(rows))
        for row, result in zip(rows, pool.map(fit_and_score, rows), strict=True):
            results[row.name] = result
            progress.advance(task)
    curves: dict[str, list[Curve]] = {}
    if online:
        policies = {name: player for name, player in players(data).items() if only is None or name in only}
        task = progress.add_task(f"{data.name}: policies", total=len(policies))
        for name, orders in zip(policies, pool.map(in_all_orders, policies.values()), strict=True):
            curves[name] = orders
            progress.advance(task)
        results |= dict(online_rows(curves, data))
    results["oracle"] = oracle
    table, document = table_of(data, results)
    console.print(table)
    if data.note:
        console.print(data.note, style="dim")
    if online:
        console.print(tell_online(data, curves))
        draw_curves(data.name, curves, compute_reward(data), output / f"{data.name}_online.png")
    (output / f"{data.name}.json").write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))
    draw_costs(data.name, data.cost[0], document, output / f"{data.name}_cost.png")


if __name__ == "__main__":
    typer.run(main)
