"""`/v1/feedback` and the activation of deferred decisions: feedback is checked and stored item by item."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain

from fastapi import APIRouter, Response
from fastapi.exceptions import RequestValidationError
from pydantic import TypeAdapter, ValidationError

from armwise.agent.access import Caller, ForeignIdError
from armwise.agent.api import answer_ids, batches, errors
from armwise.agent.api.documented import document_route, link
from armwise.agent.api.doors import Door
from armwise.agent.api.errors import ApiError
from armwise.agent.api.middleware import AppReplica, RequestCaller
from armwise.agent.api.responses import StdlibJson
from armwise.agent.api.schemas import DecisionId, FeedbackItem, FeedbackRequest, IdempotencyKey, Preference
from armwise.agent.replies import FeedbackReceipt, FeedbackReceipts, construct
from armwise.agent.serving import Replica, admission
from armwise.agent.telemetry import turns
from armwise.arms import tracing
from armwise.feedback.errors import ConflictError, StoreError, TooMuchFeedbackError
from armwise.feedback.events import (
    COMMENT,
    DEMONSTRATION,
    NOTES,
    PASSAGE,
    PREFERENCE,
    Feedback,
    FeedbackKind,
)
from armwise.feedback.log import Receipt
from armwise.feedback.reward import RewardError

router = APIRouter(tags=["feedback"], route_class=Door)

REFUSALS = ("unknown_metric", "idempotency_conflict", "too_much_feedback")
"""Errors of feedback."""

_ITEM = TypeAdapter(FeedbackItem)


@dataclass(frozen=True, slots=True)
class FeedbackSender:
    """A sender of feedback.

    Attributes:
        replica: Keeps it.
        caller: The caller.
    """

    replica: Replica
    caller: Caller

    async def keep_each(
        self, items: Sequence[object], names: Sequence[str | None]
    ) -> list[FeedbackReceipt | ApiError]:
        """Store items independently, and return the reply to each, or its error.

        Args:
            items: The items as JSON, in the form of `FeedbackItem`.
            names: Default id of each item.

        Raises:
            ApiError: No item was stored.
        """
        checked = [self._item_or_error(*item) for item in zip(items, names, strict=True)]
        outcomes = iter(await self._accept([item for item in checked if isinstance(item, Feedback)]))
        rows = list[FeedbackReceipt | ApiError]()
        for fact_or_error in checked:
            outcome = next(outcomes) if isinstance(fact_or_error, Feedback) else fact_or_error
            if isinstance(outcome, Exception):
                outcome = errors.translate(outcome).show_to(self.caller)
            rows.append(outcome)
        return batches.some_kept(rows)

    async def keep_all(self, *items: FeedbackItem) -> list[FeedbackReceipt]:
        """Store items of one decision or episode together, and return the replies to them.

        Raises:
            RewardError, ApiError, ForeignIdError, StoreError: An item is refused. The others are stored only
                if it was the log that refused it.
        """
        return await self.keep_facts(*map(self.check, items))

    async def keep_facts(self, *facts: Feedback) -> list[FeedbackReceipt]:
        """Store facts of one decision or episode together, and return the replies to them.

        Raises:
            ApiError, StoreError: The log refused a fact, or cannot be reached. The others are stored.
        """
        receipts = list[FeedbackReceipt]()
        for outcome in await self._accept(facts):
            if isinstance(outcome, Exception):
                raise outcome
            receipts.append(outcome)
        return receipts

    def check(self, item: FeedbackItem, key: str | None = None) -> Feedback:
        """Return feedback as a fact, on the decision or the episode that it names.

        Raises:
            RewardError: The metric is not declared, or the value is out of its range.
            ApiError: It retracts a value without its `feedback_id`.
            ForeignIdError: An id names the project of another caller.
        """
        caller, name = self.caller, item.feedback_id or key
        value, content = self._read(item)
        kind = FeedbackKind.VALUE if item.passage is None else FeedbackKind.PASSAGE
        if item.value is None and name is None:
            message = "a null value retracts an earlier one: its feedback_id was expected"
            raise ApiError("invalid_value", message, "feedback_id")
        return Feedback(
            id=caller.to_stored_id(name, "feedback") if name else caller.new_id(),
            decision_id=item.decision_id and caller.to_stored_id(item.decision_id),
            episode_id=item.episode_id and caller.to_stored_id(item.episode_id, "episode"),
            kind=FeedbackKind.RETRACTION if item.value is None else kind,
            metric=item.metric_name,
            value=value,
            received_at=self.replica.clock(),
            event_time=None if item.event_time is None else item.event_time.timestamp(),
            tags=item.tags,
            source=caller.source,
            key=caller.key,
            content=content,
            rater=caller.find_rater(self.replica.store.draw_secret),
        )

    def _read(self, item: FeedbackItem) -> tuple[float | None, dict[str, str]]:
        """Return the number of an item, and its further fields.

        Raises:
            RewardError: The metric is not declared, or the value is out of its range.
            ApiError: The value is not the expected text or pair.
            ForeignIdError: The other decision belongs to another project.
        """
        name, value, rule = item.metric_name, item.value, self.replica.config.reward
        content = {} if item.comment is None else {COMMENT: item.comment}
        declared = name in rule.metrics
        if item.passage is not None:
            if not declared and name in NOTES:
                raise ApiError("invalid_value", f"metric {name!r} is not about a passage", "passage")
            content |= {PASSAGE: item.passage}
        if not declared and name == PREFERENCE and value is not None:
            return None, content | self._read_pair(item)
        if not declared and name in (COMMENT, DEMONSTRATION) and value is not None:
            if not isinstance(value, str) or not value.strip():
                raise ApiError("invalid_value", f"metric {name!r} takes text", "value")
            return None, content | {name: value}
        if value is None and name in NOTES:
            return None, {}
        metric = rule.metric(name)
        if value is None:
            return None, {}
        if isinstance(value, Preference):
            raise ApiError("invalid_value", f"metric {name!r} takes one value, not a preference", "value")
        return metric.parse(value, name), content | ({"label": value} if isinstance(value, str) else {})

    def _read_pair(self, item: FeedbackItem) -> dict[str, str]:
        """Return a preference with stored ids. Raises ApiError, ForeignIdError."""
        pair = item.value
        if not isinstance(pair, Preference) or item.decision_id is None:
            forms = '{"over": "<decision>"} or {"better": "<arm>", "worse": "<arm>"}'
            raise ApiError("invalid_value", f"give a decision_id and a value of the form {forms}", "value")
        if pair.over is not None:
            if pair.over == item.decision_id:
                raise ApiError(
                    "invalid_value", f"decision {pair.over!r} cannot be preferred to itself", "value.over"
                )
            return {"over": self.caller.to_stored_id(pair.over)}
        arms = {"better": pair.better or "", "worse": pair.worse or ""}
        for field, arm in arms.items():
            admission.require_arm(self.replica, arm, f"value.{field}")
        return arms

    def _item_or_error(self, item: object, name: str | None) -> Feedback | Exception:
        try:
            return self.check(_ITEM.validate_python(item), name)
        except ValidationError as error:
            return RequestValidationError(error.errors())
        except (RewardError, ApiError, admission.AskError, ForeignIdError) as error:
            return error

    async def _accept(self, facts: Sequence[Feedback]) -> list[FeedbackReceipt | Exception]:
        """Commit feedback and return, for each item, the reply to it or the error that refused it.

        Items of one decision are committed together, so that none is learned without the others.

        Raises:
            LogUnavailableError: An id of an answer cannot be looked up. Nothing was committed.
        """
        replica = self.replica
        facts = await self._on_decisions(facts)
        unknown = await self._find_unknown_passages(facts)
        groups: dict[tuple[str | None, str | None], list[int]] = {}
        for index, fact in enumerate(facts):
            if index not in unknown:
                groups.setdefault((fact.decision_id, fact.episode_id), []).append(index)
        outcomes = await asyncio.gather(
            *(_commit(replica, [facts[i] for i in group]) for group in groups.values())
        )
        by_index: dict[int, Receipt | Exception] = {**unknown}
        by_index |= zip(chain.from_iterable(groups.values()), chain.from_iterable(outcomes), strict=True)
        return [
            self._acknowledge(fact, outcome) if isinstance(outcome := by_index[index], Receipt) else outcome
            for index, fact in enumerate(facts)
        ]

    async def _find_unknown_passages(self, facts: Sequence[Feedback]) -> dict[int, ApiError]:
        """Return the errors of feedback on passages that its decision, if it has an answer, did not find.

        Raises:
            LogUnavailableError: A decision cannot be looked up.
        """
        about = {fact.decision_id for fact in facts if fact.kind is FeedbackKind.PASSAGE}
        found = dict[str | None, tuple[str, ...]]()
        for name in filter(None, about):
            logged = await asyncio.to_thread(self.replica.store.record, name)
            if logged is not None and logged.execution is not None:
                found[name] = logged.execution.passages
        return {
            index: ApiError(
                "invalid_value", f"the decision has no passage {fact.content[PASSAGE]!r}", "passage"
            )
            for index, fact in enumerate(facts)
            if fact.kind is FeedbackKind.PASSAGE
            and fact.decision_id in found
            and fact.content[PASSAGE] not in found[fact.decision_id]
        }

    async def _on_decisions(self, facts: Sequence[Feedback]) -> Sequence[Feedback]:
        """Return facts with the decisions and episodes that they name by ids of answers."""
        names = (
            name for fact in facts for name in (fact.decision_id, fact.episode_id, fact.content.get("over"))
        )
        named = await answer_ids.look_up(self.replica, self.caller, filter(None, names))
        if not (named.decisions or named.episodes):
            return facts
        return [
            replace(
                fact,
                decision_id=fact.decision_id and named.decision(fact.decision_id),
                episode_id=fact.episode_id and named.episode(fact.episode_id),
                content={
                    key: named.decision(text) if key == "over" else text for key, text in fact.content.items()
                },
            )
            for fact in facts
        ]

    def _acknowledge(self, fact: Feedback, receipt: Receipt) -> FeedbackReceipt:
        """Count feedback that is stored, and return the reply to its sender."""
        replica, caller = self.replica, self.caller
        replica.telemetry.count_feedback(fact, receipt)
        assert receipt.status is not None
        return construct(
            FeedbackReceipt,
            feedback_id=caller.strip_prefix(fact.id),
            decision_id=fact.decision_id and caller.strip_prefix(fact.decision_id),
            episode_id=fact.episode_id and caller.strip_prefix(fact.episode_id),
            status=receipt.status.value,
            log_seq=receipt.seq,
        )


@router.post(
    "/v1/feedback",
    **document_route(
        "sendFeedback",
        FeedbackReceipt | FeedbackReceipts,
        *REFUSALS,
        scopes=("feedback",),
        status=202,
        example={"decision_id": "q-1", "metric_name": "thumb", "value": 1, "feedback_id": "q-1-thumb"},
    ),
)
async def feedback(
    replica: AppReplica, caller: RequestCaller, body: FeedbackRequest, key: IdempotencyKey = None
) -> Response:
    """Record feedback on a decision or an episode: one item, or {"items": [...]} with a status each.

    A value of null retracts the value of the same `feedback_id`. An item without one gets the
    idempotency key of the request as its id, in a batch with its index from 0: `<key>:<index>`.
    If no item was kept, the whole batch is refused, and `reasons` has the error of each item.
    The status says that an item is stored, or was stored before. Which feedback counts is decided
    when the decision is learned: `GET /v1/decisions/{decision_id}` shows it.

    `decision_id` may also be the id of the answer (`chatcmpl-...`, `msg_...` or `resp_...`), and so may
    `episode_id`, which then is the episode of that answer.
    """
    sender = FeedbackSender(replica, caller)
    if isinstance(body, FeedbackItem):
        (kept,) = await sender.keep_facts(sender.check(body, key))
        return StdlibJson(kept, 202)
    rows = await sender.keep_each(body.items, batches.name_items(body.items, key))
    return StdlibJson(construct(FeedbackReceipts, items=batches.replies(rows)), 202)


@router.post(
    "/v1/decisions/{decision_id}/activate",
    **document_route(
        "activateDecision",
        FeedbackReceipt,
        "idempotency_conflict",
        scopes=("feedback",),
        status=202,
        success=link("getDecision", decision_id="$response.body#/decision_id"),
    ),
)
async def activate(replica: AppReplica, caller: RequestCaller, decision_id: DecisionId) -> Response:
    """Record that the answer of a deferred decision was shown: it counts from now on.

    It may come before the decision; one that is not deferred counts anyway.
    """
    stored = await answer_ids.find_decision(replica, caller, decision_id)
    fact = Feedback(
        stored,
        stored,
        received_at=replica.clock(),
        kind=FeedbackKind.ACTIVATION,
        source=caller.source,
        key=caller.key,
    )
    (kept,) = await FeedbackSender(replica, caller).keep_facts(fact)
    return StdlibJson(kept, 202)


async def _commit(replica: Replica, items: Sequence[Feedback]) -> Sequence[Receipt | Exception]:
    left, refused = list(items), dict[int, StoreError]()
    receipts: Iterator[Receipt] = iter(())
    while left:
        try:
            commit = replica.log.append(*left)
            turns.trace_commit(tuple(left), commit)
            receipts = iter(await commit)
            await _trace(replica, left)
            break
        except (ConflictError, TooMuchFeedbackError) as error:  # the others are committed without it
            refused[id(error.fact)] = error
        except StoreError as error:
            refused |= dict.fromkeys(map(id, left), error)
        left = [item for item in left if id(item) not in refused]
    return [refused.get(id(item)) or next(receipts) for item in items]


async def _trace(replica: Replica, items: Sequence[Feedback]) -> None:
    """Record feedback in the trace of its request, if there is one, linked to that of its turn."""
    if not tracing.traceparent():
        return
    (item, *_), turn = items, ""
    if item.decision_id is not None:  # all are about the same
        with suppress(StoreError):
            record = await asyncio.to_thread(replica.store.record, item.decision_id)
            turn = "" if record is None else record.decision.trace
    for item in items:
        turns.record_feedback(item, turn)
