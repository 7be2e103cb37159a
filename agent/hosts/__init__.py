"""The processes of the service's deployments, each in a module that imports only what it needs."""
