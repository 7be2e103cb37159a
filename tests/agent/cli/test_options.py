"""Options that are generated from a settings model."""

from enum import Enum
from pathlib import Path
from typing import Any

import typer
from pydantic import BaseModel, Field
from typer.testing import CliRunner

from armwise.agent.cli.options import ARGUMENT, settings_options


class Shade(Enum):
    LIGHT = "light"
    DARK = "dark"


class Settings(BaseModel):
    source: Path = Field(description="What is read.")
    names: tuple[str, ...] = Field(default=("*",), description="Pattern of names.")
    timed: int = Field(default=4, description="Searches to time.")
    limit: int | None = Field(default=None, description="At most this many.")
    gate: bool = Field(default=False, description="Apply the gate.")
    shade: Shade = Field(default=Shade.LIGHT, description="How dark.")
    pair: tuple[int, int] | None = Field(default=None, description="FROM-TO.")
    hidden: str = Field(default="", description="No option.")


def given(*words: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    app = typer.Typer(rich_markup_mode=None)

    @app.command()
    @settings_options(Settings, {"source": ARGUMENT, "names": "--name -n"}, without=("hidden",))
    def verb(given: dict[str, Any], other: int = 7) -> None:
        found.update(given, other=other)

    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, result.output
    return found or {"output": result.output}


def test_what_the_command_line_does_not_set_is_left_to_the_model() -> None:
    assert given("a.txt") == {"source": Path("a.txt"), "other": 7}


def test_zero_is_given_and_not_taken_for_unset() -> None:
    assert given("a.txt", "--timed", "0")["timed"] == 0


def test_every_kind_of_field_is_read() -> None:
    words = ["a.txt", "-n", "x", "--name", "y", "--limit", "3", "--gate", "--shade", "dark", "--pair", "1-2"]
    assert given(*words) == {
        "source": Path("a.txt"),
        "names": ["x", "y"],
        "limit": 3,
        "gate": True,
        "shade": Shade.DARK,
        "pair": "1-2",
        "other": 7,
    }


def test_a_field_that_is_left_out_is_no_option() -> None:
    assert "--hidden" not in given("--help")["output"]
