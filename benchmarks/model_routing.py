"""Routers of language models beside published ones: cost-quality curves, areas, the share of strong calls.

    python benchmarks/model_routing.py DATA                     # all tables, and the plot in docs/benchmarks/
    python benchmarks/model_routing.py DATA --only routellm

DATA holds `router_outcomes/`. Nothing is retrieved: an arm is a language model. Peers are fitted on the same
training questions and the same embedding, and scored on the same held-out ones:

    routerbench   eleven models with prices; five folds; AIQ, and dollars at equal quality. What is tuned,
                  and which of our routers, is chosen in the training part of a fold, by AIQ of inner folds
    routellm      two models; five folds, 1,500 labels, or labels of another task; APGR and CPT
    routerdc      seven models; the published split; accuracy of each task
    online        policies that learn from the one answer that they drew, net of its cost

Intervals are of 95 %, by a bootstrap over questions.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from model_metrics import average_gap_recovered, calibrated, calls_at, gap_recovered
from model_peers import KNNS, MLPS, PAIRWISE, PEERS
from model_plots import draw
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TimeElapsedColumn
from routing_data import FILES, DataSet, Encoder, routers
from routing_offline import compute_reward
from routing_online import COLD, WARM, Curve, learn_online

from armwise.agent.lab.offline import CostCurve, cost_curve
from armwise.agent.lab.routers import cost_quality, cross_validation
from armwise.agent.routers import RouterSpec, RoutingDataset, build_router

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]

OURS: Mapping[str, RouterSpec] = {
    "ridge": RouterSpec(kind="ridge", params={"sees": "embedding"}),
    "trees": RouterSpec(kind="pointwise_xgboost", params={"stage": "question"}),
    "network": RouterSpec(kind="pointwise_ffn", params={"stage": "question"}),
    "contrastive": RouterSpec(kind="contrastive"),
}

NEAREST: Mapping[str, RouterSpec] = {"knn": RouterSpec(kind="knn")}
"""Ours, of RouterBench alone."""

KNN = "kNN, k = 40 (RouterBench)"

CHOSEN = "ours, chosen by inner folds"

FAMILIES: Mapping[str, Sequence[str]] = {
    CHOSEN: (*OURS, *NEAREST),
    "kNN (RouterBench), tuned": tuple(KNNS),
    "MLP (RouterBench), tuned": tuple(MLPS),
}
"""Routers of which inner folds choose one, by the name of the row."""

SHOWN = {*OURS, *NEAREST, *(f"kNN, k = {k} (RouterBench)" for k in (10, 40, 100, 150))}
"""Routers with a row of their own, whatever inner folds choose."""

RIVALS = {"routerbench": tuple(PEERS), "routellm": (KNN, *PAIRWISE), "routerdc": (KNN,)}
"""Peers by data set."""

LISTED = {"mixtral": 0.24, "gpt4": 24.7}
"""Dollars a million tokens; of RouteLLM, arXiv:2406.18665."""

FOLDS, INNER, RESAMPLES, LABELS, ORDERS, ASKED = 5, 3, 300, 1500, 3, 3000

TASKS: Mapping[str, str] = {
    "MMLU": "mmlu_test",
    "ARC-C": "arc_challenge_test",
    "HumanEval": "humaneval_test",
    "PreAlgebra": "MATH_prealgebra",
    "MBPP": "mbpp",
}
"""Tasks of RouterDC that the file has, by their names there; it is trained on the first three."""

TRAINING = ("gsm8k-train", "humaneval_train", "arc_challenge_train", "mmlu_train")
"""Tasks of RouterDC's training in the file, of each 1,000 questions; smaller ones are repeated."""

PROBABILITIES = ("mmlu", "arc", "MATH")
"""Tasks of RouterDC whose score is a probability: an answer is right if it is above 0."""

POLICIES = {
    "LinUCB, cold": COLD["LinUCB"],
    "VW SquareCB, cold": COLD["VW SquareCB"],
    "LinUCB, 1,000 labels": WARM["LinUCB, warm by labels"],
    "LinUCB from ridge, 1,000 labels": replace(WARM["LinUCB from the router"], router=OURS["ridge"]),
    "ridge, 1,000 labels, no learning": replace(WARM["router"], router=OURS["ridge"]),
}

WEIGHTS = {
    "routerbench": (0.0, 3.0, 10.0, 30.0, 100.0),
    "routellm": tuple(
        penalty / (LISTED["gpt4"] - LISTED["mixtral"]) for penalty in (0.0, 0.05, 0.1, 0.2, 0.4)
    ),
}
"""Of cost in the reward; the middle one is that of the rewards in the table."""


@dataclass(frozen=True)
class Fit:
    """A router to fit and to score.

    Attributes:
        data: Name of the data set.
        split: Name of the way to split it.
        router: Name, of ours or of a peer.
        fit: Rows to fit to.
        score: Rows to score.
    """

    data: str
    split: str
    router: str
    fit: Rows
    score: Rows


@dataclass(frozen=True)
class Play:
    """A policy to let learn online: on a data set, with a weight of cost, in an order."""

    data: str
    policy: str
    weight: float
    order: int


HERE: dict[str, DataSet] = {}
"""The data sets of a worker."""


def adopt(sets: Mapping[str, DataSet]) -> None:
    """Give a worker its data sets."""
    HERE.update(sets)


def scores_of(job: Fit) -> Floats:
    """Return the scores of a router on held-out questions."""
    data = HERE[job.data]
    quality = data.outcomes.scores["em"]
    if spec := {**OURS, **NEAREST}.get(job.router):
        router = build_router(spec)
        router.fit(RoutingDataset(data.asked.rows(job.fit), quality[job.fit]))
        return np.asarray(router.scores(data.asked.rows(job.score)))
    peer = (PEERS | PAIRWISE)[job.router]
    return peer(data.vectors[job.fit], quality[job.fit], data.vectors[job.score])


def learned(job: Play) -> tuple[Curve, Floats]:
    """Let a policy learn; return what it drew from, and the reward of each arm on each question."""
    data = HERE[job.data]
    data = replace(data, cost=("usd", job.weight))
    reward = compute_reward(data)
    return learn_online(POLICIES[job.policy], data, reward, job.order, ASKED), reward


def read(folder: Path, name: str, encode: Encoder) -> DataSet:
    """Read a data set, with the quality that its publication reports and a price of each model."""
    data = routers(folder, name, encode, 10**9)
    outcomes = data.outcomes
    if name == "routellm":
        assert outcomes.arms == tuple(LISTED)
        price = np.tile(list(LISTED.values()), (len(outcomes.questions), 1))
        return replace(data, outcomes=replace(outcomes, costs={"usd": price}))
    if name == "routerdc":
        sure = np.array([question.dataset.startswith(PROBABILITIES) for question in outcomes.questions])
        score = outcomes.scores["em"]
        right = np.where(sure[:, None], score > 0.0, score)
        return replace(data, outcomes=replace(outcomes, scores={"em": right}))
    return data


def tasks_of(data: DataSet) -> NDArray[np.str_]:
    """Return the task of each question."""
    return np.array([question.dataset for question in data.outcomes.questions])


def splits(data: DataSet) -> Iterator[tuple[str, Rows, Rows]]:
    """Yield the ways to split a data set: a name, the rows to fit to and the rows to score."""
    tasks, rng = tasks_of(data), np.random.default_rng(0)
    if data.name == "routerdc":
        drawn = [np.resize(np.flatnonzero(tasks == task), 1000) for task in TRAINING]
        yield "published", np.concatenate(drawn), np.flatnonzero(np.isin(tasks, list(TASKS.values())))
        return
    texts = np.array([question.text for question in data.outcomes.questions])
    for number, (fit, score) in enumerate(cross_validation.folds(texts.tolist(), FOLDS, 0)):
        yield "folds", fit, score
        if data.name == "routerbench":
            for training, held_out in cross_validation.folds(texts[fit].tolist(), INNER, 1):
                yield f"inner {number}", fit[training], fit[held_out]
    if data.name == "routellm":
        mmlu = rng.permutation(np.flatnonzero(tasks != "gsm8k_responses"))
        yield "labels", mmlu[:LABELS], np.sort(mmlu[LABELS:])
        yield "transfer", mmlu, np.flatnonzero(tasks == "gsm8k_responses")


def markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table."""
    print("", f"| {' | '.join(headings)} |", "| --- " * len(headings) + "|", sep="\n")
    for row in rows:
        print(f"| {' | '.join(row)} |")


def span(low: float, high: float, form: str = ".3f") -> str:
    """Return an interval."""
    return f"{low:{form}} to {high:{form}}"


def curve_of(data: DataSet, scores: Floats, rows: Rows, resamples: int = RESAMPLES) -> CostCurve:
    """Return the cost-quality curve of some questions."""
    quality, usd = data.outcomes.scores["em"][rows], data.outcomes.costs["usd"][rows]
    rng = np.random.default_rng(0)
    curve = cost_curve(scores[rows], quality, usd, usd, data.outcomes.arms, "dollars", resamples, rng)
    assert curve is not None
    return curve


def chosen_by_inner_folds(
    data: DataSet, scored: Mapping[tuple[str, str], Floats], among: Sequence[str]
) -> tuple[Floats, list[str]]:
    """Return the held-out scores of the router with the highest AIQ on inner folds, of each fold.

    Args:
        data: The questions.
        scored: Scores of each question by split and router, NaN where a split does not hold it out.
        among: Names of the routers.

    Returns:
        The scores, shape (n_questions, n_models), and the router of each fold.
    """
    scores, names = np.full(data.outcomes.scores["em"].shape, np.nan), []
    outer = [split for split in splits(data) if split[0] == "folds"]
    for number, (_, fit, held_out) in enumerate(outer):
        areas = [curve_of(data, scored[f"inner {number}", router], fit, 1).area for router in among]
        names.append(among[int(np.argmax(areas))])
        scores[held_out] = scored["folds", names[-1]][held_out]
    return scores, names


def less_than(data: DataSet, ours: Floats, theirs: Floats) -> str:
    """Return the difference of the dollars at 95 %, in points, with an interval by paired resamples."""

    def differ(rows: Rows) -> float:
        one, other = (curve_of(data, scores, rows, 1).needs[-1].cost for scores in (ours, theirs))
        return 100.0 * (one - other)

    rng, n = np.random.default_rng(0), len(data.vectors)
    drawn = [differ(rng.integers(n, size=n)) for _ in range(RESAMPLES)]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return f"{differ(np.arange(n)):+.1f} points ({span(low, high, '+.1f')})"


def routerbench(data: DataSet, scored: Mapping[tuple[str, str], Floats]) -> dict[str, CostCurve]:
    """Print AIQ and what equal quality costs; return the curves."""
    tasks, every = tasks_of(data), np.arange(len(data.vectors))
    quality, usd = data.outcomes.scores["em"], data.outcomes.costs["usd"]
    held_out = {router: scores for (split, router), scores in scored.items() if split == "folds"}
    held_out = {router: scores for router, scores in held_out.items() if router in SHOWN}
    for family, among in FAMILIES.items():
        held_out[family], names = chosen_by_inner_folds(data, scored, among)
        print(f"\n{family}: {', '.join(names)}")
    tuned = held_out["kNN (RouterBench), tuned"]
    for router in (CHOSEN, "trees", "knn"):
        difference = less_than(data, held_out[router], tuned)
        print(f"\n{router} beside kNN, tuned: dollars at 95 % {difference}")
    curves = {router: curve_of(data, scores, every) for router, scores in held_out.items()}
    curves["oracle"] = curve_of(data, quality, every, 2)
    parts = {task: np.flatnonzero(tasks == task) for task in np.unique(tasks)}
    single = next(iter(curves.values())).single
    print(f"\n## RouterBench: {len(every):,} questions, best single model {single}, five folds")
    zero = {
        name: cost_quality.area(
            usd[rows].mean(axis=0),
            quality[rows].mean(axis=0),
            float(usd[rows].mean(axis=0).min()),
            float(usd[rows].mean(axis=0).max()),
        )
        for name, rows in {"all": every, **parts}.items()
    }
    mixture = next(iter(curves.values())).needs
    table = [
        ["zero router", f"{zero['all']:.4f}", "", ""]
        + [f"{zero[task]:.4f}" for task in parts]
        + [f"{need.mixture:.1%}" for need in mixture]
    ]
    for router, curve in curves.items():
        predicts = router != "oracle"
        areas = [
            curve_of(data, held_out[router] if predicts else quality, rows, 1).area for rows in parts.values()
        ]
        table.append(
            [
                f"**{router}**" if router in FAMILIES[CHOSEN] or router == CHOSEN else router,
                f"{curve.area:.4f}",
                span(*curve.interval) if predicts else "",
                f"{curve.gain:+.4f} ({span(*curve.gain_interval, '+.4f')})"
                if predicts
                else f"{curve.gain:+.4f}",
                *(f"{area:.4f}" for area in areas),
                *(
                    f"{need.cost:.1%} ({span(*need.cost_interval, '.0%')})"
                    if predicts
                    else f"{need.cost:.1%}"
                    for need in curve.needs
                ),
            ]
        )
    dollars = [f"dollars at {need.target:.0%}" for need in mixture]
    markdown(["", "AIQ", "95 %", "beside the zero router", *parts, *dollars], table)
    return curves


def routellm(data: DataSet, scored: Mapping[tuple[str, str], Floats]) -> dict[str, Floats]:
    """Print APGR, CPT and the strong calls at equal quality; return the recovered gap on MMLU."""
    gsm8k = tasks_of(data) == "gsm8k_responses"
    weak, strong = data.outcomes.scores["em"].T
    part = np.empty(len(weak), dtype=np.intp)
    for number, (_, _, held_out) in enumerate(fold for fold in splits(data) if fold[0] == "folds"):
        part[held_out] = number
    plotted = {}
    for title, split, within in (
        ("MMLU, five folds", "folds", ~gsm8k),
        (f"MMLU, {LABELS:,} labels", "labels", ~gsm8k),
        ("GSM8K, five folds", "folds", gsm8k),
        ("GSM8K, labels of MMLU alone", "transfer", gsm8k),
    ):
        table = []
        for (name, router), scores in scored.items():
            if name != split:
                continue
            gain = scores[:, 1] - scores[:, 0]
            rows = np.flatnonzero(within & ~np.isnan(gain))
            recovered = gap_recovered(gain[rows], weak[rows], strong[rows])
            if title.startswith("MMLU, five"):
                plotted[router] = recovered
            low, high = np.quantile(resampled(gain, weak, strong, rows), [0.025, 0.975])
            # every question may be asked of the strong model, also where it is expected to be worse
            raised = np.column_stack([np.zeros(len(gain)), gain - np.nanmin(gain) + 1.0])
            needs = curve_of(data, raised, rows).needs
            cells = [
                f"{average_gap_recovered(recovered):.3f} ({span(low, high)})",
                *(f"{calls_at(recovered, share):.1%}" for share in (0.5, 0.8)),
                *(f"{need.calls:.1%} ({span(*need.calls_interval, '.0%')})" for need in needs),
            ]
            if split == "folds":
                calls, kept = calibrated(gain[rows], weak[rows], strong[rows], part[rows], 0.95)
                cells.append(f"{kept:.1%} at {calls:.1%}")
            table.append([f"**{router}**" if router in OURS else router, *cells])
        table.append(["random", "0.500", "50.0%", "80.0%", *random_needs(weak[rows], strong[rows])])
        targets = [f"calls at {need.target:.0%}" for need in needs]
        least, most = weak[rows].mean(), strong[rows].mean()
        print(f"\n## RouteLLM, {title}: {len(rows):,} questions, Mixtral {least:.4f}, GPT-4 {most:.4f}")
        headings = ["", "APGR", "CPT(50 %)", "CPT(80 %)", *targets]
        headings += ["95 % wanted, threshold of other folds"] * (split == "folds")
        markdown(headings, [row + [""] * (len(headings) - len(row)) for row in table])
    return plotted


def random_needs(weak: Floats, strong: Floats) -> list[str]:
    """Return the share of strong calls at random that gives each share of the strong model's quality."""
    low, high = weak.mean(), strong.mean()
    return [f"{max(0.0, (share * high - low) / (high - low)):.1%}" for share in (1.0, 0.99, 0.95)]


def resampled(gain: Floats, weak: Floats, strong: Floats, rows: Rows) -> list[float]:
    """Return the APGR of resamples of the questions."""
    rng = np.random.default_rng(0)
    drawn = (rng.choice(rows, len(rows)) for _ in range(RESAMPLES))
    return [
        average_gap_recovered(gap_recovered(gain[sample], weak[sample], strong[sample])) for sample in drawn
    ]


def routerdc(data: DataSet, scored: Mapping[tuple[str, str], Floats]) -> None:
    """Print the accuracy of each task."""
    tasks, quality = tasks_of(data), data.outcomes.scores["em"]
    parts = {name: np.flatnonzero(tasks == task) for name, task in TASKS.items()}
    print(f"\n## RouterDC: {', '.join(f'{len(rows):,} of {name}' for name, rows in parts.items())}")
    picked = {f"always {arm}": np.full(len(tasks), column) for column, arm in enumerate(data.outcomes.arms)}
    picked |= {router: np.nan_to_num(scores).argmax(axis=1) for (_, router), scores in scored.items()}
    picked["oracle"] = quality.argmax(axis=1)
    table = []
    for router, picks in picked.items():
        right = quality[np.arange(len(picks)), picks]
        means = [100.0 * right[rows].mean() for rows in parts.values()]
        errors = [100.0 * right[rows].std() / np.sqrt(len(rows)) for rows in parts.values()]
        table.append(accuracies(f"**{router}**" if router in OURS else router, means))
    table.append(["standard error of ours", *(f"{error:.2f}" for error in errors), "", ""])
    markdown(["", *parts, "mean of the first three", "mean of the last two"], table)


def accuracies(name: str, means: Sequence[float]) -> list[str]:
    """Return a row of the table of accuracies."""
    parts = (means[:3], means[3:])
    return [name, *(f"{mean:.2f}" for mean in means), *(f"{np.mean(part):.2f}" for part in parts)]


def online(data: DataSet, plays: Mapping[Play, tuple[Curve, Floats]]) -> dict[str, list[tuple[float, float]]]:
    """Print what policies earned while they learned; return cost and quality at each weight of cost."""
    quality, usd = data.outcomes.scores["em"], data.outcomes.costs["usd"]
    weights, table, points = WEIGHTS[data.name], [], {}
    for policy in POLICIES:
        gains, first, last = [], [], []
        spent = np.zeros((len(weights), ORDERS, 2))
        for order in range(ORDERS):
            for number, weight in enumerate(weights):
                curve, reward = plays[Play(data.name, policy, weight, order)]
                spent[number, order] = [
                    (curve.probabilities * column[curve.asked]).sum(axis=1).mean()
                    for column in (usd, quality)
                ]
                if number == len(weights) // 2:
                    lead = curve.lead(reward)
                    first.append(lead[:300].mean())
                    last.append(lead[-(len(lead) // 3) :].mean())
            alone = usd[curve.asked].mean(axis=0), quality[curve.asked].mean(axis=0)
            ends = [alone[0].argmin(), alone[1].argmax()]
            both = [np.concatenate([spent[:, order, axis], alone[axis][ends]]) for axis in (0, 1)]
            low, high = float(alone[0].min()), float(alone[0].max())
            gains.append(cost_quality.area(*both, low, high) - cost_quality.area(*alone, low, high))
        points[policy] = [tuple(point) for point in spent.mean(axis=1).tolist()]
        table.append(
            [
                policy,
                f"{np.mean(gains):+.4f} +- {np.std(gains):.4f}",
                *(f"{earned:.3f} at {spent_on(data.name, cost)}" for cost, earned in points[policy]),
                f"{np.mean(first):+.4f}",
                f"{np.mean(last):+.4f}",
            ]
        )
    print(f"\n## Online, {data.name}: {len(curve.asked):,} questions in {ORDERS} orders")
    headings = [f"weight {weight:.3g}" for weight in weights]
    markdown(["", "AIQ beside the zero router", *headings, "reward, first 300", "reward, last third"], table)
    return points


def spent_on(name: str, cost: float) -> str:
    """Return dollars for 1,000 questions; the share of strong calls where only models have prices."""
    if name != "routellm":
        return f"{1000 * cost:.2f}"
    weak, strong = LISTED.values()
    return f"{(cost - weak) / (strong - weak):.0%}"


def main(
    folder: Annotated[Path, typer.Argument(help="Holds router_outcomes/.")],
    plot: Annotated[Path, typer.Option(help="File of the plot.")] = Path("docs/benchmarks/model_routing.png"),
    cache: Annotated[Path, typer.Option(help="Keeps vectors.")] = Path("~/.armwise/benchmarks"),
    only: Annotated[list[str] | None, typer.Option(help="Data sets; repeatable.")] = None,
) -> None:
    """Print the tables as Markdown, and draw the curves."""
    if unknown := set(only or ()) - FILES.keys():
        raise typer.BadParameter(f"no data set {min(unknown)!r}; there are {', '.join(FILES)}")
    os.environ["OMP_NUM_THREADS"] = "1"  # for workers, one a core
    begun = time.perf_counter()
    columns = (SpinnerColumn(), *Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        encode = Encoder(cache.expanduser(), progress)
        sets = {name: read(folder, name, encode) for name in only or FILES}
        fits = [
            Fit(name, split, router, fit, score)
            for name, data in sets.items()
            for split, fit, score in splits(data)
            for router in (*OURS, *(NEAREST if name == "routerbench" else ()), *RIVALS[name])
        ]
        plays = [
            Play(name, policy, weight, order)
            for name in sets
            if name in WEIGHTS
            for policy in POLICIES
            for weight in WEIGHTS[name]
            for order in range(ORDERS)
        ]
        cores = len(os.sched_getaffinity(0))
        with ProcessPoolExecutor(cores, get_context("spawn"), initializer=adopt, initargs=(sets,)) as pool:
            task = progress.add_task("routers", total=len(fits))
            scored: dict[str, dict[tuple[str, str], Floats]] = {name: {} for name in sets}
            for job, scores in zip(fits, pool.map(scores_of, fits), strict=True):
                whole = sets[job.data].outcomes.scores["em"].shape
                kept = scored[job.data].setdefault((job.split, job.router), np.full(whole, np.nan))
                kept[job.score] = scores
                progress.advance(task)
            task = progress.add_task("policies", total=len(plays))
            played = {}
            for play, curve_and_reward in zip(plays, pool.map(learned, plays), strict=True):
                played[play] = curve_and_reward
                progress.advance(task)
        for name, data in sets.items():
            print(f"\n{name}: {data.note}")
        curves = routerbench(sets["routerbench"], scored["routerbench"]) if "routerbench" in sets else {}
        recovered = routellm(sets["routellm"], scored["routellm"]) if "routellm" in sets else {}
        if "routerdc" in sets:
            routerdc(sets["routerdc"], scored["routerdc"])
        points = {name: online(sets[name], played) for name in WEIGHTS if name in sets}
        if curves and recovered:
            draw(sets["routerbench"].outcomes, curves, points["routerbench"], recovered, plot)
    print(f"\n{time.perf_counter() - begun:.0f} s")


if __name__ == "__main__":
    typer.run(main)
