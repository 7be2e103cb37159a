"""Telling: what came of an answer comes in, is checked item by item, and kept."""

import asyncio
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Annotated

from fastapi import Path
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import TypeAdapter, ValidationError

from agent.api import errors
from agent.api import responses as replies
from agent.api.chat import IdempotencyKey, new_id
from agent.api.errors import ApiError
from agent.api.schemas import FeedbackItem, FeedbackRequest, Identifier
from agent.config import AppConfig
from agent.serving import Replica
from feedback.errors import ConflictError, StoreError
from feedback.events import Feedback, Kind
from feedback.log import Receipt
from feedback.reward import RewardError


class FeedbackRoutes:
    """The routes that take in feedback. Each docstring is what the OpenAPI document says."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._telemetry = replica.telemetry

    @property
    def _config(self) -> AppConfig:
        """The configuration, with the arms that are live now."""
        return self._replica.config

    async def feedback(self, body: FeedbackRequest, key: IdempotencyKey = None) -> JSONResponse:
        """Keep what came of a decision or an episode: one item, or {"items": [...]} with a status each.

        A value of null takes back the value of the same `feedback_id`. An item without one is named
        by the key of the request, and by its place in a batch: `<key>:<place>`, from 0.
        """
        if isinstance(body, FeedbackItem):
            fact = self._fact(body, key)
            (outcome,) = await self._accept([fact])
            if isinstance(outcome, Exception):
                raise outcome
            self._telemetry.fed_back(fact, outcome)
            return JSONResponse(replies.receipt(fact, outcome), 202)
        names = [None if key is None else f"{key}:{place}" for place in range(len(body.items))]
        checked = [self._fact_or_error(*item) for item in zip(body.items, names, strict=True)]
        facts = [fact for fact in checked if isinstance(fact, Feedback)]
        outcomes = iter(zip(facts, await self._accept(facts), strict=True))
        rows = []
        for one in checked:
            if isinstance(one, Feedback):
                fact, outcome = next(outcomes)
                if isinstance(outcome, Receipt):
                    self._telemetry.fed_back(fact, outcome)
                    rows.append(replies.receipt(fact, outcome))
                    continue
                one = outcome
            rows.append(errors.translate(one).body(None))
        return JSONResponse({"items": rows}, 202)

    def _fact(self, item: FeedbackItem, key: str | None = None) -> Feedback:
        """Return checked feedback.

        Raises:
            RewardError: The metric is not declared, or does not take the value.
            ApiError: It takes something back and does not say what.
        """
        metric, name = self._config.reward.metric(item.metric_name), item.feedback_id or key
        if item.value is None and name is None:
            message = "a null value takes back what was said before: its feedback_id was expected"
            raise ApiError(400, "invalid_value", message, "feedback_id")
        return Feedback(
            id=name or new_id(),
            decision_id=item.decision_id,
            episode_id=item.episode_id,
            kind=Kind.RETRACTION if item.value is None else Kind.VALUE,
            metric=item.metric_name,
            value=None if item.value is None else metric.parse(item.value, item.metric_name),
            received_at=self._replica.clock(),
            event_time=None if item.event_time is None else item.event_time.timestamp(),
            tags=item.tags,
        )

    def _fact_or_error(self, item: object, name: str | None) -> Feedback | Exception:
        try:
            return self._fact(_ITEM.validate_python(item), name)
        except ValidationError as error:
            return RequestValidationError(error.errors())
        except (RewardError, ApiError) as error:
            return error

    async def activate(self, decision_id: Annotated[Identifier, Path()]) -> JSONResponse:
        """Say that the answer of a deferred decision was shown: it counts from now on.

        It may come before the decision; one that is not deferred counts anyway.
        """
        shown = Feedback(decision_id, decision_id, received_at=self._replica.clock(), kind=Kind.ACTIVATION)
        (outcome,) = await self._accept([shown])
        if isinstance(outcome, Exception):
            raise outcome
        self._telemetry.fed_back(shown, outcome)
        return JSONResponse(replies.receipt(shown, outcome), 202)

    async def _accept(self, items: Sequence[Feedback]) -> list[Receipt | Exception]:
        """Commit feedback and return, for each item, its receipt or what refused it.

        Items of one decision are committed together, so that none is learned without the others.
        """
        groups: dict[tuple[str | None, str | None], list[int]] = {}
        for place, item in enumerate(items):
            groups.setdefault((item.decision_id, item.episode_id), []).append(place)
        outcomes = await asyncio.gather(
            *(self._commit([items[i] for i in group]) for group in groups.values())
        )
        placed = dict(zip(chain.from_iterable(groups.values()), chain.from_iterable(outcomes), strict=True))
        return [placed[place] for place in range(len(items))]

    async def _commit(self, items: Sequence[Feedback]) -> Sequence[Receipt | Exception]:
        left, refused = list(items), dict[int, StoreError]()
        receipts: Iterator[Receipt] = iter(())
        while left:
            try:
                receipts = iter(await self._replica.log.append(*left))
                break
            except ConflictError as error:  # the others stay together without it
                refused[id(error.fact)] = error
            except StoreError as error:
                refused |= dict.fromkeys(map(id, left), error)
            left = [item for item in left if id(item) not in refused]
        return [refused.get(id(item)) or next(receipts) for item in items]


_ITEM = TypeAdapter(FeedbackItem)
