"""The budget of a labeler: what may be lost, by which events, at what price."""
