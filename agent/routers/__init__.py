"""Routers: what is fitted offline to choose an arm; each scores, and none draws."""
