"""`armwise demo`."""
