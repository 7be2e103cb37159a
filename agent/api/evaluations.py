"""Evaluating: what other policies would have earned is asked for, looked at, and sent on."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import ValidationError

from agent.api.decisions import Before, Limit, Number
from agent.api.errors import ApiError
from agent.api.schemas import LARGEST
from agent.config.app_config import AppConfig
from agent.evaluation.candidate_names import CandidateError, Kind, Named, named
from agent.evaluation.request import EvaluationRequest
from agent.learning.recipe import configuration_of
from agent.policies.base import PolicyError
from agent.policies.catalog import INNER, POLICIES, PolicySpec
from agent.policies.epsilon_greedy import LINEAR, EpsilonGreedy, check_model
from agent.policies.neural import NeuralGreedy
from agent.policies.shadow import ShadowPolicy
from agent.policies.vowpal import EXACT_FLAGS, VowpalPolicy
from agent.serving.replica import Replica
from arms.suggestions import did_you_mean
from feedback.log.database import dumps
from feedback.log.store import Store
from feedback.registry import versions
from feedback.registry.arm_sets import defined
from feedback.registry.evaluations import Evaluation, State, find, html_of, page, result_of, submit

FILELESS = {*EXACT_FLAGS.split(), "--cover", "--bag", "--nounif"}
"""Options of VW that read and write no file."""


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
    arms = {name for name, arm in defined(store).items() if arm.get("action", True)} | config.actions.keys()
    for name in dict.fromkeys((*request.candidates, request.baseline)):
        candidate = named(name)
        match candidate.kind:
            case Kind.FIXED if candidate.argument not in arms:
                raise CandidateError(
                    f"candidate {name!r} names no arm{did_you_mean(candidate.argument, arms)}"
                )
            case Kind.VERSION | Kind.RECIPE if not _is_version(store, candidate.number):
                raise CandidateError(f"candidate {name!r}: there is no version {candidate.number}")
            case Kind.POLICY:
                _refuse_policy(candidate, config)
            case Kind.ROUTER:
                _refuse_router(candidate, config)


def _is_version(store: Store, number: int) -> bool:
    return number <= LARGEST and versions.find(store, number) is not None


def _refuse_policy(candidate: Named, config: AppConfig) -> None:
    """Refuse an unknown kind, a model that is not allowed, and a parameter that may name a file.

    Other mistakes are found when it is built.
    """
    assert candidate.policy is not None
    configured = list(_parts(config.policy))
    for part in _parts(candidate.policy):
        if part.kind not in POLICIES:
            hint = did_you_mean(part.kind, POLICIES)
            raise CandidateError(f"candidate {candidate.name!r}: no policy of kind {part.kind!r}{hint}")
        if part.kind == EpsilonGreedy.kind:
            try:
                check_model(part.params.get("model", LINEAR), part.params.get("params"))
            except PolicyError as error:
                raise CandidateError(f"candidate {candidate.name!r}: {error}") from None
        if part not in configured and (said := _file_of(part)):
            raise CandidateError(
                f"candidate {candidate.name!r}: {said} may name a file of the service's machine, which only "
                "its configuration may"
            )


def _parts(spec: PolicySpec) -> Iterator[PolicySpec]:
    """Yield a policy, and those that it is made of."""
    yield spec
    for name in INNER if spec.kind == ShadowPolicy.kind else ():
        try:
            inner = PolicySpec.model_validate(spec.params.get(name))
        except ValidationError:  # no policy at all
            continue
        yield from _parts(inner)


def _file_of(spec: PolicySpec) -> str:
    """Return the parameter of a policy that may name a file; empty for none.

    >>> _file_of(PolicySpec(kind="vowpal", params={"args": "--cb_explore_adf -q sa --bag 3"}))
    ''
    >>> _file_of(PolicySpec(kind="vowpal", params={"args": "--cb_explore_adf -p /etc/motd"}))
    "vw argument '-p'"
    >>> _file_of(PolicySpec(kind="neural", params={"encoder": "/etc"}))
    "encoder '/etc'"
    """
    if spec.kind == NeuralGreedy.kind and spec.params.get("encoder") is not None:
        return f"encoder {spec.params['encoder']!r}"
    if spec.kind == VowpalPolicy.kind:
        args = spec.params.get("args", "")
        if not isinstance(args, str):
            return "vw arguments that are no text"
        for token in args.replace("'", " ").replace('"', " ").split():
            option = token.partition("=")[0] if token.startswith("--") else token[:2]
            if option.startswith("-") and not option[1:].isdigit() and option not in FILELESS:
                return f"vw argument {option!r}"
    return ""


def _refuse_router(candidate: Named, config: AppConfig) -> None:
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
