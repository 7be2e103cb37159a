"""Runs of the warm start, from labels to a verdict: on record with all that went in, and safe to fail."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from armwise.agent.cli.main import app
from armwise.agent.config import AppConfig, ConfigError, parse
from armwise.agent.evaluation import EvaluationFailedError
from armwise.agent.evaluation.promotion_verdict import FinishedEvaluation
from armwise.agent.jobs import RunFailedError, find_failed_run, next_run
from armwise.agent.lab.routers import Capability
from armwise.agent.lab.warmstart.canary import first_share
from armwise.agent.lab.warmstart.label_sources import LabelSources
from armwise.agent.lab.warmstart.labels import InsertSettings, insert_labels
from armwise.agent.lab.warmstart.proposals import remove_older
from armwise.agent.lab.warmstart.run import preview_lots, warm_start
from armwise.agent.learning import Learner, Recipe, active_recipe, publish_candidate
from armwise.agent.policies import PolicySpec
from armwise.agent.routers import RouterSpec, RoutingDataset, build_router
from armwise.agent.routers.utility import R3AG
from armwise.arms.lab.portfolio import outcomes
from armwise.arms.questions import Question
from armwise.feedback.drift import Alarm, Alarms, read_alarms
from armwise.feedback.drift.alarms import raise_alarms
from armwise.feedback.errors import LogUnavailableError, UnderWayError
from armwise.feedback.events import LABELS
from armwise.feedback.gate_spec import GateSpec
from armwise.feedback.log import Store
from armwise.feedback.registry import (
    ActivePolicy,
    Run,
    Version,
    active_policy,
    jobs,
    promotions,
    runs,
    versions,
)
from armwise.feedback.training_log import StartingPoint, examples, label_turns, take_epoch
from tests.agent.evaluation.test_evaluate import ARMS, turn
from tests.agent.fakes import CONFIG
from tests.agent.trained_routers import trained

LATE = 1e6
"""When runs are done: all feedback is in by then."""

TRAFFIC = 60
"""Decisions in the log before."""

PROMOTE: dict[str, Any] = {
    "verdict": "promote",
    "promote": True,
    "reasons": [],
    "figures": {"checked": 100, "effective_n": 50.0},
}
HOLD: dict[str, Any] = {
    **PROMOTE,
    "verdict": "hold",
    "promote": False,
    "reasons": ["It is worth 3.0; 100 are needed."],
}


def outcomes_file(folder: Path, n: int = 12, first: int = 0) -> Path:
    """Write what arms did on questions; dense is right."""
    folder.mkdir(exist_ok=True)
    outcomes.write_outcomes(
        folder / "outcomes.jsonl",
        [
            outcomes.Outcome(
                Question(f"q{row}", f"exam question {row}"),
                arm,
                (f"{arm}-1",),
                "yes",
                {"em": float(arm == "dense" or row % 5 == 0)},
                {"steps": ARMS.index(arm)},
            )
            for row in range(first, first + n)
            for arm in ARMS
        ],
    )
    return folder


def configured(folder: Path, **fields: Any) -> AppConfig:
    """A configuration whose one source is a folder of outcomes, unless told otherwise."""
    exam = {"kind": "outcomes", "path": str(folder / "exam"), "metrics": {"right": "em"}}
    document = {
        **CONFIG,
        "home": str(folder / "home"),
        "log_url": f"sqlite:///{folder / 'log.db'}",
        "warm_start": {"sources": {"exam": exam}, **fields},
    }
    return parse(document)


@dataclass
class World:
    """A log with traffic that is learned, a folder of labels, and a gate that says what it is told to.

    Attributes:
        config: Names them.
        store: The log.
        folder: Where they are.
        gate: What the gate says.
        asked: The candidates that it was asked about, one list each time.
        meanwhile: Done while a candidate is judged.
    """

    config: AppConfig
    store: Store
    folder: Path
    gate: dict[str, Any] = field(default_factory=lambda: HOLD)
    asked: list[list[str]] = field(default_factory=list)
    meanwhile: Callable[[], object] = lambda: None

    def run_evaluation(
        self, store: Store, config: AppConfig, request: Mapping[str, Any], *rest: object
    ) -> FinishedEvaluation:
        """Stand in for an evaluation."""
        del store, config, rest
        assert request["gate"]
        self.asked.append(request["candidates"])
        self.meanwhile()
        told = [{"name": name, "verdict": self.gate} for name in request["candidates"]]
        return FinishedEvaluation(len(self.asked), {"candidates": told})

    def learn(self) -> Version | None:
        """Join and learn all that is new, as the service would."""
        epoch, recipe = take_epoch(self.store, "test", 0.0), active_recipe(self.store, self.config)
        backbones = self.config.backbones
        return Learner(self.store, recipe, ARMS, epoch, lambda: LATE, backbones=backbones).step()

    def ask(self, numbers: Sequence[int]) -> None:
        """Have some more traffic, judged and learned."""
        self.store.append([fact for number in numbers for fact in turn(number, ARMS[number % 3])])
        self.learn()

    def warmed(self, said: StringIO | None = None, now: float = LATE, **changes: Any) -> Run:
        """Do a run."""
        console = Console(file=said or StringIO(), width=150)
        config = self.config.model_copy(update=changes)
        return warm_start(config, runs.Trigger.COMMAND, console, lambda *_: None, lambda: now)

    def newest(self) -> Version:
        """The version that was published last."""
        found = versions.latest(self.store)
        assert found is not None
        return found

    def start_of(self, run: Run) -> StartingPoint | None:
        """Where the candidate of a run began to learn."""
        assert run.candidate is not None
        found = versions.find(self.store, run.candidate)
        assert found is not None
        return StartingPoint.from_document(found.start)

    @property
    def ours(self) -> str:
        """Digest of the configured recipe."""
        return Recipe.from_config(self.config).digest

    @property
    def unchanged(self) -> bool:
        """Whether the configured recipe is active, as when nothing was promoted."""
        return active_recipe(self.store, self.config) == Recipe.from_config(self.config)

    def say(self, version: Version, action: promotions.Action, **fields: Any) -> None:
        """Have an operator say something."""
        promotions.record(
            self.store,
            self.ours,
            promotions.Promotion(0, version.version, action, "as it is", LATE, **fields),
        )


@pytest.fixture
def cold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A log that has a first version, and no traffic."""
    monkeypatch.delenv("ARMWISE_HOME", raising=False)
    outcomes_file(tmp_path / "exam")
    config = configured(tmp_path)
    with closing(Store(config.database_url)) as store:
        world = World(config, store, tmp_path)
        world.learn()
        monkeypatch.setattr("armwise.agent.lab.warmstart.run.run_evaluation", world.run_evaluation)
        yield world


@pytest.fixture
def world(cold: World) -> World:
    """The same, with traffic."""
    draws = np.random.default_rng(0).permutation(np.repeat(ARMS, TRAFFIC // 3))
    cold.store.append([fact for number, drawn in enumerate(draws) for fact in turn(number, str(drawn))])
    cold.learn()
    return cold


def found_by(run: Run, step: str) -> dict[str, Any]:
    (found,) = (one["found"] for one in run.steps if one["name"] == step)
    return dict(found)


def said_by(run: Run, step: str) -> str:
    (said,) = (one["said"] for one in run.steps if one["name"] == step)
    return str(said)


def reasons_of(run: Run) -> list[str]:
    assert run.status is runs.RunState.HELD
    reasons: list[str] = found_by(run, "decide")["reasons"]
    return reasons


# -- the whole way ----------------------------------------------------------------------------------------


def test_labels_become_a_candidate_that_the_gate_promotes(world: World) -> None:
    world.gate, said = PROMOTE, StringIO()
    run = world.warmed(said)
    assert (run.status, run.trigger, run.error) == (runs.RunState.PROMOTED, runs.Trigger.COMMAND, None)
    assert [step["name"] for step in run.steps] == ["gather", "enter", "learn", "evaluate", "decide"]
    assert all(step["said"] in said.getvalue() and step["at"] == LATE for step in run.steps)
    assert said_by(run, "gather") == "new labels from exam"
    assert found_by(run, "enter") == {"exam": 36}
    assert world.start_of(run) == StartingPoint((run.seq,), 0)
    assert world.asked == [[f"recipe:{run.candidate}"]]
    promoted = active_policy(world.store, world.ours).promotion
    assert promoted is not None
    assert (promoted.version, promoted.evaluation, promoted.forced) == (run.candidate, 1, False)
    assert promoted.reason == f"warm start {run.seq}: the gate lets it through"
    assert active_recipe(world.store, world.config).start == StartingPoint((run.seq,), 0)


@pytest.mark.slow
def test_a_learner_goes_on_with_what_was_promoted(world: World) -> None:
    world.gate = PROMOTE
    run = world.warmed()
    candidate = world.newest()
    assert candidate.version == run.candidate
    world.ask(range(TRAFFIC, TRAFFIC + 10))
    assert world.newest().recipe == candidate.recipe
    assert world.newest().examples_seq > candidate.examples_seq
    labels = [
        one.decision
        for one in examples.read_labels(world.store, world.config.reward, StartingPoint((run.seq,)))
    ]
    assert len(labels) == 36
    assert {one.policy for one in labels} == {LABELS}
    assert {examples.find_run(one) for one in labels} == {run.seq}


def test_a_candidate_that_the_gate_holds_leaves_what_is_served_as_it_was(world: World) -> None:
    before = world.newest()
    run = world.warmed()
    assert reasons_of(run) == HOLD["reasons"]
    assert world.unchanged
    world.learn()
    after = versions.latest(world.store, before.recipe)
    assert after is not None
    assert after.digest == before.digest, "labels of a run that is not active_recipe teach it nothing"


def test_without_new_labels_and_new_traffic_there_is_nothing_new(world: World) -> None:
    held = world.warmed()
    world.learn()
    again = world.warmed()
    assert again.status is runs.RunState.NOTHING_NEW
    assert [step["name"] for step in again.steps] == ["gather"]
    assert said_by(again, "gather") == "no new labels"
    assert (again.candidate, again.evaluation) == (None, None)
    assert len(world.asked) == 1
    before, now = held.inputs["lots"][0], again.inputs["lots"][0]
    assert (before["new"], now["new"], before["digest"]) == (True, False, now["digest"])


@pytest.mark.slow
def test_labels_of_no_run_are_known_to_a_candidate_that_learns_from_the_start_alone(world: World) -> None:
    exam = InsertSettings(config=world.config, outcomes=world.folder / "exam", metrics={"right": "em"})
    told: list[tuple[str, int, int | None]] = []
    assert insert_labels(exam, Console(file=StringIO()), lambda *step: told.append(step)) == 36
    assert told[-1] == ("inserting labels", 36, 36)
    world.learn()
    outcomes_file(world.folder / "exam", 13)
    assert found_by(world.warmed(), "enter") == {"exam": 3}
    alarm(world, 96, at=4e9)  # after these labels, which are of now
    outcomes_file(world.folder / "exam", 14)
    assert found_by(world.warmed(), "enter") == {"exam": 39}, "those before the alarm are new to it"
    outcomes_file(world.folder / "exam", 15)
    exam = exam.model_copy(update={"outcomes": world.folder / "exam"})
    assert insert_labels(exam, Console(file=StringIO()), lambda *_: None) == 9
    world.learn()
    outcomes_file(world.folder / "exam", 16)
    assert found_by(world.warmed(), "enter") == {"exam": 3}, "it learns those after the alarm from the log"


@pytest.mark.slow
def test_a_held_candidate_is_judged_again_by_more_traffic(world: World) -> None:
    held = world.warmed()
    world.ask(range(TRAFFIC, TRAFFIC + 10))
    world.gate = PROMOTE
    again = world.warmed()
    assert again.status is runs.RunState.PROMOTED
    assert again.inputs["labels"] == 0
    assert world.start_of(again) == StartingPoint((held.seq,), 0)
    assert again.inputs["recipe"] == held.inputs["recipe"]
    assert world.warmed().status is runs.RunState.NOTHING_NEW, "it is what is active now"


def test_a_held_candidate_is_judged_again_by_another_gate(world: World) -> None:
    held = world.warmed()
    world.gate = PROMOTE
    again = world.warmed(gate=GateSpec(margin=-0.1))
    assert again.status is runs.RunState.PROMOTED
    assert (again.candidate, again.inputs["recipe"]) == (held.candidate, held.inputs["recipe"])


@pytest.mark.slow
def test_labels_of_several_runs_add_up_and_none_is_entered_twice(world: World) -> None:
    first = world.warmed()
    outcomes_file(world.folder / "exam", 20)  # twelve of them as before
    second = world.warmed()
    assert (first.inputs["labels"], second.inputs["labels"]) == (36, 24)
    assert world.start_of(second) == StartingPoint((first.seq, second.seq), 0)
    labels = list(
        examples.read_labels(world.store, world.config.reward, StartingPoint((first.seq, second.seq)))
    )
    assert len(labels) == 60


def alarm(world: World, example_seq: int, recipe: str | None = None, at: float = LATE) -> None:
    epoch = take_epoch(world.store, "test", 0.0)
    raise_alarms(
        world.store,
        epoch,
        [Alarm(recipe or world.ours, "reward of none", "adwin", 0.8, 0.1, example_seq, at)],
    )


def open_alarm(world: World) -> bool:
    said = active_policy(world.store, world.ours)
    return read_alarms(world.store, world.config.reward.join, said).warm_start_open


def test_while_an_alarm_is_open_what_was_known_before_it_is_left_behind(world: World) -> None:
    old = world.warmed()
    world.learn()
    alarm(world, 70)  # of the training log, which the traffic and the labels have brought to 96
    outcomes_file(world.folder / "exam", 6, first=100)
    world.gate = PROMOTE
    run = world.warmed()
    assert run.status is runs.RunState.PROMOTED
    assert run.inputs["alarm"] == 70
    assert said_by(run, "gather") == "new labels from exam; after the alarm at example 70, reward of none"
    assert world.start_of(run) == StartingPoint((run.seq,), 70), f"run {old.seq} told of the old world"
    assert not open_alarm(world)
    assert world.warmed().status is runs.RunState.NOTHING_NEW, "what was left behind once stays so"


def test_a_held_run_leaves_the_alarm_open(world: World) -> None:
    alarm(world, 50)
    assert world.warmed().status is runs.RunState.HELD
    assert open_alarm(world)


def test_an_alarm_of_another_training_log_counts_for_nothing(world: World) -> None:
    alarm(world, 17, recipe="f" * 64)
    run = world.warmed()
    assert run.inputs["alarm"] is None
    assert world.start_of(run) == StartingPoint((run.seq,), 0)


@pytest.mark.slow
def test_a_run_is_done_alike_on_each_database(
    tmp_path: Path, log_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ARMWISE_HOME", raising=False)
    outcomes_file(tmp_path / "exam")
    config = configured(tmp_path).model_copy(update={"log_url": log_url})
    with closing(Store(log_url)) as store:
        world = World(config, store, tmp_path, PROMOTE)
        world.ask(range(9))
        monkeypatch.setattr("armwise.agent.lab.warmstart.run.run_evaluation", world.run_evaluation)
        run = world.warmed()
        assert (run.status, run.inputs["labels"], run.inputs["traffic"]) == (runs.RunState.PROMOTED, 36, 9)
        assert not world.unchanged
        assert world.warmed().status is runs.RunState.NOTHING_NEW


# -- a canary by itself -----------------------------------------------------------------------------------


UNDECIDED: dict[str, Any] = {**HOLD, "undecided": True}


def by_itself(world: World) -> Run:
    """Do a run that may begin a canary."""
    return world.warmed(warm_start=configured(world.folder, canary="auto").warm_start)


def test_a_candidate_held_for_want_of_evidence_gets_a_share_by_itself(world: World) -> None:
    world.gate = UNDECIDED
    run = by_itself(world)
    assert run.status is runs.RunState.HELD
    assert run.candidate is not None
    (canary,) = active_policy(world.store, world.ours).canaries
    share = first_share(world.config.explores, len(world.config.actions))
    assert canary == promotions.Promotion(
        canary.seq,
        run.candidate,
        promotions.Action.CANARY,
        f"canary: warm start {run.seq} holds it for want of evidence",
        canary.at,
        share=share,
        evaluation=1,
        automatic=True,
    )
    assert found_by(run, "decide")["canary"] == share
    assert f"It gets {share:.1%} of each decision in which it takes part" in said_by(run, "decide")


@pytest.mark.parametrize(
    ("verdict", "canary"), [(UNDECIDED, "off"), (HOLD, "auto"), ({**HOLD, "undecided": False}, "auto")]
)
def test_no_other_candidate_gets_one(world: World, verdict: dict[str, Any], canary: str) -> None:
    world.gate = verdict
    run = world.warmed(warm_start=configured(world.folder, canary=canary).warm_start)
    assert run.status is runs.RunState.HELD
    assert active_policy(world.store, world.ours).canaries == ()
    assert "canary" not in found_by(run, "decide")


@pytest.mark.slow
def test_a_candidate_of_a_recipe_that_has_a_share_gets_no_second_one(world: World) -> None:
    world.gate = UNDECIDED
    first = by_itself(world)
    world.ask(range(TRAFFIC, TRAFFIC + 10))
    again = by_itself(world)
    assert again.candidate != first.candidate
    assert [one.version for one in active_policy(world.store, world.ours).canaries] == [first.candidate]


@pytest.mark.slow
def test_beside_as_many_canaries_as_there_may_be_none_begins(world: World) -> None:
    world.gate = UNDECIDED
    recipes = [Recipe(PolicySpec(kind="fixed", params={"arm": arm}), world.config.reward) for arm in ARMS]
    recipes.append(Recipe(PolicySpec(kind="uniform"), world.config.reward))
    for recipe in recipes:
        beside = publish_candidate(world.store, recipe, list(world.config.actions))
        world.say(beside, promotions.Action.CANARY, share=0.1)
    by_itself(world)
    assert len(active_policy(world.store, world.ours).canaries) == promotions.MOST_CANARIES == 4
    world.say(beside, promotions.Action.CANARY, share=0.0)
    world.ask(range(TRAFFIC, TRAFFIC + 10))
    run = by_itself(world)
    assert run.candidate in [one.version for one in active_policy(world.store, world.ours).canaries]


def test_a_version_that_is_pinned_has_no_canary_by_itself(world: World) -> None:
    world.gate = UNDECIDED
    world.say(world.newest(), promotions.Action.ROLLBACK)
    by_itself(world)
    assert active_policy(world.store, world.ours).canaries == ()


def test_what_an_operator_does_meanwhile_leaves_a_candidate_without_a_share(world: World) -> None:
    world.gate, version = UNDECIDED, world.newest()
    world.meanwhile = lambda: world.say(version, promotions.Action.CANARY, share=0.1)
    by_itself(world)
    assert [one.version for one in active_policy(world.store, world.ours).canaries] == [version.version]


@pytest.mark.slow
def test_a_canary_by_itself_does_not_hold_up_a_promotion(world: World) -> None:
    world.gate = UNDECIDED
    first = by_itself(world)
    world.gate = PROMOTE
    outcomes_file(world.folder / "exam", 24)
    run = by_itself(world)
    assert run.status is runs.RunState.PROMOTED
    active = active_policy(world.store, world.ours)
    assert active.promotion is not None
    assert (active.promotion.version, active.canaries) == (run.candidate, ())
    assert first.candidate != run.candidate


def test_with_canaries_by_themselves_each_judgement_has_half_of_the_error(world: World) -> None:
    auto = world.config.model_copy(update={"warm_start": configured(world.folder, canary="auto").warm_start})
    assert world.config.judging_gate == world.config.gate
    assert auto.judging_gate.level == pytest.approx(0.975)
    assert auto.gate.level == 0.95


# -- why a candidate is held ------------------------------------------------------------------------------


def test_an_operator_who_pinned_a_version_is_not_overruled(world: World) -> None:
    world.gate, version = PROMOTE, world.newest()
    world.say(version, promotions.Action.ROLLBACK)
    assert reasons_of(world.warmed()) == [f"Version {version.version} is pinned by an operator."]


def test_a_canary_that_is_on_its_way_is_not_ended(world: World) -> None:
    world.gate, version = PROMOTE, world.newest()
    world.say(version, promotions.Action.CANARY, share=0.1)
    told = f"Version {version.version} has a share of the traffic, which a promotion would end."
    assert reasons_of(world.warmed()) == [told]


def test_what_was_said_while_a_candidate_was_judged_counts(world: World) -> None:
    world.gate, version = PROMOTE, world.newest()
    world.meanwhile = lambda: world.say(version, promotions.Action.PROMOTE)
    assert reasons_of(world.warmed()) == ["What is served was changed while it was judged."]


@pytest.mark.slow
def test_a_run_that_may_never_promote_says_who_may(world: World) -> None:
    world.gate = PROMOTE
    never = configured(world.folder, promote="never").warm_start
    told = ["`warm_start.promote` is never: an operator promotes it."]
    assert reasons_of(world.warmed(warm_start=never)) == told


def test_without_traffic_there_is_a_candidate_and_nothing_to_judge_it_by(cold: World) -> None:
    run = cold.warmed()
    assert run.candidate is not None
    assert run.evaluation is None
    assert reasons_of(run) == ["The log holds no decision of the traffic to judge it by."]


# -- a first start ----------------------------------------------------------------------------------------


def promoting(world: World, first: str = "promote") -> AppConfig:
    """Return the configuration with another `first`."""
    return world.config.model_copy(update={"warm_start": configured(world.folder, first=first).warm_start})


def first(world: World, config: AppConfig | None = None) -> Run:
    """Do the run of a first start."""
    console = Console(file=StringIO(), width=150)
    return warm_start(config or promoting(world), runs.Trigger.FIRST, console, lambda *_: None)


@pytest.mark.parametrize(
    "figures",
    [{"checked": 151, "effective_n": 30.9}, {"checked": 99, "effective_n": 60.0}, None],
    ids=["worth too little", "too few recomputed", "arms that were never live"],
)
def test_a_first_start_is_promoted_while_the_log_is_too_short_for_a_verdict(
    world: World, figures: dict[str, Any] | None
) -> None:
    world.gate = {**HOLD, "figures": figures, "undecided": True}
    run = first(world)
    assert (run.status, run.trigger) == (runs.RunState.PROMOTED, runs.Trigger.FIRST)
    active = active_policy(world.store, world.ours)
    assert active.promotion is not None
    assert (active.promotion.forced, active.promotion.evaluation, active.canaries) == (True, 1, ())
    assert active.promotion.reason == (
        "warm start 1: a first start, after 60 decisions. The gate cannot decide yet. "
        "It is worth 3.0; 100 are needed."
    )


@pytest.mark.parametrize(("gate", "state"), [(HOLD, runs.RunState.HELD), (PROMOTE, runs.RunState.PROMOTED)])
def test_a_first_start_behind_a_log_that_is_long_enough_is_judged_by_the_gate(
    world: World, gate: dict[str, Any], state: runs.RunState
) -> None:
    world.gate = gate
    run = first(world)
    assert (run.status, world.asked) == (state, [[f"recipe:{run.candidate}"]])
    promotion = active_policy(world.store, world.ours).promotion
    assert (promotion is None) == (state is runs.RunState.HELD)
    if promotion is not None:
        assert (promotion.forced, promotion.evaluation) == (False, 1)
        assert promotion.reason == "warm start 1: the gate lets it through"


def test_a_first_start_before_any_decision_says_that_nothing_was_served(cold: World) -> None:
    first(cold)
    promotion = active_policy(cold.store, cold.ours).promotion
    assert promotion is not None
    assert promotion.reason == "warm start 1: nothing was served before"


@pytest.mark.parametrize(
    ("before", "state"),
    [
        ([runs.Trigger.FIRST], runs.RunState.PROMOTED),
        ([runs.Trigger.FIRST, runs.Trigger.RESUMED], runs.RunState.PROMOTED),
        ([runs.Trigger.REQUEST], runs.RunState.HELD),
    ],
    ids=["first", "first, killed twice", "another"],
)
def test_a_run_goes_on_as_what_was_killed(
    world: World, before: list[runs.Trigger], state: runs.RunState
) -> None:
    world.gate = {**HOLD, "figures": None}
    for killed, trigger in enumerate(before):
        runs.claim(world.store, world.ours, trigger, "killed:1", LATE - 10 * (2 - killed) * jobs.LEASE_S)
    console = Console(file=StringIO(), width=150)
    run = warm_start(promoting(world), runs.Trigger.RESUMED, console, lambda *_: None, lambda: LATE)
    assert (run.seq, run.status) == (len(before) + 1, state)


def test_a_failed_first_start_is_done_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    config = promoting(world)
    assert config.warm_start is not None

    world.gate = {**HOLD, "figures": None}

    def fail(*_: object, **__: object) -> None:
        raise BrokenError("the current node timed out during startup")

    with monkeypatch.context() as patch:
        patch.setattr("armwise.agent.lab.warmstart.run.insert_labels", fail)
        with pytest.raises(RunFailedError, match="the current node timed out"):
            first(world, config)
    assert world.unchanged
    due = next_run(
        world.store, config.warm_start, world.ours, config.reward.join, Alarms(0, None, False), 0.0
    )
    assert due is not None
    run = warm_start(
        config, due.trigger, Console(file=StringIO(), width=150), lambda *_: None, lambda: due.at
    )
    assert (run.status, run.trigger) == (runs.RunState.PROMOTED, runs.Trigger.RESUMED), (
        "as the first one would have been"
    )
    assert (
        next_run(world.store, config.warm_start, world.ours, config.reward.join, Alarms(0, None, False), 0.0)
        is None
    )
    assert find_failed_run(world.store, world.ours, lambda: None) is None


# -- failures ---------------------------------------------------------------------------------------------


class BrokenError(Exception):
    """Something failed."""


@pytest.mark.parametrize(
    ("step", "broken"),
    [
        ("gather", "armwise.agent.lab.warmstart.label_sources.digest_file"),
        ("enter", "armwise.feedback.training_log.label_turns.insert"),
        ("learn", "armwise.agent.lab.warmstart.run.publish_candidate"),
        ("evaluate", "armwise.agent.lab.warmstart.run.run_evaluation"),
        ("decide", "armwise.feedback.registry.promotions.record"),
    ],
)
@pytest.mark.slow
def test_a_run_that_fails_says_where_and_leaves_what_is_served(
    world: World, monkeypatch: pytest.MonkeyPatch, step: str, broken: str
) -> None:
    world.gate, before = PROMOTE, world.newest()

    def fail(*_: object, **__: object) -> None:
        raise BrokenError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(broken, fail)
        with pytest.raises(RunFailedError, match=r"run 1 failed, .* as it was: the disk is full$"):
            world.warmed()
    run = runs.find(world.store, 1)
    assert run is not None
    assert (run.status, run.error) == (runs.RunState.FAILED, f"{step}: BrokenError: the disk is full")
    assert (run.steps[-1]["name"], run.finished_at) == (step, LATE)
    assert world.unchanged
    world.learn()
    after = versions.latest(world.store, before.recipe)
    assert after is not None
    assert after.digest == before.digest

    again = world.warmed()
    assert again.status is runs.RunState.PROMOTED, "the labels of a run that failed are as new as before"
    assert world.start_of(again) == StartingPoint((2,), 0)
    assert again.inputs["labels"] == 36


def test_without_a_configured_warm_start_there_is_no_run(world: World) -> None:
    with pytest.raises(ConfigError, match="warm_start is not configured"):
        world.warmed(warm_start=None)
    assert runs.page(world.store, 1) == []


def test_a_run_beside_another_is_refused_and_leaves_it_alone(world: World) -> None:
    runs.claim(world.store, world.ours, runs.Trigger.SCHEDULE, "there:1", LATE)
    with pytest.raises(UnderWayError, match="run 1 of there:1 has been running"):
        world.warmed(now=LATE + 1.0)
    assert [run.status for run in runs.page(world.store, 5)] == [runs.RunState.RUNNING]


def test_a_run_that_was_taken_for_dead_does_not_promote(world: World) -> None:
    world.gate = PROMOTE
    world.meanwhile = lambda: runs.claim(
        world.store, world.ours, runs.Trigger.RESUMED, "there:1", LATE + 2 * jobs.LEASE_S
    )
    with pytest.raises(RunFailedError, match=r"no longer holds run 1: it is abandoned, last claimed by .*$"):
        world.warmed()
    assert [run.status for run in runs.page(world.store, 5)] == [
        runs.RunState.RUNNING,
        runs.RunState.ABANDONED,
    ]
    assert world.unchanged


def test_a_promotion_is_noted_whole_or_not_made(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.gate = PROMOTE

    def away(*_: object, **__: object) -> None:
        raise LogUnavailableError("database is locked")

    with monkeypatch.context() as patch:
        patch.setattr(
            "armwise.feedback.registry.promotions.update", away
        )  # the last but one of what the transaction writes
        with pytest.raises(RunFailedError, match="what is served is as it was: database is locked"):
            world.warmed()
    assert runs.page(world.store, 1)[0].status is runs.RunState.FAILED
    assert active_policy(world.store, world.ours) == ActivePolicy(world.ours)


def test_a_rollback_during_promotion_wins(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.gate, version, real = PROMOTE, world.newest(), promotions.record

    def late(store: Store, configured: str, promotion: promotions.Promotion, **rest: Any) -> None:
        real(
            store,
            configured,
            promotions.Promotion(0, version.version, promotions.Action.ROLLBACK, "incident", LATE),
        )
        real(store, configured, promotion, **rest)

    monkeypatch.setattr(promotions, "record", late)
    assert reasons_of(world.warmed()) == ["What is served was changed while it was judged."]
    assert active_policy(world.store, world.ours).pin is not None


def test_labels_of_a_dead_run_are_entered_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.gate, left, real = PROMOTE, iter(range(2)), label_turns.insert

    def dying(store: Store, batch: Sequence[label_turns.LabelTurn]) -> int:
        if next(left, None) is None:
            raise LogUnavailableError("the machine is gone")
        return real(store, batch)

    with monkeypatch.context() as patch:
        patch.setattr("armwise.agent.lab.warmstart.labels.BATCH", 10)
        patch.setattr(label_turns, "insert", dying)
        patch.setattr(runs, "finish", lambda *_: None)  # who is dead records nothing
        with pytest.raises(RunFailedError):
            world.warmed()
    assert [run.status for run in runs.page(world.store, 5)] == [runs.RunState.RUNNING]
    run = world.warmed(now=LATE + 2 * jobs.LEASE_S)
    assert run.status is runs.RunState.PROMOTED
    assert run.inputs["labels"] == 36
    assert world.start_of(run) == StartingPoint((2,), 0)
    assert [one.status for one in runs.page(world.store, 5)] == [
        runs.RunState.PROMOTED,
        runs.RunState.ABANDONED,
    ]


# -- what went in -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_digests_change_with_what_goes_in_and_with_nothing_else(world: World) -> None:
    def inputs(**changes: Any) -> dict[str, Any]:
        return dict(world.warmed(**changes).inputs)

    first, same = inputs(), inputs()
    kept = ("configuration", "arms", "join", "live", "alarm", "traffic")
    assert [first[key] for key in kept] == [same[key] for key in kept]
    assert inputs(home=str(world.folder / "elsewhere"))["configuration"] == first["configuration"]
    other = inputs(floor=0.02)
    assert other["configuration"] != first["configuration"]
    assert other["arms"] == first["arms"]

    outcomes_file(world.folder / "exam", 13)
    changed = inputs()
    assert changed["lots"][0]["digest"] != first["lots"][0]["digest"]
    assert changed["configuration"] == first["configuration"]


def test_what_a_run_would_gather_is_told_without_a_run(world: World) -> None:
    (lot,) = preview_lots(world.config, lambda *_: None)
    assert (lot.source, lot.kind, lot.new) == ("exam", "outcomes", True)
    assert runs.page(world.store, 1) == []
    assert world.store.counts()["decisions"] == TRAFFIC


# -- what is proposed beside ------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_portfolio_and_a_router_are_proposed_and_the_router_is_judged(world: World) -> None:
    outcomes_file(world.folder / "exam", 40)
    router = {"kind": "ridge", "utility": {"measures": {"em": 1.0}}, "live": False}
    spec = configured(world.folder, portfolio={"measure": "em", "k": 2}, router=router).warm_start
    run = world.warmed(warm_start=spec)
    assert [step["name"] for step in run.steps] == [
        *("gather", "portfolio", "router", "enter", "learn", "evaluate", "decide")
    ]
    portfolio = found_by(run, "portfolio")
    assert portfolio["arms"][0] == "dense"
    assert len(portfolio["curve"]["portfolio"]) == len(portfolio["curve"]["average"]) == 2
    assert portfolio["curve"]["portfolio"][-1] == portfolio["value"]
    assert Path(portfolio["path"]).is_relative_to(world.folder / "home" / "runs" / str(run.seq))
    assert Path(portfolio["path"]).exists()
    assert portfolio["apply"] == f"armwise policy apply {portfolio['path']}"
    assert said_by(run, "portfolio") == (
        f"chose {', '.join(portfolio['arms'])}: em {portfolio['value']:.3f} on held-out questions, the best "
        f"single arm {portfolio['single']:.3f}; serve them with `{portfolio['apply']}`"
    )
    proposed = found_by(run, "router")
    assert Path(proposed["path"]) == world.folder / "home" / "routers" / str(run.seq)
    assert proposed["held_out"]["questions"] == 40
    single = proposed["held_out"]["single"]
    assert said_by(run, "router") == (
        "trained ridge on 40 questions: of those that it has not seen it earns "
        f"{proposed['held_out']['router']['utility']:.4f}, the best single arm, {single}, "
        f"{proposed['held_out']['arms'][single]['utility']:.4f}; serve it with `{proposed['configure']}`"
    )
    document = world.config.model_dump(mode="json")
    assert parse({**document, "router": {"path": proposed["path"]}}).router is not None
    assert world.asked == [[f"recipe:{run.candidate}"], [f"router:{proposed['path']}"]]
    assert run.evaluation == 1, "the one that decides"


def alike(folder: Path, n: int) -> None:
    """Write outcomes of questions on which no arm does better than another."""
    row = outcomes.Outcome(Question("", ""), "", (), "yes", {"em": 1.0}, {"steps": 1})
    asked = [Question(f"q{i}", f"exam question {i}") for i in range(n)]
    rows = [replace(row, question=question, arm=arm) for question in asked for arm in ARMS]
    (folder / "exam").mkdir(exist_ok=True)
    outcomes.write_outcomes(folder / "exam" / "outcomes.jsonl", rows)


@pytest.mark.parametrize("n", [1, 40])
@pytest.mark.parametrize("kind", ["ridge", "calibrated"])
def test_labels_on_which_no_arm_does_better_end_a_run_well_and_are_tried_again(
    world: World, kind: str, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lots = LabelSources.lots  # none is entered into the log, as with questions that are made
    monkeypatch.setattr(LabelSources, "lots", lambda *a: [replace(lot, metrics={}) for lot in lots(*a)])
    alike(world.folder, n)
    params = {"router": {"kind": "ridge"}} if kind == "calibrated" else {}
    router = {"kind": kind, "params": params, "utility": {"measures": {"em": 1.0}}}
    spec = configured(world.folder, router=router).warm_start
    run = world.warmed(warm_start=spec)
    assert run.status is runs.RunState.NOTHING_NEW
    assert run.too_little == (
        "all 3 arms did equally well on nearly every question"
        if n > 1
        else "1 questions are too few for 5 folds"
    )
    assert (world.asked, world.unchanged) == ([], True)
    outcomes_file(world.folder / "exam", 40)
    again = world.warmed(warm_start=spec)
    assert (again.status, again.too_little) == (runs.RunState.HELD, None)
    assert found_by(again, "router")["kind"] == kind


def judged_outcomes(folder: Path, n: int) -> None:
    """Write the answers of half of the questions, and what a judge said of the passages of all."""
    (folder / "exam").mkdir(exist_ok=True)
    outcomes.write_outcomes(
        folder / "exam" / "outcomes.jsonl",
        [
            outcomes.Outcome(
                Question(f"q{row}", f"exam question {row}"),
                arm,
                (f"{arm}-1",),
                "yes",
                {"judge": float(arm == ARMS[row % 3])}
                | ({"em": float(arm == "dense"), "f1": float(arm == "dense")} if row % 2 else {}),
                {"steps": 1.0},
            )
            for row in range(n)
            for arm in ARMS
        ],
    )


@pytest.mark.slow
def test_a_run_trains_r3ag_on_judged_quality(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    judged_outcomes(world.folder, 40)
    taught: list[RoutingDataset] = []
    fit = Capability.fit

    def watched(router: Capability, labels: RoutingDataset) -> Capability:
        taught.append(labels)
        return fit(router, labels)

    monkeypatch.setattr(Capability, "fit", watched)
    router = {
        "kind": "capability",
        "utility": R3AG.model_dump(mode="json"),
        "quality": "judge",
        "live": False,
    }
    run = world.warmed(warm_start=configured(world.folder, router=router).warm_start)
    assert found_by(run, "router")["quality"] == "judge"
    labels = taught[-1]
    assert labels.quality is not None
    rows = [int(text.removeprefix("exam question ")) for text in labels.features.texts]
    expected = [[float(arm == ARMS[row % 3]) for arm in labels.features.arms] for row in rows]
    assert labels.quality.tolist() == expected
    assert (np.nanmax(labels.outcome), np.nanmax(labels.utility)) == pytest.approx((1.2, 1.4))
    assert np.isnan(labels.utility).all(axis=1).tolist() == [row % 2 == 0 for row in rows]
    assert found_by(run, "router")["held_out"]["questions"] == 20
    assert sum(found_by(run, "router")["held_out"]["picks"].values()) == pytest.approx(1.0)


@pytest.mark.slow
def test_a_router_that_cannot_be_judged_decides_nothing(world: World) -> None:
    world.gate = PROMOTE
    router = {"kind": "ridge", "utility": {"measures": {"em": 1.0}}, "live": False}
    spec = configured(world.folder, router=router).warm_start

    def meanwhile() -> None:
        if world.asked[-1][0].startswith("router:"):
            raise EvaluationFailedError("evaluation 2 failed: no row is left")

    world.meanwhile = meanwhile
    run = world.warmed(warm_start=spec)
    assert run.status is runs.RunState.PROMOTED
    assert said_by(run, "evaluate").endswith("is not judged: evaluation 2 failed: no row is left")
    assert list(found_by(run, "evaluate")) == [f"recipe:{run.candidate}"]


def test_a_candidate_that_cannot_be_judged_is_held_for_that_reason(world: World) -> None:
    def meanwhile() -> None:
        raise EvaluationFailedError("evaluation 1 failed: nothing can be estimated from this log")

    world.meanwhile = meanwhile
    run = world.warmed()
    assert run.status is runs.RunState.HELD
    assert reasons_of(run) == ["evaluation 1 failed: nothing can be estimated from this log"]
    assert found_by(run, "evaluate") == {}


def test_a_router_of_passages_is_not_judged(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    made = trained(build_router(RouterSpec(kind="max_sim")))
    monkeypatch.setattr("armwise.agent.lab.warmstart.proposals.train_router", lambda *_: made)
    router = {"kind": "max_sim", "utility": {"measures": {"em": 1.0}}, "live": False}
    run = world.warmed(warm_start=configured(world.folder, router=router).warm_start)
    said = said_by(run, "router")
    assert said.startswith("trained max_sim on ")
    assert "it is not evaluated" in said
    assert world.asked == [[f"recipe:{run.candidate}"]]


def test_a_portfolio_by_a_score_that_no_label_has_fails_the_run(world: World) -> None:
    spec = configured(world.folder, portfolio={"measure": "f1"}).warm_start
    with pytest.raises(RunFailedError, match=r"portfolio.measure: no label has a score 'f1'"):
        world.warmed(warm_start=spec)
    assert runs.page(world.store, 1)[0].error is not None


def test_proposals_of_the_newest_runs_are_kept_and_those_that_are_configured(tmp_path: Path) -> None:
    for name in (*range(1, 10), "mine", 2024):
        (tmp_path / str(name)).mkdir()
    remove_older(tmp_path, 9, tmp_path / "2")
    assert {one.name for one in tmp_path.iterdir()} == {*"256789", "mine", "2024"}
    remove_older(tmp_path, 9, None)
    assert {one.name for one in tmp_path.iterdir()} == {*"56789", "mine", "2024"}


@pytest.mark.slow
def test_the_configured_router_is_never_pruned(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("armwise.agent.lab.warmstart.proposals.KEPT", 1)
    proposed = {"kind": "ridge", "utility": {"measures": {"em": 1.0}}, "live": False}
    spec = configured(world.folder, router=proposed).warm_start
    document, paths = world.config.model_dump(mode="json"), list[str]()
    for n in (13, 14, 15):
        outcomes_file(world.folder / "exam", n)
        router = parse({**document, "router": {"path": paths[0]}}).router if paths else None
        run = world.warmed(warm_start=spec, router=router)
        paths.append(found_by(run, "router")["path"])
    assert [Path(path).exists() for path in paths] == [True, False, True]


@pytest.mark.slow
def test_feedback_is_made_into_proposals_and_not_into_labels(world: World) -> None:
    users = {"kind": "feedback", "measure": "thumb"}
    plan = {"measure": "thumb", "k": 1}
    spec = configured(world.folder, sources={"users": users}, portfolio=plan).warm_start
    run = world.warmed(warm_start=spec)
    assert found_by(run, "portfolio")["arms"] == ["dense"]
    assert reasons_of(run) == ["There is no candidate."]
    assert run.inputs["labels"] == 0
    assert world.warmed(warm_start=spec).status is runs.RunState.NOTHING_NEW


# -- the command line -------------------------------------------------------------------------------------


@pytest.fixture
def file(world: World) -> Path:
    path = world.folder / "config.yaml"
    path.write_text(json.dumps({"applications": [{"args": world.config.model_dump(mode="json")}]}))
    return path


@pytest.mark.slow
def test_the_command_does_a_run_and_says_how_it_ended(world: World, file: Path) -> None:
    dry = CliRunner().invoke(app, ["lab", "warm-start", "--dry-run", "-c", str(file)])
    assert dry.exit_code == 0, dry.output
    assert f"exam: outcomes, new, {world.folder / 'exam'}" in dry.output
    assert runs.page(world.store, 1) == []
    done = CliRunner().invoke(app, ["lab", "warm-start", "-c", str(file)])
    assert done.exit_code == 0, done.output
    assert "36 new labels" in done.output
    assert "run 1: held" in done.output


def test_the_command_fails_where_the_run_does(world: World, file: Path) -> None:
    (world.folder / "exam" / "outcomes.jsonl").write_text("{}\n")
    done = CliRunner().invoke(app, ["lab", "warm-start", "-c", str(file)])
    assert done.exit_code == 1
    assert "run 1 failed, what is served is as it was" in done.output
    assert runs.page(world.store, 1)[0].status is runs.RunState.FAILED
