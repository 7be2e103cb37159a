"""Policies, routers, the service that runs them, and its tools."""
