"""A log that moves to another processor: states are equal up to rounding, and what was changed is found."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa

from armwise.agent.learning import rebuild as rebuild_log
from armwise.agent.learning.arithmetic import arithmetic
from armwise.agent.learning.rebuild import TOLERANCE, RebuildReport
from armwise.agent.learning.restore import restore_policy
from armwise.agent.learning.verify import NEAR_TIE, verify
from armwise.agent.policies import Policy, PolicyError, PolicySpec, sampling
from armwise.feedback.events import Decision
from armwise.feedback.log import Store
from armwise.feedback.log import tables as t
from armwise.feedback.registry import versions
from armwise.feedback.training_log import read_examples
from tests.agent.learning import learned_elsewhere
from tests.agent.learning.learned_elsewhere import EVERY, SALT, TURNS
from tests.agent.learning.test_learner import ARMS, RULE
from tests.agent.learning.test_rebuild import configured

KINDS = ("adaptive", "linucb", "linear_thompson")
"""Policies whose states come out of products of matrices."""

OTHER = "Haswell" if "Nehalem" in arithmetic() or "Katmai" in arithmetic() else "Nehalem"
"""Another kernel than that of here: this one, of processors of 2008, or that of those with AVX2."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("openblas" not in arithmetic(), reason="numpy has another BLAS here"),
]


def learned(folder: Path, kind: str, kernel: str | None) -> Path:
    """Return a log that was served and learned under a kernel of BLAS; None for that of here."""
    path = folder / f"{kind}-{kernel}.db"
    environment = {**os.environ, **({} if kernel is None else {"OPENBLAS_CORETYPE": kernel})}
    command = [sys.executable, "-m", learned_elsewhere.__name__, f"sqlite:///{path}", kind]
    subprocess.run(command, env=environment, check=True)
    return path


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("logs")
    return {kind: learned(folder, kind, OTHER) for kind in KINDS}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def store(logs: dict[str, Path], kind: str, tmp_path: Path) -> Iterator[Store]:
    """A copy of a log of the other kernel."""
    copy = tmp_path / "copy.db"
    copy.write_bytes(logs[kind].read_bytes())
    with closing(Store(f"sqlite:///{copy}", RULE.join)) as store:
        yield store


def rebuilt(store: Store, kind: str, *, mend: bool = False) -> RebuildReport:
    return rebuild_log(store, configured(PolicySpec(kind=kind)), lambda *_: None, every=True, mend=mend)


def decisions(store: Store) -> list[Decision]:
    return [example.decision for example in read_examples(store, RULE.join)]


def test_versions_record_what_computed_them(store: Store, kind: str) -> None:
    version = versions.latest(store)
    assert version is not None
    assert version.arithmetic is not None
    assert version.arithmetic.startswith(f"openblas {OTHER};"), kind
    assert "numpy" in version.arithmetic
    assert not versions.computed_alike(store, version, arithmetic())
    assert versions.computed_alike(store, version, version.arithmetic)


def test_what_another_processor_has_learned_is_equal_up_to_rounding(store: Store, kind: str) -> None:
    report = rebuilt(store, kind)
    assert report.sound, [one for one in report.compared if not one.equal]
    log, *of_versions = report.compared
    assert log.verdict == "yes"
    assert len(of_versions) >= TURNS // EVERY // 2
    apart = [one for one in of_versions if one.expected != one.found]
    assert apart, "the kernels differ in no bit: this shows nothing"
    assert all(one.elsewhere and one.difference is not None for one in apart)
    assert 0.0 < max(one.difference or 0.0 for one in apart) <= TOLERANCE / 100
    assert all(re.fullmatch(r"yes, up to \de-1\d", one.verdict) for one in apart)
    assert any("were computed by another processor" in note for note in report.notes)


def test_nothing_of_another_processor_is_mended(store: Store, kind: str) -> None:
    newest = versions.latest(store)
    report = rebuilt(store, kind, mend=True)
    assert report.sound
    assert not any(one.mended for one in report.compared)
    assert versions.latest(store) == newest


def test_a_state_that_was_changed_differs_on_another_processor_too(store: Store, kind: str) -> None:
    newest = versions.latest(store)
    assert newest is not None
    kept = versions.list_kept(store, newest.recipe)
    with store.writing() as connection:
        older = versions.checkpoint(store, kept[0].version)
        connection.execute(
            sa.update(t.checkpoints).where(t.checkpoints.c.version == newest.version).values(state=older)
        )
    report = rebuilt(store, kind)
    (different,) = [one for one in report.compared if not one.equal]
    assert different.version == newest.version


def test_bytes_that_are_not_those_of_the_version_differ_however_little(store: Store, kind: str) -> None:
    """Its digest is that of other bytes: no replica would load these."""
    number = next(one.version for one in rebuilt(store, kind).compared if one.elsewhere)
    assert number is not None
    state = bytearray(versions.checkpoint(store, number) or b"")
    state[-8] ^= 1  # of the last bits of the last number
    with store.writing() as connection:
        connection.execute(
            sa.update(t.checkpoints).where(t.checkpoints.c.version == number).values(state=bytes(state))
        )
    (different,) = [one for one in rebuilt(store, kind).compared if not one.equal]
    assert different.version == number


def test_the_first_version_of_another_processor_counts_and_those_of_other_recipes_do_not(
    store: Store, kind: str
) -> None:
    newest = versions.latest(store)
    assert newest is not None
    first = versions.kept_upto(store, newest.recipe, newest.examples_seq)[-1]
    mine = sa.update(t.versions).values(arithmetic=arithmetic())
    with store.writing() as connection:
        connection.execute(mine.where(t.versions.c.version != first.version))
    assert not versions.computed_alike(store, first, arithmetic()), kind
    assert not versions.computed_alike(store, newest, arithmetic()), "it has gone on from that"
    assert versions.computed_alike(store, replace(newest, recipe="another"), arithmetic())
    with store.writing() as connection:
        connection.execute(sa.update(t.versions).values(arithmetic=arithmetic()))
        connection.execute(
            sa.update(t.versions).where(t.versions.c.version == newest.version).values(arithmetic=None)
        )
    assert versions.computed_alike(store, first, arithmetic()), "what came later has no part in it"
    assert not versions.computed_alike(store, newest, arithmetic()), "what is not known may be another"


def test_a_reward_that_was_changed_differs_on_another_processor_too(store: Store, kind: str) -> None:
    with store.writing() as connection:
        f = t.feedback.c
        connection.execute(sa.update(t.feedback).where(f.decision_id == "d-40").values(value=0.987))
    report = rebuilt(store, kind)
    assert not report.sound
    assert len([one for one in report.compared if one.version is not None and not one.equal]) >= 5


def test_a_version_whose_bytes_are_pruned_is_learned_again_by_another_processor(
    store: Store, kind: str
) -> None:
    numbers = [version.version for version in versions.list_kept(store, versions.latest(store).recipe)]  # type: ignore[union-attr]
    with store.writing() as connection:
        connection.execute(sa.delete(t.checkpoints).where(t.checkpoints.c.version == numbers[-2]))
    version = versions.find(store, numbers[-2])
    assert version is not None
    policy = restore_policy(store, version, RULE, ARMS)
    for decision in decisions(store):
        if decision.version == version.version:
            assert verify(decision, policy, SALT).verified
    told = {one.what: one.verdict for one in rebuilt(store, kind).compared}
    verdict = told.get(f"version {version.version}", "yes")
    assert verdict in ("yes", "not known: of another processor, its bytes are pruned")
    with store.writing() as connection:  # as if it had been computed here
        connection.execute(sa.update(t.versions).values(arithmetic=arithmetic()))
    version = versions.find(store, version.version)
    assert version is not None
    if versions.digest_state(policy.save()) != version.digest:  # some states are equal to the bit
        with pytest.raises(PolicyError, match="the log gives another state now"):
            restore_policy(store, version, RULE, ARMS)


def test_every_decision_of_another_processor_is_verified(store: Store, kind: str) -> None:
    policies: dict[int, Policy] = {}
    made = decisions(store)
    for decision in made:
        if decision.version not in policies:
            version = versions.find(store, decision.version)
            assert version is not None
            policies[decision.version] = restore_policy(store, version, RULE, ARMS)
        verification = verify(decision, policies[decision.version], SALT)
        assert verification.verified, (kind, verification.why)
    assert len(made) == TURNS


def test_the_same_processor_is_compared_to_the_bit(tmp_path: Path) -> None:
    path = learned(tmp_path, "linucb", None)
    with closing(Store(f"sqlite:///{path}", RULE.join)) as store:
        report = rebuilt(store, "linucb")
        assert {one.verdict for one in report.compared} == {"yes"}
        newest = versions.latest(store)
        assert newest is not None
        state = bytearray(versions.checkpoint(store, newest.version) or b"")
        state[-1] ^= 1  # of the last bits of a number
        with store.writing() as connection:
            connection.execute(
                sa.update(t.checkpoints).where(t.checkpoints.c.version == newest.version).values(state=state)
            )
        assert not rebuilt(store, "linucb").sound


class Scores:
    """A policy that draws the best of some scores."""

    kind = "scores"

    def __init__(self, *scores: float) -> None:
        self._scores = np.array(scores)

    def probabilities(
        self, _context: object, _arms: object
    ) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
        return sampling.greedy(self._scores)

    def penalised(self, _context: object, _arms: object, penalty: object) -> object:
        return sampling.greedy(self._scores - penalty)


@pytest.mark.parametrize("apart", [-NEAR_TIE / 2, NEAR_TIE / 2])
def test_a_tie_that_another_processor_finds_or_does_not_find_is_none_of_a_changed_row(apart: float) -> None:
    """Two scores whose difference is that up to which scores tie, give or take what a kernel makes of it."""
    one, other = Scores(0.5, 0.5 - sampling.TIE + apart, 0.1), Scores(0.5, 0.5 - sampling.TIE - apart, 0.1)
    p = sampling.mix_floor(one.probabilities(None, None), 0.02)
    drawn = Decision(
        "d",
        learned_elsewhere.Context("what?", {}, (), {}),
        ARMS,
        tuple(p.tolist()),
        ARMS[sampling.choose(p, sampling.uniform_from("d", SALT, ARMS))],
        "scores",
        1,
        floor=0.02,
    )
    assert verify(drawn, other, SALT).verified  # type: ignore[arg-type]
    changed = replace(drawn, probabilities=(p[2], p[1], p[0]))
    assert not verify(changed, other, SALT).verified  # type: ignore[arg-type]
    lacked = replace(drawn, miss_costs=(0.25, 0.0, 0.0), usd_weight=1.0)
    dearer = Scores(0.75, 0.5 - sampling.TIE - apart, 0.1)
    assert verify(lacked, dearer, SALT).verified  # type: ignore[arg-type]
    far = Scores(0.5, 0.5 - 2 * sampling.TIE if apart > 0 else 0.5, 0.1)
    assert not verify(drawn, far, SALT).verified  # type: ignore[arg-type]
