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
    "an id of up to 128 characters that a caller may choose",
    Fate.KEPT,
    "draws and retries need it, so choose ids that reveal nothing about people",
)

_ARM = Place("a name of the configuration", Fate.NONE)

_RATER = Place(
    "a key or a keyed digest of an address, and its project",
    Fate.KEPT,
    "limits and continued conversations need it",
)

_MARKS = Place("the provider's ids for an answer and its calls, and digests of its reasoning", _WRITTEN)

_NUMBERS = Place("numbers, by names of arms", Fate.NONE)

_CONFIGURED = Place("part of the configuration", Fate.NONE)

_WORD = Place("one of a few words, or a number", Fate.NONE)

_DIGEST = Place("a digest of settings or bytes", Fate.NONE)

_PROCESS = Place("name of a process", Fate.NONE)

_OPERATOR = Place(
    "what an operator wrote or requested", Fate.KEPT, "only keys of scope `operate` or `admin` can do so"
)

_KEY = Place("public id of a key", Fate.NONE)

_ERROR = Place(
    "the error message of a job, with ids and settings", Fate.KEPT, "it contains no question or answer"
)

COLUMNS: Mapping[str, Place] = {
    "decisions.question": Place("the question", _WRITTEN),
    "decisions.features": Place(
        "words of the question, and names and texts of the context, all as feature names",
        Fate.PSEUDONYM,
        "the values and the embedding stay, and so does what was learned from them",
    ),
    "decisions.request_digest": Place("the SHA-256 of the request", _WRITTEN),
    "decisions.user_digest": Place("a keyed hash of the end user", _WRITTEN),
    "decisions.id": _ID,
    "decisions.episode_id": _ID,
    "decisions.draw_id": _ID,
    "decisions.asked_by": _RATER,
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
    "executions.passages": Place("the ids of the passages", _WRITTEN),
    "executions.answer": Place("the answer", _WRITTEN),
    "executions.error": Place("why the turn failed, with responses from other services", _WRITTEN),
    "executions.stages": Place("what an arm did, with queries made from the question", _WRITTEN),
    "executions.decision_id": _ID,
    "executions.served": _ARM,
    "executions.status": _WORD,
    "executions.index_version": _CONFIGURED,
    "executions.tokens_by_model": _NUMBERS,
    "observations.passages": Place("the ids of the second answer's passages", _WRITTEN),
    "observations.answer": Place("the second answer", _WRITTEN),
    "observations.error": Place("why there is no answer or grade, with the judge's reply", _WRITTEN),
    "observations.decision_id": _ID,
    "observations.source": _WORD,
    "observations.arm": _ARM,
    "observations.judge": _CONFIGURED,
    "feedback.id": Place(
        "the id of the feedback, which a caller may choose (up to 256 characters)",
        Fate.PSEUDONYM,
        "retries and retractions still find the value by the pseudonym",
    ),
    "feedback.content": Place(
        "the comment and the correct answer (demonstration). Labels stay, and so do the arms and decisions "
        "that a preference names",
        _WRITTEN,
    ),
    "feedback.tags": Place("the texts that you sent as tags", _WRITTEN),
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
        "a keyed hash of what was erased",
        _WRITTEN,
        "it is cleared after two minutes, once all earlier turns have finished",
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
        "learned weights, keyed by pseudonymised feature names",
        Fate.KEPT,
        "someone who guesses a name can check it against the pseudonym",
    ),
    "prices.budget": _DIGEST,
    "prices.arms": _ARM,
    "promotions.action": _WORD,
    "promotions.reason": _OPERATOR,
    "promotions.configured": _DIGEST,
    "routers.digest": _DIGEST,
    "routers.about": _CONFIGURED,
    "routers.model": Place(
        "weights of a model trained on labelled questions", Fate.KEPT, "they contain no text"
    ),
    "routers.unseen": Place(
        "scores, keyed by digests of the labelled questions",
        Fate.KEPT,
        "someone who guesses a question can check it against the digest",
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
    "evaluations.result": _OPERATOR,
    "evaluations.html": _OPERATOR,
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
    "SQLite's `log.db` and `log.db-wal`": Place(
        "the log",
        _WRITTEN,
        "SQLite overwrites freed bytes (`secure_delete`), and Armwise empties the write-ahead log. If a "
        "reader prevents this, the next erasure does it",
    ),
    "PostgreSQL's table pages": Place(
        "earlier versions of rows",
        _WRITTEN,
        "`VACUUM` removes them, but their bytes stay in free space until PostgreSQL reuses it or you run "
        "`VACUUM FULL`",
    ),
    "PostgreSQL's write-ahead log": Place(
        "earlier versions of rows",
        Fate.COPY,
        "they stay until the server recycles the log, and in any archive for as long as you keep it",
    ),
    "retrieval cache": Place(
        "passages, keyed by a hash of the question",
        Fate.NONE,
        "the least recently used entries are removed first",
    ),
    "exports (`armwise export`, `GET /v1/export`)": Place("the training log, feedback", Fate.COPY),
    "backups (`armwise backup`, `pg_dump`, base backups)": Place("the log", Fate.COPY),
    "warm-start and labelling files below `home`": Place("questions and answers from the log", Fate.COPY),
    "label rows that a warm start made from traffic": Place(
        "questions",
        Fate.COPY,
        "they are erased by age (`privacy.keep_texts_days`) and by id, but not by user",
    ),
    "log lines, Ray's session files, `ray.log` in `home`": Place(
        "ids and errors",
        Fate.NONE,
        "with `telemetry.log_content`, log lines also contain questions, for as long as you keep them",
    ),
    "spans (`telemetry`)": Place("questions and answers, if `content` is on", Fate.COPY),
}
"""What each kind of file holds."""


def page() -> str:
    """Return the page of the documentation."""
    lines = [
        "# Texts, column by column",
        "",
        "This page lists every column and file that can hold a user's text, and what an erasure does to it.",
        "You can erase a user, an episode or a decision, or have Armwise erase texts by age",
        "([the guide](../guide/data.md)). Other columns never hold text from callers or passages.",
        "",
        "## Overwritten",
        "",
        "An erasure overwrites the text in these columns.",
        "",
        *_items(COLUMNS, Fate.OVERWRITTEN),
        "",
        "## Replaced by a pseudonym",
        "",
        "A 64-bit digest replaces the text. Someone who guesses the text can check it against the digest.",
        "",
        *_items(COLUMNS, Fate.PSEUDONYM),
        "",
        "## Kept",
        "",
        "These columns stay as they are.",
        "",
        *_items(COLUMNS, Fate.KEPT),
        "",
        "## Files",
        "",
        *_items(FILES, Fate.OVERWRITTEN),
        *_items(FILES, Fate.NONE),
        "",
        "## Copies",
        "",
        "An erasure does not reach these copies, so delete them yourself.",
        "",
        *_items(FILES, Fate.COPY),
        "",
    ]
    return "\n".join(lines)


def _items(places: Mapping[str, Place], fate: Fate) -> list[str]:
    """Return an item for each content of a fate, with all columns or files that hold it."""
    names: dict[Place, list[str]] = {}
    for name, place in places.items():
        if place.fate is fate:
            names.setdefault(place, []).append(name if " " in name else f"`{name}`")
    return [f"- {', '.join(held)}: {place.holds}.{_sentence(place.why)}" for place, held in names.items()]


def _sentence(text: str) -> str:
    """Return a text as a further sentence; nothing for an empty one."""
    return f" {text[0].upper()}{text[1:]}." if text else ""


if __name__ == "__main__":
    sys.stdout.write(page())
