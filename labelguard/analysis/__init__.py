"""Analysis of releases, leaderboards and agreement, and audits that attack the mechanisms."""
