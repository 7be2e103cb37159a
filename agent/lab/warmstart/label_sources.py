"""Label sources of a warm start: the lots of each source, whether they are new, and fetching them.

    sources --lots--> lots with digests of their inputs --fetch--> paths that `read_labelled` reads
                      new, unless a run that ended with a verdict took it before

Arms are run by the jobs of `armwise lab label` and `armwise lab score`. Their folders are named by a digest
of the inputs, so that interrupted work continues where it stopped.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from rich.console import Console

from armwise.agent.config import AppConfig, WarmStartSpec, warm_start
from armwise.agent.lab.offline import (
    CONTAINS,
    FEWEST,
    JUDGE,
    MEASURES,
    Labelling,
    Scoring,
    Synthesis,
    label_questions,
    make_questions,
    on_par,
    open_corpus,
    score_arms,
)
from armwise.agent.lab.warmstart.labels import WarmStartError
from armwise.agent.routers import TooLittleError
from armwise.arms.base import Progress
from armwise.arms.lab.jobs import digest_of_document
from armwise.arms.lab.portfolio import read_matrix, write_matrix
from armwise.arms.llm import catalog as llm_catalog
from armwise.arms.llm import quoting
from armwise.arms.models import digest_backbone, digest_file
from armwise.feedback.log import Store
from armwise.feedback.registry import Run
from armwise.feedback.training_log import traffic

DIGEST_CHARS = 16
"""Length of a digest in the name of a folder."""

SAMPLE = ".jsonl"
"""Suffix of the file with the questions of a sample, next to the folder of their labels."""

GROWTH = 1.1
"""Factor of growth of the traffic after which its feedback is taken again."""

TIMED = 4
"""Searches by which each arm is timed, if seconds have a price."""

SAMPLED_S = 7 * 86400.0
"""Greatest age of the questions of the traffic that a run samples."""

CONFIRMED = 200
"""Most questions with a confirmed answer in a sample."""

Sampled = warm_start.JudgeSource | warm_start.HindsightSource
"""Sources that take each question of the traffic once."""


@dataclass(frozen=True, slots=True)
class Lot:
    """Labels from a source for a run.

    Attributes:
        source: Name of the source in the configuration.
        kind: Kind of the source.
        digest: Digest of all inputs of the labels.
        path: File or folder of the labels, which may still have to be fetched.
        metrics: Score that becomes the value of each declared metric; empty if labels are not inserted.
        new: Whether the labels are new to runs that ended with a verdict.
        questions: Texts of the questions of a sample.
        answers: A right answer to each question, empty if unknown.
    """

    source: str
    kind: str
    digest: str
    path: Path
    metrics: Mapping[str, str]
    new: bool
    questions: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return the lot as JSON for the inputs of a run."""
        return {
            "source": self.source,
            "kind": self.kind,
            "digest": self.digest,
            "path": str(self.path),
            "new": self.new,
        }


class LabelSources:
    """The label sources of a configuration.

    Args:
        config: The configuration with defaults resolved and the live arms.
        spec: The configured warm start, with the sources.
        store: The log.
        before: Runs that ended with a verdict, in order.
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

    def lots(self, on_progress: Progress) -> list[Lot]:
        """Return the current lots of each source; arms are not run, and files are not written.

        Args:
            on_progress: Called with the progress of ingesting the corpus, if that is needed.

        Raises:
            WarmStartError: A file or folder is missing.
            CorpusError: The corpus cannot be read.
            ModelNotFoundError: The model of a backbone cannot be found.
            LogUnavailableError: The log cannot be read.
        """
        setup = self._setup(on_progress)
        lots: list[Lot] = []
        for name, source in self._spec.sources.items():
            match source:
                case warm_start.OutcomesSource():
                    lots.append(self._outcomes(name, source))
                case warm_start.QuestionsSource():
                    lots.append(self._questions(name, source, setup))
                case warm_start.SyntheticSource():
                    lots.append(self._synthetic(name, source, setup))
                case warm_start.JudgeSource():
                    recent = traffic.list_asked_since(self._store, self._since)
                    lots += self._collect_samples(name, source, setup, dict.fromkeys(recent, ""))
                case warm_start.HindsightSource() if self._proposes:
                    lots += self._collect_samples(name, source, setup, self._read_confirmed(source))
                case warm_start.FeedbackSource():
                    lots += self._feedback(name, source)
        return lots

    def fetch(self, lot: Lot, console: Console, on_progress: Progress) -> None:
        """Produce the labels of a lot at its path, if they are missing.

        Args:
            lot: A lot from `lots`.
            console: Prints the results.
            on_progress: Called with the progress.

        Raises:
            ValueError: Questions or settings are invalid; subclasses say which.
            JobError: Arms cannot be run; finished work is kept.
        """
        if lot.path.exists():
            return
        source = self._spec.sources[lot.source]
        lot.path.parent.mkdir(parents=True, exist_ok=True)
        match source:
            case warm_start.QuestionsSource(measure=None):
                self._label(lot, source, console, on_progress)
            case warm_start.QuestionsSource():
                self._score(lot, source.path, str(source.measure), source.limit, console, on_progress)
            case warm_start.SyntheticSource():
                self._synthesize(lot, source, console, on_progress)
            case warm_start.JudgeSource() | warm_start.HindsightSource():
                sample = find_sample(lot.path)
                _write_sample(sample, lot.questions, lot.answers)
                if isinstance(source, warm_start.JudgeSource):
                    self._score(lot, sample, JUDGE, None, console, on_progress)
                else:
                    self._look_for_answers(lot, sample, source.measure, console, on_progress)
            case warm_start.FeedbackSource():
                settings = Scoring(
                    config=self._config, from_log=True, measure=source.measure, output=lot.path
                )
                score_arms(settings, console, on_progress)
            case warm_start.OutcomesSource():  # removed since `lots`
                raise WarmStartError(f"source {lot.source!r}: there is no {lot.path} any more")

    def _setup(self, on_progress: Progress) -> str:
        """Return a digest of the inputs of answers besides the question: arms, encoders, corpus, model."""
        without_arms = warm_start.OutcomesSource | warm_start.FeedbackSource
        if all(isinstance(source, without_arms) for source in self._spec.sources.values()):
            return ""
        config = self._config
        models = {name: llm_catalog.identify(spec) for name, spec in config.llms.items()}
        own_prompts = {name: template.model_dump() for name, template in config.prompts.items()}
        return digest_of_document(
            {
                "arms": config.arm_documents,
                "encoders": {name: digest_backbone(backbone) for name, backbone in config.backbones.items()},
                "corpus": open_corpus(config, None, on_progress).digest,
                "llm": llm_catalog.identify(config.llm),
                "answering": config.answering.identity(),
                "scores": sorted(self._spec.scores),
                **({"llms": models} if models else {}),
                **({"prompts": own_prompts} if own_prompts else {}),
            }
        )

    def _outcomes(self, name: str, source: warm_start.OutcomesSource) -> Lot:
        digest = digest_of_document([_file(name, source.path), source.metrics])
        return self._lot(name, source.kind, digest, source.path, source.metrics)

    def _questions(self, name: str, source: warm_start.QuestionsSource, setup: str) -> Lot:
        fields = source.model_dump(mode="json", exclude={"path"})
        digest = digest_of_document([_file(name, source.path), fields, setup])
        path = self._folder / name / digest[:DIGEST_CHARS]
        return self._lot(name, source.kind, digest, path, source.metrics)

    def _synthetic(self, name: str, source: warm_start.SyntheticSource, setup: str) -> Lot:
        digest = digest_of_document([source.model_dump(mode="json"), setup])
        path = self._folder / name / digest[:DIGEST_CHARS]
        return self._lot(name, source.kind, digest, path, source.metrics)

    @property
    def _proposes(self) -> bool:
        """Whether the labels are used for a portfolio or a router."""
        return self._spec.portfolio is not None or self._spec.router is not None

    @property
    def _since(self) -> float:
        return self._clock() - SAMPLED_S

    def _read_confirmed(self, source: warm_start.HindsightSource) -> dict[str, str]:
        """Return the answers that feedback confirmed, by question."""
        rule = self._config.reward
        metric = rule.metric(source.metric)
        confirmed = traffic.find_confirmed_since(
            self._store, rule.join, source.metric, lambda value: metric.scale(value) > 0.5, self._since
        )
        return {question: quoting.without_source(answer) for question, answer in confirmed.items()}

    def _collect_samples(
        self, name: str, source: Sampled, setup: str, recent: Mapping[str, str]
    ) -> list[Lot]:
        """Return the samples that runs took before, and a new one if there are new questions.

        Args:
            name: Name of the source.
            source: The source.
            setup: Digest of the inputs of answers besides the question.
            recent: Questions of the traffic, each with its answer, empty if unknown.
        """
        metrics = source.metrics if isinstance(source, warm_start.JudgeSource) else {}
        before = [
            Lot(name, source.kind, lot["digest"], path, metrics, new=False)
            for lot in self._taken
            # only the name is used, so that the log cannot lead to another folder
            if lot["source"] == name and (path := self._folder / name / Path(lot["path"]).name).exists()
        ]
        taken = [find_sample(lot.path) for lot in before]
        for file in sorted((self._folder / name).glob("*" + SAMPLE)):
            lot = self._sample(name, source, metrics, setup, _read_questions(file))
            if find_sample(lot.path) == file and file not in taken:  # of an interrupted run
                return [*before, lot]
        sampled_texts = {text for file in taken for text in _read_questions(file)}
        callers = traffic.list_asked_since(self._store, self._since)
        fresh = {text: callers.get(text, ("", "")) for text in recent if text not in sampled_texts}
        if not fresh:
            return before
        most = source.questions if isinstance(source, warm_start.JudgeSource) else CONFIRMED
        drawn = traffic.draw_in_turns(fresh, most, self._store.draw_secret.secret)
        chosen = {text: recent[text] for text in drawn}
        return [*before, self._sample(name, source, metrics, setup, chosen)]

    def _sample(
        self, name: str, source: Sampled, metrics: Mapping[str, str], setup: str, questions: Mapping[str, str]
    ) -> Lot:
        texts, answers = list(questions), tuple(answer for answer in questions.values() if answer)
        digest = digest_of_document([texts, metrics, setup, *([answers] if answers else [])])
        path = self._folder / name / digest[:DIGEST_CHARS]
        return Lot(name, source.kind, digest, path, metrics, True, tuple(texts), answers)

    def _feedback(self, name: str, source: warm_start.FeedbackSource) -> list[Lot]:
        """Return the feedback on the traffic, if there is any and a portfolio or a router uses it."""
        if not self._proposes:
            return []
        n = traffic.decisions_of_traffic(self._store, self._config.reward.join)
        if n == 0:
            return []
        rule = self._config.reward.model_dump(mode="json")
        digest = digest_of_document([source.measure, rule, _level(n), self._config.arm_documents])
        return [self._lot(name, source.kind, digest, self._folder / name / digest[:DIGEST_CHARS], {})]

    def _lot(self, name: str, kind: str, digest: str, path: Path, metrics: Mapping[str, str]) -> Lot:
        taken = any(lot["source"] == name and lot["digest"] == digest for lot in self._taken)
        return Lot(name, kind, digest, path, metrics, not taken)

    def _label(
        self, lot: Lot, source: warm_start.QuestionsSource, console: Console, on_progress: Progress
    ) -> None:
        settings = Labelling(
            config=self._config,
            queries=source.path,
            output=lot.path,
            measures=tuple(name for name in MEASURES if name in self._spec.scores),
            limit=source.limit,
            workers=1,
        )
        label_questions(settings, console, on_progress)

    def _synthesize(
        self, lot: Lot, source: warm_start.SyntheticSource, console: Console, on_progress: Progress
    ) -> None:
        """Make questions, score the arms on them, and keep a sample that favours no family of arms."""
        made, scores = find_sample(lot.path), lot.path.with_name(lot.path.name + ".all")
        if not made.exists():
            settings = Synthesis(
                config=self._config, output=made, questions=source.questions, with_model=False
            )
            make_questions(settings, console, on_progress)
        if not scores.exists():
            whole = replace(lot, path=scores)
            self._score(whole, made, source.measure, None, console, on_progress)
        matrix = read_matrix(scores)
        rows = on_par(matrix, 0) if source.balanced else np.arange(len(matrix.questions))
        kept = [matrix.questions[row] for row in rows.tolist()]
        if len(kept) < (needed := min(FEWEST, len(matrix.questions))):
            raise TooLittleError(
                f"keyword and vector search find equally much on {len(kept)} of {len(matrix.questions)} "
                f"questions made from the documents; {needed} are needed. To use all, set `balanced: false`"
            )
        chances = None if matrix.chances is None else matrix.chances[:, rows].T
        write_matrix(
            lot.path, matrix.table, [(kept, np.ascontiguousarray(matrix.scores[:, rows].T))], chances
        )
        if len(kept) < len(matrix.questions):
            console.print(
                f"{len(kept):,} of {len(matrix.questions):,} questions are kept, on which lexical and dense "
                "arms find as much as each other",
                highlight=False,
                soft_wrap=True,
            )

    def _look_for_answers(
        self, lot: Lot, sample: Path, measure: str, console: Console, on_progress: Progress
    ) -> None:
        """Look for confirmed answers in the passages of each arm.

        The passages of the drawn arm led to the answer. Where no arm's passages contain it, it was put in
        other words, so the scores are unknown instead of 0.
        """
        scores = lot.path.with_name(lot.path.name + ".all")
        if not scores.exists():
            self._score(replace(lot, path=scores), sample, CONTAINS, None, console, on_progress)
        matrix = read_matrix(scores)
        values = np.where(np.fmax.reduce(matrix.scores) > 0.0, matrix.scores, np.nan).T
        table = replace(matrix.table, measure=measure)
        write_matrix(lot.path, table, [(matrix.questions, np.ascontiguousarray(values))])

    def _score(
        self,
        lot: Lot,
        queries: Path,
        measure: str,
        limit: int | None,
        console: Console,
        on_progress: Progress,
    ) -> None:
        priced = self._config.reward.cost.seconds > 0.0
        settings = Scoring(
            config=self._config,
            measure=measure,
            queries=queries,
            output=lot.path,
            limit=limit,
            workers=1,
            timed=TIMED if priced else 0,
        )
        score_arms(settings, console, on_progress)


def _level(n: int) -> int:
    """Return how many times a count of decisions has grown by a tenth since the first.

    >>> _level(100), _level(104), _level(110)
    (48, 48, 49)
    """
    return math.floor(math.log(n, GROWTH))


def _file(name: str, path: Path) -> str:
    """Return the digest of a file or folder. Raises WarmStartError if it is missing."""
    if not path.exists():
        raise WarmStartError(f"source {name!r}: there is no {path}")
    return digest_file(path)


def find_sample(path: Path) -> Path:
    """Return the file with the questions of the labels at a path."""
    return path.with_name(path.name + SAMPLE)


def _read_questions(sample: Path) -> dict[str, str]:
    """Return the questions of a sample, each with its answer, empty if unknown."""
    rows = map(orjson.loads, sample.read_bytes().splitlines())
    return {row["question"]: row.get("answers", [""])[0] for row in rows}


def _write_sample(sample: Path, texts: Sequence[str], answers: Sequence[str]) -> None:
    """Write questions with ids derived from their texts, so that samples can be combined."""
    lines = []
    for text, answer in zip_longest(texts, answers):
        row = {"id": digest_of_document(text), "question": text} | ({"answers": [answer]} if answer else {})
        lines.append(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))
    unfinished = sample.with_suffix(".part")
    unfinished.write_bytes(b"".join(lines))
    unfinished.replace(sample)
