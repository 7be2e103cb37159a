"""The report of an evaluation: a table for the terminal, JSON, and HTML."""

from collections.abc import Iterator, Mapping
from typing import Any, Self

from rich import box
from rich.table import Table
from rich.text import Text

from agent.evaluation.request import EvaluationRequest
from agent.evaluation.results import CandidateResult, ReportSection
from agent.reporting import counted

NO_ROW = "no decision to be judged by"
"""Shown for a candidate without rows."""

BIASED = (
    "biased, and the interval does not hold the bias: a difference to what was served may be none, although "
    "the interval leaves out zero. Compare with ips, snips or dr before you act on it."
)
"""What an interval marked as biased means."""


class Report(ReportSection):
    """The results of candidates beside the baseline.

    Attributes:
        request: The request.
        source: The log or the export that was read.
        made_at: When, seconds since the epoch.
        config: File of the configuration; empty where that is not known.
        armwise: Version of the program.
        reward: The reward rule.
        floor: Exploration floor of the candidates that a service would serve.
        rows: Decisions that were selected and can be evaluated.
        questions: Different questions among them.
        first_at: When the first of them was made, seconds since the epoch.
        last_at: When the last one was.
        positions: Positions of the first and last row in the training log.
        digest: Digest of the rows' positions, draws, propensities and rewards.
        excluded: Decisions that were left out, by reason, most frequent first.
        earned: Mean reward of the decisions.
        drawn: How often each arm was drawn; they sum to 1.
        candidates: In the order of the request, the baseline first.
        assumptions: Assumptions of the estimates; a sentence each.
    """

    request: EvaluationRequest
    source: str
    made_at: float
    armwise: str
    config: str = ""
    reward: dict[str, Any]
    floor: float
    rows: int
    questions: int
    first_at: float
    last_at: float
    positions: tuple[int, int]
    digest: str
    excluded: dict[str, int]
    earned: float
    drawn: dict[str, float]
    candidates: tuple[CandidateResult, ...]
    assumptions: tuple[str, ...]

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Self:
        """Return the report that a document is of. Raises ValidationError."""
        return cls.model_validate(document)

    def as_json(self) -> dict[str, Any]:
        """Return the report as a document, of which `read` makes an equal report."""
        return self.model_dump(mode="json")

    def html(self) -> str:
        """Return the report as a self-contained page."""
        # Imported here, as it takes a second that tables and JSON do not need.
        from agent.evaluation.html_report import page

        return page(self)

    def table(self) -> Table:
        """Return the estimates as a table: a row for each candidate, in it a line for each estimator."""
        title = f"value of a policy on {self.rows:,} logged decisions (earned: {self.earned:+.4f})"
        table = Table(
            title=Text(title), title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, padding=0
        )
        table.add_column("candidate", overflow="fold")
        table.add_column("estimator", no_wrap=True)
        for column in ("value, 95 % interval", f"over {self.request.baseline}", "eff. n"):
            table.add_column(Text(column), justify="right", no_wrap=True)
        for one in self.candidates:
            table.add_row(*(Text("\n".join(lines)) for lines in _cells(one)), end_section=True)
        return table

    def footnotes(self) -> list[str]:
        """Return a line for each candidate, the excluded decisions, and the assumptions."""
        return [
            *(f"{one.name}: {' '.join(one.remarks)}" for one in self.candidates),
            f"Left out: {counted(self.excluded) or 'none'}.",
            *self.assumptions,
            *([f"{', '.join(self.uncovered)}: {BIASED}"] if self.uncovered else []),
        ]

    @property
    def uncovered(self) -> list[str]:
        """The estimators whose intervals do not cover."""
        every = [estimate for one in self.candidates for estimate in one.estimates]
        return list(dict.fromkeys(estimate.estimator for estimate in every if not estimate.covers))


def _cells(one: CandidateResult) -> Iterator[list[str]]:
    """Yield the lines of each cell of the row of a candidate."""
    doubted = one.weights is not None and bool(one.weights.warnings)
    verdict = [] if one.verdict is None else [str(one.verdict["verdict"])]
    yield [one.name, *verdict, *(["doubtful weights"] if doubted else [])]
    yield [estimate.estimator for estimate in one.estimates] or [NO_ROW]
    yield [
        estimate.note if estimate.value is None else estimate.shown(estimate.value)
        for estimate in one.estimates
    ]
    yield [estimate.shown(estimate.difference) for estimate in one.estimates]
    yield [f"{estimate.effective_n:,.0f}" for estimate in one.estimates]
