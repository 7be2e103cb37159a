"""The tables of a portfolio: each figure stands in its row and its column."""

from dataclasses import replace
from io import StringIO

from rich.console import Console
from rich.table import Table

from armwise.agent.lab.offline.portfolio_report import (
    Budgeted,
    Known,
    MeanScores,
    PortfolioReport,
    ScoreBound,
    notes,
    tables,
)

CHOSEN = MeanScores(120, (0.5, 0.6), (0.4, 0.45), ((0.05, 0.15), (0.1, 0.2)), 0.51, 0.91)
HELD_OUT = MeanScores(80, (0.48, 0.58), (0.38, 0.43), ((0.04, 0.16), (0.09, 0.21)), 0.49, 0.89)
OTHER = MeanScores(80, (0.47, 0.54), (0.36, 0.41), None, 0.46, 0.85)

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
    splits=(HELD_OUT, OTHER),
    manifest={},
)


def rows(table: Table) -> list[list[str]]:
    """Return the cells of the rows of a table, without its header."""
    output = StringIO()
    Console(file=output, width=200).print(table)
    lines = [line for line in output.getvalue().splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]


def test_values_by_size_are_those_of_both_parts_and_end_with_the_best_arm_and_the_oracle() -> None:
    assert rows(tables(REPORT)[0]) == [
        ["1", "words", "0.500", "0.400", "0.480", "0.380", "+0.100 [+0.040, +0.160]"],
        ["2", "mini", "0.600", "0.450", "0.580", "0.430", "+0.150 [+0.090, +0.210]"],
        ["", "best single arm", "0.510", "", "0.490", "", ""],
        ["", "oracle of all 7", "0.910", "", "0.890", "", ""],
    ]


def test_values_by_data_set_are_of_the_whole_portfolio_and_end_with_all_of_them() -> None:
    lead = "+0.150 [+0.090, +0.210]"
    whole = ["80", "0.580", "0.430", lead, "0.490", "0.890"]
    assert rows(tables(REPORT)[1]) == [
        ["nq", "30", "0.580", "0.430", lead, "0.310", "0.710"],
        ["squad", "50", *whole[1:]],
        ["all", *whole],
    ]
    alone = replace(REPORT, datasets={"nq": HELD_OUT})
    assert rows(tables(alone)[1]) == [["all", *whole]]


def test_values_by_budget_are_chosen_held_out_and_by_average() -> None:
    assert rows(tables(REPORT)[2]) == [["1.5", "1", "0.500", "0.480", "0.380"]]
    assert len(tables(replace(REPORT, budgets=()))) == 3


def test_splits_have_their_mean_spread_least_and_most() -> None:
    assert rows(tables(REPORT)[3]) == [
        ["portfolio", "0.560", "0.020", "0.540", "0.580"],
        ["by average", "0.420", "0.010", "0.410", "0.430"],
        ["lead", "0.140", "0.010", "0.130", "0.150"],
        ["best single arm", "0.475", "0.015", "0.460", "0.490"],
        ["oracle", "0.870", "0.020", "0.850", "0.890"],
    ]
    assert len(tables(replace(REPORT, splits=(HELD_OUT,)))) == 3


def test_titles_begin_at_the_left() -> None:
    assert {table.title_justify for table in tables(REPORT)} == {"left"}


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
