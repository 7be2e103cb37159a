"""A ridge regression of every arm's reward, drawn by the probability of being the best, with restarts.

    expected reward of an arm = scores of a router, levelled and weighed + its own regression on the question

What all arms have in common is one small regression: how far the scores promise too much or too little, and
what a difference of two scores is worth. The less certain that worth is, the less the scores decide, so those
that mislead are left by degrees. What an arm costs is known after its first answer: it is the mean of what
its rewards lost to costs, and is subtracted from what they would be without it. Scores of a router have it
already. What is left of a reward is for the regression of its arm, whose penalties grow from the intercept to
the form of a question and its embedding, and shrink where rewards are less noisy, so that the prior
uncertainty of a weight stays the same.

When an arm's rewards have changed (`armwise.agent.policies.change_detector`), everything except the latest
rewards is forgotten; what is known of an arm that fell fades from then on, for it may be well again. An arm
that is hardly drawn cannot show a change, so one whose few rewards are higher than expected gets ever more
draws, at most half of them, until they no longer are. To have such rewards, arms are looked at, the more
often the more rewards of others there were since their last one, within a share of the draws. That counts up
to a limit, or an arm that never earns a reward, because it fails, would take the whole share. The state is a
function of the rewards in their order, so a replay restarts at the same places.
"""

import copy
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from threading import Lock
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from armwise.agent.policies.arm_regressions import (
    OF_SCORED,
    ArmRegressions,
    Array,
    Prior,
)
from armwise.agent.policies.base import PolicyError, Restart
from armwise.agent.policies.change_detector import (
    LEAST,
    MOST,
    RUN_LENGTH,
    ArmChange,
    ChangeDetector,
    restart_after,
)
from armwise.agent.policies.encoding import (
    check_context,
    check_reward,
    check_whole,
    prior_scores,
    question_columns,
)
from armwise.agent.policies.sampling import TIE, best_probabilities
from armwise.agent.policies.serialization import pack, seal, unpack, unseal
from armwise.feedback.events import ROUTER, Context, Decision

WIDE_SCORED = 0.25
"""Factor on a variance before any reward, where a router scores the arms; 1 where none does."""

DOUBT = 0.5
"""Factor on the variance that is due to the worth of a difference of scores.

Without it, scores that mislead would be trusted until one more reward turned all of them over.
"""

EARLY, EARLY_OF_ARM = 10.0, 1.0
"""Rewards, of all arms and of one, by which a factor is half way to `alpha` squared; the later counts.

By as many rewards of one as of all, half of a newcomer's bonus is gone.
"""

PRIOR = 0.5
"""Expected reward of arms before any is known, where no arm has a score."""

NEWCOMER = 0.2
"""By how much an arm without a score is expected to be better than the best score, in standard deviations."""

FEW = 4
"""Arms from which `alpha` itself counts; of fewer, a power of it, because trying one of few costs little."""

NOTICE = 2.5
"""Sum by which rewards are higher than expected, in deviations, beyond which an arm is looked at."""

HALF_LIFE = 350.0
"""Rewards of all arms in which half of what is known of an arm that fell is forgotten; `LEAST` are a step."""

BEFORE = 0.25
"""Weight of rewards from before the change that a restart keeps."""

AT_ONCE = 0.07
"""By how much one rating changes the mean of its arm at once, in standard deviations of the draw.

A rating that would change it by more counts in equal parts: one at once, and one with each of the next
ratings. So no rating moves much, and none is lost. A restart counts all parts at once.
"""

UNEXPLAINED, ONE = 0.25, 2.0
"""What a rise leaves out of each error, and the most that an error adds, in deviations."""

LOOKS = 10.0
"""Default number of looks in a thousand decisions at arms that have had no reward for long."""

LOOK, MOST_LOOKS = 0.05, 0.5
"""Share of the draws for an arm whose rewards have risen, per deviation beyond `NOTICE`, and the most.

Rewards may be late, and chance must not take all.
"""

SURE, CERTAIN = 1.645, 2.645
"""Standard deviations by which an arm beats the baseline surely, and to get its whole share."""

TRIED = 0.1
"""Part of its share that an arm gets once it beats the baseline surely, and less of it the less sure that is.

Without, the draws of exploration alone would have to show that an arm is better.
"""

LAYOUT = 7
"""Version of the layout of a state; a state of another layout is learned again from the log."""


class _Posterior(NamedTuple):
    """What is known of n arms for a question.

    Attributes:
        mean: Expected rewards, shape (n,).
        deviation: Standard deviations that are used for the draw, shape (n,).
        risen: How far rewards have risen beyond `NOTICE`, in standard deviations of a reward, shape (n,).
        noise: That standard deviation.
        apart: Standard deviation of the difference from the baseline, shape (n,); None without a baseline.
        unseen: Rewards of all arms since the last one of each, at most `MOST`, shape (n,).
    """

    mean: Array
    deviation: Array
    risen: Array
    noise: float
    apart: Array | None
    unseen: Array


class Adaptive:
    """Draws each arm with the probability that it is the best, and adapts when rewards change.

    Unlike the arm with the largest upper bound, the distribution changes smoothly: one reward, of any arm and
    however extreme, moves it by at most about 0.1 for other questions. A reward that completes the evidence
    of a change moves it by more, and so may one that contradicts the scores of a router: by 0.15.

    Args:
        alpha: How much uncertainty counts. With 1, the policy explores as Thompson sampling does. With 0, it
            draws the arm with the highest predicted reward. For arms without a router score, alpha starts at
            1 and falls to this value as rewards arrive; if there are two, to its square root, and if there
            are three, to its power of 3/4. Doubt of a router's scores counts whatever alpha is.
        dims: Number of columns that the question's named features are hashed into. 0 leaves them out.
        prior_feature: Arm feature to use as expected reward, such as a router's score. If no arm has it, the
            policy uses the question's similarity to the arm's source. If None, it expects the same reward
            from every arm.
        run_length: Expected number of rewards until a false drift alarm. Each alarm restarts learning. With a
            smaller number, the policy follows real changes sooner. If None, it never restarts.
        baseline: Arm to use for a question until rewards show, with 95 % certainty, that another arm is
            better. Before, arms that seem to be better get at most a tenth of the draws. Exploration still
            tries all arms. A service takes this arm from `baseline` in its configuration.
        looks: How many of 1,000 decisions look at arms that have had no reward for long, in proportion to the
            rewards of other arms since their last one, up to 500. With more, an arm that has become
            better is found sooner, but the policy earns less while nothing changes. A policy with a baseline
            makes none.

    Source: one ridge regression per arm: Li et al. 2010, arXiv:1003.0146; drawn by the probability of being
    the best: Agrawal and Goyal 2013, arXiv:1209.3352; restarts: Liu et al. 2018, arXiv:1711.03539; noticed
    rises: Page 1954.

    Raises:
        PolicyError: A value out of its range.
    """

    kind = "adaptive"
    resumes_exactly = True
    learns_costs = True

    def __init__(
        self,
        *,
        alpha: float = 0.2,
        dims: int = 32,
        prior_feature: str | None = ROUTER,
        run_length: float | None = RUN_LENGTH,
        baseline: str | None = None,
        looks: float = LOOKS,
    ) -> None:
        if not 0.0 <= alpha < math.inf:
            raise PolicyError(f"alpha {alpha} is not a finite number of at least 0")
        if not 0.0 <= looks <= 1000.0:
            raise PolicyError(f"looks {looks} is not a number from 0 to 1000")
        check_whole(0, dims=dims)
        self._settings: dict[str, Any] = {
            "alpha": alpha,
            "dims": dims,
            "prior_feature": prior_feature,
            "run_length": run_length,
            "baseline": baseline,
            "looks": looks,
        }
        self._detector = None if run_length is None else ChangeDetector(run_length)
        self._rows: dict[str, int] = {}
        self._model: ArmRegressions | None = None
        self._memory: deque[Array] = deque(maxlen=MOST)
        self._rewards = 0
        self._restarts: list[Restart] = []
        self._lock = Lock()

    @staticmethod
    def check_untrusted(params: Mapping[str, Any], configured: bool) -> None:
        """Accept all parameters, because none names a file."""
        del params, configured

    @property
    def restarts(self) -> tuple[Restart, ...]:
        """When the policy forgot what it had learned, the oldest restart first."""
        return tuple(self._restarts)

    def probabilities(self, context: Context, arms: Sequence[str]) -> Array:
        """Return the distribution over the arms, shape (n,).

        Raises:
            PolicyError: A feature is not finite, or the embedding differs in length from earlier ones.
        """
        return self.penalise(context, arms, np.zeros(len(arms)))

    def penalise(self, context: Context, arms: Sequence[str], penalty: Array) -> Array:
        """Return the distribution with a penalty subtracted from the mean rewards, shape (n,)."""
        found = self._posterior(context, arms)
        net = found.mean - penalty
        best = best_probabilities(net, found.deviation)
        if found.apart is not None:
            at = arms.index(self._settings["baseline"])
            certainty = (net - net[at]) / np.maximum(found.apart, TIE)
            best *= np.interp(certainty, (0.0, SURE, CERTAIN), (0.0, TRIED, 1.0))
            best[at] = 1.0 - best.sum()  # its own certainty is 0, so its share was 0
            return best
        if found.risen.any():
            bound = net + found.deviation
            behind = (bound.max() - bound) / found.noise
            # by degrees, and before a rise makes up for all that its arm is behind
            looks = LOOK * np.maximum(found.risen - behind / 2.0, 0.0)
            looks *= min(1.0, MOST_LOOKS / max(float(looks.sum()), TIE))
            best = (1.0 - looks.sum()) * best + looks
        if found.unseen.any():
            share = self._settings["looks"] / 1000.0
            best = (1.0 - share) * best + share * found.unseen / found.unseen.sum()
        return best

    def posterior(self, context: Context, arms: Sequence[str]) -> tuple[Array, Array]:
        """Return each arm's mean reward and the standard deviation used for the draw, shapes (n,)."""
        return self._posterior(context, arms)[:2]

    def _posterior(self, context: Context, arms: Sequence[str]) -> "_Posterior":
        check_context(context)
        x = self._columns(context)
        with self._lock:
            model, rows = self._model or self._empty(x), self._find_rows(arms)
            prior = self._build_prior(model, context, arms, rows)
            mean, variance = model.expect(rows, x, prior)
            mean -= self._find_costs(model, rows, prior)
            is_scored = bool(prior.v[0, OF_SCORED])
            narrow = self._narrow(model, rows, len(arms), is_scored)
            risen = np.maximum(model.rise[rows] - NOTICE, 0.0)
            unseen = np.minimum(self._rewards - model.last[rows], MOST)
            apart = None
            if (baseline := self._settings["baseline"]) in arms:
                at = arms.index(baseline)
                apart = np.sqrt(variance + variance[at] + model.variance_in_common(prior.v - prior.v[at]))
            variance = narrow * variance
            if is_scored:
                variance += DOUBT * model.variance_in_common(prior.v - prior.v.mean(axis=0))
            return _Posterior(mean, np.sqrt(variance), risen, model.deviation, apart, unseen)

    def _narrow(self, model: ArmRegressions, rows: NDArray[np.intp], n_arms: int, is_scored: bool) -> Array:
        """Return the factor on the variance of each arm among so many, shape (n,)."""
        wide = WIDE_SCORED if is_scored and not self._restarts else 1.0
        since = self._restarts[-1].reward if self._restarts else 0
        early = EARLY / (EARLY + self._rewards - since)
        least = self._settings["alpha"] ** (2.0 if is_scored else 2.0 * min(n_arms / FEW, 1.0))
        early_of_arm = EARLY_OF_ARM / (EARLY_OF_ARM + model.drawn[rows])
        return np.asarray(least + max(wide - least, 0.0) * np.maximum(early, early_of_arm))

    def learn(self, decision: Decision, reward: float, cost: float = 0.0) -> None:
        """Update from one reward, and restart if there is now enough evidence of a change.

        Args:
            decision: What was drawn.
            reward: Reward of the drawn arm.
            cost: What the reward lost to costs.
        """
        check_reward(decision, reward)
        x, drawn = self._columns(decision.context), decision.drawn
        with self._lock:
            model = self._model = self._model or self._empty(x)
            if drawn not in self._rows:
                self._rows[drawn] = len(self._rows)
                model.add_arm()
            row, at, rows = self._rows[drawn], decision.arms.index(drawn), self._find_rows(decision.arms)
            prior, own = self._build_prior(model, decision.context, decision.arms, rows).only(at), rows[[at]]
            model.pay(row, cost)
            earned = reward + float(self._find_costs(model, own, prior)[0])
            ((mean,), (variance,)) = model.expect(own, x, prior)
            error = earned - float(mean)
            narrow = self._narrow(model, own, len(decision.arms), bool(prior.v[0, OF_SCORED]))[0]
            self._rewards += 1
            rise = model.rise[row] + max(-ONE, min(error / model.deviation, ONE)) - UNEXPLAINED
            model.rise[row] = min(max(rise, 0.0), NOTICE + MOST_LOOKS / LOOK)
            model.last[row] = self._rewards
            moved = abs(error) * variance / (model.noise[0] + variance)
            parts = min(max(math.ceil(moved / (AT_ONCE * math.sqrt(narrow * variance) + TIE)), 1), LEAST)
            apart = earned - prior.mean_score
            self._memory.append(np.array([row, reward, error, parts, apart, *prior.v[0], *x]))
            due = self._find_due()
            model.measure(sum(float(one[2] ** 2 / one[3]) for one in due))
            if self._rewards % LEAST == 0:
                rose = {one.arm: one.rise for one in self._restarts}  # when each last changed
                for arm in (arm for arm in rose if not rose[arm]):
                    model.fade(self._rows[arm], 0.5 ** (LEAST / HALF_LIFE))
            for one in due:
                self._add(model, one, 1.0 / float(one[3]))
            change = None if self._detector is None else self._detector.see(drawn, reward, x[1:])
            if change is not None:
                self._restart(model, change)

    def _find_due(self) -> list[Array]:
        """Return the rewards that count in part with the latest one, itself first."""
        since = self._rewards - (self._restarts[-1].reward if self._restarts else 0)
        latest = islice(reversed(self._memory), min(since, LEAST))
        return [one for age, one in enumerate(latest) if age < one[3]]

    def _add(self, model: ArmRegressions, one: Array, weight: float) -> None:
        model.add(int(one[0]), one[8:], one[5:8], float(one[4]), weight)

    def _find_costs(self, model: ArmRegressions, rows: NDArray[np.intp], prior: Prior) -> Array:
        """Return what each arm costs, in reward, shape (n,); 0 where scores count it already."""
        return np.zeros(len(rows)) if prior.v[0, OF_SCORED] else model.costs(rows)

    def _restart(self, model: ArmRegressions, change: ArmChange) -> None:
        """Forget all but the latest rewards."""
        names = [*self._rows]
        rewards = [(names[int(one[0])], float(one[1])) for one in self._memory]
        restart = restart_after(change, self._rewards, rewards)
        self._restarts.append(restart)
        model.forget(PRIOR)
        kept = [*self._memory][-restart.kept :]
        for left, one in zip(range(len(kept), 0, -1), kept, strict=True):
            self._add(model, one, BEFORE if left > change.since else 1.0)

    def save(self) -> bytes:
        """Return the settings and a digest on one line, then the names of the arms and the model."""
        with self._lock:
            facts = {
                "arms": [*self._rows],
                "rewards": self._rewards,
                "restarts": [asdict(one) for one in self._restarts],
                "watched": [] if self._detector is None else self._detector.arms,
            }
            arrays = {} if self._model is None else dict(self._model.arrays())
            watched = {} if self._detector is None else self._detector.arrays()
            return seal(self._made_by, pack(facts, arrays | watched | {"memory": np.array(self._memory)}))

    def load(self, state: bytes) -> Self:
        """Return a policy with the given state.

        Raises:
            PolicyError: The state is damaged, or has another kind or other settings.
        """
        facts, arrays = unpack(unseal(state, self._made_by))
        loaded, detector = copy.copy(self), self._detector
        if detector is not None:
            detector = detector.load(facts["watched"], arrays.pop("watched"), arrays.pop("seen"))
        vars(loaded).update(
            _rows={arm: row for row, arm in enumerate(facts["arms"])},
            _memory=deque(arrays.pop("memory"), maxlen=MOST),
            _model=ArmRegressions(**arrays) if arrays else None,
            _rewards=facts["rewards"],
            _detector=detector,
            _restarts=[Restart(**one) for one in facts["restarts"]],
            _lock=Lock(),
        )
        return loaded

    @property
    def _made_by(self) -> dict[str, Any]:
        return {"kind": self.kind, "layout": LAYOUT, **self._settings}

    def _columns(self, context: Context) -> Array:
        n = None if self._model is None else len(self._model.penalties) - 1
        return np.array([1.0, *question_columns(context, self._settings["dims"], n)])

    def _empty(self, x: Array) -> ArmRegressions:
        return ArmRegressions.empty(len(x), self._settings["dims"], PRIOR)

    def _find_rows(self, arms: Sequence[str]) -> NDArray[np.intp]:
        """Return the row of each arm; the last row for an arm without rewards."""
        return np.array([self._rows.get(arm, -1) for arm in arms], dtype=np.intp)

    def _build_prior(
        self, model: ArmRegressions, context: Context, arms: Sequence[str], rows: NDArray[np.intp]
    ) -> Prior:
        scores = prior_scores(context, arms, self._settings["prior_feature"])
        unknown = EARLY / (EARLY + model.drawn[rows])
        return Prior.from_scores(scores, NEWCOMER * model.deviation * unknown)
