"""Citations, as the official client reads them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from armwise.arms.base import Passage, Query, Retrieval
from armwise.arms.llm import base
from tests.agent.api.conftest import client_of, prompt_of
from tests.agent.asking import ask, events
from tests.agent.fakes import Service

CITING = "The Danube [2], \u00fcber 2800 km long [1][7]."


async def three(_query: Query, _k: int) -> Retrieval:
    """Find three passages, of which a budget of fourteen words shows two."""
    found = (
        Passage("https://example.com/long?a=1", "Length", "It is 2850 km long."),
        Passage("d 2", "Danube", "It runs through Vienna.", metadata={"page": 3}),
        Passage("d-3", "Inn", "It does not."),
    )
    return Retrieval(found)


@pytest.fixture
async def citing(tmp_path: Path) -> AsyncIterator[Service]:
    generator = base.ScriptedGenerator({}, default=CITING)
    answering = {"word_budget": 14, "cite": True}
    async with Service(tmp_path, generator, answering=answering).running() as service:
        service.arms.behaviour = {"bm25": three}
        yield service


async def test_a_citation_points_at_its_number_and_its_passage(citing: Service) -> None:
    found = await client_of(citing).chat.completions.create(
        model="arm/bm25", messages=[{"role": "user", "content": "which river?"}]
    )
    message = found.choices[0].message
    assert message.annotations is not None
    assert message.content is not None
    cited = [one.url_citation for one in message.annotations]
    assert [message.content[one.start_index : one.end_index] for one in cited] == ["[2]", "[1]"]
    assert [(one.title, one.url) for one in cited] == [
        ("Danube, p. 3", "urn:armwise:stdlib:d%202"),
        ("Length", "https://example.com/long?a=1"),
    ]
    shown = prompt_of(citing).messages[0]["content"]
    assert ("[1] Length" in shown, "[2] Danube, p. 3\n" in shown, "[3]" in shown) == (True, True, False)
    assert shown.endswith("such as [1].")


async def test_a_stream_ends_with_the_citations_of_its_text(citing: Service) -> None:
    whole = (await ask(citing, model="arm/bm25")).json()["choices"][0]["message"]["annotations"]
    *_, last = events(await ask(citing, model="arm/bm25", stream=True))
    assert last["choices"][0]["delta"] == {"annotations": whole}
    assert last["choices"][0]["finish_reason"] == "stop"


async def test_an_answer_without_passages_cites_nothing_and_is_not_told_to(citing: Service) -> None:
    citing.arms.behaviour = {"none": lambda *_: nothing()}
    message = (await ask(citing, model="arm/none")).json()["choices"][0]["message"]
    assert "annotations" not in message
    assert "[1]" not in prompt_of(citing).messages[0]["content"]


async def nothing() -> Retrieval:
    return Retrieval(steps=0)
