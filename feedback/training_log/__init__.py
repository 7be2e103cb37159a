"""TODO: face."""
