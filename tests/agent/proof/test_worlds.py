"""What is said of savings and quality is true, read as it is printed, in each simulated world."""

from math import inf

import pytest

from benchmarks.receipt_claims import BEST, DOLLARS, QUALITY, Claim, look_at_world, read
from benchmarks.receipt_worlds import WORLDS

SILENT = {
    DOLLARS: {"cached conversations"},
    QUALITY: {"one user rates most"},
}
"""Worlds in which nothing can be said."""


@pytest.mark.slow
@pytest.mark.parametrize("name", WORLDS)
def test_no_sentence_is_false_in_any_world(name: str) -> None:
    """The benchmark looks at many more fortnights."""
    found = look_at_world(WORLDS[name], 6000, range(4))
    assert {kind: looks.example for kind, looks in found.items() if looks.false} == {}
    for kind, worlds in SILENT.items():
        if name != "a cache that all sessions share":  # which is seen sooner or later
            assert (found[kind].stated == 0) == (name in worlds)


@pytest.mark.parametrize(
    ("text", "claims"),
    [
        ("At least $1,014.06 saved per 1,000 of the same requests", [Claim(DOLLARS, 1014.06, inf, "same")]),
        ("at most $4.70 more per 1,000", [Claim(DOLLARS, -4.7, inf, "all")]),
        ("cost at least $0.012 more (estimate: $0.02 more)", [Claim(DOLLARS, -inf, -0.012, "all")]),
        (
            "Of 90 answers rated in time, the mean reward (thumb) is 71.0 of 100. That is 0.4 points of 100 "
            "lower than ... (range: 3.4 lower to 3.2 higher).",
            [Claim(QUALITY, -3.4, 3.2, "in time")],
        ),
        (
            "Of 9 answers rated in time, the mean reward (thumb, where silence counts as 1) "
            "+1.2 points at worst",
            [Claim(QUALITY, 1.2, inf, "reward")],
        ),
        ("the quality is higher (range: 1.0 higher to 3.2 higher)", [Claim(QUALITY, 1.0, 3.2, "all")]),
        (
            "the mean reward of rated answers of small is at least 2.0 points of 100 higher",
            [Claim(BEST, 2.0, of="ratings", arm="small")],
        ),
        ("the quality is higher (range: equal to 3.2 higher)", [Claim(QUALITY, 0.0, 3.2, "all")]),
        ("answers rated in time as good, -1.9 points at worst", [Claim(QUALITY, -1.9, of="in time")]),
        ("No saving is certain yet", []),
    ],
)
def test_a_sentence_claims_what_it_says(text: str, claims: list[Claim]) -> None:
    """What it does not restrict to some requests or answers, it says of all."""
    assert [*read(text)] == claims


@pytest.mark.parametrize("text", ["It may save $5", "rated 3.0 points higher"])
def test_a_dollar_or_a_point_that_cannot_be_read_fails(text: str) -> None:
    with pytest.raises(ValueError, match=r"cannot read"):
        [*read(text)]
