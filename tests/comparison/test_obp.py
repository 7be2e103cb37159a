"""Our estimates and choices against those of obp, frozen by `benchmarks/obp_golden.py`."""

import json
from pathlib import Path
from typing import Any

import pytest

from armwise.feedback.ope import Sample
from armwise.feedback.ope.estimators import switch_dr
from benchmarks.obp_golden import CASES, CLIPS, Case, checksum, invent

GOLDEN = json.loads((Path(__file__).parent / "golden" / "obp.json").read_text())
NAMED = [pytest.param(case, id=case.name) for case in CASES]


def of(case: Case) -> tuple[Sample, dict[str, Any]]:
    arrays, frozen = invent(case), GOLDEN[case.name]
    assert checksum(arrays) == pytest.approx(frozen["checksum"], rel=1e-12), "the logs differ: freeze again"
    return Sample(**arrays), frozen


def test_every_frozen_case_is_compared() -> None:
    assert {case.name for case in CASES} == set(GOLDEN)


@pytest.mark.parametrize("case", NAMED)
def test_the_values_at_each_threshold_are_those_of_obp(case: Case) -> None:
    sample, frozen = of(case)
    ours = [switch_dr(sample, threshold=clip).value for clip in CLIPS]
    assert ours == pytest.approx(frozen["values"]["switch_dr"], abs=1e-9)
