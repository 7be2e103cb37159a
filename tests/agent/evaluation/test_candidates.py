"""What candidates would have drawn from, on small logs whose every row can be followed."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import ValidationError

from armwise.agent.config import AppConfig, parse
from armwise.agent.evaluation.candidate_names import CandidateError, CandidateKind, parse_name, spell_out
from armwise.agent.evaluation.candidates import CandidateService, build_candidate
from armwise.agent.evaluation.evaluation_request import EvaluationRequest
from armwise.agent.evaluation.replay_log import WITHOUT_CONTEXT, Target, decide_log, plain_target
from armwise.agent.learning import Recipe
from armwise.agent.policies import PolicySpec, Uniform, build_policy, catalog
from armwise.agent.routers import out_of_fold, saved
from armwise.feedback.decisions import EVERYTHING, Decisions, Selection, tabulate
from armwise.feedback.events import (
    LABELS,
    SIMILARITY,
    Context,
    Cost,
    Decision,
    Example,
    Execution,
    Feedback,
    Status,
)
from armwise.feedback.log import Store
from armwise.feedback.registry import Version, versions
from armwise.feedback.reward import RewardRule
from armwise.feedback.training_log import StartingPoint, label_turns, take_epoch
from armwise.feedback.training_log import examples as training_log_examples
from armwise.feedback.training_log.settled import Settled
from tests.agent.fakes import CONFIG
from tests.agent.trained_routers import TEXTS, kept
from tests.steps import change

ARMS = ("none", "bm25", "dense")
THIRDS = (1 / 3, 1 / 3, 1 / 3)
FLOOR = 0.02 / 3


class Examples:
    """A training log in memory."""

    def __init__(self, examples: Sequence[Example]) -> None:
        self._examples = examples

    def blocks(
        self,
        rule: RewardRule,
        selection: Selection = EVERYTHING,
        tell: object = None,
        *,
        contexts: bool = False,
    ) -> Iterator[tuple[Decisions, Sequence[Example]]]:
        del tell, contexts
        for begin in range(0, len(self._examples), 300):
            some = self._examples[begin : begin + 300]
            for decisions in tabulate(some, rule, selection):
                yield decisions, some

    def sample(self, rule: RewardRule, selection: Selection, tell: object) -> Iterator[Decisions]:
        del tell
        for part in tabulate(self._examples, rule, selection):
            yield part.where(part.match(selection))

    @property
    def settled(self) -> Settled:
        return Settled()

    def remarks(self, rule: RewardRule) -> list[str]:
        del rule
        return []


class Memory(Uniform):
    """Remembers the best arm of each question, and is sure of it; uniform on any other question."""

    kind = "memory"

    def __init__(self) -> None:
        self.best: dict[str, tuple[float, str]] = {}

    def probabilities(self, context: Context, arms: Sequence[str]) -> NDArray[np.float64]:
        if context.question not in self.best:
            return super().probabilities(context, arms)
        return np.array([float(arm == self.best[context.question][1]) for arm in arms])

    def learn(self, decision: Decision, reward: float) -> None:
        question, found = decision.context.question, (reward, decision.drawn)
        self.best[question] = max(self.best.get(question, found), found)

    def save(self) -> bytes:
        return json.dumps(sorted(self.best.items())).encode()

    def load(self, state: bytes) -> Self:
        found = type(self)()
        found.best = {question: (reward, arm) for question, (reward, arm) in json.loads(state)}
        return found


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "POLICIES", {**catalog.POLICIES, "memory": Memory})


@pytest.fixture
def config(tmp_path: Path) -> AppConfig:
    return parse({**CONFIG, "log_url": f"sqlite:///{tmp_path / 'log.db'}"})


def example(
    seq: int,
    drawn: str = "dense",
    value: float = 1.0,
    *,
    question: str = "",
    arms: tuple[str, ...] = ARMS,
    **changes: Any,
) -> Example:
    p = (1 / len(arms),) * len(arms)
    context = Context(question or f"question {seq}", {"w=river": 1.0}, (), {arm: {} for arm in arms})
    decision = Decision(f"d-{seq}", context, arms, p, drawn, "uniform", 1, decided_at=float(seq))
    return Example(seq, change(decision, **changes), Cost(), {"thumb": value})


def asked(
    config: AppConfig,
    examples: Sequence[Example],
    name: str,
    store: Store | None = None,
    rule: RewardRule | None = None,
    **selected: Any,
) -> Target:
    named, service = parse_name(name), CandidateService.from_config(config, rule or config.reward, store)
    built = [] if named.kind in WITHOUT_CONTEXT else [build_candidate(named, service)]
    log, found, _ = decide_log(
        built, Examples(examples), service.rule, Selection(**selected), lambda *_: None
    )
    target = found[0] if found else plain_target(log, named)
    return replace(target, p=np.asarray(target.p))


def floored(*p: float) -> list[float]:
    return [FLOOR + (1 - len(p) * FLOOR) * one for one in p]


def test_what_was_served_is_what_is_on_record(config: AppConfig) -> None:
    p = (0.5, 0.3, 0.2)
    target = asked(config, [example(1), example(2, probabilities=p)], "served")
    assert target.p.tolist() == [list(THIRDS), list(p)]
    assert target.kept.all()


def test_uniform_and_fixed_draw_without_a_floor(config: AppConfig) -> None:
    log = [example(1), example(2, "bm25", arms=("none", "bm25"))]
    assert asked(config, log, "uniform").p.tolist() == [pytest.approx(THIRDS), [0.5, 0.5, 0.0]]
    fixed = asked(config, log, "fixed:dense")
    assert fixed.p[0].tolist() == [0.0, 0.0, 1.0]
    assert fixed.kept.tolist() == [True, False]
    assert fixed.left_out == {"the arm could not have been drawn": 1}


@pytest.mark.parametrize("p", [(0.0, 0.0, 1.0), (0.5, 0.0, 0.5)])
def test_uniform_is_not_judged_where_an_eligible_arm_had_no_probability(
    config: AppConfig, p: tuple[float, ...]
) -> None:
    target = asked(config, [example(1), example(2, probabilities=p)], "uniform")
    assert target.kept.tolist() == [True, False]
    assert target.left_out == {"an eligible arm could not have been drawn": 1}


def test_a_policy_that_would_be_served_is_judged_with_the_floor(config: AppConfig) -> None:
    target = asked(config, [example(1)], "policy:{kind: fixed, params: {arm: bm25}}")
    assert target.p[0].tolist() == pytest.approx(floored(0.0, 1.0, 0.0))


def test_a_floor_that_an_alarm_had_raised_is_the_candidates_too(config: AppConfig) -> None:
    log = [example(1, floor=0.2), example(2, floor=0.001), example(3, floor=None)]
    target = asked(config, log, "policy:{kind: fixed, params: {arm: bm25}}")
    assert target.p[0].tolist() == pytest.approx([0.2, 0.6, 0.2])
    assert target.p[1].tolist() == target.p[2].tolist() == pytest.approx(floored(0.0, 1.0, 0.0))


def test_whoever_learns_has_not_seen_the_row_that_is_decided(config: AppConfig) -> None:
    log = [example(n, "dense", question=f"question {n % 4}") for n in range(1, 9)]
    p = asked(config, log, "policy:{kind: memory}").p
    assert p[:4].tolist() == [pytest.approx(THIRDS)] * 4, "asked for the first time"
    assert p[4:].tolist() == [pytest.approx(floored(0.0, 0.0, 1.0))] * 4, "asked again"


def test_rows_that_are_not_selected_are_learned_all_the_same(config: AppConfig) -> None:
    log = [example(n, question="the same") for n in range(1, 5)]
    target = asked(config, log, "policy:{kind: memory}", since=3.0)
    assert target.p.tolist() == [pytest.approx(floored(0.0, 0.0, 1.0))] * 2


def test_labels_teach_and_are_not_decided(config: AppConfig) -> None:
    label = example(1, question="the same", policy=LABELS, version=0, probabilities=THIRDS)
    of_a_run = example(
        2, "bm25", 2.0, question="the same", policy=LABELS, episode_id=training_log_examples.name_episode(7)
    )
    p = asked(
        config, [label, of_a_run, example(3, "none", -1.0, question="the same")], "policy:{kind: memory}"
    ).p
    assert p.tolist() == [pytest.approx(floored(0.0, 0.0, 1.0))], "labels of a run are of its recipe alone"


def test_a_labelled_decision_does_not_judge_who_learned_it(
    config: AppConfig,
) -> None:
    labelled = example(1, "bm25", 1.0, question="q", policy=LABELS, version=0, decided_at=10.0)
    before, after = (example(n, "bm25", question="q", decided_at=at) for n, at in ((2, 5.0), (3, 15.0)))
    target = asked(config, [labelled, before, after], "policy:{kind: memory}")
    assert target.kept.tolist() == [False, True]
    assert target.left_out == {"it may have learned from a label made of the decision": 1}
    at_once = [labelled, replace(before, decision=replace(before.decision, decided_at=10.0)), after]
    assert asked(config, at_once, "policy:{kind: memory}").kept.tolist() == [False, True]
    moved = [replace(before, seq=1), replace(labelled, seq=2), after]
    assert asked(config, moved, "policy:{kind: memory}").kept.all(), "the label was not learned yet"


def test_who_learns_learns_by_the_prices_that_are_asked_for(config: AppConfig) -> None:
    dear = replace(example(1, "dense", 1.0, question="the same"), cost=Cost(steps=5))
    log = [dear, example(2, "bm25", 0.8, question="the same"), example(3, question="the same")]
    changed = EvaluationRequest(cost_weight=0.0).apply_prices(config.reward)
    for rule, best in ((config.reward, "bm25"), (changed, "dense")):
        found = asked(config, log, "policy:{kind: memory}", rule=rule)
        assert ARMS[int(found.p[2].argmax())] == best


def test_an_arm_that_is_not_live_any_more_is_never_drawn(config: AppConfig) -> None:
    arms = (*ARMS, "old")
    target = asked(config, [example(1, "old", arms=arms)], "policy:{kind: uniform}")
    assert target.p[0].tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0.0])
    assert target.notes == ("Unknown to the candidate, which never draws it: old.",)


def test_a_row_with_no_arm_that_is_live_is_left_out_and_counted(config: AppConfig) -> None:
    log = [example(1, "old", arms=("old", "older")), example(2)]
    target = asked(config, log, "configured")
    assert target.kept.tolist() == [False, True]
    assert target.left_out == {"none of the arms that it knows was eligible": 1}


def test_the_shadow_is_what_is_on_record_and_rows_without_one_are_left_out(config: AppConfig) -> None:
    shadow = (0.1, 0.2, 0.7)
    target = asked(config, [example(1, shadow=shadow), example(2)], "shadow")
    assert target.p[0].tolist() == list(shadow)
    assert target.kept.tolist() == [True, False]
    assert target.left_out == {"no shadow on record": 1}


def published(
    store: Store,
    config: AppConfig,
    taught: Sequence[Example],
    spec: PolicySpec = PolicySpec(kind="memory"),  # noqa: B008 - it is frozen
    **changes: Any,
) -> Version:
    """Publish a version, by default of the memory, that has learned some examples."""
    policy = build_policy(spec, ARMS)
    for one in taught:
        policy.learn(one.decision, one.metrics["thumb"])
    start = changes.pop("start", None)
    draft = Version(
        version=0,
        parent=None,
        recipe=Recipe(spec, config.reward, StartingPoint.from_document(start)).digest,
        join=config.reward.join,
        policy=spec.model_dump(mode="json"),
        examples_seq=len(taught),
        applied_seq=0,
        digest=versions.digest_state(policy.save()),
        epoch=take_epoch(store, "test", 0.0),
        created_at=0.0,
        start=start,
    )
    draft = replace(draft, **changes)
    return replace(draft, version=versions.publish(store, draft, policy.save()))


def test_a_version_is_frozen_and_not_judged_by_what_it_has_learned(config: AppConfig, store: Store) -> None:
    log = [
        example(1, question="known"),
        *(example(n, question="new") for n in (2, 3)),
        example(4, question="known"),
    ]
    version = published(store, config, log[:1])
    target = asked(config, log, f"version:{version.version}", store)
    assert target.kept.tolist() == [False, True, True, True]
    assert target.left_out == {f"learned by version {version.version}": 1}
    assert target.p[1:3].tolist() == [pytest.approx(THIRDS)] * 2, "it learns nothing of the log"
    assert target.p[3].tolist() == pytest.approx(floored(0.0, 0.0, 1.0))


def test_a_version_of_another_join_is_refused(config: AppConfig, store: Store) -> None:
    version = published(store, config, [], join="another")
    with pytest.raises(CandidateError, match="feedback that was joined in another way"):
        asked(config, [example(1)], f"version:{version.version}", store)


def test_a_version_that_is_not_there_is_refused_with_the_newest(config: AppConfig, store: Store) -> None:
    newest = published(store, config, []).version
    with pytest.raises(CandidateError, match=f"there is no version 99; the newest is {newest}"):
        asked(config, [example(1)], "version:99", store)


def test_a_recipe_is_learned_as_the_log_is_replayed(config: AppConfig, store: Store) -> None:
    log = [example(n, question="the same") for n in (1, 2)]
    version = published(store, config, log)
    target = asked(config, log, f"recipe:{version.version}", store)
    assert target.kept.all()
    assert target.p.tolist() == [pytest.approx(THIRDS), pytest.approx(floored(0.0, 0.0, 1.0))]


def labelled(store: Store, run: int, question: str, arm: str, at: float) -> None:
    """Enter a label of a run, that an arm is right."""
    told = {
        "policy": LABELS,
        "version": 0,
        "episode_id": training_log_examples.name_episode(run),
        "decided_at": at,
        "id": f"l-{question}",
    }
    label = example(0, arm, question=question, **told).decision
    said = Feedback(f"{label.id}:f", label.id, "thumb", 1.0, received_at=at)
    label_turns.insert(
        store, [label_turns.LabelTurn(label, Execution(label.id, arm, Status.OK, Cost()), (said,))]
    )


def test_a_recipe_learns_the_labels_of_its_runs_first(config: AppConfig, store: Store) -> None:
    labelled(store, 3, "labelled", "bm25", at=1.5)
    version = published(store, config, [], start={"runs": [3], "after": 1})
    log = [example(n, "none", question=q) for n, q in ((1, "before"), (2, "labelled"), (3, "before"))]
    target = asked(config, log, f"recipe:{version.version}", store)
    assert target.kept.tolist() == [False, True, True]
    assert target.left_out == {"before its training log begins": 1}
    assert target.p[1].tolist() == pytest.approx(floored(0.0, 1.0, 0.0)), "taught by the label"
    assert target.p[2].tolist() == pytest.approx(THIRDS), "what was before its start is not learned"


@pytest.mark.parametrize("kind", ["recipe", "version"])
def test_labelled_questions_do_not_judge(config: AppConfig, store: Store, kind: str) -> None:
    labelled(store, 3, "labelled", "bm25", at=2.5)
    version = published(store, config, [], start={"runs": [3], "after": 0})
    log = [example(n, "none", question=q) for n, q in ((1, "labelled"), (2, "another"), (3, "labelled"))]
    target = asked(config, log, f"{kind}:{version.version}", store)
    assert target.kept.tolist() == [False, True, True], "asked before it was labelled"
    assert target.left_out == {"it may have learned from a label made of the decision": 1}


def test_a_version_has_not_learned_the_labels_after_it(config: AppConfig, store: Store) -> None:
    label = example(2, "bm25", 1.0, question="q", policy=LABELS, version=0, decided_at=10.0)
    log = [example(1), label, example(3, "none", question="q", decided_at=5.0)]
    early, late = (published(store, config, log[:n]) for n in (1, 2))
    assert asked(config, log, f"version:{early.version}", store).kept.tolist() == [False, True]
    assert not asked(config, log, f"version:{late.version}", store).kept.any(), "it may be the label's source"


def routed(
    config: AppConfig, folder: Path, scores: Mapping[str, Sequence[float]], **router: Any
) -> AppConfig:
    kept(folder, **router)
    out_of_fold.write_out_of_fold(
        folder, saved.read_about(folder), list(scores), np.array(list(scores.values())).reshape(-1, 3)
    )
    return config


def test_a_router_is_asked_again_of_each_question(config: AppConfig, tmp_path: Path) -> None:
    folder = tmp_path / "router"
    routed(config, folder, {}, kind="ridge")
    log = [example(n, question=TEXTS[n]) for n in (1, 2, 3)]
    target = asked(config, log, f"router:{folder}")
    best = [ARMS[row] for row in target.p.argmax(axis=1)]
    assert best == ["bm25", "dense", "none"], "whose first word tells the best arm"
    assert target.p.max(axis=1).tolist() == pytest.approx([1 - 2 * FLOOR] * 3)


def test_a_router_does_not_judge_its_training_questions(config: AppConfig, tmp_path: Path) -> None:
    folder = tmp_path / "router"
    routed(config, folder, {TEXTS[1]: (1.0, 0.0, 0.0), TEXTS[2]: (np.nan,) * 3}, kind="ridge")
    target = asked(config, [example(n, question=TEXTS[n]) for n in (1, 2, 3)], f"router:{folder}")
    assert target.kept.tolist() == [True, False, True]
    assert target.left_out == {"the router was trained on the question": 1}
    assert target.p[0].argmax() == 0, "what others said of it"


def test_a_router_is_told_how_well_the_question_of_each_decision_fitted(
    config: AppConfig, tmp_path: Path
) -> None:
    folder = tmp_path / "router"
    routed(config, folder, {}, kind="source_fit")
    with pytest.raises(CandidateError, match=r"add `features: \{similarity: \{\}\}`"):
        asked(config, [example(1)], f"router:{folder}")
    config = parse({**config.model_dump(mode="json"), "features": {"similarity": {}}})
    log = [example(n, question="the same") for n in (1, 2, 3)]
    for number, best in enumerate(("dense", "bm25")):
        context = log[number].decision.context
        fits = {arm: {SIMILARITY: 0.7 if arm == best else 0.1} for arm in ("bm25", "dense")}
        context = replace(context, arms=fits)
        log[number] = replace(log[number], decision=replace(log[number].decision, context=context))
    target = asked(config, log, f"router:{folder}")
    assert [ARMS[row] for row in target.p.argmax(axis=1)[:2]] == ["dense", "bm25"]
    assert target.left_out == {"the log does not say how well the question fits each source": 1}


def test_a_router_that_looks_at_passages_is_refused(config: AppConfig, tmp_path: Path) -> None:
    routed(config, tmp_path / "router", {}, kind="max_sim")
    with pytest.raises(CandidateError, match="needs the passages of every arm"):
        asked(config, [example(1)], f"router:{tmp_path / 'router'}")


def test_a_policy_that_cannot_look_at_the_log_is_named_with_the_decision(config: AppConfig) -> None:
    broken = example(1)
    nan = replace(broken.decision.context, features={"w=river": float("nan")})
    log = [replace(broken, decision=replace(broken.decision, context=nan))]
    with pytest.raises(CandidateError, match=r"cannot decide or learn.*'w=river' is nan"):
        asked(config, log, "policy:{kind: linucb}")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("best", "'best' is not one of: served, uniform, fixed:<arm>, configured"),
        ("fixed", "'fixed' is not one of"),
        ("fixed:", "'fixed:' is not one of"),
        ("uniform:dense", "'uniform:dense' is not one of"),
        ("version:x", "'version:x' names no version: expected a whole number from 1 on"),
        ("recipe:0", "'recipe:0' names no version"),
        ("policy:{kind: lin", "is not valid YAML"),
        ("policy:{kid: linucb}", "key 'kind' is missing.*policy:{kind: linucb"),
        ("policy:[1]", "valid dictionary"),
    ],
)
def test_a_name_that_is_none_is_refused(name: str, said: str) -> None:
    with pytest.raises(CandidateError, match=said):
        parse_name(name)
    with pytest.raises(ValidationError, match=said):
        EvaluationRequest(candidates=(name,))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("fixed:dense", "'fixed:dense'.*never eligible.*none, bm25"),
        ("version:1", "'version:1': an export has no versions"),
        ("recipe:1", "'recipe:1': an export has no versions"),
        ("router:nowhere", "nowhere holds no trained router"),
        ("policy:{kind: linucbb}", "'linucbb'; did you mean 'linucb'"),
        ("policy:{kind: fixed, params: {arm: bm52}}", "'bm52'; did you mean 'bm25'"),
    ],
)
def test_a_candidate_that_cannot_be_judged_is_refused(config: AppConfig, name: str, said: str) -> None:
    with pytest.raises(CandidateError, match=said):
        asked(config, [example(1, "bm25", arms=("none", "bm25"))], name)


def test_a_policy_may_stand_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("policy:\n  kind: linucb\n  params:\n    alpha: 0.5\n")
    name = spell_out(f"policy:{file}")
    assert name == "policy:{kind: linucb, params: {alpha: 0.5}}"
    assert parse_name(name).policy == PolicySpec(kind="linucb", params={"alpha": 0.5})
    with pytest.raises(CandidateError, match="No such file"):
        spell_out(f"policy:{tmp_path / 'nowhere.yaml'}")


def test_every_kind_of_candidate_has_a_name() -> None:
    examples = {
        CandidateKind.FIXED: ":a",
        CandidateKind.VERSION: ":1",
        CandidateKind.CANARY: ":1",
        CandidateKind.RECIPE: ":1",
        CandidateKind.POLICY: ":{kind: x}",
        CandidateKind.ROUTER: ":f",
    }
    assert [parse_name(f"{kind}{examples.get(kind, '')}").kind for kind in CandidateKind] == list(
        CandidateKind
    )
