"""Clients of OpenAI's API, unmodified, against a service that they know by its address alone."""
