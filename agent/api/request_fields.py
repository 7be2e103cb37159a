"""Check the question of a request and the fields that all deciding routes share."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from armwise.agent.access import Caller
from armwise.agent.api import sessions
from armwise.agent.api.schemas import AgentOptions, Incumbent
from armwise.agent.config import DIALS
from armwise.agent.serving import Replica, admission
from armwise.agent.turn import Ask
from armwise.arms.filters import GROUPS, Comparison, Compound, comparisons
from armwise.feedback.arrays import TOLERANCE
from armwise.feedback.events import INCUMBENT
from armwise.feedback.log import erasures

Context = Mapping[str, float | str | bool]


CONTEXT_NAMES, CONTEXT_CHARS, CONTEXT_BYTES = 32, 200, 4096
"""Most names in the context of a request, characters of a name or text, and bytes of all of them."""


CONTEXT_NUMBER = 1e6
"""Largest magnitude of a number in the context. Policies see numbers beyond 1 by their logarithm."""


def check_ask(
    replica: Replica,
    caller: Caller,
    question: str,
    model: str,
    options: AgentOptions,
    key: str | None,
    param: str = "messages",
    *,
    sent: BaseModel | bytes,
    user: str | None = None,
    session: sessions.NamedSession | None = None,
    has_tools: bool = False,
    cost_weight: str | None = None,
    **rest: Any,
) -> Ask:
    """Check the fields that all deciding routes share, and return the input of the turn. Raises AskError.

    Args:
        replica: Answers the question.
        caller: Who asks.
        question: The question.
        model: `auto`, `auto:cheap`, `auto:best`, `arm/<name>` to force an arm, or an alias of one of these or
            of a language model.
        options: The fields beyond OpenAI's API.
        key: Idempotency key of the request.
        param: The field that holds the question.
        sent: The request, of which another one under the same key differs.
        user: The end user, if `options` names none.
        session: The session that it names, if `options` names no episode.
        has_tools: Whether its answer may call functions.
        cost_weight: The header that sets how much cost counts in the draw.
        **rest: Further fields of the turn.
    """
    if not question.strip():
        raise admission.InvalidAskError(f"{param} has no question: add the text of a user", param)
    question = check_question(question, replica, param)
    user = options.user or user
    groups = _groups(caller, options.groups)
    forced, of_model = find_model(replica, model)
    allowed = None if options.allowed_arms is None else frozenset(options.allowed_arms)
    if of_model is not None:
        # arms that are not live stay, so that they are refused by name
        allowed = of_model if allowed is None else allowed - (replica.turns.arms.keys() - of_model)
    dial = _read_dial(replica, model, cost_weight)
    return Ask(
        decision_id=caller.to_stored_id(key) if key else caller.new_id(),
        question=question,
        user_digest=user_digest(replica, caller, user),
        forced=forced,
        allowed=allowed,
        excluded=frozenset(options.excluded_arms),
        explore=options.explore,
        context=check_context(options.context, replica, "agent.context"),
        steps=read_incumbent(replica, options.incumbent, "agent.incumbent"),
        dial=dial,
        episode_id=sessions.choose_episode(
            replica, caller, options.episode_id, session, dial, has_tools=has_tools
        ),
        deferred=options.defer_activation,
        request_digest=digest_request(sent, groups) if key else "",
        where=_where(options.filters),
        groups=groups,
        **rest,
    )


def _groups(caller: Caller, groups: Sequence[str] | None) -> frozenset[str]:
    """Return the groups that a request is made for: all or some of its key's. Raises AskError."""
    if groups is None:
        return caller.groups
    if foreign := sorted({*groups} - caller.groups):
        named = ", ".join(map(repr, foreign))
        message = f"this key does not have the groups {named}: some of its own were expected"
        raise admission.ForeignGroupError(message, "agent.groups")
    return frozenset(groups)


def _where(where: Comparison | Compound | None) -> Comparison | Compound | None:
    """Return a filter; one on the groups of passages is refused. Raises AskError."""
    if where is not None and any(comparison.key == GROUPS for comparison in comparisons(where)):
        message = f"{GROUPS!r} cannot be filtered by: the key has the groups of its callers"
        raise admission.InvalidAskError(message, "filters")
    return where


def user_digest(replica: Replica, caller: Caller, user: str | None) -> str | None:
    """Return the digest that the log stores for the end user of a request, if it names one."""
    return erasures.user_digest(replica.store, caller.project, user) if user else None


def read_incumbent(
    replica: Replica, named: Incumbent | None, param: str
) -> Mapping[str, Mapping[str, float]]:
    """Return the distribution of the caller's own decider by arm, for its step; empty if it names none.

    Args:
        replica: Has the `tap`, which maps names of arms.
        named: The arm or the distribution that the request names.
        param: The field that `named` comes from.

    Raises:
        AskError: `named` is not a choice among live arms, or `tap` is not configured.
    """
    if named is None:
        return {}
    if replica.config.tap is None:
        message = "no incumbent has a place here: `tap` is not configured"
        raise admission.InvalidAskError(message, param)
    if (named.arm is None) == (named.distribution is None):
        raise admission.InvalidAskError(
            "give either arm, or distribution to have an arm drawn from it", param
        )
    given = {named.arm: 1.0} if named.arm is not None else named.distribution or {}
    p = validate_distribution(replica, given, param)
    total = math.fsum(p.values())
    return {INCUMBENT: {arm: share / total for arm, share in p.items()}}


def find_arm(replica: Replica, name: str, param: str) -> str:
    """Return the live arm that `tap` maps another system's name to. Raises AskError."""
    tap = replica.config.tap
    live = replica.turns.arms
    arm = name if tap is None else tap.map_arm(name)
    if arm not in live and tap is not None:
        arm = tap.names.get("*", arm)
    if arm not in live:
        hint = "; `tap.names` can map another name to one of them"
        raise admission.UnknownArmError(
            f"arm {name!r} is not configured; available: {', '.join(live)}{hint}", param
        )
    return arm


def validate_distribution(replica: Replica, given: Mapping[str, float], param: str) -> dict[str, float]:
    """Return a distribution by live arm, in the order of the request. Raises AskError."""
    distribution: dict[str, float] = {}
    for name, p in given.items():
        if not 0.0 <= p <= 1.0:
            message = f"the probability of arm {name!r} is {p:g}; a number from 0 to 1 was expected"
            raise admission.InvalidAskError(message, param)
        arm = find_arm(replica, name, param)
        distribution[arm] = distribution.get(arm, 0.0) + p
    if abs((total := math.fsum(distribution.values())) - 1.0) > TOLERANCE:
        raise admission.InvalidAskError(f"the probabilities sum to {total:.9g}; they must sum to 1", param)
    return distribution


def check_question(question: str, replica: Replica, param: str) -> str:
    """Check the length of a question, and return it redacted; `param` is its field. Raises AskError."""
    limit = replica.config.limits.question_chars
    if len(question) > limit:
        message = f"the question has {len(question)} characters; at most {limit} are read"
        raise admission.InvalidAskError(message, param)
    return replica.redact(question)


def check_context(context: Context, replica: Replica, within: str) -> Context:
    """Check a context against the limits, and return it redacted; `within` is its field. Raises AskError."""
    if len(context) > CONTEXT_NAMES:
        message = f"the context has {len(context)} names; at most {CONTEXT_NAMES} are read"
        raise admission.InvalidAskError(message, within)
    size = 0
    for name, value in context.items():
        param = f"{within}.{name[:CONTEXT_CHARS]}"
        for text in (name, value) if isinstance(value, str) else (name,):
            size += len(text.encode())
            if len(text) > CONTEXT_CHARS:
                size_of = f"has {len(text)} characters; at most {CONTEXT_CHARS} are read"
                message = f"{text[:20]!r} and so on {size_of}"
                raise admission.InvalidAskError(message, param)
        if not isinstance(value, str) and abs(value) > CONTEXT_NUMBER:
            expected = f"a number from -{CONTEXT_NUMBER:g} to {CONTEXT_NUMBER:g} was expected"
            message = f"context {name!r} is {value:g}; {expected}: scale it"
            raise admission.InvalidAskError(message, param)
    if size > CONTEXT_BYTES:
        message = f"the texts of the context have {size} bytes; at most {CONTEXT_BYTES} are read"
        raise admission.InvalidAskError(message, within)
    return redact_context(context, replica)


def redact_context(context: Context, replica: Replica) -> Context:
    """Return a context with its text values redacted."""
    return {key: replica.redact(value) if isinstance(value, str) else value for key, value in context.items()}


COST_WEIGHT = "X-Armwise-Cost-Weight"
"""Header that sets how much cost counts in the draw of a request."""

MOST_WEIGHT = 1000.0
"""Largest value of it."""


def _read_dial(replica: Replica, model: str, header: str | None) -> float | None:
    """Return how much cost counts in the draw, by a header or the name of the model. Raises AskError."""
    if header is not None:
        try:
            weight = float(header)
        except ValueError:
            weight = math.nan
        if not 0.0 <= weight <= MOST_WEIGHT or "_" in header:
            message = f"{COST_WEIGHT} is {header[:50]!r}; a number from 0 to {MOST_WEIGHT:g} was expected"
            raise admission.InvalidAskError(message, COST_WEIGHT)
        return weight
    alias = replica.config.find_alias(model)
    name = model if alias is None else alias
    if name not in DIALS:
        return None
    if not replica.config.counts_cost:
        message = (
            f"{name!r} has no effect, as costs do not count in the reward: set `reward.worth`, or ask 'auto'"
        )
        raise admission.InvalidAskError(message, "model")
    return DIALS[name] * replica.config.reward.cost_weight


def digest_request(body: BaseModel | bytes, groups: frozenset[str] = frozenset()) -> str:
    """Return a hash of a request without the fields at their default, so that new fields keep old hashes.

    The groups are part of it, because an answer is written from the passages that they may see.
    """
    if isinstance(body, BaseModel):
        body = body.model_dump_json(
            exclude_defaults=True, warnings=False
        ).encode()  # numbers in the context warn
    if groups:
        body += json.dumps(sorted(groups)).encode()
    return hashlib.sha256(body).hexdigest()


def find_model(replica: Replica, model: str) -> tuple[str | None, frozenset[str] | None]:
    """Return the arm that a model's name forces, and the arms that the policy may draw for it.

    Either is None where the name does not restrict the choice. The forced arm is the one of that name, or
    while a first start still builds that one, the part of it that is live.

    Raises:
        AskError: It is no name of a model, or no live arm answers with the language model that it means.
    """
    if replica.config.external:
        message = "the caller carries out the arms: POST /v1/decisions"
        raise admission.InvalidAskError(message, "model")
    alias = replica.config.find_alias(model)
    name = model if alias is None else alias
    if name in ("auto", "", *DIALS):
        return None, None
    if name.startswith("arm/") and (arm := name.removeprefix("arm/")):
        return (arm if arm in replica.turns.arms else replica.arms.stand_ins().get(arm, arm)), None
    if alias is None:
        raise admission.UnknownModelError(
            f"model {model!r}: 'auto' or 'arm/<name>' was expected. To accept this name, add it to `aliases` "
            "in the configuration",
            "model",
        )
    arms = frozenset(
        arm
        for arm, info in replica.turns.arms.items()
        if info.answering.llm == alias and (info.checked is None or info.checked.answering.llm == alias)
    )
    if not arms:
        message = f"model {model!r} is an alias of the language model {alias!r}: no live arm answers with it"
        raise admission.UnknownModelError(message, "model")
    return None, arms


def find_forced_arm(replica: Replica, model: str) -> str | None:
    """Return the arm that a model's name forces; None if the policy chooses. Raises AskError."""
    return find_model(replica, model)[0]
