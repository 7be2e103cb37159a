"""A home with every kind of derived file, ways to damage one, and what a service makes of it."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from armwise.agent import doctor
from armwise.agent.cli.preparation import prepare
from armwise.agent.config import AppConfig, ConfigError, parse
from armwise.agent.lab.offline import read_place
from armwise.agent.lab.routers import open_selector
from armwise.agent.routers import out_of_fold, read_trained
from armwise.arms.base import Query
from armwise.arms.corpus import Corpus
from armwise.arms.indexes import build_once
from armwise.arms.lab.portfolio import MatrixArms, outcomes, write_matrix
from armwise.arms.models.embedding import HashingEmbedder
from armwise.arms.questions import Question
from armwise.arms.relevance import read_model, write_model
from armwise.arms.retrievers import ArmSpec, Resources, build_arm
from tests.agent.fakes import CONFIG, DIM
from tests.agent.trained_routers import ARMS, TEXTS, kept

RIVERS = ("Danube", "Rhine", "Elbe", "Oder", "Volga", "Loire", "Tagus", "Ebro", "Po", "Seine")

CITIES = ("Vienna", "Basel", "Dresden", "Ulm", "Kazan", "Nantes", "Toledo")

QUESTIONS = ("Which river flows through Vienna?", "Where does the Rhine meet the sea?", "Kazan and the Ebro")

PRETRAINED = Path(__file__).parents[2] / "arms/relevance/pretrained"

IDENTITY = {"corpus": "c0ffee", "form": "short", "word budget": "400", "max tokens": "32"}

QUESTION = Question("q1", "Which river?")


def halved(content: bytes) -> bytes:
    """Return the first half."""
    return content[: len(content) // 2]


def flipped(content: bytes) -> bytes:
    """Return the content with one bit of its middle byte changed."""
    at = len(content) // 2
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


def last_flipped(content: bytes) -> bytes:
    """Return the content with one bit of its last byte changed."""
    return content[:-1] + bytes([content[-1] ^ 1])


DAMAGES: dict[str, Callable[[bytes], bytes] | None] = {
    "cut to half": halved,
    "one bit flipped": flipped,
    "last bit flipped": last_flipped,
    "deleted": None,
}


def damage(path: Path, how: str) -> None:
    """Damage a file. It becomes another inode, as this process may have the old one mapped."""
    content, change = path.read_bytes(), DAMAGES[how]
    path.unlink()
    if change is not None:
        path.write_bytes(change(content))


@dataclass(frozen=True)
class Home:
    """A prepared home.

    Attributes:
        root: Holds the home, the source of the corpus, and what was trained and labelled.
    """

    root: Path

    @property
    def config(self) -> AppConfig:
        """The configuration. Raises ConfigError where the router cannot be read."""
        return parse(self.document)

    @property
    def document(self) -> dict[str, Any]:
        """The configuration of a service that reads every kind of derived file, as a document."""
        learned = {"arms": ["bm25", "dense"], "model": str(self.root / "relevance")}
        arms: dict[str, Any] = {
            **CONFIG["arms"],
            "graph": {"kind": "graph", "params": {"backbone": "tiny"}},
            "diverse": {"kind": "vendi", "params": {"backbone": "tiny", "diversity": 0.5}},
            "fused": {"kind": "learned_fusion", "params": learned},
        }
        sources = {
            name: {"kind": "outcomes", "path": str(self.root / name), "metrics": {"right": "em"}}
            for name in ("labels", "scores")
        }
        return {
            **CONFIG,
            "arms": arms,
            "home": str(self.root / "home"),
            "corpus": {"name": "rivers", "source": str(self.root / "rivers.jsonl")},
            "router": {"path": str(self.root / "router")},
            "warm_start": {"sources": sources},
        }

    def make(self) -> None:
        """Build, fill, train and label everything."""
        rows = [
            {
                "id": f"p{n}",
                "title": RIVERS[n % 10],
                "text": f"The {RIVERS[n % 10]} is near {CITIES[n % 7]}, {n}.",
            }
            for n in range(60)
        ]
        (self.root / "rivers.jsonl").write_bytes(b"\n".join(map(orjson.dumps, rows)))
        kept(self.root / "router")
        about = read_trained(self.root / "router").about
        scores = np.random.default_rng(1).uniform(size=(len(TEXTS), len(ARMS)))
        out_of_fold.write_out_of_fold(self.root / "router", about, TEXTS, scores)
        write_model(self.root / "relevance", read_model(PRETRAINED))
        self.label()
        prepare(self.config, lambda *_: None)

    def label(self) -> None:
        """Write a score matrix and labels, and two blocks of a job."""
        specs = {arm: ArmSpec.model_validate(spec) for arm, spec in CONFIG["arms"].items()}
        costs = {"steps": dict.fromkeys(specs, 1.0)}
        table = MatrixArms(specs, {}, costs, "em", IDENTITY)
        values = np.array([[0.0, 1.0, 0.5]], dtype=np.float32)
        write_matrix(self.root / "scores", table, [((QUESTION,), values)])
        lines = [outcomes.Outcome(QUESTION, arm, ("p1",), "Danube", {"em": 1.0}).line() for arm in specs]
        publish_labels(self.root / "labels", b"".join(lines))

    def resources(self) -> Resources:
        """Return what arms are built from."""
        config = self.config.resolve_places()
        corpus = Corpus.open(config.corpus_sources[0].folder)
        return Resources(
            corpus, config.indexes_path, config.backbones, config.arms, open_selector=open_selector
        )

    def files(self) -> list[Path]:
        """Return every derived file, by path, without locks."""
        places = ("home", "router", "relevance", "labels", "scores")
        every = (path for place in places for path in (self.root / place).rglob("*") if path.is_file())
        return sorted(path for path in every if path.suffix != ".lock" and not path.name.startswith("log.db"))

    def prepare(self) -> None:
        """Prepare the service, as `armwise serve` does."""
        prepare(self.config, lambda *_: None)

    def results(self) -> dict[str, Any]:
        """Search with every arm, and read what was trained and labelled."""
        have, found = self.resources(), {}
        for name in have.specs:
            arm = build_arm(name, have)
            for text in QUESTIONS:
                vector = HashingEmbedder(DIM).encode_queries([text])[0]
                passages = arm.search(Query(text, {"tiny": vector}, seed=1), 4).passages
                found[f"{name}: {text}"] = [(one.id, one.text, round(one.score, 5)) for one in passages]
        return found | self.trained()

    def trained(self) -> dict[str, Any]:
        """Read what was trained and labelled."""
        trained = read_trained(self.root / "router")
        held_out = out_of_fold.read_out_of_fold(self.root / "router", trained.about)
        labels, scores = (read_place(self.root / name) for name in ("labels", "scores"))
        return {
            "router": (trained.router.save(), trained.about, dict(held_out.scores)),
            "labels": (labels.answers, {name: values.tolist() for name, values in labels.scores.items()}),
            "scores": {name: values.tolist() for name, values in scores.scores.items()},
        }

    def findings(self) -> Iterator[str]:
        """Yield what `armwise doctor` prints of the files."""
        try:
            config = self.config.resolve_places()
        except ConfigError as error:  # as the verb does
            yield f"problem: {error}"
            return
        for check in ("check_corpus", "check_derived"):
            if hasattr(doctor, check):
                yield from map(str, getattr(doctor, check)(config))


def publish_labels(folder: Path, content: bytes) -> None:
    """Write labels as a labelling job does."""

    def write(unfinished: Path) -> None:
        (unfinished / outcomes.FILE).write_bytes(content)

    build_once.publish(folder, IDENTITY, write)


class Warnings(logging.Handler):
    """Collects the warnings that are logged while it is entered."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        self.lines.append(record.getMessage())

    def __enter__(self) -> "Warnings":
        logging.getLogger().addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger().removeHandler(self)


__all__ = ["DAMAGES", "Home", "Warnings", "damage"]
