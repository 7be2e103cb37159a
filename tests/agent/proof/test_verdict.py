"""`armwise prove --challenger`: what is asked and paid, what is stated, and that it can be computed again."""

import gzip
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError
from typer.testing import CliRunner, Result

from armwise.agent.cli.main import app
from armwise.agent.config import AppConfig, load
from armwise.agent.proof import pairs as collecting
from armwise.agent.proof.pairs import AT_ONCE, AskedPair, read_ask, read_requests
from armwise.agent.proof.verdict import PairOutcome, PairsVerdict, StoredPair, describe_judge, read_verdict
from armwise.agent.proof.verdict_words import write_verdict_text
from armwise.agent.serving import Backends
from armwise.arms.lab.jobs.checkpoint import BlockFolder
from armwise.arms.lab.portfolio.outcomes import read_outcomes
from armwise.arms.llm import GeneratorError, Prompt, base
from armwise.arms.llm import catalog as llm_catalog
from armwise.arms.llm.pricing import PricedGenerator
from armwise.feedback.events import Context, Cost, Decision, Execution, Observation, ObservationSource, Status
from armwise.feedback.log import Store
from tests.agent.cli.test_cli import said
from tests.agent.fakes import FakeArms, FakeEmbedders
from tests.neighbours import SUBJECTS, write_corpus

N = 300

PRICES = {
    "small": {"usd_per_kilotoken_in": 0.0001, "usd_per_kilotoken_out": 0.0004},
    "large": {"usd_per_kilotoken_in": 0.002, "usd_per_kilotoken_out": 0.008},
    "judge": {"usd_per_kilotoken_in": 0.001, "usd_per_kilotoken_out": 0.004},
}

Reply = Callable[[str], str]


def number(text: str) -> int:
    """Return the number of the question in a prompt."""
    found = re.search(r"(?:question|is|be) (\d+)", text)
    assert found is not None
    return int(found[1])


class World:
    """Two models and a judge that do as they are told, and count what they are asked.

    Attributes:
        folder: Where the configuration, the log and the requests are.
        asked: How often each model was asked each question.
        usd: Dollars of all answers.
        small: What the small model answers to a question.
        better: What the judge says: the number of the better one of two answers.
        error: Raised by a model, by its name, when set.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.asked, self.usd = folder, Counter[tuple[str, int]](), 0.0
        self.small: Callable[[int], str] = lambda n: f"It is {n}." if n % 2 else f"Perhaps {n}."
        self.better: Callable[[str, str], int] = lambda *_: 0
        self.error: dict[str, GeneratorError] = {}
        document = {
            "log_url": f"sqlite:///{folder / 'log.db'}",
            "home": str(folder / "home"),
            "arms": {
                name: {"kind": "none", "answering": {"llm": name, "max_tokens": 40}}
                for name in ("small", "large")
            },
            "llm": {"engine": "scripted"},
            "llms": {name: {"engine": "scripted", **prices} for name, prices in PRICES.items()},
            "baseline": "large",
            "reward": {"metrics": {"thumb": {"range": [-1, 1]}}},
        }
        self.config = folder / "config.yaml"
        self.config.write_text(
            yaml.safe_dump(
                {"applications": [{"name": "a", "import_path": "armwise.agent.app:build", "args": document}]}
            )
        )
        self.requests = folder / "requests.jsonl"
        self.write(
            [
                {"query": f"question {n}?", "metadata": {"task": "code" if n % 10 == 0 else "chat"}}
                for n in range(N)
            ]
        )
        monkeypatch.setattr(collecting, "open_backends", self.open)

    def write(self, documents: list[Any]) -> None:
        self.requests.write_text("".join(json.dumps(one) + "\n" for one in documents))

    def open(self, config: AppConfig) -> Backends:
        generators = {}
        for name, spec in config.models.items():
            scripted = base.ScriptedGenerator(self.script(name), model=name)
            generators[name] = PricedGenerator(scripted, llm_catalog.find_prices(spec))
        return Backends(FakeArms(), FakeEmbedders(), generators)

    def script(self, name: str) -> Callable[[Prompt], str]:
        def reply(prompt: Prompt) -> str:
            text = "\n".join(message["content"] for message in prompt.messages)
            self.asked[name, number(text)] += 1
            if name in self.error:
                raise self.error[name]
            if name == "judge":
                first, second = re.findall(r"<answer>\n(.*?)\n</answer>", text)[:2]
                return f'{{"better": {self.better(first, second)}}}'
            return self.small(number(text)) if name == "small" else f"It is {number(text)}."

        return reply

    def invoke(self, *words: object) -> Result:
        named = ["--challenger", "small", "--judge", "judge"]
        given = ["prove", self.requests, "-c", self.config, *named, *words]
        return CliRunner().invoke(app, [str(word) for word in given])

    def run(self, *words: object, code: int = 0) -> str:
        return said(self.invoke(*words), code)

    def prove(self, *words: object) -> dict[str, Any]:
        output = self.folder / "verdict.json"
        self.run("-o", output, *words)
        document: dict[str, Any] = json.loads(output.read_text())
        return document


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def right(first: str, second: str) -> int:
    """A judge that prefers an answer without doubt."""
    sure = [not text.startswith("Perhaps") for text in (first, second)]
    return 0 if sure[0] == sure[1] else 1 if sure[0] else 2


# -- from requests to a verdict ----------------------------------------------------------------------


def test_a_run_that_stops_goes_on_without_asking_anything_twice_and_keeps_to_the_budget(world: World) -> None:
    first = world.prove("--pairs", 400, "--budget", 0.05, "--by", "metadata.task")
    assert first["figures"]["word"] == "not yet"
    assert 0.0 < first["figures"]["spent"] <= 0.05
    half = sum(world.asked.values())
    second = world.prove("--pairs", 400, "--budget", 5, "--by", "metadata.task")
    assert sum(world.asked.values()) > half
    assert second["figures"]["word"] == "switch"
    answers = [n for (model, _), n in world.asked.items() if model != "judge"]
    assert set(answers) == {1}
    assert len(answers) == 2 * second["drawn"]
    before = sum(world.asked.values())
    assert world.prove("--pairs", 400, "--by", "metadata.task")["figures"] == second["figures"]
    assert sum(world.asked.values()) == before
    printed = said(CliRunner().invoke(app, ["verify", str(world.folder / "verdict.json")]), 0)
    assert f"match: {second['drawn']} pairs" in printed
    assert [one["name"] for one in second["classes"]] == ["chat", "code"]
    rare = second["figures"]["groups"][1]
    assert rare["pairs"] == 30, "all requests of a class of a tenth are among the pairs"


def test_what_was_finished_before_a_crash_is_not_asked_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, written = BlockFolder.write, list[int]()

    def fill_disk(folder: BlockFolder, at: int, content: bytes) -> None:
        if len(written) == 30:
            raise OSError("the disk is full")
        written.append(at)
        write(folder, at, content)

    with monkeypatch.context() as patch:
        patch.setattr(BlockFolder, "write", fill_disk)
        world.run(code=1)
    world.prove("--pairs", 60)
    twice = [key for key, n in world.asked.items() if n > 1 and key[0] == "small"]
    assert len(twice) <= AT_ONCE
    assert {key[1] for key in twice}.isdisjoint(written)


def test_another_seed_is_another_run(world: World) -> None:
    world.write([{"query": f"question {n}?"} for n in range(12)])
    first, second = (world.prove("--pairs", 20, "--seed", seed)["drawn"] for seed in (1, 2))
    asked = sum(n for (model, _), n in world.asked.items() if model == "small")
    assert asked == first + second, "the judge reads the answers in another order"


@pytest.mark.parametrize("fails", [False, True])
def test_models_are_closed_when_a_run_ends(
    world: World, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    closed = list[object]()

    async def close(generator: PricedGenerator) -> None:
        closed.append(generator)

    monkeypatch.setattr(PricedGenerator, "close", close)
    if fails:
        world.error["judge"] = GeneratorError("it is away")
    world.run("--pairs", 20, code=1 if fails else 0)
    assert len(closed) >= len(PRICES)


def test_the_arms_of_a_configuration_answer_from_their_own_passages(tmp_path: Path) -> None:
    """Nothing is replaced here: two searches of a small corpus, an encoder, and two scripted models."""
    scripted = {"engine": "scripted", "default": "Perhaps the sea."}
    document = {
        "home": str(tmp_path / "home"),
        "corpus": {"name": "small", "source": str(write_corpus(tmp_path / "corpus.jsonl"))},
        "backbones": {"tiny": {"model": "hashing:64"}},
        "arms": {
            "cheap": {"kind": "bm25", "answering": {"llm": "small"}},
            "dear": {"kind": "dense", "params": {"backbone": "tiny"}},
        },
        "llm": {"engine": "scripted", "default": "The mountain."},
        "llms": {"small": scripted, "judge": {"engine": "scripted", "default": '{"better": 0}'}},
        "reward": {"metrics": {"thumb": {"range": [-1, 1]}}},
    }
    config, requests = tmp_path / "config.yaml", tmp_path / "requests.jsonl"
    config.write_text(yaml.safe_dump({"applications": [{"name": "a", "args": document}]}))
    rows = [{"messages": [{"role": "user", "content": f"What stands beside the {one}?"}]} for one in SUBJECTS]
    requests.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["prove", requests, "-c", config, "--challenger", "cheap", "--beside", "dear", "--judge", "judge"]
    result = CliRunner().invoke(app, [*map(str, words), "--pairs", "30", "--json"])
    verdict = json.loads(result.stdout)
    assert verdict["figures"]["whole"]["equal"] == len(SUBJECTS)
    assert verdict["figures"]["judge"]["asked"] == verdict["drawn"] == len(verdict["pairs"])
    assert all(min(one["seconds"]) > 0.0 for one in verdict["pairs"])


def test_what_pairs_under_way_may_cost_is_set_aside(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, ask = list[int](), collecting.ask_batch

    async def note(asker: Any, requests: Any, blocks: Any, batch: Any, numbers: Any) -> Any:
        sizes.append(len(batch))
        return await ask(asker, requests, blocks, batch, numbers)

    monkeypatch.setattr(collecting, "ask_batch", note)
    monkeypatch.setattr(collecting.PairAsker, "compute_most_usd", lambda *_: 1.0)
    verdict = world.prove("--pairs", 12, "--budget", 2.5)
    assert set(sizes) == {2}
    assert verdict["drawn"] == 12


def test_a_pair_costs_at_most_what_is_set_aside_for_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.small = lambda n: f"It may be {n}, " + "and " * 36
    compute, most = collecting.PairAsker.compute_most_usd, dict[tuple[int, int], float]()

    def note(asker: Any, ask: Any, group: int, member: int) -> float:
        most[group, member] = compute(asker, ask, group, member)
        return most[group, member]

    monkeypatch.setattr(collecting.PairAsker, "compute_most_usd", note)
    for one in world.prove("--pairs", 40)["pairs"]:
        assert 0.0 < sum(one["usd"]) <= most[one["group"], one["member"]]


def test_a_bad_challenger_gets_keep_and_a_good_one_switch(world: World) -> None:
    world.better = right
    keep = world.prove("--pairs", 400)["figures"]
    assert keep["word"] == "keep"
    assert keep["whole"]["difference"][2] < -0.05
    world.small = lambda n: f"It is {n}."
    world.write([{"query": f"question {n}?"} for n in range(N, 2 * N)])
    switch = world.prove("--pairs", 400)["figures"]
    assert switch["word"] == "switch"
    assert switch["judge"]["asked"] == 0, "equal answers take no judge"
    assert switch["usd"][0] < 0.1 * switch["usd"][1]


def test_nothing_more_is_asked_once_there_is_a_verdict(world: World) -> None:
    world.small = lambda n: f"It is {n}."
    verdict = world.prove("--pairs", 5000)
    assert verdict["figures"]["word"] == "switch"
    assert verdict["drawn"] < 400
    assert verdict["figures"]["more"] is None


def test_a_file_that_ends_without_a_verdict_is_judged_once_and_asks_for_a_longer_one(world: World) -> None:
    world.small = lambda n: f"It may be {n}."
    world.write([{"query": f"question {n}?"} for n in range(30)])
    verdict = world.prove("--pairs", 800, "--margin", 1)
    assert verdict["drawn"] == len(verdict["pairs"]) == 30
    assert set(world.asked.values()) <= {1, 2}, "the judge is asked in one order or in both"
    assert "All of its requests have been judged: take a longer file" in world.run(
        "--pairs", 800, "--margin", 1
    )


def test_one_request_of_each_conversation_is_drawn_if_the_verdict_is_about_conversations(
    world: World,
) -> None:
    documents = [{"query": f"question {n}?", "metadata": {"session": f"s{n // 10}"}} for n in range(100)]
    world.write([*documents, {"query": "question 100?"}, {"query": "question 101?"}])
    words = ("--pairs", 200, "--margin", 1, "--each", "metadata.session")
    assert world.prove(*words)["drawn"] == 12, "requests without the field are a conversation each"
    asked = sorted(n for model, n in world.asked if model == "small")
    assert [n // 10 for n in asked] == [*range(10), 10, 10]
    assert len({n % 10 for n in asked[:10]}) > 3, "it is a random one"
    printed = " ".join(world.run(*words).split())
    assert "in the 12 conversations of requests.jsonl, it is not known" in printed
    assert "90 lines are left out: they share a conversation" in printed
    assert "about the conversations of requests.jsonl, by one random request of each" in printed


def test_not_yet_says_about_how_many_pairs_and_dollars_more(world: World) -> None:
    world.better = lambda first, second: 1 + (number(first + second) // 2 + first.startswith("It may")) % 2
    world.small = lambda n: f"It may be {n}."
    figures = world.prove("--pairs", 60)["figures"]
    low, high = figures["more"]
    assert 1 <= low < high
    assert figures["more_usd"][1] == pytest.approx(high * figures["spent"] / 60)
    printed = world.run("--pairs", 60)
    assert f"About {low:,} to {high:,} more pairs would decide, for $" in printed


def test_a_verdict_is_printed_as_text_markdown_and_json(world: World) -> None:
    words = ("--pairs", 40, "--by", "metadata.task")
    text = world.invoke(*words).stdout
    assert text.startswith(
        "Not yet: on the 300 requests of requests.jsonl, it is not known whether small loses"
    )
    assert re.search(r"^code +30 +\d+ +100.0 \(", text, re.MULTILINE)
    markdown = world.invoke(*words, "--markdown").stdout
    assert "armwise verify" not in markdown
    written = world.invoke(*words, "--markdown", "-o", world.folder / "week.json").stdout
    assert "`armwise verify week.json` recomputes it from its pairs" in written
    assert markdown.startswith("**Not yet.** On the 300 requests of")
    assert "| code | 30 |" in markdown
    printed = world.invoke(*words, "--json").stdout
    document = json.loads(printed)
    assert document["format"] == "armwise-verdict"
    document["figures"]["whole"]["more"] = 1
    with pytest.raises(ValidationError, match=r"figures.whole.more"):
        PairsVerdict.model_validate(document)
    assert "question 7" not in printed, "no text of a request is in a verdict"


def test_outcomes_of_pairs_can_be_trained_on_and_entered_into_the_log(world: World) -> None:
    world.better, path = right, world.folder / "pairs.jsonl.gz"
    verdict = world.prove("--pairs", 60, "--by", "metadata.task", "--outcomes", path)
    values = {
        f"{one['group']}/{one['member']}": StoredPair.model_validate(one).value for one in verdict["pairs"]
    }
    found = read_outcomes(path)
    assert found.arms == ("small", "large")
    assert {
        one.id: small - large
        for one, (small, large) in zip(found.questions, found.scores["judge"], strict=True)
    } == values
    assert set(values.values()) == {0.0, -1.0}
    assert {one.dataset for one in found.questions} == {"code", "chat"}
    paid = {f"{one['group']}/{one['member']}": one["usd"][:2] for one in verdict["pairs"]}
    assert found.costs["usd"].tolist() == [paid[one.id] for one in found.questions]
    assert (found.costs["usd"] > 0.0).all()
    again = world.folder / "again.jsonl"
    world.run("--pairs", 60, "--by", "metadata.task", "--outcomes", again)
    assert again.read_bytes() == gzip.decompress(path.read_bytes()), "what was asked before costs the same"
    entered = CliRunner().invoke(
        app, ["lab", "enter-labels", str(path), "-c", str(world.config), "--metric", "thumb=judge"]
    )
    n = len(found.questions)
    assert f"{2 * n} labels of 2 arms on {n} questions" in said(entered, 0)


def test_arms_that_fail_and_pairs_without_a_verdict_have_outcomes_that_say_so() -> None:
    def read(outcome: PairOutcome, **fields: Any) -> list[Mapping[str, float]]:
        pair = StoredPair(group=0, member=1, outcome=outcome, usd=(0.1, 0.2, 0), seconds=(1, 2), **fields)
        asked = AskedPair(pair=pair, question="a question", answers=("x", "y"), costs=({}, {}))
        both = asked.list_outcomes(("small", "large"), "chat")
        return [one.scores for one in both]

    assert read(PairOutcome.EQUAL) == [{"judge": 0.5}, {"judge": 0.5}]
    assert read(PairOutcome.JUDGED, shown_first=0.5, shown_second=1.0) == [{"judge": 0.875}, {"judge": 0.125}]
    assert read(PairOutcome.JUDGED, shown_first=1.0, label=-1.0) == [{"judge": 0.0}, {"judge": 1.0}]
    assert read(PairOutcome.CHALLENGER_FAILED) == [{"judge": 0.0}, {"judge": 1.0}]
    assert read(PairOutcome.BOTH_FAILED) == [{"judge": 0.0}, {"judge": 0.0}]
    assert read(PairOutcome.UNREADABLE) == []


def test_the_text_rounds_each_end_of_the_points_away_from_the_estimate(world: World) -> None:
    world.better = right
    for n in range(20, 60, 4):
        path = world.folder / "verdict.json"
        _, low, high = world.prove("--pairs", n, "-o", path)["figures"]["whole"]["difference"]
        row = next(line for line in write_verdict_text(read_verdict(path)).splitlines() if line[:3] == "all")
        ends = re.search(r"([+-][\d.]+) to ([+-][\d.]+)\)", row)
        assert ends is not None
        least, most = map(float, ends.groups())
        assert (least, most) == (pytest.approx(100 * low, abs=0.1), pytest.approx(100 * high, abs=0.1))
        assert least <= 100 * low < 100 * high <= most


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--by", "task"), "need --challenger"),
        (("--challenger", "small", "--badge", "badge.svg"), "--badge and --audit are of a receipt"),
    ],
)
def test_options_of_a_receipt_and_of_pairs_are_not_mixed(
    world: World, words: tuple[str, ...], message: str
) -> None:
    result = CliRunner().invoke(app, ["prove", "-c", str(world.config), *words])
    assert message in said(result, 2)


def test_a_budget_that_limits_nothing_as_all_is_free_is_said(world: World) -> None:
    assert "limits nothing" not in world.run("--pairs", 5)
    priced = world.config.read_text()
    world.config.write_text(re.sub(r"(usd_per_kilotoken_\w+): .*", r"\1: 0.0", priced))
    assert "--budget limits nothing" in world.run("--pairs", 5, "--seed", 1)


# -- the judge ---------------------------------------------------------------------------------------


def test_a_judge_that_names_a_place_gives_no_verdict(world: World) -> None:
    world.better = lambda *_: 1
    world.small = lambda n: f"It may be {n}."
    figures = world.prove("--pairs", 300, "--margin", 20)["figures"]
    assert figures["judge"]["first"] == 1.0
    assert figures["judge"]["same_place"] == figures["judge"]["both"] > 20
    assert figures["word"] == "not yet"
    assert "prefers a place to an answer" in world.run("--pairs", 300, "--margin", 20)


def test_a_quarter_of_the_judged_pairs_is_compared_in_both_orders_and_each_order_comes_first_in_half(
    world: World,
) -> None:
    world.better = right
    world.small = lambda n: f"Perhaps {n}."
    pairs = world.prove("--pairs", 400, "--margin", 100)["pairs"]
    both = [one for one in pairs if None not in (one["shown_first"], one["shown_second"])]
    assert 0.15 < len(both) / len(pairs) < 0.35
    first = [one for one in pairs if one["shown_first"] is not None and one not in both]
    assert 0.35 < len(first) / (len(pairs) - len(both)) < 0.65
    assert all(one["shown_first"] in (-1.0, None) and one["shown_second"] in (-1.0, None) for one in pairs)


def test_unreadable_verdicts_are_counted_and_widen_the_interval(world: World) -> None:
    world.better = lambda first, _: 7 if "3" in first else 0  # no such answer
    world.small = lambda n: f"It may be {n}."
    figures = world.prove("--pairs", 100)["figures"]
    unknown = figures["whole"]["unknown"]
    assert unknown == figures["judge"]["unreadable"] > 5
    assert figures["whole"]["equal"] + unknown == figures["whole"]["pairs"]
    world.better = lambda *_: 0
    world.write([{"query": f"question {n}?"} for n in range(N)][::-1])
    sure = world.prove("--pairs", 100)["figures"]
    assert figures["whole"]["difference"][1] < sure["whole"]["difference"][1]
    assert figures["whole"]["difference"][2] > sure["whole"]["difference"][2]


def test_a_judge_that_cannot_be_read_is_found_with_the_first_pairs(world: World) -> None:
    world.better, world.small = lambda *_: 7, lambda n: f"It may be {n}."  # there is no seventh answer
    printed = " ".join(world.run("--pairs", 100, code=1).split())
    assert "the judge 'judge' gave no verdict that can be read: " in printed
    assert '{"better": 1}, {"better": 2}, or {"better": 0}' in printed
    assert sum(n for (model, _), n in world.asked.items() if model == "small") <= AT_ONCE
    world.better = lambda *_: 0
    assert world.prove("--pairs", 100)["figures"]["judge"]["unreadable"] <= AT_ONCE, "the next run goes on"


def test_each_class_in_which_one_arm_is_better_has_a_sentence(world: World) -> None:
    world.small, world.better = lambda n: f"Perhaps {n}." if n % 10 == 0 else f"It is {n}.", right
    printed = " ".join(world.run("--pairs", 400, "--budget", 5, "--by", "metadata.task").split())
    assert "On code, small is worse than large, by -100.0 (-100.0 to -" in printed
    assert "On chat, " not in printed


def test_an_arm_that_fails_loses_the_pair(world: World) -> None:
    def fail_some(n: int) -> str:
        if n % 7 == 0:
            raise GeneratorError("too long")
        return f"It is {n}."

    world.small = fail_some
    verdict = world.prove("--pairs", 100)
    failed = [one for one in verdict["pairs"] if one["outcome"] == "challenger_failed"]
    assert len(failed) > 5
    assert verdict["figures"]["whole"]["worse"] >= len(failed)


def test_an_outage_counts_for_nothing(world: World) -> None:
    world.error["small"] = GeneratorError("no route to host")
    assert "all of the last 4 pairs failed" in world.run(code=1)
    world.error = {"judge": GeneratorError("no route to host")}
    assert "the judge 'judge' failed" in world.run(code=1)
    world.error.clear()
    figures = world.prove("--pairs", 30)["figures"]
    assert figures["whole"]["equal"] == 30


# -- labels ------------------------------------------------------------------------------------------


def test_labels_that_say_otherwise_take_the_verdict_back(world: World) -> None:
    assert world.prove("--pairs", 400)["figures"]["word"] == "switch"
    world.prove("--pairs", 400, "--ask-labels", 20)
    path = world.folder / "verdict.labels.jsonl"
    asked = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(asked) == 20
    assert {one["better"] for one in asked} == {""}
    assert 3 <= sum(one["first"].startswith("Perhaps") for one in asked) <= 17, "the order is random"
    for one in asked:
        one["better"] = "second" if one["first"].startswith("Perhaps") else "first"
    path.write_text("".join(json.dumps(one) + "\n" for one in asked))
    outcomes = world.folder / "outcomes.jsonl"
    verdict = world.prove("--pairs", 400, "--labels", path, "--outcomes", outcomes)
    assert (read_outcomes(outcomes).scores["judge"][:, 0] == 0.0).sum() == 20, "a router learns from labels"
    figures = verdict["figures"]
    assert figures["word"] == "not yet"
    assert (figures["judge"]["labels"], figures["judge"]["agreed"]) == (20, 0)
    assert figures["whole"]["difference"][0] < -0.3
    assert figures["by_judge"][1] > -0.1
    assert 20 <= verdict["labelled"] < verdict["drawn"], "equal answers between labelled ones count, too"
    assert "the judge agrees in 0 of 20" in world.run("--pairs", 400, "--labels", path)
    assert said(CliRunner().invoke(app, ["verify", str(world.folder / "verdict.json")]), 0).startswith(
        "match"
    )


def test_a_file_of_labels_that_is_not_of_this_run_is_refused(world: World) -> None:
    path = world.folder / "labels.jsonl"
    path.write_text('{"pair": "0/9999", "better": "first"}\n')
    assert "no pair of this run is in the file" in world.run("--pairs", 20, "--labels", path, code=2)
    path.write_text('{"pair": "0/1", "better": "small"}\n')
    assert "first, second or equal was expected" in world.run("--pairs", 20, "--labels", path, code=2)


# -- verify ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said_of"),
    [
        (lambda document: document["figures"].update(word="switch"), "word"),
        (lambda document: document["figures"]["whole"].update(difference=[0.0, -0.01, 0.01]), "whole"),
        (lambda document: document["pairs"].pop(), "no pair"),
        (lambda document: document.update(seed=1), "pair"),
        (lambda document: document.update(drawn=20), "does not draw"),
        (lambda document: document["pairs"].append(document["pairs"][0]), "two pairs"),
        (lambda document: document["pairs"][0].update(outcome="challenger_failed"), "whole"),
        (lambda document: document["figures"].update(spent=0.0), "spent"),
        (lambda document: document.update(method_version=0), "use Armwise"),
    ],
)
def test_verify_says_what_differs(
    world: World, change: Callable[[dict[str, Any]], None], said_of: str
) -> None:
    document = world.prove("--pairs", 40)
    change(document)
    path = world.folder / "changed.json"
    path.write_text(json.dumps(document))
    assert said_of in said(CliRunner().invoke(app, ["verify", str(path)]), 1)


# -- requests ----------------------------------------------------------------------------------------


def test_requests_of_both_protocols_of_batches_and_of_logs_are_read() -> None:
    asked = [{"role": "user", "content": "Why?"}]
    documents: list[dict[str, Any]] = [
        {"messages": asked, "max_tokens": 7},
        {
            "system": "Be brief.",
            "messages": [{"role": "user", "content": [{"type": "text", "text": "Why?"}]}],
            "max_tokens": 7,
        },
        {"custom_id": "a", "body": {"messages": asked, "max_tokens": 7}},
        {"custom_id": "b", "params": {"messages": asked, "max_tokens": 7}},
        {"messages": [*asked, {"role": "assistant", "content": "Because."}], "max_tokens": 7},
    ]
    for document in documents:
        found = read_ask(document, "r", 100)
        assert not isinstance(found, str)
        assert (found.question, found.document.max_tokens) == ("Why?", 7)
        assert found.messages[-1]["role"] == "user"
    with_system = read_ask(documents[1], "r", 100)
    assert not isinstance(with_system, str)
    assert with_system.messages[0] == {"role": "system", "content": "Be brief."}
    plain = read_ask({"query": "Why?"}, "r", 100)
    assert not isinstance(plain, str)
    assert [one["content"] for one in plain.messages] == ["Why?"]


def test_what_cannot_be_compared_is_left_out_and_counted(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    path = tmp_path / "requests.jsonl"
    documents: list[Any] = [
        {"query": "Why?"},
        {"messages": [{"role": "user", "content": "Why?"}], "tools": [tool]},
        {"query": "x" * 101},
        {"query": " "},
        [],
    ]
    path.write_text("".join(json.dumps(one) + "\n" for one in documents))
    found = read_requests(path, "", 100)
    assert found.sizes == (1,)
    assert found.left_out == {
        "offer tools": 1,
        "have a question of more than 100 characters": 1,
        "have no question": 1,
        "are no JSON objects": 1,
    }


def test_requests_without_the_field_are_a_class_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    documents = [{"query": "a?", "task": "x"}, {"query": "b?"}, {"body": {"query": "c?", "task": "x"}}]
    path.write_text("".join(json.dumps(one) + "\n" for one in documents))
    found = read_requests(path, "task", 100)
    assert (found.classes, found.sizes) == (("x", "(none)"), (2, 1))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--challenger", "smal"), "no such arm; did you mean 'small'"),
        (("--beside", "small"), "it is the reference"),
        (("--judge", "jury"), "no language model of that name"),
        (("--pairs", 0), "--pairs of 1 or more"),
        (("--budget", 0), "the first pair may cost at most"),
        (("--outcomes", "no/where/pairs.jsonl"), "there is no folder no/where"),
    ],
)
def test_what_cannot_be_done_is_said(world: World, words: tuple[object, ...], message: str) -> None:
    result = world.invoke(*words)
    assert result.exit_code in (1, 2)
    assert message in " ".join(result.output.split())


def test_a_file_without_requests_is_refused(world: World) -> None:
    world.write([])
    assert "no request was found" in world.run(code=2)


# -- pairs of the log --------------------------------------------------------------------------------


def fill_log(config: AppConfig, values: list[float | None]) -> None:
    """Write turns whose other arm answered, too; every other one was drawn from the challenger."""
    facts: list[Any] = []
    for n, value in enumerate(values):
        drawn, other = ("small", "large") if n % 2 else ("large", "small")
        name, cost = f"t{n}", Cost(1, 10, 5, 0.1, 0.4, 0.001 if n % 2 else 0.01)
        facts += [
            Decision(
                name,
                Context(f"q {n}"),
                ("small", "large"),
                (0.5, 0.5),
                drawn,
                "uniform",
                1,
                decided_at=100.0 + n,
                deadline=200.0 + n,
            ),
            Execution(name, drawn, Status.OK, cost, (), "a", "", 101.0 + n),
            Observation(
                name,
                ObservationSource.SHADOW,
                other,
                0.1,
                1.0,
                value=value if value is None or not n % 2 else -value,
                cost=Cost(1, 10, 5, 0.1, 0.4, 0.01 if n % 2 else 0.001),
                judge="judge" if value else "",
                judge_cost=Cost(usd=0.002),
                swapped=n % 4 < 2,
                observed_at=102.0 + n,
            ),
        ]
    with closing(Store(config.database_url, config.reward.join, lambda: 1000.0)) as store:
        store.append(facts)


def test_pairs_of_the_log_give_a_verdict_and_can_be_verified(world: World) -> None:
    config = load(world.config)
    fill_log(config, [0.0] * 150 + [-1.0] * 5 + [1.0] * 3 + [None] * 2)
    output = world.folder / "verdict.json"
    words = ["prove", "-c", str(world.config), "--challenger", "small", "--margin", "10", "-o", str(output)]
    said(CliRunner().invoke(app, words), 0)
    verdict = read_verdict(output)
    whole = verdict.figures.whole
    assert (whole.pairs, whole.better, whole.worse, whole.equal, whole.unknown) == (160, 3, 5, 150, 2)
    assert verdict.figures.usd == pytest.approx((0.001, 0.01))
    assert verdict.figures.seconds == pytest.approx((0.5, 0.5))
    assert verdict.seed is None
    assert said(CliRunner().invoke(app, ["verify", str(output)]), 0).startswith("match: 160 pairs")


def test_the_order_of_a_second_answer_of_the_log_is_read_as_it_was_shown(world: World) -> None:
    fill_log(load(world.config), [1.0] * 8)
    _, stored = collecting.read_logged_pairs(load(world.config), "small", "large")
    for n, one in enumerate(stored):
        is_second = n % 2 == 0  # the challenger gave the second answer
        is_first = (n % 4 < 2) == is_second
        assert (one.shown_first, one.shown_second) == ((1.0, None) if is_first else (None, 1.0))


def test_a_log_without_pairs_says_how_to_get_some(world: World) -> None:
    fill_log(load(world.config), [])
    result = CliRunner().invoke(app, ["prove", "-c", str(world.config), "--challenger", "small"])
    assert "observations.shadow" in said(result, 2)


def test_a_judge_is_found_to_follow_the_place_only_by_pairs_in_both_orders() -> None:
    def pair(member: int, *verdicts: float | None) -> StoredPair:
        first, second = verdicts
        return StoredPair(
            group=0, member=member, outcome=PairOutcome.JUDGED, shown_first=first, shown_second=second,
            usd=(0.0, 0.0, 0.0), seconds=(0.0, 0.0),
        )  # fmt: skip

    same = [pair(n, 1.0, -1.0) for n in range(12)]
    assert describe_judge(same).follows_place
    assert not describe_judge([pair(n, 1.0, None) for n in range(12)]).follows_place
    assert not describe_judge([*same, *(pair(n, 1.0, 1.0) for n in range(12, 30))]).follows_place
    assert not describe_judge([pair(n, 0.0, 0.0) for n in range(12)]).follows_place
    assert describe_judge([pair(0, 1.0, None), pair(1, None, 1.0)]).first == 0.0
