"""Plain data on a project for people and programs, and the report made of it."""
