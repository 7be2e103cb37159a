from .configuration import configuration_findings
from .data import corpus_findings, derived_findings, llm_findings, log_findings, model_findings
from .finding import Finding
from .installation import version_findings
from .machine import file_findings, socket_findings
from .resources import address_findings, bind_problem, resource_findings

__all__ = [
    "Finding",
    "address_findings",
    "bind_problem",
    "configuration_findings",
    "corpus_findings",
    "derived_findings",
    "file_findings",
    "llm_findings",
    "log_findings",
    "model_findings",
    "resource_findings",
    "socket_findings",
    "version_findings",
]
