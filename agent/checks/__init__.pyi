from .configuration import configuration_findings
from .finding import Finding
from .machine import file_findings, socket_findings

__all__ = [
    "Finding",
    "configuration_findings",
    "file_findings",
    "socket_findings",
]
