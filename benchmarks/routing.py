"""Every router and policy on outcomes of real language models, beside the single arms and the oracle.

    python benchmarks/routing.py DATA                      # tables and plots of all data sets, in `routing/`
    python benchmarks/routing.py DATA --only qa --no-offline
    python benchmarks/routing.py DATA --only qa --further FOLDER   # fit on DATA, score FOLDER

DATA holds `qa/`, `mba_outcomes/` and `router_outcomes/`. Routers are fitted and scored on five folds of the
questions or, where a split was published, fitted with five seeds. Policies learn online, in one pass, from
the one arm that they draw, in five orders; what stands there is the mean of what they would draw,
exploration included. `gap` is the share of the way in exact match from the best single arm to the oracle.
What a router looks at is charged: one that looks at what was retrieved pays the searches of all arms, one
that looks at answers pays those too. `p` is that of Wilcoxon's signed-rank test against the best single arm,
question by question, times the number of rows that are compared (Bonferroni).
"""

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
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
from routing_data import DataSet, Encoder, mba, qa, routers
from routing_offline import (
    LIMIT,
    REPEATS,
    Played,
    adopt,
    baselines,
    fit_and_score,
    gap,
    in_all_orders,
    nanmean,
    quality,
    reward_of,
    tokens_of,
)
from routing_online import Curve, players
from routing_plots import draw_costs, draw_curves
from routing_rows import rows_of
from scipy.stats import wilcoxon

Floats = NDArray[np.float64]


def table_of(data: DataSet, results: dict[str, Played]) -> tuple[Table, list[dict[str, object]]]:
    """Lay out the results: as a table, and as rows of a document."""
    best = max(
        (name for name in results if name.startswith("always")),
        key=lambda name: np.nanmean(results[name].values["em"]),
    )
    compared = [name for name in results if not name.startswith(("always", "random", "oracle"))]
    table = Table(
        title=f"{data.name}: best single arm is {best.removeprefix('always ')}", title_justify="left"
    )
    cost = data.cost[0]
    for column in ("", "looks at", "EM", "F1", cost, "tokens", "reward", "gap", "+-", "p", "fit s"):
        table.add_column(column, justify="left" if column in ("", "looks at") else "right")
    document: list[dict[str, object]] = []
    for name, one in results.items():
        means = {key: float(np.nanmean(column)) for key, column in one.values.items()}
        share = gap(one.values["em"], data)
        p = None
        if name in compared:
            known = ~np.isnan(one.values["em"])
            differences = (one.values["em"] - results[best].values["em"])[known]
            p = min(1.0, len(compared) * float(wilcoxon(differences).pvalue)) if differences.any() else 1.0
        spread = float(np.std(one.gaps)) if one.gaps else None
        document.append(
            {
                "row": name,
                "looks at": one.sees,
                **means,
                "gap": share,
                "spread": spread,
                "p": p,
                "fit_s": one.fit_s,
            }
        )
        table.add_row(
            name,
            one.sees,
            f"{means['em']:.4f}",
            f"{means['f1']:.4f}",
            f"{means['cost']:.4g}" if "cost" in means else "",
            f"{means['tokens']:,.0f}" if "tokens" in means else "",
            f"{means['reward']:+.4f}",
            f"{share:+.1%}",
            "" if spread is None else f"{spread:.1%}",
            "" if p is None else f"{p:.2g}",
            f"{one.fit_s:.1f}" if one.fit_s else "",
        )
    return table, document


def online_rows(curves: dict[str, list[Curve]], data: DataSet) -> Iterator[tuple[str, Played]]:
    """Yield what each policy drew, mean over the orders."""
    n = len(data.outcomes.questions)
    for name, orders in curves.items():
        told: list[dict[str, Floats]] = []
        for curve in orders:
            values = {}
            columns = {
                "em": data.outcomes.scores["em"],
                "f1": quality(data.outcomes),
                "reward": reward_of(data),
            }
            if (spent := data.outcomes.costs.get(data.cost[0])) is not None:
                columns["cost"] = spent
            if (tokens := tokens_of(data.outcomes)) is not None:
                columns["tokens"] = tokens
            for key, column in columns.items():
                values[key] = np.full(n, np.nan)
                values[key][curve.asked] = (curve.probabilities * column[curve.asked]).sum(axis=1)
            told.append(values)
        result = Played({key: nanmean([one[key] for one in told]) for key in told[0]}, "online")
        result.gaps = [gap(one["em"], data) for one in told]
        yield f"policy {name}", result


def tell_online(data: DataSet, curves: dict[str, list[Curve]]) -> Table:
    """Lay out what policies earned beside the best fixed arm, at the start, over all and at the end."""
    reward = reward_of(data)
    table = Table(
        title=f"{data.name}: reward less that of the best fixed arm, in {REPEATS} orders",
        title_justify="left",
    )
    for column in (
        "policy",
        "first 300",
        "from 300 on",
        "last 1,000",
        "of an order",
        "orders above",
        "us a turn",
    ):
        table.add_column(column, justify="left" if column == "policy" else "right")
    for name, orders in curves.items():
        lead = []
        for curve in orders:
            asked = reward[curve.asked]
            lead.append((curve.probabilities * asked).sum(axis=1) - asked[:, asked.mean(axis=0).argmax()])
        leads = np.stack(lead)
        late = leads[:, -1000:].mean(axis=1)
        table.add_row(
            name,
            f"{leads[:, :300].mean():+.4f}",
            f"{leads[:, 300:].mean():+.4f}",
            f"{late.mean():+.4f}",
            f"+- {late.std():.4f}",
            f"{int((leads[:, 300:].mean(axis=1) > 0).sum())} of {len(leads)}",
            f"{1e6 * np.mean([curve.seconds for curve in orders]) / leads.shape[1]:.0f}",
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
) -> None:
    """Print a table of every router and policy for each data set; write them and plots to a folder."""
    os.environ["OMP_NUM_THREADS"] = "1"  # for the workers, which share the cores
    console = Console(width=150)
    output.mkdir(parents=True, exist_ok=True)
    columns = (SpinnerColumn(), *Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        encode = Encoder(cache.expanduser(), progress)
        sets: list[DataSet] = []
        wanted = set(only or ("qa", "mba", "routerbench", "routerdc", "routellm"))
        if "qa" in wanted:
            sets.append(qa(folder / "qa", encode, further))
        if "mba" in wanted:
            sets.append(mba(folder, encode))
        if wanted - {"qa", "mba"}:
            sets += [one for one in routers(folder, encode, LIMIT) if one.name in wanted]
        for data in sets:
            # each worker computes on one core; not forked, as torch has threads by now
            with ProcessPoolExecutor(
                os.cpu_count(), get_context("spawn"), initializer=adopt, initargs=(data,)
            ) as pool:
                run(data, pool, output, console, progress, offline=offline, online=online)


def run(
    data: DataSet,
    pool: ProcessPoolExecutor,
    output: Path,
    console: Console,
    progress: Progress,
    *,
    offline: bool,
    online: bool,
) -> None:
    """Play a data set, print its tables, and write them with plots."""
    results = dict(baselines(data))
    oracle = results.pop("oracle")
    if offline:
        rows = list(rows_of(data))
        task = progress.add_task(f"{data.name}: routers", total=len(rows))
        for row, one in zip(rows, pool.map(fit_and_score, rows), strict=True):
            results[row.name] = one
            progress.advance(task)
    curves: dict[str, list[Curve]] = {}
    if online:
        policies = players(data)
        task = progress.add_task(f"{data.name}: policies", total=len(policies))
        for name, orders in zip(policies, pool.map(in_all_orders, policies.values()), strict=True):
            curves[name] = orders
            progress.advance(task)
        results |= dict(online_rows(curves, data))
    results["oracle"] = oracle
    table, document = table_of(data, results)
    console.print(table)
    if online:
        console.print(tell_online(data, curves))
        draw_curves(data.name, curves, reward_of(data), output / f"{data.name}_online.png")
    (output / f"{data.name}.json").write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))
    draw_costs(data.name, data.cost[0], document, output / f"{data.name}_cost.png")


if __name__ == "__main__":
    typer.run(main)
