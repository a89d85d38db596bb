"""The ledger: what every labeler has spent, and every release."""
