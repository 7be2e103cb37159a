"""The catalogue finds the policies of this package, and those that installed packages register."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from armwise.agent.policies import (
    Policy,
    PolicyError,
    PolicySpec,
    Uniform,
    build_policy,
    catalog,
    check_untrusted,
)
from armwise.agent.spec import ClassCatalogue
from tests.packages import install_package

ARMS = ["bm25", "none"]

POLICY = """
from armwise.agent.policies import Uniform

class {name}:
    kind = "{kind}"
    resumes_exactly = True

    def __init__(self, least: float = 0.5) -> None:
        self.least = least

    probabilities, learn, save, load = Uniform.probabilities, Uniform.learn, Uniform.save, Uniform.load
"""

Install = Callable[..., ClassCatalogue[Policy]]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Return a function that puts packages with entry points on the path, and returns a new catalogue."""

    def installed(source: str, *points: str) -> ClassCatalogue[Policy]:
        install_package(tmp_path, monkeypatch, "their_policies", source, "armwise.policies", points)
        catalogue: ClassCatalogue[Policy] = ClassCatalogue(
            ["armwise.agent.policies"], "armwise.policies", "policy", PolicyError
        )
        monkeypatch.setattr(catalog, "POLICIES", catalogue)
        return catalogue

    return installed


def test_a_policy_of_another_package_is_built_by_its_kind(install: Install) -> None:
    kinds = install(POLICY.format(name="Theirs", kind="theirs"), "theirs = their_policies:Theirs")
    assert "theirs" in kinds
    assert {*kinds} >= {"linucb", "theirs"}
    assert len(kinds) == len([*kinds])
    assert "their_policies" not in sys.modules  # until it is needed
    built = build_policy(PolicySpec(kind="theirs", params={"least": 0.25}), ARMS)
    assert built.kind == "theirs"
    assert vars(built) == {"least": 0.25}
    with pytest.raises(PolicyError, match="policy 'theirs' has no parameter 'last'; did you mean 'least'"):
        build_policy(PolicySpec(kind="theirs", params={"last": 1}), ARMS)


def test_a_request_cannot_name_one_that_does_not_check_its_parameters(install: Install) -> None:
    install(POLICY.format(name="Theirs", kind="theirs"), "theirs = their_policies:Theirs")
    theirs = PolicySpec(kind="theirs")
    with pytest.raises(PolicyError, match="only the configuration can name policy 'theirs'"):
        check_untrusted(theirs, PolicySpec(kind="uniform"))
    check_untrusted(theirs, theirs)


def test_a_policy_of_ours_is_not_replaced(install: Install) -> None:
    kinds = install(POLICY.format(name="Theirs", kind="uniform"), "uniform = their_policies:Theirs")
    assert kinds["uniform"] is Uniform
    assert [*kinds].count("uniform") == 1


THEIRS = "theirs = their_policies:Theirs"


@pytest.mark.parametrize(
    ("source", "points", "words"),
    [
        ("", (THEIRS,), "their_policies:Theirs cannot be imported"),
        ("1 / 0", (THEIRS,), "ZeroDivisionError"),
        (POLICY.format(name="Theirs", kind="other"), (THEIRS,), "not a class with kind = 'theirs'"),
        ("Theirs = 3", (THEIRS,), "not a class with kind = 'theirs'"),
        (
            POLICY.format(name="Theirs", kind="theirs"),
            (THEIRS, "theirs = their_policies:Others"),
            r"more than once, by theirs-0 \(.*:Theirs\) and by theirs-1 \(.*:Others\)",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_when_its_kind_is_named(
    install: Install, source: str, points: tuple[str, ...], words: str
) -> None:
    install(source, *points)
    with pytest.raises(PolicyError, match=words):
        build_policy(PolicySpec(kind="theirs"), ARMS)


def test_a_kind_that_nobody_has_is_not_in_the_catalogue(install: Install) -> None:
    kinds = install("")
    assert "theirs" not in kinds
    with pytest.raises(KeyError):
        kinds["theirs"]
