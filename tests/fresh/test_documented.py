"""Every `pip install` of this project that the README and the docs print is tried."""

import re
import shlex
from collections.abc import Callable
from typing import Any

from tests.fresh import test_installs as installs
from tests.pages import ROOT

Requirements = tuple[str, ...]


def documented() -> set[Requirements]:
    """Return what the README and the docs tell their readers to install of this project."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    found = set()
    for line in "\n".join(page.read_text(encoding="utf-8") for page in pages).splitlines():
        for command in re.findall(
            r"pip install (?:--upgrade )?((?:'[^']+'|\"[^\"]+\"|[\w.\[\]-]+)(?: '[^']+')*)", line
        ):
            words = [re.sub(r".*/(armwise)-[\w.-]*\.whl", r"\1", word) for word in shlex.split(command)]
            if any(word.startswith("armwise") for word in words):
                found.add(tuple(words))
    return found


TRIED: dict[Requirements, Callable[..., Any]] = {
    ("armwise",): installs.test_the_small_installation_reads_a_log,
    ("armwise[serve,local]",): installs.test_the_quickstart_ends_with_a_promoted_warm_start,
    ("armwise[serve]", "litellm[proxy]"): installs.test_litellm_draws_by_the_policy_beside_its_proxy,
    ("armwise[serve]",): installs.test_the_commands_of_a_tutorial_work,
    ("armwise[langchain]",): installs.test_the_retriever_of_a_framework_finds_passages,
    ("armwise[llamaindex]",): installs.test_the_retriever_of_a_framework_finds_passages,
    ("armwise[haystack]",): installs.test_the_retriever_of_a_framework_finds_passages,
    ("armwise[mcp]",): installs.test_a_service_with_mcp_answers_its_clients,
    ("armwise[serve,litellm]",): installs.test_a_model_of_litellm_answers,
    ("armwise[documents]",): installs.test_documents_of_an_office_are_served,
    ("armwise[ner]",): installs.test_spacy_finds_the_entities_of_a_graph,
}
"""The test of each documented installation."""


def test_every_documented_installation_has_a_test() -> None:
    assert documented() == TRIED.keys()
