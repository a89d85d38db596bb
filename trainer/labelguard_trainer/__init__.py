"""Learning from releases: features of pairs. Any TRL trainer reads a release today."""
