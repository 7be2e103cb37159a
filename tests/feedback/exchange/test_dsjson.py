"""dsjson: VW reads what we write, and we read what VW and Personalizer wrote, or say why not."""

import json
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from vowpalwabbit import LabelType, Workspace

from armwise.agent.policies import vowpal
from armwise.feedback.events import IMPORTED, LABELS, Example, Mode
from armwise.feedback.exchange.dsjson import read_dsjson, write_dsjson
from armwise.feedback.exchange.imported import Faults, filter_rewarded
from armwise.feedback.jsonl import ExchangeError
from armwise.feedback.reward import Metric, RewardRule
from tests.feedback.exported import ARMS, any_example, example

RULE = RewardRule(metrics={"right": Metric()}, cost_weight=0.125)

EVENT: dict[str, Any] = {
    "_label_cost": -1,
    "_label_probability": 0.8166667,
    "_label_Action": 2,
    "_labelIndex": 1,
    "o": [{"EventId": "38c9a0", "v": 1.0}],
    "Timestamp": "2018-09-15T00:00:00.0000000Z",
    "Version": "1",
    "EventId": "38c9a0",
    "a": [2, 1, 3],
    "c": {
        "FromUrl": [{"timeofday": "Morning", "weather": "Sunny", "age": 30}],
        "_multi": [
            {
                "_tag": "cappuccino",
                "i": {"constant": 1, "id": "cappuccino"},
                "j": [{"hot": True, "kcal": 80}],
            },
            {
                "_tag": "cold brew",
                "i": {"constant": 1, "id": "cold brew"},
                "j": [{"hot": False, "from": ["KE"]}],
            },
            {"_tag": "latte", "i": {"constant": 1, "id": "latte"}, "j": [None]},
        ],
    },
    "p": [0.8166667, 0.0916666, 0.0916667],
    "VWState": {"m": "680ca0c1-3fb5-4acb/f2a1"},
    "pdrop": 0.0,
}
"""A line as the services write it."""


def written(examples: list[Example], left_out: Counter[str] | None = None) -> list[bytes]:
    return list(write_dsjson(examples, RULE.compute_reward, Counter() if left_out is None else left_out))


def read_faults(folder: Path, *lines: bytes | dict[str, Any]) -> tuple[list[Example], Faults]:
    """Read lines, and note what is left out."""
    path, faults = folder / "log.dsjson", Faults()
    path.write_bytes(b"\n".join(one if isinstance(one, bytes) else json.dumps(one).encode() for one in lines))
    return list(read_dsjson(path, "reward", (-1.0, 1.0), faults)), faults


def read(folder: Path, *lines: bytes | dict[str, Any]) -> tuple[list[Example], Counter[str]]:
    """Read lines, and count what is left out."""
    examples, faults = read_faults(folder, *lines)
    return examples, faults.counts


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in EVENT.items() if key != name}


# -- out, and back ------------------------------------------------------------------------------------


def test_a_decision_whose_probabilities_cannot_be_is_counted() -> None:
    left_out = Counter[str]()
    odd = replace(example(1).decision, probabilities=(0.5,) * len(example(1).decision.arms))
    whole = example(2)
    kept = list(filter_rewarded([replace(example(1), decision=odd), whole], lambda _: 1.0, left_out))
    assert [one for one, _ in kept] == [whole]
    assert left_out == {"no distribution": 1}


def test_a_decision_comes_back_with_its_reward(tmp_path: Path) -> None:
    (back,), left_out = read(tmp_path, *written([example(1, "dense", 0.5)]))
    sent = example(1, "dense", 0.5).decision
    assert back.decision == replace(sent, deadline=sent.decided_at, steps={})
    assert back.metrics == {"reward": 0.5 - 0.125}
    assert (back.seq, back.failed, left_out) == (1, False, {})


@settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(any_example(), st.floats(-1, 1))
@pytest.mark.slow
def test_whatever_was_drawn_comes_back(tmp_path: Path, found: Example, reward: float) -> None:
    decision = replace(found.decision, mode=Mode.EXPLORE, policy="uniform")
    marked = any(name.startswith("_") for name in decision.context.features)
    marked |= any(name.startswith("_") for told in decision.context.arms.values() for name in told)
    lines = list(write_dsjson([replace(found, decision=decision)], lambda _: reward, Counter()))
    back, left_out = read(tmp_path, *lines)
    if len(decision.probabilities) < len(decision.arms):
        assert (back, left_out) == ([], {"no distribution": 1})
        return
    ((got,), now) = back, back[0].decision
    assert (now.id, now.arms, now.probabilities) == (decision.id, decision.arms, decision.probabilities)
    assert (now.drawn, now.version, got.metrics) == (decision.drawn, decision.version, {"reward": reward})
    assert now.decided_at == pytest.approx(decision.decided_at, abs=1e-6)
    if not marked:  # VW, and so we, pass over names that begin with _
        seen = {arm: dict(decision.context.arms.get(arm, {})) for arm in decision.arms}
        assert now.context == replace(decision.context, arms=seen)


def test_what_was_not_drawn_or_has_no_reward_is_counted() -> None:
    left_out = Counter[str]()
    examples = [
        example(1, policy=LABELS),
        example(2, mode=Mode.GREEDY),
        replace(example(3), metrics={}),
        replace(example(4), failed=True),
        example(5),
    ]
    (line,) = written(examples, left_out)
    assert orjson.loads(line)["EventId"] == "d-5"
    assert left_out == {LABELS: 1, "greedy": 1, "no reward": 1, "failed": 1}


# -- VW reads it ---------------------------------------------------------------------------------------


def test_vw_reads_the_cost_the_probability_and_the_action_that_we_wrote() -> None:
    vw = Workspace("--dsjson --cb_explore_adf --quiet")
    for drawn, reward in (("bm25", 1.0), ("dense", 0.0), ("none", 0.125)):
        sent = example(1, drawn, reward)
        (line,) = written([sent])
        shared, *actions = vw.parse(line.decode().strip())
        labels = [one.get_label(LabelType.CONTEXTUAL_BANDIT).costs for one in actions]
        (label,) = labels[ARMS.index(drawn)]
        assert [len(costs) for costs in labels] == [int(arm == drawn) for arm in ARMS]
        assert label.cost == pytest.approx(-(reward - 0.125), abs=1e-7)
        assert label.probability == pytest.approx(sent.decision.propensity, abs=1e-7)
        assert [one.get_tag() for one in actions] == list(ARMS)
        vw.finish_example([shared, *actions])
    vw.finish()


def test_vw_counts_the_costs_and_events_that_we_wrote(tmp_path: Path) -> None:
    lines = written([example(seq, ARMS[seq % 3], reward=(-0.5) ** (seq % 4)) for seq in range(1, 40)])
    data, metrics = tmp_path / "log.dsjson", tmp_path / "metrics.json"
    data.write_bytes(b"".join(lines))
    Workspace(f"--dsjson --cb_explore_adf --quiet -d {data} --extra_metrics {metrics}").finish()
    told = json.loads(metrics.read_text())
    costs = [orjson.loads(line)["_label_cost"] for line in lines]
    assert told["dsjson_sum_cost_original"] == pytest.approx(sum(costs))
    assert (told["first_event_id"], told["last_event_id"]) == ("d-1", "d-39")
    assert told["extra_metrics"]["total_learn_calls"] == len(lines)
    assert told["line_parse_error"] == told["number_skipped_events"] == 0


def test_vw_learns_from_the_file_what_our_policy_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vowpal, "BASELINE", 0.0)  # as in the file
    arguments = "--cb_explore_adf --squarecb --gamma_scale 20 --clip_p 1 -q sa -q ea -q sf"
    ours = vowpal.VowpalWabbit(arguments)
    vw = Workspace(f"--dsjson {arguments} --quiet")
    rng = np.random.default_rng(0)
    for seq in range(1, 200):
        sent = example(seq, str(rng.choice(ARMS)), float(rng.uniform(-1, 1)))
        reward = RULE.compute_reward(sent)
        assert reward is not None
        ours.learn(sent.decision, reward)
        events = vw.parse(written([sent])[0].decode().strip())
        vw.learn(events)
        vw.finish_example(events)
    (line,) = written([example(200)])
    theirs = np.array(vw.predict(line.decode().strip()))
    mine = ours.probabilities(example(200).decision.context, ARMS)
    np.testing.assert_allclose(theirs, mine, atol=1e-5)
    assert np.ptp(mine) > 0.05  # it has learned something
    vw.finish()


# -- from elsewhere ------------------------------------------------------------------------------------


def test_an_event_of_a_service_becomes_an_example(tmp_path: Path) -> None:
    (found,), left_out = read(tmp_path, EVENT)
    decision, seen = found.decision, found.decision.context
    assert decision.arms == ("cappuccino", "cold brew", "latte")
    assert decision.probabilities == (0.0916666, 0.8166667, 0.0916667)
    assert (decision.drawn, decision.propensity) == ("cold brew", 0.8166667)
    assert (decision.id, decision.policy, decision.version) == ("38c9a0", IMPORTED, 0)
    assert decision.decided_at == 1536969600.0
    assert seen.features == {
        "FromUrl.timeofday=Morning": 1.0,
        "FromUrl.weather=Sunny": 1.0,
        "FromUrl.age": 30.0,
    }
    assert seen.arms["cappuccino"] == {
        "i.constant": 1.0,
        "i.id=cappuccino": 1.0,
        "j.hot": 1.0,
        "j.kcal": 80.0,
    }
    assert seen.arms["cold brew"] == {"i.constant": 1.0, "i.id=cold brew": 1.0, "j.from=KE": 1.0}
    assert (found.metrics, left_out) == ({"reward": 1.0}, {})


@pytest.mark.parametrize("tags", [(None, "x", "y"), ("x", None, "y"), ("x", "", "y"), ("x", "y", "x")])
def test_actions_without_tags_of_their_own_are_numbered(tmp_path: Path, tags: tuple[str | None, ...]) -> None:
    actions = [{"f": [1]} if tag is None else {"_tag": tag} for tag in tags]
    (found,), _ = read(tmp_path, {**EVENT, "c": {**EVENT["c"], "_multi": actions}})
    assert found.decision.arms == ("action-1", "action-2", "action-3")
    assert found.decision.drawn == "action-2"


@pytest.mark.parametrize("model", ["", "7", "/7", "vowpal", "vowpal/", "vowpal/v7"])
def test_a_model_that_names_no_kind_of_policy_with_a_version_is_imported(tmp_path: Path, model: str) -> None:
    (found,), _ = read(tmp_path, {**EVENT, "VWState": {"m": model}})
    assert (found.decision.policy, found.decision.version) == ("imported", 0)


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        ({"RewardValue": 1.0, "EventId": "38c9a0"}, "dangling observation"),
        ({**EVENT, "_skipLearn": True}, "not learned: _skipLearn"),
        (without("p"), "no distribution"),
        ({**EVENT, "p": [0.9, 0.1]}, "no distribution"),
        ({**EVENT, "p": [0.8166667, 0.5, 0.5]}, "no distribution"),
        ({**EVENT, "p": [0.8166667, -0.1, 0.2833333]}, "no distribution"),
        ({**EVENT, "p": [0, 0.5, 0.5]}, "propensity not in (0, 1]"),
        ({**EVENT, "p": [1.5, 0, 0]}, "propensity not in (0, 1]"),
        ({**EVENT, "_label_probability": 0}, "propensity not in (0, 1]"),
        ({**EVENT, "_label_probability": 1.2}, "propensity not in (0, 1]"),
        ({**EVENT, "_label_probability": 0.5}, "propensity differs from the distribution"),
        ({**EVENT, "p": [float("nan"), 0.5, 0.5]}, "propensity not in (0, 1]"),
        ({**EVENT, "_label_cost": -1.5}, "reward not in [-1, 1]"),
        ({**EVENT, "_label_cost": float("nan")}, "reward is not a number"),
        ({**EVENT, "_label_cost": float("-inf")}, "reward is not a number"),
        (without("_label_cost"), "no label"),
        ({**EVENT, "c": {**EVENT["c"], "_slots": []}}, "several slots"),
    ],
)
def test_a_line_that_cannot_be_evaluated_is_counted(
    tmp_path: Path, event: dict[str, Any], reason: str
) -> None:
    found, left_out = read(tmp_path, EVENT, event, {**EVENT, "EventId": "last"})
    assert ([one.seq for one in found], left_out) == ([1, 2], {reason: 1})


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (b"{", "not JSON"),
        (b"[]", "it is []"),
        (b"[CHECKPOINT 2024-03-01]", "not JSON"),
        ("{}".encode("utf-16"), "not JSON"),
        ({**EVENT, "p": "all"}, "p is 'all'"),
        ({**EVENT, "Timestamp": "noon"}, "Timestamp is 'noon'"),
        ({**EVENT, "Timestamp": None}, "Timestamp is None"),
        ({**EVENT, "Timestamp": 10**400}, "Timestamp is 1000"),
        (without("EventId"), "EventId is missing"),
        ({**EVENT, "EventId": ""}, "EventId is missing"),
        ({**EVENT, "_label_cost": "NaN"}, "minus _label_cost is nan"),
        ({**EVENT, "_label_cost": None}, "_label_cost is missing"),
        (EVENT, "id '38c9a0' already occurred above"),
        ({**EVENT, "_labelIndex": 0}, "_label_Action is 2 and _labelIndex is 0"),
        ({**EVENT, "_label_Action": 4, "_labelIndex": 3}, "_label_Action is 4; there are 3 actions"),
        ({**EVENT, "a": [1, 0, 2]}, "a is [1, 0, 2]"),
        ({**EVENT, "a": [1, 1, 3]}, "a is [1, 1, 3]"),
        ({**EVENT, "c": {}}, "c._multi is missing"),
        ({**EVENT, "pdrop": 0.5}, "pdrop is 0.5 after 0.0"),
        ({**EVENT, "c": {**EVENT["c"], "s": {"age": 10**400}}}, "features must be finite, got inf"),
    ],
)
def test_a_line_that_is_wrong_is_named_and_the_next_is_read(
    tmp_path: Path, event: bytes | dict[str, Any], words: str
) -> None:
    examples, faults = read_faults(tmp_path, EVENT, event, {**EVENT, "EventId": "last"})
    assert [each.decision.id for each in examples] == ["38c9a0", "last"]
    ((named,),) = faults.shown.values()
    assert named.startswith(f"{tmp_path / 'log.dsjson'}, line 2: ")
    assert words in named
    with pytest.raises(ExchangeError, match="line 2: "):
        list(read_dsjson(tmp_path / "log.dsjson", "reward", (-1.0, 1.0), Faults(strict=True)))


def test_the_first_action_is_the_drawn_one_where_none_is_named(tmp_path: Path) -> None:
    event = without("_label_Action")
    del event["_labelIndex"]
    ((found,), _) = read(tmp_path, event)
    assert (found.decision.drawn, found.decision.propensity) == ("cold brew", 0.8166667)


def test_the_place_of_the_drawn_action_names_it_where_its_number_is_missing(tmp_path: Path) -> None:
    event = without("_label_Action") | {"_labelIndex": 2, "_label_probability": 0.0916667}
    ((found,), _) = read(tmp_path, event)
    assert (found.decision.drawn, found.decision.propensity) == ("latte", 0.0916667)


def test_a_time_without_a_zone_is_in_utc_wherever_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        ((found,), _) = read(tmp_path, {**EVENT, "Timestamp": "1970-01-01T01:00:00"})
    time.tzset()
    assert found.decision.decided_at == 3600.0


def test_a_log_that_was_thinned_out_evenly_is_read(tmp_path: Path) -> None:
    found, _ = read(
        tmp_path,
        {**EVENT, "pdrop": 0.5},
        {"RewardValue": 1, "EventId": "x"},
        {**EVENT, "EventId": "y", "pdrop": 0.5},
    )
    assert len(found) == 2


@pytest.mark.parametrize(
    ("printed", "right"),
    [
        ([0.333333, 0.333333, 0.333333], [1 / 3] * 3),
        ([0.666666, 0.333333, 0.0], [2 / 3, 1 / 3, 0.0]),
        ([0.3333, 0.3333, 0.3333], [1 / 3] * 3),
        ([0.333, 0.333, 0.333], [1 / 3] * 3),
        ([0.9667, 0.01667, 0.01667], [0.9667, 0.01667, 0.01667]),
        ([0.6667, 0.16665, 0.16665], [0.6667, 0.16665, 0.16665]),
    ],
)
def test_probabilities_are_a_distribution_to_the_digits_that_were_printed(
    tmp_path: Path, printed: list[float], right: list[float]
) -> None:
    event = without("_label_probability") | {
        "a": [1, 2, 3],
        "p": printed,
        "_label_Action": 1,
        "_labelIndex": 0,
    }
    (alone, named), left_out = read(
        tmp_path, event, {**event, "EventId": "named", "_label_probability": printed[0]}
    )
    assert left_out == {}
    assert alone.decision.probabilities == named.decision.probabilities
    assert alone.decision.probabilities == pytest.approx(right, abs=1e-4)
    assert sum(alone.decision.probabilities) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("p", [[0.333331, 0.333333, 0.333333], [0.33, 0.33, 0.33], [0.333, 0.333, 0.332]])
def test_what_digits_do_not_explain_is_no_distribution(tmp_path: Path, p: list[float]) -> None:
    event = without("_label_probability") | {"p": p}
    assert read(tmp_path, event) == ([], {"no distribution": 1})


def test_arrays_of_actions_and_probabilities_may_be_marked_as_metadata(tmp_path: Path) -> None:
    event = {{"a": "_a", "p": "_p"}.get(name, name): value for name, value in EVENT.items()}
    (marked,), _ = read(tmp_path, event)
    (plain,), _ = read(tmp_path, EVENT)
    assert marked == plain


def test_a_byte_order_mark_blank_lines_and_carriage_returns_change_nothing(tmp_path: Path) -> None:
    (plain,), _ = read(tmp_path, EVENT)
    line = json.dumps(EVENT).encode()
    assert read(tmp_path, b"\xef\xbb\xbf" + line + b"\r", b"\r", b"  ", b"") == ([plain], {})


def test_of_an_id_the_first_line_that_can_be_used_counts(tmp_path: Path) -> None:
    without_cost = without("_label_cost")
    (example,), left_out = read(tmp_path, without_cost, EVENT, {**EVENT, "_label_cost": 1})
    assert example.metrics == {"reward": 1.0}
    assert left_out == {"no label": 1, "duplicate": 1}
