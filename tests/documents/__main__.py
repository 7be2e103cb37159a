"""Write what is generated from the code, or compare it: `python -m tests.documents [--check]`."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from armwise.agent.cli.configuration_text import SCHEMA, render_config
from armwise.agent.config import CorpusSpec
from tests.documents import configuration, defaults, errors, questions, routes, schema, texts

ROOT = Path(__file__).parents[2]

REFERENCE = ROOT / "docs" / "reference"


def template() -> str:
    """Return a configuration to copy, with the path of a checkout and the default home."""
    text = render_config([CorpusSpec()]).replace(str(SCHEMA), "agent/config/schema.json")
    return re.sub(r" +# This folder holds the corpus.*\n +home: .*\n", "", text)


def generated() -> Iterator[tuple[Path, str]]:
    """Yield each file that is generated, with what it must contain."""
    for name, page in configuration.pages().items():
        yield REFERENCE / name, page
    yield REFERENCE / "errors.md", errors.page()
    yield REFERENCE / "http.md", routes.page()
    yield REFERENCE / "texts.md", texts.page()
    yield ROOT / "agent" / "config" / "schema.json", schema.page()
    yield ROOT / "agent" / "config" / "template.yaml", template()
    yield Path(__file__).with_name("defaults.yaml"), defaults.page()
    yield questions.QUESTIONS, questions.page()


def main(
    check: Annotated[bool, typer.Option("--check", help="Write nothing; fail if a file differs.")] = False,
) -> None:
    """Write the generated files, and delete those of the reference that no setting has any more."""
    pages = dict(generated())
    left = {*REFERENCE.glob("configuration/*.md")} - pages.keys()
    stale = [
        path for path, page in pages.items() if not path.exists() or path.read_text(encoding="utf-8") != page
    ]
    for path in sorted((*stale, *left)):
        typer.echo(f"{path.relative_to(ROOT)} {'is out of date' if check else 'is written anew'}")
    if check:
        if stale or left:
            typer.echo("Run `python -m tests.documents`, and commit what it writes.")
        raise typer.Exit(bool(stale or left))
    for path in stale:
        path.parent.mkdir(exist_ok=True)
        path.write_text(pages[path], encoding="utf-8")
    for path in left:
        path.unlink()


if __name__ == "__main__":
    typer.run(main)
