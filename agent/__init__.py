"""What we choose: policies, routers, the service that runs them, and the tools around it."""
