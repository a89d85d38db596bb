"""Secrets and what follows from them: the project key, row keys, pseudonyms, coins, seals."""
