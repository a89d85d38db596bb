"""What a labeler may lose, by which events, at what price."""
