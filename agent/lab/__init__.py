"""What is done beside the service: portfolios, labels, trained routers, warm starts, simulated traffic."""
