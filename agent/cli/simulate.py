"""The verb that sends questions with known answers: `armwise simulate`."""

import asyncio
from typing import Any

from agent.cli.console import console, explained
from agent.cli.options import ARGUMENT, URL, Key, Url, renamed, settings_options, unique
from agent.simulation import Simulation, simulate

FLAGS = {"questions": ARGUMENT, "metrics": "--metric", "output": "--output -o", "k": "-k"}


@settings_options(
    Simulation, FLAGS, without=("url", "api_key", "timeout_s", "learned_timeout_s"), text=("metrics",)
)
def simulate_traffic(given: dict[str, Any], url: Url = URL, key: Key = None) -> None:
    """Send questions with known answers to a live service, score, feed back, and draw the learning curve."""
    with explained():
        metrics = unique("--metric", map(renamed, given["metrics"]))
        settings = Simulation.model_validate(
            {**given, "url": url, "api_key": key or None, "metrics": metrics}
        )
        asyncio.run(simulate(settings, console))
