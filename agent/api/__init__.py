"""The HTTP surface; `armwise.agent.api.routes` makes the application."""
