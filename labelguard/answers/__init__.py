"""Answers of annotation tools: connectors, the inbox of a hook, and sealed segments."""
