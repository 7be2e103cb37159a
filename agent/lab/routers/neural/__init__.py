"""What fits networks and reads text with them. Each module loads torch; a router imports it where it fits."""
