"""The verbs of `armwise lab`: questions, scores, portfolios, labels, routers, warm starts, simulations."""

import asyncio
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from armwise.agent.cli.console import console, errors, progress, report_errors
from armwise.agent.cli.options import (
    ARGUMENT,
    CONFIG,
    URL,
    ConfigPath,
    Key,
    Url,
    open_config,
    parse_renaming,
    parse_weight,
    settings_options,
    unique,
    with_log,
)
from armwise.agent.jobs import RunFailedError
from armwise.agent.lab.offline import (
    CascadeTraining,
    EvaluationSettings,
    Labelling,
    PortfolioSelection,
    RelevanceTraining,
    Scoring,
    Synthesis,
    Training,
    cascade_spec,
    evaluate_model,
    fit_logged_threshold,
    label_questions,
    make_questions,
    router_spec,
    score_arms,
    select_portfolio,
    train_cascade,
    train_relevance,
    train_router,
)
from armwise.agent.lab.simulation import Simulation, simulate
from armwise.agent.lab.warmstart import InsertSettings, insert_labels, preview_lots
from armwise.agent.lab.warmstart import warm_start as run_warm_start
from armwise.feedback.registry import runs

OUTPUT, K = "--output -o", "-k"

SIMULATION_FLAGS = {"questions": ARGUMENT, "metrics": "--metric", "output": OUTPUT, "k": K}


class Trainable(StrEnum):
    """What `armwise lab train` can train."""

    ROUTER = "router"
    RELEVANCE = "relevance"
    CASCADE = "cascade"


@settings_options(
    Synthesis,
    {"output": OUTPUT, "with_model": "--with-model/--without-model"},
    without=("config",),
    text=("styles",),
)
def synthesize(given: dict[str, Any], config: ConfigPath = CONFIG) -> None:
    """Make questions from the corpus, each with the passages that answer it.

    You can score the arms on them, train a router, and start with it before the first real question. An
    interrupted run continues where it stopped.
    """
    with report_errors():
        given["styles"] = unique(
            "--styles", (parse_weight(style, "--styles") for style in given.get("styles") or ())
        )
        settings = open_config(config, without=["router"])  # it may be about to be trained
        with progress() as on_progress:
            make_questions(Synthesis.model_validate({"config": settings, **given}), console, on_progress)


@settings_options(Scoring, {"output": OUTPUT, "k": K}, without=("config",))
def score(given: dict[str, Any], config: ConfigPath = CONFIG) -> None:
    """Score every arm of a pool on every question; an interrupted run continues where it stopped."""
    with report_errors():
        from_log = given.get("from_log")
        settings = with_log(config) if from_log else open_config(config, without=["router"])
        with progress() as on_progress:
            score_arms(Scoring.model_validate({"config": settings, **given}), console, on_progress)


@settings_options(PortfolioSelection, {"scores": ARGUMENT, "output": OUTPUT, "k": K})
def portfolio(given: dict[str, Any]) -> None:
    """Choose a few arms that complement each other, for `portfolio` of the configuration."""
    with report_errors():
        select_portfolio(PortfolioSelection.model_validate(given), console)


@settings_options(Labelling, {"measures": "--measure", "output": OUTPUT}, without=("config",))
def label(given: dict[str, Any], config: ConfigPath = CONFIG) -> None:
    """Answer every question with every arm; an interrupted run continues where it stopped.

    It saves scores, steps and tokens, but not seconds, which would differ after an interruption.
    """
    with report_errors():
        settings = open_config(config, without=["router"])  # it may be about to be trained
        with progress() as on_progress:
            label_questions(Labelling.model_validate({"config": settings, **given}), console, on_progress)


@settings_options(
    InsertSettings,
    {"outcomes": ARGUMENT, "metrics": "--metric"},
    without=("config", "run", "beside"),
    text=("metrics",),
    help_texts={
        "outcomes": "Outcomes from `armwise lab label`, or a matrix from `armwise lab score`.",
        "metrics": "declared=score, such as answer_correct=em; repeatable.",
    },
)
def enter_labels(given: dict[str, Any], config: ConfigPath = CONFIG) -> None:
    """Insert labels into the log, so that a policy learns from them before its first question.

    Use it for policies without a router, for few labels, or for arms that a router does not know. If every
    arm was labelled on hundreds of questions, `armwise lab train` and a policy with `prior_feature: router`
    gain more.

    If the configuration has a router, the labels also get its scores. Questions that it was trained on get
    the out-of-fold score, which `lab train --folds 5` saves.
    """
    with report_errors():
        given["metrics"] = unique("--metric", map(parse_renaming, given["metrics"]))
        settings = InsertSettings.model_validate({"config": open_config(config), **given})
        with progress() as on_progress:
            insert_labels(settings, console, on_progress)


def warm_start(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the labels that are new.")] = False,
    config: ConfigPath = CONFIG,
) -> None:
    """Run a warm start now: gather labels, learn a candidate, evaluate it, promote or hold it.

    A service does the same on the schedule of `warm_start` in the configuration. This command runs it in
    its own process, whether or not a service runs. It exits with 0 if the candidate was promoted or held,
    or if there was nothing new.
    """
    with report_errors():
        if dry_run:
            settings = with_log(config, without=())
            with progress() as on_progress:
                lots = preview_lots(settings, on_progress)
            for lot in lots:
                line = f"{lot.source}: {lot.kind}, {'new' if lot.new else 'known'}, {lot.path}"
                console.print(line, highlight=False, soft_wrap=True)
            return
        settings = open_config(config)
        try:
            with progress() as on_progress:
                run = run_warm_start(settings, runs.Trigger.COMMAND, console, on_progress)
        except RunFailedError as error:
            errors.print(str(error), style="red", soft_wrap=True)
            raise typer.Exit(1) from None
        ended = run.status.replace("_", " ")
        if run.too_little is not None:
            ended = f"nothing to learn yet: {run.too_little}"
        console.print(f"run {run.seq}: {ended}", highlight=False)


@settings_options(
    Training,
    {"outcomes": ARGUMENT, "output": OUTPUT},
    without=("config", "router", "utility"),
)
def train(
    given: dict[str, Any],
    model: Annotated[Trainable, typer.Option("--model", help="What to train.")] = Trainable.ROUTER,
    router: Annotated[str | None, typer.Option("--router", help="Kind of the router.")] = None,
    stage: Annotated[
        str | None,
        typer.Option(
            "--stage", help="What it sees: question, retrieved or answered. By default as its kind says."
        ),
    ] = None,
    spec: Annotated[
        Path | None, typer.Option("--spec", help="YAML file with `kind` and `params`, instead of --router.")
    ] = None,
    measure: Annotated[
        list[str] | None,
        typer.Option(
            "--measure", help="Score of the outcomes, with =WEIGHT if not 1; repeatable. By default f1."
        ),
    ] = None,
    prior: Annotated[
        float, typer.Option("--prior", help="Weight of the arm's mean exact match over all questions.")
    ] = 0.0,
    cost_weight: Annotated[
        float,
        typer.Option("--cost-weight", help="Utility lost per unit of cost, at the prices of the reward."),
    ] = 0.0,
    over: Annotated[
        str | None, typer.Option("--over", help="Arm whose utility is subtracted on each question.")
    ] = None,
    minmax: Annotated[
        bool, typer.Option("--minmax", help="Scale the utilities of each question to [0, 1].")
    ] = False,
    config: ConfigPath = CONFIG,
) -> None:
    """Train a router on outcomes and validate it; `router` in the configuration serves it.

    `--model relevance` trains a model of the relevance of passages instead, from the gold_ids of the
    questions. An arm of kind `learned_fusion` serves it. Leave out the options of a router.

    `--model cascade` trains an arm of kind `cascade`, whose stages `--spec` describes.
    """
    with report_errors():
        settings = open_config(config, without=["router"])  # it may be about to be trained
        utility = {
            "measures": unique("--measure", map(parse_weight, measure or ["f1"])),
            "prior": prior,
            "cost_weight": cost_weight,
            "cost": settings.reward.cost,
            "over": over,
            "scale": "minmax" if minmax else "none",
        }
        given = {"config": settings, **given}
        of_router: dict[str, Any] = {"--router": router, "--stage": stage}
        if model is Trainable.RELEVANCE:
            of_router |= {
                "--spec": spec, "--measure": measure, "--prior": prior, "--cost-weight": cost_weight,
                "--over": over, "--minmax": minmax,
            }  # fmt: skip
        if model is not Trainable.ROUTER and (extra := [flag for flag, value in of_router.items() if value]):
            raise ValueError(f"{', '.join(extra)}: only a router has that, not --model {model.value}")
        with progress() as on_progress:
            match model:
                case Trainable.ROUTER:
                    given |= {"router": router_spec(router, stage, spec), "utility": utility}
                    train_router(Training.model_validate(given), console, on_progress)
                case Trainable.RELEVANCE:
                    train_relevance(RelevanceTraining.model_validate(given), console, on_progress)
                case Trainable.CASCADE:
                    if spec is None:
                        raise ValueError("--model cascade needs --spec, a YAML file of its stages")
                    given |= {"spec": cascade_spec(spec), "utility": utility}
                    train_cascade(CascadeTraining.model_validate(given), console, on_progress)


def threshold(
    arm: Annotated[str, typer.Argument(help="An arm of kind `checked`.")],
    config: ConfigPath = CONFIG,
) -> None:
    """Estimate from the log the best threshold of a checked arm.

    Its first answer is sent if its score reaches the threshold. The arm needs `explore` above 0: otherwise
    the log cannot show what the other answer would have been worth. Nothing is changed; put the threshold
    into the configuration.
    """
    with report_errors():
        settings = with_log(config)
        fit = fit_logged_threshold(settings, arm)
    console.print(fit.table())
    for reason, n in fit.left_out.items():
        console.print(f"left out {n:,}: {reason}", highlight=False, soft_wrap=True)
    console.print(fit.summary, highlight=False, soft_wrap=True)


@settings_options(
    EvaluationSettings,
    {"model": ARGUMENT, "outcomes": ARGUMENT, "output": OUTPUT},
    without=("config",),
    help_texts={"outcomes": "Outcomes of the same arms on other questions, from `armwise lab label`."},
)
def evaluate(given: dict[str, Any], config: ConfigPath = CONFIG) -> None:
    """Evaluate a trained router, cascade or model of relevance on questions that it was not trained on.

    Questions that it was trained on are left out, except for a cascade, which does not list them. The best
    single arm is the best one on these questions.
    """
    with report_errors():
        settings = open_config(config, without=["router"])
        with progress() as on_progress:
            evaluate_model(
                EvaluationSettings.model_validate({"config": settings, **given}), console, on_progress
            )


@settings_options(
    Simulation,
    SIMULATION_FLAGS,
    without=("url", "api_key", "timeout_s", "learned_timeout_s"),
    text=("metrics",),
)
def simulate_traffic(given: dict[str, Any], url: Url = URL, key: Key = None) -> None:
    """Send questions with known answers to a running service, score the replies, and send feedback."""
    with report_errors():
        metrics = unique("--metric", map(parse_renaming, given["metrics"]))
        settings = Simulation.model_validate(
            {**given, "url": url, "api_key": key or None, "metrics": metrics}
        )
        asyncio.run(simulate(settings, console))
