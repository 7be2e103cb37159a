"""Labelling: what every arm's passages get as an answer, asked once, measured, and kept through a kill."""

import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

from armwise.arms.corpus import Corpus
from armwise.arms.lab.jobs import job as pool_job
from armwise.arms.lab.jobs import label_job
from armwise.arms.lab.jobs.answer_measures import by_claims, by_judge, by_passages, by_words
from armwise.arms.lab.jobs.checkpoint import JobError
from armwise.arms.lab.jobs.job import derive_seed
from armwise.arms.lab.jobs.label_job import LabelBlock, LabelJob, LabelWorker, label
from armwise.arms.lab.portfolio import outcomes as portfolio_outcomes
from armwise.arms.lab.portfolio import read_outcomes
from armwise.arms.lab.scoring import ScoringError, correctness
from armwise.arms.llm import Chunk, GeneratorError, Prompt, WritingSpec, catalog, prompts
from armwise.arms.llm import judge as llm_judge
from armwise.arms.questions import Question
from armwise.arms.retrievers import ArmSpec, Resources, build_arm
from tests.arms.contract import ask
from tests.arms.lab.jobs.test_score_job import HERE as SCORING
from tests.arms.lab.jobs.test_score_worker import QUESTIONS, SPECS, TINY
from tests.arms.scripted import shown

HERE = "tests.arms.lab.jobs.test_label_job"
ROOT = Path(__file__).parents[4]
START_S = 60.0
ARMS = ("none", "bm25", "rrf", "drawn")
REPLIES = {
    QUESTIONS[0].text: "the Danube",
    QUESTIONS[1].text: "Haydn",
    QUESTIONS[3].text: "  a glacier ",
}


def exact(answer: str, right: Sequence[str]) -> float:
    return float(answer in right)


def length(answer: str, right: Sequence[str]) -> float:
    """A second metric, which tells answers apart: how near an answer comes to the length of a right one."""
    return float(max(min(len(answer), len(one)) / max(len(answer), len(one), 1) for one in right))


def recall(found: Sequence[str], right: Sequence[str], k: int) -> float:
    return len(set(found[:k]) & set(right)) / len(right)


def make_job(corpus: Corpus, indexes: Path, **fields: Any) -> LabelJob:
    """A job on the questions of the scoring tests, with its indexes prepared."""
    job = LabelJob(
        questions=QUESTIONS,
        corpus=corpus,
        indexes=indexes,
        specs={name: spec for name, spec in SPECS.items() if name != "ivf_pq"},
        backbones=TINY,
        llm=catalog.ScriptedSpec(engine="scripted", replies=REPLIES),
        block=2,
        arms=ARMS,
        form=prompts.Form.SHORT,
        of_answers=(by_words("em", exact), by_words("f1", length)),
        of_passages=(by_passages(recall, 3),),
        k=3,
        at_once=4,
    )
    job = replace(job, **fields)
    job.prepare(lambda *_: None)
    return job


class Model:
    """A language model that answers as `reply` does, counts what it is asked, and takes a token a word."""

    def __init__(self, reply: Callable[[Prompt], str]) -> None:
        self.asked: Counter[str] = Counter()
        self._reply = reply
        self._lock = threading.Lock()

    def __call__(self, prompt: Prompt) -> tuple[str, Chunk]:
        with self._lock:
            self.asked[shown(prompt)] += 1
        text = self._reply(prompt)
        read = len(shown(prompt).split())
        return text, Chunk(finish_reason="stop", prompt_tokens=read, completion_tokens=len(text.split()))


@pytest.fixture
def speaking(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Prompt], str]], Model]:
    """Give the workers of this process a language model of the test's own."""

    def install(reply: Callable[[Prompt], str]) -> Model:
        model = Model(reply)
        monkeypatch.setattr(pool_job, "LateWriter", lambda _: model)
        return model

    return install


Speaking = Callable[[Callable[[Prompt], str]], Model]


def labelled(job: LabelJob) -> dict[tuple[str, str], portfolio_outcomes.Outcome]:
    """Return all outcomes, by question and arm, made by a worker in this process."""
    worker = LabelWorker(job)
    blocks = [worker.block(number) for number in range(job.n_blocks)]
    return {(one.question.id, one.arm): one for block in blocks for one in block.outcomes}


def echo(prompt: Prompt) -> str:
    """Answer with the title of the first passage, the right answer to q1 where there is none."""
    first = shown(prompt).partition("[1] ")[2].splitlines()
    return first[0] if first else "the Danube"


# -- one worker -----------------------------------------------------------------------------------------


def test_every_outcome_is_that_of_the_arm_alone(corpus: Corpus, tmp_path: Path, speaking: Speaking) -> None:
    speaking(echo)
    job = make_job(corpus, tmp_path)
    outcomes = labelled(job)
    assert list(outcomes) == [(question.id, arm) for question in QUESTIONS for arm in ARMS]
    have = Resources(corpus, tmp_path, TINY, job.specs)
    for question in QUESTIONS:
        query = replace(ask(question.text, frozenset(TINY)), seed=derive_seed(0, question.id))
        for arm in ("none", "bm25", "rrf"):
            found, got = build_arm(arm, have).search(query, 3), outcomes[question.id, arm]
            ids = tuple(passage.id for passage in found.passages)
            answer = found.passages[0].title if ids else "the Danube"
            assert (got.passages, got.answer, got.error) == (ids, answer, "")
            assert got.scores == {
                "em": exact(answer, question.answers),
                "f1": length(answer, question.answers),
                "recall": recall(ids, question.gold_ids, 3),
            }
            assert (got.costs["steps"], got.costs["llm_calls"]) == (found.steps, 1)
            assert got.costs["completion_tokens"] == len(answer.split())
            assert (got.prompt, got.tagged) == ("short" if ids else "short_without", None)
    assert {outcome.scores["em"] for outcome in outcomes.values() if outcome.scores} == {0.0, 1.0}


def test_what_an_arm_spends_on_its_own_counts_as_read(
    corpus: Corpus, tmp_path: Path, speaking: Speaking
) -> None:
    speaking(echo)
    outcomes = labelled(make_job(corpus, tmp_path))
    drawn, none = outcomes["q1", "drawn"], outcomes["q1", "none"]
    assert drawn.passages == none.passages == ()
    assert drawn.costs["prompt_tokens"] == none.costs["prompt_tokens"] + 7
    assert drawn.costs["steps"] == np.random.default_rng(derive_seed(0, "q1")).integers(1000)


def test_a_prompt_is_asked_once_however_many_arms_lead_to_it(
    corpus: Corpus, tmp_path: Path, speaking: Speaking
) -> None:
    model = speaking(echo)
    twins = {"again": ArmSpec(kind="bm25"), "deeper": ArmSpec(kind="bm25", params={"k1": 1.2})}
    job = make_job(corpus, tmp_path, specs={**SPECS, **twins}, arms=("none", "bm25", "again", "deeper"))
    outcomes = labelled(job)
    assert len(outcomes) == 4 * len(QUESTIONS)
    assert set(model.asked.values()) == {1}
    found = {(one.question.id, one.passages) for one in outcomes.values()}
    assert len(model.asked) == len(found) == 2 * len(QUESTIONS) - 1, "BM25 knows no word of the last one"


def test_each_pipeline_answers_with_its_own_settings(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = {name: Model(lambda prompt, name=name: f"{name} {echo(prompt)}") for name in ("small", "large")}
    for place in (pool_job, label_job):
        monkeypatch.setattr(place, "LateWriter", lambda spec: models[spec.default])
    specs = {
        "bm25": ArmSpec(kind="bm25"),
        "large": ArmSpec(kind="bm25", answering=WritingSpec(llm="large", passages=1)),
        "brief": ArmSpec(kind="bm25", answering=WritingSpec(prompt="brief", max_tokens=5)),
    }
    small, large = (catalog.ScriptedSpec(engine="scripted", default=name) for name in models)
    template = prompts.Template("Brief. {passages}", "Brief.")
    job = make_job(
        corpus,
        tmp_path,
        specs=specs,
        arms=tuple(specs),
        llm=small,
        llms={"large": large},
        templates={"brief": template},
    )
    outcomes = labelled(job)
    first = {arm: outcomes[QUESTIONS[0].id, arm] for arm in specs}
    title = first["bm25"].answer.removeprefix("small ")  # type: ignore[union-attr]
    assert {arm: one.answer for arm, one in first.items()} == {
        "bm25": f"small {title}",
        "large": f"large {title}",
        "brief": f"small {title}",
    }
    assert first["large"].passages == first["bm25"].passages[:1]
    assert all("[2]" not in prompt for prompt in models["large"].asked)
    assert any(prompt.startswith("Brief.") for prompt in models["small"].asked)
    assert job.identity() != replace(job, llms={"large": small}).identity()
    plain = replace(job, arms=("bm25",), specs={"bm25": specs["bm25"]})
    assert plain.identity() == replace(plain, llms={}, templates={}).identity()


def test_rankings_that_show_the_same_are_one_prompt(
    corpus: Corpus, tmp_path: Path, speaking: Speaking
) -> None:
    model = speaking(echo)
    job = make_job(
        corpus, tmp_path, word_budget=5, questions=QUESTIONS[:1], arms=("bm25", "dense", "rrf", "none")
    )
    outcomes = labelled(job)
    assert len({one.passages for one in outcomes.values()}) == 4
    assert len(model.asked) < 4
    assert set(model.asked.values()) == {1}


def test_as_many_prompts_are_in_flight_as_are_allowed(
    corpus: Corpus, tmp_path: Path, speaking: Speaking
) -> None:
    barrier, turns = threading.Barrier(4, timeout=20.0), iter(range(100))
    inside = most = 0
    lock = threading.Lock()

    def reply(_: Prompt) -> str:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
            turn = next(turns)
        if turn < 4:  # goes on once four are here: fewer at a time would wait for ever
            barrier.wait()
        with lock:
            inside -= 1
        return "yes"

    model = speaking(reply)
    job = make_job(corpus, tmp_path, block=5, arms=("none",))
    assert len(labelled(job)) == 5
    assert (most, model.asked.total()) == (4, 5)


def test_a_failure_is_an_outcome_with_its_error(corpus: Corpus, tmp_path: Path, speaking: Speaking) -> None:
    def reply(prompt: Prompt) -> str:
        if "[1]" in shown(prompt) and "glacier" in shown(prompt).lower():
            raise GeneratorError("the model is down")
        return "yes"

    speaking(reply)
    outcomes = labelled(make_job(corpus, tmp_path))
    arm_failed, model_failed = outcomes["q3", "drawn"], outcomes["q4", "bm25"]
    assert (arm_failed.passages, arm_failed.answer, arm_failed.scores) == (None, None, {})
    assert (arm_failed.error, arm_failed.costs) == ("no foxes", {})
    assert model_failed.passages is not None
    assert "glacier" in model_failed.passages
    assert (model_failed.answer, model_failed.error) == (None, "the model is down")
    assert model_failed.scores == {"recall": 1.0}, "of the passages alone"
    assert model_failed.costs.keys() == {"steps"}
    assert {one.error for one in outcomes.values()} == {"", "no foxes", "the model is down"}


def test_an_arm_that_fails_leaves_later_ones_their_answer(
    corpus: Corpus, tmp_path: Path, speaking: Speaking
) -> None:
    speaking(echo)
    outcomes = labelled(make_job(corpus, tmp_path, arms=("drawn", "none", "bm25")))
    assert outcomes["q3", "drawn"].error == "no foxes"
    assert outcomes["q3", "none"].answer == "the Danube"
    assert outcomes["q3", "bm25"].answer is not None


def test_an_answer_that_costs_dollars_says_how_many(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def priced(_: Prompt) -> tuple[str, Chunk]:
        return "yes", Chunk(finish_reason="stop", prompt_tokens=5, completion_tokens=1, usd=0.25)

    monkeypatch.setattr(pool_job, "LateWriter", lambda _: priced)
    outcomes = labelled(make_job(corpus, tmp_path, arms=("none",)))
    assert {one.costs["usd"] for one in outcomes.values()} == {0.25}


def test_a_block_without_one_answer_says_why() -> None:
    failed = (
        portfolio_outcomes.Outcome(QUESTIONS[0], "bm25", error="away"),
        portfolio_outcomes.Outcome(QUESTIONS[0], "rrf", error="far away"),
    )
    assert LabelBlock(failed).problem == "question 'q1': away"
    assert LabelBlock((*failed, portfolio_outcomes.Outcome(QUESTIONS[0], "none", answer=""))).problem == ""


@pytest.mark.parametrize(
    ("first", "second", "answer", "tagged", "calls"),
    [
        ("It is long. <answer>the Danube</answer>", None, "the Danube", True, 1),
        ("It is the Danube.", " the Danube\n", "the Danube", False, 2),
        ("It is the Danube.", "<answer>the Danube</answer>", "the Danube", False, 2),
        ("It is the Danube.", GeneratorError("cut off"), None, None, 0),
    ],
)
def test_reasons_without_a_tag_are_asked_for_again(
    corpus: Corpus, tmp_path: Path, speaking: Speaking, first: str, second: Any, answer: str | None,
    tagged: bool | None, calls: int,
) -> None:  # fmt: skip
    def reply(prompt: Prompt) -> str:
        if len(prompt.messages) == 2:
            return first
        if isinstance(second, Exception):
            raise second
        return str(second)

    model = speaking(reply)
    job = make_job(corpus, tmp_path, form=prompts.Form.REASONING, arms=("none",), questions=QUESTIONS[:1])
    ((_, outcome),) = labelled(job).items()
    assert (outcome.answer, outcome.tagged, outcome.prompt) == (answer, tagged, "reasoning_without")
    assert outcome.costs.get("llm_calls", 0) == calls
    if answer is None:
        assert outcome.error == "cut off"
        return
    texts = [first] if second is None else [first, second]
    assert outcome.costs["completion_tokens"] == sum(len(text.split()) for text in texts)
    assert outcome.costs["prompt_tokens"] == sum(len(prompt.split()) for prompt in model.asked)
    assert outcome.scores["em"] == 1.0


# -- measures -------------------------------------------------------------------------------------------

FIVE = '{"relevance": 5, "coverage": 4, "accuracy": 3, "ranking": 2, "redundancy": 1}'


def test_a_judge_gives_five_scores_and_their_mean(corpus: Corpus, tmp_path: Path, speaking: Speaking) -> None:
    def reply(prompt: Prompt) -> str:
        if "redundancy" in shown(prompt):
            return FIVE if "There are no passages" in shown(prompt) else "Good!"
        return "yes"

    speaking(reply)
    job = make_job(corpus, tmp_path, of_passages=(by_judge(99),), arms=("none", "bm25"))
    outcomes = labelled(job)
    judged, unreadable = outcomes["q1", "none"], outcomes["q1", "bm25"]
    assert {name: judged.scores[name] for name in ("judge", *llm_judge.SCORE_NAMES)} == {
        "judge": 0.5,
        **dict(zip(llm_judge.SCORE_NAMES, (1.0, 0.75, 0.5, 0.25, 0.0), strict=True)),
    }
    assert (unreadable.answer, set(unreadable.scores)) == ("yes", {"em", "f1"})
    assert unreadable.error.startswith("judge: the judge wrote no grade in 2 attempts")


def test_claims_are_compared_once_for_each_different_answer(
    corpus: Corpus, tmp_path: Path, speaking: Speaking
) -> None:
    def reply(prompt: Prompt) -> str:
        if "break an answer" in shown(prompt):
            return '["It is the Danube."]'
        if "You compare the claims" in shown(prompt):
            return '{"TP": ["A1"], "FP": [], "FN": []}'
        return "the Danube"

    model = speaking(reply)
    job = make_job(
        corpus, tmp_path, of_answers=(by_claims("tiny"),), of_passages=(), questions=QUESTIONS[:1], arms=ARMS
    )
    outcomes = labelled(job)
    assert [one.scores for one in outcomes.values()] == [{"answer_correctness": pytest.approx(1.0)}] * 4
    assert sum("You compare the claims" in prompt for prompt in model.asked.elements()) == 1
    blank = replace(QUESTIONS[0], answers=(" ",))
    measures = (*job.of_answers, by_words("em", lambda *_: 0.5))
    job = replace(job, questions=(blank,), of_answers=measures, arms=("none",))
    ((*_, outcome), *_) = labelled(job).items()
    assert outcome.error == "answer_correctness: none of the right answers contains a word"
    assert outcome.scores == {"em": 0.5}, "the measures after one that fails"


def test_a_question_is_measured_by_what_is_known_of_it(
    corpus: Corpus, tmp_path: Path, speaking: Speaking
) -> None:
    speaking(echo)
    known = (replace(QUESTIONS[0], gold_ids=()), replace(QUESTIONS[1], answers=()))
    outcomes = labelled(make_job(corpus, tmp_path, questions=known, arms=("none",)))
    assert [one.scores.keys() for one in outcomes.values()] == [{"em", "f1"}, {"recall"}]
    assert {one.error for one in outcomes.values()} == {""}


def test_a_metric_that_leaves_its_range_is_refused(
    corpus: Corpus, tmp_path: Path, speaking: Speaking
) -> None:
    speaking(echo)
    job = make_job(corpus, tmp_path, of_answers=(by_words("em", lambda *_: 1.5),), arms=("none",))
    with pytest.raises(ScoringError, match=r"em of question 'q1' is 1\.5; it must be in \[0, 1\]"):
        labelled(job)


@pytest.mark.parametrize(
    ("fact", "fields"),
    [
        ("questions", {"questions": QUESTIONS[::-1]}),
        ("asked", {"arms": ("none", "bm25")}),
        ("form", {"form": prompts.Form.REASONING}),
        ("measures", {"of_answers": ()}),
        ("measures", {"of_passages": (by_judge(9),)}),
        ("similarity", {"of_answers": (by_claims("tiny"),)}),
        ("k", {"k": 4}),
        ("word budget", {"word_budget": 9}),
        ("max tokens", {"max_tokens": 9}),
        ("seed", {"seed": 1}),
        ("language model", {"llm": catalog.ScriptedSpec(engine="scripted")}),
    ],
)
def test_what_changes_outcomes_changes_the_identity(
    corpus: Corpus, tmp_path: Path, fact: str, fields: dict[str, Any]
) -> None:
    job = make_job(corpus, tmp_path)
    assert job.identity().get(fact) != replace(job, **fields).identity()[fact]
    assert job.identity() == replace(job, at_once=9).identity()


def test_how_answers_are_written_changes_the_identity(corpus: Corpus, tmp_path: Path) -> None:
    small, large = (catalog.ScriptedSpec(engine="scripted", default=name) for name in ("small", "large"))
    templates = {"brief": prompts.Template("Brief. {passages}", "Brief.")}
    plain = make_job(corpus, tmp_path, llm=small, llms={"large": large}, templates=templates, arms=("bm25",))

    def identity(job: LabelJob, **answering: Any) -> str:
        spec = ArmSpec(kind="bm25", answering=WritingSpec(**answering))
        return repr(replace(job, specs={"bm25": spec}).identity())

    values: dict[str, tuple[Any, Any]] = {
        "llm": ("large", "default"),
        "prompt": ("brief", "reasoning"),
        "passages": (1, 2),
        "word_budget": (19, 20),
        "max_tokens": (9, 10),
        "temperature": (0.5, 0.6),
        "reasoning": ("low", "high"),
    }
    fields: list[dict[str, Any]] = [{name: one} for name, both in values.items() for one in both]
    assert values.keys() == WritingSpec.model_fields.keys()
    assert len({identity(plain), *(identity(plain, **one) for one in fields)}) == len(fields) + 1
    other = {"brief": prompts.Template("Be brief. {passages}", "Brief.")}
    assert identity(plain, prompt="brief") != identity(replace(plain, templates=other), prompt="brief")


def test_other_words_are_another_job(corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def identity() -> dict[str, str]:
        fields = {"of_answers": (by_claims("tiny"),), "of_passages": (by_judge(9),)}
        return make_job(corpus, tmp_path, **fields).identity()

    before = identity()
    assert before == identity()
    monkeypatch.setitem(prompts.WITH_PASSAGES, prompts.Form.REASONING, "Think.")
    assert before == identity(), "nobody is asked in this form"
    monkeypatch.setitem(prompts.WITH_PASSAGES, prompts.Form.SHORT, "{passages} Answer.")
    monkeypatch.setattr(correctness, "CLAIMS_FORM", "Write a list.")
    monkeypatch.setattr(llm_judge, "FIVE_SCORES", replace(llm_judge.FIVE_SCORES, system="You grade."))
    after = identity()
    changed = {fact for fact in before if before[fact] != after[fact]}
    assert changed == {"words of prompts", "words of claims", "words of judge"}


def test_the_encoder_of_a_measure_is_loaded(corpus: Corpus, tmp_path: Path) -> None:
    job = make_job(corpus, tmp_path, specs={"none": SPECS["none"]}, arms=("none",))
    assert dict(job.validate().backbones) == {}
    assert dict(replace(job, of_answers=(by_claims("tiny"),)).validate().backbones) == TINY


# -- the job --------------------------------------------------------------------------------------------


def diary_job(corpus: Corpus, folder: Path) -> LabelJob:
    """A job with an arm that records what it is asked in the folder, one question per block."""
    specs = {**SPECS, "diary": ArmSpec(kind=f"{SCORING}:Diary", params={"folder": str(folder)})}
    return make_job(corpus, folder / "indexes", specs=specs, arms=(*ARMS, "diary"), block=1)


def run_until_killed(corpus_folder: str, folder: str) -> None:
    """What the process does that is killed: label, with one worker, until a question waits at the gate."""
    job = diary_job(Corpus.open(Path(corpus_folder)), Path(folder))
    label(job, Path(folder) / "labels", workers=1)


@pytest.mark.usefixtures("cluster")
@pytest.mark.slow
def test_a_killed_job_goes_on_and_writes_the_same_bytes(corpus: Corpus, tmp_path: Path) -> None:
    gate, blocks = tmp_path / "gate", tmp_path / "labels.blocks"
    os.mkfifo(gate)
    code = f"import {HERE} as t; t.run_until_killed({str(corpus.__reduce__()[1][0])!r}, {str(tmp_path)!r})"
    address = ray.get_runtime_context().gcs_address  # the job joins the cluster that is there
    environment = {**os.environ, "RAY_ADDRESS": address, "PYTHONPATH": str(ROOT)}
    with (tmp_path / "output").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", code], cwd=ROOT, env=environment, stdout=output, stderr=output
        )
    wait_for_reader(gate, process, tmp_path / "output")
    wait_for(blocks, 4)
    process.kill()
    process.wait()
    assert not (tmp_path / "labels").exists()

    gate.unlink()
    job = diary_job(corpus, tmp_path)
    with pytest.raises(JobError, match=r"labels\.blocks was made with form 'short', .*form 'reasoning'"):
        label(replace(job, form=prompts.Form.REASONING), tmp_path / "labels")
    told: list[tuple[str, int, int | None]] = []
    report = label(job, tmp_path / "labels", progress=lambda *news: told.append(news))
    assert report.resumed == 4
    assert [news for news in told if news[0] == "asking questions"] == [
        ("asking questions", 4, 5),
        ("asking questions", 5, 5),
    ]
    worker = LabelWorker(job)
    direct = b"".join(worker.block(number).pack() for number in range(5))
    assert (tmp_path / "labels" / portfolio_outcomes.FILE).read_bytes() == direct
    assert not blocks.exists()

    # a second time there is nothing to do; another job is refused
    again = label(job, tmp_path / "labels")
    assert again.resumed == 5
    np.testing.assert_array_equal(again.outcomes.scores["em"], report.outcomes.scores["em"])
    with pytest.raises(JobError, match=r"labels was made with seed '0', .*seed '1'"):
        label(replace(job, seed=1), tmp_path / "labels")


def test_a_score_that_does_not_apply_is_not_missing(corpus: Corpus, tmp_path: Path) -> None:
    known = (replace(QUESTIONS[0], answers=()), *QUESTIONS[1:])
    report = label(
        make_job(corpus, tmp_path, questions=known, arms=("none",)), tmp_path / "labels", workers=1
    )
    assert {name: missing.count for name, missing in report.unscored.items()} == {
        "em": 0,
        "f1": 0,
        "recall": 0,
    }


def test_what_is_missing_is_counted(corpus: Corpus, tmp_path: Path) -> None:
    job = replace(diary_job(corpus, tmp_path), of_passages=(by_passages(recall, 3), by_judge(99)))
    report = label(job, tmp_path / "labels", workers=1)
    assert report.resumed == 0
    outcomes = report.outcomes
    assert outcomes.arms == (*ARMS, "diary")
    assert outcomes.questions == QUESTIONS
    assert outcomes.answers[0] == ("the Danube",) * 5
    assert outcomes.answers[3] == ("a glacier",) * 5
    assert outcomes.answers[2] == ("I do not know.",) * 3 + (None, "I do not know.")
    assert outcomes.scores["em"][:, 0].tolist() == [1.0, 0.0, 0.0, 1.0, 0.0]
    assert {arm: missing.count for arm, missing in report.failed.items()} == {
        **dict.fromkeys(outcomes.arms, 0),
        "drawn": 1,
    }
    assert report.failed["drawn"].first == "question 'q3': no foxes"
    assert {name: missing.count for name, missing in report.unscored.items()} == {
        "em": 0,
        "f1": 0,
        "recall": 0,
        "judge": 24,
    }, "a scripted model is not a judge"
    assert report.unscored["judge"].first.startswith("question 'q1': judge: the judge wrote no grade")
    assert "judge" not in outcomes.scores
    assert read_outcomes(tmp_path / "labels", QUESTIONS).answers == outcomes.answers


@pytest.mark.parametrize(
    ("questions", "named"),
    [((), "no questions"), ((*QUESTIONS, Question("q", "?", ("rhine",))), "'q'.*'rhine'")],
)
def test_nothing_is_begun_on_what_cannot_be_labelled(
    corpus: Corpus, tmp_path: Path, questions: tuple[Question, ...], named: str
) -> None:
    job = replace(make_job(corpus, tmp_path / "indexes"), questions=questions)
    with pytest.raises(ScoringError, match=named):
        label(job, tmp_path / "labels")
    assert [path.name for path in tmp_path.iterdir()] == ["indexes"]


def wait_for(folder: Path, n_blocks: int) -> None:
    """Return once so many blocks are there."""
    waited = threading.Event()
    for _ in range(600):
        if len(list(folder.glob("*.block"))) == n_blocks:
            return
        waited.wait(0.1)
    raise AssertionError(f"no {n_blocks} blocks in {folder} within a minute")


def wait_for_reader(pipe: Path, process: "subprocess.Popen[bytes]", output: Path) -> None:
    """Return once another process has opened the pipe to read, and leave it waiting there."""
    for _ in range(int(START_S / 0.1)):
        try:
            os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)  # left open: closing it would let the reader go on
        except OSError:
            try:
                process.wait(0.1)
            except subprocess.TimeoutExpired:
                continue
            raise AssertionError(output.read_text()) from None
        return
    raise AssertionError(f"no process opened {pipe} within {START_S:g} s")


class Priced(Model):
    """A model of which each call costs an eighth of a dollar."""

    def __call__(self, prompt: Prompt) -> tuple[str, Chunk]:
        text, last = super().__call__(prompt)
        return text, replace(last, usd=0.125)


def test_searches_with_a_price_are_charged(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def brief(prompt: Prompt) -> str:
        if "zyzzyva" in shown(prompt):
            raise GeneratorError("no such word")
        return "the Danube"

    monkeypatch.setattr(pool_job, "LateWriter", lambda _: Priced(brief))
    specs = {**SPECS, "bm25": SPECS["bm25"].model_copy(update={"usd": 0.5})}
    costs = {key: one.costs for key, one in labelled(make_job(corpus, tmp_path, specs=specs)).items()}
    for arm, searched in {"none": 0.0, "bm25": 0.5, "rrf": 0.5}.items():
        paid = {"usd": searched + 0.125, "search_usd": searched}
        told = {name: value for name, value in costs["q1", arm].items() if name.endswith("usd")}
        assert told == {name: value for name, value in paid.items() if value}
    assert costs["q5", "bm25"] == {"steps": 1.0, "usd": 0.5, "search_usd": 0.5}, "no answer was written"
    assert costs["q5", "none"] == {"steps": 0.0}
