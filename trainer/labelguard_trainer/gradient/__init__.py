"""Gradient mechanisms: a model's own weights learn from labels, under a labeler-level guarantee."""
