"""Run the demo: `python -m examples.demo`, or `make demo`."""

from pathlib import Path
from typing import Annotated

import typer

from agent.cli.console import console, explained, progress
from agent.config import CorpusSpec
from examples.demo import demonstrate

DEMO = Path("examples/demo.yaml")


app = typer.Typer(add_completion=False)


@app.command()
def main(
    config: Annotated[Path, typer.Option("--config", "-c", help="What is served.")] = DEMO,
    questions: Annotated[
        Path, typer.Option("--questions", help="JSON lines with gold_ids and type or dataset; plain or .gz.")
    ] = demonstrate.QUESTIONS,
    corpus: Annotated[
        str | None, typer.Option("--corpus", help="name=source, the corpus that they are asked of.")
    ] = None,
    before: Annotated[
        list[str] | None, typer.Option("--before", help="A kind of question asked at first; repeatable.")
    ] = None,
    after: Annotated[
        list[str] | None, typer.Option("--after", help="A kind asked after the drift; repeatable.")
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the page and all else.")] = Path(
        "demo"
    ),
    k: Annotated[int, typer.Option("-k", help="Passages to ask for, and the cut of recall.")] = 2,
    concurrency: Annotated[int, typer.Option("--concurrency", help="Questions in flight.")] = 4,
    seed: Annotated[int, typer.Option("--seed", help="Splits the questions, and draws the traffic.")] = 0,
) -> None:
    """Start a service, live through its whole loop with real questions, and tell of it on one page."""
    with explained():
        named = None
        if corpus is not None:
            name, equals, source = corpus.partition("=")
            if not equals:
                raise ValueError(f"--corpus {corpus}: name=source was expected, such as qa=corpus.jsonl")
            named = CorpusSpec(name=name, source=source)
        settings = demonstrate.Demo(
            config=config,
            questions=questions,
            corpus=named,
            before=tuple(before or ()),
            after=tuple(after or ()),
            output=output,
            k=k,
            concurrency=concurrency,
            seed=seed,
        )
        with progress() as tell:
            story = demonstrate.run(settings, tell)
        for chapter in story.chapters:
            outcome = "" if chapter.hoped else "  did not come about"
            console.print(f"{chapter.took_s:5.0f} s  {chapter.title}{outcome}", markup=False)
        console.print(f"the page: {(output / demonstrate.PAGE).absolute()}", markup=False, soft_wrap=True)


if __name__ == "__main__":
    app()
