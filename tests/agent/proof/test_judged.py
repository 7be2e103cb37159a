"""`armwise prove --audit`: what is judged and paid, what is said of all answers, and its verification."""

import json
import re
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import sqlalchemy as sa
import yaml
from typer.testing import CliRunner

from armwise.agent.cli.main import app
from armwise.agent.config import load
from armwise.agent.proof import judged, noninferiority, read_receipt, state_kept_audit
from armwise.agent.proof.judged import AnswerAudit
from armwise.agent.proof.judged_answers import AnswerSample
from armwise.agent.proof.receipt import AUDITED
from armwise.agent.proof.statements import state_audited
from armwise.agent.reporting import moment
from armwise.arms.llm import Chunk, GeneratorError, LateWriter, Prompt
from armwise.feedback.arrays import Floats
from armwise.feedback.events import Status
from armwise.feedback.log import Store, second_answers
from armwise.feedback.log import tables as t
from tests.agent.cli.test_cli import said
from tests.agent.evaluation.logged import World, fill

WORLD = World(
    {"none": 0.6, "bm25": 0.8},
    usd={"none": 0.001, "bm25": 0.01},
    rated=0.1,
    answers={"none": "Perhaps the sea.", "bm25": "The mountain."},
)

USD = 0.002


class Judge:
    """A judge that grades by the text of an answer.

    Attributes:
        prompts: What it was asked, and how often.
        replies: What it says of an answer that contains a word.
    """

    def __init__(self, _: object) -> None:
        pass

    prompts: ClassVar = Counter[str]()
    replies: ClassVar[dict[str, str | Exception]] = {}

    def __call__(self, prompt: Prompt) -> tuple[str, Chunk]:
        text = "\n".join(message["content"] for message in prompt.messages)
        self.prompts[text] += 1
        reply = next(reply for word, reply in self.replies.items() if word in text)
        if isinstance(reply, Exception):
            raise reply
        return reply, Chunk(reply, usd=USD)


@pytest.fixture(autouse=True)
def judge(monkeypatch: pytest.MonkeyPatch) -> type[Judge]:
    monkeypatch.setattr(judged, "LateWriter", Judge)
    monkeypatch.setattr(Judge, "prompts", Counter())
    monkeypatch.setattr(Judge, "replies", {"Perhaps": '{"score": 5}', "mountain": '{"score": 8}'})
    return Judge


@pytest.fixture(autouse=True)
def priced(config: Path) -> None:
    document = yaml.safe_load(config.read_text())
    args = document["applications"][0]["args"]
    args["llms"] = {
        "jury": {"engine": "scripted", "usd_per_kilotoken_in": 0.001, "usd_per_kilotoken_out": 0.004}
    }
    config.write_text(yaml.safe_dump(document))


def prove(config: Path, *words: object, code: int = 0, judge: str = "jury") -> str:
    named = ["prove", "-c", config, "--judge", judge, *words]
    return " ".join(said(CliRunner().invoke(app, [str(word) for word in named]), code).split())


def audit(config: Path, folder: Path, *words: object) -> dict[str, Any]:
    """Return the audit of a receipt."""
    prove(config, "-o", folder / "receipt.json", "--audit", 200, *words)
    found: dict[str, Any] = json.loads((folder / "receipt.json").read_text())["audit"]
    return found


def test_a_random_share_of_all_answers_is_judged_blind_and_the_receipt_speaks_of_all(
    config: Path, store: Store, tmp_path: Path, judge: type[Judge], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(second_answers, "AT_ONCE", 70)
    made = fill(store, WORLD, 1500, seed=3)
    found = audit(config, tmp_path)
    assert found["answers"] == 1500, "not only the rated tenth"
    assert 140 <= len(found["grades"]) == sum(judge.prompts.values()) <= 260
    assert found["spent"] == pytest.approx(USD * len(found["grades"]))
    assert not any(name in text for text in judge.prompts for name in ("none", "bm25"))
    share = [grade for _, grade in found["grades"]].count(0.8) / len(found["grades"])
    assert {grade for _, grade in found["grades"]} == {0.5, 0.8}
    assert 0.35 < share < 0.65, "half of them are of the reference"
    estimate, low, high = found["quality"]
    printed = prove(config, "--audit", 200)
    said_of_all = "The mean grade by jury of all 1,500 answers, rated or not, is estimated from "
    assert f"{said_of_all}{len(found['grades'])} that were drawn at random: " in printed
    assert "This covers 1,500 decisions. All ranges" in printed
    assert "for one audit, not for the best of several" in printed
    assert "rated answers of" not in printed
    assert "points of 100 gained by an answer" in prove(config, "--audit", 200, "--markdown")
    truth = -0.3 * float(np.mean([one.probabilities[0] for one in made]))
    assert low < truth < high, "the small arm has .3 less"
    assert estimate == pytest.approx(truth, abs=0.04)
    again = audit(config, tmp_path)
    assert again == found
    assert audit(config, tmp_path, "--seed", 1)["grades"] != found["grades"]


@pytest.mark.parametrize(
    ("change", "said_of"),
    [
        (lambda audit: audit.update(quality=[0.0, -0.01, 0.01]), "quality"),
        (lambda audit: audit.update(seed=7), "draws other answers"),
        (lambda audit: audit["grades"].pop(), "draws other answers"),
        (lambda audit: audit["grades"][0].__setitem__(1, 0.0), "quality"),
        (lambda audit: audit.update(answers=7), "answers"),
    ],
)
def test_verify_computes_an_audit_again(
    config: Path, store: Store, tmp_path: Path, change: Any, said_of: str
) -> None:
    fill(store, WORLD, 600, seed=3)
    path = tmp_path / "receipt.json"
    audit(config, tmp_path)
    verify = ["verify", str(path), "-c", str(config)]
    assert "match: " in said(CliRunner().invoke(app, verify), 0)
    document = json.loads(path.read_text())
    change(document["audit"])
    path.write_text(json.dumps(document))
    assert said_of in said(CliRunner().invoke(app, verify), 1)


def test_a_receipt_of_few_ratings_offers_an_audit_with_its_price(config: Path, store: Store) -> None:
    fill(store, WORLD, 600, seed=3)
    printed = prove(config)
    assert "of the answers are rated. To speak of all answers, let a judge read 200 of them" in printed
    assert re.search(r"for about \$0\.0\d+: armwise", printed)
    assert "armwise prove --audit 200 --judge jury" in printed
    assert "To speak of all" not in prove(config, judge="nobody")


def test_a_judge_without_a_price_is_offered_without_one(config: Path, store: Store) -> None:
    document = yaml.safe_load(config.read_text())
    document["applications"][0]["args"]["llms"] = {"jury": {"engine": "scripted"}}
    config.write_text(yaml.safe_dump(document))
    fill(store, WORLD, 600, seed=3)
    printed = prove(config)
    assert "200 of them, at an unknown cost, as jury has no price: armwise prove --audit 200" in printed
    assert "$0" not in printed[printed.index("To speak of all") : printed.index("--audit")]


def test_the_newest_audit_stays_in_what_is_said_until_there_is_another(
    config: Path, store: Store, tmp_path: Path, judge: type[Judge], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a receipt without one, too, and in the report of any period."""
    fill(store, WORLD, 600, seed=3)
    settings = load(config, ["router"])
    assert state_kept_audit(settings) is None

    def report() -> str:
        words = ["report", "-c", str(config), "--since", "2020-01-01"]
        return " ".join(said(CliRunner().invoke(app, words), 0).split())

    assert "jury" not in report()
    first = audit(config, tmp_path)
    plain = prove(config)
    assert "To speak of all answers" not in plain
    kept = state_kept_audit(settings)
    assert kept is not None
    assert kept.low == pytest.approx(100.0 * first["quality"][1], abs=0.1)
    for printed in (plain, report()):
        assert kept.detail in printed
    assert f"The audit was made on {moment(time.time())[:10]}" in plain
    monkeypatch.setitem(judge.replies, "Perhaps", '{"score": 9}')
    audit(config, tmp_path)
    assert kept.detail not in report()
    path = settings.home_path / AUDITED
    path.write_text(json.dumps(json.loads(path.read_text()) | {"source": "another log"}))
    assert state_kept_audit(settings) is None


def test_no_audit_is_offered_where_most_answers_are_rated(config: Path, store: Store) -> None:
    fill(store, replace(WORLD, rated=0.5), 600, seed=3)
    assert "To speak of all answers" not in prove(config)


def test_an_audit_keeps_to_the_budget(config: Path, store: Store, judge: type[Judge]) -> None:
    fill(store, WORLD, 600, seed=3)
    assert "0 of" in prove(config, "--audit", 200, "--budget", 0.01, code=2)
    assert not judge.prompts
    assert "Raise --budget, or lower --audit" in prove(config, "--audit", 200, "--budget", 0.3, code=2)
    assert 0.0 < USD * sum(judge.prompts.values()) <= 0.3, "the judge is dearer than its prices say"


def test_grades_that_cannot_be_read_count_as_the_worse_case(
    config: Path, store: Store, tmp_path: Path, judge: type[Judge], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, WORLD, 600, seed=3)
    sure = audit(config, tmp_path)["quality"]
    monkeypatch.setitem(judge.replies, "Perhaps", "It is fine.")
    found = audit(config, tmp_path)
    grades = [grade for _, grade in found["grades"]]
    assert grades.count(None) + grades.count(0.8) == len(grades)
    assert found["quality"][2] - found["quality"][1] > sure[2] - sure[1] + 0.1


def test_the_sentence_rounds_the_range_away_from_the_estimate_and_counts_what_has_no_grade() -> None:
    grades = [(0, 0.5), (3, None), (4, 1.0)]
    one = AnswerAudit(
        judge="jury", asked=4, seed=0, answers=50, grades=grades, spent=0.0, quality=(-0.034, -0.0961, 0.0281)
    )
    said = state_audited(one, "large")
    assert "3.4 points of 100 lower" in said.text
    assert "(range: 9.7 lower to 2.9 higher)" in said.text
    assert "is estimated from 3 that were drawn at random: 3.4 points" in said.text
    assert "jury read all of them" in state_audited(one.model_copy(update={"answers": 3}), "large").detail
    assert "without a grade (1)" in said.text
    assert (said.tone, said.low) == ("", -9.7)
    better = state_audited(
        one.model_copy(update={"quality": (0.1, 0.05, 0.2), "grades": grades[:1]}), "large"
    )
    assert better.headline == "All answers, as jury judges: better than large's"
    assert "without a grade" not in better.text


@pytest.mark.parametrize(("status", "expected"), [(Status.LLM_FAILED, 0.0), (Status.CANCELLED, None)])
def test_an_answer_that_failed_has_the_worst_grade_and_one_that_nobody_waited_for_has_none(
    config: Path, store: Store, tmp_path: Path, judge: type[Judge], status: Status, expected: float | None
) -> None:
    fill(store, WORLD, 600, seed=3)
    e = t.executions.c
    with store.writing() as connection:
        some = sa.update(t.executions).where(e.served == "none", e.decision_id.like("d1%"))
        connection.execute(some.values(status=status))
    grades = [grade for _, grade in audit(config, tmp_path)["grades"]]
    assert {*grades} == {0.5, 0.8, expected}
    assert sum(judge.prompts.values()) == len(grades) - grades.count(expected)


def test_the_ends_of_an_audit_have_the_error_that_those_of_rated_answers_would_have(
    config: Path, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, WORLD, 600, seed=3)
    errors, bound = list[float](), AnswerSample.bound

    def note(sample: AnswerSample, values: Floats, error: float) -> float:
        errors.append(error)
        return bound(sample, values, error)

    monkeypatch.setattr(AnswerSample, "bound", note)
    audit(config, tmp_path)
    error = noninferiority.ERROR / 2
    assert errors == pytest.approx([0.5 * error, 0.1 * error]), "of two arms"


@pytest.mark.parametrize(
    ("reply", "message"),
    [("It is fine.", "gave no grade that can be read"), (GeneratorError("no route to host"), "no route to")],
)
def test_a_judge_of_no_use_ends_the_audit(
    config: Path, store: Store, judge: type[Judge], monkeypatch: pytest.MonkeyPatch, reply: Any, message: str
) -> None:
    fill(store, WORLD, 600, seed=3)
    monkeypatch.setattr(judge, "replies", {"": reply})
    assert message in prove(config, "--audit", 200, code=1)
    assert sum(judge.prompts.values()) <= 2 * judged.AT_ONCE, "a grade that cannot be read is asked for twice"


def test_a_model_of_the_configuration_judges(
    config: Path, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judged, "LateWriter", LateWriter)
    document = yaml.safe_load(config.read_text())
    document["applications"][0]["args"]["llms"]["jury"]["default"] = '{"score": 7}'
    config.write_text(yaml.safe_dump(document))
    fill(store, WORLD, 600, seed=3)
    found = audit(config, tmp_path)
    assert {grade for _, grade in found["grades"]} == {0.7}
    assert 0.0 < found["spent"] < 0.1
    assert found["quality"][1] < 0.0 < found["quality"][2]


def test_texts_that_are_gone_are_said_with_the_remedy(config: Path, store: Store, judge: type[Judge]) -> None:
    fill(store, WORLD, 600, seed=3)
    with store.writing() as connection:
        connection.execute(sa.delete(t.texts))
    assert "privacy.keep_texts_days" in prove(config, "--audit", 50, code=2)
    assert not judge.prompts
    assert "To speak of all answers" not in prove(config)


def test_an_audit_needs_the_log_and_a_judge(config: Path, store: Store, tmp_path: Path) -> None:
    fill(store, WORLD, 600, seed=3)
    assert "no language model of that name" in prove(config, "--audit", 50, code=2, judge="nobody")
    log = tmp_path / "log.jsonl"
    assert "run it where the log is" in prove(config, log, "--audit", 50, code=2)
    assert "are of a receipt" in prove(config, log, "--audit", 50, "--challenger", "none", code=2)
    prove(config, "-o", tmp_path / "plain.json")
    assert read_receipt(tmp_path / "plain.json").audit is None
