"""What `armwise serve` builds for several corpora, and what it leaves as it is where one of them changes."""

import json
from pathlib import Path
from typing import Any

import pytest

from armwise.agent.cli.preparation import prepare
from armwise.agent.config import parse
from armwise.arms.corpus import ingest_all
from armwise.arms.engines.ingest import fill_collection, read_ingested
from armwise.arms.retrievers import ArmSpecError, Resources, read_profiles
from tests.agent.fakes import CONFIG

NAMES = ("library", "guides", "reference")


class Place:
    """A home, three sources, and a search engine that holds one of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in NAMES:
            self.write(name, "Vienna", "Oslo", "Rome")
        collection = {"path": str(folder / "engines"), "collection": "reference"}
        self.document: dict[str, Any] = {
            **CONFIG,
            "home": str(folder / "home"),
            "corpora": {name: {"source": str(folder / f"{name}.jsonl")} for name in NAMES},
            "backbones": {"tiny": {"model": "hashing:16"}},
            "limits": {},
            "arms": {
                **{name: {"kind": "bm25", "corpus": name} for name in NAMES},
                **{
                    f"{name}_near": {"kind": "dense", "corpus": name, "params": {"backbone": "tiny"}}
                    for name in NAMES
                },
                "engine": {"kind": "qdrant", "corpus": "reference", "params": collection},
                "all": {"kind": "rrf", "params": {"arms": [*NAMES]}},
            },
        }

    def write(self, name: str, *texts: str) -> None:
        """Write the source of a corpus."""
        rows = [{"id": text, "text": f"{name} of {text}"} for text in texts]
        (self.folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def without(self, name: str) -> dict[str, Any]:
        """Return the configuration without a corpus, its arms, and those over all."""
        corpora = {one: source for one, source in self.document["corpora"].items() if one != name}
        arms = self.document["arms"].items()
        kept = {arm: spec for arm, spec in arms if spec.get("corpus") not in (None, name)}
        return {**self.document, "corpora": corpora, "arms": kept}

    def prepare(self, document: dict[str, Any]) -> None:
        """Build what `armwise serve` builds before it starts."""
        prepare(parse(document), lambda *_: None)

    def fill(self) -> None:
        """Put a corpus into the search engine, as `armwise ingest --into engine`."""
        config = parse(self.document).resolve_places()
        corpus = ingest_all(config.corpus_sources)
        fill_collection("engine", Resources(corpus, config.indexes_path, config.backbones, config.arms))

    def files(self) -> dict[str, tuple[int, int]]:
        """Return every file of corpora, indexes and engines, with its inode and when it was written."""
        folders = ("home/corpora", "home/indexes", "engines")
        return {
            str(path.relative_to(self.folder)): (path.stat().st_ino, path.stat().st_mtime_ns)
            for folder in folders
            for path in (self.folder / folder).rglob("*")
            if path.is_file() and path.suffix != ".lock"
        }


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.delenv("ARMWISE_HOME", raising=False)
    made = Place(tmp_path)
    made.prepare(made.document)
    made.fill()
    return made


def test_a_corpus_that_is_removed_and_added_again_leaves_every_file_as_it_is(place: Place) -> None:
    before = place.files()
    assert {name.split("/")[2] for name in before if name.startswith("home/corpora")} == set(NAMES)
    assert len({name.split("/")[2] for name in before if name.startswith("home/indexes")}) == 9
    place.prepare(place.without("guides"))
    assert place.files() == before
    place.prepare(place.document)
    assert place.files() == before


def test_a_corpus_that_is_replaced_has_new_indexes_and_the_others_keep_theirs(place: Place) -> None:
    before = place.files()
    place.write("guides", "Vienna", "Paris")
    place.prepare(place.document)
    after = place.files()
    changed = {name for name in before if after.get(name) != before[name]}
    assert changed
    assert all(name.startswith("home/corpora/guides/") for name in changed), changed
    assert len({name.split("/")[2] for name in after.keys() - before.keys()}) == 3


def test_a_corpus_that_is_gone_while_an_arm_names_it_is_refused(place: Place) -> None:
    document = {**place.without("guides"), "arms": place.document["arms"]}
    before = place.files()
    with pytest.raises(ValueError, match=r"arm 'guides': unknown corpus 'guides'; .* library, reference"):
        place.prepare(document)
    assert place.files() == before


def test_a_search_engine_follows_its_own_corpus_alone(place: Place) -> None:
    def held() -> tuple[str, bool] | None:
        config = parse(place.document).resolve_places()
        corpus = ingest_all(config.corpus_sources)
        return read_ingested("engine", Resources(corpus, config.indexes_path, config.backbones, config.arms))

    assert held() is not None
    version, current = held() or ("", False)
    assert current
    place.write("library", "Bonn")
    assert held() == (version, True)
    place.write("reference", "Bonn")
    assert held() == (version, False)


def test_a_search_engine_is_filled_with_one_corpus(place: Place) -> None:
    config = parse(place.document).resolve_places()
    corpus = ingest_all(config.corpus_sources)
    arms = {"engine": config.arms["engine"].model_copy(update={"corpus": None})}
    with pytest.raises(ArmSpecError, match=r"arm 'engine' .*`corpus`.* library, guides, reference"):
        fill_collection("engine", Resources(corpus, config.indexes_path, config.backbones, arms))


def test_sources_are_sampled_where_the_policy_looks_at_similarity(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.document["features"] = {"similarity": {"backbone": "tiny", "passages": 2}}
    config = parse(place.document).resolve_places()
    prepare(config, lambda *_: None)
    spec = config.features.similarity
    assert spec is not None
    have = Resources(ingest_all(config.corpus_sources), config.indexes_path, config.backbones, config.arms)
    found = read_profiles(config.arms, spec, have)
    sizes = {
        name: [one.vectors is not None and len(one.vectors) for one in every] for name, every in found.items()
    }
    assert sizes == {name: [2, 2, 2] if name == "all" else [2] for name in config.arms}
