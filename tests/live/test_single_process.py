"""A service of one process, without Ray: it answers, learns, survives a kill, and leaves nothing behind."""

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.live.conftest import START_S, Live, has_model, single, stopped, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_one_process_answers_learns_and_comes_back_with_all_that_it_acknowledged(tmp_path: Path) -> None:
    llm = {"engine": "embedded"} if has_model else {"engine": "scripted", "default": "Yes."}
    arms = {"none": {"kind": "none"}, "bm25": {"kind": "bm25"}, "far": {"kind": "dense", "host": "Far"}}
    arms["far"]["params"] = {"backbone": "apart"}
    with single(tmp_path, arms=arms, llm=llm, router=None) as live:
        assert not any("ray::" in title or "raylet" in title for title in live.titles())
        chat = {"model": "auto", "messages": [{"role": "user", "content": "Which bridge stands?"}]}
        answer = live.client.post("/v1/chat/completions", json={**chat, "max_tokens": 4})
        assert answer.status_code == 200, answer.text
        body = {"query": "the bridge stands beside the mountain", "model": "arm/far", "k": 3}
        found = live.client.post("/v1/retrieve", json=body).json()
        assert "p3" in [passage["id"] for passage in found["passages"]], "an arm of another host is here too"
        asked = [live.look_up(f"which bridge is number {n}?")["decision_id"] for n in range(20)]
        position = live.tell(*((decision, 1.0) for decision in asked))
        version = learned(live, position, 1)
        shown = live.client.get("/console/system").text
        assert "All parts of the service run in one process" in shown
        assert live.client.get("/ready").json()["mode"] == "one_process"
        again = live.kill()
        try:
            until(live.answers, START_S)
            for decision in asked:
                kept = live.client.get(f"/v1/decisions/{decision}").json()
                assert [value["value"] for value in kept["feedback"]] == [1.0]
            learned(live, live.tell((live.look_up("and now?")["decision_id"], 1.0)), version)
        finally:
            assert stopped(again) == []


def test_one_process_starts_once_its_clock_is_not_behind_the_log(tmp_path: Path) -> None:
    arms = {"none": {"kind": "none"}, "bm25": {"kind": "bm25"}}
    with single(tmp_path, arms=arms, llm={"engine": "scripted"}, router=None) as live:
        asked = live.look_up("which bridge stands?")["decision_id"]
        log, output = tmp_path / "home" / "log.db", tmp_path / "output.txt"
        move_head(log, 3600.0)
        assert live.kill().wait(30.0) == 2
        assert "set it right, or wait until that time" in output.read_text()
        move_head(log, 0.0)
        again = live.begin()
        try:
            until(lambda: again.poll() is not None or live.answers())
            assert live.client.get(f"/v1/decisions/{asked}").status_code == 200
        finally:
            assert stopped(again) == []


def move_head(log: Path, ahead_s: float) -> None:
    """Set the log's time, relative to the clock of this machine: as if that was set the other way."""
    with closing(sqlite3.connect(log, timeout=30.0)) as connection, connection:
        connection.execute("UPDATE log SET at = ?", (time.time() + ahead_s,))


def learned(live: Live, position: int, after: int) -> int:
    """Wait for a version after one that has learned a rating, which can be changed at first; return it."""
    live.learned(position)
    return until(lambda: (version := live.policy()["version"]) > after and version, 30.0)
