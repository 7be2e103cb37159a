"""Questions made as a user asks for them: settings, the file, and what is printed."""

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from rich.console import Console

from armwise.agent.config import AppConfig, parse
from armwise.agent.lab.offline import Synthesis, make_questions, read_questions
from tests.neighbours import SUBJECTS, write_corpus

ENDPOINT = {
    "engine": "openai",
    "base_url": "http://127.0.0.1:9/v1",
    "model": "m",
    "max_retries": 0,
    "usd_per_kilotoken_in": 1.0,
}


def config(tmp_path: Path, **llm: Any) -> AppConfig:
    return parse(
        {
            "home": str(tmp_path / "home"),
            "corpus": {"name": "small", "source": str(write_corpus(tmp_path / "corpus.jsonl"))},
            "arms": {"bm25": {"kind": "bm25"}},
            "llm": llm or {"engine": "scripted"},
            "policy": {"kind": "uniform"},
            "reward": {"metrics": {"thumb": {"range": [-1, 1]}}},
        }
    )


def printed(settings: Synthesis) -> str:
    output = StringIO()
    make_questions(settings, Console(file=output, width=120), lambda *_: None)
    return output.getvalue()


def test_the_file_holds_questions_as_arms_are_scored_on(tmp_path: Path) -> None:
    settings = Synthesis(config=config(tmp_path), output=tmp_path / "made.jsonl", questions=10)
    report = printed(settings)
    questions = read_questions(settings.output)
    assert "10 questions; written to" in report
    assert len(questions) == 10
    assert {name for one in questions for name in one.gold_ids} <= {f"p{i}" for i in range(len(SUBJECTS))}


def test_an_output_that_exists_is_not_overwritten(tmp_path: Path) -> None:
    settings = Synthesis(config=config(tmp_path), output=tmp_path / "made.jsonl", questions=2)
    settings.output.write_text("mine")
    with pytest.raises(ValueError, match="exists: choose another output"):
        printed(settings)
    assert settings.output.read_text() == "mine"


def test_without_documents_the_remedy_is_named(tmp_path: Path) -> None:
    document = config(tmp_path).model_dump(mode="json", exclude={"corpus"}) | {
        "arms": {"none": {"kind": "none"}}
    }
    settings = Synthesis(config=parse(document), output=tmp_path / "made.jsonl", questions=2)
    with pytest.raises(ValueError, match="no documents to ask about: set `corpus` or `corpora`"):
        printed(settings)
    assert not settings.output.exists()


def test_a_style_takes_its_weight(tmp_path: Path) -> None:
    styles = {"keywords": 1.0, "title": 3.0}
    settings = Synthesis(config=config(tmp_path), output=tmp_path / "made.jsonl", questions=8, styles=styles)
    output = StringIO()
    made = make_questions(settings, Console(file=output, width=200), lambda *_: None)
    assert sorted(one.style for one in made) == ["keywords"] * 2 + ["title"] * 6
    shown = [line.split("│")[-2].strip() for line in output.getvalue().splitlines() if "│" in line]
    assert len(shown) == 2 + 3, "at most three of a style"
    assert all(shown)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"styles": {"titel": 1.0}}, "no style 'titel' without a language model; did you mean 'title'"),
        ({"styles": {"cloze": 1.0}, "with_model": True}, "no style 'cloze' with a language model"),
        ({"styles": {"cloze": 0.0}}, "style cloze: weight 0.0 is not a positive number"),
    ],
)
def test_a_wrong_style_is_named(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Synthesis(config=config(tmp_path), output=tmp_path / "made.jsonl", **fields)


def test_only_an_endpoint_or_vllm_writes_by_default(tmp_path: Path) -> None:
    output = tmp_path / "made.jsonl"
    assert not Synthesis(config=config(tmp_path), output=output).prompts
    assert Synthesis(config=config(tmp_path, **ENDPOINT), output=output).prompts
    assert not Synthesis(config=config(tmp_path, **ENDPOINT), output=output, with_model=False).prompts


def test_the_price_is_printed_before_the_first_call(tmp_path: Path) -> None:
    settings = Synthesis(config=config(tmp_path, **ENDPOINT), output=tmp_path / "made.jsonl", questions=100)
    output = StringIO()
    with pytest.raises(Exception, match=r"127\.0\.0\.1:9"):
        make_questions(settings, Console(file=output, width=200), lambda *_: None)
    calls, _, rest = output.getvalue().partition(" calls of the language model: about ")
    read, _, _ = rest.partition(" tokens read")
    assert calls == "at least 167"  # a search is not answered again
    assert f"{int(read.replace(',', '')) / 1000:.2f} USD" in rest
