"""Which arms may be drawn for a question, and the context that the policy sees."""

from collections.abc import Mapping

from agent.policies import FeatureSpec, describe
from agent.serving.messages import ArmInfo, Ask, NoEligibleArmError
from agent.serving.probe import Embeddings
from feedback.events import Context


def context_of(
    question: str,
    spec: FeatureSpec,
    embeddings: Embeddings,
    arms: Mapping[str, ArmInfo],
    extra: Mapping[str, float | str | bool] | None = None,
) -> Context:
    """Return what a policy sees of a question: the same in a turn and in a label of a warm start.

    Args:
        question: The text as it was asked.
        spec: What to look at.
        embeddings: Of the question, by the backbone that `spec` names, if it names one.
        arms: The live arms.
        extra: What the caller knows.

    Raises:
        FeatureError: An extra number that is not finite.
        ValueError: An embedding that is too short.
    """
    return describe(
        question,
        spec,
        embedding=embeddings[spec.embedding.backbone] if spec.embedding else None,
        extra=extra,
        arms={name: info.features for name, info in arms.items()},
    )


def eligible(ask: Ask, arms: Mapping[str, ArmInfo]) -> list[str]:
    """Return the arms that the caller and the switches leave to be drawn.

    Raises:
        NoEligibleArmError: There is none.
    """
    if ask.forced is not None:
        if ask.forced not in arms:
            raise NoEligibleArmError(f"arm {ask.forced!r} is not live any more; there are: {', '.join(arms)}")
        return [ask.forced]
    names = [
        name
        for name, info in arms.items()
        if info.enabled and name not in ask.excluded and (ask.allowed is None or name in ask.allowed)
    ]
    if not names:
        raise NoEligibleArmError(f"no arm is left of {', '.join(arms)}: all are disabled or excluded")
    return names
