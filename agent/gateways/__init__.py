"""Doors to and from other systems: protocols, frameworks, buttons of a page, logs of others."""
