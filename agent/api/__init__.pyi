from .errors import ApiError
from .export import Export, Format, Window
from .routes import create_app

__all__ = ["ApiError", "Export", "Format", "Window", "create_app"]
