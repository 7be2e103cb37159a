"""Retrievers of this service for frameworks; each needs its extra, such as `armwise[langchain]`."""
