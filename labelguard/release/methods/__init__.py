"""The name that mechanisms had in an older installation's entry points."""
