"""Alignment with whole records private: demonstrations, preferences and prompts of people."""
