"""Candidates: versions of other recipes than the one that is followed, published beside the live learner.

Whoever publishes one, in any process, takes no epoch: the live learner goes on. What is published is a
function of the recipe's lessons alone, so that a learner which takes it up once it is promoted goes on as
if it had always had that recipe.
"""

import time
from collections.abc import Callable, Sequence

from agent.learning.recipe import Recipe
from agent.learning.restore import train_on
from arms.base import Progress
from feedback.log import Store
from feedback.registry import Version, versions
from feedback.training_log import StartingPoint, epochs, lag, learned_examples, position_of

TOLD_AFTER = 1000
"""Lessons between two words on the progress."""


def publish_candidate(
    store: Store,
    recipe: Recipe,
    arms: Sequence[str],
    clock: Callable[[], float] = time.time,
    tell: Progress = lambda *_: None,
) -> Version:
    """Learn what a recipe learns of the log as it is joined now, and publish a version of it.

    Args:
        store: The log.
        recipe: What learns, and where it begins.
        arms: All that it may have to choose among: a policy that names another one is refused.
        clock: Seconds since the epoch.
        tell: Told of the progress.

    Returns:
        The version; where one of the recipe has learned as much already, the newest of these.

    Raises:
        PolicyError: No such policy can be built.
        ValueError: The recipe starts after the end of the training log.
        LogGapError: Rows of the log are missing.
        RebuiltError: The training log was made anew meanwhile: again, then.
        LogUnavailableError: Nothing was published; try again later.
    """
    policy = recipe.build(arms)
    start = recipe.start or StartingPoint()
    with store.reading() as connection:
        epoch, _ = epochs.newest_epoch(connection)
        joined = position_of(connection, recipe.reward.join).examples_seq
    if start.after > joined:
        raise ValueError(f"a start after example {start.after}: the training log has {joined}")
    newest = versions.latest(store, recipe.digest)
    if newest is not None and newest.examples_seq >= joined:
        return newest
    for done, lesson in enumerate(learned_examples(store, recipe.reward, recipe.start, upto=joined), 1):
        train_on(policy, recipe.reward, (lesson,))
        if done % TOLD_AFTER == 0:
            tell("learning a candidate", lesson.seq, joined)
    tell("learning a candidate", joined, joined)
    state = policy.save()
    with store.reading() as connection:
        applied_seq = lag.applied_by(connection, recipe.reward.join, joined)
    parent = None if newest is None else newest.version
    draft = recipe.draft(state, joined, applied_seq, parent, epoch, clock())
    published = versions.find(store, versions.publish_beside(store, draft, state))
    assert published is not None
    return published
