"""Connectors to annotation tools. They come with later versions; the core reads files itself."""
