"""What the deployments of the service run, each in a module that imports only what it needs."""
