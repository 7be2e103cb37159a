"""Offline work: portfolios, labels, training of routers, warm starts, simulated traffic."""
