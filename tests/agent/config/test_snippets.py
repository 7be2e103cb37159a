"""Every part of a configuration that a page shows loads as the service loads it."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from armwise.agent.config import AppConfig, parse
from tests.pages import blocks_of

ROOT = Path(__file__).parents[3]

TEMPLATE: dict[str, Any] = yaml.safe_load((ROOT / "agent/config/template.yaml").read_text())
"""What a reader adds a part to."""

NAMED_ELSEWHERE = {
    "arms": {name: {"kind": "bm25"} for name in ("docs", "tickets", "wiki", "guides", "graph", "large")},
    "llms": {"large": {"engine": "embedded"}},
}
"""What parts refer to, and their page shows before or takes for granted."""

NOT_ALONE = {
    "docs/guide/extending/arm.md": "the class is written on the page; tests/test_extending.py runs it",
    "docs/guide/extending/policy.md": "as above",
    "docs/guide/extending/step.md": "as above",
    "docs/papers/ltrr.md": "its router is trained on the page; tests/test_papers_ltrr.py runs it",
}


def parts() -> list[tuple[str, dict[str, Any]]]:
    """Return page and settings of each part of a configuration, and of each whole one."""
    found = []
    for path in sorted((ROOT / "docs").rglob("*.md")):
        page = str(path.relative_to(ROOT))
        for block in blocks_of(page):
            if block.language != "yaml":
                continue
            document = yaml.safe_load(block.text)
            if isinstance(document, dict) and "applications" in document:
                document = document["applications"][0]["args"]
            if isinstance(document, dict) and document.keys() <= AppConfig.model_fields.keys():
                found.append((page, document))
    return found


def added(part: dict[str, Any], page: str) -> dict[str, Any]:
    """Return the settings of a reader who adds a part to the template, or to the first part of the page."""
    if {"arms", "llm", "reward"} <= part.keys():
        return part
    args = TEMPLATE["applications"][0]["args"]
    if page == "docs/guide/sources.md":  # its arms search the corpora of its first part
        sources = next(shown for other, shown in PARTS if other == page)
        args = {**{key: args[key] for key in ("backbones", "llm", "reward")}, **sources}
    elif "corpora" in part:
        args = {key: value for key, value in args.items() if key not in ("corpus", "arms")}
    elif any(arm["kind"] == "external" for arm in part.get("arms", {}).values()):  # they stand alone
        args = {**args, "arms": {}}
    else:
        args = {**args, **NAMED_ELSEWHERE, "arms": {**args["arms"], **NAMED_ELSEWHERE["arms"]}}
    if "reward" in part:  # the warm start of the template learns from a metric of the template
        args = {**args, "warm_start": None}
    grown = {key: {**args.get(key, {}), **part[key]} for key in ("arms", "backbones", "llms") if key in part}
    return {**args, **part, **grown}


PARTS = parts()


def test_pages_show_parts_of_configurations() -> None:
    pages = {page for page, _ in PARTS}
    assert {"docs/guide/policies.md", "docs/guide/sources.md", "docs/guide/arms.md"} <= pages
    assert len(PARTS) >= 40


@pytest.mark.parametrize(
    ("page", "part"), PARTS, ids=[f"{page}-{number}" for number, (page, _) in enumerate(PARTS)]
)
def test_a_part_of_a_configuration_loads(page: str, part: dict[str, Any]) -> None:
    if page in NOT_ALONE:
        pytest.skip(NOT_ALONE[page])
    parse(added(part, page), ROOT)
