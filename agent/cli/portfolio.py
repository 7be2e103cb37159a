"""The verbs that make questions, score a pool of arms and choose a portfolio; none needs a service."""

from typing import Any

from agent.cli.console import console, explained, progress
from agent.cli.options import ARGUMENT, CONFIG, ConfigPath, opened, settings_options, unique, weighted
from agent.offline import Comparing, Scoring, Selection, Synthesis, select_portfolio
from agent.offline import alignment as offline_alignment
from agent.offline import score as offline_score
from agent.offline import synthesize as offline_synthesize

OUTPUT, K = "--output -o", "-k"


@settings_options(
    Synthesis,
    {"output": OUTPUT, "with_model": "--with-model/--without-model"},
    without=("config",),
    text=("styles",),
)
def synthesize(given: dict[str, Any], config: ConfigPath = CONFIG) -> None:
    """Make questions from the corpus, each with the passages that answer it.

    Score the arms on them, train a router, and start from it before the first real question. An interrupted
    run continues where it stopped.
    """
    with explained():
        given["styles"] = unique("--styles", (weighted(one, "--styles") for one in given.get("styles") or ()))
        settings = opened(config, without=["router"])  # it may be about to be trained
        with progress() as on_progress:
            made = Synthesis.model_validate({"config": settings, **given})
            offline_synthesize.run(made, console, on_progress)


@settings_options(Comparing, {"made": ARGUMENT, "output": OUTPUT}, without=("config",))
def align(given: dict[str, Any], config: ConfigPath = CONFIG) -> None:
    """Compare made questions with real ones, and keep those to learn from, by weight.

    Real questions need no answers. Where there are none so far, a score matrix of the made questions brings
    arms that match words and arms that compare vectors on a par: made questions favour the former.
    """
    with explained():
        settings = opened(config, without=["router"])
        with progress() as on_progress:
            compared = Comparing.model_validate({"config": settings, **given})
            offline_alignment.run(compared, console, on_progress)


@settings_options(Scoring, {"output": OUTPUT, "k": K}, without=("config",))
def score(given: dict[str, Any], config: ConfigPath = CONFIG) -> None:
    """Score every arm of a pool on every question; an interrupted run continues where it stopped."""
    with explained():
        settings = opened(config, without=["router"])  # it may be about to be trained
        with progress() as on_progress:
            offline_score.run(Scoring.model_validate({"config": settings, **given}), console, on_progress)


@settings_options(Selection, {"scores": ARGUMENT, "output": OUTPUT, "k": K}, without=("delta", "budgets"))
def portfolio(given: dict[str, Any]) -> None:
    """Choose the few arms that together serve most; the result is configuration for `armwise apply`."""
    with explained():
        select_portfolio(Selection.model_validate(given), console)
