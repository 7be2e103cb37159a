"""The four questions of `armwise init`: models, documents, the worth of a right answer, the data's folder.

Models are looked for where people have them: at the endpoints of the keys in the environment, and at the
ports of engines on this machine. Each answer is checked, and asked for again if it is wrong.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from armwise.agent.cli.configuration_text import TYPICAL_TOKENS, WORTH
from armwise.agent.cli.console import PLAIN, console
from armwise.agent.cli.without_config import API_KEY, BASE_URL, OPENAI

if TYPE_CHECKING:
    from armwise.arms.llm import LlmSpec

ANTHROPIC_KEY, ANTHROPIC = "ANTHROPIC_API_KEY", "https://api.anthropic.com/v1"

LOCAL = {"Ollama": 11434, "LM Studio": 1234}
"""Ports of engines on this machine, whose models are free, by name."""

LOOK_S = 3.0
"""Seconds that an endpoint may take to list its models."""

FEW = 3
"""So many models of an endpoint are all proposed."""

PAIRS = (
    ("gpt-5-mini", "gpt-5"),
    ("gpt-4o-mini", "gpt-4o"),
    ("claude-haiku-4-5", "claude-sonnet-5"),
    ("claude-haiku-4-5", "claude-sonnet-4-5"),
)
"""Models that are proposed together, a cheap one and a good one."""

EMBEDDED, NONE = "embedded", "none"
"""Answers: the model of the package, and no documents."""

OWN_NAMES = "name one model here, or give them names with `armwise init --model NAME=MODEL`"
"""What to do about models whose names as arms would be unclear."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An endpoint of models.

    Attributes:
        what: Name of it, as it is shown.
        settings: Settings of a model there, all but its name.
        models: Names of its models.
        is_known: Whether it lists them; if not, any model may be there.
    """

    what: str
    settings: Mapping[str, Any]
    models: Sequence[str] = ()
    is_known: bool = True

    def has(self, model: str) -> bool:
        """Return whether a model is listed; Anthropic lists each with its date."""
        return any(one == model or re.sub(r"-\d{8}$", "", one) == model for one in self.models)

    def doubt(self, model: str) -> int:
        """Return how doubtful it is that a model is there: 0 if it is listed, 3 if others are."""
        if self.is_known:
            return 0 if self.has(model) else 3
        return 1 if model.startswith("claude") == (self.settings["engine"] == "anthropic") else 2


@dataclass(frozen=True, slots=True)
class Answers:
    """What a user has answered.

    Attributes:
        llms: Settings of each model by name; empty for the one of the package.
        source: Documents; None for none.
        worth: Dollars that a right answer is worth.
        home: Folder for the data; None: where ARMWISE_HOME says, or as the corpus is called.
    """

    llms: Mapping[str, dict[str, Any]]
    source: str | None
    worth: float = WORTH
    home: str | None = None


def ask(question: str, default: str | None, check: Callable[[str], object]) -> str:
    """Ask until `check` accepts the answer; it raises ValueError for an invalid one."""

    def sound(answer: str) -> str:
        try:
            check(answer)
        except (ValueError, OSError) as error:
            raise typer.BadParameter(str(error)) from None
        return answer

    return str(typer.prompt(question, default=default, value_proc=sound))


def interview(check_source: Callable[[str], object], check_home: Callable[[Answers], str]) -> Answers:
    """Ask the four questions.

    Args:
        check_source: Raises ValueError for documents that cannot be read.
        check_home: Returns the home that answers have by default. Raises ValueError if theirs is taken.
    """
    if named := os.environ.get("ARMWISE_HOME"):
        check_home(Answers({}, None, home=named))
    console.print("Four questions. Press Enter to take the answer in brackets.", **PLAIN)
    llms = _ask_models()
    source = _ask_source(len(llms), check_source)
    worth = _ask_worth(llms)
    draft = Answers(llms, source, worth)
    if named:
        check_home(Answers(llms, source, worth, named))
        console.print(f"4. The data goes to {named}, as ARMWISE_HOME says.", **PLAIN)
        return draft
    home = ask(
        "4. Folder for the log and the indexes",
        check_home(draft),
        lambda answer: check_home(Answers(llms, source, worth, answer)),
    )
    return Answers(llms, source, worth, as_folder(home))


def _ask_models() -> dict[str, dict[str, Any]]:
    from armwise.agent.model_endpoints import EndpointError

    endpoints = list(find_endpoints(os.environ))
    for one in filter(lambda each: each.is_known, endpoints):
        n = f"{len(one.models):,} model{'s' if len(one.models) != 1 else ''}"
        console.print(f"Found {one.what}: {n}", style="dim", **PLAIN)
    if not endpoints:
        looked = f"Looked at {BASE_URL}, {API_KEY} and {ANTHROPIC_KEY}, and for {' and '.join(LOCAL)}"
        console.print(f"Found no models. {looked} on this machine.", style="dim", **PLAIN)
    default = next(filter(None, map(propose, endpoints)), EMBEDDED)
    chosen: dict[str, dict[str, Any]] = {}

    def check(answer: str) -> None:
        chosen.clear()
        if answer.strip() == EMBEDDED:
            return
        if "://" in answer:
            address = answer.strip()
            settings = {"engine": "openai", "base_url": address.rstrip("/")}
            try:
                more = _list_models(address, settings)
            except EndpointError as error:
                if error.refuses:
                    raise ValueError(f"{error}: add --llm-url and --llm-key-env to `armwise init`") from None
                endpoints.insert(0, Endpoint(_show(address, settings), settings, is_known=False))
                raise ValueError(f"{error}. Name its models, or the address of another endpoint") from None
            endpoints.append(more)
            raise ValueError(
                f"{more.what} has: {', '.join(more.models[:20]) or 'no models'}. Name one or more"
            )
        chosen.update(choose(answer, endpoints))
        _require_prices(chosen)
        for one in endpoints:
            unchecked = [
                name["model"]
                for name in chosen.values()
                if not one.is_known and name.items() >= one.settings.items()
            ]
            if unchecked:
                console.print(
                    f"Not checked, because {one.what} lists no models now: {', '.join(unchecked)}",
                    style="yellow",
                    **PLAIN,
                )

    ask(
        "1. Models, separated by commas, the address of an endpoint, or `embedded` for a small model to try",
        default,
        check,
    )
    return chosen


def _ask_source(n_models: int, check_source: Callable[[str], object]) -> str | None:
    def check(answer: str) -> None:
        if answer != NONE:
            check_source(answer)
        elif n_models < 2:
            raise ValueError(
                "without documents, name two models or more: there is nothing to choose otherwise"
            )

    default = NONE if n_models > 1 else "stdlib"
    answer = ask("2. Documents to answer from: a folder, a file, or `none`", default, check)
    return None if answer == NONE else answer


def _ask_worth(llms: Mapping[str, dict[str, Any]]) -> float:
    from armwise.arms.llm import catalog

    specs = {name: _read_spec(settings) for name, settings in llms.items()}
    usd = {name: catalog.find_prices(spec).compute_usd(*TYPICAL_TOKENS) for name, spec in specs.items()}
    if len(llms) < 2 or not max(usd.values()):
        unknown = [name for name, spec in specs.items() if not catalog.is_priced(spec)]
        why = "there is one model" if len(llms) < 2 else "these models cost nothing"
        if unknown:
            why = f"no price is known for {', '.join(unknown)}. You can set prices in the file"
        console.print(f"3. What a right answer is worth does not matter yet: {why}.", **PLAIN)
        return WORTH
    dearest = max(usd, key=lambda name: usd[name])
    read, wrote = TYPICAL_TOKENS
    typical = f"{read:,} tokens in and {wrote} out cost ${usd[dearest]:.2g} with {dearest}"

    def check(answer: str) -> None:
        if not re.fullmatch(r"\$?\d{1,6}(\.\d{1,9})?", answer) or not float(answer.removeprefix("$")):
            raise ValueError(f"{answer!r} is not a number of dollars above 0, such as 0.01")

    answer = ask(f"3. Dollars that a right answer is worth to you ({typical})", f"{WORTH:g}", check)
    return float(answer.removeprefix("$"))


def _read_spec(settings: Mapping[str, Any]) -> "LlmSpec":
    from pydantic import TypeAdapter

    from armwise.arms.llm import LlmSpec

    spec: LlmSpec = TypeAdapter(LlmSpec).validate_python(settings)
    return spec


def _require_prices(llms: Mapping[str, dict[str, Any]]) -> None:
    """Refuse models of which only some have a price. Raises ValueError."""
    from armwise.arms.llm import catalog

    unpriced = [name for name, settings in llms.items() if not catalog.is_priced(_read_spec(settings))]
    if 0 < len(unpriced) < len(llms):
        raise ValueError(
            f"no price is known for {', '.join(unpriced)}, but for the others: name other models, or give "
            "prices by `armwise init --model`"
        )


def find_endpoints(environment: Mapping[str, str]) -> Iterator[Endpoint]:
    """Yield the endpoints of the keys in an environment, and those of engines that answer on this machine.

    It is printed if an endpoint of a key refuses it, or lists no models.
    """
    from armwise.agent.model_endpoints import EndpointError

    named: list[tuple[str, dict[str, Any]]] = []
    if (base := environment.get(BASE_URL)) or environment.get(API_KEY):
        key = {"api_key_env": API_KEY} if environment.get(API_KEY) else {}
        what = BASE_URL if base else API_KEY
        named.append((what, {"engine": "openai", "base_url": (base or OPENAI).rstrip("/"), **key}))
    if environment.get(ANTHROPIC_KEY):
        named.append((ANTHROPIC_KEY, {"engine": "anthropic", "api_key_env": ANTHROPIC_KEY}))
    for what, settings in named:
        try:
            yield _list_models(what, settings)
        except EndpointError as error:
            if error.refuses:
                console.print(f"{what} is not used: {error}", style="yellow", **PLAIN)
            else:
                console.print(f"{what}: {error}. You can name its models", style="yellow", **PLAIN)
                yield Endpoint(what, settings, is_known=False)
        except ValueError as error:  # of a proxy
            console.print(f"{what} is not used: {error}", style="yellow", **PLAIN)
    for what, port in LOCAL.items():
        try:
            yield _list_models(
                what, {"engine": "openai", "base_url": f"http://127.0.0.1:{port}/v1", "usd": 0}
            )
        except ValueError:
            continue


def _list_models(what: str, settings: dict[str, Any]) -> Endpoint:
    """Ask an endpoint for its models. Raises EndpointError."""
    from armwise.agent.model_endpoints import list_models

    address = settings.get("base_url", ANTHROPIC)
    names = list_models(address, settings.get("api_key_env"), settings["engine"], LOOK_S)
    return Endpoint(_show(what, settings), settings, names)


def _show(what: str, settings: Mapping[str, Any]) -> str:
    from armwise.feedback.log import without_password

    address = settings.get("base_url", ANTHROPIC)
    shown = without_password(address)
    return shown if what == address else f"{what}, {shown}"


def propose(endpoint: Endpoint) -> str:
    """Return the models of an endpoint that are proposed, as an answer; empty for none."""
    if 0 < len({*map(name_model, endpoint.models)}) == len(endpoint.models) <= FEW:
        return ",".join(endpoint.models)
    return next((",".join(pair) for pair in PAIRS if all(map(endpoint.has, pair))), "")


def choose(answer: str, endpoints: Sequence[Endpoint]) -> dict[str, dict[str, Any]]:
    """Return the settings of the models that an answer names, by name. Raises ValueError.

    >>> choose("qwen3:8b", [Endpoint("Ollama", {"engine": "openai"}, ["qwen3:8b"])])
    {'qwen3-8b': {'engine': 'openai', 'model': 'qwen3:8b'}}
    """
    from armwise.agent.config import TAKEN_NAMES
    from armwise.agent.model_endpoints import list_nearest

    found: dict[str, dict[str, Any]] = {}
    for model in filter(None, map(str.strip, answer.split(","))):
        at = min(endpoints, key=partial(Endpoint.doubt, model=model), default=None)
        if at is None or at.doubt(model) == 3:
            if not (names := {name for one in endpoints for name in one.models}):
                raise ValueError(
                    f"where is {model!r}? Give the address of its endpoint first, such as {OPENAI}"
                )
            raise ValueError(f"no endpoint has a model {model!r}; {list_nearest(model, names)}")
        name = name_model(model)
        if (other := found.get(name, {}).get("model", model)) != model:
            raise ValueError(f"{other!r} and {model!r} would both be called {name!r}: {OWN_NAMES}")
        found[name] = {**at.settings, "model": model}
    if not found:
        raise ValueError("name a model")
    if len(found) > 1 and (taken := found.keys() & TAKEN_NAMES):
        named = " and ".join(sorted(repr(found[name]["model"]) for name in taken))
        raise ValueError(f"{named} would get a name that has a meaning already: {OWN_NAMES}")
    return found


def name_model(model: str) -> str:
    """Return the name of an arm and a setting for a model.

    >>> name_model("meta-llama/Llama-3.3-70B"), name_model("***")
    ('Llama-3.3-70B', 'first')
    """
    return re.sub(r"[^A-Za-z0-9._-]+", "-", model.rpartition("/")[2]).strip("-._")[:60] or "first"


def as_folder(home: str) -> str:
    """Return a home as it is written into a configuration: absolute, or below the user's own folder."""
    return home if home.startswith("~") else str(Path(home).absolute())
