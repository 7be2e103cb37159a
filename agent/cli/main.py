"""The `armwise` command line: the list of its verbs, each imported when it is called.

A verb that fails prints in one line what is wrong and what would be right, and
exits with 2 for a wrong request, 1 for a failure on the way.
"""

import importlib
import os
import sys
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup


@dataclass(frozen=True)
class Verb:
    """Where a verb is implemented, and its line in the list of verbs."""

    target: str
    panel: str
    summary: str


SERVE, EVALUATE, OPERATE = "Serve and ask", "Evaluate and train", "Operate a running service"
"""The panels of the verbs."""

DATA, LEARN, MEASURE = "Questions and arms", "Labels and models", "Traffic with known answers"
"""The panels of the verbs of the lab."""

VERBS = {
    "demo": Verb("demo.verbs:demo", SERVE, "Watch a service learn, in a minute, without a key or a model."),
    "init": Verb("cli.setup:init", SERVE, "Write a configuration for a corpus of your own."),
    "models": Verb("cli.setup:models", SERVE, "Install the default models."),
    "ingest": Verb("cli.ingest:ingest_corpus", SERVE, "Read passages into a corpus."),
    "serve": Verb("cli.serve:serve", SERVE, "Build the corpus and the indexes, then serve."),
    "ask": Verb("cli.service:ask", SERVE, "Ask a question and stream the answer."),
    "feedback": Verb("cli.service:feedback", SERVE, "Rate an answer."),
    "wrap": Verb("cli.wrap:wrap", SERVE, "Start a coding agent that asks the service, and say what it cost."),
    "replay": Verb(
        "cli.evaluate:replay",
        EVALUATE,
        "Estimate from the log what other policies would have earned.",
    ),
    "audit": Verb("proof.audit_verbs:audit", EVALUATE, "Check whether the propensities of a log are true."),
    "prove": Verb(
        "proof.verbs:prove",
        EVALUATE,
        "State what was saved, and at which quality, compared with one arm.",
    ),
    "report": Verb(
        "console.report:report",
        EVALUATE,
        "Report a period: what was served, earned, saved and changed.",
    ),
    "lab": Verb(
        "cli.main:lab", EVALUATE, "Work offline: make questions and labels, train routers, run a warm start."
    ),
    "import": Verb(
        "gateways.import_log:import_log",
        EVALUATE,
        "Convert the log of another system for `replay`.",
    ),
    "doctor": Verb("cli.setup:doctor", OPERATE, "Check your setup, and say what to do about each problem."),
    "status": Verb("cli.service:status", OPERATE, "Show the active policy and the arms."),
    "policy": Verb("cli.main:policy", OPERATE, "Promote, pin or try a version, or change the live arms."),
    "verify": Verb("cli.service:verify", OPERATE, "Recompute a decision, a receipt or the whole log."),
    "key": Verb("cli.log:key", OPERATE, "Make, list and disable API keys."),
    "log": Verb("cli.main:log", OPERATE, "Export, copy, rebuild or erase what is logged."),
}
"""Every verb, in the order of the help."""

LAB = {
    "synthesize": Verb("lab.verbs:synthesize", DATA, "Make questions from the corpus, with their passages."),
    "score": Verb("lab.verbs:score", DATA, "Score every arm of a pool on every question."),
    "portfolio": Verb("lab.verbs:portfolio", DATA, "Choose a few arms that complement each other."),
    "label": Verb(
        "lab.verbs:label",
        LEARN,
        "Answer every question with every arm, and measure the answers.",
    ),
    "train": Verb("lab.verbs:train", LEARN, "Train a router on outcomes."),
    "threshold": Verb("lab.verbs:threshold", LEARN, "Fit the threshold of a checked arm to the log."),
    "enter-labels": Verb("lab.verbs:enter_labels", LEARN, "Insert labels into the log."),
    "warm-start": Verb("lab.verbs:warm_start", LEARN, "Run a warm start now."),
    "evaluate-router": Verb(
        "lab.verbs:evaluate",
        LEARN,
        "Evaluate a trained router on other questions.",
    ),
    "simulate": Verb(
        "lab.verbs:simulate_traffic", MEASURE, "Send questions with known answers, and score the replies."
    ),
}
"""Every verb of `armwise lab`, in the order of its help."""

POLICY = {
    "promote": Verb("cli.service:promote", OPERATE, "Make the recipe of a version the active one."),
    "rollback": Verb("cli.service:rollback", OPERATE, "Pin exactly one version."),
    "canary": Verb("cli.service:canary", OPERATE, "Give a version a share of the traffic."),
    "apply": Verb("cli.service:apply", OPERATE, "Make the arms of a portfolio live."),
}
"""Every verb of `armwise policy`."""

LOG = {
    "export": Verb("cli.log:export", OPERATE, "Write the training log to a file."),
    "backup": Verb("cli.log:backup", OPERATE, "Copy the log while the service runs."),
    "erase": Verb("cli.log:erase", OPERATE, "Erase the texts of a user, an episode or a decision."),
    "rebuild": Verb("cli.log:rebuild", OPERATE, "Rebuild the training log, or verify it."),
}
"""Every verb of `armwise log`."""

GROUPS = {"lab": LAB, "policy": POLICY, "log": LOG}
"""The verbs of each group by its name."""


class LazyCommand(TyperCommand):
    """A verb by name: what is listed without importing it."""

    def __init__(self, name: str, verb: Verb) -> None:
        super().__init__(name, help=verb.summary, rich_help_panel=verb.panel, rich_markup_mode=None)
        self._verb = verb

    @cached_property
    def command(self) -> Any:
        """The verb itself; the first access imports its module."""
        module, _, function = self._verb.target.partition(":")
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        verb = getattr(importlib.import_module(f"armwise.agent.{module}"), function)
        if isinstance(verb, typer.Typer):
            return typer.main.get_command(verb)
        app.command(self.name)(verb)
        return typer.main.get_command(app)

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        """Parse the arguments of the verb itself; what runs afterwards is the context's command."""
        return self.command.make_context(*args, **kwargs)


class VerbGroup(TyperGroup):
    """Verbs, listed by panel."""

    verbs = VERBS

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, verb in self.verbs.items():
            self.add_command(LazyCommand(name, verb))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each panel."""
        del ctx
        for panel in dict.fromkeys(verb.panel for verb in self.verbs.values()):
            with formatter.section(panel):
                formatter.write_dl(
                    [(name, verb.summary) for name, verb in self.verbs.items() if verb.panel == panel]
                )

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find a verb; one of a group that is called without it is named with it."""
        for group, verbs in GROUPS.items():
            if args[0] in verbs and args[0] not in self.verbs and not ctx.resilient_parsing:
                ctx.fail(f"No such command '{args[0]}'. Run: armwise {group} {args[0]}")
        return super().resolve_command(ctx, args)


def _make_group(name: str, about: str) -> typer.Typer:
    """Return the verbs of a group, with what its help says."""
    kind = type("NamedGroup", (VerbGroup,), {"verbs": GROUPS[name]})
    group = typer.Typer(cls=kind, no_args_is_help=True, add_completion=False, rich_markup_mode=None)
    group.callback(help=about)(lambda: None)
    return group


app = typer.Typer(cls=VerbGroup, no_args_is_help=True, rich_markup_mode=None)

lab = _make_group(
    "lab",
    "Work offline: make questions, score and label arms, train models, run a warm start. Only `simulate` "
    "calls a running service.",
)
policy = _make_group("policy", "Change what a running service decides by.")
log = _make_group("log", "Work on the log, without a service.")


def _print_version(flag: bool) -> None:
    if flag:
        typer.echo(f"armwise {metadata.version('armwise')}")
        raise typer.Exit


@app.callback()
def armwise(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Choose a source and a model for each question, and learn from feedback.

    A command that fails prints what is wrong and what would be right. It exits with 2 if the request is
    wrong, and with 1 if something fails on the way. Other users of the machine cannot read the files that
    it writes.
    """
    del version
    if context.invoked_subcommand == "wrap":  # what it starts gets the environment as it is
        return
    from armwise.arms.local_ray import UMASK  # here: a list of verbs loads no package of ours
    from armwise.arms.own_processes import keep_apart

    os.umask(UMASK)
    keep_apart()


def main() -> None:
    """Run the command line; a verb whose library is missing says which extra brings it."""
    try:
        app()
    except ModuleNotFoundError as error:
        from armwise.agent.cli.console import errors
        from armwise.arms.extras import advice

        if (text := advice(error)) is None:
            raise
        errors.print(text, style="red", soft_wrap=True)
        sys.exit(2)
