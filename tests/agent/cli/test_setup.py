"""`armwise init` asks in a terminal, checks each answer, and writes a configuration that explains itself."""

import json
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema_rs
import numpy as np
import pytest
import yaml
from typer.testing import CliRunner, Result

from armwise.agent.cli import interview, setup
from armwise.agent.cli.configuration_text import SCHEMA, render_config
from armwise.agent.cli.main import app
from armwise.agent.cli.served_home import mark_served
from armwise.agent.config import CorpusSpec, load
from armwise.agent.doctor import Finding
from armwise.agent.policies import build_policy, describe
from armwise.arms.corpus import CorpusError
from armwise.feedback.events import Cost, Decision, Example
from tests.agent.canned_service import Canned

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARMWISE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus.jsonl").write_text('{"id": "a", "text": "The Danube meets the sea."}\n')


@pytest.fixture
def endpoint() -> Iterator[str]:
    """The address of an endpoint with language models called `big` and `huge`."""
    with closing(Canned()) as canned:
        canned.has_models("big", "huge")
        yield f"{canned.url}/v1"


def init(*words: object, answers: str = "") -> Result:
    return CliRunner().invoke(app, ["init", *map(str, words)], input=answers)


def test_a_home_that_a_running_service_uses_is_left_alone(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with mark_served(home, "http://127.0.0.1:18411"):
        written_before = set(tmp_path.rglob("*"))
        refused = init("corpus.jsonl", "-o", "mine.yaml", "--yes")
        written_after = set(tmp_path.rglob("*"))
    assert refused.exit_code == 2
    said = " ".join(refused.output.split())
    assert f"The service at http://127.0.0.1:18411 (process {os.getpid()}) runs from {home}" in said
    assert "Give this one another home: ARMWISE_HOME=FOLDER" in said
    assert written_before == written_after
    assert init("corpus.jsonl", "-o", "mine.yaml", "--yes").exit_code == 0, "once it has ended"


def test_a_name_is_another_home_unless_the_environment_names_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ARMWISE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    with mark_served(tmp_path / ".armwise" / "first", "http://127.0.0.1:18411"):
        refused = init("corpus.jsonl", "--name", "first", "--yes")
        made = init("corpus.jsonl", "--name", "second", "--yes")
        monkeypatch.setenv("ARMWISE_HOME", str(tmp_path / ".armwise" / "first"))
        of_environment = init("corpus.jsonl", "-o", "third.yaml", "--name", "third", "--yes")
    assert refused.exit_code == 2
    assert "--name NAME" in refused.output
    assert made.exit_code == 0, made.output
    assert of_environment.exit_code == 2
    assert "--name NAME" not in of_environment.output


def test_a_home_with_other_documents_is_taken_over_only_on_demand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ARMWISE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "corpus.jsonl").write_text('{"id": "b", "text": "The Rhine does, too."}\n')
    assert init("corpus.jsonl").exit_code == 0
    assert init("corpus.jsonl", "-o", "again.yaml").exit_code == 0, "the same documents"
    refused = init("theirs/corpus.jsonl", "-o", "other.yaml")
    assert refused.exit_code == 2
    assert f"holds the documents of {tmp_path / 'corpus.jsonl'}" in " ".join(refused.output.split())
    assert not (tmp_path / "other.yaml").exists()
    assert init("theirs/corpus.jsonl", "-o", "other.yaml", "--name", "rhine").exit_code == 0
    assert init("theirs/corpus.jsonl", "-o", "third.yaml", "--replace").exit_code == 0


def written(path: Path) -> dict[str, Any]:
    document = yaml.safe_load(path.read_text())
    jsonschema_rs.validator_for(json.loads(SCHEMA.read_text())).validate(document)
    args: dict[str, Any] = document["applications"][0]["args"]
    return args


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Have the input be a terminal, of a user with no keys and no engines."""
    monkeypatch.setattr(setup, "sys", SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True)))
    monkeypatch.setattr(interview, "LOCAL", {})
    for name in ("ARMWISE_HOME", "OPENAI_BASE_URL", "OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.usefixtures("terminal")
def test_four_questions_write_a_whole_file(
    tmp_path: Path, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", endpoint)
    done = init(answers="\n\n\n")
    assert done.exit_code == 0, done.output
    for expected in (
        "2 models",
        "[big,huge]",
        "[none]",
        "[~/.armwise/models]",
        "armwise wrap -c armwise.yaml claude",
    ):
        assert expected in done.output, done.output
    args = written(tmp_path / "armwise.yaml")
    assert set(args["arms"]) == set(args["llms"]) == {"big", "huge"}
    assert args["llms"]["huge"] == {"engine": "openai", "base_url": endpoint, "model": "huge"}
    assert args["home"] == "~/.armwise/models"
    load(tmp_path / "armwise.yaml")


@pytest.mark.usefixtures("terminal")
def test_each_answer_is_checked_and_asked_for_again(tmp_path: Path, endpoint: str) -> None:
    (tmp_path / "taken").mkdir()
    answers = [endpoint, "small", "http://127.0.0.1:9/v1", "big,", "nowhere.jsonl", "none", "corpus.jsonl"]
    with mark_served(tmp_path / "taken", "http://127.0.0.1:18411"):
        done = init(answers="".join(f"{answer}\n" for answer in [*answers, "taken", "data"]))
    assert done.exit_code == 0, done.output
    said = " ".join(done.output.split())
    for expected in (
        "no endpoint has a model 'small'",
        "no language model answers at http://127.0.0.1:9/v1",
        f"{endpoint} has: big, huge. Name one or more",
        "no corpus at",
        "without documents, name two models",
        "does not matter yet: no price is known for big. You can set prices in the file.",
        "runs from",
    ):
        assert expected in said, done.output
    args = written(tmp_path / "armwise.yaml")
    assert args["llm"] == {"engine": "openai", "base_url": endpoint, "model": "big"}
    assert args["corpus"] == {"name": "corpus", "source": str(tmp_path / "corpus.jsonl")}
    assert args["home"] == str(tmp_path / "data")


@pytest.mark.usefixtures("terminal")
def test_without_a_network_models_are_named_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the endpoint of a key, the one of their provider, or at an address that does not answer."""
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    here = "http://127.0.0.1:9/v1"
    done = init(answers=f"big\n{here}\nbig\ncorpus.jsonl\n\n")
    assert done.exit_code == 0, done.output
    assert "where is 'big'? Give the address of its endpoint first" in done.output
    assert f"Not checked, because {here} lists no models now: big" in done.output
    assert written(tmp_path / "armwise.yaml")["llm"] == {"engine": "openai", "base_url": here, "model": "big"}
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    done = init("-o", "two.yaml", answers="claude-haiku-4-5,gpt-5\nnone\n\n\n")
    assert done.exit_code == 0, done.output
    llms = written(tmp_path / "two.yaml")["llms"]
    assert {name: llm["api_key_env"] for name, llm in llms.items()} == {
        "claude-haiku-4-5": "ANTHROPIC_API_KEY",
        "gpt-5": "OPENAI_API_KEY",
    }


@pytest.mark.usefixtures("terminal")
def test_a_place_that_cannot_be_used_costs_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked for again, or refused before the first question."""
    done = init(answers="\ncorpus.jsonl\ncorpus.jsonl\ncorpus.jsonl/data\ndata\n")
    assert done.exit_code == 0, done.output
    assert done.output.count("corpus.jsonl is no folder, and one is needed") == 2
    assert written(tmp_path / "armwise.yaml")["home"] == str(tmp_path / "data")
    early = [init("-o", "nowhere/two.yaml")]
    monkeypatch.setenv("ARMWISE_HOME", str(tmp_path / "corpus.jsonl"))
    early.append(init("-o", "two.yaml"))
    for refused, why in zip(early, ("there is no folder nowhere", "is no folder"), strict=True):
        assert (refused.exit_code, "1. Models" in refused.output) == (2, False), refused.output
        assert why in " ".join(refused.output.split())


@pytest.mark.usefixtures("terminal")
def test_models_of_two_providers_are_priced_and_a_right_answer_has_a_worth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model of an engine on this machine is free; one whose price nobody knows is not put beside it."""
    listed = {"gpt-5-mini", "gpt-5", "gpt-3"}
    found = [
        interview.Endpoint(
            "OpenAI", {"engine": "openai", "base_url": "https://api.openai.com/v1"}, sorted(listed)
        ),
        interview.Endpoint(
            "here", {"engine": "openai", "base_url": "http://127.0.0.1:9/v1", "usd": 0}, ["tiny:1b"]
        ),
        interview.Endpoint("there", {"engine": "openai", "base_url": "http://there.example/v1"}, ["secret"]),
    ]
    monkeypatch.setattr(interview, "find_endpoints", lambda _: iter(found))
    done = init(answers="gpt-5,secret\ntiny:1b,gpt-5\n\n0\nmuch\n$0.05\n\n")
    assert done.exit_code == 0, done.output
    assert "no price is known for secret" in done.output
    assert "[gpt-5-mini,gpt-5]" not in done.output, "three models are few enough to propose all"
    assert done.output.count("is not a number of dollars above 0") == 2
    args = written(tmp_path / "armwise.yaml")
    assert args["llms"]["tiny-1b"] == {
        "engine": "openai",
        "base_url": "http://127.0.0.1:9/v1",
        "usd": 0,
        "model": "tiny:1b",
    }
    assert args["reward"]["worth"] == 0.05
    assert args["fallback"] == "gpt-5"


@pytest.mark.usefixtures("terminal")
def test_the_folder_of_the_environment_is_not_asked_for_but_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARMWISE_HOME", str(tmp_path / "home"))
    done = init(answers="\ncorpus.jsonl\n")
    assert done.exit_code == 0, done.output
    assert "Found no models. Looked at OPENAI_BASE_URL" in done.output
    assert f"The data goes to {tmp_path / 'home'}, as ARMWISE_HOME says" in done.output
    with mark_served(tmp_path / "home", "http://127.0.0.1:18411"):
        refused = init("-o", "other.yaml", answers="\ncorpus.jsonl\n")
    assert refused.exit_code == 2
    assert "runs from" in refused.output


@pytest.mark.parametrize(
    ("models", "proposed"),
    [
        (["only"], "only"),
        ([*"abcd", "gpt-4o", "gpt-4o-mini"], "gpt-4o-mini,gpt-4o"),
        ([*"abcd", "claude-haiku-4-5-20251001", "claude-sonnet-5"], "claude-haiku-4-5,claude-sonnet-5"),
        ([*"abcd"], ""),
        (["meta/x", "b/x"], ""),
        ([], ""),
    ],
)
def test_models_are_proposed_that_are_few_or_known_as_a_pair(models: list[str], proposed: str) -> None:
    assert interview.propose(interview.Endpoint("there", {}, models)) == proposed


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("meta/llama-3, nous/llama-3", "'meta/llama-3' and 'nous/llama-3'"),
        ("direct,default", "'default' and 'direct'"),
        ("big,org/direct", "'org/direct'"),
    ],
)
def test_models_whose_names_would_be_unclear_are_refused(answer: str, said: str) -> None:
    models = ["meta/llama-3", "nous/llama-3", "default", "direct", "org/direct", "big"]
    there = interview.Endpoint("there", {}, models)
    for alone in models:
        assert [one["model"] for one in interview.choose(f"{alone},{alone}", [there]).values()] == [alone]
    with pytest.raises(ValueError, match=f"{said} .*--model NAME=MODEL"):
        interview.choose(answer, [there])


def test_endpoints_of_the_environment_are_found_or_named(
    endpoint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(interview, "LOCAL", {"Ollama": int(endpoint.rpartition(":")[2].partition("/")[0])})
    away, found = interview.find_endpoints({"OPENAI_BASE_URL": "http://me:secret@127.0.0.1:9/v1"})
    assert (away.what, away.is_known) == ("OPENAI_BASE_URL", False)
    assert found == interview.Endpoint(
        f"Ollama, {endpoint}", {"engine": "openai", "base_url": endpoint, "usd": 0}, ["big", "huge"]
    )
    said = " ".join(capsys.readouterr().out.split())
    assert "OPENAI_BASE_URL: no language model answers at http://me:***@127.0.0.1:9/v1" in said
    assert "secret" not in said


def test_flags_answer_without_a_terminal(tmp_path: Path, endpoint: str) -> None:
    url = f"sqlite:///{tmp_path / 'elsewhere.db'}"
    words = ("corpus.jsonl", "--name", "mine", "--llm-url", endpoint, "--model", "big")
    result = init(*words, "--llm-key-env", "PATH", "--log-url", url, "-o", "ours.yaml")
    assert result.exit_code == 0, result.output
    args = written(tmp_path / "ours.yaml")
    assert args["llm"] == {"engine": "openai", "base_url": endpoint, "model": "big", "api_key_env": "PATH"}
    assert args["log_url"] == url
    assert "answering" not in args, "its limits are for the small model"
    config = load(tmp_path / "ours.yaml")
    assert config.corpus.name == "mine"
    assert [path.name for path in tmp_path.glob("ours*")] == ["ours.yaml"]
    text = (tmp_path / "ours.yaml").read_text()
    assert "placeholder" not in text
    assert text.startswith(f"# yaml-language-server: $schema={SCHEMA}\n")


def test_several_sources_and_models_are_arms_of_each_by_each(tmp_path: Path, endpoint: str) -> None:
    (tmp_path / "tickets.jsonl").write_text('{"id": "t", "text": "The sea is away."}\n')
    words = ("corpus.jsonl", "--source", "tickets=tickets.jsonl", "--llm-url", endpoint)
    result = init(*words, "--model", "big,0.15,0.6", "--model", "large=huge,2.5,10", "--llm-key-env", "PATH")
    assert result.exit_code == 0, result.output
    assert "Read 2 passages into 'corpus' and 'tickets'." in " ".join(result.output.split())
    args = written(tmp_path / "armwise.yaml")
    shared = {"engine": "openai", "base_url": endpoint, "api_key_env": "PATH"}
    small = {**shared, "model": "big", "usd_per_kilotoken_in": 0.00015, "usd_per_kilotoken_out": 0.0006}
    large = {**shared, "model": "huge", "usd_per_kilotoken_in": 0.0025, "usd_per_kilotoken_out": 0.01}
    assert (args["llm"], args["llms"]) == (small, {"big": small, "large": large})
    assert args["corpora"] == {
        "corpus": {"source": str(tmp_path / "corpus.jsonl")},
        "tickets": {"source": str(tmp_path / "tickets.jsonl")},
    }
    assert args["home"] == "~/.armwise/corpus-tickets"
    config = load(tmp_path / "armwise.yaml")
    assert list(config.actions) == ["corpus-big", "corpus-large", "tickets-big", "tickets-large"]
    assert {config.find_answering(name).llm for name in ("corpus-large", "tickets-large")} == {"large"}


def test_models_without_documents_are_arms_of_their_names(tmp_path: Path, endpoint: str) -> None:
    words = ("--no-documents", "--llm-url", endpoint, "--model", "small=big,0,0")
    result = init(*words, "--model", "large=huge,2.5,10")
    assert result.exit_code == 0, result.output
    assert "Its arms: small, large." in result.output
    args = written(tmp_path / "armwise.yaml")
    assert args["home"] == "~/.armwise/models"
    config = load(tmp_path / "armwise.yaml")
    assert {name: config.find_answering(name).llm for name in config.actions} == {
        "small": "small",
        "large": "large",
    }
    assert config.llm == config.llms["small"], "the first one"
    assert config.fallback == "large", "the dearest"
    assert [config.find_answering(name).prompt for name in config.actions] == ["as_sent", "as_sent"]


def test_models_of_the_list_are_weighed_at_its_prices(tmp_path: Path) -> None:
    with closing(Canned()) as canned:
        canned.has_models("gpt-4o-mini", "gpt-4o")
        url = f"{canned.url}/v1"
        words = ("--llm-url", url, "--model", "gpt-4o-mini", "--model", "large=gpt-4o")
        result = init("corpus.jsonl", *words)
    assert result.exit_code == 0, result.output
    args = written(tmp_path / "armwise.yaml")
    assert args["llms"]["large"] == {"engine": "openai", "base_url": url, "model": "gpt-4o"}
    assert args["reward"]["worth"] == 0.01
    dear = Cost(prompt_tokens=1000, completion_tokens=300, usd=0.0055)
    rule = load(tmp_path / "armwise.yaml").reward
    assert rule.reward({"answer_correct": 1.0}, dear) == pytest.approx(0.45)


def test_a_cheap_model_that_is_as_good_is_chosen_by_the_defaults(tmp_path: Path, endpoint: str) -> None:
    words = ("--no-documents", "--llm-url", endpoint, "--model", "small=big,.15,.6", "--model")
    assert init(*words, "large=huge,2.5,10").exit_code == 0
    config, rng = load(tmp_path / "armwise.yaml"), np.random.default_rng(5)
    arms, usd = list(config.actions), {"small": 0.00033, "large": 0.0055}
    policy, late = build_policy(config.policy, arms), []
    for n in range(300):
        context = describe("What is it?", config.features)
        pmf = policy.probabilities(context, arms)
        arm = str(rng.choice(arms, p=pmf))
        late.append(pmf[arms.index("small")])
        decision = Decision(f"d{n}", context, tuple(arms), tuple(pmf), arm, "adaptive", 1)
        right = float(rng.random() < 0.8)
        example = Example(n + 1, decision, Cost(usd=usd[arm]), {"answer_correct": right})
        reward = config.reward.compute_learned_reward(example)
        assert reward is not None
        policy.learn(decision, reward)
    assert np.mean(late[200:]) > 0.9


def test_beside_a_model_with_a_price_another_needs_one(tmp_path: Path, endpoint: str) -> None:
    words = ("corpus.jsonl", "--llm-url", endpoint, "--model", "large=huge,2.5,10")
    result = init(*words, "--model", "big")
    said = " ".join(result.output.split())
    assert result.exit_code == 2, said
    assert (
        f"no price is known for model 'big' at {endpoint} (`llms.big`), and the reward weighs dollars" in said
    )
    assert not (tmp_path / "armwise.yaml").exists()
    result = init(*words, "--model", "big,0,0")
    assert result.exit_code == 0, result.output
    assert written(tmp_path / "armwise.yaml")["llms"]["big"]["usd"] == 0


def test_without_prices_a_dollar_is_not_weighed(tmp_path: Path, endpoint: str) -> None:
    result = init("corpus.jsonl", "--llm-url", endpoint, "--model", "big", "--model", "large=huge")
    assert result.exit_code == 0, result.output
    config = load(tmp_path / "armwise.yaml")
    assert set(config.actions) == {"corpus-big", "corpus-large"}
    assert config.warm_start is None, "both arms find the same passages, which says nothing of the models"
    assert written(tmp_path / "armwise.yaml")["reward"]["cost"] == {"steps": 1.0}


def test_a_model_that_the_endpoint_lacks_is_named_as_the_flag_names_it(tmp_path: Path, endpoint: str) -> None:
    result = init("corpus.jsonl", "--llm-url", endpoint, "--model", "big", "--model", "large=hugh")
    said = " ".join(result.output.split())
    assert (result.exit_code, "Fix the problem above before you start the service" in said) == (1, True)
    assert "has no model 'hugh'; it has: huge, big" in said
    assert "correct llms.large.model" in said
    assert written(tmp_path / "armwise.yaml")["llms"]["large"]["model"] == "hugh", "it may come later"


def test_a_folder_is_read_without_its_bad_files_which_are_listed(tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "bad.txt").write_bytes(b"caf\x81")
    refused = init("docs")
    assert refused.exit_code == 2
    said = " ".join(refused.output.split())
    assert "docs has no passages; bad.txt: the whole file is skipped because line 1" in said
    assert not [*tmp_path.glob("armwise*")]
    (folder / "good.md").write_text("The Danube meets the sea.")
    result = init("docs")
    assert result.exit_code == 0, result.output
    assert "Read 1 passages into 'docs'." in result.output
    assert "Left out: bad.txt: the whole file" in " ".join(result.output.split())


def test_a_long_path_with_spaces_stands_in_one_line() -> None:
    source = "/" + "our manuals/" * 40 + "größe.jsonl"
    text = render_config([CorpusSpec.from_source(source, "ours")])
    assert f"corpus: {{name: ours, source: {source}}}\n" in text


def test_an_endpoint_that_does_not_answer_yet_is_reported_and_written(tmp_path: Path) -> None:
    result = init("corpus.jsonl", "--llm-url", "http://127.0.0.1:9/v1", "--model", "big")
    assert result.exit_code == 1, "a script does not go on to serve it"
    assert "problem: no language model answers at http://127.0.0.1:9/v1" in result.output
    assert "Wrote armwise.yaml anyway. Fix the problem above before you start the service" in result.output
    assert written(tmp_path / "armwise.yaml")["llm"]["model"] == "big"


ENDPOINT = ("corpus.jsonl", "--llm-url", "http://127.0.0.1:9/v1", "--model", "small")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "which documents? `armwise init SOURCE`, or --no-documents to serve only models"),
        (("--no-documents",), "--no-documents needs two models to choose from"),
        ((*ENDPOINT, "--no-documents"), "--no-documents: leave out corpus.jsonl"),
        ((*ENDPOINT, "--model", "a=b", "--model", "a=c"), "--model a=c: 'a' is twice the name of a model"),
        ((*ENDPOINT, "--model", "default=c"), "--model default=c: 'default' is no name for one"),
        ((*ENDPOINT, "--model", "=c"), "--model =c: '' is no name for one"),
        (("corpus.jsonl", "--llm-url", "http://a/v1"), "--llm-url http://a/v1: which model? --model MODEL"),
        (("corpus.jsonl", "--llm-key-env", "A"), "at which address are the models? --llm-url URL names it"),
        (("corpus.jsonl", "--log-url", "postgresql://a:hidden@b/c"), "--log-url: leave the password out"),
        (("corpus.jsonl", "--llm-url", "nowhere", "--model", "m"), "llm.base_url"),
        (("--source", "corpus.jsonl"), "--source corpus.jsonl: NAME=SOURCE was expected"),
        (("--source", "mine="), "--source mine=: NAME=SOURCE was expected"),
        (("corpus.jsonl", "--source", "Corpus=corpus.jsonl"), "two corpora are called corpus"),
        (("corpus.jsonl", "--model", "a", "--model", "b"), "at which address are the models? --llm-url URL"),
        ((*ENDPOINT, "--model", "large=b,1"), "--model large=b,1: MODEL or MODEL,IN,OUT was expected"),
        ((*ENDPOINT, "--model", "large=b,1,dear"), "MODEL or MODEL,IN,OUT was expected"),
        ((*ENDPOINT, "--model", "large=b,1,-2"), "MODEL or MODEL,IN,OUT was expected"),
        ((*ENDPOINT, "--model", "large=b,nan,2"), "MODEL or MODEL,IN,OUT was expected"),
    ],
)
def test_what_is_missing_or_wrong_without_a_terminal_is_an_error_and_writes_nothing(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    result = init(*words)
    assert result.exit_code == 2, result.output
    assert said in " ".join(result.output.split())
    assert "hidden" not in result.output
    assert not [*tmp_path.glob("armwise*")]


def test_a_file_that_is_there_is_replaced_by_force_alone(tmp_path: Path) -> None:
    (tmp_path / "armwise.yaml").write_text("mine")
    assert init("corpus.jsonl").exit_code == 2
    assert (tmp_path / "armwise.yaml").read_text() == "mine"
    assert init("corpus.jsonl", "--force").exit_code == 0
    assert written(tmp_path / "armwise.yaml")["corpus"]["name"] == "corpus"


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("words", ["corpus.jsonl", "corpus.jsonl --name mine", "--yes corpus.jsonl", "--yes"])
def test_nothing_is_asked_with_arguments(words: str) -> None:
    """Scripts that run in a terminal do what they do without one."""
    result = init(*words.split())
    assert result.exit_code == (2 if words == "--yes" else 0), result.output
    assert "Four questions" not in result.output


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_an_interrupted_run_leaves_the_configuration_that_was_there_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    unfinished: list[bool] = []

    def interrupted(*_: object, **__: object) -> None:
        unfinished.append((tmp_path / "armwise.yaml.part").exists())
        raise error

    monkeypatch.setattr("armwise.arms.corpus.ingest_all", interrupted)
    (tmp_path / "armwise.yaml").write_text("mine")
    assert init("corpus.jsonl", "--force").exit_code != 0
    assert unfinished == [True]
    assert [path.name for path in tmp_path.glob("armwise*")] == ["armwise.yaml"]
    assert (tmp_path / "armwise.yaml").read_text() == "mine"


def test_one_problem_among_what_is_fine_is_printed_and_the_file_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [Finding("the log may lose rows", "take it back"), Finding("the log can be written")]
    monkeypatch.setattr("armwise.agent.doctor.check_log", lambda _: iter(found))
    result = init("corpus.jsonl", "--log-url", f"sqlite:///{tmp_path / 'elsewhere.db'}")
    assert result.exit_code == 1
    assert "problem: the log may lose rows; take it back" in result.output
    assert "Wrote armwise.yaml anyway. Fix the problem above" in result.output
    assert (tmp_path / "armwise.yaml").exists()


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({"a.md": "", "b.md": "# Rivers\n\nThe Danube meets the sea."}, None),
        ({"a.md": ""}, r"manuals has no passages; a\.md: is empty"),
        ({"a.jsonl": '{"id": "a"}\n\n{"id": "b", "text": "The sea."}\n'}, None),
        ({"a.jsonl": "\n{oops\n"}, r"a\.jsonl has no passages; a\.jsonl:2: not JSON"),
    ],
)
def test_a_corpus_is_sound_if_a_passage_of_it_can_be_read(
    tmp_path: Path, files: dict[str, str], problem: str | None
) -> None:
    folder = tmp_path / "manuals"
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_text(content)
    place = str(folder / "a.jsonl" if "a.jsonl" in files else folder)
    if problem is None:
        setup._sound_corpus(place)  # noqa: SLF001
    else:
        with pytest.raises(CorpusError, match=problem):
            setup._sound_corpus(place)  # noqa: SLF001
