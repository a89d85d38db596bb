"""Frozen encoders as providers of features: what they read, what they give, and its cache."""
