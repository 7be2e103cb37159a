"""Every setting is checked, and what is wrong is named with what would be right."""

import re
from copy import deepcopy
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest
import yaml

from armwise.agent.config import AppConfig, ConfigError, load, make_home, parse, parse_with_environment
from armwise.agent.doctor import check_files
from armwise.agent.turn import AnswerWriter, Searcher
from armwise.arms.base import check_name
from armwise.arms.corpus import Chunking
from tests.agent.fakes import CONFIG

SHIPPED = Path(__file__).parents[3] / "serve_config.yaml"


def changed(place: str, value: Any) -> dict[str, Any]:
    """A sound configuration with one thing changed."""
    document = deepcopy(CONFIG)
    *parents, last = place.split("/")
    inner = document
    for part in parents:
        inner = inner.setdefault(part, {})
    inner[last] = value
    return document


def complaint(document: object) -> str:
    with pytest.raises(ConfigError) as raised:
        parse(document)
    return str(raised.value)


def test_the_shipped_configuration_is_valid() -> None:
    config = load(SHIPPED)
    drawn = [name for name, arm in config.arms.items() if arm.action]
    assert drawn == ["library", "language", "guides"]
    assert config.corpus_names == ("library", "language", "guides")
    assert config.llm.engine == "embedded"
    assert config.reward.metrics.keys() == {"answer_correct", "thumb", "recall"}


@pytest.mark.parametrize(
    ("place", "key", "right"),
    [
        ("polcy", "polcy", "policy"),
        ("limits/in_fligth", "limits.in_fligth", "in_flight"),
        ("corpus/sorce", "corpus.sorce", "source"),
        ("policy/parms", "policy.parms", "params"),
        ("features/word", "features.word", "words"),
        ("reward/cost_wieght", "reward.cost_wieght", "cost_weight"),
        ("reward/cost/stps", "reward.cost.stps", "steps"),
        ("reward/metrics/thumb/weigth", "reward.metrics.thumb.weigth", "weight"),
        ("reward/metrics/range/rnge", "reward.metrics.range.rnge", "range"),
        ("arms/bm25/prams", "arms.bm25.prams", "params"),
        ("arms/kind/prams", "arms.kind.prams", "params"),
        ("backbones/tiny/modle", "backbones.tiny.modle", "model"),
        ("llm/defalt", "llm.defalt", "default"),
    ],
)
def test_a_typo_names_the_key_as_written_and_the_nearest_right_one(place: str, key: str, right: str) -> None:
    assert f"unknown key {key!r}; did you mean {right!r}?" in complaint(changed(place, {})).splitlines()


def test_the_keys_offered_are_those_of_the_engine_that_was_chosen() -> None:
    said = complaint(changed("llm", {"engine": "openai", "base_ulr": "http://x", "model": "m"}))
    assert said == "unknown key 'llm.base_ulr'; did you mean 'base_url'?"
    said = complaint(changed("llm", {"engine": "openai", "model": "m"}))
    assert said == "llm: base_url is missing: set it to the address of the API, such as http://host/v1"


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        ("arms/bm25/kind", "bm52", "arm 'bm25': unknown kind 'bm52'; did you mean 'bm25'?"),
        ("arms/bm25/params", {"k": 1}, "unknown parameter 'k'; did you mean 'k1'?"),
        ("arms/dense/params", {"backbone": "tny"}, "unknown backbone 'tny'; did you mean 'tiny'?"),
        (
            "arms",
            {"a/b": {"kind": "none"}},
            "'a/b' is not a valid name: use 1 to 100 of A-Z a-z 0-9 . _ -, and begin with a letter",
        ),
        ("arms", {}, "arms: Dictionary should have at least 1 item"),
        ("arms/mine", {"kind": "no_such:Arm"}, "arm 'mine': cannot import 'no_such:Arm'"),
        ("fallback", "bm52", "fallback 'bm52' is not an arm; did you mean 'bm25'?"),
        ("baseline", "bm52", "baseline 'bm52' is not an arm; did you mean 'bm25'?"),
        (
            "log_away",
            "answer",
            "the arm that answers while the log is away: one of none, bm25, dense",
        ),
        ("log_away", "wait", "log_away: Input should be 'refuse' or 'answer', got 'wait'"),
        ("policy/kind", "vopal", "no policy of kind 'vopal'; did you mean 'vowpal'?"),
        ("policy/params", {"arg": ""}, "policy 'vowpal' has no parameter 'arg'; did you mean 'args'?"),
        ("policy", {"kind": "fixed", "params": {"arm": "x"}}, "policy 'fixed' names the arm 'x'"),
        ("features/embedding", {"backbone": "tny"}, "features.embedding.backbone 'tny' is not declared"),
        ("features/similarity", {"backbone": "tny"}, "features.similarity.backbone 'tny' is not declared"),
        ("features/embedding", {}, "key 'features.embedding.backbone' is missing"),
        (
            "floor",
            0.5,
            "floor 0.5 is too large for 3 arms and leaves the policy nothing: below 0.3333, or "
            "`exploration`, a share that all arms have together",
        ),
        ("floor", 1 / 3, "is too large for 3 arms"),
        ("floor", 0, "floor: Input should be greater than 0, got 0"),
        ("floor", "x", "floor: Input should be a valid number, unable to parse string as a number, got 'x'"),
        ("limits", 3, "limits: Input should be a valid dictionary"),
        ("answering/passages", 51, "answering.passages: Input should be less than or equal to 50, got 51"),
        (
            "answering/max_tokens",
            200_000,
            "answering.max_tokens 200000 is above limits.completion_tokens 128000",
        ),
        ("llm", {"engine": "opnai"}, "llm: Input tag 'opnai'"),
        ("llm", {"model": "m"}, "key 'llm.engine' is missing"),
        ("corpus/name", "..", "corpus.name: String should match pattern"),
        ("corpus/name", "auto", "corpus.name: 'auto' is not a valid name: it asks for the policy's choice"),
        ("reward/metrics", {}, "reward.metrics declares no metric: nothing could be learned"),
        ("reward/metrics/thumb/range", [1, 0], "reward.metrics.thumb: range [1.0, 0.0] is empty"),
        ("reward/metrics/thumb/type", "int", "reward.metrics.thumb.type: Input should be 'boolean'"),
        ("reward/clip", [1, 1], "reward: clip (1.0, 1.0) is empty"),
        ("reward/wait_time", "soon", "reward: wait_time 'soon' is not an ISO 8601 duration such as PT30M"),
        ("reward/wait_time", "PT0S", "reward: wait_time 'PT0S' must be longer than zero"),
        ("reward/complete", "evry", "reward.complete: Input should be 'any', 'all' or 'deadline'"),
    ],
)
def test_a_wrong_value_is_named_with_what_would_be_right(place: str, value: Any, said: str) -> None:
    assert said in complaint(changed(place, value))


def test_all_that_is_wrong_is_said_at_once() -> None:
    said = complaint({"polcy": 1, "floor": 2}).splitlines()
    assert [re.findall(r"arms|floor|reward|llm|'polcy'", line)[0] for line in said] == [
        *("arms", "floor", "reward", "llm", "'polcy'"),
    ]
    for document in ([], "x", None):
        assert "dictionary" in complaint(document)


def test_home_in_the_environment_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    config = parse(changed("home", "/from/the/file"))
    monkeypatch.delenv("ARMWISE_HOME", raising=False)
    assert config.database_url == "sqlite:////from/the/file/log.db"
    monkeypatch.setenv("ARMWISE_HOME", "/from/the/environment")
    assert config.home_path == Path("/from/the/environment")
    assert config.corpus_sources[0].folder == Path("/from/the/environment/corpora/stdlib")
    assert config.indexes_path == Path("/from/the/environment/indexes")
    settled = config.resolve_places()
    monkeypatch.delenv("ARMWISE_HOME")
    assert settled.home_path == Path("/from/the/environment"), "a replica elsewhere sees the same"
    assert settled.database_url == "sqlite:////from/the/environment/log.db"


PATHS: dict[str, dict[str, Any]] = {
    "home": {},
    "corpus/source": {},
    "corpora/default/source": {},
    "warm_start/sources/asked/path": {"kind": "outcomes", "metrics": {"right": "exact_match"}},
    "warm_start/sources/old/path": {"kind": "questions", "metrics": {"right": "exact_match"}},
}
"""Every path that a configuration may name, by its place, and what stands beside it."""


@pytest.mark.parametrize("place", PATHS)
@pytest.mark.parametrize("written", ["~/data/x", "data/x"])
def test_a_path_is_that_of_the_user_or_below_the_folder_wherever_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, written: str
) -> None:
    """Replicas and jobs run elsewhere, maybe as another user: they get absolute paths."""
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.delenv("ARMWISE_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    document = changed(place, written)
    *parents, last = place.split("/")
    reduce(getitem, parents, document).update(PATHS[place])
    settled = reduce(getitem, parents, parse(document).resolve_places().model_dump(mode="json"))
    assert settled[last] == str(tmp_path / written.replace("~", "user"))


def test_a_home_that_the_environment_overrides_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARMWISE_HOME", str(tmp_path / "shared"))
    config = parse_with_environment({**CONFIG, "home": str(tmp_path / "own")})
    assert config.home_path == tmp_path / "shared"
    (line,) = make_home(config)
    finding = str(next(check_files(config)))
    assert "unset ARMWISE_HOME" in finding
    for said in (line, finding):
        assert f"{tmp_path}/shared" in said
        assert f"{tmp_path}/own" in said
    for agreeing in ({**CONFIG, "home": str(tmp_path / "shared")}, CONFIG):
        assert make_home(parse_with_environment(agreeing)) == []


def test_a_log_of_its_own_is_not_in_home() -> None:
    url = "postgresql+psycopg://log"
    assert parse(changed("log_url", url)).resolve_places().database_url == url


def test_a_settled_configuration_survives_being_sent_to_a_replica() -> None:
    settled = load(SHIPPED).resolve_places()
    assert AppConfig.model_validate_json(settled.model_dump_json()) == settled


def test_a_policy_that_keeps_to_a_baseline_gets_that_of_the_service() -> None:
    document = {**changed("baseline", "dense"), "policy": {"kind": "adaptive", "params": {"alpha": 0.1}}}
    config = parse(document)
    assert config.policy.params == {"alpha": 0.1, "baseline": "dense"}
    assert AppConfig.model_validate_json(config.model_dump_json()) == config
    of_its_own = parse({**document, "policy": {"kind": "adaptive", "params": {"baseline": None}}})
    assert of_its_own.policy.params == {"baseline": None}, "the operator may do without"
    assert parse({**document, "policy": {"kind": "uniform"}}).policy.params == {}


def test_the_arms_that_are_live_leave_a_configuration_as_it_is() -> None:
    config = parse(CONFIG)
    assert config.with_arms([*config.arms]) is config
    fewer = config.with_arms(["dense"])
    assert (list(fewer.actions), list(fewer.arms)) == (["dense"], list(config.arms))
    assert fewer.with_arms([*config.arms]).arms == config.arms
    with pytest.raises(ConfigError, match="arm 'words' is not in the configuration: declare it under `arms`"):
        config.with_arms(["words"])


def written(folder: Path, text: str) -> Path:
    path = folder / "config.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "exactly one application is expected under `applications`"),
        ("applications: {}", "exactly one application is expected"),
        ("applications: []", "exactly one application is expected"),
        ("applications: [{}, {}]", "exactly one application is expected"),
        ("applications: [3]", "exactly one application is expected"),
        ("applications: [{}]", "key 'arms' is missing"),
        ("a: [", "line 1, column 5: expected the node content"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused_by_name(tmp_path: Path, text: str, said: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as raised:
        load(path)
    assert str(raised.value).startswith(f"{path}: ")
    assert said in str(raised.value)


def test_a_file_that_is_not_there_or_not_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no such file; `armwise init` writes a configuration"):
        load(tmp_path / "none.yaml")
    path = tmp_path / "bytes.yaml"
    path.write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(ConfigError, match=r"bytes\.yaml: .*utf-8"):
        load(path)


def test_a_file_gives_what_stands_under_args(tmp_path: Path) -> None:
    path = written(tmp_path, yaml.safe_dump({"applications": [{"args": CONFIG}]}))
    assert load(path) == parse(CONFIG)


def test_what_a_turn_may_take_is_the_same_by_default_in_the_loop_and_in_the_settings() -> None:
    limits = parse(CONFIG).limits
    assert Searcher.__dataclass_fields__["timeout_s"].default == limits.arm_timeout_s
    assert AnswerWriter.__dataclass_fields__["timeout_s"].default == limits.llm_timeout_s


PORTFOLIO = {
    "backbones": {"other": {"model": "hashing:8"}},
    "arms": {"near": {"kind": "dense", "params": {"backbone": "other"}}, "bm25": {"kind": "bm25"}},
}


def portfolio(folder: Path, document: object) -> str:
    path = folder / "portfolio.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return str(path)


def test_the_arms_of_a_portfolio_stand_beside_those_of_the_configuration(tmp_path: Path) -> None:
    config = parse({**CONFIG, "portfolio": portfolio(tmp_path, PORTFOLIO)})
    assert list(config.arms) == ["none", "bm25", "dense", "near"]
    assert set(config.backbones) == {"tiny", "other"}
    assert config.portfolio is None, "what it said is written in: another machine need not have the file"


def test_a_backbone_of_a_portfolio_may_run_elsewhere_here(tmp_path: Path) -> None:
    settings = {**CONFIG, "backbones": {"tiny": {**CONFIG["backbones"]["tiny"], "host": "own"}}}
    document = {"arms": PORTFOLIO["arms"], "backbones": {**PORTFOLIO["backbones"], **CONFIG["backbones"]}}
    config = parse({**settings, "portfolio": portfolio(tmp_path, document)})
    assert config.backbones["tiny"].host == "own"


def test_a_portfolio_alone_is_arms_enough(tmp_path: Path) -> None:
    bare = {key: value for key, value in CONFIG.items() if key not in ("arms", "backbones")}
    assert list(parse({**bare, "portfolio": portfolio(tmp_path, PORTFOLIO)}).arms) == ["near", "bm25"]


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"arms": {"bm25": {"kind": "none"}}}, "arms.bm25 is another in the configuration"),
        ({"arms": {"x": {"kind": "bm52"}}}, "did you mean 'bm25'"),
        ({"backbones": {}}, "no `arms` stand there"),
        ({"arms": ["bm25"]}, "each by name; got 'arms'"),
        ({"arms": {"x": {"kind": "bm25"}}, "floor": 0.1}, "got 'floor'"),
        ("nothing", "no `arms` stand there"),
    ],
)
def test_a_portfolio_that_is_none_is_refused(tmp_path: Path, document: object, message: str) -> None:
    assert message in complaint({**CONFIG, "portfolio": portfolio(tmp_path, document)})
    assert "nowhere.yaml" in complaint({**CONFIG, "portfolio": "nowhere.yaml"})


def test_an_arm_that_is_only_a_part_is_no_action() -> None:
    config = parse(changed("arms/bm25/action", False))
    assert list(config.actions) == ["none", "dense"]


@pytest.mark.parametrize(
    "name",
    ["auto", "Auto", "..", ".", "", "__proto__", "-rf", ".hidden", "a/b", "a b", "a\n", "\u00e4", "x" * 101],
)
@pytest.mark.parametrize("place", ["arms", "backbones", "llms", "prompts", "warm_start/sources"])
def test_a_name_that_means_something_else_somewhere_is_refused_everywhere(place: str, name: str) -> None:
    assert check_name("constructor-1.5_x"), "a name of the pattern is taken"
    values: dict[str, Any] = {
        "arms": {**CONFIG["arms"], name: {"kind": "none"}},
        "backbones": {**CONFIG["backbones"], name: {"model": "hashing:8"}},
        "llms": {name: {"engine": "openai", "base_url": "http://127.0.0.1:1/v1", "model": "m"}},
        "prompts": {name: {"with_passages": "{passages}", "without_passages": "x"}},
        "warm_start/sources": {name: {"kind": "feedback"}},
    }
    assert "is not a valid name" in complaint(changed(place, values[place]))


@pytest.mark.parametrize(
    ("backbones", "router", "message"),
    [
        ({}, {"kind": "ridge"}, "warm_start.router reads questions with a sentence encoder: declare one in"),
        (
            {"tiny": {}},
            {"kind": "ridge", "backbone": "large"},
            "warm_start.router.backbone 'large' is not declared: tiny",
        ),
        (
            {"tiny": {}},
            {"kind": "calibrated", "params": {"router": {"kind": "source_fit"}}},
            "warm_start.router: `source_fit` reads how well a question fits each source: add `features: ",
        ),
        ({"tiny": {}}, {"kind": "max_sim"}, None),
    ],
)
def test_a_warm_start_whose_router_lacks_what_it_reads_is_refused(
    backbones: dict[str, Any], router: dict[str, Any], message: str | None
) -> None:
    document = {
        **CONFIG,
        "backbones": {name: {"model": "hashing:8"} for name in backbones},
        "arms": {"bm25": {"kind": "bm25"}},
        "warm_start": {
            "sources": {"made": {"kind": "synthetic", "metrics": {"right": "score"}}},
            "router": router,
        },
    }
    if message is None:
        assert parse(document).warm_start is not None
    else:
        assert message in complaint(document)


def openai(read: float, written: float, cached: float | None = None) -> dict[str, Any]:
    prices = {"usd_per_kilotoken_in": read, "usd_per_kilotoken_out": written}
    of_cached = {} if cached is None else {"usd_per_kilotoken_cached": cached}
    return {"engine": "openai", "base_url": "http://127.0.0.1:1/v1", "model": "m", **prices, **of_cached}


def test_a_price_of_writing_to_a_cache_is_the_fourth_of_a_model() -> None:
    llm = {**openai(0.5, 2.0, 0.25), "usd_per_kilotoken_cache_write": 0.625}
    reward = {**CONFIG["reward"], "cost": {"usd": 1.0}}
    config = parse({**CONFIG, "llm": llm, "reward": reward})
    assert config.token_prices == config.reward.token_prices == {"default": (0.5, 2.0, 0.25, 0.625)}
    assert parse(config.model_dump(mode="json")).reward == config.reward
    assert config.prices_caches


def test_rewards_in_dollars_count_the_tokens_of_every_model_at_its_price() -> None:
    models = {"llm": openai(0.5, 2.0, 0.25), "llms": {"large": openai(4.0, 8.0)}}
    paid = {"cost_weight": 0.1, "cost": {"usd": 1.0}}
    reward = {**CONFIG["reward"], **paid}
    prices = {"default": (0.5, 2.0, 0.25), "large": (4.0, 8.0, 4.0)}
    config = parse({**CONFIG, **models, "reward": reward})
    assert config.reward.token_prices == config.token_prices == prices
    own = {**reward, "token_prices": {"large": [1.0, 1.0, 1.0], "gone": [9.0, 9.0, 9.0]}}
    found = parse({**CONFIG, **models, "reward": own}).reward.token_prices
    assert found == {**prices, "large": (1.0, 1.0, 1.0), "gone": (9.0, 9.0, 9.0)}, "what is given holds"


@pytest.mark.parametrize(
    ("llm", "paid"),
    [
        (openai(0.5, 2.0), {"cost_weight": 0.1, "cost": {"usd": 0.0}}),
        (openai(0.5, 2.0), {"cost_weight": 0.0, "cost": {"usd": 1.0}}),
        (openai(0.0, 0.0), {"cost_weight": 0.1, "cost": {"usd": 1.0}}),
    ],
)
def test_a_reward_without_dollars_has_no_prices_of_tokens(llm: dict[str, Any], paid: dict[str, Any]) -> None:
    config = parse({**CONFIG, "llm": llm, "reward": {**CONFIG["reward"], **paid}})
    assert config.reward.token_prices == {}


SEVERAL: dict[str, Any] = {
    "docs": {"source": "/data/docs.jsonl"},
    "tickets": {"source": "/data/tickets"},
}


def of_several(**changes: Any) -> dict[str, Any]:
    """A configuration of two corpora, each with an arm, and one arm over both."""
    arms = {
        "docs": {"kind": "bm25", "corpus": "docs"},
        "tickets": {"kind": "bm25", "corpus": "tickets"},
        "both": {"kind": "rrf", "params": {"arms": ["docs", "tickets"]}},
        "none": {"kind": "none"},
    }
    return {**deepcopy(CONFIG), "corpora": SEVERAL, "arms": arms, "limits": {}, **changes}


def test_several_corpora_have_a_folder_each_by_their_names() -> None:
    config = parse(of_several(home="/srv/home")).resolve_places()
    assert config.corpus_names == ("docs", "tickets")
    assert [(one.source, str(one.folder), one.prefix) for one in config.corpus_sources] == [
        ("/data/docs.jsonl", "/srv/home/corpora/docs", "docs/"),
        ("/data/tickets", "/srv/home/corpora/tickets", "tickets/"),
    ]
    assert config.searching("docs") == {"docs"}
    assert config.searching("tickets") == {"tickets"}


def test_one_corpus_has_no_name_in_its_ids() -> None:
    config = parse({**CONFIG, "home": "/srv/home", "corpus": {"name": "docs", "source": "/data/docs.jsonl"}})
    assert config.corpus_names == ("docs",)
    assert [one.prefix for one in config.corpus_sources] == [""]
    assert config.searching("docs") is None


@pytest.mark.parametrize(
    ("arms", "further", "reads"),
    [
        ({"small": {"kind": "none"}}, {}, False),
        ({"large": {"kind": "external", "params": {"usd": 1.0}}}, {}, False),
        ({"tool": {"kind": "mcp", "params": {"url": "https://a.example/mcp", "tool": "find"}}}, {}, False),
        ({"words": {"kind": "bm25"}}, {}, True),
        ({"own": {"kind": "tests.arms.lab.jobs.test_score_job:Away"}}, {}, True),
        ({"small": {"kind": "none"}}, {"corpus": {"name": "notes", "source": "/notes"}}, True),
        (
            {"small": {"kind": "none"}},
            {"warm_start": {"sources": {"made": {"kind": "synthetic", "metrics": {"right": "score"}}}}},
            True,
        ),
    ],
)
def test_documents_are_read_only_where_something_may_search_them(
    arms: dict[str, Any], further: dict[str, Any], reads: bool
) -> None:
    config = parse(
        {
            "llm": {"engine": "scripted"},
            "reward": {"metrics": {"right": {"type": "boolean"}}},
            "arms": arms,
            **further,
        }
    )
    assert bool(config.corpus_sources) is reads
    assert bool(config.with_arms(list(config.actions)).corpus_sources) is reads


def test_sources_of_corpora_are_settled_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = parse(of_several(corpora={"docs": {"source": "docs"}, "tickets": {"source": "stdlib"}}))
    assert [one.source for one in config.resolve_places().corpus_sources] == [
        str(tmp_path / "docs"),
        "stdlib",
    ]


@pytest.mark.parametrize(
    ("passage", "place"),
    [
        ("docs/a", ("docs", "a")),
        ("tickets/2026/a", ("tickets", "2026/a")),
        ("docs/https://example.com/a", ("docs", "https://example.com/a")),
        ("web/a", ("", "web/a")),
        ("docs", ("", "docs")),
        ("a", ("", "a")),
    ],
)
def test_the_corpus_of_a_passage_is_what_its_id_begins_with(passage: str, place: tuple[str, str]) -> None:
    assert parse(of_several()).locate_passage(passage) == place


def test_ids_of_one_corpus_may_have_slashes() -> None:
    config = parse({**CONFIG, "corpus": {"name": "docs", "source": "x"}})
    assert config.locate_passage("docs/a") == ("docs", "docs/a")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"corpus": {"name": "old", "source": "x"}}, "corpus 'old' cannot be combined with `corpora`"),
        ({"corpora": {"a b": {"source": "x"}}}, "corpora: 'a b' is not a valid name"),
        ({"corpora": {"a/b": {"source": "x"}}}, "corpora: 'a/b' is not a valid name"),
        ({"corpora": {"..": {"source": "x"}}}, "corpora: '..' is not a valid name"),
        (
            {"corpora": {**SEVERAL, "Docs": {"source": "x"}}},
            "'docs' and 'Docs' would be one folder on some machines",
        ),
        ({"corpora": {"docs": {}}}, "key 'corpora.docs.source' is missing"),
        ({"corpora": {"docs": {"source": "x", "name": "y"}}}, "unknown key 'corpora.docs.name'"),
        ({"corpora": {"docs": {"source": "x"}, "wiki": {"source": "x"}}}, "unknown corpus 'tickets'"),
        ({"arms": {"words": {"kind": "bm25"}}}, "arm 'words': `corpus` is missing"),
    ],
)
def test_a_wrong_corpus_of_several_is_named(changes: dict[str, Any], said: str) -> None:
    assert said in complaint(of_several(**changes))


def test_answers_without_a_length_keep_to_the_limit_of_requests() -> None:
    def longest(**sections: Any) -> int:
        return parse({**CONFIG, **sections}).answering.max_tokens

    assert longest(answering={}) == 512
    assert longest(answering={}, limits={"completion_tokens": 511}) == 511
    assert longest(answering={"max_tokens": 40}, limits={"completion_tokens": 300}) == 40
    with pytest.raises(ConfigError, match=r"max_tokens 512 is above limits.completion_tokens 300"):
        longest(answering={"max_tokens": 512}, limits={"completion_tokens": 300})


def test_keys_may_come_from_another_mapping_and_be_overridden(tmp_path: Path) -> None:
    path = tmp_path / "merged.yaml"
    args = yaml.safe_dump({**CONFIG, "arms": None}).replace("arms: null", "")
    arms = """
      arms:
        words: &words {kind: bm25, cache: false}
        again: {<<: *words, cache: true}
    """
    lines = "\n".join(f"      {line}" for line in args.splitlines())
    path.write_text(f"applications:\n  - args:\n{lines}\n{arms}")
    assert load(path).arms["again"].cache
    assert not load(path).arms["words"].cache


def test_grades_and_the_metric_that_they_become_need_each_other() -> None:
    reward = {"metrics": {"graded": {"signal": "grade"}}}
    for document in ({**CONFIG, "observations": {"judge": 0.1}}, {**CONFIG, "reward": reward}):
        assert "declare a metric of the grades" in complaint(document)
    parse({**CONFIG, "observations": {"judge": 0.1}, "reward": reward})


def test_each_source_has_the_chunking_of_its_corpus() -> None:
    short = {"words": 100, "overlap": 20}
    one = parse({**CONFIG, "corpus": {"name": "docs", "source": "docs", "chunking": short}})
    assert [source.chunking for source in one.corpus_sources] == [Chunking(**short)]
    several = {"a": {"source": "a", "chunking": short}, "b": {"source": "b"}}
    arms = {"bm25": {"kind": "bm25", "corpus": "a"}, "none": {"kind": "none"}}
    two = parse({**CONFIG, "corpora": several, "arms": arms})
    assert [source.chunking for source in two.corpus_sources] == [Chunking(**short), Chunking()]
