from .errors import ApiError
from .operations.export import Export, Format, Window
from .routes import create_app

__all__ = ["ApiError", "Export", "Format", "Window", "create_app"]
