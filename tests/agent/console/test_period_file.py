"""The report of a file: figures are those of the rows; what cannot be said is not shown as an estimate."""

import gzip
from collections.abc import Callable
from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pytest

from armwise.agent.console.period import (
    AtEqualQuality,
    CurvePoint,
    NothingServedError,
    Period,
    Turns,
    cheapest_mix,
    least_propensity,
    measure_span,
    read_file_period,
)
from armwise.agent.console.period_report import unknowns, write_page, write_text
from armwise.feedback.decisions import concatenate, tabulate
from armwise.feedback.events import Context, Cost, Decision, Example, Mode
from armwise.feedback.exchange import make_rule
from armwise.feedback.jsonl import Header, appearing, write_export
from tests.agent.evaluation.logged import quietly

ARMS = ("cheap", "mid", "dear")

RIGHT, USD = (0.4, 0.7, 0.72), (0.001, 0.004, 0.02)

BEGIN = 1_700_000_000.0


def row(seq: int, drawn: int, p: tuple[float, ...], reward: float | None, kind: str = "faq") -> Example:
    decision = Decision(
        f"d{seq}",
        Context(f"question <b>{seq}</b>?", {f"kind={kind}": 1.0}),
        ARMS,
        p,
        ARMS[drawn],
        "imported",
        0,
        decided_at=BEGIN + 60.0 * seq,
    )
    metrics = {} if reward is None else {"reward": reward}
    return Example(seq, decision, Cost(usd=USD[drawn], llm_s=1.0 + drawn), metrics)


def simulated(n: int, p: tuple[float, ...] = (0.2, 0.6, 0.2), seed: int = 0) -> list[Example]:
    """Draws by a policy that sees no question, one of ten without a reward."""
    rng = np.random.default_rng(seed)
    made = []
    for seq in range(1, n + 1):
        drawn = int(rng.choice(3, p=p))
        reward = float(rng.random() < RIGHT[drawn]) if rng.random() < 0.9 else None
        made.append(row(seq, drawn, p, reward, ("faq", "code")[seq % 2]))
    return made


@pytest.fixture
def written(tmp_path: Path) -> Callable[[list[Example]], Path]:
    def write(examples: list[Example], name: str = "log.jsonl.gz") -> Path:
        path = tmp_path / name
        with appearing(path) as file:
            write_export(examples, file, Header(written_at=0.0, reward=make_rule("reward", (0.0, 1.0))))
        return path

    return write


def whole(path: Path) -> Period:
    first, last = measure_span(path)
    return read_file_period(path, first, last + 1.0, quietly)


def test_figures_are_those_of_the_rows(written: Callable[..., Path]) -> None:
    """Savings are those of the weights, on the answers whatever their reward."""
    rows = simulated(400)
    period = whole(written(rows))
    rewards = [one.metrics["reward"] for one in rows if one.metrics]
    assert period.whole.decisions == 400
    assert period.whole.rewarded == period.rewarded == len(rewards)
    assert period.whole.earned is not None
    assert period.whole.earned[0] == pytest.approx(np.mean(rewards))
    dear = next(one for one in period.equal if one.name == "always dear")
    mean = np.mean([one.cost.usd for one in rows])
    assert dear.saved == pytest.approx(USD[2] - mean)
    assert period.feature == "kind"
    assert {kind.name: kind.n for kind in period.kinds} == {"faq": 200, "code": 200}
    assert period.source.endswith("log.jsonl.gz")
    assert period.doubt == ""


def test_what_a_file_has_of_before_is_compared_with_the_period(written: Callable[..., Path]) -> None:
    """As many minutes before; the period of a whole file has nothing before it."""
    rows = simulated(300)
    path = written(rows)
    period = read_file_period(path, BEGIN + 60.0 * 201, BEGIN + 60.0 * 301, quietly)
    assert period.before is not None
    now, before = rows[200:300], rows[100:200]
    earned = [np.mean([one.metrics["reward"] for one in part if one.metrics]) for part in (now, before)]
    paid = [np.mean([one.cost.usd for one in part]) for part in (now, before)]
    assert period.before.lead == pytest.approx(earned[0] - earned[1])
    assert period.before.saved == pytest.approx(paid[1] - paid[0])
    assert whole(path).before is None


def test_labels_and_rows_outside_of_the_period_are_left_out(written: Callable[..., Path]) -> None:
    """An end is left out, a begin is not; what a caller named is a decision, and in no comparison."""
    rows = simulated(40)
    rows[3] = replace(rows[3], decision=replace(rows[3].decision, policy="labels"))
    rows[4] = replace(rows[4], decision=replace(rows[4].decision, mode=Mode.FORCED))
    path = written(rows)
    period = read_file_period(path, BEGIN + 60.0 * 3, BEGIN + 60.0 * 11, quietly)
    assert (period.whole.decisions, period.whole.explored) == (7, 6)
    assert measure_span(path) == (BEGIN + 60.0, BEGIN + 60.0 * 40)
    with pytest.raises(NothingServedError, match=r"no decision was made from .*log\.jsonl\.gz has some from"):
        read_file_period(path, 0.0, BEGIN, quietly)
    with pytest.raises(NothingServedError, match="it has no decision"):
        measure_span(written([], "empty.jsonl"))


@pytest.mark.slow
def test_the_curve_holds_the_truth_and_a_better_cheaper_arm_is_found(written: Callable[..., Path]) -> None:
    """A mid arm as good as the dear one costs a fifth: beside the dear one, equal quality is shown."""
    period = whole(written(simulated(6000, (0.05, 0.9, 0.05), seed=1)))
    truth = dict(zip(ARMS, zip(RIGHT, USD, strict=True), strict=True))
    assert [one.name for one in period.curve] == [None, "cheap", "dear", "mid"]
    for one in period.curve[1:]:
        right, usd = truth[str(one.name)]
        assert one.reward_interval[0] <= right <= one.reward_interval[1]
        assert one.cost_interval[0] <= usd + 1e-9
        assert usd <= one.cost_interval[1] + 1e-9
        assert one.cost == pytest.approx(usd)
    served = period.curve[0]
    assert served.cost == pytest.approx(np.dot((0.05, 0.9, 0.05), USD), rel=0.1)
    beside = {one.name: one for one in period.equal}
    assert beside["always cheap"].verdict == "it is cheaper and worse"
    assert beside["always cheap"].saved == pytest.approx(USD[0] - served.cost)
    assert beside["always dear"].saved_low > 0.0
    assert {"always cheap", "always dear", "always mid"} < beside.keys()
    mix = next(one for one in period.equal if len(one.shares) == 2)
    assert mix.name.endswith(", at random")
    assert abs(mix.lead) < 0.01, "the mix was chosen to earn as much"
    parts = [(share, beside[f"always {arm}"]) for arm, share in mix.shares]
    for name in ("lead", "low", "high", "saved", "saved_low", "saved_high"):
        weighted = sum(share * getattr(one, name) for share, one in parts)
        assert getattr(mix, name) == pytest.approx(weighted), "it was chosen after looking"


def test_a_forecast_is_of_when_the_cheaper_one_is_shown_to_be_as_good_within_the_margin(
    written: Callable[..., Path],
) -> None:
    found = [one for one in whole(written(simulated(1500, seed=1))).equal if one.more is not None]
    assert found
    for one in found:
        lead, half = one.lead if one.saved > 0.0 else -one.lead, (one.high - one.low) / 2.0
        least, most = one.more or (0, 0)
        if lead + one.margin > 0.0:
            assert least <= one.n * ((half / (lead + one.margin)) ** 2 - 1.0) <= (most or inf)
    assert any(-one.margin < (one.lead if one.saved > 0.0 else -one.lead) < one.margin for one in found)


@pytest.mark.slow
def test_a_mix_is_compared_on_turns_that_had_both_arms(
    written: Callable[..., Path],
) -> None:
    rows = simulated(3000, seed=2)
    for at in range(0, 3000, 3):
        one = rows[at].decision
        if one.drawn != "mid":
            without = replace(one, arms=("cheap", "dear"), probabilities=(0.5, 0.5))
            rows[at] = replace(rows[at], decision=without)
    beside = {one.name: one for one in whole(written(rows)).equal}
    mix = next(one for one in beside.values() if len(one.shares) == 2)
    assert [arm for arm, _ in mix.shares] == ["cheap", "mid"]
    assert mix.n == beside["always mid"].n < beside["always cheap"].n
    width = sum(
        share * (beside[f"always {arm}"].high - beside[f"always {arm}"].low) for arm, share in mix.shares
    )
    assert mix.high - mix.low > width, "cheap is compared on fewer turns, with an error of their own"


def test_the_least_propensity_is_that_of_decisions_with_a_choice(written: Callable[..., Path]) -> None:
    """Of arms that could be drawn, by decisions that had a choice."""
    rows = simulated(120, (0.2, 0.6, 0.2))
    rows[7] = row(8, 0, (0.125, 0.875, 0.0), 1.0)
    alone = replace(rows[8].decision, arms=("mid",), probabilities=(1.0,), drawn="mid")
    rows[8] = replace(rows[8], decision=alone)
    path = written(rows)
    decisions = concatenate([*tabulate(rows, make_rule("reward", (0.0, 1.0)))])
    turns = Turns(decisions)
    assert least_propensity(decisions) == 0.125
    period = whole(path)
    assert period.whole == turns.comparison(turns.names, 0.125, (0.0, 1.0))
    assert period.whole == turns.comparison(turns.names, 0.05, (0.0, 1.0)), "each has its distribution"


def point(name: str | None, reward: float, cost: float) -> CurvePoint:
    return CurvePoint(name, 9, reward, (0.0, 1.0), cost, (0.0, 9.0))


def test_the_mix_is_the_cheapest_of_all_that_earn_as_much() -> None:
    arms = [point("a", 0.2, 1.0), point("b", 0.6, 2.0), point("c", 0.8, 9.0), point("d", 0.9, 4.0)]
    assert cheapest_mix(point(None, 0.5, 3.0), arms) == (("a", 0.25), ("b", 0.75))
    assert cheapest_mix(point(None, 0.75, 3.0), arms) == (("b", 0.5), ("d", 0.5))
    assert cheapest_mix(point(None, 0.95, 3.0), arms) is None
    assert cheapest_mix(point(None, 0.2, 3.0), arms) is None, "a single arm earns as much"


BESIDE = AtEqualQuality("always a", 90, 0.0, -0.02, 0.02, 0.5, 0.1, 0.9, 0.02, 300)


@pytest.mark.parametrize(
    ("fields", "verdict"),
    [
        ({}, "what was served is cheaper and as good"),
        ({"low": -0.0201}, "not known"),
        ({"saved_low": 0.0}, "not known"),
        ({"saved_low": -0.9, "saved_high": -0.1}, "it is cheaper and as good"),
        ({"saved_low": -0.9, "saved_high": -0.1, "high": 0.0201}, "not known"),
        ({"saved_low": -0.9, "saved_high": 0.0}, "not known"),
        ({"saved_low": -0.9, "saved_high": -0.1, "low": 0.001, "high": 0.03}, "it is cheaper and worse"),
        ({"low": -0.2, "high": -0.1}, "it is dearer and better"),
    ],
)
def test_equal_quality_is_said_where_both_intervals_allow(fields: dict[str, float], verdict: str) -> None:
    assert replace(BESIDE, **fields).verdict == verdict


def test_a_log_without_propensities_shows_raw_means_and_no_estimate(written: Callable[..., Path]) -> None:
    rows = [replace(one, decision=replace(one.decision, probabilities=())) for one in simulated(300, seed=2)]
    period = whole(written(rows))
    assert period.without == 300
    assert (period.whole.uniform, period.whole.arms, period.curve, period.equal) == (None, (), (), ())
    raw = {one.name: (one.n, one.reward) for one in period.raw}
    for arm in ARMS:
        earned = [one.metrics["reward"] for one in rows if one.decision.drawn == arm and one.metrics]
        assert raw[arm] == (len(earned), pytest.approx(np.mean(earned)))
    page, text = write_page(period, "armwise report"), write_text(period)
    for said in (page, text):
        assert "No decision has a logged propensity" in said
        assert "It is unknown what another choice" in said
        assert "would earn" not in said.replace("no estimates of what it would earn", "")
    assert "Without a propensity: raw means" in page
    assert f"{period.rewarded} with feedback" in text
    assert unknowns(period) == ["what other choices would have earned: log the probability of each draw."]


def test_rows_without_a_propensity_are_in_no_comparison(written: Callable[..., Path]) -> None:
    rows = simulated(300, seed=3)
    some = [
        replace(one, decision=replace(one.decision, probabilities=())) if one.seq % 3 == 0 else one
        for one in rows
    ]
    period, known = whole(written(some)), whole(written([one for one in rows if one.seq % 3], "known.jsonl"))
    assert period.without == 100
    assert [(one.name, one.value, one.lead) for one in period.whole.arms] == [
        (one.name, one.value, one.lead) for one in known.whole.arms
    ]
    assert "100 decisions have no logged propensity and are excluded from comparisons." in write_text(period)


@pytest.mark.slow
def test_a_report_of_wrong_propensities_says_so_first(written: Callable[..., Path]) -> None:
    third = (1 / 3, 1 / 3, 1 / 3)
    rows = [
        replace(one, decision=replace(one.decision, probabilities=third)) for one in simulated(800, seed=4)
    ]
    period = whole(written(rows))
    assert period.doubt.startswith("The logged propensities fail the audit: Every propensity on record is 1")
    assert "The logged propensities fail the audit" in write_text(period).splitlines()[2]
    assert 'class="doubt"' in write_page(period, "armwise report")


def test_arms_that_had_no_chance_are_not_compared_there(written: Callable[..., Path]) -> None:
    p = (0.5, 0.5, 0.0)
    rows = [row(seq, seq % 2, p, 1.0) for seq in range(1, 21)]
    rows += [row(seq, seq % 3, (0.25, 0.25, 0.5), 0.0) for seq in range(21, 41)]
    dear = next(one for one in whole(written(rows)).whole.arms if one.name == "dear")
    assert dear.n == 20


@pytest.mark.slow
def test_a_file_is_read_packed_or_not_and_its_texts_are_escaped(written: Callable[..., Path]) -> None:
    path = written(simulated(60))
    plain = path.with_name("<b>.jsonl")
    plain.write_bytes(gzip.decompress(path.read_bytes()))
    page = write_page(whole(plain), "armwise report")
    assert "&lt;b&gt;.jsonl" in page
    assert "<b>.jsonl" not in page
    assert "A file does not record changes." in page


def test_what_could_still_get_feedback_when_a_file_was_written_earns_nothing_yet(tmp_path: Path) -> None:
    decided = [row(seq, seq % 3, (0.2, 0.6, 0.2), 1.0) for seq in range(1, 11)]
    path, rule = tmp_path / "log.jsonl", make_rule("reward", (0.0, 1.0))
    with appearing(path) as file:
        write_export(decided, file, Header(written_at=0.0, reward=rule, settled=BEGIN + 60.0 * 7))
    period = read_file_period(path, BEGIN, BEGIN + 1000.0, quietly)
    assert (period.whole.decisions, period.whole.rewarded, period.whole.n_open) == (10, 6, 4)
