"""`armwise demo`: its world and its page; and a whole run, whose chapters are read from the log."""

import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from armwise.agent.cli.main import app
from armwise.agent.demo.page import average, render
from armwise.agent.demo.story import Story, Turn, share
from armwise.agent.demo.world import COMPARISON, LOOKUP, RULE, World
from armwise.arms.base import Passage
from armwise.arms.retrievers import NoRetrieval

LIBRARY = (
    Passage(
        "library/gzip.compress", "gzip.compress", "gzip.compress(data)\n\nCompress data in one shot. Fast."
    ),
    Passage("library/zlib.compress", "zlib.compress", "zlib.compress(data)\n\nReturn compressed data."),
    Passage("library/gzip", "gzip", "gzip\n\nA module, which is no function."),
)
LANGUAGE = (
    Passage("language/lambda", "Lambdas", "Lambda expressions create anonymous functions. They are short."),
)


def world(seed: int = 0) -> World:
    return World(LIBRARY, LANGUAGE, NoRetrieval("reference"), seed)


def turn(kind: str, usd: float, **pmf: float) -> Turn:
    return Turn("What?", kind, True, next(iter(pmf)), pmf, usd, 2.0 * usd)


def test_questions_are_of_three_kinds_and_have_the_sentences_that_answer_them() -> None:
    asked = world()
    questions = {question.text: question for question in (asked.draw() for _ in range(300))}
    by_kind = {kind: [q for q in questions.values() if q.kind == kind] for kind in (LOOKUP, COMPARISON, RULE)}
    assert {title for q in by_kind[LOOKUP] for title in q.key} == {"gzip.compress", "zlib.compress"}
    assert all(set(q.key) == {"gzip.compress", "zlib.compress"} for q in by_kind[COMPARISON])
    assert {"How does Python treat lambdas?", "How is lambdas defined?"} <= {q.text for q in by_kind[RULE]}
    assert by_kind[RULE][0].key == {"Lambdas": "Lambda expressions create anonymous functions."}
    assert questions["What is gzip.compress for?"].key == {"gzip.compress": "Compress data in one shot."}


def test_a_model_answers_right_only_from_the_passages_needed_and_the_large_one_by_heart_sometimes() -> None:
    worlds = [world(seed) for seed in range(200)]
    (question,) = {
        q.text: q for q in (worlds[0].draw() for _ in range(99)) if q.text == "How is lambdas defined?"
    }.values()

    def right(model: str, *titles: str) -> float:
        return sum(question.is_answered(one.write(model, question, titles)) for one in worlds) / len(worlds)

    assert right("small", "Lambdas", "Calls") == pytest.approx(0.95, abs=0.05)
    assert right("large", "Lambdas (withdrawn edition)") == right("small", "Calls") == right("small") == 0.0
    assert right("large") == pytest.approx(0.5, abs=0.12)


def test_one_rating_in_twenty_is_wrong() -> None:
    asked = world()
    question = asked.draw()
    ratings = [asked.rate(question, " ".join(question.key.values())) for _ in range(2000)]
    assert sum(ratings) / len(ratings) == pytest.approx(0.95, abs=0.02)


def test_a_share_is_averaged_over_the_questions_of_a_kind_and_begins_anew_with_another_arm() -> None:
    turns = [turn(RULE, 0.0, a=1.0, b=0.0), turn(LOOKUP, 0.0, a=0.0, b=1.0), turn(RULE, 0.0, a=0.5, b=0.5)]
    story = Story("http://127.0.0.1:1", turns=[*turns, turns[2]])
    assert average(story, RULE, "aaab") == [(1, 1.0), (3, 0.75), (4, 0.5)]
    assert share(story.turns, RULE, "a") == pytest.approx(2 / 3)


@pytest.mark.parametrize("live", [True, False])
def test_the_page_needs_nothing_from_elsewhere_and_fetches_itself_only_while_it_is_live(live: bool) -> None:
    story = Story("http://127.0.0.1:1")
    empty = render(story, live=live)
    story.turns += [turn(RULE, 0.01 * (n + 1), **{"language-small": 1.0}) for n in range(3)]
    story.marks, story.stale_at, story.promotion.came_about = [(2, "stale")], 2, False
    page = render(story, live=live)
    for text in (empty, page):
        assert "src=" not in text
        assert "https://" not in text
        assert ("<script>" in text) == live
    assert "did not come about" in page
    assert "0.00" in empty


def test_a_folder_with_a_home_that_no_demo_has_made_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "log.db").write_text("mine")
    done = CliRunner().invoke(app, ["demo", "--output", str(tmp_path)])
    assert done.exit_code == 2
    assert (tmp_path / "home" / "log.db").read_text() == "mine"


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sqlite3.Connection]:
    """The log of a whole run, and no other file of it."""
    folder = tmp_path_factory.mktemp("demo")
    command = [sys.executable, "-m", "armwise", "demo", "--seed", "7", "--output", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "did not come about" not in (folder / "index.html").read_text(encoding="utf-8")
    with closing(sqlite3.connect(folder / "home" / "log.db")) as connection:
        yield connection


def drawn(log: sqlite3.Connection, word: str, arm: str, last: int = 40, before: int | None = None) -> float:
    """Return the mean logged probability of an arm for the last questions that begin with a word."""
    rows = log.execute(
        "SELECT document ->> 'question', arms, probabilities FROM decisions JOIN texts USING (seq) "
        "ORDER BY seq"
    ).fetchall()[:before]
    asked = [
        dict(zip(json.loads(arms), json.loads(p), strict=True))
        for text, arms, p in rows
        if text.startswith(word)
    ]
    return sum(pmf[arm] for pmf in asked[-last:]) / last


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_each_chapter_came_about_in_the_log(log: sqlite3.Connection) -> None:
    ((forced, status, result),) = log.execute(
        "SELECT document ->> 'forced', status, result FROM operations JOIN jobs "
        "ON document ->> 'evaluation' = jobs.seq WHERE operations.kind = 'promote'"
    ).fetchall()
    assert (forced, status) == (0, "done")
    assert [one["verdict"]["promote"] for one in json.loads(result)["candidates"] if one["verdict"]] == [True]
    stale = -350  # the last questions were asked with a stale search
    assert drawn(log, "What", "library-small", before=stale) > 0.5
    assert drawn(log, "Which", "library-large", before=stale) > 0.5
    assert drawn(log, "How", "language-small", before=stale) > 0.5
    assert drawn(log, "How", "language-small") < 0.25
    assert drawn(log, "How", "large-alone") > 0.5
    served = dict(
        log.execute("SELECT served, sum(usd) / count(*) FROM executions GROUP BY served").fetchall()
    )
    n, usd = log.execute("SELECT count(*), sum(usd) FROM executions").fetchone()
    assert n == log.execute("SELECT count(*) FROM feedback").fetchone()[0] >= 900
    assert usd / n < 0.8 * served["library-large"]
