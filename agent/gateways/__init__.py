"""Interfaces to other systems: feedback in their formats, MCP, feedback buttons for web pages, log import."""
