"""`armwise report`: the page and the text of a period, and what is said of a wrong request."""

import os
import re
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from armwise.agent.cli.main import app
from armwise.agent.config import load
from armwise.feedback.clock import utc
from armwise.feedback.log import Store
from armwise.feedback.registry import arm_sets
from tests.agent.cli.test_cli import said
from tests.agent.evaluation.logged import BEGIN, World, configured, fill

WORLD = World({"none": 0.3, "bm25": 0.8}, usd={"none": 0.001, "bm25": 0.02}, every_s=600.0)

DAY = 86400.0


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return configured(tmp_path, WORLD)


@pytest.fixture
def filled(config: Path) -> Path:
    """A configuration with 600 decisions of four days and four hours in its log."""
    settings = load(config, ["router"])
    (config.parent / "home").mkdir(mode=0o700)
    with closing(Store(settings.database_url, settings.reward.join)) as store:
        arm_sets.start(store, {name: {"kind": "none"} for name in WORLD.right})
        with store.writing() as connection:
            connection.exec_driver_sql(f"UPDATE operations SET at = {BEGIN - 1}")
        fill(store, WORLD, 600, seed=3)
    return config


def run(*words: object, code: int = 0) -> str:
    return said(CliRunner().invoke(app, ["report", *(str(word) for word in words)]), code)


def time_of(at: float) -> str:
    return utc(at)[:19].replace(" ", "T")


@pytest.mark.slow
def test_a_period_ends_where_it_is_said_and_begins_so_long_before(filled: Path) -> None:
    """Days, hours, minutes and weeks; a date is one, too; the text is printed where no page is asked for."""
    end = BEGIN + 2 * DAY
    for since, n in (("1d", 144), ("24h", 144), ("120m", 12), ("1w", 288), (time_of(end - 6000.0), 10)):
        text = run("-c", filled, "--since", since, "--until", time_of(end))
        assert f"* {n:,} decisions, {n:,} with a reward. Drawn: " in text, since
    assert "*Armwise, 2023-11-15 22:13 UTC to 2023-11-16 22:13 UTC*" in run(
        "-c", filled, "--since", "1d", "--until", time_of(end)
    )


@pytest.mark.slow
def test_the_page_is_written_and_names_the_command_that_makes_it_again(filled: Path, tmp_path: Path) -> None:
    """The text is printed beside it on request, and other users of the machine cannot read it."""
    page = tmp_path / "week.html"
    period = "--since", "2023-11-14", "--until", "2023-11-16T00:00"
    printed = run("-c", filled, *period, "-o", page)
    assert f"{page}: " in printed
    assert "*Armwise" not in printed
    html = page.read_text(encoding="utf-8")
    again = re.search(r"<pre>(.*)</pre>", html)
    assert again is not None
    assert again[1] == (
        f"armwise report -c {filled} --since 2023-11-14T00:00:00Z --until 2023-11-16T00:00:00Z -o week.html"
    )
    before = html
    run(*again[1].split()[2:-1], page)
    assert page.read_text(encoding="utf-8") == before
    assert "*Armwise" in run("-c", filled, *period, "-o", page, "--text")


@pytest.mark.slow
def test_it_writes_nothing_to_the_log(filled: Path) -> None:
    log = load(filled, ["router"]).log_path
    assert log is not None
    before = log.read_bytes()
    run("-c", filled, "--since", "2023-01-01")
    assert log.read_bytes() == before


@pytest.mark.slow
def test_the_text_alone_is_on_the_output_so_that_it_can_be_piped(filled: Path) -> None:
    """Progress is reported beside it."""
    result = CliRunner().invoke(app, ["report", "-c", str(filled), "--since", "2023-01-01"])
    assert result.exit_code == 0
    assert result.stdout.startswith("*Armwise, 2023-01-01")
    assert result.stderr == "decisions: 600 of 600\ndecisions audited: 600 of 600\n"
    assert len(result.stdout) <= 2001


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--since", "7x"], "--since '7x': a duration such as 7d, 24h or 90m, or a date such as 2026-05-01"),
        (["--since", "-7d"], "--since '-7d': a duration such as"),
        (["--since", "0d"], "--since 0d: a time before the end of the period was expected"),
        (["--since", "99999w"], "--since 99999w: the log has no year before 1970"),
        (["--since", "2024-01-02", "--until", "2024-01-01"], "--since 2024-01-02: a time before the end"),
        (["--until", "soon"], "--until 'soon' is not a date such as 2026-05-01"),
        (["-o", "week.pdf"], "--output week.pdf: a name that ends with .html was expected"),
        (
            ["-o", "there/is/none/week.html"],
            "--output there/is/none/week.html: there is no folder there/is/none",
        ),
        (
            ["--since", "2020-01-01", "--until", "2020-02-01"],
            "no decision was made from 2020-01-01 00:00:00 UTC",
        ),
    ],
)
@pytest.mark.slow
def test_a_wrong_request_is_refused_in_one_line(filled: Path, words: list[str], message: str) -> None:
    """The line names the value and what would be right."""
    printed = run("-c", filled, *words, code=2)
    assert message in printed
    assert "Traceback" not in printed


def test_a_log_that_is_not_there_is_not_made(config: Path) -> None:
    """A report reads only."""
    assert "there is no log at " in run("-c", config, code=2)
    assert not (config.parent / "home").exists()
    assert os.listdir(config.parent) == ["config.yaml"]
