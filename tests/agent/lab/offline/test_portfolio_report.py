"""The tables of a portfolio: each figure stands in its row and its column."""

from dataclasses import replace

from armwise.agent.lab.offline.portfolio_report import (
    Budgeted,
    Known,
    MeanScores,
    PortfolioReport,
    ScoreBound,
    notes,
)

CHOSEN = MeanScores(120, (0.5, 0.6), (0.4, 0.45), ((0.05, 0.15), (0.1, 0.2)), 0.51, 0.91)
HELD_OUT = MeanScores(80, (0.48, 0.58), (0.38, 0.43), ((0.04, 0.16), (0.09, 0.21)), 0.49, 0.89)

REPORT = PortfolioReport(
    measure="R@4",
    algorithm="greedy",
    pool=7,
    arms=("words", "mini"),
    average=("mini", "large"),
    chosen=CHOSEN,
    held_out=HELD_OUT,
    datasets={
        "nq": replace(HELD_OUT, questions=30, single=0.31, oracle=0.71),
        "squad": replace(HELD_OUT, questions=50),
    },
    cost="steps",
    spent=3.0,
    budgets=(Budgeted(1.5, ("words",), 0.5, 0.48, 0.38),),
    bound=None,
    known=None,
    splits=(HELD_OUT,),
    manifest={},
)


def test_what_is_not_known_is_noted() -> None:
    known = Known(0.25, ("large", "tiny"), 1200, (40, 30), 0.31, 0.81)
    share, questions, arms = notes(replace(REPORT, known=known))
    assert share.startswith("25.0% of the scores are known; ")
    assert "R@4 of the portfolio is 0.310 if they are all 0 and 0.810 if they are all 1" in share
    assert share.endswith("Known scores behind each pick: words 40, mini 30.")
    assert questions == "1,200 questions without any known score are left out."
    assert arms == "Arms without any known score are left out: large, tiny."
    assert notes(REPORT) == []
    assert notes(replace(REPORT, known=replace(known, share=1.0))) == [questions, arms]


def test_what_a_sample_proves_is_said_and_that_it_proves_nothing() -> None:
    """An error as large as the factor leaves a score of 0, which every portfolio has."""
    bound = ScoreBound(factor=0.632, error=0.2, delta=0.05, questions=120, tolerable=0.05, needed=9_000)
    (said,) = notes(replace(REPORT, bound=bound))
    assert (
        "is at least 0.632 of the best possible less 0.200: it was chosen on 120 questions; an error" in said
    )
    (said,) = notes(replace(REPORT, bound=replace(bound, error=0.632)))
    assert said == "120 questions prove nothing of R@4 on new ones; an error of 0.05 would take 9,000."
