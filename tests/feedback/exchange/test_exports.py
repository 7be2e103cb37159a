"""Exports of other systems: each gives the right sums, and a damaged one names what is left out of them."""

from pathlib import Path

import pytest

from tests.feedback.exchange.exports import EXPORTS, N
from tests.feedback.exchange.traffic import read


@pytest.mark.parametrize("name", EXPORTS)
def test_an_export_counts_what_was_decided_once(tmp_path: Path, name: str) -> None:
    export = EXPORTS[name]
    examples, log = read(export.write(tmp_path), export.form, **export.options)
    assert log.faults.counts == export.left_out
    assert [one.decision.drawn for one in examples] == [export.arms[at % len(export.arms)] for at in range(N)]
    assert [one.metrics.get("reward") for one in examples] == list(export.rewards)
    assert [one.cost.usd for one in examples] == pytest.approx([export.usd] * N)
    assert {(one.cost.prompt_tokens, one.cost.completion_tokens) for one in examples} == {export.tokens}
    if export.questions is not None:
        assert [one.decision.context.question for one in examples] == [
            f"{export.questions}{at}" for at in range(N)
        ]
    assert len({one.decision.id for one in examples}) == N
