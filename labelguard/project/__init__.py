"""A project on disk: made, found, opened, held by one job, backed up, restored, left."""
