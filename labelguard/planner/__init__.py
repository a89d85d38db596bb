"""What a release would be worth, from public columns and simulated labels alone."""
