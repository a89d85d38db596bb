"""Mechanisms: what turns raw labels into releases, and how each is charged."""
