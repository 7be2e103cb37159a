"""Routers on torch."""
