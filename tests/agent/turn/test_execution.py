"""What a turn has done so far becomes its execution: every status, and the sum of every cost."""

from dataclasses import replace

import pytest

from armwise.agent.turn import ArmInfo, Probes, TurnRecorder
from armwise.arms.base import ArmError, Passage, Retrieval, StageRun, Usage
from armwise.arms.llm import Chunk, GeneratorError, base, writing
from armwise.feedback.events import Context, Cost, Decision, Status

DECISION = Decision("d-1", Context("?"), ("none", "bm25"), (0.5, 0.5), "bm25", "uniform", 1)
ARMS = {"none": ArmInfo(), "bm25": ArmInfo()}


def recorder(served: str | None = "bm25") -> TurnRecorder:
    return TurnRecorder(DECISION, ARMS, served=served)


def answered_by(model: str) -> ArmInfo:
    return ArmInfo(answering=writing.Answering(llm=model))


def free(*_: int) -> float:
    return 0.0


@pytest.mark.parametrize(
    ("served", "error", "cancelled", "status"),
    [
        ("bm25", None, False, Status.OK),
        ("none", None, False, Status.FELL_BACK),
        (None, ArmError("gone"), False, Status.ARM_FAILED),
        (None, TimeoutError(), False, Status.ARM_FAILED),
        ("bm25", GeneratorError("gone"), False, Status.LLM_FAILED),
        ("none", GeneratorError("gone"), False, Status.LLM_FAILED),
        ("bm25", TimeoutError(), False, Status.LLM_TIMEOUT),
        ("bm25", base.GeneratorTimeoutError("slow"), False, Status.LLM_TIMEOUT),
        ("bm25", None, True, Status.CANCELLED),
        (None, GeneratorError("gone"), True, Status.CANCELLED),
    ],
)
def test_a_turn_ends_with_the_status_of_what_stopped_it(
    served: str | None, error: Exception | None, cancelled: bool, status: Status
) -> None:
    done = recorder(served).execution(7.0, error, cancelled=cancelled)
    assert (done.status, done.served, done.finished_at) == (status, served, 7.0)


def test_costs_before_the_draw_and_after_it_are_added_up() -> None:
    turn = recorder()
    turn.probes = Probes(
        {"none": Retrieval(steps=2, tokens=30), "bm25": Retrieval(steps=1, tokens=4)}, seconds=0.25
    )
    for found in (*turn.probes.found.values(), Retrieval(steps=5, tokens=100)):
        turn.spending.search(found)
    turn.steps, turn.retrieval_s, turn.llm_s = 5, 0.5, 2.0
    turn.note(Chunk("The Danube", finish_reason="length", prompt_tokens=1000, completion_tokens=9, usd=0.125))
    assert turn.execution(7.0).cost == Cost(
        steps=8, prompt_tokens=1134, completion_tokens=9, retrieval_s=0.75, llm_s=2.0, usd=0.125
    )


def test_what_arms_prompted_is_priced_and_told_from_what_the_answer_took() -> None:
    turn = TurnRecorder(DECISION, {"none": ArmInfo(), "bm25": answered_by("large")}, served="bm25")
    turn.steps = 1
    turn.spending.search(Retrieval(tokens=40, usage=Usage(30, 4, 8, 0.25)))
    turn.spending.add("default", Usage(5, 1, 0, 0.125))
    turn.begin("large", 100, free)
    turn.note(Chunk("The Danube", "stop", prompt_tokens=100, completion_tokens=9, usd=0.5, cached_tokens=64))
    done = turn.execution(7.0)
    assert done.cost == Cost(1, prompt_tokens=141, completion_tokens=14, usd=0.875)
    assert done.tokens_by_model == {"default": (35, 5, 8), "large": (100, 9, 64)}


def test_tokens_that_an_engine_caches_are_recorded_after_the_dollars_of_searches() -> None:
    turn = recorder()
    turn.spending.search(Retrieval(tokens=6, usage=Usage(4, 2, search_usd=0.5)))
    turn.begin("default", 100, free)
    counts = {"prompt_tokens": 100, "completion_tokens": 9, "cached_tokens": 60, "cache_written_tokens": 30}
    turn.note(Chunk("The Danube", "stop", **counts))  # type: ignore[arg-type]
    done = turn.execution(7.0)
    assert done.tokens_by_model == {"default": (104, 11, 60, 0.5, 30)}
    turn.begin("large", 100, free)
    turn.note(Chunk("The Danube", "stop", **counts))  # type: ignore[arg-type]
    turn.abandon()
    assert turn.execution(7.0).tokens_by_model["large"] == (100, 9, 60, 0.0, 30)


@pytest.mark.parametrize(
    ("error", "pieces", "spent"),
    [
        (GeneratorError("gone"), 0, {}),
        (GeneratorError("gone"), 3, {"large": (100, 3, 0)}),
        (base.GeneratorTimeoutError("slow"), 0, {"large": (100, 0, 0)}),
    ],
)
def test_a_model_in_whose_place_another_answers_costs_what_it_may_have_read(
    error: GeneratorError, pieces: int, spent: dict[str, tuple[int, int, int]]
) -> None:
    turn = TurnRecorder(DECISION, {"none": ArmInfo(), "bm25": answered_by("large")}, served="none")
    turn.begin("large", 100, lambda read, _: read * 0.5)
    for _ in range(pieces):
        turn.note(Chunk("."))
    turn.abandon(error)
    turn.begin("default", 20, free)
    turn.note(Chunk("The Danube", "stop", prompt_tokens=20, completion_tokens=2))
    done = turn.execution(7.0)
    assert done.tokens_by_model == {**spent, "default": (20, 2, 0)}
    assert done.cost.usd == (50.0 if spent else 0.0)
    assert done.cost.prompt_tokens == 20 + sum(read for read, _, _ in spent.values())


@pytest.mark.parametrize(("error", "read"), [(GeneratorError("gone"), 0), (TimeoutError(), 100)])
def test_a_caller_who_leaves_pays_for_the_first_model_once(error: Exception, read: int) -> None:
    turn = recorder("bm25")
    turn.begin("default", 100, lambda read, _: read * 0.5)
    turn.abandon(error)
    done = turn.execution(7.0, cancelled=True)
    assert (done.cost.prompt_tokens, done.cost.completion_tokens) == (read, 0)
    assert done.cost.usd == read * 0.5
    assert done.tokens_by_model == ({"default": (100, 0, 0)} if read else {})


@pytest.mark.parametrize(
    ("pieces", "written"), [(["a b c d e f"], 6), (["The", " Dan", "ube", " does", "."], 5)]
)
def test_unreported_tokens_are_estimated(pieces: list[str], written: int) -> None:
    turn = recorder()
    turn.begin("default", 100, free)
    for piece in pieces:
        turn.note(Chunk(piece))
    done = turn.execution(7.0, cancelled=True)
    assert (done.cost.prompt_tokens, done.cost.completion_tokens) == (100, written)


def test_the_index_that_answered_is_recorded() -> None:
    turn = recorder()
    turn.retrieval = Retrieval(index_version="a1", cached=True)
    assert (turn.execution(7.0).index_version, turn.execution(7.0).cached) == ("a1", True)


def test_the_stages_of_a_cascade_are_recorded_as_facts() -> None:
    turn = recorder()
    first = StageRun(("none", "bm25"), ("bm25",), 0, 12, "none", 0.25, 0.125)
    turn.retrieval = Retrieval(stages=(first, StageRun(("dense",), (), 1, 30, "dense", 0.75)))
    one, two = turn.execution(7.0).stages
    assert one == {
        "arms": ("none", "bm25"),
        "failed": ("bm25",),
        "steps": 0,
        "tokens": 12,
        "picked": "none",
        "probability": 0.25,
        "gain": 0.125,
    }
    assert (two["picked"], two["gain"]) == ("dense", None)
    assert recorder().execution(7.0).stages == ()


def test_a_turn_that_did_nothing_yet_cost_nothing() -> None:
    done = recorder(None).execution(7.0, ArmError("gone"))
    assert done.cost == Cost(steps=0)
    assert (done.decision_id, done.passages, done.answer) == ("d-1", (), None)


def test_the_answer_is_the_text_of_all_chunks_and_its_end_that_of_the_last() -> None:
    turn = recorder()
    assert (turn.answer, turn.usage) == (None, Chunk()), "before the first chunk"
    for part in ("The ", "Danube"):
        turn.note(Chunk(part))
    assert (turn.answer, turn.usage) == ("The Danube", Chunk())
    last = Chunk("", finish_reason="length", completion_tokens=2)
    turn.note(last)
    assert (turn.answer, turn.usage) == ("The Danube", last)
    turn.retrieval = replace(Retrieval(), passages=(Passage("p-1", "", ""), Passage("p-2", "", "")))
    assert turn.execution(7.0).passages == ("p-1", "p-2")


def test_the_error_that_ended_a_turn_is_recorded_before_that_of_the_drawn_arm() -> None:
    turn = recorder("none")
    assert turn.execution(7.0).error == ""
    turn.error = "the index is gone"
    assert turn.execution(7.0).error == "the index is gone"
    assert "no model" in turn.execution(7.0, GeneratorError("no model")).error


def test_searches_with_a_price_stand_beside_the_tokens_of_the_model_that_arms_prompt() -> None:
    turn = TurnRecorder(DECISION, {"none": ArmInfo(), "bm25": answered_by("large")}, served="bm25")
    turn.spending.search(Retrieval(usage=Usage(30, 4, 0, usd=0.75, search_usd=0.5)))
    turn.spending.search(Retrieval(usage=Usage(usd=0.25, search_usd=0.25)))
    turn.begin("large", 100, free)
    turn.note(Chunk("The Danube", "stop", prompt_tokens=100, completion_tokens=9, usd=0.125))
    done = turn.execution(7.0)
    assert done.cost.usd == 1.125
    assert done.tokens_by_model == {"default": (30, 4, 0, 0.75), "large": (100, 9, 0)}
