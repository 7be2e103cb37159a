"""Killed processes: nothing acknowledged is lost, nothing learned twice, and the digests are a replay's.

`python -m tests.crashes` kills at every point; here are a few of its kills, and what shows that it can fail.
"""

from collections import Counter
from pathlib import Path

import pytest

from tests.crashes import seams, weather
from tests.crashes.audit import Verdict
from tests.crashes.children import BAGGED, EXACT
from tests.crashes.ledger import DECISION, Ledger
from tests.crashes.points import LEARNER, POINTS, REPLICA, STEPS, Trip
from tests.crashes.rounds import ALL, DATABASE, Case, plan, stage
from tests.crashes.service import Kill
from tests.crashes.weather import database_away, endure, failed_over, no_file_grows, read_only
from tests.postgres import Server, running

pytestmark = pytest.mark.timeout(400)

POINT = {point.name: point for point in POINTS}


def cases(*named: tuple[str, str, int]) -> list[Case]:
    return [Case(victim, POINT[point], passes) for victim, point, passes in named]


ON_SQLITE = cases(
    (REPLICA, "decision inserted", 3),
    (REPLICA, "answer half out", 1),
    (LEARNER, "join committed", 2),
    (LEARNER, "example learned", 7),
    (ALL, "version inserted", 1),
)
ON_POSTGRESQL = cases(
    (DATABASE, "decision inserted", 3),
    (DATABASE, "version committed", 2),
    (REPLICA, "feedback committed", 2),
    (ALL, "execution inserted", 4),
)


def test_a_whole_answer_without_a_text_has_an_empty_one_in_the_log() -> None:
    ledger, ours = Ledger(), dict.fromkeys(DECISION, "a") | {"arm_served": "bm25"}
    ledger.note_answer(ours, None, over=True)
    ledger.round = 1
    ledger.note_answer(ours, "the Danube", over=True)
    ledger.note_answer(ours, "the Dan", over=False)
    ledger.note_failure("b", "arm_failed")
    ledger.note_failure("c", None)
    answered = ledger.history().answered
    assert [one.text for one in answered] == ["", "the Danube", None, None, None]
    assert [one.done for one in answered] == [True, True, False, True, False]
    assert ledger.rounds == {"a": 0, "b": 1, "c": 1}


@pytest.mark.slow
def test_on_sqlite_no_kill_loses_a_row_or_moves_a_digest(tmp_path: Path) -> None:
    with stage(f"sqlite:///{tmp_path / 'log.db'}", EXACT, tmp_path, clients=2, seed=1) as service:
        for case in ON_SQLITE:
            service.strike(case)
        check(service.end(), service.ledger.odd, acknowledged=len(service.ledger))
    assert service.stranded == 0


@pytest.mark.slow
def test_on_postgresql_no_kill_loses_a_row(killable_postgres: Server, tmp_path: Path) -> None:
    with stage(killable_postgres.fresh(), BAGGED, tmp_path, killable_postgres, clients=2, seed=2) as service:
        for case in ON_POSTGRESQL:
            service.strike(case)
        check(service.end(), service.ledger.odd, acknowledged=len(service.ledger))


def check(verdict: Verdict, odd: list[str], *, acknowledged: int) -> None:
    assert not verdict.faults, verdict.faults[:3]
    assert odd == []
    assert acknowledged > 50
    assert verdict.facts > 50
    assert min(verdict.examples, verdict.decisions) > 10
    assert len(verdict.versions) > 5


@pytest.mark.slow
def test_nothing_is_acknowledged_while_nothing_can_be_kept(
    killable_postgres: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weather, "REFUSALS", 10)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with stage(f"sqlite:///{tmp_path / 'log.db'}", EXACT, tmp_path / "a", clients=1, seed=3) as service:
        outage = endure(service, "no room", no_file_grows(service.keepers.values()), 0.0)
        assert (outage.odd, outage.unready) == ([], True)
        assert outage.refused >= 10
        assert service.end().faults == ()
    with stage(
        killable_postgres.fresh(), EXACT, tmp_path / "b", killable_postgres, clients=1, seed=4
    ) as service:
        outage = endure(service, "away", database_away(killable_postgres), 0.0)
        assert (outage.odd, outage.unready) == ([], True)
        assert outage.refused >= 10
        assert service.end().faults == ()


@pytest.mark.slow
def test_a_read_only_log_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weather, "REFUSALS", 10)
    log = tmp_path / "log.db"
    with stage(f"sqlite:///{log}", EXACT, tmp_path, clients=1, seed=6) as service:
        service.until(lambda: len(service.ledger) > 5 or None)
        try:
            outage = endure(service, "read-only", read_only(log), 0.0)
        except PermissionError as error:
            pytest.skip(str(error))
        assert (outage.odd, outage.unready) == ([], True)
        assert outage.refused >= 10
        assert service.end().faults == ()


@pytest.mark.slow
@pytest.mark.nightly
def test_a_database_that_hangs_is_refused_until_it_answers(
    killable_postgres: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weather, "REFUSALS", 2)
    with stage(killable_postgres.fresh(), EXACT, tmp_path, killable_postgres, clients=1, seed=8) as service:
        service.until(lambda: len(service.ledger) > 5 or None)
        outage = endure(service, "hangs", killable_postgres.stalled(), 0.0)
        assert (outage.odd, outage.unready) == ([], True)
        assert service.end().faults == ()


@pytest.mark.slow
@pytest.mark.nightly
def test_a_standby_takes_over_without_a_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weather, "REFUSALS", 6)
    with running() as primary, primary.followed() as standby:
        url = f"{primary.fresh()}&host={standby.folder}&target_session_attrs=read-write"
        with stage(url, EXACT, tmp_path, standby, clients=2, seed=9) as service:
            service.until(lambda: len(service.ledger) > 20 or None)
            outage = endure(service, "failed over", failed_over(primary, standby), 0.0)
            assert (outage.odd, outage.unready) == ([], True)
            before = len(service.ledger)
            service.until(lambda: len(service.ledger) > before + 10 or None)
            assert service.end().faults == ()


@pytest.mark.slow
@pytest.mark.nightly
def test_rows_that_were_acknowledged_before_their_commit_are_found_to_be_lost(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    with stage(url, EXACT, tmp_path, clients=2, seed=5, sabotage="early") as service:
        replica, before = service.keepers[REPLICA], len(service.ledger)
        replica.arm(Trip("decision inserted", 1, itself=False))
        began = replica.reached()  # and now nothing is committed, until it is killed
        service.until(lambda: len(service.ledger) > before + 5 or None)
        replica.kill()
        service.recovered(Kill("ingress replica", "commit", "decision inserted"), began)
        lost = [fault for fault in service.end().faults if fault.kind == "lost"]
    assert lost
    assert {fault.round for fault in lost} == {0}


@pytest.mark.slow
@pytest.mark.nightly
def test_a_learner_that_learns_something_twice_is_found_by_its_digests(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    with stage(url, EXACT, tmp_path, clients=2, seed=6, sabotage="twice") as service:
        service.until(lambda: len(service.ledger) > 30 or None)
        kinds = Counter(fault.kind for fault in service.end().faults)
    assert kinds["digest"] > 0
    assert kinds["rebuild"] > 0
    assert kinds["lost"] == 0


@pytest.mark.parametrize("point", [point.name for point in POINTS])
def test_every_point_is_one_that_a_process_passes(point: str) -> None:
    """A kill would wait in vain for another."""
    source = Path(seams.__file__).read_text()
    what, _, how = point.rpartition(" ")
    assert f'"{what if how in ("inserted", "committed") else point}"' in source


@pytest.mark.parametrize("database", [False, True])
def test_a_plan_meets_every_point_with_every_victim_equally_often(database: bool) -> None:
    once = len(POINTS) * (3 if database else 2)
    planned = plan(2 * once, 7, database=database)
    met = Counter((case.victim, case.point.name) for case in planned)
    assert len(met) == once
    assert set(met.values()) == {2}
    assert {case.point.step for case in planned} == set(STEPS)
    assert all(1 <= case.passes <= case.point.most for case in planned)
    assert planned == plan(2 * once, 7, database=database)
    assert planned[:once] != plan(once, 8, database=database)
