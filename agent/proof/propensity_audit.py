"""An audit of a log: are the propensities on record those that arms were drawn with?

    found = audit(Draws(arms, drawn, propensity, p))      arrays in, verdict out
    found.status, found.checks

Every test is a bet against the log. Where the whole distribution p of each row is on record, another
distribution q is fitted to the rows before (q is p with the odds of some cells multiplied, such as those of
an arm, of an arm where a feature is set, of probabilities in a bin), and the wealth of the bet is the product
of q / p of the drawn arms. Where only the propensity of the drawn arm is known, the wealth is the product of
1 + bet (v - 1), with v = 1 / p where an arm was drawn and 0 elsewhere: the mean of v is 1, whatever the
probabilities of the other arms were. Under true propensities both are martingales that begin at 1, so the
probability that the wealth ever reaches 1 / a is at most a (Ville): the inverse of its maximum is a p-value.
That holds for any number of rows, for weights of any size, and where the propensities follow from what was
drawn and earned before, as those of a learner do; a chi-square test promises none of the three. Bets that
differ (in the prior, the forgetting, the feature) share the stake, so a test of forty features is one test.

All tests of an audit are corrected together (Holm) at `ERROR`.

Source: Shafer (2021), "Testing by betting"; Ramdas, Grunwald, Vovk and Shafer (2023), "Game-theoretic
statistics and safe anytime-valid inference"; Holm (1979), "A simple sequentially rejective multiple test
procedure".
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import exp, inf, log
from typing import Any

import numpy as np

from armwise.feedback.arrays import TOLERANCE, Flags, Floats, Integers, refuse

ERROR = 0.01
"""Largest probability that an audit of a true log finds any fault by a test."""

STICKY_ERROR = 0.001
"""Level at which draws of an episode or user count as repeated; then the tests read only its first row."""

BEYOND_DOUBT = log(100 / ERROR)
"""Evidence of a fault that Holm's procedure rejects among as many as 100 tests."""

EDGES = np.array([0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95, 0.99])
"""Edges of the bins of probabilities: fixed, since a bet must not depend on the rows that it bets on."""

PRIORS = np.array([[1.0, 1.0], [8.0, 1.0], [40.0, 1.0], [4.0, 0.6]])
"""For each bet, the prior draws of a cell, and the weight of the rows before the last block."""

FEATURE_PRIORS = np.array([[4.0, 1.0], [40.0, 1.0]])
"""`PRIORS` for tests of many cells."""

BETS = np.array([0.01, 0.03, 0.1, 0.3, 0.6, 0.9])
"""Shares of the stake, for logs with the propensities of the drawn arms only."""

RATE_ROUNDS = 50
"""Rounds in which the rates of feedback are fitted."""

SLICES = 12
"""Stretches of a log that are tested separately."""

LEAST_AGAIN = 20
"""Fewest rows after another of their group from which on repeats are tested."""

ENOUGH_DRAWS = 200
"""Draws among which one of a less probable arm is expected."""

LEAK = 0.999
"""Least correlation with the reward at which a feature counts as computed from the reward."""

RARE = 0.001
"""Propensity below which a single row weighs more than 1,000."""


ON_RECORD = "propensities on record"
"""Name of the check that fails without any propensity."""

CERTAIN = "deterministic draws"
"""Name of the check that no log passes in which nothing was left to chance."""


class CheckStatus(StrEnum):
    """The result of a check. The result of an audit is the worst of its checks."""

    PASS = "pass"  # a verdict # nosec B105
    SKIPPED = "skipped"
    """The log lacks the columns for it."""
    WARN = "warn"
    """It limits what can be estimated."""
    FAIL = "fail"
    """Estimates from the log would be silently wrong."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check.

    Attributes:
        name: Name of the check.
        status: The result.
        expected: What a true log has, in words.
        found: What this log has, in words.
        p_value: Upper bound on the probability of evidence this strong in a true log; only tests have one.
        advice: The fault and its remedy, in a sentence; empty if it passes.
    """

    name: str
    status: CheckStatus
    expected: str
    found: str
    p_value: float | None = None
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Audit:
    """The result of an audit.

    Attributes:
        rows: Decisions that were audited.
        tested: Decisions that the statistical tests read.
        checks: The checks, in the order of this file.
    """

    rows: int
    tested: int
    checks: tuple[Check, ...]

    @property
    def status(self) -> CheckStatus:
        """The worst status of a check."""
        order = [CheckStatus.SKIPPED, CheckStatus.PASS, CheckStatus.WARN, CheckStatus.FAIL]
        return max((check.status for check in self.checks), key=order.index, default=CheckStatus.SKIPPED)

    @property
    def faults(self) -> tuple[Check, ...]:
        """The checks that fail."""
        return tuple(check for check in self.checks if check.status is CheckStatus.FAIL)

    @property
    def doubt(self) -> str:
        """Why nothing can be estimated from the log, in two or three sentences; empty: something can."""
        if not self.faults:
            return ""
        worst = min(self.faults, key=lambda check: check.p_value or 0.0)
        return f"Nothing can be estimated from this log: it fails the audit ({worst.name}). {worst.advice}"


@dataclass(frozen=True, eq=False)
class Draws:
    """Decisions as arrays, in the order in which they were made.

    Attributes:
        arms: Names of the columns.
        drawn: Column of the drawn arm, shape (n,).
        propensity: Probability of the drawn arm, shape (n,); NaN: unknown.
        p: The distribution, shape (n, n_arms), 0 for an arm that was not eligible; None: only the
            propensities of drawn arms are known.
        eligible: Whether an arm could be drawn, shape (n, n_arms); None: all could.
        features: Small codes, from 0, of each feature of the rows, shape (n,), by name.
        values: Numbers of features of the rows, shape (n,), by name, compared with the reward.
        reward: Rewards, shape (n,); NaN: missing. None: the audit leaves rewards out.
        ids: Code of the id of each decision, shape (n,); None: all ids differ.
        groups: Codes of groups such as episodes or users, shape (n,), by kind of group; -1: in no group.
        at: Times of the decisions, seconds since the epoch, shape (n,).
        floor: Least probability that each row claims for an eligible arm, shape (n,); NaN: it claims none.
        waiting: Whether a reward may still come, shape (n,).
        rated: Whether rows without feedback are missing, so that arms with more feedback have more rows.

    Raises:
        ValueError: Shapes differ, or `drawn` is out of range.
    """

    arms: tuple[str, ...]
    drawn: Integers
    propensity: Floats
    p: Floats | None = None
    eligible: Flags | None = None
    features: Mapping[str, Integers] = field(default_factory=dict)
    values: Mapping[str, Floats] = field(default_factory=dict)
    reward: Floats | None = None
    ids: Integers | None = None
    groups: Mapping[str, Integers] = field(default_factory=dict)
    at: Floats | None = None
    floor: Floats | None = None
    waiting: Flags | None = None
    rated: bool = False

    def __post_init__(self) -> None:
        n, k = len(self.drawn), len(self.arms)
        refuse("drawn", self.drawn, (self.drawn >= 0) & (self.drawn < k), f"a column below {k}")
        columns = {name: getattr(self, name) for name in _COLUMNS}
        for kind in ("features", "values", "groups"):
            columns |= {f"{kind} {name!r}": column for name, column in getattr(self, kind).items()}
        for name, column in columns.items():
            if column is not None and column.shape != (n,):
                raise ValueError(f"{name} must have the shape of drawn, ({n},), got {column.shape}")
        for name in ("p", "eligible"):
            if (matrix := getattr(self, name)) is not None and matrix.shape != (n, k):
                raise ValueError(f"{name} must have the shape ({n}, {k}), got {matrix.shape}")

    def __len__(self) -> int:
        return len(self.drawn)

    def where(self, rows: Flags | Integers) -> "Draws":
        """Return the rows that flags or indices select."""
        names = ("drawn", "p", "eligible", *_COLUMNS)
        some: dict[str, Any] = {
            name: None if getattr(self, name) is None else getattr(self, name)[rows] for name in names
        }
        for kind in ("features", "values", "groups"):
            some[kind] = {name: column[rows] for name, column in getattr(self, kind).items()}
        return replace(self, **some)

    @property
    def possible(self) -> Flags:
        """Whether an arm was eligible, shape (n, n_arms)."""
        everywhere = np.ones((len(self), len(self.arms)), dtype=np.bool_)
        return everywhere if self.eligible is None else self.eligible


_COLUMNS = ("propensity", "reward", "ids", "at", "floor", "waiting")


def audit(draws: Draws, error: float = ERROR) -> Audit:
    """Check whether the propensities of a log can be true.

    Args:
        draws: The decisions, in the order in which they were made; labels and forced decisions excluded.
        error: Largest probability that a test fails or warns although the log is true.
    """
    if not len(draws):
        advice = "There is nothing to audit."
        return Audit(0, 0, (Check("propensities", CheckStatus.FAIL, "decisions", "none", advice=advice),))
    recorded = ~np.isnan(draws.propensity)
    checks = [_check_recorded(draws, recorded)]
    draws = _complete(draws)
    tested = 0
    if recorded.any():
        possible, sound = _check_ranges(draws, recorded)
        checks += [possible, _check_floor(draws, sound), *_check_zeros(draws, sound)]
        checks.append(_check_certain(draws, sound))
        if draws.ids is not None:
            sound &= np.isin(np.arange(len(draws)), np.unique(draws.ids, return_index=True)[1])
        if _is_random(draws)[sound].any():  # else there is nothing to bet on
            tests, tested = _tests(draws.where(sound))
            checks += _correct_errors(tests, error)
    return Audit(len(draws), tested, (*checks, _check_ids(draws), *_check_leaks(draws)))


def _complete(draws: Draws) -> Draws:
    """Return draws between two arms with the probability of the other arm, which follows."""
    if draws.p is not None or not (draws.possible.sum(axis=1) == 2).all():
        return draws
    p = np.where(draws.possible, 1.0 - draws.propensity[:, np.newaxis], 0.0)
    p[np.arange(len(draws)), draws.drawn] = draws.propensity
    return replace(draws, p=p)


# -- counts ------------------------------------------------------------------------------------------


def _share(n: int, of: int) -> str:
    """Return a number of rows with its share.

    >>> _share(3, 12), _share(0, 0)
    ('3 of 12 (25 %)', '0 of 0')
    """
    return f"{n:,} of {of:,} ({100 * n / of:.3g} %)" if n else f"0 of {of:,}"


def _check_none(name: str, n: int, status: CheckStatus, expected: str, found: str, advice: str) -> Check:
    """Return a check that `n` is 0; if it is not, with the status and the advice."""
    if not n:
        return Check(name, CheckStatus.PASS, expected, found)
    return Check(name, status, expected, found, advice=advice)


def _check_recorded(draws: Draws, recorded: Flags) -> Check:
    n, have, expected = len(draws), int(recorded.sum()), "one for each decision"
    share = _share(have, n)
    if not have:
        advice = (
            "It has no propensities. Log the probability of the drawn arm, or better of "
            "each arm, at the moment of the draw; it cannot be filled in afterwards."
        )
        return Check(ON_RECORD, CheckStatus.FAIL, expected, share, advice=advice)
    if have == n:
        share += ", whole distributions" if draws.p is not None else ", of the drawn arm only"
    advice = f"{n - have:,} decisions have no propensity and are left out of every estimate; log it for all."
    return _check_none(ON_RECORD, n - have, CheckStatus.WARN, expected, share, advice)


def _check_ranges(draws: Draws, recorded: Flags) -> tuple[Check, Flags]:
    """Return the check of ranges, and whether the propensity of each row is possible, shape (n,)."""
    w, rows, p = draws.propensity, np.arange(len(draws)), draws.p
    outside = recorded & ~((w > 0.0) & (w <= 1.0 + TOLERANCE))
    masked = recorded & ~draws.possible[rows, draws.drawn]
    faults = []
    if outside.any():
        faults.append(
            f"{outside.sum():,} drawn arms have a propensity of {w[outside][0]:.4g}, with which nothing is "
            "drawn: log the distribution that the draw was made from, after any floor, epsilon or override"
        )
    if masked.any():
        faults.append(
            f"{masked.sum():,} drawn arms were not eligible: log the arms that could be drawn at that "
            "moment, and a fallback as such, not as the drawn arm"
        )
    sound = recorded & ~outside & ~masked
    if p is not None:
        odd = recorded & ~((p >= 0.0).all(axis=1) & (np.abs(p.sum(axis=1) - 1.0) <= TOLERANCE))
        differs = recorded & ~odd & ~(np.abs(p[rows, draws.drawn] - w) <= TOLERANCE)
        if odd.any():
            total = f"{p[odd][0].sum():.6g}"
            faults.append(f"{odd.sum():,} distributions sum to another number than 1, such as {total}")
        if differs.any():
            faults.append(f"{differs.sum():,} propensities differ from their distributions")
        sound &= ~odd & ~differs
    bad, of = int((recorded & ~sound).sum()), int(recorded.sum())
    expected = "in (0, 1], summing to 1, the drawn arm among the eligible ones"
    found = f"{bad:,} of {of:,} are not" if bad else f"all {of:,} are"
    advice = "; ".join(faults) + "."
    return _check_none("propensities possible", bad, CheckStatus.FAIL, expected, found, advice), sound


def _check_floor(draws: Draws, sound: Flags) -> Check:
    name, expected = "floor", "no eligible arm below the floor that its decision claims"
    if draws.floor is None or not (sound & (draws.floor > 0.0)).any():
        return Check(name, CheckStatus.SKIPPED, expected, "no decision claims a floor")
    width = draws.possible.sum(axis=1)
    floor = np.where(np.isnan(draws.floor), 0.0, np.minimum(draws.floor, 1.0 / np.maximum(width, 1)))
    least = draws.propensity
    if draws.p is not None:
        least = np.where(draws.possible, draws.p, inf).min(axis=1)
    below = sound & (least < floor - TOLERANCE)
    n, of, row = int(below.sum()), int((sound & (draws.floor > 0.0)).sum()), int(below.argmax())
    advice = (
        f"A decision claims a floor of {floor[row]:.4g} and has a probability of {least[row]:.4g}: what is "
        "logged leaves out the floor. Log the distribution after the floor was mixed in."
    )
    found = _share(n, of) if n else f"none in {of:,} decisions"
    return _check_none(name, n, CheckStatus.FAIL, expected, found, advice)


def _check_zeros(draws: Draws, sound: Flags) -> Iterator[Check]:
    n, expected = int(sound.sum()), "every eligible arm could be drawn"
    name = "arms that could not be drawn"
    if draws.p is None:
        w, even = draws.propensity[sound], 1.0 / np.maximum(draws.possible.sum(axis=1), 1)[sound]
        if n >= ENOUGH_DRAWS and (w > even + TOLERANCE).all() and not (w >= 1.0 - TOLERANCE).all():
            found = f"none of {n:,} draws took an arm with a probability of at most 1 / n of the arms"
            advice = (
                "In each decision, some arm has such a probability. The most probable arm may have been "
                "taken every time, whatever was logged: then nothing can be estimated of the others."
            )
            yield Check(name, CheckStatus.WARN, expected, found, advice=advice)
        else:
            yield Check(name, CheckStatus.SKIPPED, expected, "only the propensities of drawn arms are known")
    else:
        zero = ((draws.p <= 0.0) & draws.possible)[sound]
        worst = int(zero.sum(axis=0).argmax())
        rows = int(zero.any(axis=1).sum())
        advice = (
            f"{draws.arms[worst]} was eligible with a probability of 0 in "
            f"{_share(int(zero[:, worst].sum()), n)} rows: nothing can be estimated of it there. A "
            "floor of .01 for every arm would change that."
        )
        yield _check_none(name, rows, CheckStatus.WARN, expected, _share(rows, n), advice)
    least = float(draws.propensity[sound].min()) if n else 1.0
    rare = int((draws.propensity[sound] < RARE).sum())
    advice = (
        f"{rare:,} decisions were drawn with a probability below {RARE:g} and weigh up to "
        f"{1 / least:,.0f}: intervals are wide; a floor bounds the weights."
    )
    expected, found = f"none below {RARE:g}", f"the least is {least:.4g}"
    yield _check_none("weights", rare, CheckStatus.WARN, expected, found, advice)


def _check_certain(draws: Draws, sound: Flags) -> Check:
    expected, certain = "decisions that could have drawn another arm", sound & ~_is_random(draws)
    choice = draws.possible.sum(axis=1) > 1
    if (certain != sound).any() or not sound.any():
        n = int((certain & choice).sum())
        found = f"{_share(n, len(draws))} drawn with probability 1"
        return Check(CERTAIN, CheckStatus.PASS, expected, found)
    remedy = "Draw 1 to 5 % of the decisions at random among the arms, and log the probabilities."
    if (sound & choice).any():
        advice = (
            "Every propensity is 1, so the other arms had 0, and their answers to the same requests are not "
            f"in the log. {remedy}"
        )
        return Check(CERTAIN, CheckStatus.FAIL, expected, "none", advice=advice)
    advice = f"Each decision had one arm to choose from, so no arm can be compared. Add another one. {remedy}"
    return Check(CERTAIN, CheckStatus.WARN, expected, "none", advice=advice)


def _is_random(draws: Draws) -> Flags:
    """Return whether another arm could have been drawn, shape (n,)."""
    return draws.propensity < 1.0 - TOLERANCE


def _check_ids(draws: Draws) -> Check:
    name, expected = "ids", "each decision once"
    if draws.ids is None:
        return Check(name, CheckStatus.SKIPPED, expected, "there are none")
    again = len(draws) - len(np.unique(draws.ids))
    advice = (
        f"{again:,} decisions stand again under the id of an earlier one: each counts twice, and "
        "intervals are too narrow. Write each decision once; later rewards belong to it."
    )
    return _check_none(name, again, CheckStatus.FAIL, expected, _share(again, len(draws)), advice)


def _check_leaks(draws: Draws) -> Iterator[Check]:
    if draws.reward is None:
        return
    name, expected = "leaks", f"no feature with a correlation of {LEAK:g} with the reward"
    rows = ~np.isnan(draws.reward)
    r = draws.reward[rows]
    if len(r) < 50 or not r.std() > 0.0 or not draws.values:
        yield Check(name, CheckStatus.SKIPPED, expected, "too few rewards that differ, or no features")
        return
    best, feature = 0.0, ""
    for label, column in draws.values.items():
        x = column[rows]
        if np.isfinite(x).all() and x.std() > 0.0:
            correlation = abs(float(np.corrcoef(x, r)[0, 1]))
            if correlation > best:
                best, feature = correlation, label
    advice = (
        f"The feature {feature} is the reward, or was made from it: a model that sees it predicts what "
        "is not known when the arm is drawn. Log features as they were before the draw."
    )
    largest = f"the largest is {best:.3f}" + (f", of {feature}" if feature else "")
    yield _check_none(name, int(best >= LEAK), CheckStatus.FAIL, expected, largest, advice)


# -- tests -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Test:
    """A test before it is corrected; fields as in `Check`.

    Attributes:
        evidence: Logarithm of the largest wealth of its bets; None: the test cannot be made.
        fault: Status if it rejects.
        apart: Whether its fault is independent of a fault that all rows have.
    """

    name: str
    expected: str
    found: str
    evidence: float | None
    advice: str = ""
    fault: CheckStatus = CheckStatus.FAIL
    apart: bool = False

    @property
    def p_value(self) -> float:
        return min(1.0, exp(-(self.evidence or 0.0)))


def _correct_errors(tests: Sequence[_Test], error: float) -> Iterator[Check]:
    """Yield tests as checks; Holm's procedure decides which are rejected."""
    made = sorted((test for test in tests if test.evidence is not None), key=lambda test: test.p_value)
    rejected: set[str] = set()
    for place, test in enumerate(made):
        if test.p_value > error / (len(made) - place):
            break
        rejected.add(test.name)
    for test in tests:
        if test.evidence is None:
            yield Check(test.name, CheckStatus.SKIPPED, test.expected, test.found)
        elif test.name in rejected:
            yield Check(test.name, test.fault, test.expected, test.found, test.p_value, test.advice)
        else:
            yield Check(test.name, CheckStatus.PASS, test.expected, test.found, test.p_value)


def _tests(draws: Draws) -> tuple[list[_Test], int]:
    """Return the tests of the draws, and the number of rows that they read."""
    sticky: list[_Test] = []
    rows = draws
    for what in draws.groups:
        test, repeats = _within(rows, what)
        sticky.append(test)
        if repeats:
            rows = rows.where(_previous(rows.groups[what], rows.drawn) < 0)
    if not len(rows):
        return sticky, 0
    bettor = _Bettor(rows)
    first = [_mean_weights(rows, bettor), _calibration(rows, bettor)]
    others = [_slices(rows, bettor), _by_features(rows, bettor), _serial(rows, bettor)]
    if rows.reward is not None:
        others.append(_missing(rows, rows.reward, bettor))
    if _alike(rows):
        first[1] = _explain(first[1], first[0])
    if rows.rated and rows.p is not None:
        # rows that are there more often than drawn, by arm, explain this much of all evidence
        explained = _fit_presence(rows.p, rows.drawn)
        first, others, sticky = (
            [replace(test, evidence=test.evidence and max(0.0, test.evidence - explained)) for test in some]
            for some in (first, others, sticky)
        )
    strongest = max(first, key=lambda test: test.evidence or 0.0)
    return [*first, *(_explain(test, strongest) for test in others), *sticky], len(rows)


def _fit_presence(p: Floats, drawn: Integers) -> float:
    """Return the evidence that is explained if rows of each arm are there at a rate of its own.

    With rates r, an arm of probability p is found with p r / sum(p r). The largest likelihood of any rates
    bounds that of the true ones, so the evidence beyond it is still valid (universal inference: Wasserman,
    Ramdas and Balakrishnan 2020, arXiv:1912.11436).
    """
    n, observed = len(drawn), np.bincount(drawn, minlength=p.shape[1]).astype(np.float64)
    rate = np.ones(p.shape[1])
    for _ in range(RATE_ROUNDS):
        expected = (p * rate / (p @ rate)[:, np.newaxis]).sum(axis=0)
        rate *= np.divide(observed, expected, out=np.ones_like(rate), where=expected > 0.0)
        rate /= rate.max()
    some = np.log(rate[drawn]).sum() - np.log(p @ rate).sum()
    return float(max(some, 0.0)) if n else 0.0


def _alike(draws: Draws) -> bool:
    """Return whether every propensity is 1 / n of several eligible arms."""
    width = draws.possible.sum(axis=1)
    return bool((width > 1).all() and np.all(np.abs(draws.propensity * width - 1.0) <= TOLERANCE))


def _explain(test: _Test, other: _Test) -> _Test:
    """Return a test with the advice to mend another fault first, if that fault explains it.

    A draw that is skewed in all rows is skewed in those with a feature, too.
    """
    evidence, others = test.evidence or 0.0, other.evidence or 0.0
    if test.apart or others < BEYOND_DOUBT or evidence > others - log(ERROR):
        return test
    advice = f"It may follow from the check above, {other.name}: mend that first."
    return replace(test, advice=advice, fault=CheckStatus.WARN)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The outcome of a bet.

    Attributes:
        path: Logarithm of the wealth at the end of each block, shape (n_blocks,).
        ratios: Draws of each cell over the expected draws, shape (n_codes, n_arms); NaN: none were expected.
        surprise: Distance of the draws from the expectation in standard errors, same shape.
    """

    path: Floats
    ratios: Floats
    surprise: Floats

    @property
    def evidence(self) -> float:
        """Logarithm of the largest wealth."""
        return compute_evidence(self.path)

    @property
    def worst(self) -> tuple[int, int]:
        """Code and column of the cell that is farthest from its expectation."""
        place = int(np.where(np.isnan(self.ratios), -1.0, np.abs(self.surprise)).argmax())
        return place // self.surprise.shape[1], place % self.surprise.shape[1]


def compute_evidence(*paths: Floats) -> float:
    """Return the logarithm of the largest wealth of bets that share the stake, at least 0.

    The shared wealth is the mean of the wealths at each moment; the mean of the largest would not be valid.

    Args:
        paths: Logarithm of the wealth of each at the end of each block, shape (n_blocks,).

    >>> round(compute_evidence(np.log([2.0, 8.0, 1.0]), np.log([1.0, 2.0, 20.0])), 6) == round(log(10.5), 6)
    True
    """
    return max(0.0, float(_share_stake(np.array(paths)).max()))


def _share_stake(paths: Floats) -> Floats:
    """Return the path of bets that share the stake, from their paths along the first axis."""
    from scipy.special import logsumexp  # takes a second to import

    path: Floats = logsumexp(paths, axis=0) - log(len(paths))
    return path


class _Bettor:
    """Bets on the draws of some rows."""

    def __init__(self, draws: Draws) -> None:
        self.draws = draws
        self.n, self.n_arms = len(draws), len(draws.arms)
        self.possible = draws.possible
        self._blocks = list(_blocks(self.n))
        self._block_of = np.repeat(
            np.arange(len(self._blocks)), [stop - start for start, stop in self._blocks]
        )

    def bet(self, code: Integers, n_codes: int, priors: Floats = PRIORS) -> _Outcome:
        """Bet that arms are drawn otherwise than logged in rows with the same code.

        Args:
            code: Code of each row, shape (n,), in [0, n_codes), or -1 to leave it out.
            n_codes: Number of codes.
            priors: Priors like `PRIORS`, for bets on complete distributions.
        """
        p = self.draws.p
        if p is None:
            return self._bet_on_weights(code, n_codes)
        cell = code[:, np.newaxis] * self.n_arms + np.arange(self.n_arms)
        path = self.bet_on_cells(np.where(code[:, np.newaxis] < 0, n_codes * self.n_arms, cell), priors)
        observed, expected, variance = self._sums(code, n_codes)
        return _Outcome(path, _ratio(observed, expected), _surprise(observed, expected, variance))

    def _sums(self, code: Integers, n_codes: int) -> tuple[Floats, Floats, Floats]:
        """Return draws, expected draws and variance of each cell, each of shape (n_codes, n_arms)."""
        p = self.draws.p
        assert p is not None
        observed, expected, variance = (np.zeros((n_codes, self.n_arms)) for _ in range(3))
        kept = code >= 0
        np.add.at(observed, (code[kept], self.draws.drawn[kept]), 1.0)
        for column in range(self.n_arms):
            chance = p[kept, column]
            expected[:, column] = np.bincount(code[kept], chance, n_codes)
            variance[:, column] = np.bincount(code[kept], chance * (1.0 - chance), n_codes)
        return observed, expected, variance

    def bet_on_cells(self, cell: Integers, priors: Floats = PRIORS) -> Floats:
        """Return the path of bets on cells whose odds differ from those on record, shape (n_blocks,).

        Args:
            cell: Cell of each arm of each row, shape (n, n_arms), from 0. A row whose arms share a cell is
                left out.
            priors: Prior draws of each cell, and weight of earlier blocks, shape (n_bets, 2).
        """
        p = self.draws.p
        assert p is not None
        cells = int(cell.max()) + 1
        prior, kept = priors[:, :1], priors[:, 1:]
        observed, expected = np.zeros((len(priors), cells)), np.zeros((len(priors), cells))
        wealth, path = np.zeros(len(priors)), []
        for start, stop in self._blocks:
            here, chance = cell[start:stop], p[start:stop]
            mine = here[np.arange(stop - start), self.draws.drawn[start:stop]]
            factor = (observed + prior) / (expected + prior)
            for bet, odds in enumerate(factor):
                wealth[bet] += np.log(odds[mine]).sum() - np.log((chance * odds[here]).sum(axis=1)).sum()
            path.append(wealth.copy())
            observed = kept * observed + np.bincount(mine, minlength=cells)
            expected = kept * expected + np.bincount(here.ravel(), chance.ravel(), cells)
        return _share_stake(np.array(path).T)

    def bet_on_shapes(self) -> Mapping[str, Floats]:
        """Return the path of a bet on each of `_shapes`, shape (n_blocks,), by its explanation."""
        p = self.draws.p
        assert p is not None
        paths: dict[str, list[Floats]] = {}
        chance = p[np.arange(self.n), self.draws.drawn]
        for kind, shape in _shapes(p, self.possible):
            with np.errstate(divide="ignore"):
                gains = np.log(shape[np.arange(self.n), self.draws.drawn]) - np.log(chance)
            # a bet that is lost stays lost, and the sums stay finite
            gains = np.maximum(gains, RUIN)
            paths.setdefault(kind, []).append(np.cumsum(np.bincount(self._block_of, gains)))
        return {kind: _share_stake(np.array(curves)) for kind, curves in paths.items()}

    def _bet_on_weights(self, code: Integers, n_codes: int) -> _Outcome:
        """Bet that the mean of 1 / p is above 1, for logs with propensities of drawn arms only."""
        w, drawn, kept = self.draws.propensity, self.draws.drawn, code >= 0
        cells = n_codes * self.n_arms
        value = np.where(kept, 1.0 / w, 0.0)
        mine = np.where(kept, code, 0) * self.n_arms + drawn
        row, column = np.nonzero(self.possible & kept[:, np.newaxis])
        rows_of = self._by_block(code[row] * self.n_arms + column, row, np.ones(len(row)), cells)
        every = np.arange(self.n)[kept]
        logs = []
        for bet in BETS:
            gain = np.log1p(bet * (value[kept] - 1.0)) - np.log1p(-bet)
            won = self._by_block(mine[kept], every, gain, cells)
            logs.append(won + rows_of * np.log1p(-bet))
        logs += self._below(rows_of, mine, kept, value, cells)
        path = _share_stake(_share_stake(np.array(logs)).T)
        n, total = rows_of[-1], np.bincount(mine[kept], value[kept], cells).astype(np.float64)
        squares = np.bincount(mine[kept], value[kept] ** 2, cells)
        shape = (n_codes, self.n_arms)
        ratio, spread = _ratio(total, n), np.maximum(squares - total**2 / np.maximum(n, 1), 0.0)
        return _Outcome(path, ratio.reshape(shape), _surprise(total, n, spread + 1.0).reshape(shape))

    def _below(self, rows_of: Floats, mine: Integers, kept: Flags, value: Floats, cells: int) -> list[Floats]:
        """Bet that the mean of 1 / p is below 1; every row must claim a floor, which bounds 1 / p."""
        floor = self.draws.floor
        if floor is None or not (floor > 0.0).all():
            return []
        least = min(float(floor.min()), float(self.draws.propensity.min()))
        if least >= 0.5:
            return []
        logs = []
        for bet in (0.1, 0.5, 0.9):
            stake = bet * least / (1.0 - least)
            gain = np.log1p(stake * (1.0 - value[kept])) - np.log1p(stake)
            won = self._by_block(mine[kept], np.arange(self.n)[kept], gain, cells)
            logs.append(won + rows_of * np.log1p(stake))
        return logs

    def _by_block(self, cell: Integers, row: Integers, amount: Floats, cells: int) -> Floats:
        """Return running sums by cell at the end of each block, shape (n_blocks, cells)."""
        place = self._block_of[row] * cells + cell
        sums = np.bincount(place, amount, len(self._blocks) * cells).reshape(-1, cells)
        total: Floats = sums.cumsum(axis=0)
        return total

    def counts(self) -> Floats:
        """Return the path of bets that large propensities are too frequent, shape (n_blocks,).

        At most j arms have a probability above 1 / (j + 1), so the mean of 1 / p over rows with such a p is
        at most j, and the mean of 1 / p over all rows is at most the number of arms.
        """
        w, width = self.draws.propensity, self.possible.sum(axis=1)
        logs = []
        for j in range(1, self.n_arms + 1):
            last = width <= j
            value = np.where(last, 1.0 / (w * width), (w > 1.0 / (j + 1)) / (w * j))
            for bet in BETS:
                gains = np.log1p(bet * (value - 1.0))
                logs.append(np.cumsum(np.bincount(self._block_of, gains)))
        return _share_stake(np.array(logs))


RUIN = -700.0
"""Logarithm of the wealth of a lost bet."""

FLATTER = "a floor or an epsilon, which the draws were made with and the propensities leave out"

SHARPER = "a floor that was not applied, or rows that took the best arm: draws are greedier than logged"


def _shapes(p: Floats, possible: Flags) -> Iterator[tuple[str, Floats]]:
    """Yield other distributions that draws are often made with, each with its explanation.

    Args:
        p: The logged distributions, shape (n, n_arms).
        possible: Whether an arm was eligible, shape (n, n_arms).
    """
    alike = possible / np.maximum(possible.sum(axis=1, keepdims=True), 1)
    best = (p == p.max(axis=1, keepdims=True)) & possible
    greedy = best / best.sum(axis=1, keepdims=True)
    for share in (0.03, 0.1, 0.3):
        yield FLATTER, (1.0 - share) * p + share * alike
        yield SHARPER, (1.0 - share) * p + share * greedy
    for power in (0.7, 1.4):
        powered = np.where(p > 0.0, p, 1.0) ** power * (p > 0.0)
        yield FLATTER if power < 1.0 else SHARPER, powered / powered.sum(axis=1, keepdims=True)


def _blocks(n: int) -> Iterator[tuple[int, int]]:
    """Yield starts and ends of blocks: a quarter of the rows before, at most a fortieth of all."""
    start = 0
    while start < n:
        size = max(8, min(start // 4, n // 40))
        yield start, min(n, start + size)
        start += size


def _ratio(observed: Floats, expected: Any) -> Floats:
    ratio: Floats = np.divide(observed, expected, out=np.full(observed.shape, np.nan), where=expected > 0.0)
    return ratio


def _surprise(observed: Floats, expected: Any, variance: Any) -> Floats:
    return np.asarray((observed - expected) / np.sqrt(np.maximum(variance, 0.25)))


def _times_as_often(ratio: float) -> str:
    """Return in words how often an arm was drawn, relative to the logged probabilities.

    >>> _times_as_often(1.5), _times_as_often(0.0)
    ('1.50 times as often as logged', 'never, against what was logged')
    """
    return f"{ratio:.2f} times as often as logged" if ratio > 0.0 else "never, against what was logged"


RIGHT = "Log the probabilities that the draw was made with, computed at that moment, after every override."


def _mean_weights(draws: Draws, bettor: _Bettor) -> _Test:
    outcome = bettor.bet(np.zeros(len(draws), dtype=np.int64), 1)
    _, column = outcome.worst
    arm, ratio = draws.arms[column], float(outcome.ratios[0, column])
    drawn = float((draws.drawn == column).mean())
    if _alike(draws):
        advice = (
            f"Every propensity on record is 1 / n of the eligible arms, and the draws are skewed: {arm} "
            f"was drawn for {drawn:.0%} of the rows, {_times_as_often(ratio)}. 1 / n was filled in. {RIGHT}"
        )
    else:
        advice = f"The arm {arm} was drawn {_times_as_often(ratio)}. {RIGHT}"
    name = "mean weight of each arm"
    return _Test(
        name, "1: each is drawn as often as logged", f"{ratio:.3f} of {arm}", outcome.evidence, advice
    )


def _calibration(draws: Draws, bettor: _Bettor) -> _Test:
    name, expected = "calibration", "arms are drawn as often as logged in each range of probabilities"
    if draws.p is None:
        evidence, w = compute_evidence(bettor.counts()), draws.propensity
        width = float(draws.possible.sum(axis=1).mean())
        mean = float((1.0 / w).mean())
        large = float(w[w > 0.5].mean()) if (w > 0.5).any() else 0.0
        if mean > width:
            advice = (
                f"The mean of 1 / p is {mean:.2f}, and cannot be above {width:.2f}, the number of arms: "
                "arms with small probabilities are drawn more often than logged, as where a floor or an "
                f"epsilon was mixed in after the probabilities were logged. {RIGHT}"
            )
        else:
            advice = (
                f"{float((w > 0.5).mean()):.0%} of the rows drew an arm with a probability above a half, "
                f"of {large:.2f} on average: fewer would have, if the others were drawn as logged, as "
                f"where a floor was logged and not applied. {RIGHT}"
            )
        return _Test(name, expected, f"mean of 1 / p is {mean:.3f}, of {width:.3g} arms", evidence, advice)
    p, n_arms = draws.p, len(draws.arms)
    place = np.searchsorted(EDGES, p)
    shaped = bettor.bet_on_shapes()
    evidence = compute_evidence(
        bettor.bet_on_cells(place), bettor.bet_on_cells(place * n_arms + np.arange(n_arms)), *shaped.values()
    )
    low, high, ratio = _worst_bin(draws, bettor.possible, place)
    kind = max(shaped, key=lambda label: float(shaped[label].max()))
    cause = f" What explains it: {kind}." if compute_evidence(shaped[kind]) > BEYOND_DOUBT else ""
    how = _times_as_often(ratio)
    advice = f"Arms with probabilities from {low:g} to {high:g} were drawn {how}.{cause} {RIGHT}"
    return _Test(name, expected, f"{ratio:.3f} times, from {low:g} to {high:g}", evidence, advice)


def _worst_bin(draws: Draws, possible: Flags, place: Integers) -> tuple[float, float, float]:
    """Return the ends of the bin that is farthest from its expectation, and the ratio of draws in it."""
    p = draws.p
    assert p is not None
    some, n_bins = possible & (p > 0.0), len(EDGES) + 1
    observed = np.bincount(place[np.arange(len(draws)), draws.drawn], minlength=n_bins).astype(np.float64)
    expected = np.bincount(place[some], p[some], n_bins)
    variance = np.bincount(place[some], (p * (1.0 - p))[some], n_bins)
    surprise = np.where(expected > 0.0, np.abs(_surprise(observed, expected, variance)), -1.0)
    worst = int(surprise.argmax())
    ends = np.concatenate([[0.0], EDGES, [1.0]])
    ratio = float(np.nan_to_num(_ratio(observed, expected)[worst]))
    return float(ends[worst]), float(ends[worst + 1]), ratio


def _slices(draws: Draws, bettor: _Bettor) -> _Test:
    code = np.arange(len(draws)) * SLICES // len(draws)
    outcome = bettor.bet(code, SLICES, FEATURE_PRIORS)
    part, column = outcome.worst
    ratio = float(outcome.ratios[part, column])
    begin = int(np.searchsorted(code, part)) + 1
    advice = (
        f"From decision {begin:,} on, {draws.arms[column]} was drawn {_times_as_often(ratio)} for a "
        f"{SLICES}th of the log: something else decided then. Leave that time out. {RIGHT}"
    )
    where = f"{ratio:.3f} of {draws.arms[column]} from decision {begin:,} on"
    # most of the log is as it should be
    usual = float(np.median((np.nan_to_num(outcome.surprise) ** 2).sum(axis=1)))
    from scipy.special import chdtri  # takes a second to import

    apart = usual < float(chdtri(len(draws.arms), ERROR))
    name, expected = "mean weight over time", f"1 in each {SLICES}th of the log"
    return _Test(name, expected, where, outcome.evidence, advice, apart=apart)


def _by_features(draws: Draws, bettor: _Bettor) -> _Test:
    name, expected = "draws and features", "no feature predicts the draw beyond the propensity"
    outcomes: dict[str, _Outcome] = {}
    for feature, code in draws.features.items():
        outcomes[feature] = bettor.bet(code, int(code.max(initial=0)) + 1, FEATURE_PRIORS)
    if not outcomes:
        return _Test(name, expected, "there are no features", None)
    evidence = compute_evidence(*(outcome.path for outcome in outcomes.values()))
    feature = max(outcomes, key=lambda label: outcomes[label].evidence)
    part, column = outcomes[feature].worst
    ratio = float(outcomes[feature].ratios[part, column])
    where = f"{ratio:.3f} of {draws.arms[column]} by {feature}"
    advice = (
        f"The {feature} predicts the draw: {_describe_code(part, draws.features[feature])}, "
        f"{draws.arms[column]} was drawn {_times_as_often(ratio)}. The router saw it, and the probabilities "
        f"on record do not show it. {RIGHT}"
    )
    return _Test(name, expected, where, evidence, advice)


def _describe_code(code: int, codes: Integers) -> str:
    """Return in words which rows have a code.

    >>> _describe_code(1, np.array([0, 1])), _describe_code(0, np.array([0, 1, 2]))
    ('if it is set', 'in the lowest part of its 3')
    """
    n = int(codes.max()) + 1
    if n <= 2:
        return "if it is set" if code else "if it is not set"
    parts = {0: "the lowest", n - 1: "the highest"}
    return f"in {parts.get(code, 'a middle')} part of its {n}"


def _serial(draws: Draws, bettor: _Bettor) -> _Test:
    n_arms = len(draws.arms)
    before = np.concatenate([[n_arms], draws.drawn[:-1]])
    outcome = bettor.bet(before, n_arms + 1, FEATURE_PRIORS)
    code, column = outcome.worst
    last = draws.arms[code] if code < n_arms else "nothing"
    ratio = float(outcome.ratios[code, column])
    advice = (
        f"After {last}, {draws.arms[column]} was drawn {_times_as_often(ratio)}: arms take turns, or "
        "repeat. Draw each decision afresh, by a random number of its own."
    )
    name, expected = "draws in a row", "the draw before does not predict a draw"
    return _Test(
        name, expected, f"{ratio:.3f} of {draws.arms[column]} after {last}", outcome.evidence, advice
    )


def _within(draws: Draws, what: str) -> tuple[_Test, bool]:
    """Return the test of the draws within groups, and whether they repeat beyond doubt."""
    name, expected = f"draws within {what}s", f"the draw before in the same {what} does not predict a draw"
    before = _previous(draws.groups[what], draws.drawn)
    n = int((before >= 0).sum())
    if n < LEAST_AGAIN:
        return _Test(name, expected, f"no {what} with several decisions", None), False
    outcome = _Bettor(draws).bet(before, len(draws.arms), FEATURE_PRIORS)
    again = float((draws.drawn == before)[before >= 0].mean())
    advice = (
        f"{again:.0%} of the decisions of one {what} repeat the arm before: rows of one {what} are one draw. "
        f"The tests above read the first decision of each {what}; take intervals by {what}."
    )
    test = _Test(
        name, expected, f"{again:.0%} repeat the arm before", outcome.evidence, advice, CheckStatus.WARN
    )
    return test, test.p_value <= STICKY_ERROR


def _previous(group: Integers, drawn: Integers) -> Integers:
    """Return the arm that the previous row of the same group drew, shape (n,); -1: there is none.

    >>> _previous(np.array([0, 1, 0, -1]), np.array([2, 1, 0, 1])).tolist()
    [-1, -1, 2, -1]
    """
    order = np.argsort(group, kind="stable")
    same = (group[order][1:] == group[order][:-1]) & (group[order][1:] >= 0)
    before = np.full(len(group), -1, dtype=np.int64)
    before[order[1:][same]] = drawn[order[:-1][same]]
    return before


def _missing(draws: Draws, reward: Floats, bettor: _Bettor) -> _Test:
    """Return the test that whether a reward is missing does not depend on the drawn arm.

    Rows from the first that still waits on are left out: which of them have a reward depends on how soon it
    came, and with that on the arm.
    """
    code = np.isnan(reward).astype(np.int64)
    if draws.waiting is not None:
        code[np.maximum.accumulate(draws.waiting)] = -1
    name, what = "missing rewards", "have no reward"
    expected, n, of = "no dependence on the drawn arm", int((code == 1).sum()), int((code >= 0).sum())
    if not 0 < n < of:
        return _Test(name, expected, f"{_share(n, of)} {what}", None)
    outcome = bettor.bet(code, 2, FEATURE_PRIORS)
    columns = np.unique(draws.drawn[code >= 0])
    shares = [float(code[(draws.drawn == column) & (code >= 0)].mean()) for column in columns]
    names = [draws.arms[column] for column in columns]
    most, least = int(np.argmax(shares)), int(np.argmin(shares))
    most_of, least_of = (f"{shares[place]:.0%} of {names[place]}" for place in (most, least))
    by_arm = f"{most_of} {what}" if most == least else f"{most_of} and {least_of} {what}"
    advice = (
        f"{by_arm}: estimates use only the other rows, and compare arms on different rows. Give such "
        "rows a reward too (a default, or the reward of a failure)."
    )
    return _Test(name, expected, by_arm, outcome.evidence, advice, CheckStatus.WARN)
