"""What `armwise serve` says of deployments that fail, and how it ends."""

import signal

import pytest
from ray import serve
from ray.serve.schema import ApplicationStatus, ApplicationStatusOverview, DeploymentStatusOverview
from ray.serve.schema import DeploymentStatus as Status
from ray.serve.schema import DeploymentStatusTrigger as Trigger

from agent.cli import start_ray
from agent.cli.start_ray import Problem, Watch, problems

TRACEBACK = """The deployment failed to start 3 times in a row.
Traceback (most recent call last):
  File "arms/retrievers/bm25.py", line 214, in load
ValueError: mmap length is greater than file size
"""


def application(
    status: ApplicationStatus, message: str = "", **deployments: tuple[Status, str]
) -> dict[str, ApplicationStatusOverview]:
    """Return one application as `serve.status()` does."""
    of = {
        name: DeploymentStatusOverview(state, Trigger.UNSPECIFIED, {}, said)
        for name, (state, said) in deployments.items()
    }
    return {"armwise": ApplicationStatusOverview(status, message, 0.0, of)}


def test_a_deployment_that_was_given_up_is_named_with_the_error_of_its_constructor() -> None:
    both = application(
        ApplicationStatus.DEPLOY_FAILED,
        "The deployments ['Arms'] have failed.",
        Learner=(Status.HEALTHY, ""),
        Arms=(Status.DEPLOY_FAILED, TRACEBACK),
        Ingress=(Status.UNHEALTHY, "no replica"),
    )
    found = list(problems(both))
    assert [str(one) for one in found] == [
        "deployment Arms has failed for good: ValueError: mmap length is greater than file size",
        "deployment Ingress is unhealthy: no replica",
    ]
    assert [one.for_good for one in found] == [True, False]
    assert "line 214" in found[0].message, "the whole traceback is printed before"


def test_an_application_that_cannot_be_built_is_named_once() -> None:
    (problem,) = problems(application(ApplicationStatus.DEPLOY_FAILED, "ConfigError: floor 2 is too large"))
    assert problem == Problem(
        "the application cannot be deployed", "ConfigError: floor 2 is too large", for_good=True
    )


def test_deployments_that_start_or_run_are_no_problem() -> None:
    states = {"Arms": (Status.UPDATING, "starting"), "Ingress": (Status.HEALTHY, "")}
    for status in (ApplicationStatus.DEPLOYING, ApplicationStatus.RUNNING, ApplicationStatus.DELETING):
        assert list(problems(application(status, "fine", **states))) == []


def test_a_problem_without_a_message_says_so() -> None:
    (problem,) = problems(application(ApplicationStatus.UNHEALTHY, Arms=(Status.UNHEALTHY, " \n")))
    assert str(problem) == "deployment Arms is unhealthy: without a reason"
    assert not problem.for_good


def test_each_problem_is_printed_once_and_the_main_thread_is_interrupted_at_the_last(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    unhealthy = application(ApplicationStatus.UNHEALTHY, Arms=(Status.UNHEALTHY, "no replica"))
    failed = application(ApplicationStatus.DEPLOY_FAILED, Arms=(Status.DEPLOY_FAILED, TRACEBACK))
    well = application(ApplicationStatus.RUNNING, Arms=(Status.HEALTHY, ""))
    looks = iter([unhealthy, unhealthy, well, unhealthy, None, failed])

    def status() -> object:
        if (found := next(looks)) is None:
            raise RuntimeError("the controller starts")
        return type("Status", (), {"applications": found})

    sent: list[signal.Signals] = []
    initialized = iter([False, *[True] * 6])
    monkeypatch.setattr("ray.is_initialized", lambda: next(initialized))
    monkeypatch.setattr(serve, "status", status)
    monkeypatch.setattr(start_ray, "LOOK_S", 0.0)
    monkeypatch.setattr(signal, "pthread_kill", lambda _, number: sent.append(number))
    watch = Watch()
    watch.run()
    assert sent == [signal.SIGINT]
    assert [one.for_good for one in watch.given_up] == [True]
    printed = capsys.readouterr().err
    assert printed.count("deployment Arms is unhealthy: no replica") == 2
    assert printed.count("line 214") == 1
