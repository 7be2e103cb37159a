"""The first page: what is saved, at which quality, and what goes where, compared with a known truth."""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from armwise.agent.access import OPEN
from armwise.agent.console import savings, topics
from armwise.agent.console.page import CONSOLE
from armwise.agent.console.summary import read_summary
from armwise.agent.proof import About
from armwise.agent.proof.noninferiority import ArmComparison, Ends
from armwise.agent.proof.statements import state_best_arm, state_dollars, state_quality
from armwise.feedback.events import (
    Context,
    Cost,
    Decision,
    Execution,
    Feedback,
    FeedbackKind,
    Mode,
    Status,
    Tick,
)
from armwise.feedback.log import erasures
from armwise.feedback.registry import arm_sets, promotions
from armwise.feedback.training_log import summary
from armwise.feedback.training_log.draws import NewestDraw
from tests.agent.asking import look_up, tell
from tests.agent.console.test_pages import plain, seen
from tests.agent.evaluation.logged import add_up
from tests.agent.fakes import Service


async def asked(service: Service, tier: str, n: int, **headers: str) -> None:
    """Ask questions of a kind, and praise BM25 for it if it is free."""
    for i in range(n):
        context = {"context": {"tier": tier, "size": i}}
        found = (await look_up(service, headers, query=f"question {i}", agent=context)).json()["agent"]
        praised = (found["arm_served"] == "bm25") == (tier == "free")
        body = {
            "metric_name": "thumb",
            "decision_id": found["decision_id"],
            "value": 1.0 if praised else -1.0,
        }
        assert (await service.client.post("/v1/feedback", json=body, headers=headers)).status_code == 202


HARM = '<script>alert(1)</script>" onload="alert(2)'

QUESTIONS = {
    "capital": ("What is the capital of {}?", ("France", "Peru", "Kenya", "Japan", "Nepal", "Norway")),
    "proof": ("Prove by induction a theorem on {}", ("primes", "sine", "groups", "series", "graphs", "sets")),
}

RIGHT = {("capital", "cheap"): 0.9, ("capital", "dear"): 0.9, ("proof", "cheap"): 0.2, ("proof", "dear"): 0.9}

USD = {"cheap": 0.0001, "dear": 0.002}


def two_models(folder: Path, *, arms: tuple[str, ...] = ("cheap", "dear"), **changes: Any) -> Service:
    """Return a service of two arms whose answers are rated right or wrong."""
    reward = {"metrics": {"right": {"type": "boolean"}}, "complete": "any", "cost_weight": 0.0}
    specs: dict[str, dict[str, Any]] = {arm: {"kind": "none"} for arm in arms}
    service = Service(folder, arms=specs, policy={"kind": "adaptive"}, reward=reward, **changes)
    arm_sets.start(service.replica.store, specs)
    service.step()
    return service


def play(
    service: Service,
    n: int,
    *,
    rated: float = 1.0,
    usd: bool = True,
    kind: bool = False,
    ago_s: float = 3600.0,
) -> tuple[float, float]:
    """Log decisions whose policy learns to send capitals to the cheap arm, and proofs to the dear one.

    Returns:
        The expected dollars that were saved per 1,000 answers compared with the dear arm, and the expected
        quality minus that of the dear arm.
    """
    rng, arms = np.random.default_rng(1), tuple(service.config.actions)
    facts: list[Decision | Execution | Feedback | Tick] = []
    saved, lead, now = 0.0, 0.0, service.clock()
    for i in range(n):
        topic = "capital" if rng.random() < 0.5 else "proof"
        form, things = QUESTIONS[topic]
        best = {"capital": "cheap", "proof": "dear"}[topic]
        likely = 0.5 + 0.45 * min(1.0, i / (0.2 * n))
        p = tuple(likely if arm == best else 1.0 - likely for arm in arms) if len(arms) > 1 else (1.0,)
        arm, name, at = arms[int(rng.choice(len(arms), p=p))], f"d{i}", now - 20.0 * (n - i) - ago_s
        features = {"ask=what": 1.0, **({f"kind={topic}": 1.0} if kind else {})}
        context = Context(form.format(rng.choice(things)), features)
        facts += [
            Decision(name, context, arms, p, arm, "adaptive", 1, Mode.EXPLORE, at, at + 1800.0),
            Execution(
                name,
                arm,
                Status.OK,
                Cost(usd=USD[arm] * rng.uniform(0.8, 1.2) if usd else 0.0),
                (),
                "yes",
                "",
                at,
            ),
        ]
        if rng.random() < rated:
            facts.append(Feedback(f"f{i}", name, "right", float(rng.random() < RIGHT[topic, arm]), at + 1.0))
        saved += 1000.0 * (USD["dear"] - USD[arm])
        lead += RIGHT[topic, arm] - RIGHT[topic, "dear"]
    facts.append(Tick(now))
    service.replica.store.append(facts)
    add_up(service.replica.store, service.config.reward)
    service.summarise()
    return saved / n, lead / n


@pytest.mark.slow
async def test_savings_quality_and_shares_are_those_of_the_world(tmp_path: Path) -> None:
    service = two_models(tmp_path)
    usd, quality = await asyncio.to_thread(play, service, 2000)
    found, _ = savings.read_statements(service.replica.store, service.config)
    saved, gained = found.find(About.DOLLARS), found.find(About.QUALITY)
    assert found.reference == "dear", "the dearest"
    for one, truth in ((saved, usd), (gained, 100.0 * quality)):
        assert one is not None
        assert one.low is not None
        assert one.low < truth < (one.high or inf)
    assert saved is not None
    assert saved.estimate == pytest.approx(usd, rel=0.05)
    async with service.running(ready=False):
        page = plain(await seen(service, ""))
        draws = topics.read_draws(service.replica, OPEN)
        routing = topics.group(draws, None)
    assert {*draws.ratings.values()} == {0.0, 1.0}, "answers are rated right or wrong"
    assert saved.headline in page
    assert routing.differs
    assert 3 <= len(routing.groups) <= 8
    for group in routing.groups:
        topic = "capital" if "capital" in group.examples[0] else "proof"
        (first, share), *_ = group.shares
        assert first == {"capital": "cheap", "proof": "dear"}[topic]
        assert share > 0.85
        assert all(("capital" in text) == (topic == "capital") for text in group.examples)
        assert not group.before or group.before[first] < share - 0.1
    assert any(group.before for group in routing.groups)
    assert sum(group.n for group in routing.groups) == routing.recent == 500


async def test_questions_are_grouped_by_the_field_of_the_caller_and_on_request_by_topic(
    tmp_path: Path,
) -> None:
    service = two_models(tmp_path)
    await asyncio.to_thread(play, service, 200, kind=True)
    async with service.running(ready=False):
        by_field = topics.group(topics.read_draws(service.replica, OPEN), None)
        by_topic = topics.group(topics.read_draws(service.replica, OPEN), "")
    assert (by_field.by, by_field.fields) == ("kind", ("kind",))
    assert {group.name for group in by_field.groups} == {"capital", "proof"}
    assert by_topic.by == ""
    assert {group.name for group in by_topic.groups}.isdisjoint({"capital", "proof"})


async def test_ratings_show_at_once_while_earlier_answers_wait_for_theirs(tmp_path: Path) -> None:
    service = two_models(tmp_path)
    await asyncio.to_thread(play, service, 60, rated=0.7, ago_s=0.0)
    store = service.replica.store
    rated = [name for i in range(60) if (record := store.record(name := f"d{i}")) and record.feedback]
    first, *_ = rated
    store.append(
        [Feedback(f"f{first[1:]}", first, "right", None, service.clock(), kind=FeedbackKind.RETRACTION)]
    )
    async with service.running(ready=False):
        found = topics.group(topics.read_draws(service.replica, OPEN), "")
        assert sum(group.rated for group in found.groups) == len(rated) - 1, "one was taken back"
        assert "not rated" not in plain(await seen(service, ""))


async def test_the_baseline_is_the_arm_that_the_operator_names(tmp_path: Path) -> None:
    service = two_models(tmp_path, baseline="cheap")
    await asyncio.to_thread(play, service, 300)
    async with service.running(ready=False):
        assert "It takes more answers of cheap" in plain(await seen(service, ""))


@pytest.mark.parametrize(
    ("n", "world", "arms", "said"),
    [
        (
            40,
            {},
            ("cheap", "dear"),
            ["spent on 40 answers", "after the first 100 sessions, which set the scale. 40 decisions count"],
        ),
        (
            300,
            {"rated": 0.0},
            ("cheap", "dear"),
            ["saved per 1,000 of the same requests", "No answer is rated"],
        ),
        (300, {"usd": False}, ("cheap", "dear"), ["No dollars are on record", "Rated "]),
        (40, {}, ("dear",), ["Nothing to compare with", "Everything goes to dear, the only arm."]),
    ],
)
async def test_a_page_says_what_is_known_and_what_is_missing(
    tmp_path: Path, n: int, world: dict[str, Any], arms: tuple[str, ...], said: list[str]
) -> None:
    service = two_models(tmp_path, arms=arms)
    await asyncio.to_thread(play, service, n, **world)
    async with service.running(ready=False):
        page = await seen(service, "")
    for each in said:
        assert each in plain(page)
    assert ("docs/guide/feedback.md" in page) == (world.get("rated") == 0.0)
    assert ("saved per 1,000" in page) == (n == 300 and world.get("usd", True))


@pytest.mark.parametrize(
    ("rated", "hint"),
    [(0.05, True), (0.0, False), (0.6, False)],
)
async def test_few_ratings_are_named_with_how_many_are_needed(
    tmp_path: Path, rated: float, hint: bool
) -> None:
    service = two_models(tmp_path)
    await asyncio.to_thread(play, service, 400, rated=rated)
    async with service.running(ready=False):
        page = await seen(service, "")
    assert ("feedback.md#how-many-ratings-you-need" in page) is hint


async def test_an_empty_log_says_what_to_do_and_draws_nothing(service: Service) -> None:
    page = await seen(service, "")
    assert "Nothing was asked yet." in page
    assert 'href="/console/playground"' in page
    assert "data-chart" not in page


async def test_answers_in_their_feedback_window_are_counted(service: Service) -> None:
    for i in range(3):
        found = (await look_up(service, query=f"question {i}")).json()["agent"]
        await tell(service, found["decision_id"], 1.0)
    await service.learn()
    await asyncio.to_thread(service.summarise)
    assert "3 answers are less than 30 minutes old" in plain(await seen(service, ""))
    assert "waiting for feedback 3 decisions" in plain(await seen(service, "/details"))


async def test_erased_questions_are_in_no_topic(tmp_path: Path) -> None:
    service = two_models(tmp_path)
    await asyncio.to_thread(play, service, 60)
    store = service.replica.store
    async with service.running(ready=False):
        before = await seen(service, "")
        assert "What is the capital of" in before
        shown = before
        for i in range(60):
            await asyncio.to_thread(erasures.erase_decision, store, f"d{i}", "cli", service.clock())
            if i < 30:  # an erasure writes no fact, and the page shows the newest one all the same
                last, shown = shown, await seen(service, "")
                assert last != shown
        after = await seen(service, "")
    assert "capital" not in after
    assert "once there are 30 of them with their texts" in plain(after)


@pytest.mark.slow
async def test_a_viewer_sees_the_questions_of_its_project_and_only_a_reader_what_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: list[dict[str, Any]] = []
    for name, project in (("ACME", {"project": "acme"}), ("MAIN", {}), ("ASK", {})):
        monkeypatch.setenv(name, name)
        scopes = ["decide", "feedback"] if name == "ASK" else ["decide", "feedback", "read"]
        keys.append({"env": name, "scopes": scopes, **project})
    async with Service(tmp_path, keys=keys).running() as service:
        bearer = {name: {"authorization": f"Bearer {name}"} for name in ("ACME", "MAIN", "ASK")}
        for name in ("ACME", "MAIN"):
            for tier in ("free", f"of-{name}"):
                await asked(service, tier, 3, **bearer[name])
        await service.settle()
        store, version = service.replica.store, service.replica.versions.version
        assert version is not None
        promotion = promotions.Promotion(0, version.version, promotions.Action.ROLLBACK, HARM, 1e12)
        promotions.record(store, "any", promotion)
        arm_sets.switch(store, "bm25", False, 2e12)

        async def live_part(name: str) -> httpx.Response:
            return await service.client.get(CONSOLE, headers={"hx-request": "true", **bearer[name]})

        shown = {name: (await live_part(name)).text for name in bearer}
        again = {name: (await live_part(name)).text for name in bearer}
    escaped = HARM.replace("<", "&lt;").replace(">", "&gt;").replace('"', "&#34;")
    for name, other in (("ACME", "MAIN"), ("MAIN", "ACME")):
        assert f"Rollback to version {version.version}, because: {escaped}" in shown[name]
        assert f"of-{name}" in shown[name]
        assert f"of-{other}" not in shown[name]
    assert "of-ACME" not in shown["ASK"]
    assert "Rollback" not in shown["ASK"]
    assert again == shown, "one viewer's part is not another's"


async def test_pages_say_that_figures_follow_until_the_first_summary_is_written(tmp_path: Path) -> None:
    service = two_models(tmp_path)
    await asyncio.to_thread(play, service, 300)
    store = service.replica.store
    for broken in (None, {"sums": "of another version"}):
        summary.clear(store)
        if broken is not None:
            summary.write_document(store, broken)
        async with service.client.stream("GET", CONSOLE) as response:
            await response.aread()
        assert "The figures appear here shortly." in response.text
    await asyncio.to_thread(service.summarise)
    assert "saved per 1,000 of the same requests" in await seen(service, "")


async def test_the_details_compare_what_was_served_with_each_arm(tmp_path: Path) -> None:
    """As the summary states it, the reference first."""
    service = two_models(tmp_path)
    await asyncio.to_thread(play, service, 300)
    await asyncio.to_thread(service.summarise)
    summarised = read_summary(service.replica.store)
    assert summarised is not None
    found = summarised.statements
    page = await seen(service, "/details")
    rows = re.findall("<tr><th scope=.row.>.*?</tr>", page.partition("Compared with each arm")[2], re.DOTALL)
    assert len(found.compared) == 2
    for name, row in zip(found.compared, rows, strict=False):
        assert name in row
        for about in (About.QUALITY, About.DOLLARS):
            one = found.find(about, name)
            assert one is not None
            assert (one.silence != "") == (one.low is None)
            if not one.silence:
                ends = f"{one.low:+.1f} to {one.high:+.1f}" if one.high is not None else "at least $"
                assert ends in plain(row)


@pytest.mark.parametrize("baseline", [None, "dear"])
async def test_savings_of_the_time_before_stay_when_an_arm_is_renamed(
    tmp_path: Path, baseline: str | None
) -> None:
    service = two_models(tmp_path, baseline=baseline)
    await asyncio.to_thread(play, service, 300)
    before = plain(await seen(service, ""))
    service.close()
    renamed = two_models(tmp_path, arms=("cheap", "costly"), baseline=baseline and "costly")
    context, at = Context("And now?"), renamed.clock() - 1900.0
    drawn = Decision(
        "new", context, ("cheap", "costly"), (0.5, 0.5), "costly", "adaptive", 1, Mode.EXPLORE, at
    )
    done = Execution("new", "costly", Status.OK, Cost(usd=2.5 * USD["dear"]), (), "yes", "", at)
    renamed.replica.store.append([replace(drawn, deadline=at + 1800.0), done, Tick(renamed.clock())])
    add_up(renamed.replica.store, renamed.config.reward)
    await asyncio.to_thread(renamed.summarise)
    async with renamed.running(ready=False):
        after = plain(await seen(renamed, ""))
    said = r"\$[\d.]+ saved per 1,000 of the same requests"
    assert re.findall(said, after) == re.findall(said, before) != []
    assert "than if dear had answered each of them" in after


# -- statements -----------------------------------------------------------------------------------

ONE = ArmComparison(
    *("dear", 2, 900, 900, 300, 0.8, (0.0, 0.0, 0.0), 900, 300, 10, 0.001, (0.0, 0.0)),
    *(0.01, 0, 0.0, 0, None, None, None, 1, 0, 100, 0.0, 1.0),
)


@pytest.mark.parametrize(
    ("quality", "tone", "said"),
    [
        ((0.05, 0.01, 0.09), "good", "better than dear's"),
        ((-0.05, -0.09, -0.01), "warn", "worse than dear's"),
        ((0.0, -0.02, 0.05), "good", "as good as dear's"),
        ((0.0, -0.04, 0.05), "", "takes at least about 550 more rated answers"),
        ((-0.03, -0.07, 0.01), "", "takes up to about 3,300 more rated answers."),
        ((-0.691, 0.282, -0.66), "warn", "no difference fits all ratings"),
    ],
)
def test_quality_is_said_to_be_what_its_interval_supports(quality: Ends, tone: str, said: str) -> None:
    found = state_quality(replace(ONE, quality=quality), "the mean reward")
    assert (found.tone, said in f"{found.headline} {found.detail}") == (tone, True), found


@pytest.mark.parametrize(
    ("saved", "tone", "said"),
    [
        ((0.001, 0.0005), "good", "At least $0.50 saved per 1,000 of the same requests"),
        ((0.001, -0.0005), "", "No saving is certain yet"),
    ],
)
def test_a_saving_is_said_only_if_its_interval_leaves_0_out(
    saved: tuple[float, float], tone: str, said: str
) -> None:
    found = state_dollars(replace(ONE, saved=saved))
    assert (found.headline, found.tone) == (said, tone)


@pytest.mark.parametrize(
    ("leads", "best"),
    [
        ({"a": (0.0, -0.01, 0.01), "b": (0.3, 0.25, 0.35)}, "a"),
        ({"a": (0.0, -0.01, 0.01), "b": (0.03, 0.01, 0.05)}, ""),  # the ranges touch
        ({"a": (0.0, -0.01, 0.01), "b": (-0.3, -0.35, -0.25)}, "b"),
        ({"a": (0.0, -0.01, 0.01)}, ""),  # of b nothing is known
        ({"a": (0.0, -0.01, 0.01), "b": (0.3, 0.25, 0.35), "c": (0.02, 0.01, 0.05)}, ""),  # c may be as good
    ],
)
def test_an_arm_is_best_if_its_range_is_apart_from_that_of_each_other(
    leads: Mapping[str, Ends], best: str
) -> None:
    arms = [replace(ONE, reference=arm, quality=quality) for arm, quality in leads.items()]
    assert state_best_arm(arms, "the mean reward").reference == best


def test_arms_that_answered_different_requests_are_not_ranked() -> None:
    worse = replace(ONE, reference="b", quality=(0.3, 0.25, 0.35), decisions=800)
    assert state_best_arm([ONE, worse], "the mean reward").silence


def test_no_arm_is_best_where_no_difference_fits_all_ratings() -> None:
    none, worse = ((-0.36, -0.30, -0.34), (0.1, 0.05, 0.15))
    arms = [replace(ONE, quality=none), replace(ONE, reference="b", quality=worse)]
    assert state_best_arm(arms, "the mean reward").silence == "contradiction"


def test_an_answer_that_nobody_rated_is_not_called_rated_where_silence_counts() -> None:
    """Nor is the best arm then said to be best on rated answers."""
    arms = [replace(ONE, reference=arm, quality=(lead, lead, lead)) for arm, lead in (("a", 0.0), ("b", 0.3))]
    for reward in ("the mean reward (thumb)", "the mean reward (thumb, where silence counts as 1)"):
        for one in (state_quality(arms[1], reward), state_best_arm(arms, reward)):
            said = " ".join((one.headline, one.detail, one.short, *one.assumptions)).lower()
            assert ("rated answers" in said or "rated in time" in said) is ("silence" not in reward)


# -- topics ---------------------------------------------------------------------------------------


def draw(seq: int, arm: str, question: str, **features: float) -> NewestDraw:
    return NewestDraw(seq, arm, features, question)


def test_embeddings_group_questions_that_share_no_word() -> None:
    rng = np.random.default_rng(0)
    draws = [
        NewestDraw(i, "ab"[i % 2], {}, f"word{i}", (rng.normal(0, 0.05, 3) + np.eye(3)[i % 3]).tolist())
        for i in range(60, 0, -1)
    ]
    found = topics.group(topics.VisibleDraws(draws, draws[::-1], {}), None)
    assert [one.n for one in found.groups] == [20, 20, 20]
    for one in found.groups:
        assert len({int(text[4:]) % 3 for text in one.examples}) == 1


def test_alike_shares_are_said_to_be_alike() -> None:
    texts = ("which river is long", "prove a theorem now", "translate this poem please")
    rng = np.random.default_rng(2)
    draws = [draw(i, "ab"[int(rng.random() < 0.5)], f"{texts[i % 3]} {i}") for i in range(300, 0, -1)]
    found = topics.group(
        topics.VisibleDraws(draws, draws[::-1], {i: float(i % 3 == 0) for i in range(301)}), None
    )
    assert (len(found.groups), found.differs) == (3, False)
    assert {one.score for one in found.groups} == {0.0, 1.0}
    apart = [one._replace(arm="a" if one.question.startswith("prove") else "b") for one in draws]
    assert topics.group(topics.VisibleDraws(apart, apart[::-1], {}), None).differs


def test_few_questions_and_questions_without_words_are_in_no_topic() -> None:
    assert topics.group(topics.VisibleDraws([], [], {}), None).groups == ()
    few = [draw(i, "a", f"question {i}") for i in range(29)]
    assert topics.group(topics.VisibleDraws(few, few, {}), None).groups == ()
    empty = [draw(i, "a", "") for i in range(99)]
    assert topics.group(topics.VisibleDraws(empty, empty, {}), None).groups == ()
    same = [draw(i, "a", "the very same question") for i in range(99)]
    assert sum(one.n for one in topics.group(topics.VisibleDraws(same, same, {}), None).groups) == 99


def test_rare_values_of_a_field_are_summed_up() -> None:
    draws = [draw(i, "a", "?", **{f"tier=t{min(i, 11)}": 1.0}) for i in range(40)]
    names = [one.name for one in topics.group(topics.VisibleDraws(draws, draws, {}), None).groups]
    assert len(names) == 9
    assert names[0] == "t11"
    assert names[-1] == topics.OTHERS
