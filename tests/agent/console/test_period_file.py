"""The report of a file: figures are those of the rows; what cannot be said is not shown as an estimate."""

import gzip
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from armwise.agent.console.period import NothingServedError, Period, measure_span, read_file_period
from armwise.agent.console.period_report import list_statements, write_page, write_text
from armwise.agent.reporting import write_dollars
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
    rows = simulated(400)
    period = whole(written(rows))
    assert (period.decisions, period.rated) == (400, sum(bool(one.metrics) for one in rows))
    assert period.spent_usd == pytest.approx(sum(one.cost.usd for one in rows))
    assert {arm.name: arm.decisions for arm in period.arms} == Counter(one.decision.drawn for one in rows)
    assert period.source.endswith("log.jsonl.gz")
    assert (period.statements.doubt, period.statements.reference) == ("", "dear")
    assert [one.about for one in list_statements(period)] == ["dollars", "quality"]


def test_prices_are_in_one_unit_and_seconds_that_are_not_on_record_are_not_0(
    written: Callable[..., Path],
) -> None:
    rows = [replace(one, cost=Cost(usd=one.cost.usd)) for one in simulated(400)]
    period = whole(written(rows))
    assert [arm.seconds for arm in period.arms] == [None] * 3
    cells = re.findall(r"<td>(\$[^<]*)</td>", write_page(period, "armwise report"))
    prices = [write_dollars(1000.0 * arm.usd) for arm in period.arms if arm.usd is not None]
    assert cells[: len(prices)] == prices


def test_labels_and_rows_outside_of_the_period_are_left_out(written: Callable[..., Path]) -> None:
    """An end is left out, a begin is not; what a caller named is a decision, and in no comparison."""
    rows = simulated(40)
    rows[3] = replace(rows[3], decision=replace(rows[3].decision, policy="labels"))
    rows[4] = replace(rows[4], decision=replace(rows[4].decision, mode=Mode.FORCED))
    path = written(rows)
    period = read_file_period(path, BEGIN + 60.0 * 3, BEGIN + 60.0 * 11, quietly)
    assert (period.decisions, period.explored) == (7, 6)
    assert measure_span(path) == (BEGIN + 60.0, BEGIN + 60.0 * 40)
    with pytest.raises(NothingServedError, match=r"no decision was made from .*log\.jsonl\.gz has some from"):
        read_file_period(path, 0.0, BEGIN, quietly)
    with pytest.raises(NothingServedError, match="it has no decision"):
        measure_span(written([], "empty.jsonl"))


def test_a_log_without_propensities_makes_no_comparison(written: Callable[..., Path]) -> None:
    rows = [replace(one, decision=replace(one.decision, probabilities=())) for one in simulated(300, seed=2)]
    period = whole(written(rows))
    assert (period.without, period.statements.all) == (300, ())
    for said in (write_page(period, "armwise report"), write_text(period)):
        assert "It has no propensities." in said
        assert "saved per" not in said


def test_rows_without_a_propensity_are_in_no_comparison(written: Callable[..., Path]) -> None:
    rows = simulated(600, seed=3)
    some = [
        replace(one, decision=replace(one.decision, probabilities=())) if one.seq % 3 == 0 else one
        for one in rows
    ]
    period, known = whole(written(some)), whole(written([one for one in rows if one.seq % 3], "known.jsonl"))
    assert period.without == 200
    assert period.statements.all == known.statements.all
    assert "200 decisions have no logged propensity" in write_page(period, "armwise report")


@pytest.mark.slow
def test_a_report_of_wrong_propensities_says_so_and_states_nothing_else(written: Callable[..., Path]) -> None:
    third = (1 / 3, 1 / 3, 1 / 3)
    rows = [
        replace(one, decision=replace(one.decision, probabilities=third)) for one in simulated(800, seed=4)
    ]
    period = whole(written(rows))
    doubt = period.statements.doubt
    assert "Every propensity on record is 1" in doubt
    page, text = write_page(period, "armwise report"), write_text(period)
    assert doubt in text.splitlines()[2]
    assert 'class="doubt"' in page
    for said in (page, text):
        assert "saved" not in said.replace("served and saved", "").replace("is saved", "")


@pytest.mark.slow
def test_a_file_is_read_packed_or_not_and_its_texts_are_escaped(written: Callable[..., Path]) -> None:
    path = written(simulated(60))
    plain = path.with_name("<b>.jsonl")
    plain.write_bytes(gzip.decompress(path.read_bytes()))
    page = write_page(whole(plain), "armwise report")
    assert "&lt;b&gt;.jsonl" in page
    assert "<b>.jsonl" not in page
    assert "A file does not record changes." in page


def test_what_could_still_get_feedback_when_a_file_was_written_is_not_compared_yet(tmp_path: Path) -> None:
    decided = [row(seq, seq % 3, (0.2, 0.6, 0.2), 1.0) for seq in range(1, 11)]
    path, rule = tmp_path / "log.jsonl", make_rule("reward", (0.0, 1.0))
    with appearing(path) as file:
        write_export(decided, file, Header(written_at=0.0, reward=rule, settled=BEGIN + 60.0 * 7))
    period = read_file_period(path, BEGIN, BEGIN + 1000.0, quietly)
    assert (period.decisions, period.n_open, period.statements.decisions) == (10, 4, 6)
