"""From labels to a public release: planned, charged, drawn, published, described, loaded."""
