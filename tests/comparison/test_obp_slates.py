"""Our estimates of slates and by categories against those of obp (`benchmarks/obp_slates_golden.py`)."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from armwise.feedback.arrays import take_drawn
from armwise.feedback.exchange import slates
from armwise.feedback.ope import Sample, mips
from benchmarks.obp_slates_golden import CASES, CATEGORIES, checksum, invent, invent_categories

GOLDEN = json.loads((Path(__file__).parent / "golden" / "obp_slates.json").read_text())


def test_every_frozen_case_is_compared() -> None:
    assert [tuple(one["case"]) for one in GOLDEN["slates"]] == CASES
    assert [(*one["case"][:3], tuple(one["case"][3])) for one in GOLDEN["mips"]] == CATEGORIES


@pytest.mark.parametrize("frozen", GOLDEN["slates"], ids=lambda one: str(one["case"]))
def test_the_values_of_slates_are_those_of_obp(frozen: dict[str, Any]) -> None:
    arrays = invent(frozen["case"])
    assert checksum(arrays) == pytest.approx(frozen["checksum"], rel=1e-12), "the logs differ: freeze again"
    ours = slates.Slates.from_arrays(**arrays)
    for name, value in frozen["values"].items():
        assert slates.SLATE_ESTIMATORS[name](ours).value == pytest.approx(value, abs=1e-9), name
    for name, value in frozen["normalized"].items():
        found = getattr(slates, name)(ours, normalized=True)
        assert found.value == pytest.approx(value, abs=1e-9), name
    assert frozen["values"].keys() == {"sips", "iips", "rips", "cascade_dr"}
    assert frozen["normalized"].keys() == {"sips", "iips", "rips"}


@pytest.mark.parametrize("frozen", GOLDEN["mips"], ids=lambda one: str(one["case"]))
def test_the_value_by_categories_is_that_of_obp(frozen: dict[str, Any]) -> None:
    arrays = invent_categories(frozen["case"])
    assert checksum(arrays) == pytest.approx(frozen["checksum"], rel=1e-12), "the logs differ: freeze again"
    n, drawn = len(arrays["reward"]), arrays["drawn"]
    sample = Sample(
        take_drawn(arrays["p_log"], drawn),
        drawn,
        arrays["reward"],
        arrays["p_target"],
        p_log=arrays["p_log"],
        categories=np.broadcast_to(arrays["features"], (n, *arrays["features"].shape)),
    )
    n_features = arrays["features"].shape[1]
    assert mips(sample, features=tuple(range(n_features))).value == pytest.approx(frozen["mips"], abs=1e-9)
