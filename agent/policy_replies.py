"""The shapes of replies about policies: the one that decides, the versions, and what was said of them."""

from collections.abc import Mapping, Sequence
from typing import Any

from agent.config import AppConfig
from agent.policies.apprentice import Agreement
from agent.recipe import SHORT
from agent.trained import About
from feedback.alarms import Alarms
from feedback.drift import DriftSpec
from feedback.lag import Lag
from feedback.promotions import InForce, Promotion
from feedback.versions import Version

NONE: Mapping[str, Any] = {
    "version": None,
    "parent": None,
    "digest": None,
    "examples_seq": 0,
    "created_at": None,
}
"""What is told of the version where there is none yet."""


def policy(
    config: AppConfig,
    version: Version | None,
    said: InForce,
    deciding: bool,
    newest: Version | None,
    lag: Lag,
    router: About | None,
    compared: Agreement | None,
    alarms: Alarms,
    floor: float,
) -> dict[str, Any]:
    """Return the policy that decides now, how much of the log it has learned, and the router it hears.

    Args:
        config: What is served.
        version: What decides; None before there is a version.
        said: What operators said that holds.
        deciding: Whether a candidate takes a share of the decisions.
        newest: The newest version of the recipe that is followed.
        lag: What of the log the served version has learned.
        router: What is known of the router; None where there is none.
        compared: How the policy in the shadow agrees with the one that decides; None without one.
        alarms: Of drift.
        floor: Least probability of every eligible arm, now.
    """
    pin, promotion, canary = said.pin, said.promotion, said.canary
    configured = config.policy.model_dump(mode="json")
    return {
        **{name: (version.policy if version else configured)[name] for name in ("kind", "params")},
        "floor": config.floor,
        **(NONE if version is None else {name: getattr(version, name) for name in NONE}),
        "applied_seq": lag.applied_seq,
        "log_seq": lag.log_seq,
        "serving": {
            "version": version and version.version,
            "pinned": pin is not None,
            "chosen": pin and pin.version,
            "since": pin and pin.at,
            "reason": pin and pin.reason,
        },
        "promotion": promotion
        and {
            "version": promotion.version,
            "since": promotion.at,
            "reason": promotion.reason,
            "forced": promotion.forced,
            "evaluation": promotion.evaluation,
            "deciding": version is not None and version.recipe == said.recipe,
        },
        "canary": canary
        and {
            "version": canary.version,
            "share": canary.share,
            "since": canary.at,
            "reason": canary.reason,
            "deciding": deciding,
        },
        "newest": newest and {name: getattr(newest, name) for name in NONE},
        "apprentice": compared
        and {
            "decisions": compared.decisions,
            "agreement": compared.shared if compared.decisions else None,
            "same_best": compared.same_arm if compared.decisions else None,
        },
        "drift": config.drift and _drift(config.drift, alarms, floor, raised=floor > config.floor),
        "reward": config.reward.model_dump(mode="json"),
        "router": router
        and {
            "kind": router.kind,
            "params": router.params,
            "stage": router.stage,
            "digest": router.digest,
            "arms": router.arms,
        },
    }


def _drift(spec: DriftSpec, alarms: Alarms, floor: float, *, raised: bool) -> dict[str, Any]:
    """Return what is known of alarms, what they do to the floor, and whether they ask for labels."""
    last = alarms.newest
    return {
        "alarms": alarms.count,
        "last": last
        and {
            "subject": last.subject,
            "detector": last.detector,
            "before": last.before,
            "after": last.after,
            "example_seq": last.example_seq,
            "at": last.at,
        },
        "floor": floor,
        "until": alarms.raised_until(spec) if raised else None,
        "warm_start_open": alarms.warm_start_open,
    }


def versions(
    page: Sequence[tuple[Version, bool]], promotions: Sequence[Promotion], serving: Version | None
) -> dict[str, Any]:
    """Return versions, with whether their bytes are kept and whether they serve, and what was said of any."""
    return {
        "versions": [
            {
                "version": version.version,
                "parent": version.parent,
                "recipe": version.recipe[:SHORT],
                "kind": version.policy.get("kind"),
                "params": version.policy.get("params"),
                "start": version.start,
                "examples_seq": version.examples_seq,
                "applied_seq": version.applied_seq,
                "digest": version.digest,
                "created_at": version.created_at,
                "kept": kept,
                "serving": version == serving,
            }
            for version, kept in page
        ],
        "promotions": [
            {
                "seq": one.seq,
                "version": one.version,
                "action": one.action.value,
                "reason": one.reason,
                "at": one.at,
                "forced": one.forced,
                "share": one.share,
                "evaluation": one.evaluation,
            }
            for one in promotions
        ],
    }


__all__ = ["policy", "versions"]
