"""Evaluating: what other policies would have earned is asked for, looked at, and sent on."""

import asyncio
from typing import Any

from fastapi.responses import HTMLResponse, JSONResponse

from agent.errors import ApiError
from agent.evaluation.from_afar import refuse_from_afar
from agent.evaluation.names import CandidateError
from agent.evaluation.request import EvaluationRequest
from agent.recipe import configuration_of
from agent.replica import Replica
from agent.steering import Before, Limit, Number
from feedback.database import dumps
from feedback.evaluations import Evaluation, State, find, html_of, page, result_of, submit


class Evaluating:
    """The routes of evaluations. Each docstring is what the OpenAPI document says."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    async def submit(self, body: EvaluationRequest) -> JSONResponse:
        """Ask what other policies would have earned on the log, and get a number to ask for the answer by.

        The work is done beside the service, by what nobody else needs of the machine: look at
        `status` and `done` now and then. A policy is written out in full, as
        `policy:{kind: linucb, params: {alpha: 0.5}}`, and names no file.
        """
        asked = await asyncio.to_thread(self._submit, body)
        return JSONResponse(_document(asked), 202, {"location": f"/v1/evaluations/{asked.seq}"})

    async def evaluations(self, limit: Limit = 50, before: Before = None) -> JSONResponse:
        """The evaluations that were asked for, newest first, without their answers.

        A page ends with the evaluation of id N: the next one is asked for with `before=N`.
        """
        listed = await asyncio.to_thread(page, self._replica.store, limit, before)
        return JSONResponse({"evaluations": [_document(one) for one in listed]})

    async def evaluation(self, number: Number) -> JSONResponse:
        """One evaluation: how far it is, and its `result` once `status` is `done`.

        `status` is `queued`, `running`, `done` or `failed`; `error` says why it failed. `done` is the
        share of the work that is done, from 0 to 1.
        """
        found = await self._found(number)
        done = found.status is State.DONE
        result = await asyncio.to_thread(result_of, self._replica.store, number) if done else None
        return JSONResponse({**_document(found), "result": result})

    async def report(self, number: Number) -> HTMLResponse:
        """The answer of an evaluation that is done, as a page with plots that needs nothing else."""
        found = await self._found(number)
        html = await asyncio.to_thread(html_of, self._replica.store, number)
        if html is None:
            message = f"evaluation {number} is {found.status}: only one that is done has a report"
            raise ApiError(409, "not_done", message, "number")
        return HTMLResponse(html)

    def _submit(self, body: EvaluationRequest) -> Evaluation:
        replica, now = self._replica, self._replica.clock()
        try:
            refuse_from_afar(body, replica.config, replica.store)
        except CandidateError as error:
            raise ApiError(400, "invalid_value", str(error), "candidates") from None
        if body.since is not None and body.since.timestamp() > now:
            message = f"since {body.since.isoformat()} is yet to come: the window is empty"
            raise ApiError(400, "empty_window", message, "since")
        if not replica.store.newest(1):
            raise ApiError(400, "empty_window", "the log holds no decision yet", None)
        request = body.model_dump(mode="json")
        try:
            dumps(request)
        except TypeError as error:  # JSON can say more than can be kept: half a character, a huge number
            raise ApiError(400, "invalid_value", f"the request cannot be kept: {error}") from None
        return submit(replica.store, configuration_of(replica.config), request, now)

    async def _found(self, number: int) -> Evaluation:
        found = await asyncio.to_thread(find, self._replica.store, number)
        if found is None:
            raise ApiError(404, "evaluation_not_found", f"there is no evaluation {number}", "number")
        return found


def _document(one: Evaluation) -> dict[str, Any]:
    """Return an evaluation as it is told."""
    told = ("status", "done", "submitted_at", "started_at", "finished_at", "error", "request")
    return {"id": one.seq, **{name: getattr(one, name) for name in told}}


__all__ = ["Evaluating"]
