"""Kinds of arms that prompt a language model, one file per kind."""
