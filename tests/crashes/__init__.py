"""Processes of a service are killed under traffic; what its clients were told is looked up in the log."""
