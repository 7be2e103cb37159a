"""Options that several verbs share."""

from pathlib import Path
from typing import Annotated

import typer

ConfigPath = Annotated[Path, typer.Option("--config", "-c", help="The Ray Serve configuration file.")]
