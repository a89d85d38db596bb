"""Agreement, scores and rewards from releases, and audits that attack the mechanisms."""
