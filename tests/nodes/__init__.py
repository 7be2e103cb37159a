"""The service on a cluster of three machines, which are namespaces of Linux."""
