"""Run the demo: `python -m examples.demo`, or `make demo`."""

import os
import webbrowser
from typing import Any

import typer

from armwise.agent.cli.console import console, explained, progress
from armwise.agent.cli.options import settings_options
from armwise.agent.cli.serve_config import read_listening_address
from armwise.arms.local_ray import UMASK
from examples.demo import demonstrate

app = typer.Typer(add_completion=False)


@app.command()
@settings_options(
    demonstrate.Demo,
    {"config": "--config -c", "output": "--output -o", "k": "-k"},
    without=("plan",),
)
def main(given: dict[str, Any]) -> None:
    """Start a service, take it through its whole loop with real questions, and report on one page."""
    os.umask(UMASK)  # questions and answers lie in its folder
    with explained():
        settings = demonstrate.Demo.model_validate(given)
        host, port = read_listening_address(settings.config)
        console.print(f"watch it live: http://{host}:{port}/console")
        with progress() as on_progress:
            story = demonstrate.run(settings, on_progress, lambda url: show(f"{url}/console"))
        for chapter in story.chapters:
            outcome = "" if chapter.succeeded else "  did not come about"
            console.print(f"{chapter.took_s:5.0f} s  {chapter.title}{outcome}")
            for moved in chapter.moved:
                console.print(f"         {moved}", soft_wrap=True)
        page = (settings.output / demonstrate.PAGE).absolute()
        console.print(f"the page: {page}", soft_wrap=True)


def show(address: str) -> None:
    """Open a page, where somebody looks at this terminal and there is a desktop."""
    if console.is_terminal and any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY"))):
        webbrowser.open(address)


if __name__ == "__main__":
    app()
