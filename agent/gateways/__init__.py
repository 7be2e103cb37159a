"""Interfaces to other systems: feedback in their formats, MCP, log import, buttons and a chat for pages."""
