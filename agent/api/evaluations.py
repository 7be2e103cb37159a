"""Evaluating: what other policies would have earned is asked for, looked at, and sent on."""

import asyncio
from pathlib import Path
from typing import Any

from fastapi.responses import HTMLResponse, JSONResponse

from agent.api.decisions import Before, Limit, Number
from agent.api.errors import ApiError
from agent.api.schemas import LARGEST
from agent.config import AppConfig
from agent.evaluation import CandidateError, EvaluationRequest, candidate_names
from agent.learning import configuration_of
from agent.policies import PolicyError, untrusted
from agent.serving import Replica
from arms.suggestions import did_you_mean
from feedback.log import Store, database
from feedback.registry import Evaluation, arm_sets, versions
from feedback.registry import evaluations as registry_evaluations


def refuse_from_afar(request: EvaluationRequest, config: AppConfig, store: Store) -> None:
    """Refuse a request that cannot be answered, or that a caller over HTTP may not make.

    Args:
        request: What is asked for.
        config: The settled configuration, with the arms that are live.
        store: The log.

    Raises:
        CandidateError: A version, an arm or a kind of policy that does not exist, a model that is not
            allowed, a file.
        LogUnavailableError: Try again later.
    """
    arms = {
        name for name, arm in arm_sets.defined(store).items() if arm.get("action", True)
    } | config.actions.keys()
    for name in dict.fromkeys((*request.candidates, request.baseline)):
        candidate = candidate_names.named(name)
        match candidate.kind:
            case candidate_names.Kind.FIXED if candidate.argument not in arms:
                raise CandidateError(
                    f"candidate {name!r} names no arm{did_you_mean(candidate.argument, arms)}"
                )
            case candidate_names.Kind.VERSION | candidate_names.Kind.RECIPE if not _is_version(
                store, candidate.number
            ):
                raise CandidateError(f"candidate {name!r}: there is no version {candidate.number}")
            case candidate_names.Kind.POLICY:
                assert candidate.policy is not None
                try:
                    untrusted.check_untrusted(candidate.policy, config.policy)
                except PolicyError as error:
                    raise CandidateError(f"candidate {name!r}: {error}") from None
            case candidate_names.Kind.ROUTER:
                _refuse_router(candidate, config)


def _is_version(store: Store, number: int) -> bool:
    return number <= LARGEST and versions.find(store, number) is not None


def _refuse_router(candidate: candidate_names.Named, config: AppConfig) -> None:
    folder = Path(candidate.argument).resolve()
    own = config.router is not None and folder == config.router.path.resolve()
    if not own and config.home_path.resolve() not in folder.parents:
        raise CandidateError(
            f"candidate {candidate.name!r}: only the configured router, and those below the folder of the "
            "service, can be asked for over HTTP"
        )


class EvaluationRoutes:
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
        listed = await asyncio.to_thread(registry_evaluations.page, self._replica.store, limit, before)
        return JSONResponse({"evaluations": [_document(one) for one in listed]})

    async def evaluation(self, number: Number) -> JSONResponse:
        """One evaluation: how far it is, and its `result` once `status` is `done`.

        `status` is `queued`, `running`, `done` or `failed`; `error` says why it failed. `done` is the
        share of the work that is done, from 0 to 1.
        """
        found = await self._found(number)
        done = found.status is registry_evaluations.State.DONE
        result = (
            await asyncio.to_thread(registry_evaluations.result_of, self._replica.store, number)
            if done
            else None
        )
        return JSONResponse({**_document(found), "result": result})

    async def report(self, number: Number) -> HTMLResponse:
        """The answer of an evaluation that is done, as a page with plots that needs nothing else."""
        found = await self._found(number)
        html = await asyncio.to_thread(registry_evaluations.html_of, self._replica.store, number)
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
            database.dumps(request)
        except TypeError as error:  # JSON can say more than can be kept: half a character, a huge number
            raise ApiError(400, "invalid_value", f"the request cannot be kept: {error}") from None
        return registry_evaluations.submit(replica.store, configuration_of(replica.config), request, now)

    async def _found(self, number: int) -> Evaluation:
        found = await asyncio.to_thread(registry_evaluations.find, self._replica.store, number)
        if found is None:
            raise ApiError(404, "evaluation_not_found", f"there is no evaluation {number}", "number")
        return found


def _document(one: Evaluation) -> dict[str, Any]:
    """Return an evaluation as it is told."""
    told = ("status", "done", "submitted_at", "started_at", "finished_at", "error", "request")
    return {"id": one.seq, **{name: getattr(one, name) for name in told}}
