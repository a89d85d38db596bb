"""What a project has done so far, as plain data for people and programs."""
