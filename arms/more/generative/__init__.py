"""Kinds of arms that prompt a language model, one file a kind."""
