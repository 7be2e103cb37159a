"""The additions of wings to the service, by import path, so that they are imported when needed.

    a wing --imports--> the core
    the core --load(path)--> what a wing has registered here

The wings are the folders `console`, `demo`, `gateways`, `integrations`, `lab` and `proof` of `agent`,
`engines`, `lab` and `more` of `arms`, and `exchange` of `feedback`; the rest is the core. Kinds of arms,
policies and routers are registered in their catalogues, verbs of the command line in their list.
"""

from importlib import import_module
from typing import Any

ROUTE_MODULES = ("armwise.agent.console.routes", "armwise.agent.gateways.routes", "armwise.agent.lab.routes")
"""Modules with ROUTES of the service, and DIALECTS that some of them speak; the first match answers."""

WRITE_DSJSON = "armwise.feedback.exchange:write_dsjson"
"""Writes a log as VW reads it."""

WARM_STARTS = "armwise.agent.lab.warmstart:WarmStarts"
CANARIES = "armwise.agent.lab.warmstart:AutomaticCanaries"
DIGESTS = "armwise.agent.console.digest_task:Digests"
"""Tasks of the background."""

SUMMARIZER = "armwise.agent.console.summary:Summarizer"
"""Writes the summary of the log that the console shows, between two steps of the learner."""

FIND_DOUBT = "armwise.agent.proof.audit:find_doubt"
"""Says why nothing can be estimated from a log, if that is so."""

VERIFY_RECEIPT = "armwise.agent.proof.verbs:verify_receipt"
"""Computes a receipt of `armwise prove` again; `armwise verify` calls it for a file."""

OPEN_SELECTOR = "armwise.agent.lab.routers:open_selector"
"""Opens the trained model of an arm of kind ensemble or cascade."""

FILL_COLLECTION = "armwise.arms.engines.ingest:fill_collection"
"""Writes a corpus into the search engine of an arm."""

READ_INGESTED = "armwise.arms.engines.ingest:read_ingested"
"""Reads which version of a corpus the search engine of an arm holds."""

SATISFIES_SCHEMA = "armwise.arms.more.checked.form:satisfies"
"""Validates an answer against the JSON schema of its request."""


def load(path: str) -> Any:
    """Return what a wing registers under an import path, `module` or `module:attribute`.

    Raises:
        ModuleNotFoundError: A library of the wing is not installed; the extra that brings it is known to
            `armwise.arms.extras`.
    """
    module, _, attribute = path.partition(":")
    imported = import_module(module)
    return getattr(imported, attribute) if attribute else imported
