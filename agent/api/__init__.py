"""The HTTP surface."""

from .errors import ApiError, choose_code
from .operations.export import Export, ExportWindow, Format
from .routes import create_app

__all__ = ["ApiError", "Export", "ExportWindow", "Format", "choose_code", "create_app"]
