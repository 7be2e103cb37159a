"""The columns and files that can hold texts, and what an erasure does to each.

    python -m tests.documents.texts > docs/reference/texts.md

A test compares `COLUMNS` with the tables: a new column of texts, JSON or bytes fails it until it has a row.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Fate(StrEnum):
    """What an erasure (of a user, an episode, a decision, or by age) does to a text."""

    OVERWRITTEN = "overwritten"
    """It becomes empty."""
    PSEUDONYM = "pseudonym"
    """A digest of 64 bits replaces it (`armwise.feedback.texts.pseudonym`)."""
    KEPT = "kept"
    """It stays, for the reason that the row names."""
    NONE = "no text"
    """It never holds texts of callers or passages."""
    COPY = "copy"
    """It is a copy that was made before, out of reach of the erasure."""


@dataclass(frozen=True, slots=True)
class Place:
    """The content of a column or a file.

    Attributes:
        holds: Description of the content.
        fate: What an erasure does to it.
        why: Why it is kept, or how long a copy lives; empty for other fates.
    """

    holds: str
    fate: Fate
    why: str = ""


_WRITTEN = Fate.OVERWRITTEN

_ID = Place(
    "an id that a caller may choose, of 128 characters out of `A-Za-z0-9._:-`",
    Fate.KEPT,
    "draws, joins and retries depend on it: let it say nothing",
)

_ARM = Place("a name of the configuration", Fate.NONE)

_RATER = Place("a key or a keyed digest of an address, after its project", Fate.KEPT, "joins depend on it")

_MARKS = Place("ids of a provider for an answer and its calls, digests of reasoning", _WRITTEN)

_ASKER = Place(
    "a key or a keyed digest of an address, after its project",
    Fate.KEPT,
    "a conversation is that of one caller",
)

_NUMBERS = Place("numbers, by names of arms", Fate.NONE)

_CONFIGURED = Place("part of the configuration", Fate.NONE)

_WORD = Place("one of a few words, or a number", Fate.NONE)

_DIGEST = Place("a digest of settings or bytes", Fate.NONE)

_PROCESS = Place("name of a process", Fate.NONE)

_OPERATOR = Place("what an operator wrote", Fate.KEPT, "it is of keys of scope `operate` or `admin`")

_KEY = Place("public id of a key", Fate.NONE)

_REPORT = Place(
    "numbers of an evaluation, and the names of features that its request selects by",
    Fate.KEPT,
    "it is of keys of scope `operate` or `admin`",
)

_ERROR = Place(
    "message of an error of a job; it names ids and settings", Fate.KEPT, "jobs log no question or answer"
)

COLUMNS: Mapping[str, Place] = {
    "decisions.question": Place("the question", _WRITTEN),
    "decisions.features": Place(
        "words of the question, names and texts of the context: as names of features; its values and the "
        "embedding are numbers, and stay",
        Fate.PSEUDONYM,
        "policies learn by it, so nothing that was learned changes; a guess can be compared with it",
    ),
    "decisions.request_digest": Place("SHA-256 of the request", _WRITTEN),
    "decisions.user_digest": Place("keyed hash of the end user", _WRITTEN),
    "decisions.id": _ID,
    "decisions.episode_id": _ID,
    "decisions.draw_id": _ID,
    "decisions.asked_by": _ASKER,
    **dict.fromkeys(("decisions.mode", "decisions.policy"), _WORD),
    "decisions.drawn": _ARM,
    "decisions.arms": _ARM,
    **dict.fromkeys(
        tuple(f"decisions.{name}" for name in ("probabilities", "shadow", "costs", "candidate_scores")),
        _NUMBERS,
    ),
    "executions.marks": _MARKS,
    "executions.finish_reason": Place("why the language model stopped, a word of its provider", Fate.NONE),
    "answer_marks.mark": Place("a digest of each of `executions.marks`", Fate.NONE),
    "answer_marks.asked_by": Place("a copy of `decisions.asked_by`", Fate.NONE),
    "executions.passages": Place("ids of passages", _WRITTEN),
    "executions.answer": Place("the answer", _WRITTEN),
    "executions.error": Place("why it failed, with what other services answered", _WRITTEN),
    "executions.stages": Place("what an arm did, with queries that were made of the question", _WRITTEN),
    "executions.decision_id": _ID,
    "executions.served": _ARM,
    "executions.status": _WORD,
    "executions.index_version": _CONFIGURED,
    "executions.tokens_by_model": _NUMBERS,
    "observations.passages": Place("ids of passages of the second answer", _WRITTEN),
    "observations.answer": Place("the second answer", _WRITTEN),
    "observations.error": Place("why there is no value, with what the judge answered", _WRITTEN),
    "observations.decision_id": _ID,
    "observations.source": _WORD,
    "observations.arm": _ARM,
    "observations.judge": _CONFIGURED,
    "feedback.id": Place(
        "any text of 256 characters",
        Fate.PSEUDONYM,
        "a retry and a retraction find the value by it; a guess can be compared with it",
    ),
    "feedback.content": Place(
        "comment and correction; its labels, arms and ids of decisions are known words, and stay",
        _WRITTEN,
    ),
    "feedback.tags": Place("names and texts", _WRITTEN),
    "feedback.decision_id": _ID,
    "feedback.episode_id": _ID,
    "feedback.metric": _CONFIGURED,
    **dict.fromkeys(("feedback.kind", "feedback.source"), _WORD),
    "feedback.key": _KEY,
    "feedback.rater": _RATER,
    "alarms.rater": _RATER,
    "erasures.scope": _WORD,
    "erasures.by": _KEY,
    "erasures.subject": Place(
        "keyed hash of what was erased",
        _WRITTEN,
        "two minutes later, when no turn from before is under way",
    ),
    "examples.join": _DIGEST,
    "examples.decision_id": _ID,
    "examples.metrics": _NUMBERS,
    "examples.turns": _NUMBERS,
    "raters.join": _DIGEST,
    "raters.decision_id": _ID,
    "raters.rater": _RATER,
    "progress.join": _DIGEST,
    "rollups.arm": _ARM,
    "rollup_positions.rule": _DIGEST,
    "draw_secret.secret": Place("random bits", Fate.NONE),
    "epochs.holder": _PROCESS,
    **dict.fromkeys(tuple(f"versions.{name}" for name in ("recipe", "join", "digest", "router")), _DIGEST),
    "versions.arithmetic": _PROCESS,
    **dict.fromkeys(tuple(f"versions.{name}" for name in ("policy", "start", "arms")), _CONFIGURED),
    "checkpoints.state": Place(
        "weights, by pseudonyms of names of features",
        Fate.KEPT,
        "it is what was learned: a guess can be compared with a pseudonym",
    ),
    "prices.budget": _DIGEST,
    "prices.arms": _ARM,
    "promotions.action": _WORD,
    "promotions.reason": _OPERATOR,
    "promotions.configured": _DIGEST,
    "routers.digest": _DIGEST,
    "routers.about": _CONFIGURED,
    "routers.model": Place(
        "weights of a model that was fitted to questions of labels", Fate.KEPT, "it has no text"
    ),
    "routers.unseen": Place(
        "scores by a digest of the questions of labels", Fate.KEPT, "a guess can be compared with a digest"
    ),
    "router_scores.router": _DIGEST,
    "router_scores.decision_id": _ID,
    "router_scores.scores": _NUMBERS,
    "metrics.name": _CONFIGURED,
    "metrics.type": _WORD,
    "metrics.labels": _CONFIGURED,
    "switches.arm": _ARM,
    "arm_sets.arms": _ARM,
    "arm_sets.configured": _DIGEST,
    "alarms.recipe": _DIGEST,
    "alarms.subject": _ARM,
    "alarms.detector": _WORD,
    "evaluations.configured": _DIGEST,
    "evaluations.request": _OPERATOR,
    "evaluations.project": _OPERATOR,
    "evaluations.status": _WORD,
    "evaluations.worker": _PROCESS,
    "evaluations.result": _REPORT,
    "evaluations.html": _REPORT,
    "evaluations.error": _ERROR,
    "runs.configured": _DIGEST,
    **dict.fromkeys(("runs.trigger", "runs.status"), _WORD),
    "runs.worker": _PROCESS,
    "runs.inputs": _CONFIGURED,
    "runs.steps": Place("numbers, arms and digests of a warm start", Fate.NONE),
    "runs.error": _ERROR,
    "keys.public_id": _KEY,
    "keys.secret_hash": Place("SHA-256 of random bits", Fate.NONE),
    **dict.fromkeys(
        tuple(f"keys.{name}" for name in ("name", "scopes", "project", "tags", "groups")), _OPERATOR
    ),
    **dict.fromkeys(("keys.source", "keys.budget_duration"), _WORD),
    "disabled_keys.public_id": _KEY,
    "usage.key": _KEY,
    "usage.period": _WORD,
}
"""What each column of texts, JSON or bytes holds, by `table.column`."""

FILES: Mapping[str, Place] = {
    "SQLite: log.db, log.db-wal": Place(
        "the log",
        _WRITTEN,
        "freed bytes are overwritten (`secure_delete`), and the write-ahead log is emptied; while "
        "a reader is at work, by the next erasure",
    ),
    "PostgreSQL: pages of tables": Place(
        "overwritten rows",
        _WRITTEN,
        "VACUUM removes the rows; their bytes stay in free space of a page until it is used again, or until "
        "`VACUUM FULL`",
    ),
    "PostgreSQL: write-ahead log": Place(
        "overwritten rows",
        Fate.COPY,
        "until the server recycles it, and where it is archived, as long as that is kept",
    ),
    "retrieval cache": Place(
        "passages, by a hash of the question", Fate.NONE, "entries that were used longest ago go first"
    ),
    "exports (`armwise export`, `GET /v1/export`)": Place(
        "the training log, feedback", Fate.COPY, "yours to erase"
    ),
    "backups (`armwise backup`, `pg_dump`, base backups)": Place(
        "the log", Fate.COPY, "yours to erase, by age"
    ),
    "files of warm starts and labelling below `home`": Place(
        "questions and answers that were taken from the log", Fate.COPY, "yours to erase, by age"
    ),
    "rows of labels that a warm start made of traffic": Place(
        "questions", Fate.COPY, "reached by age (`privacy.keep_texts_days`) and by their ids, not by user"
    ),
    "lines of logs, files of Ray's session, `ray.log` of the home": Place(
        "ids and errors",
        Fate.NONE,
        "`telemetry.log_content` lets questions in: then they stay as long as you keep lines",
    ),
    "spans (`telemetry`)": Place(
        "questions and answers where `content` is on", Fate.COPY, "sent to your collector: yours to erase"
    ),
}
"""What each kind of file holds."""


def page() -> str:
    """Return the page of the documentation."""
    lines = [
        "# Texts, column by column",
        "",
        "Written by `python -m tests.documents.texts`. What becomes of a text when a user, an",
        "episode or a decision is erased, or by its age; [the guide](../guide/data.md) says how to erase.",
        "",
        "| fate | means |",
        "| --- | --- |",
        "| overwritten | it is empty |",
        "| pseudonym | a digest of 64 bits stands in its place; who guesses the text can compare |",
        "| kept | it stays, for the reason in its row |",
        "| no text | no text of a caller or a passage comes into it |",
        "| copy | it was made before, and is out of reach |",
        "",
        "## Columns",
        "",
        *_table("column", COLUMNS),
        "",
        "## Files and copies",
        "",
        *_table("file", FILES),
        "",
    ]
    return "\n".join(lines)


def _table(what: str, places: Mapping[str, Place]) -> list[str]:
    """Return a row for each content, with all columns or files that hold it."""
    names: dict[Place, list[str]] = {}
    for name, place in places.items():
        names.setdefault(place, []).append(name if " " in name else f"`{name}`")
    rows = (
        f"| {', '.join(held)} | {place.holds} | {place.fate} | {place.why} |" for place, held in names.items()
    )
    return [f"| {what} | holds | fate | reason |", "| --- | --- | --- | --- |", *rows]


if __name__ == "__main__":
    sys.stdout.write(page())
