"""Which source to ask, by routers of other packages that read a description of each of six corpora.

    python benchmarks/sources_rivals.py FOLDER --rivals PATH [--model FILE.gguf] [--questions 200]

FOLDER is that of `sources.py`, whose corpora, indexes and rewards these are. The packages are read from
PATH, filled by `pip install --target PATH llama-index-core llama-index-llms-openai-like haystack-ai`:

    LlamaIndex LLMSingleSelector         a language model reads the descriptions, and answers in JSON
    Haystack LLMMessagesRouter           the same model answers with a number, which patterns look for
    LlamaIndex EmbeddingSingleSelector   the description whose embedding is nearest to the question

The first two ask the model of `--model`, which this process serves by OpenAI's protocol, about a random
sample of the questions; without it they are left out. The last one chooses for all, by the encoder of our
routers. An answer that names no source counts as the first source. `--keep DIRECTORY` keeps indexes and
answers: another run asks the questions that are left. Below them are ours, on the same questions.
"""

import os
import re
import secrets
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Protocol

import numpy as np
import orjson
import typer
from learners_rivals import import_from
from numpy.typing import NDArray
from rich.box import MARKDOWN
from rich.console import Console
from rich.progress import track
from rich.table import Table
from routing_data import json_lines
from sources import ENCODER, ROUTERS, Asked, Floats, Sources, features_of, fit
from threadpoolctl import threadpool_limits

from armwise.arms.models import build_embedder
from armwise.feedback.ope.intervals import bootstrap
from armwise.feedback.ope.sample import Terms

DESCRIPTIONS: Mapping[str, str] = {
    "squad": "Forty-eight long encyclopedia articles, paragraph by paragraph, on general subjects "
    "such as Martin Luther, Nikola Tesla, Warsaw, Kenya, the Normans, oxygen, the immune "
    "system, the Apollo program and European Union law.",
    "nq": "Passages of encyclopedia articles on popular subjects: recent films and television "
    "series, hit songs, sports leagues and championships, American history and law, and "
    "everyday science.",
    "hotpotqa": "First paragraphs of encyclopedia articles on entertainers, films, bands, magazines, "
    "companies, universities, airports, sports seasons and American places.",
    "musique": "Paragraphs of encyclopedia articles on countries, cities and counties, empires and "
    "wars, religions, rulers, record labels and songs, and the districts in which small "
    "places lie.",
    "2wikimultihopqa": "First sentences of encyclopedia articles on film directors, older and foreign films, "
    "nobles and their relatives, and singers: dates and places of birth and death, "
    "parents, spouses.",
    "popqa": "Sections of encyclopedia articles on little-known people, such as politicians, "
    "athletes, painters and composers of many countries, with lists of people by surname "
    "and given name.",
}
"""Written by hand after a look at passages and titles of each source, and not at the questions."""

TIMED = 30
"""Questions whose choice by embeddings is timed, each with an encoder that remembers nothing."""


class Rival(Protocol):
    """A router of another package."""

    def choose(self, question: str) -> list[int]:
        """Return the sources that the answer names, in its order; none where it cannot be read."""
        ...


class LlamaIndex:
    """A selector of LlamaIndex's `RouterRetriever`."""

    def __init__(self, selector: Any) -> None:
        from llama_index.core.tools import ToolMetadata

        self._selector = selector
        self._choices = [ToolMetadata(description=text, name=name) for name, text in DESCRIPTIONS.items()]

    def choose(self, question: str) -> list[int]:
        """Select; where it cannot read an answer, the package raises one of many errors."""
        from llama_index.core.output_parsers.base import OutputParserException

        try:
            named = self._selector.select(self._choices, question).inds
        except (OutputParserException, ValueError, KeyError, TypeError, AttributeError):
            return []
        return [index for index in named if 0 <= index < len(self._choices)]


def llamaindex_llm(url: str, key: str) -> Rival:
    """Return LlamaIndex's selector by a language model, with its own prompt."""
    from llama_index.core.selectors import LLMSingleSelector
    from llama_index.llms.openai_like import OpenAILike

    llm = OpenAILike(
        model="served",
        api_base=url,
        api_key=key,
        is_chat_model=True,
        temperature=0.0,
        max_tokens=200,
        timeout=600.0,
    )
    return LlamaIndex(LLMSingleSelector.from_defaults(llm))


def llamaindex_embedding(encode: Callable[[Sequence[str]], NDArray[np.float32]]) -> Rival:
    """Return LlamaIndex's selector by embeddings."""
    from llama_index.core.embeddings import BaseEmbedding
    from llama_index.core.selectors import EmbeddingSingleSelector

    class Encoder(BaseEmbedding):  # type: ignore[misc]  # the package has no types here
        def _get_text_embedding(self, text: str) -> list[float]:
            return [float(number) for number in encode([text])[0]]

        def _get_query_embedding(self, query: str) -> list[float]:
            return self._get_text_embedding(query)

        async def _aget_query_embedding(self, query: str) -> list[float]:
            return self._get_text_embedding(query)

    return LlamaIndex(EmbeddingSingleSelector.from_defaults(Encoder()))


class Haystack:
    """Haystack's router by a language model; its user writes the prompt, here in the words of LlamaIndex."""

    def __init__(self, url: str, key: str) -> None:
        from haystack.components.generators.chat import OpenAIChatGenerator
        from haystack.components.routers import LLMMessagesRouter
        from haystack.utils import Secret

        generator = OpenAIChatGenerator(
            Secret.from_token(key),
            "served",
            api_base_url=url,
            timeout=600.0,
            generation_kwargs={"temperature": 0.0, "max_tokens": 20},
        )
        numbered = "\n".join(f"({i}) {text}" for i, text in enumerate(DESCRIPTIONS.values(), 1))
        self._router = LLMMessagesRouter(
            generator,
            list(DESCRIPTIONS),
            [rf"\b{i}\b" for i in range(1, len(DESCRIPTIONS) + 1)],
            f"Some choices are given below, in a numbered list (1 to {len(DESCRIPTIONS)}), where each item "
            f"corresponds to a summary.\n---------------------\n{numbered}\n---------------------\n"
            "The user asks a question. Using only the choices above and not prior knowledge, return the "
            "number of the choice that is most relevant to the question, and nothing else. Do not answer "
            "the question.",
        )

    def choose(self, question: str) -> list[int]:
        """Route a message."""
        from haystack.dataclasses import ChatMessage

        output = self._router.run([ChatMessage.from_user(question)])
        return [i for i, name in enumerate(DESCRIPTIONS) if name in output]


LLM_RIVALS: Mapping[str, Callable[[str, str], Rival]] = {
    "LlamaIndex LLMSingleSelector": llamaindex_llm,
    "Haystack LLMMessagesRouter": Haystack,
}
"""Each is made for a server that speaks OpenAI's protocol, and its key."""


class Served:
    """A language model behind OpenAI's protocol on a port of this machine, as long as this object lives."""

    def __init__(self, model: Path, threads: int) -> None:
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = str(model)
        params.n_ctx, params.n_parallel = 4096, 1
        for cpu in (params.cpuparams, params.cpuparams_batch):
            cpu.n_threads = threads
        params.cache_ram_mib, params.port, params.verbosity = 0, 0, -1
        self.key = secrets.token_urlsafe()
        params.api_keys = [self.key]
        self._server = xllamacpp.Server(params)
        self.url = f"{self._server.listening_address}/v1"


@dataclass(frozen=True)
class Choices:
    """What a router chose.

    Attributes:
        rows: Questions, shape (n,).
        source: The chosen one, shape (n,).
        seconds: Median of a choice; None where it is not known.
        none: Answers that named no source.
        several: Answers that named several, of which the first counts.
    """

    rows: NDArray[np.int64]
    source: NDArray[np.int64]
    seconds: float | None = None
    none: int = 0
    several: int = 0


def choices(rows: Sequence[int], named: Sequence[Sequence[int]], seconds: Sequence[float]) -> Choices:
    """Return choices of what some answers named."""
    source = np.array([sources[0] if sources else 0 for sources in named])
    none = sum(not sources for sources in named)
    return Choices(np.array(rows), source, median(seconds), none, sum(len(sources) > 1 for sources in named))


def ask_rival(make: Callable[[], Rival], texts: Sequence[str], rows: Sequence[int], file: Path) -> Choices:
    """Have a rival choose for some questions, but for those whose answers are in a file; add its answers."""
    file.touch()
    row_by_question = {row["question"]: row for row in map(orjson.loads, file.read_bytes().splitlines())}
    rival, left = make(), [row for row in rows if texts[row] not in row_by_question]
    if left:
        rival.choose("Where is the library?")  # loads what is loaded at the first question
    with file.open("ab") as kept:
        for row in track(left, file.stem):
            start = time.perf_counter()
            sources = rival.choose(texts[row])
            seconds = time.perf_counter() - start
            row_by_question[texts[row]] = {"question": texts[row], "sources": sources, "seconds": seconds}
            kept.write(orjson.dumps(row_by_question[texts[row]]) + b"\n")
            kept.flush()
    answers = [row_by_question[texts[row]] for row in rows]
    return choices(rows, [a["sources"] for a in answers], [a["seconds"] for a in answers])


def by_embedding(asked: Asked) -> Choices:
    """Have the selector by embeddings choose for all questions; the first are timed."""
    encoder = build_embedder(ENCODER)
    vector_by_text = dict(zip(asked.texts, asked.vectors, strict=True))
    vector_by_text |= zip(
        DESCRIPTIONS.values(), encoder.encode_queries([*DESCRIPTIONS.values()]), strict=True
    )
    fast = llamaindex_embedding(lambda texts: np.stack([vector_by_text[text] for text in texts]))
    named = [fast.choose(text) for text in track(asked.texts, "LlamaIndex EmbeddingSingleSelector")]
    slow, seconds = llamaindex_embedding(encoder.encode_queries), []
    for text in asked.texts[:TIMED]:
        start = time.perf_counter()
        slow.choose(text)
        seconds.append(time.perf_counter() - start)
    return choices(range(len(named)), named, seconds)


def fitted(asked: Asked, labels: Asked, sources: Sources) -> dict[str, Choices]:
    """Return what our routers choose for all questions, fitted to made ones; the first are timed."""
    encoder, rows = build_embedder(ENCODER), np.arange(len(asked.texts))
    chosen, names = {}, sources.names
    for name, spec in ROUTERS.items():
        router = fit(spec, labels, sources)
        source, seconds = router.scores(features_of(asked, names)).argmax(axis=1), []
        for row in range(TIMED):
            question = asked.some(np.array([row]))
            start = time.perf_counter()
            question = replace(question, vectors=encoder.encode_queries(question.texts))
            router.scores(features_of(question, names))
            seconds.append(time.perf_counter() - start)
        chosen[f"router on {name} of made questions"] = Choices(rows, source, median(seconds))
    return chosen


def row_of(name: str, chosen: Choices, recall: Floats, right: NDArray[np.int64]) -> list[str]:
    """Return a row of the table."""
    reward = recall[chosen.rows, chosen.source]
    ones = np.ones(len(reward))
    ((low, high),) = bootstrap([Terms("mean", reward, ones, ones)], np.random.default_rng(0))
    numbers = (reward.mean(), low, high, (chosen.source == right[chosen.rows]).mean())
    mean, low_text, high_text, share = (f"{number:.3f}".removeprefix("0") for number in numbers)
    seconds = "" if chosen.seconds is None else f"{chosen.seconds:.2g}"
    return [name, str(len(reward)), "1", mean, f"{low_text} to {high_text}", share, seconds, str(chosen.none)]


def main(
    folder: Annotated[Path, typer.Argument(help="Holds `qa/`.")],
    rivals: Annotated[list[Path], typer.Option(help="Folder of other packages.")],
    model: Annotated[Path | None, typer.Option(help="GGUF file of the language model.")] = None,
    questions: Annotated[int, typer.Option(min=2, help="Questions for the language model.")] = 200,
    threads: Annotated[int, typer.Option(min=1, help="Of the language model.")] = 2,
    seed: Annotated[int, typer.Option(help="Of the sample.")] = 0,
    made: Annotated[int, typer.Option(min=60, help="Questions to make for our routers.")] = 3600,
    keep: Annotated[Path | None, typer.Option(help="Where indexes and answers are kept.")] = None,
) -> None:
    """Have them choose, and print the table."""
    os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"
    import_from(rivals)
    threadpool_limits(1)
    home = keep or Path(tempfile.mkdtemp(prefix="sources-"))
    home.mkdir(parents=True, exist_ok=True)
    sources = Sources(folder, home)
    names = sources.names
    lines = [line for line in json_lines(folder / "qa" / "queries.jsonl.gz") if line["gold_ids"]]
    real_questions = sources.ask(
        [line["question"] for line in lines], [line["gold_ids"] for line in lines], "real questions"
    )
    right = np.array([names.index(line["gold_ids"][0].partition("/")[0]) for line in lines])
    sample = np.random.default_rng(seed).permutation(len(lines))[:questions]
    choices_by_name: dict[str, Choices] = {}
    if model is not None:
        served = Served(model, threads)
        for name, make in LLM_RIVALS.items():
            file = home / f"{re.sub(r'[^a-z]+', '-', name.lower())}.jsonl"
            choices_by_name[name] = ask_rival(
                partial(make, served.url, served.key), real_questions.texts, sample.tolist(), file
            )
    everywhere = np.arange(len(lines))
    choices_by_name["LlamaIndex EmbeddingSingleSelector"] = by_embedding(real_questions)
    choices_by_name |= fitted(real_questions, sources.made(made), sources)
    best = np.full(len(lines), real_questions.recall.mean(axis=0).argmax())
    choices_by_name["the best source in hindsight"] = Choices(everywhere, best)
    choices_by_name["the right source"] = Choices(everywhere, real_questions.recall.argmax(axis=1))
    heads = "", "questions", "searches", "Recall@4", "95% interval", "right source", "seconds", "no source"
    for rows in (everywhere,) if model is None else (sample, everywhere):
        table = Table(*heads, box=MARKDOWN)
        for name, chosen in choices_by_name.items():
            if len(chosen.rows) > len(rows):  # for all questions
                part = Choices(rows, chosen.source[rows], chosen.seconds)
                table.add_row(*row_of(name, part, real_questions.recall, right))
            elif len(chosen.rows) == len(rows):
                table.add_row(*row_of(name, chosen, real_questions.recall, right))
        Console(width=160).print(table)
    for name, chosen in choices_by_name.items():
        if chosen.several:
            print(f"{name}: {chosen.several} answers named several sources, of which the first counts")


if __name__ == "__main__":
    typer.run(main)
