"""What is chosen: policies, routers, the service that runs them, and its tools."""
