"""Connectors to annotation tools, and the hook that hears them; files are read by the core."""
