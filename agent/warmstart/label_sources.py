"""Labels for a warm start: what each source would give, whether that is new, and how it is had.

    sources --lots--> what each follows from, as a digest --fetch--> a place that `read_labelled` reads
                      new, unless a run that came to a verdict took it before

Arms are asked by the jobs of `armwise label` and `armwise score`. Their folders are named by what they
follow from: work that was cut short goes on where it stopped, and is not done twice.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console

from agent.config import AppConfig, WarmStartSpec, warm_start
from agent.offline import Labelling, Scoring, label, score
from agent.serving import arms
from agent.warmstart.label_decisions import WarmStartError
from arms.base import Progress
from arms.jobs import digest_of_document
from arms.models import digest_backbone, digest_of
from feedback.log import Store
from feedback.registry import Run
from feedback.training_log import traffic

NAMED = 16
"""Digits of a digest in the name of a folder."""

SAMPLE = ".jsonl"
"""What the file of the questions of a sample is called, behind the name of the folder of their labels."""

GROWTH = 1.1
"""How much more traffic there is until what users said of it is taken anew."""

TIMED = 4
"""Searches to time each arm by, where seconds have a price."""


@dataclass(frozen=True, slots=True)
class Lot:
    """What a source gives to a run.

    Attributes:
        source: Its name in the configuration.
        kind: Of the source.
        digest: Of all that the labels follow from.
        path: Where they are, or will be.
        metrics: Declared metric to the score that it gets; none where no labels are entered.
        new: Whether no run took them before that came to a verdict.
        questions: Of a sample: their texts.
    """

    source: str
    kind: str
    digest: str
    path: Path
    metrics: Mapping[str, str]
    new: bool
    questions: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return it as a run keeps it."""
        return {
            "source": self.source,
            "kind": self.kind,
            "digest": self.digest,
            "path": str(self.path),
            "new": self.new,
        }


class Gathering:
    """What the sources of a configuration give.

    Args:
        config: Settled, with the arms that are live.
        spec: Names the sources.
        store: The log.
        before: Runs that came to a verdict, in order.
        clock: Seconds since the epoch.
    """

    def __init__(
        self,
        config: AppConfig,
        spec: WarmStartSpec,
        store: Store,
        before: Sequence[Run],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._config, self._spec, self._store, self._clock = config, spec, store, clock
        self._folder = config.home_path / "warm_starts"
        self._taken = [lot for run in before for lot in run.inputs["lots"] if lot["new"]]

    def lots(self, tell: Progress) -> list[Lot]:
        """Return what each source would give now; nothing is asked of an arm, or written.

        Args:
            tell: Told of the progress, where the corpus has yet to be ingested.

        Raises:
            WarmStartError: A file or folder is not there.
            CorpusError: The corpus cannot be read.
            ModelNotFoundError: The model of a backbone is not where its name says.
            LogUnavailableError: The log cannot be read.
        """
        asking = self._asking(tell)
        found: list[Lot] = []
        for name, source in self._spec.sources.items():
            match source:
                case warm_start.OutcomesSource():
                    found.append(self._outcomes(name, source))
                case warm_start.QuestionsSource():
                    found.append(self._questions(name, source, asking))
                case warm_start.JudgeSource():
                    found += self._judged(name, source, asking)
                case warm_start.FeedbackSource():
                    found += self._feedback(name, source)
        return found

    def fetch(self, lot: Lot, console: Console, tell: Progress) -> None:
        """See to it that the labels of a lot are at its path.

        Args:
            lot: One of those that were told of.
            console: Where the figures go.
            tell: Told of the progress.

        Raises:
            ValueError: Questions or settings do not fit; a subclass of it says which.
            JobError: Arms cannot be asked; what is finished is kept.
        """
        if lot.path.exists():
            return
        source = self._spec.sources[lot.source]
        lot.path.parent.mkdir(parents=True, exist_ok=True)
        match source:
            case warm_start.QuestionsSource(measure=None):
                self._label(lot, source, console, tell)
            case warm_start.QuestionsSource():
                self._score(lot, source.path, str(source.measure), source.limit, console, tell)
            case warm_start.JudgeSource():
                sample = _sample_of(lot.path)
                _write_sample(sample, lot.questions)
                self._score(lot, sample, score.JUDGE, None, console, tell)
            case warm_start.FeedbackSource():
                settings = Scoring(
                    config=self._config, from_log=True, measure=source.measure, output=lot.path
                )
                score.run(settings, console, tell)
            case warm_start.OutcomesSource():  # it went between two looks
                raise WarmStartError(f"source {lot.source!r}: there is no {lot.path} any more")

    def _asking(self, tell: Progress) -> str:
        """Return the digest of all that the answers of the live arms follow from beside the questions."""
        if not any(
            isinstance(one, warm_start.QuestionsSource | warm_start.JudgeSource)
            for one in self._spec.sources.values()
        ):
            return ""
        config = self._config
        return digest_of_document(
            {
                "arms": arms.documents(config.arms),
                "encoders": {name: digest_backbone(one) for name, one in config.backbones.items()},
                "corpus": score.corpus_of(config, None, tell).digest,
                "llm": config.llm.model_dump(mode="json"),
                "answering": config.answering.model_dump(mode="json"),
                "scores": sorted(self._spec.scores),
            }
        )

    def _outcomes(self, name: str, source: warm_start.OutcomesSource) -> Lot:
        digest = digest_of_document([_file(name, source.path), source.metrics])
        return self._lot(name, source.kind, digest, source.path, source.metrics)

    def _questions(self, name: str, source: warm_start.QuestionsSource, asking: str) -> Lot:
        told = source.model_dump(mode="json", exclude={"path"})
        digest = digest_of_document([_file(name, source.path), told, asking])
        path = self._folder / name / digest[:NAMED]
        return self._lot(name, source.kind, digest, path, source.metrics)

    def _judged(self, name: str, source: warm_start.JudgeSource, asking: str) -> list[Lot]:
        """Return the samples that runs took before, and one more where there is anything to sample."""
        before = [
            Lot(name, source.kind, lot["digest"], Path(lot["path"]), source.metrics, new=False)
            for lot in self._taken
            if lot["source"] == name and Path(lot["path"]).exists()
        ]
        taken = [_sample_of(lot.path) for lot in before]
        for file in sorted((self._folder / name).glob("*" + SAMPLE)):
            lot = self._sampled(name, source, asking, _texts(file))
            if _sample_of(lot.path) == file and file not in taken:  # of a run that was cut short
                return [*before, lot]
        known = {text for file in taken for text in _texts(file)}
        recent = traffic.asked_since(self._store, self._clock() - warm_start.seconds_of(source.within))
        fresh = sorted((text for text in recent if text not in known), key=digest_of_document)
        if not fresh:
            return before
        return [*before, self._sampled(name, source, asking, fresh[: source.questions])]

    def _sampled(self, name: str, source: warm_start.JudgeSource, asking: str, texts: Sequence[str]) -> Lot:
        digest = digest_of_document([texts, source.metrics, asking])
        path = self._folder / name / digest[:NAMED]
        return Lot(name, source.kind, digest, path, source.metrics, True, tuple(texts))

    def _feedback(self, name: str, source: warm_start.FeedbackSource) -> list[Lot]:
        """Return what feedback says, where there is any and something is to be made of it."""
        if self._spec.portfolio is None and self._spec.router is None:
            return []
        n = traffic.decisions_of_traffic(self._store, self._config.reward.join)
        if n == 0:
            return []
        rule = self._config.reward.model_dump(mode="json")
        digest = digest_of_document([source.measure, rule, _level(n), arms.documents(self._config.arms)])
        return [self._lot(name, source.kind, digest, self._folder / name / digest[:NAMED], {})]

    def _lot(self, name: str, kind: str, digest: str, path: Path, metrics: Mapping[str, str]) -> Lot:
        taken = any(lot["source"] == name and lot["digest"] == digest for lot in self._taken)
        return Lot(name, kind, digest, path, metrics, not taken)

    def _label(self, lot: Lot, source: warm_start.QuestionsSource, console: Console, tell: Progress) -> None:
        settings = Labelling(
            config=self._config,
            queries=source.path,
            output=lot.path,
            form=source.form,
            measures=tuple(name for name in label.MEASURES if name in self._spec.scores),
            limit=source.limit,
            workers=self._spec.workers,
        )
        label.run(settings, console, tell)

    def _score(
        self, lot: Lot, queries: Path, measure: str, limit: int | None, console: Console, tell: Progress
    ) -> None:
        priced = self._config.reward.cost.seconds > 0.0
        settings = Scoring(
            config=self._config,
            measure=measure,
            queries=queries,
            output=lot.path,
            limit=limit,
            workers=self._spec.workers,
            timed=TIMED if priced else 0,
        )
        score.run(settings, console, tell)


def _level(n: int) -> int:
    """Return how often a number of decisions has grown by a tenth since the first.

    >>> _level(100), _level(104), _level(110)
    (48, 48, 49)
    """
    return math.floor(math.log(n, GROWTH))


def _file(name: str, path: Path) -> str:
    """Return the digest of a file or folder. Raises WarmStartError where there is none."""
    if not path.exists():
        raise WarmStartError(f"source {name!r}: there is no {path}")
    return digest_of(path)


def _sample_of(path: Path) -> Path:
    """Return the file of the questions whose labels are at a path."""
    return path.with_name(path.name + SAMPLE)


def _texts(sample: Path) -> list[str]:
    return [orjson.loads(line)["question"] for line in sample.read_bytes().splitlines()]


def _write_sample(sample: Path, texts: Sequence[str]) -> None:
    """Write questions whose ids follow from their texts: several samples fit together."""
    lines = [
        orjson.dumps({"id": digest_of_document(text), "question": text}, option=orjson.OPT_APPEND_NEWLINE)
        for text in texts
    ]
    unfinished = sample.with_suffix(".part")
    unfinished.write_bytes(b"".join(lines))
    unfinished.replace(sample)
