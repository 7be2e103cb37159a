"""The report of an evaluation: what it says in the terminal, as JSON, and as a page that is sent on."""

import json
import re
import shlex
from collections.abc import Sequence
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from armwise.agent.cli.main import app
from armwise.agent.evaluation.evaluation_request import EvaluationRequest
from armwise.agent.evaluation.replay_document import (
    ArmWeights,
    CandidateResult,
    Estimated,
    Interval,
    ReplayDocument,
    Weights,
    add_estimates,
)
from armwise.agent.evaluation.replay_page import (
    BIASED,
    colour_arms,
    find_headline,
    list_footnotes,
    make_page,
    make_table,
    summary,
)
from armwise.agent.reporting.plain_text import visible
from armwise.feedback.log import Store
from armwise.feedback.logged_draws import LoggedDraws
from armwise.feedback.ope import ESTIMATORS, evaluate_each

ARMS = ("none", "bm25", "dense")
EVIL = "</title></pre></svg><script>alert('$x_1$')</script>\" onload=x \u5de8\u202e\x1b[2J\x9b1m\u2028"
DAY = 86_400.0


def interval(value: float, half: float = 0.05) -> Interval:
    return Interval(value=value, low=value - half, high=value + half, kind="normal")


def estimated(estimator: str, value: float, difference: float | None) -> Estimated:
    return Estimated(
        estimator=estimator,
        value=interval(value),
        difference=None if difference is None else interval(difference),
        effective_n=321.4,
        note="",
        covers=ESTIMATORS[estimator].covers,
    )


def candidate(
    name: str, value: float, difference: float | None, arms: Sequence[str] = ARMS, **changes: Any
) -> CandidateResult:
    known = [
        estimated(estimator, value + shift, None if difference is None else difference + shift)
        for estimator, shift in (("ips", 0.02), ("snips", -0.01), ("dr", 0.0))
    ]
    covered = [
        ArmWeights(arm=arm, drawn=1 / 3, wanted=1 / 3, overlap=1.0, effective_n=100.0, largest=2.0)
        for arm in arms
    ]
    judged = CandidateResult(
        name=name,
        about=f"All about {name}.",
        rows=1200,
        excluded={},
        notes=[],
        estimates=known,
        weights=Weights(
            effective_n=321.4, largest=12.5, mean=1.01, mean_error=0.03, arms=covered, warnings=[]
        ),
        shares=dict.fromkeys(arms, 1 / len(arms)),
        verdict=None,
    )
    return but(judged, **changes)


def but(judged: CandidateResult, **changes: Any) -> CandidateResult:
    """Return a candidate with other results."""
    changed: Any = {**judged, **changes}
    return cast(CandidateResult, changed)


def a_report(*candidates: CandidateResult, **changes: Any) -> ReplayDocument:
    found: Any = {
        "request": EvaluationRequest().model_dump(mode="json"),
        "source": "sqlite:///log.db",
        "made_at": 100 * DAY,
        "armwise": "0.1.0",
        "reward": {"cost_weight": 0.1},
        "floor": 0.01,
        "rows": 1200,
        "observations": 900,
        "first_at": 0.0,
        "last_at": 12 * DAY,
        "positions": [1, 1300],
        "digest": "d1gest",
        "excluded": {"forced": 12, "labels": 88},
        "earned": 0.3,
        "drawn": dict.fromkeys(ARMS, 1 / 3),
        "arm_colours": {},
        "candidates": [candidate("served", 0.3, None), *candidates],
        "assumptions": ["All is as it seems."],
    }
    return cast(ReplayDocument, {**found, **changes})


BETTER, WORSE = candidate("fixed:dense", 0.5, 0.2), candidate("uniform", 0.25, -0.02)
NEVER = candidate("fixed:none", 0.0, 0.0, estimates=[], weights=None)
HELD = {
    "verdict": "hold",
    "promote": False,
    "reasons": ["Too few <decisions>."],
    "figures": {"margin": 0.0},
    "trail": [{"n": n, "at": n * DAY, "gain": 0.2, "low": 0.1 - 1 / n} for n in range(1, 30)],
}
UNHEARD = {"verdict": "hold", "promote": False, "reasons": ["Nothing is left."], "figures": None, "trail": []}


def printed(report: ReplayDocument, width: int = 150) -> str:
    output = StringIO()
    console = Console(file=output, width=width)
    console.print(make_table(report))
    for note in list_footnotes(report):
        console.print(note, markup=False)
    return output.getvalue()


class Page(HTMLParser):
    """Reads a page, and sees to it that its tags are closed in order."""

    VOID = frozenset({"meta", "br", "link", "img"})

    def __init__(self, told: str) -> None:
        super().__init__()
        self.text: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self._open: list[str] = []
        self.feed(told)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_the_table_has_a_line_for_each_estimator_and_says_where_there_is_none() -> None:
    told = printed(a_report(BETTER, NEVER))
    assert "1,200 logged decisions (earned: +0.3000)" in told
    assert told.count("snips") == 2
    assert re.search(r"fixed:none +no decision to be judged by", told)
    assert re.search(
        r"fixed:dense +ips +\+0.520 \[\+0.470, \+0.570\] +\+0.220 \[\+0.170, \+0.270\] +321", told
    )
    assert max(map(len, printed(a_report(BETTER), 80).split("\n"))) <= 80


def test_the_summary_names_the_candidate_that_is_surely_better() -> None:
    said = summary(a_report(WORSE, BETTER))
    assert "fixed:dense would have earned +0.500, 0.200 more than served" in said
    assert "97.5 % interval [+0.141, +0.259], by dr" in said


def test_of_ten_equal_arms_the_summary_finds_a_winner_in_few_logs() -> None:
    arms, rng, won = tuple(f"arm{number}" for number in range(10)), np.random.default_rng(0), 0
    for _ in range(200):
        drawn, reward = rng.integers(10, size=1500), (rng.random(1500) < 0.7).astype(np.float64)
        log = LoggedDraws.from_arrays(arms, drawn, reward, p_log=np.full((1500, 10), 0.1))
        always = {f"fixed:{arm}": np.tile(row, (1500, 1)) for arm, row in zip(arms, np.eye(10), strict=True)}
        results = {name: candidate(name, 0.0, None, estimates=[]) for name in always}
        for name, found in evaluate_each(
            log, always, rng, estimators=("snips",), interval="normal", reward_range=(0.0, 1.0)
        ):
            add_estimates(results[name], found, served=False)
        won += "would have earned" in summary(a_report(*results.values()))
    assert won <= 10


@pytest.mark.parametrize(("n", "low", "level"), [(1, 0.15, "95 %"), (10, 0.119, "99.5 %")])
def test_the_interval_of_the_best_is_wider_the_more_candidates_there_are(
    n: int, low: float, level: str
) -> None:
    others = [candidate(f"worse{number}", 0.3, 0.0) for number in range(n - 1)]
    said = summary(a_report(BETTER, *others))
    assert f"({level} interval [+{low:.3f}, " in said
    assert ("allows for the choice among" in said) == (n > 1)


def test_the_summary_says_so_where_no_candidate_is_surely_better() -> None:
    assert (
        "no candidate is shown to earn more than served: the largest estimate, of uniform, is -0.020"
        in summary(a_report(WORSE))
    )
    assert "no candidate but served has an estimate" in summary(a_report(NEVER))


def test_the_summary_says_what_the_gate_lets_through() -> None:
    promoted = but(BETTER, verdict={"verdict": "promote", "promote": True, "reasons": []})
    held = but(WORSE, verdict=HELD)
    assert summary(a_report(promoted, held)).endswith("The gate lets fixed:dense go live.")
    assert summary(a_report(held)).endswith("The gate lets none of them go live.")


@pytest.fixture(scope="module")
def told() -> str:
    """An ordinary page."""
    return make_page(a_report(BETTER, WORSE))


@pytest.mark.slow
def test_a_page_needs_nothing_but_itself(told: str) -> None:
    page = Page(told)
    assert not {"script", "link", "img", "iframe", "object", "image", "foreignobject"} & set(page.tags)
    assert "http" not in told
    assert "@import" not in told
    assert all(target.startswith("#") for target in re.findall(r"url\((.*?)\)", told))
    links = [value for name, value in page.attributes if name.endswith(("href", "src"))]
    assert all(value.startswith("#") for value in links)


@pytest.mark.slow
def test_a_page_of_candidates_that_nothing_is_known_of_can_be_made() -> None:
    held = but(NEVER, rows=0, shares={}, verdict=UNHEARD)
    told = " ".join(Page(make_page(a_report(held))).text)
    assert "Nothing is left." in told
    assert "no candidate but served has an estimate" in told


@pytest.mark.slow
def test_names_from_outside_are_no_part_of_the_page() -> None:
    arms = (EVIL, "bm25")
    evil = candidate(
        EVIL,
        0.4,
        0.1,
        arms,
        about=EVIL,
        notes=(EVIL,),
        excluded={EVIL: 3},
        verdict={**HELD, "reasons": [EVIL]},
    )
    report = a_report(
        evil, source=EVIL, drawn=dict.fromkeys(arms, 0.5), excluded={EVIL: 1}, assumptions=(EVIL,)
    )
    told = make_page(report)
    page = Page(told)
    assert "script" not in page.tags
    assert page.tags.count("title") == 1
    assert visible(EVIL) in "".join(page.text)
    assert not set("\u202e\x1b\x9b\u2028") & set(told)


NO_COVER = candidate(
    "fixed:dense", 0.5, 0.2, estimates=[estimated(name, 0.5, 0.2) for name in ("switch_dr", "dm")]
)


@pytest.mark.slow
def test_an_interval_that_does_not_cover_is_marked_wherever_it_is_printed() -> None:
    report = a_report(NO_COVER, BETTER)
    lines = [line for line in printed(report).splitlines() if " switch_dr " in line or " dm " in line]
    assert [line.count("] biased") for line in lines[:2]] == [2, 2], "of the value and of the difference"
    assert f"switch_dr, dm: {BIASED}" in " ".join(printed(report).split())
    assert make_page(report).count("biased</span>") == 4
    given = report["candidates"]
    assert [one["covers"] for one in given[1]["estimates"]] == [False, False]
    assert all(one["covers"] for one in given[2]["estimates"])
    assert "biased" not in printed(a_report(BETTER)) + make_page(a_report(BETTER))


def test_an_interval_that_does_not_cover_proves_no_gain() -> None:
    assert "no candidate is shown to earn more than served" in summary(a_report(NO_COVER))
    assert "by switch_dr, which is biased" in summary(a_report(NO_COVER))
    both = candidate("both", 0.4, 0.1, estimates=[*NO_COVER["estimates"], *BETTER["estimates"]])
    lower = but(both, estimates=[*NO_COVER["estimates"], BETTER["estimates"][1]])  # of a lower rank
    assert [one["estimator"] for one in map(find_headline, (both, lower)) if one] == ["dr", "snips"]


def test_the_headline_has_an_interval_of_the_requested_kind_where_there_is_one() -> None:
    *others, doubly_robust = BETTER["estimates"]
    noted: Any = {**doubly_robust, "note": "normal interval: anytime is none for it"}
    chosen = [find_headline(one) for one in (but(BETTER, estimates=[*others, noted]), BETTER)]
    assert [one["estimator"] == "dr" for one in chosen if one is not None] == [False, True]


def test_of_candidates_that_are_surely_better_the_summary_names_the_best() -> None:
    good, better = candidate("good", 0.5, 0.2), candidate("better", 0.6, 0.3)
    for order in ((good, better), (better, good)):
        assert "each, better would have earned +0.600, 0.300 more than served" in summary(a_report(*order))


def test_of_candidates_that_are_not_surely_better_the_summary_prefers_intervals_that_cover() -> None:
    assert "the largest estimate, of uniform, is -0.020" in summary(a_report(NO_COVER, WORSE))


@pytest.mark.parametrize(("low", "shown"), [(0.0, False), (0.001, True)])
def test_a_gain_is_shown_where_its_interval_is_above_zero(low: float, *, shown: bool) -> None:
    gain = Interval(value=0.2, low=low, high=0.4, kind="normal")
    estimate: Any = {**BETTER["estimates"][-1], "difference": gain}
    said = summary(a_report(but(BETTER, estimates=[estimate])))
    assert ("would have earned" in said) == shown


@pytest.mark.slow
def test_the_page_draws_intervals_and_shares() -> None:
    page = Page(make_page(a_report(but(BETTER, verdict=HELD), but(WORSE, verdict=UNHEARD))))
    assert page.tags.count("circle") == 3 * 3 + 2 * 3, "each value, and each difference of the others"
    numbers = [
        float(value) for name, value in page.attributes if name in ("x", "cx", "width") and value[0].isdigit()
    ]
    assert all(0.0 <= number <= 120.0 for number in numbers)
    assert page.tags.count("rect") >= 4 * len(ARMS)


def test_an_arm_has_its_colour_of_the_console() -> None:
    report = a_report(BETTER, WORSE, arm_colours={"dense": 0, "gone": 1, "none": 2, "bm25": 14})
    expected = {"dense": 0, "gone": 1, "none": 2, "bm25": 2}
    assert colour_arms(report) == {arm: f"var(--c{number})" for arm, number in expected.items()}
    assert [*colour_arms(a_report()).values()] == ["var(--c0)", "var(--c1)", "var(--c2)"]


REQUESTS = [
    EvaluationRequest(),
    EvaluationRequest(
        candidates=("served", "fixed:bm25", "policy:{kind: linucb, params: {alpha: 0.5}}"),
        baseline="uniform",
        since="2026-01-02T03:04:05+02:00",
        until="2026-02-01T00:00:00Z",
        versions=(3, 9),
        features={"tier": "free user", "beta": True, "age": 3.5},
        cost_weight=0.25,
        cost={"steps": 0.02, "usd": 10.0},
        budget={"usd_per_request": 0.001, "window": 500.0},
        estimators=("snips", "dr"),
        interval="bootstrap",
        reward_model="means",
        cluster="user",
        gate=True,
        seed=7,
    ),
]


WORDS = [
    "",
    "--policy served --policy fixed:bm25 --policy 'policy:{kind: linucb, params: {alpha: 0.5}}' "
    "--baseline uniform --since 2026-01-02T03:04:05+02:00 --until 2026-02-01T00:00:00Z --version 3-9 "
    "--feature 'tier=free user' --feature beta=true --feature age=3.5 --cost-weight 0.25 --price steps=0.02 "
    "--price usd=10 --budget usd_per_request=0.001 --budget window=500 --estimator snips --estimator dr "
    "--interval bootstrap --reward-model means --cluster user --gate --seed 7",
]


@pytest.mark.parametrize(("request_", "words"), [*zip(REQUESTS, WORDS, strict=True)])
def test_each_field_of_a_request_has_an_option(
    request_: EvaluationRequest, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    heard: list[EvaluationRequest] = []

    def evaluate(_config: object, request: EvaluationRequest, *_: object) -> ReplayDocument:
        heard.append(request)
        return a_report(BETTER)

    monkeypatch.setattr("armwise.agent.evaluation.replay", evaluate)
    monkeypatch.setenv("ARMWISE_HOME", str(tmp_path))
    Store(f"sqlite:///{tmp_path}/log.db").close()
    result = CliRunner().invoke(app, ["replay", *shlex.split(words)])
    assert result.exit_code == 0, result.output
    assert heard == [request_]


@pytest.mark.parametrize("request_", REQUESTS)
def test_a_request_comes_back_from_json_as_it_was(request_: EvaluationRequest) -> None:
    assert (
        EvaluationRequest.model_validate(json.loads(json.dumps(request_.model_dump(mode="json")))) == request_
    )


def test_the_page_on_the_document_names_each_of_its_fields() -> None:
    page = (Path(__file__).parents[3] / "docs/reference/http/operating.md").read_text()
    described = page.partition("### The document of a replay")[2].partition("\n## ")[0]
    for part in (ReplayDocument, CandidateResult, Estimated, Interval, Weights):
        assert [name for name in part.__annotations__ if f"`{name}`" not in described] == []
