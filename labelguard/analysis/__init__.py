"""Agreement, scores and rewards from releases."""
