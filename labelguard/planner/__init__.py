"""The worth of a release, from public columns and simulated labels alone."""
