"""Exports of LiteLLM, Langfuse, TensorZero and OpenTelemetry: the known traffic comes back from each."""

import json
from pathlib import Path
from typing import Any

import pytest

from armwise.feedback.jsonl import ExchangeError
from tests.feedback.exchange.exports import (
    SHORT,
    attribute,
    chat,
    judged,
    observations,
    request,
    score,
    span,
    spend,
    trace,
)
from tests.feedback.exchange.traffic import (
    Turn,
    as_csv,
    as_lines,
    langfuse_rows,
    litellm_rows,
    near_the_truth,
    otel_lines,
    read,
    tensorzero_rows,
    traffic,
)

TURNS = traffic()

FEW = TURNS[:60]


def rewards(turns: list[Turn]) -> list[dict[str, Any]]:
    return [
        {"request_id": turn.id, "thumb": "yes" if turn.reward else "no"}
        for turn in turns
        if turn.reward is not None
    ]


def written(folder: Path, form: str, turns: list[Turn]) -> tuple[Path, dict[str, Any]]:
    """Write the traffic in a format; return the source, and the options to read it with."""
    folder.mkdir(exist_ok=True)
    match form:
        case "litellm":
            source = as_lines(folder.parent / "spend.jsonl", litellm_rows(turns))
            thumbs = as_csv(folder.parent / "thumbs.csv", rewards(turns))
            tier = {"tier": "metadata.requester_metadata.tier"}
            return source, {
                "feedback": (thumbs,),
                "reward": "thumb",
                "propensity": "metadata.requester_metadata.propensity",
                "features": tier,
            }
        case "langfuse":
            traces, scores = langfuse_rows(turns)
            as_lines(folder / "traces.jsonl", traces)
            as_lines(folder / "scores.jsonl.gz", scores)
            return folder, {"reward": "helpful", "features": {"tier": "metadata.tier"}}
        case "tensorzero":
            inferences, feedback = tensorzero_rows(turns)
            as_lines(folder / "ChatInference.jsonl", inferences)
            as_lines(folder / "BooleanMetricFeedback.jsonl", feedback)
            return folder, {"features": {"tier": "tags.tier"}}
        case _:
            source = as_lines(folder / "otlp.jsonl", otel_lines(turns))
            return source, {"propensity": "app.propensity", "features": {"tier": "app.tier"}}


FORMS = ("litellm", "langfuse", "tensorzero", "otel")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.slow
def test_the_known_traffic_comes_back(tmp_path: Path, form: str) -> None:
    source, options = written(tmp_path / "export", form, TURNS)
    examples, log = read(source, form, **options)
    assert log.faults.counts == {}
    near_the_truth(examples)
    assert [
        one.decision.id.removeprefix(f"t{turn.number}-") for one, turn in zip(examples, TURNS, strict=True)
    ] == [turn.id for turn in TURNS]
    assert [one.decision.drawn for one in examples] == [turn.arm for turn in TURNS]
    assert [one.metrics.get("reward") for one in examples] == [turn.reward for turn in TURNS]
    for one, turn in zip(examples[:50], TURNS, strict=False):
        assert one.decision.context.question == turn.question
        assert one.decision.context.features == {f"tier={turn.tier}": 1.0}
        assert one.decision.propensity == turn.p[turn.arm]
        assert one.decision.episode_id == turn.episode
        assert one.decision.decided_at == turn.at
        assert one.decision.user_digest is not None
        assert one.cost.llm_s == (2.0 if form == "litellm" else 0.25)
        if form != "otel":
            assert one.cost.usd == (0.0 if form == "tensorzero" else turn.usd)
        if form in ("litellm", "otel"):
            assert (one.cost.prompt_tokens, one.cost.completion_tokens) == turn.tokens


def test_the_spend_logs_of_litellm_say_what_failed_and_what_was_cached(tmp_path: Path) -> None:
    rows = litellm_rows(FEW)
    rows[2] |= {"status": "failure"}
    rows = [{**row, "request_duration_ms": 700 if at == 4 else None} for at, row in enumerate(rows)]
    examples, log = read(as_csv(tmp_path / "spend.csv", rows), "litellm")
    assert [one.failed for one in examples[:4]] == [False, False, True, False]
    assert log.summary.failed == 1
    assert [one.cached for one in examples[:4]] == [False, False, False, True]
    assert [one.cost.llm_s for one in examples[3:6]] == [2.0, 0.7, 2.0]


def test_prompts_of_litellm_may_stand_in_the_request_and_may_not_be_stored(tmp_path: Path) -> None:
    rows = litellm_rows(FEW[:2])
    rows[0] |= {"messages": "{}", "proxy_server_request": {"messages": [{"role": "user", "content": "here"}]}}
    rows[1] |= {"messages": {}}
    examples, _ = read(as_lines(tmp_path / "spend.jsonl", rows), "litellm")
    assert [one.decision.context.question for one in examples] == ["here", FEW[1].id]


def test_the_model_that_answered_can_be_the_arm(tmp_path: Path) -> None:
    examples, _ = read(as_lines(tmp_path / "spend.jsonl", litellm_rows(FEW)), "litellm", arm="model")
    assert examples[0].decision.drawn == f"provider/{FEW[0].arm}"


@pytest.mark.parametrize(
    ("reward", "words"),
    [
        (None, r"several scores; choose one with --reward: length \(60\), helpful \(58\)"),
        ("helpfull", "there is no score 'helpfull'; available: length"),
    ],
)
def test_several_scores_of_langfuse_must_be_told_apart(
    tmp_path: Path, reward: str | None, words: str
) -> None:
    source, options = written(tmp_path / "export", "langfuse", FEW)
    with pytest.raises(ExchangeError, match=words):
        read(source, "langfuse", **{**options, "reward": reward})


def test_scores_of_a_session_and_of_an_observation_count_for_their_traces(tmp_path: Path) -> None:
    traces, _ = langfuse_rows(FEW[:8])
    scores: list[dict[str, Any]] = [
        {
            "id": "1",
            "sessionId": "e0",
            "name": "good",
            "dataType": "BOOLEAN",
            "value": 1,
            "stringValue": "True",
        },
        {
            "id": "2",
            "traceId": FEW[0].id,
            "observationId": "o",
            "name": "good",
            "dataType": "BOOLEAN",
            "value": 0,
        },
        {"id": "3", "traceId": FEW[5].id, "name": "good", "dataType": "CATEGORICAL", "stringValue": "yes"},
    ]
    examples, _ = read(as_lines(tmp_path / "all.jsonl", [*traces, *scores]), "langfuse")
    assert [one.metrics.get("reward") for one in examples] == [0.0, 1.0, 1.0, 1.0, None, 1.0, None, None]


def test_a_score_on_a_trace_counts_for_no_other_of_its_session(tmp_path: Path) -> None:
    traces, _ = langfuse_rows(FEW[:8])
    given = {"name": "good", "dataType": "NUMERIC", "sessionId": "e0"}
    scores: list[dict[str, Any]] = [
        {"id": "1", "traceId": FEW[1].id, "value": 0.25, **given},
        {"id": "2", "traceId": FEW[2].id, "observationId": "o", "value": 0.75, **given},
        {"id": "3", "sessionId": "e1", "name": "good", "dataType": "NUMERIC", "value": 0.5},
        {"id": "4", "traceId": FEW[6].id, "value": 1.0, **given, "sessionId": "e1"},
    ]
    for order in (scores, scores[::-1]):
        examples, _ = read(as_lines(tmp_path / "all.jsonl", [*traces, *order]), "langfuse")
        rewards = [one.metrics.get("reward") for one in examples]
        assert rewards == [None, 0.25, 0.75, None, 0.5, 0.5, 1.0, 0.5]


def test_traces_of_langfuse_get_models_and_costs_of_their_observations(tmp_path: Path) -> None:
    """As the blob storage export has them: snake_case, in files of their own."""
    traces = [{"id": "t", "timestamp": "2024-05-29 13:46:19.963000", "session_id": "s", "input": "?"}]
    call = {"trace_id": "t", "type": "GENERATION", "usage_details": {"input": 10, "output": 2}}
    observations = [
        {"id": f"o{i}", "provided_model_name": f"m{i}", "total_cost": 0.5, **call} for i in range(2)
    ]
    for name, rows in (("traces", traces), ("observations", observations)):
        (tmp_path / name).mkdir()
        as_lines(tmp_path / name / "0.jsonl", rows)
    ((example,), log) = read(tmp_path, "langfuse")
    assert (example.decision.drawn, example.decision.episode_id) == ("m0", "s")
    assert example.decision.decided_at == 1716990379.963
    assert (example.cost.usd, example.cost.prompt_tokens, example.cost.completion_tokens) == (1.0, 20, 4)
    assert log.columns.arm == "model"


def test_feedback_of_tensorzero_may_be_on_an_episode_and_the_newest_counts(tmp_path: Path) -> None:
    inferences, _ = tensorzero_rows(FEW[:8])
    calls = [
        {"id": f"m{tokens}", "inference_id": FEW[0].id, "model_name": "x", "input_tokens": tokens}
        for tokens in (5, 6)
    ]
    scores = [
        {
            "id": "1",
            "target_id": "e0",
            "metric_name": "solved",
            "value": 0.25,
            "timestamp": "2026-01-02 00:00:00",
        },
        {
            "id": "2",
            "target_id": "e0",
            "metric_name": "solved",
            "value": 0.75,
            "timestamp": "2026-01-01 00:00:00",
        },
        {"id": "3", "target_id": FEW[1].id, "metric_name": "solved", "value": True},
    ]
    source = as_lines(tmp_path / "inferences.jsonl", [*inferences, *calls])
    examples, _ = read(source, "tensorzero", feedback=(as_lines(tmp_path / "scores.jsonl", scores),))
    assert [one.metrics.get("reward") for one in examples] == [0.25, 1.0, 0.25, 0.25, *[None] * 4]
    assert [one.cost.prompt_tokens for one in examples[:2]] == [11, 0]


def test_spans_that_are_no_model_calls_are_no_decisions(tmp_path: Path) -> None:
    lines = otel_lines(FEW[:3])
    spans = lines[0]["resourceSpans"][0]["scopeSpans"][0]["spans"]
    spans[0]["status"] = {"code": 2}
    embeddings = [attribute("gen_ai.operation.name", "embeddings"), attribute("gen_ai.request.model", "e")]
    spans.append({"spanId": "e", "name": "embeddings e", "attributes": embeddings})
    examples, log = read(as_lines(tmp_path / "x.jsonl", lines), "otel")
    assert log.faults.counts == {"no model call: embeddings": 1}
    assert [one.decision.id for one in examples] == [f"t{turn.number}-{turn.id}" for turn in FEW[:3]]
    assert [one.failed for one in examples] == [True, False, False]


def test_a_call_that_a_tool_makes_is_a_call_of_its_own(tmp_path: Path) -> None:
    tool = span(0, "b", "a", **{"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "t"})
    step = span(0, "c", "b", **{"http.method": "POST"})
    lines = [request(chat(0, "a"), tool, step, chat(0, "d", "c"), chat(0, "e", "d"))]
    examples, log = read(as_lines(tmp_path / "x.jsonl", lines), "otel")
    assert [one.decision.id[-1] for one in examples] == ["a", "d"]
    assert log.faults.counts == {"no model call: execute_tool": 1, "part of a call": 1}


def test_spans_that_are_inside_of_each_other_in_a_circle_are_read(tmp_path: Path) -> None:
    lines = [request(chat(0, "a", "b"), chat(0, "b", "a"), chat(1, "a", "a"))]
    examples, _ = read(as_lines(tmp_path / "x.jsonl", lines), "otel")
    assert [one.decision.id[-1] for one in examples] == ["a", "b", "a"]


def test_of_a_chain_of_calls_each_amount_counts_where_the_outermost_span_has_it(tmp_path: Path) -> None:
    without: dict[str, Any] = {"gen_ai.usage.input_tokens": None, "gen_ai.usage.output_tokens": None}
    inner = [chat(0, letter, parent) for letter, parent in (("b", "a"), ("c", "b"), ("d", "a"))]
    examples, _ = read(as_lines(tmp_path / "x.jsonl", [request(chat(0, **without), *inner)]), "otel")
    assert [(one.cost.prompt_tokens, one.cost.completion_tokens) for one in examples] == [(200, 100)]


def test_a_span_without_an_operation_is_a_call_where_it_has_a_model(tmp_path: Path) -> None:
    plain = chat(0, **{"gen_ai.operation.name": None})
    embed = chat(1, **{"gen_ai.operation.name": None, "ai.operationId": "ai.embed.doEmbed"})
    examples, log = read(as_lines(tmp_path / "x.jsonl", [request(plain, embed)]), "otel")
    assert len(examples) == 1
    assert log.faults.counts == {"no model call: ai.embed.doembed": 1}


def test_the_arm_of_a_trace_is_the_model_of_its_first_generation_and_of_no_embedding(tmp_path: Path) -> None:
    rows = [{key: value for key, value in row.items() if key != "metadata"} for row in observations(0)]
    later = rows[3] | {"id": "o", "start_time": "2026-03-01 10:00:01.000000", "provided_model_name": "later"}
    traces = [{"id": "t0", "timestamp": "2026-03-01T10:00:00Z", "input": "?"}]
    source = as_lines(tmp_path / "x.jsonl", [*traces, later, *rows])
    ((example,), _) = read(source, "langfuse")
    assert example.decision.drawn == "gpt-small"


def test_feedback_on_a_row_that_is_not_selected_is_not_on_nothing(tmp_path: Path) -> None:
    rows = [{"id": f"r{at}", "arm": "a", "kind": "xy"[at]} for at in range(2)]
    given = [{"id": f"r{at}", "stars": 1} for at in range(3)] + [{"id": "", "stars": 1}]
    feedback = (as_csv(tmp_path / "f.csv", given),)
    _, log = read(as_csv(tmp_path / "x.csv", rows), reward="stars", feedback=feedback, only={"kind": "x"})
    assert log.faults.counts == {
        "not selected by --only": 1,
        "feedback on no decision": 1,
        "feedback on nothing": 1,
    }
    assert log.faults.shown["feedback on no decision"] == [
        f"{feedback[0]}, line 4: r2 is no decision that was read"
    ]


def test_litellm_may_say_a_failure_in_metadata_and_cached_is_free(tmp_path: Path) -> None:
    spent = {"cost_breakdown": {"total_cost": 0.25}}
    rows = [
        spend(0, status="", metadata={"status": "failure"}),
        spend(1, spend="0.000", metadata=spent),
        spend(2, spend=0, metadata=spent, cache_hit="True"),
        spend(3, spend=0.5, metadata=spent),
    ]
    examples, _ = read(as_lines(tmp_path / "x.jsonl", rows), "litellm")
    assert [one.failed for one in examples] == [True, False, False, False]
    assert [one.cost.usd for one in examples] == [0.002, 0.25, 0.0, 0.5]


def test_of_a_score_that_was_edited_the_time_of_the_last_change_counts(tmp_path: Path) -> None:
    edited = score(0, value=0.25, updatedAt="2026-03-01T12:00:00Z", timestamp="2026-03-01T09:00:00Z")
    edited["createdAt"] = "2026-03-01T13:00:00Z"
    later = score(0, id="s", value=0.75, updatedAt="2026-03-01T12:30:00Z")
    source = as_lines(tmp_path / "x.jsonl", [trace(0), edited, later])
    ((example,), _) = read(source, "langfuse", arms=SHORT)
    assert example.metrics == {"reward": 0.25}


def test_the_score_of_any_inner_call_is_that_of_the_decision(tmp_path: Path) -> None:
    spans = [chat(1), chat(1, "b", "a"), judged(1, chat(1, "c", "b"))]
    ((example,), _) = read(as_lines(tmp_path / "x.jsonl", [request(*spans)]), "otel")
    assert example.metrics == {"reward": 0.1}


def test_a_trace_that_was_exported_before_its_cost_has_that_of_its_observations(tmp_path: Path) -> None:
    source = as_lines(tmp_path / "x.jsonl", [trace(0, totalCost=0.0), *observations(0)])
    ((example,), _) = read(source, "langfuse", arms=SHORT)
    assert example.cost.usd == pytest.approx(0.0021)


@pytest.mark.parametrize("names", [("input_tokens", "output_tokens"), ("promptTokens", "completionTokens")])
def test_tokens_of_langfuse_have_several_names(tmp_path: Path, names: tuple[str, str]) -> None:
    call = observations(0)[3] | {"usageDetails": dict(zip(names, (7, 3), strict=True)), "model": None}
    del call["usage_details"]
    source = as_lines(tmp_path / "x.jsonl", [call | {"calculatedTotalCost": 0.5, "totalCost": None}])
    ((example,), _) = read(source, "langfuse", arm="model", arms=("gpt-small", "b"))
    assert (example.cost.prompt_tokens, example.cost.completion_tokens) == (7, 3)


def test_an_evaluation_may_name_the_response_instead_of_the_span(tmp_path: Path) -> None:
    lines = otel_lines(FEW[7:8])
    lines[0]["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["attributes"].append(
        attribute("gen_ai.response.id", "chatcmpl-1")
    )
    labels = [
        attribute("gen_ai.evaluation.name", "check"),
        attribute("gen_ai.evaluation.score.label", "pass"),
        attribute("gen_ai.response.id", "chatcmpl-1"),
    ]
    entry = {"eventName": "gen_ai.evaluation.result", "attributes": labels}
    lines.append({"resourceLogs": [{"scopeLogs": [{"logRecords": [entry]}]}]})
    ((example,), log) = read(as_lines(tmp_path / "x.jsonl", lines), "otel")
    assert example.metrics == {"reward": 1.0}
    assert log.scored == "check"


def test_an_evaluation_that_is_a_span_is_on_the_span_around_it(tmp_path: Path) -> None:
    """Two calls of one trace. An evaluator runs within each, and its result is a span of its own."""
    calls = [chat(0, "a"), {**chat(1, "b"), "traceId": chat(0)["traceId"]}]
    spans = []
    for call, value in zip(calls, (0.25, 0.75), strict=True):
        evaluator = span(0, f"{value}-e", **{"openinference.span.kind": "EVALUATOR"})
        names = {"gen_ai.evaluation.name": "good", "gen_ai.evaluation.score.value": value}
        result = span(0, f"{value}-r", **names) | {"name": "gen_ai.evaluation.result"}
        spans += [
            evaluator | {"parentSpanId": call["spanId"]},
            result | {"parentSpanId": evaluator["spanId"]},
        ]
    for order in ([*calls, *spans], [*spans, *calls]):
        examples, log = read(as_lines(tmp_path / "x.jsonl", [request(*order)]), "otel")
        assert [one.metrics for one in examples] == [{"reward": 0.25}, {"reward": 0.75}]
        assert log.faults.counts == {"no model call: evaluator": 2}


def test_a_table_joins_feedback_by_id_and_by_episode(tmp_path: Path) -> None:
    rows = [{"id": f"r{i}", "arm": "a", "propensity": 1, "session": f"s{i // 2}"} for i in range(4)]
    feedback = as_csv(tmp_path / "f.csv", [{"id": "r0", "stars": 0.5}, {"id": "s1", "stars": 1}])
    examples, log = read(as_csv(tmp_path / "x.csv", rows), reward="stars", feedback=(feedback,))
    assert [one.metrics.get("reward") for one in examples] == [0.5, None, 1.0, 1.0]
    assert log.columns.reward is None


def test_of_equally_new_feedback_the_last_counts(tmp_path: Path) -> None:
    source = as_csv(tmp_path / "x.csv", [{"id": "r0", "arm": "a"}])
    feedback = as_csv(tmp_path / "f.csv", [{"id": "r0", "stars": 0.25}, {"id": "r0", "stars": 0.75}])
    ((example,), _) = read(source, reward="stars", feedback=(feedback,))
    assert example.metrics == {"reward": 0.75}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"x": "r0", "stars": 1}], "no column says which decision the feedback is about"),
        ([{"id": "r0", "x": 1}], "no column for the reward: name it with --reward"),
        ([{"id": "r0", "stars": ""}], "no feedback has a value"),
    ],
)
def test_feedback_that_cannot_be_joined_is_refused(
    tmp_path: Path, rows: list[dict[str, Any]], message: str
) -> None:
    source = as_csv(tmp_path / "x.csv", [{"id": "r0", "arm": "a"}])
    with pytest.raises(ExchangeError, match=message):
        read(source, reward="stars", feedback=(as_csv(tmp_path / "f.csv", rows),))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "document",
    [
        {"resourceSpans": 3},
        {"resourceSpans": [{"scopeSpans": {"spans": 1}}]},
        {"resourceSpans": [{"scopeSpans": [{"spans": [{"attributes": "x", "events": None}]}]}]},
        {"scores": "x", "observations": [1], "id": None},
        {"trace_id": None, "usage_details": "[]", "usage": 5},
        {"variant_name": None, "id": [1], "tags": "{"},
        {"messages": "[", "startTime": {}, "endTime": 5, "proxy_server_request": "[1]"},
        {"target_id": "a", "metric_name": "b", "value": {}},
    ],
)
def test_records_of_other_shapes_are_refused_in_words(tmp_path: Path, form: str, document: Any) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps(document) + "\n")
    try:
        examples, log = read(path, form, arm=None)
    except ExchangeError:
        return
    assert examples == [] or log.columns.arm is not None
