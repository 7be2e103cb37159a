"""A policy that a request names may import no code and open no file; the configured one may."""

import pytest

from armwise.agent.policies.base import PolicyError
from armwise.agent.policies.catalog import PolicySpec, check_untrusted

PLAIN = PolicySpec(kind="uniform")
ADF = "--cb_explore_adf"


def vowpal(args: object) -> PolicySpec:
    return PolicySpec(kind="vowpal", params={"args": args})


@pytest.mark.parametrize(
    "spec",
    [
        PLAIN,
        PolicySpec(kind="neural"),
        PolicySpec(kind="vowpal"),
        vowpal(f"{ADF} -q sa --bag 3 --epsilon=0.05"),
        vowpal(f"{ADF} -qsa -b18"),
        vowpal(f"{ADF} '--epsilon' \"0.05\""),
        vowpal(f"{ADF} --cb_min_cost -1"),
        PolicySpec(kind="epsilon_greedy"),
        # Only the parameters of the policies that load files are read as such.
        PolicySpec(kind="fixed", params={"encoder": "/etc", "args": "-p /etc"}),
        PolicySpec(kind="uniform", params={"model": "os.system", "params": {"command": "true"}}),
        PolicySpec(kind="uniform", params={"policy": {"kind": "vowpal", "params": {"args": "-p /etc"}}}),
    ],
)
def test_a_policy_of_plain_parameters_passes(spec: PolicySpec) -> None:
    check_untrusted(spec, PLAIN)


NEURAL = PolicySpec(kind="neural", params={"encoder": "/etc"})


def test_the_configured_policy_may_name_files() -> None:
    check_untrusted(NEURAL, NEURAL)
    with pytest.raises(PolicyError, match="encoder '/etc'"):
        check_untrusted(NEURAL, PolicySpec(kind="neural"))


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (f"{ADF} -p/etc/motd", "'-p' is not allowed"),
        (f"{ADF} '-p' /etc/motd", "'-p' is not allowed"),
        (f"{ADF} --epsilon 0.1 '--cache_file'", "'--cache_file' is not allowed"),
        (f"{ADF} --daemon --port 26542", "'--daemon' is not allowed"),
        (f"{ADF} --sendto evil.example", "'--sendto' is not allowed"),
        ([ADF, "-p", "/etc/motd"], "are a text"),
    ],
)
def test_vw_arguments_outside_of_the_list_are_refused(args: object, words: str) -> None:
    """Even those of the configuration."""
    with pytest.raises(PolicyError, match=words):
        check_untrusted(vowpal(args), vowpal(args))
