"""The judge of five scores: which text is scores, what they are worth together, and what it costs."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from armwise.arms.base import Passage
from armwise.arms.llm.base import Prompt
from armwise.arms.llm.judge import FIVE_SCORES, SCORE_NAMES, FiveScores, Grade, JudgeError, grade
from tests.arms.scripted import shown, writing

TOWER = Passage("1", "Tokyo Tower", "It is a tower in Tokyo. It is 333 metres tall.")
FOX = Passage("2", "Red fox", "The red fox lives in forests.")
HOW_TALL = "How tall is Tokyo Tower?"

NAMES = ("relevance", "coverage", "accuracy", "ranking", "redundancy")
SCORES = FiveScores(relevance=5, coverage=4, accuracy=5, ranking=3, redundancy=1)
JSON = SCORES.model_dump_json()

FIVE = st.builds(FiveScores, **dict.fromkeys(NAMES, st.integers(1, 5)))


def test_the_scores_are_the_five_of_the_paper() -> None:
    assert tuple(FiveScores.model_fields) == NAMES
    assert tuple(f"judge_{name}" for name in NAMES) == SCORE_NAMES


@given(FIVE)
def test_the_mean_is_a_quarter_of_how_far_the_mean_score_is_above_the_worst(scores: FiveScores) -> None:
    assert scores.mean == pytest.approx((sum(dict(scores).values()) / 5 - 1) / 4)
    assert 0.0 <= scores.mean <= 1.0


@given(FIVE, st.sampled_from(NAMES))
def test_a_higher_score_is_a_higher_mean(scores: FiveScores, name: str) -> None:
    one, *others = (scores.model_copy(update={name: score}).mean for score in (1, 2, 3, 4, 5))
    assert others == pytest.approx([one + 0.05, one + 0.1, one + 0.15, one + 0.2])


@pytest.mark.parametrize(("score", "mean"), [(1, 0.0), (3, 0.5), (5, 1.0)])
def test_the_mean_of_equal_scores_is_exact(score: int, mean: float) -> None:
    scores = FiveScores(**dict.fromkeys(NAMES, score))
    assert scores.mean == mean
    assert scores.fractions() == dict.fromkeys(NAMES, mean)


@pytest.mark.parametrize("bad", [0, 6, -1, 3.5, 4.0, "4", True, None])
def test_what_is_no_whole_number_from_1_to_5_is_no_score(bad: object) -> None:
    with pytest.raises(ValidationError, match="ranking"):
        FiveScores.model_validate({**dict(SCORES), "ranking": bad})


@pytest.mark.parametrize(
    "text",
    [
        JSON,
        json.dumps(dict(SCORES), indent=2),
        f"```json\n{JSON}\n```\nThe ranking could be better.",
        f'{{"scores": {JSON}, "overall": 3.6}}',
        JSON.replace("}", ', "overall_score": 3.6,}'),
        f"{FIVE_SCORES.form} I would say: {JSON}",
    ],
)
def test_scores_are_read_from_what_models_write(text: str) -> None:
    assert grade(writing(text), FIVE_SCORES, HOW_TALL, [TOWER]).grade == SCORES


def test_the_judge_sees_passages_in_order_the_question_and_all_five_sides() -> None:
    prompts: list[Prompt] = []
    grade(writing(JSON, prompts=prompts), FIVE_SCORES, HOW_TALL, [TOWER, FOX], word_budget=19)
    (prompt,) = prompts
    assert "[1] Tokyo Tower\n" in shown(prompt)
    assert "[2] Red fox\nThe red fox lives\n" in shown(prompt)  # 13 + 2 + 4 words
    assert prompt.messages[-1]["content"].endswith(
        f"<question>\n{HOW_TALL}\n</question>\n\n{FIVE_SCORES.form}"
    )
    assert all(f"- {name}: " in prompt.messages[0]["content"] for name in NAMES)
    assert all(f'"{name}": n' in FIVE_SCORES.form for name in NAMES)


def test_a_judge_is_told_what_was_wrong_and_both_attempts_count() -> None:
    prompts: list[Prompt] = []
    bad = JSON.replace('"ranking":3', '"ranking":7')
    verdict = grade(writing(bad, JSON, prompts=prompts), FIVE_SCORES, HOW_TALL, [TOWER])
    first, second = (len(shown(prompt).split()) for prompt in prompts)
    assert verdict == Grade(SCORES, tokens=first + 1 + second + 1, malformed=1)
    assert prompts[1].messages[-2] == {"role": "assistant", "content": bad}
    again = prompts[1].messages[-1]["content"]
    assert "ranking: Input should be less than or equal to 5" in again
    assert again.endswith(FIVE_SCORES.form)


@pytest.mark.parametrize("retries", [0, 2])
def test_a_judge_that_never_scores_is_an_error_that_says_what_it_cost(retries: int) -> None:
    prompts: list[Prompt] = []
    write = writing(*['{"relevance": 5}'] * 3, prompts=prompts)
    told = rf"no grade in {retries + 1} attempts, at last .* coverage: Field required"
    with pytest.raises(JudgeError, match=told) as failed:
        grade(write, FIVE_SCORES, HOW_TALL, [TOWER], retries=retries)
    assert failed.value.malformed == len(prompts) == retries + 1
    assert failed.value.tokens == sum(len(shown(prompt).split()) + 2 for prompt in prompts)
