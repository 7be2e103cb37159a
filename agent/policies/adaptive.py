"""A linear bandit for a world that changes: it forgets, weighs its trust in a router, and starts anew.

Every arm has a ridge regression of its own of the reward less a prior, discounted with each reward. Three
members read the same statistics; an arm is drawn with the probability that it is the best. The
ridges are for rewards as noisy as single ratings; where they are calmer, fewer of them outweigh a prior:

    member      prior             ridge   follows
    trusting    the router's      1000    a router that is right
    correcting  the router's       100    a router that errs by kinds of questions
    own         none                30    the rewards alone

The mean residual of all drawn arms, the level of a prior, is added to every arm: labels that promise too much
promise it of arms that nobody draws, too. Weights follow the likelihood of each reward under each member.

Where the rewards of an arm say that they have changed (`armwise.agent.policies.change_detector`),
everything is forgotten but the latest rewards. The router stays a member, with the weight that `own` had at
the start: where it is still right, the likelihood gives its weight back. An arm that is hardly drawn could
not show a change: where its few rewards are higher than expected, it gets half of the draws until they are
not. All of it is a function of the rewards in their order, so a replay restarts at the same places.
"""

import copy
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from threading import Lock
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from armwise.agent.policies.base import PolicyError, Restart
from armwise.agent.policies.change_detector import (
    MOST,
    REMOVED,
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
    question_contributions,
)
from armwise.agent.policies.sampling import best_probabilities, greedy
from armwise.agent.policies.serialization import pack, seal, unpack, unseal
from armwise.feedback.events import ROUTER, Context, Decision

Array = NDArray[np.float64]

SCORED, UNSCORED = 0, 1
"""The priors: the score of the router, and none."""

PRIOR_OF_MEMBER = np.array([SCORED, SCORED, UNSCORED])
RIDGES = np.array([1000.0, 100.0, 30.0])
WEIGHTS = np.array([0.7, 0.15, 0.15])
"""Weights of the members at the start, towards which they are drawn all the time."""

RESTARTED = np.array([0.15, 0.15, 0.7])
"""Weights of the members after a restart: the router promised what has changed, but may still be right."""

FIXED_SHARE = 0.001
"""How much of the weights is redistributed with each reward (Herbster and Warmuth's fixed share)."""

LEVEL_COUNTS = np.array([10.0, 20.0])
"""Rewards that the level of each prior at the start is worth."""

NOISE, NOISE_COUNT, NOISE_DECAY = 0.2, 20.0, 0.999
"""Variance of a reward at the start, the rewards that it is worth, and its discount."""

CALM = 0.1
"""Variance of a reward below which ridges are less, in proportion to it."""

LEAST_VARIANCE = 0.0004
"""Least variance: where all rewards are equal, the next one that differs is no miracle."""

BEFORE = 0.25
"""What a reward from before the change counts for that a restart keeps."""

LEARNED = 30
"""Rewards of an arm by which it is known: higher ones before that count as `notice` at most."""

UNEXPLAINED = 0.25
"""By how much a mean may be higher than expected without being noticed, in standard deviations."""

ONE, ALL = 8.0, 16.0
"""What one reward adds to the noticed rise of an arm at most, and all of them together."""

LOOK = 0.5
"""Probability with which an arm is drawn because its rewards were higher than expected.

Until the rewards of these draws are there, nothing contradicts the few that were high by chance: where
rewards are late, all draws of that time would be lost.
"""

SUBSETS = 8
"""Sets of arms whose statistics are kept ready for decisions: requests may allow any."""

LAYOUT = 4
"""How a state is to be read: one of another number is learned anew."""


@dataclass(slots=True)
class _Model:
    """What was learned, in arrays of n arms and d columns; the last row is an arm without rewards.

    Attributes:
        gram: Sum of x x', discounted until the latest reward of the arm, shape (n + 1, d, d).
        target: Sum of x times the reward less each prior, discounted likewise, shape (n + 1, 2, d).
        scale: Discount of both since then, shape (n + 1,).
        level: Discounted sum of the residuals from each prior, and of their number, shape (2, 2).
        weights: Weights of the members, shape (3,).
        noise: Mean square of the errors, and the rewards that it is worth, shape (2,).
        spread: Mean and variance of the rewards of all arms together, shape (2,).
        rise: Sum by which the rewards of each arm are higher than expected, shape (n + 1,).
        drawn: Rewards of each arm since the start or the last restart, shape (n + 1,).
        residual: Sum of the errors at these rewards, not discounted, shape (n + 1,).
        memory: Row of the arm, reward, each prior, whether the arm had a score, and x, of the latest rewards,
            oldest first, each of shape (5 + d,).
        decomposed: Eigenvalues and eigenvectors of `gram` by the row of an arm, until its next reward. Not
            part of the state.
        together: What decisions among some rows read, until the next reward of any arm. Not part of it.
    """

    gram: Array
    target: Array
    scale: Array = field(default_factory=lambda: np.ones(1))
    level: Array = field(default_factory=lambda: np.zeros((2, 2)))
    weights: Array = field(default_factory=WEIGHTS.copy)
    noise: Array = field(default_factory=lambda: np.array([NOISE, NOISE_COUNT]))
    spread: Array = field(default_factory=lambda: np.array([0.0, NOISE]))
    rise: Array = field(default_factory=lambda: np.zeros(1))
    drawn: Array = field(default_factory=lambda: np.zeros(1))
    residual: Array = field(default_factory=lambda: np.zeros(1))
    memory: deque[Array] = field(default_factory=lambda: deque(maxlen=MOST))
    decomposed: dict[int, tuple[Array, Array]] = field(default_factory=dict, init=False)
    together: dict[bytes, "_Rotated"] = field(default_factory=dict, init=False)

    @classmethod
    def empty(cls, d: int) -> "_Model":
        return cls(gram=np.zeros((1, d, d)), target=np.zeros((1, 2, d)))

    @classmethod
    def of(cls, arrays: Mapping[str, Array]) -> "_Model":
        memory = deque(arrays["memory"], maxlen=MOST)
        return cls(memory=memory, **{name: one for name, one in arrays.items() if name != "memory"})

    @property
    def calm(self) -> float:
        """Share of the ridges in means: in all calm worlds, weights are as uncertain before a reward."""
        return min(float(self.noise[0]) / CALM, 1.0)

    def add_arm(self) -> None:
        for name in ("gram", "target", "scale", "rise", "drawn", "residual"):
            rows: Array = getattr(self, name)
            setattr(self, name, np.concatenate([rows, rows[-1:]]))
        self.together.clear()

    def forget(self) -> None:
        """Clear what is learned of rewards, but for their noise."""
        self.gram[:], self.target[:], self.level[:] = 0.0, 0.0, 0.0
        self.rise[:], self.drawn[:], self.residual[:] = 0.0, 0.0, 0.0
        self.weights = RESTARTED.copy()
        self.decomposed.clear()
        self.together.clear()

    def arrays(self) -> dict[str, Array]:
        found = {array.name: getattr(self, array.name) for array in fields(self) if array.init}
        width = 5 + self.gram.shape[1]
        return {**found, "memory": np.array(self.memory, dtype=np.float64).reshape(-1, width)}

    def along(self, rows: NDArray[np.intp]) -> "_Rotated":
        """Return the statistics of some arms along the eigenvectors of their matrices."""
        if (found := self.together.get(key := rows.tobytes())) is None:
            every = [self._along(int(row) % len(self.gram)) for row in rows]
            values, vectors = (np.array(several) for several in zip(*every, strict=True))
            scale, members = self.scale[rows, None], self.target[rows].transpose(1, 0, 2)[PRIOR_OF_MEMBER]
            if len(self.together) == SUBSETS:
                self.together.clear()
            found = self.together[key] = _Rotated(
                vectors,
                scale * values,
                scale * (members[:, :, None] @ vectors)[:, :, 0],
                scale * (self.gram[rows, :1] @ vectors)[:, 0],
            )
        return found

    def _along(self, row: int) -> tuple[Array, Array]:
        if (found := self.decomposed.get(row)) is None:
            values, vectors = np.linalg.eigh(self.gram[row])
            found = self.decomposed[row] = np.maximum(values, 0.0), vectors
        return found


@dataclass(frozen=True, slots=True)
class _Rotated:
    """Statistics of n arms along the eigenvectors of their matrices: one decomposition serves all ridges.

    Attributes:
        vectors: Eigenvectors in columns, shape (n, d, d).
        values: Eigenvalues, shape (n, d).
        target: Targets by member, shape (3, n, d).
        intercept: First row of each matrix, shape (n, d).
    """

    vectors: Array
    values: Array
    target: Array
    intercept: Array


@dataclass(frozen=True, slots=True)
class _Priors:
    """What is expected of the arms of one context without its columns.

    Attributes:
        scores: Scores by each prior, shape (2, n).
        levels: What is added to the scores of each prior, shape (2,).
        ridges: Penalties of each member, shape (3, n).
        scored: Which arms have a score, shape (n,).
    """

    scores: Array
    levels: Array
    ridges: Array
    scored: NDArray[np.bool_]


class Adaptive:
    """Each arm with the probability that it is the best, in a world that may change.

    The largest of upper bounds would jump from arm to arm: here, one of the first rewards moves the
    distribution of other questions by some .2 to .3, and later ones by less.

    Args:
        alpha: Share of the standard deviation of a mean that counts: 1 draws as Thompson's sampling does,
            and 0 draws the largest mean.
        half_life: Rewards, of all arms together, after which a reward counts half.
        dims: Columns that the named features of the question are hashed into; 0 leaves them out.
        prior: Expected reward of arms before any is known, where no arm has a score.
        prior_feature: The feature of an arm that is its expected reward, such as the score of a router; arms
            may be without it. None to expect the same of every arm. Where no arm has a score, it is the
            similarity of the question to the source of each arm, if the context has that.
        newcomer: By how much an arm without a score is expected to be better than the best score, in
            standard deviations of a reward. Its own rewards outweigh that, and are not forgotten in this:
            an arm that was bad is not taken for unknown once its rewards are old.
        run_length: Expected number of rewards, of all arms together, between two restarts where nothing
            changes; None to restart never. A shorter one follows a change sooner.
        notice: Sum of rewards higher than expected beyond which an arm is looked at: what exceeds it is added
            to its bound, in standard deviations of a reward, for half of the probability. With a lower one,
            an arm that nobody draws and that becomes the best is found sooner, and bad ones are drawn more
            often. None to add nothing.

    Source: the members as upper confidence bounds of ridge regressions: Li et al. 2010, arXiv:1003.0146;
    discounted: Russac et al. 2019, arXiv:1909.09146; their weights: Herbster and Warmuth 1998, Tracking the
    best expert; restarts: Liu et al. 2018, A change-detection based framework for piecewise-stationary
    multi-armed bandit problem, arXiv:1711.03539; noticed rises: Page 1954.

    Raises:
        PolicyError: A value out of its range.
    """

    kind = "adaptive"
    resumes_exactly = True
    removed: ClassVar = REMOVED

    def __init__(
        self,
        *,
        alpha: float = 0.4,
        half_life: float = 350.0,
        dims: int = 32,
        prior: float = 0.5,
        prior_feature: str | None = ROUTER,
        newcomer: float = 0.2,
        run_length: float | None = RUN_LENGTH,
        notice: float | None = 3.5,
    ) -> None:
        if not 0.0 <= alpha < np.inf:
            raise PolicyError(f"alpha {alpha} is not a finite number of at least 0")
        if not half_life > 0.0:
            raise PolicyError(f"half_life {half_life} is not a positive number")
        if notice is not None and not notice > 0.0:
            raise PolicyError(f"notice {notice} is neither a positive number nor None")
        for name, value in {"prior": prior, "newcomer": newcomer}.items():
            if not np.isfinite(value):
                raise PolicyError(f"{name} {value} is not finite")
        check_whole(0, dims=dims)
        self._settings: dict[str, Any] = {
            "alpha": alpha,
            "half_life": half_life,
            "dims": dims,
            "prior": prior,
            "prior_feature": prior_feature,
            "newcomer": newcomer,
            "run_length": run_length,
            "notice": notice,
        }
        self._detector = None if run_length is None else ChangeDetector(run_length)
        self._discount = 0.5 ** (1.0 / half_life)
        self._rows: dict[str, int] = {}
        self._model: _Model | None = None
        self._rewards = 0
        self._restarts: list[Restart] = []
        self._base: float | None = None  # mean of the rewards that the last restart kept
        self._lock = Lock()

    @staticmethod
    def check_untrusted(params: Mapping[str, Any], configured: bool) -> None:
        """Accept all parameters: none names a file."""
        del params, configured

    @property
    def restarts(self) -> tuple[Restart, ...]:
        """When it forgot what it had learned, the oldest first."""
        return tuple(self._restarts)

    def probabilities(self, context: Context, arms: Sequence[str]) -> Array:
        """Return the distribution over the arms, shape (n,).

        Raises:
            PolicyError: A feature is not finite, or the embedding is not as long as those before.
        """
        return self.penalised(context, arms, np.zeros(len(arms)))

    def penalised(self, context: Context, arms: Sequence[str], penalty: Array) -> Array:
        """Return the distribution for means of the rewards that are less by a penalty, shape (n,)."""
        mean, width, noticed = self._bounds(context, arms)
        return _share(mean - penalty, width, noticed)

    def bounds(self, context: Context, arms: Sequence[str]) -> Array:
        """Return the upper confidence bound of the reward of each arm, without a noticed rise, shape (n,)."""
        mean, width, _ = self._bounds(context, arms)
        return mean + width

    def _bounds(self, context: Context, arms: Sequence[str]) -> tuple[Array, Array, Array]:
        """Return the mean of the reward of each arm, its width, and what a rise adds to it, shapes (n,)."""
        check_context(context)
        x = self._columns(context)
        with self._lock:
            model = self._model or _Model.empty(len(x))
            rows = self._find_rows(arms)
            mean, variance = self._predict(model, x, rows, self._priors(model, context, arms, rows))
            width = self._settings["alpha"] * math.sqrt(model.noise[0])
            widths = np.asarray(width * (model.weights @ np.sqrt(variance)))
            return np.asarray(model.weights @ mean), widths, self._noticed(model, rows)

    def contributions(self, context: Context, arms: Sequence[str]) -> dict[str, Array]:
        """Return what each feature adds to the mean of each arm's reward, shape (n,), by its name.

        It is the weighted mean of the members, which is linear in the features. The numbers of the embedding
        count as one feature. Features that share a column share its weight.
        """
        check_context(context)
        x = self._columns(context)
        with self._lock:
            model = self._model or _Model.empty(len(x))
            weights, rows = model.weights, self._find_rows(arms)
            priors = self._priors(model, context, arms, rows)
            levels = priors.levels[PRIOR_OF_MEMBER]
            scale = model.scale[rows, None, None]
            gram, target = scale * model.gram[rows], scale * model.target[rows]
            target = target.transpose(1, 0, 2)[PRIOR_OF_MEMBER] - levels[:, None, None] * gram[:, 0]
            ridges = model.calm * priors.ridges[..., None, None] * np.eye(len(x))
            theta = np.linalg.solve(gram + ridges, target[..., None])[..., 0]
            own = np.einsum("k,knd->nd", weights, theta)
        found = {
            "prior": weights @ priors.scores[PRIOR_OF_MEMBER],
            "level of all arms": np.full(len(arms), weights @ levels),
        }
        return found | question_contributions(context, self._settings["dims"], own)

    def learn(self, decision: Decision, reward: float) -> None:
        """Update from one reward, and restart where it completes the evidence of a change."""
        check_reward(decision, reward)
        x = self._columns(decision.context)
        with self._lock:
            model = self._model = self._model or _Model.empty(len(x))
            if decision.drawn not in self._rows:
                self._rows[decision.drawn] = len(self._rows)
                model.add_arm()
            self._rewards += 1
            row, at = self._rows[decision.drawn], decision.arms.index(decision.drawn)
            rows = self._find_rows(decision.arms)
            priors = self._priors(model, decision.context, decision.arms, rows)
            mean, variance = _expected(model, x, row, priors, at)
            error = reward - float(model.weights @ mean)
            deviation = math.sqrt(model.spread[1])
            self._reweigh(model, reward - mean, model.noise[0] * (1.0 + variance))
            _measure(model, reward, error)
            self._add(model, row, x, reward, priors.scores[:, at], scored=bool(priors.scored[at]))
            model.residual[row] += error
            model.memory.append(np.array([row, reward, *priors.scores[:, at], priors.scored[at], *x]))
            self._notice(model, row, error / deviation)
            if self._detector is not None:
                change = self._detector.see(decision.drawn, reward, x[1:])
                if change is not None:
                    self._restart(model, change)

    def save(self) -> bytes:
        """Return the settings and a digest on one line, then the names of the arms and the model."""
        with self._lock:
            facts = {
                "arms": [*self._rows],
                "rewards": self._rewards,
                "base": self._base,
                "restarts": [asdict(one) for one in self._restarts],
                "watched": [] if self._detector is None else self._detector.arms,
            }
            arrays = self._model.arrays() if self._model else {}
            return seal(
                self._made_by,
                pack(facts, arrays | ({} if self._detector is None else self._detector.arrays())),
            )

    def load(self, state: bytes) -> Self:
        """Return a policy with the given state.

        Raises:
            PolicyError: The state is damaged, or of another kind or other settings.
        """
        facts, arrays = unpack(unseal(state, self._made_by))
        loaded, detector = copy.copy(self), self._detector
        if detector is not None:
            detector = detector.load(facts["watched"], arrays.pop("watched"), arrays.pop("seen"))
        vars(loaded).update(
            _rows={arm: row for row, arm in enumerate(facts["arms"])},
            _model=_Model.of(arrays) if arrays else None,
            _rewards=facts["rewards"],
            _base=facts["base"],
            _detector=detector,
            _restarts=[Restart(**one) for one in facts["restarts"]],
            _lock=Lock(),
        )
        return loaded

    @property
    def _made_by(self) -> dict[str, Any]:
        return {"kind": self.kind, "layout": LAYOUT, **self._settings}

    def _columns(self, context: Context) -> Array:
        n = None if self._model is None else self._model.gram.shape[1] - 1
        return np.array([1.0, *question_columns(context, self._settings["dims"], n)])

    def _predict(
        self, model: _Model, x: Array, rows: NDArray[np.intp], priors: _Priors
    ) -> tuple[Array, Array]:
        """Return mean and variance, for noise of variance 1, of each arm by each member, shape (3, n).

        The variance is that of the whole ridges: a calm world is not explored more than another.
        """
        along = model.along(rows)
        y = x @ along.vectors
        levels = priors.levels[PRIOR_OF_MEMBER, None]
        inverse = y / (along.values + model.calm * priors.ridges[..., None])
        learned = (inverse * (along.target - levels[..., None] * along.intercept)).sum(axis=2)
        inverse = y / (along.values + priors.ridges[..., None])
        return priors.scores[PRIOR_OF_MEMBER] + levels + learned, (inverse * y).sum(axis=2)

    def _priors(
        self, model: _Model, context: Context, arms: Sequence[str], rows: NDArray[np.intp]
    ) -> _Priors:
        scores = prior_scores(context, arms, self._settings["prior_feature"])
        scored = ~np.isnan(scores)
        bonus = self._bonus(model, rows)
        expected = self._settings["prior"] if self._base is None else self._base
        own = np.where(scored, 0.0, bonus)
        if scored.any():
            expected = scores[scored].mean()
            scores = np.where(scored, scores, scores[scored].max() + bonus)
        totals, counts = model.level
        levels = (totals + LEVEL_COUNTS * [0.0, expected]) / (counts + LEVEL_COUNTS)
        if not scored.any():
            scores, levels = own, levels[[UNSCORED, UNSCORED]]
        ridges = np.where(scored, RIDGES[:, None], RIDGES[-1])
        return _Priors(np.stack([scores, own]), levels, ridges, scored)

    def _find_rows(self, arms: Sequence[str]) -> NDArray[np.intp]:
        """Return the row of each arm; that of an arm without rewards is the last."""
        return np.array([self._rows.get(arm, -1) for arm in arms], dtype=np.intp)

    def _bonus(self, model: _Model, rows: NDArray[np.intp]) -> Array:
        """Return by how much arms without a score are expected to be better than the best score."""
        unknown = RIDGES[-1] * self._settings["newcomer"] * math.sqrt(model.noise[0])
        return np.asarray((unknown + model.residual[rows]) / (RIDGES[-1] + model.drawn[rows]))

    def _noticed(self, model: _Model, rows: NDArray[np.intp]) -> Array:
        """Return what is added to the bounds of arms whose rewards were higher than expected."""
        if (notice := self._settings["notice"]) is None:
            return np.zeros(len(rows))
        return np.asarray(math.sqrt(model.spread[1]) * np.maximum(model.rise[rows] - notice, 0.0))

    def _reweigh(self, model: _Model, error: Array, variance: Array) -> None:
        """Move the weights of the members by the likelihood of a reward, shapes (3,)."""
        log = np.log(model.weights) - 0.5 * (error * error / variance + np.log(variance))
        weights = np.exp(log - log.max())
        model.weights = (1.0 - FIXED_SHARE) * weights / weights.sum() + FIXED_SHARE * WEIGHTS

    def _add(self, model: _Model, row: int, x: Array, reward: float, scores: Array, *, scored: bool) -> None:
        """Discount what is known, and add a reward."""
        model.level *= self._discount
        model.scale *= self._discount
        model.gram[row] = model.scale[row] * model.gram[row] + np.outer(x, x)
        model.target[row] = model.scale[row] * model.target[row] + np.outer(reward - scores, x)
        model.scale[row] = 1.0
        model.decomposed.pop(row, None)
        model.together.clear()
        model.level += np.array([reward - scores, np.ones(2)]) * [scored, True]
        model.drawn[row] += 1.0

    def _notice(self, model: _Model, row: int, error: float) -> None:
        """Add the error of an arm, in standard deviations, to the sum by which it is higher than expected."""
        rise = model.rise[row] + max(-ONE, min(error, ONE)) - UNEXPLAINED
        most = (self._settings["notice"] or 0.0) if model.drawn[row] == LEARNED else ALL
        model.rise[row] = min(max(rise, 0.0), most)

    def _restart(self, model: _Model, change: ArmChange) -> None:
        """Forget all but the latest rewards."""
        names = [*self._rows]
        rewards = [(names[int(one[0])], float(one[1])) for one in model.memory]
        restart = restart_after(change, self._rewards, rewards)
        self._restarts.append(restart)
        kept = [*model.memory][-restart.kept :]
        model.forget()
        self._base = float(np.mean([one[1] for one in kept]))
        for left, one in zip(range(len(kept), 0, -1), kept, strict=True):
            if left == change.since:
                model.scale *= BEFORE
                model.level *= BEFORE
            self._add(model, int(one[0]), one[5:], one[1], one[2:4], scored=bool(one[4]))


def _share(mean: Array, width: Array, noticed: Array) -> Array:
    """Return the distribution of which a share goes to an arm whose rewards have risen, shape (n,)."""
    best = best_probabilities(mean, width)
    if not noticed.any():
        return best
    return (1.0 - LOOK) * best + LOOK * greedy(mean + width + noticed)


def _measure(model: _Model, reward: float, error: float) -> None:
    """Add a reward and its error to what is known of their noise.

    Errors are compared with the spread of all rewards, not with their own: where an arm earns the same
    again and again, its errors are the shrinkage of the ridge, which is no change of the world.
    """
    model.noise[1] = NOISE_DECAY * model.noise[1] + 1.0
    model.noise[0] += (error * error - model.noise[0]) / model.noise[1]
    apart = reward - model.spread[0]
    model.spread += np.array([apart, apart * apart - model.spread[1]]) / model.noise[1]
    model.noise[0] = max(model.noise[0], LEAST_VARIANCE)
    model.spread[1] = max(model.spread[1], LEAST_VARIANCE)


def _expected(model: _Model, x: Array, row: int, priors: _Priors, at: int) -> tuple[Array, Array]:
    """Return mean and variance of one arm as `Adaptive._predict` does, shapes (3,).

    Three systems are solved faster than the matrix is decomposed, which only decisions need.
    """
    scale, levels = model.scale[row], priors.levels[PRIOR_OF_MEMBER]
    target = model.target[row, PRIOR_OF_MEMBER] - levels[:, None] * model.gram[row, 0]
    ridges = model.calm * priors.ridges[:, at, None, None] * np.eye(len(x))
    solved = np.linalg.solve(scale * model.gram[row] + ridges, x[:, None])[..., 0]
    learned = scale * (solved * target).sum(axis=1)
    return priors.scores[PRIOR_OF_MEMBER, at] + levels + learned, solved @ x
