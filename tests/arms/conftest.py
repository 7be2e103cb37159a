"""Corpora that the tests of arms search in."""

from pathlib import Path

import orjson
import pytest

from armwise.arms.base import Passage
from armwise.arms.corpus import Corpus, ingest

ENCYCLOPEDIA = (
    # not in order of their ids: what sorts by position by mistake is found out
    Passage("vienna", "Vienna", "Vienna is the capital of Austria and lies on the river Danube."),
    Passage("danube", "Danube", "The Danube flows through ten countries, more than any other river."),
    Passage("austria", "Austria", "Austria is a country in the Alps; its largest city is Vienna."),
    Passage("mozart", "Wolfgang Amadeus Mozart", "Mozart composed The Magic Flute, an opera, in Vienna."),
    Passage("fox", "Red fox", "The red fox lives in forests and cities all over the north."),
    Passage("fox-again", "Red fox", "The red fox lives in forests and cities all over the north."),
    Passage("bee", "", "A bee dances to tell the others where flowers are."),
    Passage("glacier", "Glacier", "A glacier is ice that flows slowly down a valley."),
    Passage("opera", "Opera", "An opera is a play in which the words are sung."),
    Passage("python", "Python", "Python is a language in which white space has a meaning."),
    Passage("alps", "Alps", "The Alps are the highest mountains that lie wholly in Europe."),
    Passage("tide", "Tide", "Tides rise and fall with the moon."),
    Passage("empty", "", "..."),
)


def keep(folder: Path, passages: tuple[Passage, ...]) -> Corpus:
    """Return a corpus of these passages, in this order."""
    source = folder / "source.jsonl"
    fields = ({"id": p.id, "title": p.title, "text": p.text, "metadata": p.metadata} for p in passages)
    source.write_bytes(b"\n".join(map(orjson.dumps, fields)))
    return ingest(source, folder / "corpus")


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Thirteen passages; two are the same but for their ids, one has no word."""
    return keep(tmp_path_factory.mktemp("encyclopedia"), ENCYCLOPEDIA)
