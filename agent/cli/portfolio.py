"""The verbs that score a pool of arms and choose a portfolio; neither needs a running service."""

from typing import Any

from agent.cli.console import console, explained, progress
from agent.cli.options import ARGUMENT, CONFIG, ConfigPath, settings_options
from agent.config import load
from agent.offline import Scoring, Selection, select_portfolio
from agent.offline import score as offline_score

OUTPUT, K = "--output -o", "-k"


@settings_options(Scoring, {"output": OUTPUT, "k": K}, without=("config",))
def score(given: dict[str, Any], config: ConfigPath = CONFIG) -> None:
    """Score every arm of a pool on every question; an interrupted run continues where it stopped."""
    with explained():
        settings = load(config, without=["router"])  # it may be about to be trained
        with progress() as on_progress:
            offline_score.run(Scoring.model_validate({"config": settings, **given}), console, on_progress)


@settings_options(Selection, {"scores": ARGUMENT, "output": OUTPUT, "k": K}, without=("delta", "budgets"))
def portfolio(given: dict[str, Any]) -> None:
    """Choose the few arms that together serve most; the result is configuration for `armwise apply`."""
    with explained():
        select_portfolio(Selection.model_validate(given), console)
