"""Training on releases. It comes with later versions; any TRL trainer reads a release today."""
