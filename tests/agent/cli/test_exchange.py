"""Logs go out and come in: the two verbs, and the route that does the same over HTTP."""

import asyncio
import gc
import json
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from armwise.agent.api.operations.export import Export, ExportWindow
from armwise.agent.cli.evaluate import derive_config
from armwise.agent.config import AppConfig, load
from armwise.feedback.events import Example
from armwise.feedback.exchange import Faults, make_rule, read_dsjson
from armwise.feedback.jsonl import read_export, read_headers
from armwise.feedback.log import Store
from armwise.feedback.reward import Metric, RewardRule
from armwise.feedback.training_log import Joiner, read_examples, take_epoch
from tests.agent.asking import refused
from tests.agent.cli.test_cli import ran as run
from tests.agent.evaluation.test_evaluate import turn
from tests.agent.fakes import CONFIG, Service
from tests.agent.judged import ARMS, judged_log
from tests.feedback.exchange.test_dsjson import EVENT

TURNS = 300
START = 1_767_225_600.0
"""The first of January 2026."""

AT_100 = datetime.fromtimestamp(START + 100, UTC).isoformat().replace("+00:00", "Z")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration whose log has turns; nobody writes to it."""
    folder = tmp_path_factory.mktemp("log")
    args = {**CONFIG, "log_url": f"sqlite:///{folder / 'log.db'}", "home": str(folder)}
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump({"applications": [{"args": args}]}))
    judged_log(load(path), TURNS, start=START)
    return path


@pytest.fixture(scope="module")
def settings(config: Path) -> AppConfig:
    return load(config)


@pytest.fixture(scope="module")
def logged(settings: AppConfig) -> list[Example]:
    """The training log."""
    store = Store(settings.database_url)
    examples = list(read_examples(store, settings.reward.join))
    store.close()
    return examples


# -- export --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["log.jsonl", "log.jsonl.gz"])
def test_the_whole_training_log_is_written(
    config: Path, settings: AppConfig, logged: list[Example], tmp_path: Path, name: str
) -> None:
    output = run("log", "export", "-o", tmp_path / name, "-c", config)
    assert f"300 decisions written to {tmp_path / name}" in output
    assert "examples: 300 of 300" in output
    assert list(read_export(tmp_path / name)) == logged
    header = next(read_headers(tmp_path / name))
    assert (set(header.arms), header.reward) == (set(ARMS), settings.reward)
    assert list(tmp_path.iterdir()) == [tmp_path / name]


@pytest.mark.parametrize(
    ("options", "which"),
    [
        (["--since", AT_100], slice(100, None)),
        (["--until", AT_100], slice(100)),
        (["--since", "2026-01-01", "--until", "2026-01-01T00:00:02"], slice(2)),
    ],
)
def test_a_window_of_it_is_written(
    config: Path, logged: list[Example], tmp_path: Path, options: list[str], which: slice
) -> None:
    run("log", "export", "-o", tmp_path / "log.jsonl", "-c", config, *options)
    assert list(read_export(tmp_path / "log.jsonl")) == logged[which]


def test_dsjson_is_written_with_the_rewards_of_the_configuration(
    config: Path, settings: AppConfig, logged: list[Example], tmp_path: Path
) -> None:
    path = tmp_path / "log.dsjson.gz"
    assert "300 decisions written" in run("log", "export", "-o", path, "--format", "dsjson", "-c", config)
    found = [one.metrics["reward"] for one in read_dsjson(path, "reward", (-2.0, 2.0), Faults())]
    assert found == [settings.reward.compute_reward(one) for one in logged]


@pytest.mark.parametrize("form", ["jsonl", "dsjson"])
def test_decisions_still_open_are_left_out_of_other_layouts(tmp_path: Path, form: str) -> None:
    metrics = {"thumb": Metric()}
    rule = RewardRule(metrics=metrics, correction_time="PT0S", cost_weight=0.0, wait_time="PT1M")
    with closing(Store(f"sqlite:///{tmp_path / 'log.db'}", rule.join)) as store:
        for number, at in enumerate((10.0, 20.0, 90.0, 90.0)):
            decision, execution, value = turn(number, "dense")
            store.append(
                [replace(decision, decided_at=at), replace(execution, finished_at=at + 1.0)]
                + [replace(value, received_at=at + 2.0)] * (number != 3)
            )
        Joiner(store, rule, take_epoch(store, "test", 0.0)).advance(0.0)
        export = Export(store, rule, ARMS, ExportWindow())
        lines = list(export.lines(form))  # type: ignore[arg-type]
    left_out = {} if form == "jsonl" else {"may still get feedback": 1}
    assert (export.count, dict(export.left_out)) == (3, left_out)
    if form == "jsonl":
        assert json.loads(lines[0])["settled"] == 90.0
    else:
        assert len(lines) == 2


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--since", "2027-01-01"], "no example of 300 is in that period: nothing was written"),
        (["--since", "2026-01-02", "--until", "2026-01-01"], "must be before until"),
        (["--since", "20270105"], "no example of 300 is in that period: nothing was written"),
        (["--since", "yesterday"], "since: 'yesterday' is not a date such as 2026-05-01"),
        (["--format", "csv"], "'csv' is not one of 'jsonl', 'dsjson', 'feedback'"),
    ],
)
def test_what_cannot_be_written_is_told_and_leaves_nothing(
    config: Path, tmp_path: Path, options: list[str], told: str
) -> None:
    assert told in run("log", "export", "-o", tmp_path / "out", "-c", config, *options, code=2)
    assert list(tmp_path.iterdir()) == []


def test_what_is_written_while_it_is_read_is_no_part_of_it(settings: AppConfig, tmp_path: Path) -> None:
    config = settings.model_copy(update={"log_url": f"sqlite:///{tmp_path / 'log.db'}"})
    judged_log(config, 3, start=START)
    store = Store(config.database_url, clock=lambda: START + 100)
    examples = Export(store, config.reward, ARMS, ExportWindow()).examples()
    first = next(examples)
    turn = store.record("judged-0")
    assert turn is not None
    assert turn.execution is not None
    again = replace(turn.decision, id="late", decided_at=START + 50, deadline=START + 60)
    value = replace(turn.feedback[0], id="late", decision_id="late", received_at=START + 51)
    store.append([again, replace(turn.execution, decision_id="late", finished_at=START + 50.5), value])
    Joiner(store, config.reward, take_epoch(store, "test", START)).advance(START + 100)
    assert [first.seq, *(one.seq for one in examples)] == [1, 2, 3]
    assert Export(store, config.reward, ARMS, ExportWindow()).length == 4
    store.close()


@pytest.mark.usefixtures("logged")
def test_the_feedback_is_written_as_it_was_sent(config: Path, settings: AppConfig, tmp_path: Path) -> None:
    store = Store(settings.database_url)
    sent = [*store.feedback(7)]
    store.close()
    output = run("log", "export", "-o", tmp_path / "f.jsonl", "--format", "feedback", "-c", config)
    assert f"{len(sent)} items of feedback written to" in output
    lines = [json.loads(line) for line in (tmp_path / "f.jsonl").read_text().splitlines()]
    assert [(one["id"], one["metric"], one["value"]) for one in lines] == [
        (one.id, one.metric, one.value) for one in sent
    ]
    late = ["-o", tmp_path / "g.jsonl", "--format", "feedback", "--since", "2100-01-01T00:00Z"]
    assert "no item of feedback is in that period" in run("log", "export", *late, "-c", config, code=2)


# -- import --------------------------------------------------------------------------------------------


def test_a_foreign_log_becomes_an_export_and_what_is_left_out_is_counted(tmp_path: Path) -> None:
    last = {**EVENT, "EventId": "last"}
    events = [EVENT, {"EventId": "x", "RewardValue": 1}, {**EVENT, "_label_cost": -7}, EVENT, last]
    source, output = tmp_path / "events.dsjson", tmp_path / "log.jsonl"
    source.write_text("".join(json.dumps(event) + "\n" for event in events))
    told = run("import", source, "--format", "dsjson", "-o", output)
    assert f"2 decisions written to {output}" in told
    assert "left out 1: dangling observation" in told
    assert "left out 1: reward not in [-1, 1]" in told
    assert f"left out 1: duplicate {source}, line 4: id '38c9a0' already occurred above" in told
    strict = run("import", source, "--format", "dsjson", "-o", output, "--strict", code=2)
    assert f"{source}, line 2: c is missing" in strict
    assert [one.metrics for one in read_export(output)] == [{"reward": 1.0}] * 2
    assert next(read_headers(output)).reward == make_rule("reward", (-1.0, 1.0))


def test_an_imported_reward_is_called_and_bounded_as_told(tmp_path: Path) -> None:
    source, output = tmp_path / "events.dsjson", tmp_path / "log.jsonl"
    source.write_text(json.dumps({**EVENT, "_label_cost": -7}))
    options = ["--metric", "clicks", "--range", "0", "10"]
    told = run("import", source, "--format", "dsjson", "-o", output, *options)
    assert "its reward, which a replay takes from the file: {clicks: {range: [0, 10]}}" in told
    (found,) = read_export(output)
    assert found.metrics == {"clicks": 7.0}
    assert next(read_headers(output)).reward.compute_reward(found) == 0.7, "its place in the range"


def test_a_log_without_a_row_that_can_be_used_is_refused(tmp_path: Path) -> None:
    source, output = tmp_path / "events.dsjson", tmp_path / "log.jsonl"
    source.write_text(json.dumps({"EventId": "x", "RewardValue": 1}))
    told = run("import", source, "--format", "dsjson", "-o", output, code=2)
    assert "no row can be used; left out: 1 dangling observation" in told
    assert not output.exists()


# -- over HTTP -----------------------------------------------------------------------------------------


def serving(settings: AppConfig, tmp_path: Path, **changes: Any) -> Service:
    return Service(tmp_path, log_url=settings.database_url, **changes)


def stored(folder: Path, content: bytes, name: str) -> Path:
    (folder / name).write_bytes(content)
    return folder / name


async def test_the_training_log_is_streamed(
    settings: AppConfig, logged: list[Example], tmp_path: Path
) -> None:
    async with serving(settings, tmp_path).running(ready=False) as service:
        response = await service.client.get("/v1/export")
        assert response.headers["content-type"] == "application/x-ndjson"
        assert response.headers["content-disposition"] == 'attachment; filename="armwise.jsonl"'
        assert list(read_export(stored(tmp_path, response.content, "all.jsonl"))) == logged
        params = {"format": "dsjson", "since": AT_100}
        response = await service.client.get("/v1/export", params=params)
        ids = [json.loads(line)["EventId"] for line in response.content.splitlines()]
        assert ids == [one.decision.id for one in logged[100:]]


@pytest.mark.parametrize(
    ("params", "field"),
    [({"format": "csv"}, "format"), ({"since": "2026-01-02", "until": "2026-01-01"}, "since")],
)
async def test_a_wrong_request_is_refused(
    settings: AppConfig, tmp_path: Path, params: dict[str, str], field: str
) -> None:
    async with serving(settings, tmp_path).running(ready=False) as service:
        refused(await service.client.get("/v1/export", params=params), 400, "invalid_value", field)


async def test_it_needs_a_key_with_the_scope_admin(
    settings: AppConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("USER_KEY", "u-secret")
    keys = [{"env": "USER_KEY"}]
    async with serving(settings, tmp_path, keys=keys).running(ready=False) as service:
        refused(await service.client.get("/v1/export"), 401, "invalid_api_key")
        headers = {"authorization": "Bearer u-secret"}
        refused(await service.client.get("/v1/export", headers=headers), 403, "forbidden")


@pytest.mark.slow
async def test_one_export_at_a_time_is_under_way_and_the_service_answers_beside_it(
    settings: AppConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slowly(*args: Any, **options: Any) -> Iterator[Example]:
        begun.set()
        assert go_on.wait(30)
        return read_examples(*args, **options)

    monkeypatch.setattr("armwise.agent.api.operations.export.read_examples", slowly)
    async with serving(settings, tmp_path).running(ready=False) as service:
        running = asyncio.create_task(service.client.get("/v1/export"))
        await asyncio.to_thread(begun.wait, 30)
        told = refused(await service.client.get("/v1/export"), 503, "overloaded")
        assert told == "another export is running"
        assert (await service.client.get("/health")).status_code == 200
        go_on.set()
        assert (await running).content.endswith(b'{"end":300}\n')
        assert (await service.client.get("/v1/export")).status_code == 200


async def test_an_export_that_nobody_reads_any_more_is_given_up(
    settings: AppConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("armwise.agent.api.operations.export.BLOCK", 1)
    async with serving(settings, tmp_path).running(ready=False) as service:
        running = asyncio.create_task(service.client.get("/v1/export"))
        await service.client.get("/health")
        running.cancel()
        await asyncio.wait([running])
        async with asyncio.timeout(10):
            while (await service.client.get("/v1/export")).status_code == 503:
                await asyncio.to_thread(time.monotonic)


def test_only_some_examples_are_in_memory(settings: AppConfig) -> None:
    class Watched(Store):
        """Counts the times that it is read."""

        read = 0

        def reading(self) -> Any:
            self.read += 1
            return super().reading()

    store = Watched(settings.database_url)
    lines = Export(store, settings.reward, ARMS, ExportWindow()).lines("jsonl")
    before = store.read
    next(lines), next(lines)
    assert store.read == before + 1
    assert sum(1 for _ in lines) == TURNS
    assert store.read == before + 2, "of 300 examples 200 at once"
    store.close()


# -- replay without a configuration ----------------------------------------------------------------------


def exported(config: Path, path: Path, **changes: Any) -> Path:
    """Write the log, with other facts in the header of the file."""
    run("log", "export", "-o", path, "-c", config)
    first, *rows = path.read_text().splitlines(keepends=True)
    path.write_text("".join([json.dumps(json.loads(first) | changes) + "\n", *rows]))
    return path


@pytest.mark.slow
def test_a_file_is_replayed_by_its_own_rewards_where_there_is_no_configuration(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where an arm has a name that no configuration may have."""
    path = exported(config, tmp_path / "log.jsonl", arms=[*ARMS, "vendor/model"])
    monkeypatch.chdir(tmp_path)
    printed = run("replay", path, "--policy", "uniform", "--policy", "configured", "-o", "r.json")
    assert "serve_config.yaml" not in printed
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["source"] == str(path)
    own = run("replay", path, "--policy", "uniform", "-c", config, "-o", tmp_path / "own.json")
    assert "uniform" in own
    mine, theirs = (
        {one["name"]: one for one in json.loads((tmp_path / name).read_text())["candidates"]}["uniform"]
        for name in ("r.json", "own.json")
    )
    assert mine["estimates"] == theirs["estimates"]
    assert list(tmp_path.glob(".armwise*")) == [], "no home is made"
    assert set(derive_config(path, [*read_headers(path)]).actions) == set(ARMS), (
        "each arm whose name may be configured"
    )


def test_a_file_with_two_rules_of_rewards_asks_for_a_configuration(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = exported(config, tmp_path / "one.jsonl")
    other = exported(
        config, tmp_path / "other.jsonl", reward=make_rule("click", (0.0, 1.0)).model_dump(mode="json")
    )
    both = tmp_path / "both.jsonl"
    both.write_text(one.read_text() + other.read_text())
    monkeypatch.chdir(tmp_path)
    printed = run("replay", both, code=2)
    assert "has 2 rules of rewards, with the metrics click, " in printed
    assert "-c names a configuration" in printed
    nothing = exported(config, tmp_path / "nothing.jsonl", reward={})
    assert "with the metrics none" in run("replay", nothing, code=2)


def test_a_file_is_evaluated_by_its_own_reward(config: Path, tmp_path: Path) -> None:
    source, path, report = tmp_path / "log.csv", tmp_path / "log.jsonl", tmp_path / "report.json"
    small = np.random.default_rng(0).random(80) < 0.5
    rows = "".join(f"{at},{'small' if small[at] else 'large'},0.5,{at % 4}\n" for at in range(80))
    source.write_text("id,arm,propensity,clicks\n" + rows)
    imported = ["--reward", "clicks", "--metric", "clicks", "--range", "0", "4"]
    assert "its reward, which a replay takes from the file: {clicks: {range: [0, 4]}}" in run(
        "import", source, "-o", path, *imported
    )
    printed = run("replay", path, "-c", config, "--policy", "uniform", "-o", report)
    assert "Rewards are those that" in printed
    assert "has none of these metrics." in printed
    told = json.loads(report.read_text())
    assert told["earned"] == 1.5 / 4
    assert list(told["reward"]["metrics"]) == ["clicks"]
    renamed = path.read_bytes().replace(b'"clicks"', b'"thumb"')
    path.write_bytes(renamed)
    assert "Rewards are those that" not in run("replay", path, "-c", config, "--policy", "uniform"), (
        "the configuration declares this one"
    )


@pytest.mark.slow
def test_a_replay_that_fails_leaves_the_garbage_collector_as_it_was(config: Path) -> None:
    gc.unfreeze()
    assert "there is no version 99" in run("replay", "-c", config, "--policy", "version:99", code=2)
    assert gc.get_freeze_count() == 0


@pytest.mark.slow
def test_a_log_without_times_is_not_of_1970(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    rows = [f"r{i},{'ab'[draw.integers(2)]},0.5,{draw.integers(2)}" for i in range(400)]
    source, log, page = (tmp_path / name for name in ("log.csv", "log.jsonl", "page.html"))
    source.write_text("\n".join(["id,arm,propensity,reward", *rows]))
    columns = [word for name in ("id", "arm", "propensity", "reward") for word in (f"--{name}", name)]
    run("import", source, "-o", log, *columns)
    for verb in (["prove"], ["replay", "-o", page]):
        said = run(*verb, log) + (page.read_text(encoding="utf-8") if page.exists() else "")
        assert "1970" not in said, verb
        assert "no times on record" in said, verb
