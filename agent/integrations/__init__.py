"""Retrievers of this service for frameworks, and the tap of LiteLLM; each needs its framework."""
