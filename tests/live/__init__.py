"""The service as users run it: Ray Serve in its own processes, asked over HTTP."""
