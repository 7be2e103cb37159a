"""Our estimates and choices against those of obp, frozen by `benchmarks/obp_golden.py`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from armwise.feedback.ope import ESTIMATORS, Sample
from armwise.feedback.ope.estimators import clipped_ips, dros, switch_dr
from armwise.feedback.ope.shrinkage import clip_weights, select_parameter, shrunk, switch_weights, try_all
from benchmarks.obp_golden import CASES, CLIPS, SHRINKAGES, Case, checksum, invent

GOLDEN = json.loads((Path(__file__).parent / "golden" / "obp.json").read_text())
NAMED = [pytest.param(case, id=case.name) for case in CASES]


def of(case: Case) -> tuple[Sample, dict[str, Any]]:
    arrays, frozen = invent(case), GOLDEN[case.name]
    assert checksum(arrays) == pytest.approx(frozen["checksum"], rel=1e-12), "the logs differ: freeze again"
    return Sample(**arrays), frozen


def test_every_frozen_case_is_compared() -> None:
    assert {case.name for case in CASES} == set(GOLDEN)


@pytest.mark.parametrize("case", NAMED)
def test_the_values_are_those_of_obp(case: Case) -> None:
    sample, frozen = of(case)
    plain = {name: value for name, value in frozen["values"].items() if not isinstance(value, list)}
    assert plain == {name: pytest.approx(ESTIMATORS[name](sample).value, abs=1e-9) for name in plain}
    assert set(plain) >= {"ips", "snips", "dm", "dr", "sndr"}
    assert ("replay" in plain) == (case.sure and case.alike)


@pytest.mark.parametrize("case", NAMED)
def test_the_values_at_each_parameter_are_those_of_obp(case: Case) -> None:
    sample, frozen = of(case)
    ours = {
        "clipped_ips": [clipped_ips(sample, clip=clip).value for clip in CLIPS],
        "switch_dr": [switch_dr(sample, threshold=clip).value for clip in CLIPS],
        "dros": [dros(sample, shrinkage=shrinkage).value for shrinkage in SHRINKAGES],
    }
    for name, values in ours.items():
        assert values == pytest.approx(frozen["values"][name], abs=1e-9)


@pytest.mark.parametrize("rule", ["mse", "mse_bound", "slope"])
@pytest.mark.parametrize("case", NAMED)
def test_the_rules_choose_what_obp_chooses(case: Case, rule: Any) -> None:
    sample, frozen = of(case)
    weight, prediction = sample.weight, sample.prediction
    families = {
        "clipped_ips": (clip_weights, sample.reward, None, CLIPS),
        "switch_dr": (switch_weights, prediction.residual, prediction.expected, CLIPS),
        "dros": (shrunk, prediction.residual, prediction.expected, SHRINKAGES),
    }
    for name, (shrink, residual, expected, grid) in families.items():
        trials = try_all(shrink, weight, residual, expected, np.array(grid))
        ours, theirs = select_parameter(trials, weight, rule), frozen["chosen"][rule][name]
        # Where two parameters give one estimate, either may be chosen.
        at = dict(zip(grid, trials.mean, strict=True))
        assert at[ours] == pytest.approx(at[theirs], abs=1e-9), f"{name}: {ours} instead of {theirs}"
