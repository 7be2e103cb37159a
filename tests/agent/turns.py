"""Turns wired by hand: the same steps as in a service, over parts of a test."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from armwise.agent.learning import Verification
from armwise.agent.learning import verify as verify_decision
from armwise.agent.policies import Exploration, FeatureSpec, Policy
from armwise.agent.turn import (
    AnswerWriter,
    ArmHealth,
    ArmInfo,
    Ask,
    Decider,
    LanguageModel,
    Searcher,
    Serving,
    TurnLoop,
)
from armwise.agent.turn.probes import Embed, Search
from armwise.agent.turn.record import FactLog
from armwise.agent.turn.steps import TurnStep
from armwise.agent.turn.steps.canary import CanaryStep
from armwise.agent.turn.steps.checks import CheckStep
from armwise.agent.turn.steps.floor import FloorStep
from armwise.agent.turn.steps.groups import GroupStep
from armwise.agent.turn.steps.health import HealthStep
from armwise.feedback.events import Context, Decision

SEARCHING = {
    "recall": "recall",
    "passages": "find_passages",
    "restricted": "restricted",
    "arm_timeout_s": "timeout_s",
}
WRITING = {"templates": "templates", "llm_timeout_s": "timeout_s", "on_refusal": "on_refusal"}
LOOP = ("fallback", "former", "keeps_answers", "charge", "is_followed")


def make_decider(
    serving: Serving,
    explores: Exploration,
    salt: str = "salt",
    wait_s: float = 60.0,
    *,
    steps: Sequence[TurnStep] = (),
    clock: Callable[[], float] = time.time,
    health: ArmHealth | None = None,
    make: Callable[..., Decider] = Decider,
) -> Decider:
    """A decider with the steps that need no setting, and some more."""
    health = health or ArmHealth()
    every = (GroupStep(), *steps, CanaryStep(salt), FloorStep(explores), CheckStep(salt), HealthStep(health))
    return make(serving, every, salt, wait_s, clock=clock, health=health)


def make_turns(
    arms: Mapping[str, ArmInfo],
    decider: Decider,
    embed: Embed,
    search: Search,
    log: FactLog,
    models: Mapping[str, LanguageModel] | None = None,
    features: FeatureSpec | None = None,
    **options: Any,
) -> TurnLoop:
    """Turns over parts of a test; `options` are fields of the parts of a turn."""
    models = models or {}
    searching = {SEARCHING[name]: value for name, value in options.items() if name in SEARCHING}
    writing = {WRITING[name]: value for name, value in options.items() if name in WRITING}
    unknown = options.keys() - SEARCHING.keys() - WRITING.keys() - {*LOOP}
    assert not unknown, unknown
    return TurnLoop(
        arms=arms,
        decider=decider,
        searcher=Searcher(search, embed, decider.health, models, **searching),
        writer=AnswerWriter(models, decider.health, steps=decider.steps, **writing),
        log=log,
        features=features or FeatureSpec(),
        **{name: options[name] for name in LOOP if name in options},
    )


def draw(
    decider: Decider, ask: Ask, context: Context, arms: Mapping[str, ArmInfo], *, restricted: bool = False
) -> Decision:
    """Draw an arm for a described question, without a turn; what steps read is in no log."""
    draft = decider.draft(ask, arms, context, decider.serving, restricted=restricted)
    decider.narrow(draft)
    return decider.decide(draft)


def verify(
    decision: Decision,
    policy: Policy | None,
    salt: str,
    propensity: float | None = None,
    candidate: Policy | None = None,
    draw: Decision | None = None,
) -> Verification:
    """Verify a decision of one policy, and of a candidate."""
    known = {decision.version: policy, decision.candidate: candidate}
    policies = {version: one for version, one in known.items() if one is not None}
    return verify_decision(decision, policies, salt, propensity, draw)
