"""Scheduled retraining: from new labels to the model in use, one idempotent run at a time."""
