"""The columns and files that can hold texts, and what an erasure does to each.

A test compares `COLUMNS` with the tables: a new column of texts, JSON or bytes fails it until it has a row.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Fate(StrEnum):
    """What an erasure (of a user, an episode, a decision, or by age) does to a text."""

    OVERWRITTEN = "overwritten"
    """It is removed."""
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
        why: Why it is kept, or what an erasure does to a file; empty for other fates.
    """

    holds: str
    fate: Fate
    why: str = ""


_WRITTEN = Fate.OVERWRITTEN

_ID = Place(
    "an id of up to 128 characters that a caller may choose",
    Fate.KEPT,
    "Draws and retries need it, so choose ids that reveal nothing about people",
)

_ARM = Place("a name of the configuration", Fate.NONE)

_RATER = Place(
    "who asked or rated: a project, with a key's id or a keyed hash of an address",
    Fate.KEPT,
    "Limits per rater and continued conversations need it",
)

_NAMED = Place(
    "learned weights and features, stored under the pseudonyms of feature names",
    Fate.KEPT,
    "Someone who guesses a feature's name can check the guess",
)

_NUMBERS = Place("numbers, by names of arms", Fate.NONE)

_CONFIGURED = Place("part of the configuration", Fate.NONE)

_WORD = Place("one of a few words, or a number", Fate.NONE)

_DIGEST = Place("a digest of settings or bytes", Fate.NONE)

_PROCESS = Place("name of a process", Fate.NONE)

_OPERATOR = Place(
    "what an operator wrote or requested, with the results",
    Fate.KEPT,
    "It comes from an operator (scope `operate` or `admin`), not from a user",
)

_KEY = Place("public id of a key", Fate.NONE)

_ERROR = Place(
    "the error message of a background job",
    Fate.KEPT,
    "It contains ids and settings, but no question or answer",
)

COLUMNS: Mapping[str, Place] = {
    "texts.document": Place(
        "the question and the names of its features; the answer or second answer, the ids of its passages, "
        "the steps of the arm, errors, the provider's ids, and hashes of reasoning; the comment, the correct "
        "answer and the tags of feedback",
        _WRITTEN,
    ),
    "texts.salt": Place("random bits, which go with the text", Fate.NONE),
    **dict.fromkeys(
        tuple(f"{name}.seal" for name in ("decisions", "executions", "feedback", "observations")),
        Place("a salted hash of the texts, which says nothing once the salt is gone", Fate.NONE),
    ),
    "decisions.question_digest": Place("a 64-bit digest of the question", _WRITTEN),
    "decisions.features": _NAMED,
    "decisions.request_digest": Place("a SHA-256 hash of the request", _WRITTEN),
    "decisions.user_digest": Place("a keyed hash of the end user", _WRITTEN),
    "decisions.id": _ID,
    "decisions.episode_id": _ID,
    "decisions.draw_id": _ID,
    "decisions.asked_by": _RATER,
    **dict.fromkeys(("decisions.mode", "decisions.policy"), _WORD),
    "decisions.drawn": _ARM,
    "decisions.arms": _ARM,
    **dict.fromkeys(
        tuple(f"decisions.{name}" for name in ("probabilities", "steps")),
        _NUMBERS,
    ),
    "executions.finish_reason": Place("why the language model stopped, a word of its provider", Fate.NONE),
    "answer_marks.mark": Place("a digest of an id that the provider gave an answer", Fate.NONE),
    "answer_marks.asked_by": Place("a copy of `decisions.asked_by`", Fate.NONE),
    "executions.decision_id": _ID,
    "executions.served": _ARM,
    "executions.status": _WORD,
    "executions.index_version": _CONFIGURED,
    "executions.tokens_by_model": _NUMBERS,
    "observations.decision_id": _ID,
    "observations.source": _WORD,
    "observations.arm": _ARM,
    "observations.judge": _CONFIGURED,
    "feedback.id": Place(
        "the id of the feedback, up to 256 characters that a caller may choose. Retries and retractions "
        "still find the rating",
        Fate.PSEUDONYM,
    ),
    "feedback.labels": Place(
        "a label such as `good`, and the arms and decisions that a preference names",
        Fate.KEPT,
        "They are learned from",
    ),
    "feedback.decision_id": _ID,
    "feedback.episode_id": _ID,
    "feedback.metric": _CONFIGURED,
    **dict.fromkeys(("feedback.kind", "feedback.source"), _WORD),
    "feedback.key": _KEY,
    "feedback.rater": _RATER,
    "examples.join": _DIGEST,
    "examples.decision_id": _ID,
    "examples.metrics": _NUMBERS,
    "examples.turns": _NUMBERS,
    **dict.fromkeys(("examples.rater", "examples.left_out", "progress.left_out"), _RATER),
    "progress.reader": _DIGEST,
    "summary.document": Place("names of arms, with sums and estimates", Fate.NONE),
    "log.secret": Place("random bits", Fate.NONE),
    "progress.chain": Place("a hash of the facts, without their texts", Fate.NONE),
    "versions.chain": Place("a copy of `progress.chain`", Fate.NONE),
    **dict.fromkeys(tuple(f"versions.{name}" for name in ("recipe", "join", "digest", "router")), _DIGEST),
    "versions.arithmetic": _PROCESS,
    **dict.fromkeys(tuple(f"versions.{name}" for name in ("policy", "start", "arms")), _CONFIGURED),
    "versions.state": _NAMED,
    "operations.kind": _WORD,
    "operations.subject": Place(
        "a keyed hash of the erased user, episode or decision. Armwise clears it after two minutes, once all "
        "earlier turns have finished",
        _WRITTEN,
    ),
    "operations.once": Place("the public id of a key, or what an alarm is about", Fate.NONE),
    "operations.document": Place(
        "what operators and the service decided, with reasons and suspected raters",
        Fate.KEPT,
        "No user wrote it",
    ),
    "routers.digest": _DIGEST,
    "routers.about": _CONFIGURED,
    "routers.model": Place(
        "weights of a model trained on labelled questions", Fate.KEPT, "They contain no text"
    ),
    "routers.unseen": Place(
        "scores, stored under hashes of the labelled questions",
        Fate.KEPT,
        "Someone who guesses a question can check the guess",
    ),
    "router_scores.router": _DIGEST,
    "router_scores.decision_id": _ID,
    "router_scores.scores": _NUMBERS,
    "jobs.configured": _DIGEST,
    **dict.fromkeys(("jobs.kind", "jobs.status", "jobs.trigger"), _WORD),
    "jobs.worker": _PROCESS,
    **dict.fromkeys(tuple(f"jobs.{name}" for name in ("request", "project", "result", "page")), _OPERATOR),
    "jobs.inputs": _CONFIGURED,
    "jobs.steps": Place("numbers, arms and digests of a warm start", Fate.NONE),
    "jobs.error": _ERROR,
    "keys.public_id": _KEY,
    "keys.secret_hash": Place("SHA-256 of random bits", Fate.NONE),
    **dict.fromkeys(
        tuple(f"keys.{name}" for name in ("name", "scopes", "project", "tags", "groups")), _OPERATOR
    ),
    **dict.fromkeys(("keys.source", "keys.budget_duration"), _WORD),
    "usage.key": _KEY,
    "usage.period": _WORD,
}
"""What each column of texts, JSON or bytes holds, by `table.column`."""

FILES: Mapping[str, Place] = {
    "SQLite's `log.db` and `log.db-wal`": Place(
        "the log",
        _WRITTEN,
        "Armwise overwrites the texts in place, and empties the write-ahead log. If "
        "another process is reading the log, the next erasure empties it",
    ),
    "PostgreSQL's table pages": Place(
        "earlier versions of rows",
        _WRITTEN,
        "`VACUUM` removes the earlier versions, but their bytes stay on disk until PostgreSQL reuses the "
        "space or you run `VACUUM FULL`",
    ),
    "the retrieval cache": Place(
        "passages, under a hash of the question",
        Fate.NONE,
        "None. When the cache is full, Armwise removes the least recently used entries",
    ),
    "log lines, Ray's session files, `ray.log` in `home`": Place(
        "ids and errors, and questions if you set `telemetry.log_content`",
        Fate.NONE,
        "None. They stay as long as you keep them",
    ),
    "PostgreSQL's write-ahead log": Place(
        "earlier versions of rows. They stay until the server recycles the log, and in an archive as long as "
        "you keep it",
        Fate.COPY,
    ),
    "exports (`armwise log export`, `GET /v1/export`)": Place("the training log or the feedback", Fate.COPY),
    "backups (`armwise log backup`, `pg_dump`, base backups)": Place("the whole log", Fate.COPY),
    "files of warm starts and labelling in `home`": Place("questions and answers from the log", Fate.COPY),
    "label rows that a warm start made from traffic": Place(
        "questions. They stay if you erase a user. An erasure by age (`privacy.keep_texts_days`), episode or "
        "decision removes them",
        Fate.COPY,
    ),
    "spans (`telemetry`)": Place("questions and answers, if `content` is on", Fate.COPY),
}
"""What each kind of file holds."""


def page() -> str:
    """Return the page of the documentation."""
    files = {name: place for name, place in FILES.items() if place.fate is not Fate.COPY}
    lines = [
        "# Texts, column by column",
        "",
        "This page lists every column and file that can hold a user's text, and what an erasure does to it.",
        "The rules are the same whether you erase a user, an episode or a decision, or Armwise erases texts",
        "by age ([how to erase texts](../guide/data.md)).",
        "",
        "Columns are named `table.column`. A column that this page does not name never holds text from",
        "callers or passages.",
        "",
        "## Overwritten",
        "",
        "An erasure removes the text from these columns:",
        "",
        *_items(COLUMNS, Fate.OVERWRITTEN),
        "",
        "## Replaced by a pseudonym",
        "",
        "An erasure replaces the text in these columns with a 64-bit digest, which does not show the text.",
        "Someone who guesses the text can check the guess.",
        "",
        *_items(COLUMNS, Fate.PSEUDONYM),
        "",
        "## Kept",
        "",
        "An erasure does not change these columns:",
        "",
        *_table(COLUMNS, Fate.KEPT, "content", "why it stays", "columns"),
        "",
        "## Files",
        "",
        "A service also keeps texts in these files:",
        "",
        *_table(files, None, "file", "content", "effect of an erasure"),
        "",
        "## Copies",
        "",
        "An erasure does not reach these copies, so delete them yourself:",
        "",
        *_items(FILES, Fate.COPY),
        "",
    ]
    return "\n".join(lines)


def _items(places: Mapping[str, Place], fate: Fate) -> list[str]:
    """Return an item for each place of a fate."""
    return [f"- {_code(name)}: {place.holds}." for name, place in places.items() if place.fate is fate]


def _table(places: Mapping[str, Place], fate: Fate | None, *heads: str) -> list[str]:
    """Return a table with a row for each content of a fate (of any, if None), and all places that hold it.

    The places come last if the first head is that of their content.
    """
    names: dict[Place, list[str]] = {}
    for name, place in places.items():
        if fate in (None, place.fate):
            names.setdefault(place, []).append(_code(name))
    rows = [[place.holds, place.why, ", ".join(held)] for place, held in names.items()]
    if heads[0] != "content":
        rows = [[held, *cells] for *cells, held in rows]
    return [f"| {' | '.join(row)} |" for row in (heads, ["---"] * len(heads), *rows)]


def _code(name: str) -> str:
    """Return a name as a page shows it: a column as code, a kind of file as it is."""
    return name if " " in name else f"`{name}`"
