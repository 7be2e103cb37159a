"""Worlds by their seeds: the real service keeps its promises in each, and a world repeats."""

import os
import re
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest

from tests.simulation.disk import NoLibraryError, install
from tests.simulation.sabotage import SABOTAGE, plant

ROOT = Path(__file__).parents[2]


def simulate(*options: str) -> subprocess.CompletedProcess[str]:
    try:
        install(default=False)
    except NoLibraryError as error:
        pytest.skip(str(error))
    command = [sys.executable, "-m", "tests.simulation", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)


@pytest.mark.timeout(400)
def test_every_promise_holds_in_twenty_worlds_which_repeat() -> None:
    done = simulate("--seeds", "20", "--digests")
    assert done.returncode == 0, done.stdout + done.stderr
    assert ", 0 failed" in done.stdout
    again = simulate("--seeds", "2", "--first", "11", "--digests")
    lines = done.stdout.splitlines()
    assert again.stdout.splitlines()[:2] == lines[10:12]
    assert len({line.split()[1] for line in lines[:20]}) == 20


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_every_promise_holds_in_the_worlds_of_the_day() -> None:
    first = 10_000 * date.today().toordinal()
    done = simulate("--seeds", "2000", "--first", str(first), "--processes", "2", "--keep-going")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2000 worlds" in done.stdout


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", SABOTAGE)
def test_a_planted_fault_is_found_within_ten_thousand_worlds(name: str) -> None:
    done = simulate("--seeds", "10000", "--no-short", "--sabotage", name)
    assert done.returncode == 1, f"{name} is not found"


@pytest.mark.slow
def test_a_world_that_fails_prints_its_shortest_schedule() -> None:
    done = simulate("--seeds", "100", "--sabotage", "join: a retraction is ignored")
    assert done.returncode == 1
    schedule = re.findall(r"^ +[0-9.]+ s  #[0-9]+ .*$", done.stdout, re.MULTILINE)
    assert 1 <= len(schedule) < 8
    assert re.search(r"^learned: \w+~\w+ was learned with", done.stdout, re.MULTILINE)


@pytest.mark.parametrize("name", SABOTAGE)
def test_what_is_planted_has_its_place_in_the_source(name: str) -> None:
    sabotage = SABOTAGE[name]
    source = (ROOT / sabotage.module).read_text()
    assert source.count(sabotage.old) == 1
    compile(source.replace(sabotage.old, sabotage.new), sabotage.module, "exec")


def test_an_unknown_fault_is_not_planted() -> None:
    with pytest.raises(KeyError):
        plant("none of them")
