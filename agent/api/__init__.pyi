from .export import Export, Format, Window
from .routes import create_app

__all__ = ["Export", "Format", "Window", "create_app"]
