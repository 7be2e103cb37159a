"""A linear bandit for a world that changes: it forgets, weighs its trust in a router, and restarts.

Every arm has a ridge regression of the reward minus a prior, discounted with each reward. Three members read
the same statistics; an arm is drawn with the probability that it is the best. The ridges suit rewards as
noisy as single ratings; of less noisy rewards, fewer outweigh a prior:

    member      prior             ridge   follows
    trusting    the router's      1000    a router that is right
    correcting  the router's       100    a router that errs by kinds of questions
    own         none                30    the rewards alone

The level of a prior, the mean residual of all drawn arms, is added to every arm, since labels that promise
too much do so for arms that are never drawn, too. Weights follow the likelihood of each reward under each
member.

When a change of an arm's rewards is detected (`armwise.agent.policies.change_detector`), everything except
the latest rewards is forgotten. The router stays a member, with the weight that `own` had at the start: if it
is still right, the likelihood restores its weight. An arm that is hardly drawn cannot show a change, so one
whose few rewards are higher than expected gets half of the draws until they no longer are. The state is a
function of the rewards in their order, so a replay restarts at the same places.
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
"""Indices of the priors: the score of the router, and the constant prior."""

PRIOR_OF_MEMBER = np.array([SCORED, SCORED, UNSCORED])
RIDGES = np.array([1000.0, 100.0, 30.0])
WEIGHTS = np.array([0.7, 0.15, 0.15])
"""Weights of the members at the start, towards which each reward pulls them back."""

RESTARTED = np.array([0.15, 0.15, 0.7])
"""Weights of the members after a restart: the router predicted what has changed, but may still be right."""

FIXED_SHARE = 0.001
"""Share of the weights that each reward redistributes (Herbster and Warmuth's fixed share)."""

LEVEL_COUNTS = np.array([10.0, 20.0])
"""Number of rewards that the initial level of each prior counts as."""

NOISE, NOISE_COUNT, NOISE_DECAY = 0.2, 20.0, 0.999
"""Initial variance of a reward, the number of rewards that it counts as, and its discount."""

CALM = 0.1
"""Variance of a reward below which ridges shrink in proportion to it."""

LEAST_VARIANCE = 0.0004
"""Least variance, so that after equal rewards a different one remains plausible."""

BEFORE = 0.25
"""Weight of rewards from before the change that a restart keeps."""

LEARNED = 30
"""Rewards after which an arm is known; until then its noticed rise is at most `notice`."""

UNEXPLAINED = 0.25
"""Excess of a mean over its expectation that is tolerated, in standard deviations."""

ONE, ALL = 8.0, 16.0
"""Most that a single reward, and all rewards together, add to the noticed rise of an arm."""

LOOK = 0.5
"""Probability with which an arm is drawn because its rewards were higher than expected.

It is below 1 because rewards may be late: until those of the new draws arrive, a rise by chance would
otherwise take every draw.
"""

SUBSETS = 8
"""Sets of arms whose statistics are cached for decisions, since requests may allow any set."""

LAYOUT = 4
"""Version of the layout of a state; a state of another layout is learned again from the log."""


@dataclass(slots=True)
class _Model:
    """The learned statistics, for n arms and d columns; the last row is an arm without rewards.

    Attributes:
        gram: Sum of x x', discounted until the latest reward of the arm, shape (n + 1, d, d).
        target: Sum of x times the reward minus each prior, discounted likewise, shape (n + 1, 2, d).
        scale: Discount of both since then, shape (n + 1,).
        level: Discounted sum of the residuals from each prior, and of their number, shape (2, 2).
        weights: Weights of the members, shape (3,).
        noise: Mean square of the errors, and the number of rewards that it counts as, shape (2,).
        spread: Mean and variance of the rewards of all arms together, shape (2,).
        rise: Sum by which the rewards of each arm are higher than expected, shape (n + 1,).
        drawn: Rewards of each arm since the start or the last restart, shape (n + 1,).
        residual: Undiscounted sum of the errors at these rewards, shape (n + 1,).
        memory: The latest rewards, oldest first: row of the arm, reward, each prior, whether the arm had a
            score, and x, each of shape (5 + d,).
        decomposed: Cache of the eigenvalues and eigenvectors of `gram` by row, until the arm's next reward.
        together: Cache of the statistics for decisions among some rows, until the next reward.
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
        """Factor of the ridges in means, so that the prior uncertainty of weights scales with the noise."""
        return min(float(self.noise[0]) / CALM, 1.0)

    def add_arm(self) -> None:
        for name in ("gram", "target", "scale", "rise", "drawn", "residual"):
            rows: Array = getattr(self, name)
            setattr(self, name, np.concatenate([rows, rows[-1:]]))
        self.together.clear()

    def forget(self) -> None:
        """Clear everything learned except the noise of rewards."""
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
    """The priors of the arms in one context.

    Attributes:
        scores: Expected reward by each prior, shape (2, n).
        levels: Level added to each prior, shape (2,).
        ridges: Penalties of each member, shape (3, n).
        scored: Whether each arm has a router score, shape (n,).
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
        """The times at which it forgot what it had learned, the oldest first."""
        return tuple(self._restarts)

    def probabilities(self, context: Context, arms: Sequence[str]) -> Array:
        """Return the distribution over the arms, shape (n,).

        Raises:
            PolicyError: A feature is not finite, or the embedding differs in length from earlier ones.
        """
        return self.penalised(context, arms, np.zeros(len(arms)))

    def penalised(self, context: Context, arms: Sequence[str], penalty: Array) -> Array:
        """Return the distribution with a penalty subtracted from the mean rewards, shape (n,)."""
        mean, width, noticed = self._bounds(context, arms)
        return _share(mean - penalty, width, noticed)

    def bounds(self, context: Context, arms: Sequence[str]) -> Array:
        """Return the upper confidence bound of the reward of each arm, without a noticed rise, shape (n,)."""
        mean, width, _ = self._bounds(context, arms)
        return mean + width

    def _bounds(self, context: Context, arms: Sequence[str]) -> tuple[Array, Array, Array]:
        """Return the mean reward of each arm, its width, and the bonus of a noticed rise, shapes (n,)."""
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
        """Return the contribution of each feature to the mean reward of each arm, shape (n,), by name.

        The mean is the weighted mean of the members, which is linear in the features. The embedding counts as
        one feature. Features that share a hashed column share its weight.
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
        """Update from one reward, and restart if it completes the evidence of a change."""
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
            PolicyError: The state is damaged, or of another kind or with other settings.
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
        """Return mean and variance of each arm by each member, for noise of variance 1, shapes (3, n).

        The variance is computed with the unscaled ridges, so that less noise does not mean more exploration.
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
        """Return the row of each arm; the last row for an arm without rewards."""
        return np.array([self._rows.get(arm, -1) for arm in arms], dtype=np.intp)

    def _bonus(self, model: _Model, rows: NDArray[np.intp]) -> Array:
        """Return the expected lead of each arm without a score over the best score."""
        unknown = RIDGES[-1] * self._settings["newcomer"] * math.sqrt(model.noise[0])
        return np.asarray((unknown + model.residual[rows]) / (RIDGES[-1] + model.drawn[rows]))

    def _noticed(self, model: _Model, rows: NDArray[np.intp]) -> Array:
        """Return the bonus on the bounds of arms whose rewards were higher than expected."""
        if (notice := self._settings["notice"]) is None:
            return np.zeros(len(rows))
        return np.asarray(math.sqrt(model.spread[1]) * np.maximum(model.rise[rows] - notice, 0.0))

    def _reweigh(self, model: _Model, error: Array, variance: Array) -> None:
        """Move the weights of the members by the likelihood of a reward, shapes (3,)."""
        log = np.log(model.weights) - 0.5 * (error * error / variance + np.log(variance))
        weights = np.exp(log - log.max())
        model.weights = (1.0 - FIXED_SHARE) * weights / weights.sum() + FIXED_SHARE * WEIGHTS

    def _add(self, model: _Model, row: int, x: Array, reward: float, scores: Array, *, scored: bool) -> None:
        """Discount the statistics, and add a reward."""
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
        """Add an error of an arm, in standard deviations, to its cumulative rise."""
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
    """Return the distribution, with a share reserved for arms whose rewards have risen, shape (n,)."""
    best = best_probabilities(mean, width)
    if not noticed.any():
        return best
    return (1.0 - LOOK) * best + LOOK * greedy(mean + width + noticed)


def _measure(model: _Model, reward: float, error: float) -> None:
    """Update the estimates of noise and spread by a reward and its error.

    The spread of all rewards is the scale of errors for changes: if an arm always earns the same, its errors
    come from the shrinkage of the ridge, and their spread would be too small a scale.
    """
    model.noise[1] = NOISE_DECAY * model.noise[1] + 1.0
    model.noise[0] += (error * error - model.noise[0]) / model.noise[1]
    apart = reward - model.spread[0]
    model.spread += np.array([apart, apart * apart - model.spread[1]]) / model.noise[1]
    model.noise[0] = max(model.noise[0], LEAST_VARIANCE)
    model.spread[1] = max(model.spread[1], LEAST_VARIANCE)


def _expected(model: _Model, x: Array, row: int, priors: _Priors, at: int) -> tuple[Array, Array]:
    """Return mean and variance of one arm as `Adaptive._predict` does, shapes (3,).

    Solving three systems is faster than decomposing the matrix, which only decisions need.
    """
    scale, levels = model.scale[row], priors.levels[PRIOR_OF_MEMBER]
    target = model.target[row, PRIOR_OF_MEMBER] - levels[:, None] * model.gram[row, 0]
    ridges = model.calm * priors.ridges[:, at, None, None] * np.eye(len(x))
    solved = np.linalg.solve(scale * model.gram[row] + ridges, x[:, None])[..., 0]
    learned = scale * (solved * target).sum(axis=1)
    return priors.scores[PRIOR_OF_MEMBER, at] + levels + learned, solved @ x
