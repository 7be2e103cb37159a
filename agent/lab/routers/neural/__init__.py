"""Fits networks, and encodes text, with torch. Routers import these modules only when they need torch."""
