"""Candidates: versions of other recipes than the active one, published beside the live learner.

Publishing one takes no epoch, so the live learner goes on. A candidate is a function of its recipe and of
the training log alone: a learner that continues it after its promotion gets the same versions as one that
has had the recipe from the start.
"""

import time
from collections.abc import Callable, Mapping, Sequence

from agent.learning.recipe import Recipe
from agent.learning.restore import train_on
from agent.learning.router_scores import MOST, score_unscored
from arms.base import Progress
from arms.models import Backbone
from feedback.log import Store
from feedback.registry import Version, versions
from feedback.training_log import StartingPoint, epochs, lag, learned_examples, position_of, router_contexts

REPORT_EVERY = 1000
"""Examples between two progress reports."""


def publish_candidate(
    store: Store,
    recipe: Recipe,
    arms: Sequence[str],
    clock: Callable[[], float] = time.time,
    on_progress: Progress = lambda *_: None,
    backbones: Mapping[str, Backbone] | None = None,
) -> Version:
    """Train a recipe on the training log as it is now, and publish a version of it.

    Args:
        store: The log.
        recipe: The policy, the reward and the starting point.
        arms: All arms that it may choose among; a policy that names another one is refused.
        clock: Seconds since the epoch.
        on_progress: Called with the progress.
        backbones: Encoders by name, for the router of the recipe.

    Returns:
        The version; the newest one of the recipe where that has learned as much already.

    Raises:
        PolicyError: No such policy can be built.
        ValueError: The recipe starts after the end of the training log; or its router cannot be used here,
            a RouterError.
        ModelNotFoundError: The model of an encoder is not where its name says.
        LogGapError: Rows of the log are missing.
        RebuiltError: The training log was rebuilt meanwhile; call again.
        LogUnavailableError: Nothing was published; try again later.
    """
    policy = recipe.build(arms)
    start = recipe.start or StartingPoint()
    with store.reading() as connection:
        epoch, _ = epochs.newest_epoch(connection)
        joined = position_of(connection, recipe.reward.join).examples_seq
    if start.after > joined:
        raise ValueError(f"a start after example {start.after}: the training log has {joined}")
    if recipe.router is not None:  # all that is joined above, and what waits for feedback
        decisions = router_contexts.unscored(store, recipe.router, newest=MOST)
        score_unscored(store, recipe.router, decisions, backbones or {}, on_progress)
        if len(decisions) == MOST:
            router_contexts.leave_unscored(store, recipe.router, before=decisions[-1][0])
    newest = versions.latest(store, recipe.digest)
    if newest is not None and newest.examples_seq >= joined:
        return newest
    examples = learned_examples(store, recipe.reward, recipe.start, upto=joined, router=recipe.router)
    for done, example in enumerate(examples, 1):
        train_on(policy, recipe.reward, (example,))
        if done % REPORT_EVERY == 0:
            on_progress("learning a candidate", example.seq, joined)
    on_progress("learning a candidate", joined, joined)
    state = policy.save()
    with store.reading() as connection:
        applied_seq = lag.applied_by(connection, recipe.reward.join, joined)
    parent = None if newest is None else newest.version
    draft = recipe.draft(state, joined, applied_seq, parent, epoch, clock())
    published = versions.find(store, versions.publish_beside(store, draft, state))
    assert published is not None
    return published
