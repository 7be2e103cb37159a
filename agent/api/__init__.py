"""The HTTP surface."""

from .errors import ApiError, code_of
from .middleware import KNOWN_CALLER
from .operations.export import Export, ExportWindow, Format
from .routes import create_app

__all__ = ["KNOWN_CALLER", "ApiError", "Export", "ExportWindow", "Format", "code_of", "create_app"]
