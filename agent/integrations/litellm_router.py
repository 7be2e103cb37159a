"""The router of LiteLLM's calls: a model is drawn here among its deployments, and how it went comes back.

    import litellm
    from armwise.agent.integrations.litellm_router import ArmwiseRouter

    litellm.callbacks = [ArmwiseRouter()]

For each call of a model group, after cooldowns and before its own strategy, LiteLLM asks the callbacks which
deployments to keep. This one asks the service and keeps those of the drawn arm. Without an answer in time it
keeps all, so that LiteLLM's strategy decides, and logs why. LiteLLM asks in asynchronous calls alone, which
are those of its proxy. How a call ended is reported by the queue of `ArmwiseLogger`.
"""

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from typing_extensions import override

from armwise.agent.client import AsyncClient, Client
from armwise.agent.integrations.litellm import (
    KEY,
    LONGEST,
    ArmwiseLogger,
    make_observation,
    read_question,
    read_session,
)
from armwise.agent.replies import ArmChoice

logger = logging.getLogger(__name__)

METADATA = ("litellm_metadata", "metadata")
"""Where LiteLLM keeps the metadata of a call: the first one, where a call has it."""

LOGGED = "spend_logs_metadata"
"""Key of the metadata that LiteLLM copies into its standard logging payload and its spend logs."""

Deployment = Mapping[str, Any]
"""A deployment as LiteLLM has it, with `litellm_params` and `model_info`."""


class _Routing(dict[str, dict[str, str]]):
    """What was decided for a call and has not ended, by the id of a deployment that may carry it out.

    It is a class of its own, as clients send metadata, too: what they send is a plain object.

    Attributes:
        tried: The arms that were drawn.
        headers: Headers of the reply, which describe the decision that it comes from.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tried: set[str] = set()
        self.headers: dict[str, str] = {}

    def begin(self, choice: ArmChoice, deployments: Iterable[Deployment]) -> None:
        """Add a decision, which one of these deployments carries out."""
        fields = {"id": choice.decision_id, "arm": choice.chosen}
        self.update({_read_id(one): fields for one in deployments})
        self.tried.add(choice.chosen)
        self.headers = {
            "x-decision-id": choice.decision_id,
            "x-arm": quote(choice.chosen, safe="/:"),
            "x-propensity": f"{choice.propensity:.6g}",
            "x-policy-version": f"{choice.policy_version}",
        }

    def end(self, deployment: str) -> dict[str, str] | None:
        """Return the decision that a deployment has carried out, once; None for none."""
        fields = self.get(deployment)
        for name in [name for name, other in self.items() if other is fields]:
            del self[name]
        return fields


class ArmwiseRouter(ArmwiseLogger):
    """Draws the model of each call from the policy, and reports how the call ended.

    The arm of a deployment is `arm` of its `model_info`, or else `model` of its `litellm_params`; among
    several deployments of one arm LiteLLM chooses. The newest message of the user is the question. A retry
    is a decision of its own, among the arms that the call has not tried. Where fewer than two are left,
    nothing is drawn.

    Args:
        url: Address of the service; by default `ARMWISE_URL`, or port 8000 of this machine.
        api_key: Key, if the service requires one; by default `ARMWISE_API_KEY`.
        groups: Model groups to decide for; None: all.
        bound_s: Seconds after which LiteLLM decides.
        client: Reports how calls ended; by default a new one.
        asking: Asks for decisions; by default a new one.
        options: Further arguments of `ArmwiseLogger`: `content`, `most`, `interval_s`.

    Attributes:
        decided: Number of decisions that LiteLLM followed.
        undecided: Number of calls that LiteLLM decided for want of an answer.

    Raises:
        ValueError: `bound_s` is not positive.
    """

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        groups: Collection[str] | None = None,
        bound_s: float = 0.1,
        client: Client | None = None,
        asking: AsyncClient | None = None,
        **options: Any,
    ) -> None:
        if not bound_s > 0.0:
            raise ValueError(f"bound_s is {bound_s:g}; it must be a positive number of seconds")
        super().__init__(url, api_key, client=client, **options)
        self.decided = self.undecided = 0
        self._groups, self._bound_s = groups, bound_s
        self._name = f"armwise_routing_{id(self)}"  # in the metadata of calls; there may be several routers
        self._asking = AsyncClient(url, api_key, timeout_s=30.0, attempts=1) if asking is None else asking

    @override
    async def async_filter_deployments(
        self,
        model: str,
        healthy_deployments: list[Any],
        messages: Any,
        request_kwargs: dict[str, Any] | None = None,
        parent_otel_span: Any = None,
    ) -> list[Any]:
        if request_kwargs is None or not messages or not (self._groups is None or model in self._groups):
            return healthy_deployments
        metadata = read_metadata(request_kwargs)
        routing = self._find_routing(request_kwargs)
        if routing is None:
            routing = metadata[self._name] = _Routing()
        routing.headers = {}
        by_arm = group_by_arm(healthy_deployments, routing.tried)
        if len(by_arm) < 2:
            if routing.tried:
                _log(metadata, {"undecided": f"{len(by_arm)} arms are left after {', '.join(routing.tried)}"})
            return next(iter(by_arm.values()), healthy_deployments)
        try:
            choice = await asyncio.wait_for(self._ask(by_arm, messages, request_kwargs), self._bound_s)
            kept = by_arm[choice.chosen]
        except Exception as error:  # noqa: BLE001 - a call of a model must not fail for its decision
            self._leave(metadata, error)
            return healthy_deployments
        self.decided += 1
        routing.begin(choice, kept)
        drawn = {"decision_id": choice.decision_id, "arm": choice.chosen, "propensity": choice.propensity}
        _log(metadata, {**drawn, "policy_version": choice.policy_version})
        return kept

    @override
    async def async_post_call_response_headers_hook(
        self,
        data: dict[str, Any],
        user_api_key_dict: Any,
        response: Any,
        request_headers: dict[str, str] | None = None,
        litellm_call_info: dict[str, Any] | None = None,
    ) -> dict[str, str] | None:
        routing = self._find_routing(data)
        return None if routing is None else dict(routing.headers)

    async def _ask(
        self, by_arm: Mapping[str, Sequence[Deployment]], messages: Any, call: Mapping[str, Any]
    ) -> ArmChoice:
        """Return a decision among arms. Raises ClientError."""
        metadata = read_metadata(call)
        sent = metadata.get(KEY)
        features = dict(sent.get("features") or {}) if isinstance(sent, Mapping) else {}
        session = read_session(call, metadata)
        options: dict[str, Any] = {} if session is None else {"episode_id": session}
        question = read_question(messages)[:LONGEST] if self._content else ""
        options |= {"context": features, "allowed_arms": [*by_arm]}
        return await self._asking.choose(question, **options)

    def _find_routing(self, call: Mapping[str, Any]) -> _Routing | None:
        """Return what was decided for a call, from either of its metadata; None where nothing was."""
        found = [(call.get(name) or {}).get(self._name) for name in METADATA]
        return next((one for one in found if isinstance(one, _Routing)), None)

    def _leave(self, metadata: dict[str, Any], error: Exception) -> None:
        """Log that LiteLLM decides, and why."""
        late = isinstance(error, TimeoutError)
        why = f"no answer within {self._bound_s * 1000:g} ms" if late else str(error) or repr(error)
        self.undecided += 1
        _log(metadata, {"undecided": why})
        logger.warning("LiteLLM decided instead of Armwise (%d times so far): %s", self.undecided, why)

    @override
    def _observe(
        self, call: Mapping[str, Any], response: Any, start: Any, end: Any, status: str
    ) -> Mapping[str, Any] | None:
        params = call.get("litellm_params") or {}
        routing = self._find_routing(params)
        made = None if routing is None else routing.end(_read_id(params))
        if made is None:
            return None
        cost = make_observation(call, response, start, end, status, content=False)["cost"]
        return {**made, "status": status, "cost": cost}


def group_by_arm(
    deployments: Iterable[Deployment], without: Collection[str] = ()
) -> dict[str, list[Deployment]]:
    """Return deployments by arm, in their order.

    >>> small, large = {"litellm_params": {"model": "m"}}, {"model_info": {"arm": "large"}}
    >>> [*group_by_arm([small, large, small])], [*group_by_arm([small, large], {"m"})]
    (['m', 'large'], ['large'])
    """
    by_arm: dict[str, list[Deployment]] = {}
    for one in deployments:
        info, params = one.get("model_info") or {}, one.get("litellm_params") or {}
        arm = str(info.get("arm") or params.get("model"))
        if arm not in without:
            by_arm.setdefault(arm, []).append(one)
    return by_arm


def read_metadata(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of a call, which LiteLLM keeps under one of two names.

    >>> read_metadata({"metadata": {"a": 1}}), read_metadata({"metadata": None, "litellm_metadata": {"b": 1}})
    ({'a': 1}, {'b': 1})
    """
    for name in METADATA:
        if isinstance(found := call.get(name), dict):
            return found
    return {}


def _read_id(deployment: Deployment) -> str:
    return str((deployment.get("model_info") or {}).get("id"))


def _log(metadata: dict[str, Any], fields: Mapping[str, Any]) -> None:
    """Write fields into what LiteLLM logs of a call."""
    others = metadata.get(LOGGED)
    metadata[LOGGED] = {**(others if isinstance(others, Mapping) else {}), KEY: dict(fields)}
