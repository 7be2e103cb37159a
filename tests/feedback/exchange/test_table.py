"""A table with columns by name: what is understood, what a value means, and which rows are left out."""

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from armwise.agent.policies import FeatureSpec, describe
from armwise.feedback.events import IMPORTED
from armwise.feedback.exchange import make_rule
from armwise.feedback.exchange.messages import ASSISTANT, last_text
from armwise.feedback.exchange.table import name_feature, read_reward, seconds
from armwise.feedback.jsonl import ExchangeError, Header, read_export, write_export
from tests.feedback.exchange.traffic import (
    ARMS,
    NAMES,
    as_csv,
    as_lines,
    near_the_truth,
    read,
    table_rows,
    traffic,
)

TURNS = traffic()


@pytest.mark.parametrize("name", ["log.csv", "log.csv.gz", "log.jsonl", "log.parquet"])
@pytest.mark.slow
def test_the_value_of_every_arm_comes_back_from_a_log_with_propensities(tmp_path: Path, name: str) -> None:
    rows = table_rows(TURNS)
    path = tmp_path / name
    if name.endswith(".parquet"):
        parquet.write_table(pa.Table.from_pylist([{**row, "dist": None} for row in rows]), path)
    else:
        (as_csv if ".csv" in name else as_lines)(path, rows)
    examples, log = read(path, **NAMES)
    near_the_truth(examples)
    assert log.arms == tuple(sorted(ARMS))
    assert log.summary.rows == len(TURNS)
    assert log.summary.unknown == 0
    assert log.summary.episodes == len(TURNS) // 4
    assert log.summary.rewarded == sum(turn.reward is not None for turn in TURNS)
    first, turn = examples[1], TURNS[1]
    assert first.decision.id == turn.id
    assert first.decision.context.question == turn.question
    assert first.decision.context.features == {f"tier={turn.tier}": 1.0}
    assert first.decision.drawn == first.decision.arms[0] == turn.arm
    assert first.decision.probabilities == (turn.p[turn.arm],)
    assert (first.decision.policy, first.decision.version) == (IMPORTED, 0)
    assert first.decision.decided_at == turn.at
    assert first.decision.episode_id == turn.episode
    assert first.metrics == {"reward": turn.reward}
    assert first.cost.usd == turn.usd
    assert first.cost.llm_s == 0.25
    assert first.cost.prompt_tokens == turn.tokens[0]


def test_all_that_was_read_survives_the_export(tmp_path: Path) -> None:
    examples, log = read(as_lines(tmp_path / "log.jsonl", table_rows(TURNS[:200])), **NAMES)
    with (tmp_path / "out.jsonl").open("wb") as file:
        write_export(
            examples, file, Header(written_at=0.0, reward=make_rule("reward", (0.0, 1.0)), arms=log.arms)
        )
    back = list(read_export(tmp_path / "out.jsonl"))
    assert back == examples
    assert [one.decision.user_digest for one in back] == [one.decision.user_digest for one in examples]
    assert len({one.decision.user_digest for one in back}) == 7
    assert "u3" not in (tmp_path / "out.jsonl").read_text()


@pytest.mark.parametrize("shape", ["by arm", "in order", "columns"])
@pytest.mark.slow
def test_whole_distributions_are_read_in_three_shapes(tmp_path: Path, shape: str) -> None:
    rows: list[dict[str, Any]] = table_rows(TURNS)
    options: dict[str, Any] = {"distribution": "dist"}
    for row in rows:
        p = row.pop("dist")
        row |= {
            "by arm": {"dist": p},
            "in order": {"dist": list(p.values())},
            "columns": {f"p_{arm}": share for arm, share in p.items()},
        }[shape]
    if shape == "in order":
        options["arms"] = ARMS
    if shape == "columns":
        options = {"prefix": "p_"}
    examples, log = read(as_csv(tmp_path / "log.csv", rows), **NAMES, **options)
    near_the_truth(examples)
    assert log.summary.whole == len(TURNS)
    assert examples[5].decision.arms == ARMS
    assert examples[5].decision.probabilities == tuple(TURNS[5].p.values())


def test_usual_names_are_found_without_an_option_and_a_named_column_comes_first(tmp_path: Path) -> None:
    row = {
        "query": "?",
        "model": "a",
        "pscore": 0.5,
        "rating": 1,
        "ts": 5,
        "cost_usd": 2.0,
        "session_id": "s",
    }
    examples, log = read(as_csv(tmp_path / "log.csv", [row]), arms=("a", "b"))
    assert dict(log.columns.list_columns()) == {
        "question": "query",
        "arm": "model",
        "propensity": "pscore",
        "reward": "rating",
        "time": "ts",
        "episode": "session_id",
        "cost usd": "cost_usd",
    }
    assert examples[0].decision.id == "log.csv, line 2"
    _, named = read(
        as_csv(tmp_path / "log.csv", [{**row, "cost": 1}]), costs={"usd": "cost"}, arms=("a", "b")
    )
    assert named.columns.costs == {"usd": "cost"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"arm": "rout"}, "no column 'rout' for the arm; did you mean 'route'"),
        ({"features": {"tier": "zzz"}, "arm": "route"}, "no column 'zzz' for the feature tier"),
        ({"costs": {"usd": "dolars"}, "arm": "route"}, "for the cost usd; did you mean 'dollars'"),
        ({"prefix": "q_", "arm": "route"}, "no column begins with 'q_'"),
        ({"arm": "route", "only": {"zone": "x"}}, "--only zone: no such column"),
    ],
)
def test_a_missing_column_is_an_error_with_the_columns_there_are(
    tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    path = as_csv(tmp_path / "log.csv", table_rows(TURNS[:3]))
    with pytest.raises(ExchangeError, match=words) as refused:
        read(path, **options)
    assert "dollars" in str(refused.value)


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"route": ""}, "no arm", "route is empty"),
    ({"chance": 0}, "propensity not in (0, 1]", "chance is 0"),
    ({"chance": 1.01}, "propensity not in (0, 1]", "chance is 1.01"),
    ({"chance": "half"}, "propensity not in (0, 1]", "chance is 'half'"),
    ({"score": "good"}, "reward is not a number", "score is 'good'"),
    ({"score": 1.5}, "reward not in [0, 1]", "score is 1.5"),
    ({"score": "inf"}, "reward is not a number", "score is 'inf'"),
    ({"when": "yesterday"}, "no time", "when is 'yesterday'"),
    ({"when": ""}, "no time", "when is ''"),
    ({"dollars": -1}, "no cost: usd", "dollars is '-1'"),
    ({"latency": "slow"}, "no cost: seconds", "latency is 'slow'"),
    ({"request": "0190-000000"}, "duplicate", "id '0190-000000' already occurred above"),
    ({"dist": '{"small": 0.5, "medium": 0.4}'}, "no distribution", "that sum to 1"),
    ({"dist": '{"small": 1.5, "medium": -0.5}'}, "no distribution", "that sum to 1"),
    ({"dist": '{"small": "x"}'}, "no distribution", "that sum to 1"),
    ({"dist": "[0.5, 0.5]"}, "no distribution", "has 2 numbers"),
    ({"dist": "0.5"}, "no distribution", "that sum to 1"),
    ({"dist": '{"other": 1.0}'}, "drawn arm not in the distribution", "it must be above 0"),
    ({"chance": 0.999}, "propensity differs from the distribution", "chance"),
]


@pytest.mark.parametrize(("change", "reason", "words"), WRONG, ids=[reason for _, reason, _ in WRONG])
def test_a_wrong_row_is_left_out_counted_and_named(
    tmp_path: Path, change: Mapping[str, Any], reason: str, words: str
) -> None:
    rows = table_rows(TURNS[:9])
    rows[4] |= change
    path, names = as_csv(tmp_path / "log.csv", rows), {**NAMES, "distribution": "dist"}
    examples, log = read(path, **names)
    assert [one.decision.id for one in examples] == [t.id for t in TURNS[:9] if t.number != 4]
    assert [one.seq for one in examples] == list(range(1, 9))
    assert log.faults.counts == {reason: 1}
    assert log.faults.shown[reason][0].startswith(f"{path}, line 6: ")
    assert words in log.faults.shown[reason][0]
    with pytest.raises(ExchangeError, match="line 6: "):
        read(path, **names, strict=True)


def test_three_rows_are_named_for_each_reason_and_all_are_counted(tmp_path: Path) -> None:
    rows = table_rows(TURNS[:9])
    for row in rows[2:7]:
        row["score"] = "?"
    _, log = read(as_csv(tmp_path / "log.csv", rows), **NAMES)
    assert log.faults.counts == {"reward is not a number": 5}
    assert [line.partition(": ")[0][-1] for line in log.faults.shown["reward is not a number"]] == [
        "4",
        "5",
        "6",
    ]


def test_an_arm_that_is_not_among_those_named_is_left_out(tmp_path: Path) -> None:
    examples, log = read(as_csv(tmp_path / "x.csv", table_rows(TURNS[:50])), **NAMES, arms=("small", "large"))
    others = sum(turn.arm == "medium" for turn in TURNS[:50])
    assert others > 0
    assert log.faults.counts == {"arm not among --arms": others}
    assert {one.decision.drawn for one in examples} == {"small", "large"}


@pytest.mark.parametrize("shape", ["dist", "p_"])
@pytest.mark.parametrize("estimate", [True, False])
def test_an_arm_that_a_distribution_names_is_one(tmp_path: Path, shape: str, estimate: bool) -> None:
    rows = [
        {"arm": arm, **({"dist": p} if shape == "dist" else {f"p_{arm}": share for arm, share in p.items()})}
        for arm, p in (("a", {"a": 0.5, "b": 0.5}), ("b", {"a": 0.5, "b": 0.25, "rare": 0.25}))
    ]
    named = {"distribution": "dist"} if shape == "dist" else {"prefix": shape}
    examples, log = read(as_lines(tmp_path / "log.jsonl", rows), **named, estimate=estimate)
    assert log.arms == ("a", "b", "rare")
    assert log.faults.counts == {}
    assert [dict(zip(one.decision.arms, one.decision.probabilities, strict=True)) for one in examples] == [
        {"a": 0.5, "b": 0.5},
        {"a": 0.5, "b": 0.25, "rare": 0.25},
    ]


def test_rows_of_other_kinds_are_left_out_by_only(tmp_path: Path) -> None:
    examples, log = read(as_csv(tmp_path / "x.csv", table_rows(TURNS[:50])), **NAMES, only={"plan": "pro"})
    pro = sum(turn.tier == "pro" for turn in TURNS[:50])
    assert len(examples) == pro
    assert log.faults.counts == {"not selected by --only": 50 - pro}


def test_a_row_without_a_propensity_is_kept_and_says_so(tmp_path: Path) -> None:
    rows = table_rows(TURNS[:20])
    rows[3]["chance"] = None
    examples, log = read(as_csv(tmp_path / "x.csv", rows), **NAMES)
    assert examples[3].decision.probabilities == ()
    assert math.isnan(examples[3].decision.propensity)
    assert examples[3].decision.arms == (TURNS[3].arm, *(arm for arm in sorted(ARMS) if arm != TURNS[3].arm))
    assert (log.summary.recorded, log.summary.unknown) == (19, 1)


def test_rows_that_go_back_in_time_are_counted(tmp_path: Path) -> None:
    rows = table_rows(TURNS[:5])
    rows[2], rows[3] = rows[3], rows[2]
    _, log = read(as_csv(tmp_path / "x.csv", rows), **NAMES)
    assert log.summary.backwards == 1
    assert (log.summary.first, log.summary.last) == (TURNS[0].at, TURNS[4].at)


def test_a_column_of_ids_is_no_column_of_arms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("armwise.feedback.exchange.production.MOST_ARMS", 10)
    with pytest.raises(ExchangeError, match="is it really the column of the arm"):
        read(as_csv(tmp_path / "x.csv", table_rows(TURNS[:50])), arm="request")


# -- values ----------------------------------------------------------------------------------------


@given(
    st.floats(allow_nan=False, allow_infinity=False)
    | st.booleans()
    | st.text(st.characters(codec="utf-8"), min_size=1)
)
def test_a_feature_is_what_our_own_contexts_have(value: float | bool | str) -> None:
    """A table has texts for numbers and booleans, which are read as those."""
    found = name_feature("x", value)
    if isinstance(value, str):
        return
    assert found is not None
    assert dict([found]) == dict(describe("", FeatureSpec(words=0, shape=False), extra={"x": value}).features)


def test_texts_are_features_by_name_and_nothing_is_none() -> None:
    expected = describe("", FeatureSpec(words=0, shape=False), extra={"tier": "free"}).features
    assert dict([name_feature("tier", "free") or ("", 0.0)]) == dict(expected)
    assert name_feature("tier", " ") is None
    assert name_feature("plan", "yes") == ("plan=yes", 1.0)


@given(st.datetimes(datetime(1980, 1, 1), datetime(2200, 1, 1)))
def test_a_time_is_the_same_in_every_shape(moment: datetime) -> None:
    moment = moment.replace(microsecond=moment.microsecond // 1000 * 1000)
    at = moment.replace(tzinfo=UTC).timestamp()
    shapes = (
        at,
        str(at),
        round(at * 1e3),
        round(at * 1e6),
        str(round(at * 1000) * 10**6),
        moment,
        moment.isoformat(),
        moment.isoformat(" "),
        moment.isoformat() + "Z",
        moment.isoformat() + "+00:00",
    )
    assert {round(seconds(shape), 3) for shape in shapes} == {round(at, 3)}


@pytest.mark.parametrize(
    ("value", "at"),
    [
        (99_999_999_999, 99_999_999_999.0),
        (100_000_000_000, 100_000_000.0),
        (99_999_999_999_000, 99_999_999_999.0),
        ("20260101", 1_767_225_600.0),
    ],
)
def test_the_unit_of_a_time_is_that_of_its_size(value: object, at: float) -> None:
    assert seconds(value) == at


@pytest.mark.parametrize(("text", "value"), [("TRUE", 1.0), ("no", 0.0), (" 0.25 ", 0.25), ("Fail", 0.0)])
def test_rewards_are_numbers_or_words(text: str, value: float) -> None:
    assert read_reward(text) == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain", "plain"),
        ([{"role": "user", "content": "first"}, {"role": "user", "content": "last"}], "last"),
        ([{"role": "assistant", "content": "only"}], "only"),
        ('{"messages": [{"role": "user", "content": "in"}]}', "in"),
        ({"question": "why"}, "why"),
        ({"other": 1}, '{"other":1}'),
        (None, ""),
        ([], ""),
        ({}, ""),
        ([None], ""),
        (["first", "last", None], "last"),
        ('["first", "last"]', "last"),
        ([1, 2], "[1,2]"),
        (True, "true"),
        ([{"type": "human", "content": "of LangChain"}, {"type": "ai", "content": "a"}], "of LangChain"),
        ([{"type": "human", "data": {"content": "stored"}}], "stored"),
        (
            [{"lc": 1, "type": "constructor", "id": ["schema", "HumanMessage"], "kwargs": {"content": "lc"}}],
            "lc",
        ),
        ({"messages": [[{"type": "human", "content": "in a batch"}]]}, "in a batch"),
        ([["system", "s"], ["user", "in a pair"]], "in a pair"),
        (
            {"conversations": [{"from": "human", "value": "of ShareGPT"}, {"from": "gpt", "value": "a"}]},
            "of ShareGPT",
        ),
        ({"custom_id": "1", "body": {"messages": [{"role": "user", "content": "of OpenAI"}]}}, "of OpenAI"),
        (
            {
                "body": {
                    "input": [{"role": "user", "content": [{"type": "input_text", "text": "of a response"}]}]
                }
            },
            "of a response",
        ),
        ({"contents": [{"role": "user", "parts": [{"text": "of Gemini"}]}]}, "of Gemini"),
        ([{"author": {"role": "user"}, "content": {"parts": ["of ChatGPT"]}}], "of ChatGPT"),
        ([{"role": "user", "content": "[1, 2]"}], "[1, 2]"),
        ([{"role": "user", "content": '[{"type": "text", "text": "in a text"}]'}], "in a text"),
        ([{"role": "user", "content": 5}], "5"),
        ([{"role": "user", "content": {"type": "image", "text": "no"}}], ""),
        ([{"type": "input_text", "text": "one"}, {"type": "input_text", "text": "two"}], "one\ntwo"),
        (
            {
                "params": {
                    "messages": [
                        {
                            "role": "user",
                            "content": [{"type": "text", "text": "of Anthropic"}, {"type": "image"}],
                        },
                        {"role": "assistant", "content": [{"type": "tool_use", "input": {}}]},
                        {"role": "user", "content": [{"type": "tool_result", "content": "19 C"}]},
                    ]
                }
            },
            "of Anthropic",
        ),
    ],
)
def test_a_question_is_the_last_message_of_the_user(value: Any, text: str) -> None:
    assert last_text(value) == text


@pytest.mark.parametrize(
    "value",
    [
        [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
        [{"type": "human", "content": "q"}, {"type": "ai", "content": "a"}],
        {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]},
        [["human", "q"], ["ai", "a"]],
        [{"role": "model", "parts": [{"text": "a"}]}, {"role": "user", "parts": [{"text": "q"}]}],
    ],
)
def test_an_answer_is_the_last_message_of_the_assistant(value: Any) -> None:
    assert (last_text(value), last_text(value, ASSISTANT)) == ("q", "a")
    assert last_text("q", ASSISTANT) == last_text(["q"], ASSISTANT) == last_text({"x": 1}, ASSISTANT) == ""


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.integers()
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "type", "text", "messages", "id", "x"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)


@given(JSON)
@settings(max_examples=200)
@pytest.mark.slow
def test_a_question_is_text_whatever_the_value_is_and_never_a_representation_of_python(value: Any) -> None:
    text = last_text(value)
    assert isinstance(text, str)
    assert isinstance(value, str) or text != repr(value) or text == json.dumps(value)


def test_a_value_of_a_thousand_levels_is_a_text_or_none() -> None:
    deep = "[" * 1000 + "1" + "]" * 1000
    assert last_text(deep) in (deep, "")
