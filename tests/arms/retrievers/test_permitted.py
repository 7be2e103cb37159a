"""Every kind finds only what a query permits, and as many of these as it would without a filter."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from armwise.arms.async_bridge import Blocking
from armwise.arms.base import Arm, Passage
from armwise.arms.corpus import Corpus
from armwise.arms.filters import Comparison, Compound, permits
from armwise.arms.llm import blocking_writer
from armwise.arms.retrievers import ArmGraph, build_arm, prepare
from armwise.arms.retrievers.catalog import KINDS
from armwise.arms.retrievers.kind import ArmSpec, CascadeStep, Resources
from tests.arms.conftest import ENCYCLOPEDIA, keep
from tests.arms.contract import QUESTIONS, ask
from tests.arms.retrievers.test_catalog import BACKBONES, SCRIPTED, SPECS, embed

CASCADE = ArmSpec(kind="cascade", params={"stages": [["bm25"], ["graph"]], "decider": "scripted"})
ARMS = {name: spec for name, spec in SPECS.items() if ArmGraph(SPECS).filters(name)} | {"staged": CASCADE}

TENANTS = ("acme", "zeta")
PASSAGES = (
    *(
        Passage(f"{p.id}-{tenant}", p.title, p.text, metadata={"year": 2000 + n, "allowed_groups": [tenant]})
        for n, p in enumerate(ENCYCLOPEDIA)
        for tenant in TENANTS
    ),
    *(Passage(p.id, p.title, f"{p.text} For all.", metadata={"year": 1990}) for p in ENCYCLOPEDIA[::3]),
)
"""Of every passage one copy a tenant, so that a forbidden one always fits as well as a permitted one."""

WHERES = st.sampled_from(
    [
        None,
        Comparison(type="gte", key="year", value=2004),
        Comparison(type="eq", key="year", value=1990),
        Comparison(type="eq", key="year", value=1),
        Compound(
            type="or",
            filters=(
                Comparison(type="lt", key="year", value=2002),
                Comparison(type="in", key="year", value=(2005, 2006)),
            ),
        ),
    ]
)
GROUPS = st.frozensets(st.sampled_from([*TENANTS, "other"]))


class Goes:
    """Has all stages run, and picks the last."""

    k = 2

    def decide(
        self, question: str, answers: Sequence[str | None], found: Sequence[Sequence[Passage]]
    ) -> CascadeStep:
        del question, found
        return CascadeStep(len(answers) - 1, 0.5, None, goes_on=len(answers) < 2)


@pytest.fixture(scope="module")
def arms(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Arm]:
    folder = tmp_path_factory.mktemp("tenants")
    return built(folder, keep(folder, PASSAGES), ARMS)


def built(folder: Path, corpus: Corpus, specs: dict[str, ArmSpec]) -> dict[str, Arm]:
    write = blocking_writer(Blocking(), SCRIPTED)
    ready = Resources(corpus, folder, BACKBONES, specs, embed, write, lambda _: Goes())  # type: ignore[arg-type]
    prepare(ready)
    return {name: build_arm(name, ready) for name in specs}


def test_what_a_server_finds_is_not_said_to_be_permitted() -> None:
    honouring = {kind for kind, about in KINDS.own.items() if about.filters}
    assert honouring.isdisjoint({"remote", "mcp", "langchain", "llamaindex", "haystack"})
    assert all(ArmGraph(ARMS).filters(name) for name in ARMS)
    assert ARMS.keys() >= {"none", "bm25", "dense", "ds", "vendi", "graph", "rrf", "learned_fusion", "expand"}
    assert ARMS.keys() >= {
        "regularize",
        "plackett_luce",
        "multistep",
        "query_variants",
        "vendi_rag",
        "ensemble",
    }


@given(WHERES, GROUPS, st.sampled_from(QUESTIONS), st.sampled_from([1, 4, 60]))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@pytest.mark.slow
def test_no_kind_finds_what_is_not_permitted(
    arms: dict[str, Arm], where: Any, groups: frozenset[str], question: str, k: int
) -> None:
    permitted = {p.id for p in PASSAGES if permits(where, groups, p.metadata)}
    query = replace(ask(question, frozenset({"minilm"})), where=where, groups=groups)
    for name, arm in arms.items():
        found = [passage.id for passage in arm.search(query, k).passages]
        assert permitted.issuperset(found), name
        if ARMS[name].kind in ("dense", "ds", "vendi"):
            assert len(found) == min(k, len(permitted)), f"{name} finds fewer than there are"


def test_the_same_question_of_two_groups_shares_no_cache(arms: dict[str, Arm]) -> None:
    query = ask("Which river flows through Vienna?", frozenset({"minilm"}))
    for name, arm in arms.items():
        for tenant in (*TENANTS, *TENANTS):
            found = arm.search(replace(query, groups=frozenset({tenant})), 8).passages
            assert all(p.metadata.get("allowed_groups", [tenant]) == [tenant] for p in found), name


@pytest.mark.parametrize(
    ("where", "groups"),
    [
        (None, frozenset({"zeta"})),
        (None, frozenset()),
        (Comparison(type="gte", key="year", value=2004), frozenset({"acme"})),
        (Comparison(type="eq", key="year", value=2007), frozenset({"acme"})),
    ],
)
def test_vectors_are_searched_as_in_the_permitted_corpus(
    arms: dict[str, Arm], tmp_path: Path, where: Any, groups: frozenset[str]
) -> None:
    permitted = tuple(p for p in PASSAGES if permits(where, groups, p.metadata))
    by_vector = {name: spec for name, spec in ARMS.items() if spec.kind in ("dense", "ds", "vendi")}
    alone = built(tmp_path, keep(tmp_path, permitted), by_vector)
    for name, question, k in itertools.product(by_vector, QUESTIONS, (1, 5)):
        query = replace(ask(question, frozenset({"minilm"})), where=where, groups=groups)
        everybody = frozenset({*TENANTS})
        assert arms[name].search(query, k) == alone[name].search(replace(query, groups=everybody), k), name


def test_words_are_weighed_by_all_and_ranked_by_the_permitted(
    arms: dict[str, Arm],
) -> None:
    for question, k in itertools.product(QUESTIONS, (1, 5)):
        query = replace(ask(question), groups=frozenset(TENANTS))
        every = arms["bm25"].search(query, len(PASSAGES)).passages
        for groups in (frozenset[str](), frozenset({"acme"})):
            expected = [p for p in every if permits(None, groups, p.metadata)]
            found = arms["bm25"].search(replace(query, groups=groups), k).passages
            assert [*found] == expected[:k]
