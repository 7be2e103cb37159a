"""What is asked of a turn: a request to decide, or the decision that another system has made."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from armwise.arms.filters import Comparison, Compound
from armwise.arms.llm import Message


@dataclass(frozen=True, slots=True)
class Ask:
    """One request.

    Attributes:
        decision_id: Names the turn; the draw is hashed from it, the arms that could be drawn, and a secret.
        question: The query, and what the policy sees.
        messages: The conversation that the model answers; empty to retrieve only.
        k: Passages to retrieve; None for as many as the arm is configured with.
        forced: An arm that the caller named; recorded as forced.
        allowed: Arms to choose among; None for all.
        excluded: Arms not to choose.
        explore: False takes the most probable arm; recorded as greedy.
        context: The caller's own features.
        cost_weight: Quality given up for a unit of priced cost; None for that of the reward rule.
        episode_id: Groups the turns of one conversation; kept and returned.
        request_digest: Distinguishes a retry from another request under the same id.
        deferred: The decision counts only once its answer was shown.
        max_tokens: Longest answer; None for that of the arm, as with the next two.
        temperature: Sampling temperature of the model.
        top_p: Nucleus sampling of the model.
        seed: Seed that the model samples by.
        stop: Strings that end the answer.
        options: Further parameters of the model, as `armwise.arms.llm.Prompt` has them.
        continues: The decision whose arm, the forced one, searches again for the same question, with the
            same seed: the model has called functions, and the conversation has their results.
        actions: Features of the actions that came with the request, by their names in the log; empty to
            choose among arms.
        ids: Their ids, by the same names.
        user_digest: Digest of the end user, for the log; None without a user.
        where: Filter on the metadata of passages; None for any.
        groups: The caller's, for passages that are for some groups alone.
        by_score: Whether passages are selected by their scores, which the log does not keep.
        incumbent: What the caller's own decider would draw from, by arm, summing to 1; None where it takes no
            part. It takes none once the share of the policy is 1.
        external: Whether the caller carries the decision out.
    """

    decision_id: str
    question: str
    messages: tuple[Message, ...] = ()
    k: int | None = None
    forced: str | None = None
    allowed: frozenset[str] | None = None
    excluded: frozenset[str] = frozenset()
    explore: bool = True
    context: Mapping[str, float | str | bool] = field(default_factory=dict)
    cost_weight: float | None = None
    episode_id: str | None = None
    request_digest: str = ""
    deferred: bool = False
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    continues: str | None = None
    actions: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    ids: Mapping[str, str] = field(default_factory=dict)
    user_digest: str | None = None
    where: Comparison | Compound | None = None
    groups: frozenset[str] = frozenset()
    by_score: bool = False
    incumbent: Mapping[str, float] | None = None
    external: bool = False

    @property
    def quoted_groups(self) -> tuple[str, ...]:
        """The groups for which passages may be quoted in the conversation before its question.

        >>> from dataclasses import replace
        >>> ask = Ask("d", "How?", (Message(role="user", content="How?"),), groups=frozenset({"b", "a"}))
        >>> later = replace(ask, messages=(*ask.messages, Message(role="assistant", content="[1] So.")))
        >>> ask.quoted_groups, later.quoted_groups
        ((), ('a', 'b'))
        """
        said = [message for message in self.messages if message["role"] != "system"]
        return tuple(sorted(self.groups)) if len(said) > 1 else ()


@dataclass(frozen=True, slots=True)
class ObservedDecision:
    """A decision that another system has made.

    Attributes:
        arms: The arms that could have been chosen.
        probabilities: The distribution that it was drawn from, one an arm; a single one where only that of
            the drawn arm is known, which is the first of `arms` then; empty where not even that is known.
        drawn: The arm that was chosen.
        at: When it was made, seconds since the epoch.
    """

    arms: tuple[str, ...]
    probabilities: tuple[float, ...]
    drawn: str
    at: float
